//! Repositories of backups that were kept from every version of their format are opened, restored
//! and added to (docs/backup.md).
//!
//! `plain/` and `encrypted/` are repositories as they lie in a directory, each with a backup in full
//! (`monday`) and one of what changed (`tuesday`); `BACKUP.txt` has what is restored of each. The
//! files: text that was compressed, noise that was not, a hole, zeros that were written over data,
//! a second name, a symbolic link that is gone on Tuesday, and a file that came then.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate_backup::{
    Access, Error, Header, Passphrase, Repository, Result, Source, Target, Unlock, create, restore,
};

const BACKUPS: [&str; 2] = ["monday", "tuesday"];

/// What the encrypted one opens with.
const PASSPHRASE: &str = "correct horse";

fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(text.into()).unwrap()
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept")
}

/// Each kept repository with what opens it.
fn repositories() -> [(PathBuf, Unlock<'static>); 2] {
    // Asked for a passphrase it gives one that is refused.
    let none = Unlock::Ask(&|_| Passphrase::new(Vec::new()));
    [(kept().join("plain"), none), (kept().join("encrypted"), Unlock::With(passphrase(PASSPHRASE)))]
}

/// Returns every file below a directory, with its content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    for (path, content) in files(from) {
        let path = to.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Returns a line for each name below a directory: what a user would miss if it were another.
fn manifest(dir: &Path) -> String {
    let (mut lines, mut todo) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let mut line = format!("{:o} {}.{:09}", meta.mode(), meta.mtime(), meta.mtime_nsec());
            if meta.is_dir() {
                todo.push(path.clone());
            } else if meta.is_symlink() {
                // A link takes the permissions and the time of its making.
                line = format!("leads to {}", fs::read_link(&path).unwrap().display());
            } else {
                let content = fs::read(&path).unwrap();
                let (names, hash) = (meta.nlink(), blake3::hash(&content));
                write!(line, ", {names} names, {} bytes {hash}", content.len()).unwrap();
            }
            lines.insert(path.strip_prefix(dir).unwrap().to_owned(), line);
        }
    }
    lines.iter().map(|(path, line)| format!("{}: {line}\n", path.display())).collect()
}

fn restored(repository: &Repository, name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(dir.path(), |_| Ok::<_, Error>(false)).unwrap();
    restore(repository, &repository.backup(name).unwrap(), target, |_, _| ()).unwrap();
    manifest(dir.path())
}

/// S-402: what any version of Bedplate backed up, encrypted or not, is listed, verified and restored
/// as it was, and nothing is written to where it lies.
#[test]
fn s_402_a_repository_of_every_version_is_restored_as_it_was() {
    for (path, unlock) in repositories() {
        let before = files(&path);
        let repository = Repository::open(path.as_os_str(), &unlock, Access::Read).unwrap();
        let encrypted = path.ends_with("encrypted");
        assert_eq!(repository.is_encrypted(), encrypted, "{}", path.display());
        let (headers, damaged) = repository.headers().unwrap();
        let names: Vec<_> = headers.iter().map(|header| header.name.as_str()).collect();
        assert_eq!((names, damaged), (BACKUPS.to_vec(), Vec::new()), "{}", path.display());
        assert_eq!(headers[1].base.as_deref(), Some("monday"), "{}", path.display());
        let verified = repository.verify(None, |_| ()).unwrap();
        assert!(verified.faults.is_empty(), "{}: {verified:?}", path.display());
        for name in BACKUPS {
            let expected = fs::read_to_string(kept().join(format!("{name}.txt"))).unwrap();
            assert_eq!(restored(&repository, name), expected, "{name} of {}", path.display());
        }
        drop(repository);
        assert!(before == files(&path), "{} was written to", path.display());
        if encrypted {
            let wrong = Unlock::With(passphrase("battery staple"));
            let refused = Repository::open(path.as_os_str(), &wrong, Access::Read);
            assert!(refused.is_err(), "another passphrase opens {}", path.display());
        }
    }
}

/// S-402: it is added to and pruned, an encrypted one gets another passphrase, and what it held
/// stays what it was.
#[test]
fn s_402_a_repository_of_every_version_is_added_to_and_pruned() {
    for (path, unlock) in repositories() {
        let (dir, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        copy(&path, dir.path());
        fs::write(source.path().join("new"), b"on Wednesday").unwrap();
        let header = Header {
            format: 0,
            name: "wednesday".to_owned(),
            volume: "another".to_owned(),
            checkpoint: b"wednesday".to_vec().into(),
            epoch: 3,
            created: 1_800_000_000_000_000_000,
            base: None,
        };
        let unlock = if path.ends_with("encrypted") {
            let old = &unlock;
            let new = || Ok(passphrase("battery staple"));
            Repository::change_passphrase(dir.path().as_os_str(), old, &new).unwrap();
            Unlock::With(passphrase("battery staple"))
        } else {
            unlock
        };
        let open =
            |access| -> Result<_> { Repository::open(dir.path().as_os_str(), &unlock, access) };
        let source = Source { dir: source.path().to_owned(), header, base: None, level: Some(3) };
        create(&open(Access::Add).unwrap(), &source, |_, _| ()).unwrap();
        open(Access::Remove).unwrap().prune(&["monday".to_owned()]).unwrap();
        let repository = open(Access::Read).unwrap();
        assert!(repository.verify(None, |_| ()).unwrap().faults.is_empty(), "{}", path.display());
        let expected = fs::read_to_string(kept().join("tuesday.txt")).unwrap();
        assert_eq!(restored(&repository, "tuesday"), expected, "{}", path.display());
        assert!(restored(&repository, "wednesday").starts_with("new: "), "{}", path.display());
        assert!(repository.backup("monday").is_err(), "{}", path.display());
    }
}
