//! Encrypted repositories as a whole: what lies there, what is told of damage, and that all else is
//! as in others.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::manifest::{Header, Manifest};
use crate::mark::{Cost, Mark, Passphrase, Unlock};
use crate::{
    Access, CHUNK_BYTES, Changed, Created, Error, ErrorKind, Repository, Result, Retention, Source,
    Target, create, restore,
};

/// What no outsider may find: of content that is compressed and of some that is not, of names, of
/// values, and of what the backup is called and is of.
const TELLING: [&str; 7] = [
    "a sentence that tells",
    "a row that tells",
    "a-file-that-tells",
    "a-directory-that-tells",
    "a-backup-that-tells",
    "a-volume-that-tells",
    "a-checkpoint-that-tells",
];

fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(text.into()).unwrap()
}

fn with(text: &str) -> Unlock<'static> {
    Unlock::With(passphrase(text))
}

/// None is given, and none can be asked for.
fn without() -> Unlock<'static> {
    Unlock::Ask(&|place| Err(Error::new(ErrorKind::Usage, format!("{place} wants a passphrase"))))
}

struct Place(tempfile::TempDir);

impl Place {
    /// Makes a directory with files in it.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let dir = place.path("source/a-directory-that-tells");
        fs::create_dir_all(&dir).unwrap();
        // Text that becomes smaller, and noise with a sentence in it that does not.
        fs::write(dir.join("a-file-that-tells"), "a sentence that tells; ".repeat(9000)).unwrap();
        fs::write(dir.join("rows"), rows(60_000, 1)).unwrap();
        fs::write(dir.join("more rows"), rows(CHUNK_BYTES as usize + 5000, 2)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes the repository at the least cost of a passphrase.
    fn init(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        let mark = Mark::encrypted_at(&passphrase(text), Cost::LEAST).unwrap();
        fs::write(path.join("bedplate-backup"), mark.text()).unwrap();
        path
    }

    /// Backs the files up, against `base` if one is named.
    fn back_up(&self, repository: &Repository, name: &str, base: Option<&str>) -> Result<Created> {
        let base = base.map(|base| {
            let rows = self.path("source/a-directory-that-tells/rows");
            let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(rows).unwrap());
            let inodes = BTreeSet::from([crate::create::number(ino)]);
            let ranges = |_: &Path| Ok(vec![(4096, 4096)]);
            (repository.backup(base).unwrap(), Changed { inodes, ranges: Box::new(ranges) })
        });
        let header = Header {
            format: 0,
            name: name.to_owned(),
            volume: "a-volume-that-tells".to_owned(),
            checkpoint: b"a-checkpoint-that-tells".to_vec().into(),
            epoch: 1,
            created: 86_400_000_000_000 * name.len() as i64,
            base: base.as_ref().map(|(base, _): &(Manifest, _)| base.header.name.clone()),
        };
        let source = Source { dir: self.path("source"), header, base, level: Some(3) };
        create(repository, &source, |_, _| ())
    }

    /// Restores a backup beside, and returns whether every file is as the source has it.
    fn restores(&self, repository: &Repository, name: &str) -> Result<bool> {
        let target = tempfile::tempdir_in(self.0.path()).unwrap();
        let prepared = Target::prepare(target.path(), |_| Ok::<_, Error>(false))?;
        let restored = restore(repository, &repository.backup(name)?, prepared, |_, _| ());
        restored.map(|_| {
            ["a-file-that-tells", "rows", "more rows"].iter().all(|file| {
                let read = |dir: &Path| fs::read(dir.join("a-directory-that-tells").join(file));
                read(&self.path("source")).unwrap() == read(target.path()).unwrap()
            })
        })
    }
}

/// Makes noise with a sentence at its beginning.
fn rows(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Vec::new();
    let mut block = 0_u64;
    while noise.len() < len {
        noise.extend(blake3::hash(&[seed.to_le_bytes(), block.to_le_bytes()].concat()).as_bytes());
        block += 1;
    }
    noise[..16].copy_from_slice(b"a row that tells");
    noise.truncate(len);
    noise
}

fn open(path: &Path, unlock: &Unlock<'_>, access: Access) -> Result<Repository> {
    Repository::open(path.as_os_str(), unlock, access)
}

/// Returns every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Returns which of the telling words a repository has, in contents or in names.
fn told(dir: &Path) -> Vec<&'static str> {
    let mut all = Vec::new();
    for path in files(dir) {
        all.extend(path.strip_prefix(dir).unwrap().as_os_str().as_encoded_bytes());
        all.extend(fs::read(&path).unwrap());
    }
    let holds = |word: &&str| all.windows(word.len()).any(|found| found == word.as_bytes());
    TELLING.into_iter().filter(holds).collect()
}

/// S-325: nothing that tells of data is found in an encrypted repository, where all of it is found
/// in one that is not; nor are equal contents or names found equal in two of them.
#[test]
fn s_325_an_encrypted_repository_tells_nothing() {
    let place = Place::new();
    let plain = place.path("plain");
    let unlock = without();
    let repository = Repository::create(plain.as_os_str(), &unlock).unwrap();
    assert!(!repository.is_encrypted());
    place.back_up(&repository, "a-backup-that-tells", None).unwrap();
    assert_eq!(told(&plain), TELLING);
    let stored = |dir: &Path| -> BTreeSet<_> {
        files(dir).iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    let mut names = stored(&plain);
    names.remove(OsStr::new("bedplate-backup"));
    for (name, text) in [("one", "right"), ("two", "right")] {
        let path = place.init(name, text);
        let repository = open(&path, &with(text), Access::Add).unwrap();
        assert!(repository.is_encrypted());
        place.back_up(&repository, "a-backup-that-tells", None).unwrap();
        assert_eq!(told(&path), [""; 0], "{name}");
        let mut here = stored(&path);
        here.remove(OsStr::new("bedplate-backup"));
        assert!(here.len() == names.len() || name == "two", "{here:?}");
        assert!(here.is_disjoint(&names), "{name} has names in common with another");
        names.extend(here);
        assert!(place.restores(&repository, "a-backup-that-tells").unwrap());
    }
}

/// S-325: everything works as in another repository: increments, lists, verification, rules of
/// retention, deletion, restoring.
#[test]
fn s_325_an_encrypted_repository_does_what_others_do() {
    let place = Place::new();
    let path = place.init("repository", "right");
    let repository = open(&path, &with("right"), Access::Add).unwrap();
    place.back_up(&repository, "a", None).unwrap();
    let taken = place.back_up(&repository, "a", None).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::Exists);
    let changed = place.path("source/a-directory-that-tells/rows");
    let file = fs::File::options().write(true).open(changed).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &rows(4096, 3), 4096).unwrap();
    let made = place.back_up(&repository, "bb", Some("a")).unwrap();
    assert_eq!((made.read_bytes, made.stored_bytes), (4096, 4096), "{made:?}");
    assert_eq!(made.written_bytes, 4096 + 40, "a nonce and a tag");
    assert!(place.restores(&repository, "bb").unwrap());
    drop(repository);
    let repository = open(&path, &with("right"), Access::Remove).unwrap();
    let (headers, damaged) = repository.headers().unwrap();
    let names: Vec<_> = headers.iter().map(|header| &*header.name).collect();
    assert!(names == ["a", "bb"] && damaged.is_empty(), "{names:?} {damaged:?}");
    let verified = repository.verify(None, |_| ()).unwrap();
    assert_eq!((verified.backups, verified.faults.len()), (2, 0), "{:?}", verified.faults);
    assert_eq!(repository.prune(&["c".into()]).unwrap_err().kind, ErrorKind::NotFound);
    let rule = Retention { last: 1, ..Retention::default() };
    let expired = rule.expired(&headers);
    assert_eq!(expired, ["a"]);
    let told = repository.would_prune(&expired).unwrap();
    let pruned = repository.prune(&expired).unwrap();
    assert_eq!((pruned.chunks, pruned.bytes), (told.chunks, told.bytes));
    assert_eq!(repository.backup("a").unwrap_err().kind, ErrorKind::NotFound);
    assert!(place.restores(&repository, "bb").unwrap());
    repository.prune(&["bb".into()]).unwrap();
    assert_eq!(files(&path), [path.join("bedplate-backup")], "nothing is left but the mark");
}

/// S-326: a bit that is another in any object, an object under the name of another, and one that is
/// gone are told, by verifying and by restoring; nothing wrong is restored.
#[test]
fn s_326_each_object_that_is_not_its_own_is_told() {
    let place = Place::new();
    fs::write(place.path("source/a-directory-that-tells/more rows"), rows(9000, 2)).unwrap();
    let path = place.init("repository", "right");
    let repository = open(&path, &with("right"), Access::Add).unwrap();
    place.back_up(&repository, "one", None).unwrap();
    place.back_up(&repository, "two", Some("one")).unwrap();
    let objects: Vec<_> = files(&path)
        .into_iter()
        .filter(|path| path.file_name() != Some(OsStr::new("bedplate-backup")))
        .collect();
    assert!(objects.len() >= 5, "chunks of both forms and two manifests: {objects:?}");
    let is_told = |what: &str| {
        let verified = repository.verify(None, |_| ()).unwrap();
        assert!(!verified.faults.is_empty(), "verify: {what}");
    };
    let is_not_restored = |what: &str| {
        is_told(what);
        let restored = ["one", "two"].map(|name| place.restores(&repository, name));
        assert!(restored.iter().any(Result::is_err), "restore: {what}");
        for restored in restored {
            assert!(restored.is_err() || restored.unwrap(), "restored wrongly: {what}");
        }
    };
    for object in &objects {
        let sound = fs::read(object).unwrap();
        // In the nonce, in what is hidden, in the tag.
        for at in [0, 23, 24, sound.len() / 2, sound.len() - 17, sound.len() - 16, sound.len() - 1]
        {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(object, damaged).unwrap();
            is_told(&format!("byte {at} of {}", object.display()));
        }
        is_not_restored(&format!("{} with another tag", object.display()));
        for other in objects.iter().filter(|other| *other != object) {
            fs::write(object, fs::read(other).unwrap()).unwrap();
            is_told(&format!("{} in place of {}", other.display(), object.display()));
        }
        fs::write(object, &sound).unwrap();
    }
    assert!(repository.verify(None, |_| ()).unwrap().faults.is_empty(), "all is as it was");
    // A backup under the name of another, and one of a repository that is not encrypted.
    let plain = Repository::create(place.path("plain").as_os_str(), &without()).unwrap();
    place.back_up(&plain, "one", None).unwrap();
    let sound = fs::read(objects.last().unwrap()).unwrap();
    fs::write(objects.last().unwrap(), fs::read(place.path("plain/manifests/one")).unwrap())
        .unwrap();
    is_told("a manifest that is not encrypted");
    let (_, damaged) = repository.headers().unwrap();
    assert!(damaged.len() == 1 && damaged[0].contains("does not open"), "{damaged:?}");
    // It is deleted by the name of its file, since nothing else is known of it.
    let id = objects.last().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    repository.prune(&[id]).unwrap();
    assert!(repository.headers().unwrap().1.is_empty());
    drop(sound);
}

/// S-326: an encrypted repository opens with its passphrase alone, and a passphrase that is given is
/// never left unused.
#[test]
fn s_326_a_passphrase_is_needed_and_never_ignored() {
    let place = Place::new();
    let path = place.init("repository", "right");
    for access in [Access::Read, Access::Add, Access::Remove] {
        let wrong = open(&path, &with("wrong"), access).err().unwrap();
        assert_eq!(wrong.kind, ErrorKind::NotPermitted, "{wrong}");
        let none = open(&path, &without(), access).err().unwrap();
        assert!(none.message.contains("wants a passphrase"), "{none}");
    }
    let asked = Unlock::Ask(&|_| Ok(passphrase("right\n")));
    assert!(open(&path, &asked, Access::Read).unwrap().is_encrypted());
    let plain = place.path("plain");
    drop(Repository::create(plain.as_os_str(), &without()).unwrap());
    for refused in [
        open(&plain, &with("right"), Access::Read).err().unwrap(),
        Repository::create(plain.as_os_str(), &with("right")).err().unwrap(),
        Repository::change_passphrase(plain.as_os_str(), &with("x"), &|| Ok(passphrase("y")))
            .unwrap_err(),
    ] {
        assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    }
    // With a passphrase what is made is encrypted, whichever command makes it.
    let new = place.path("new");
    assert!(Repository::create(new.as_os_str(), &with("x")).unwrap().is_encrypted());
    assert!(open(&new, &with("x"), Access::Read).is_ok());
    let again = Repository::init(new.as_os_str(), None).unwrap_err();
    assert_eq!(again.kind, ErrorKind::Exists);
    let made = place.path("made");
    Repository::init(made.as_os_str(), Some(&passphrase("x"))).unwrap();
    assert!(open(&made, &with("x"), Access::Add).unwrap().is_encrypted());
}

/// S-326: another passphrase opens all that was stored, and the old one nothing; nothing but the
/// mark is written.
#[test]
fn s_326_a_passphrase_is_changed() {
    let place = Place::new();
    let path = place.init("repository", "old");
    let repository = open(&path, &with("old"), Access::Add).unwrap();
    place.back_up(&repository, "one", None).unwrap();
    let change = |old: &str, new: &str| {
        let new = || Ok(passphrase(new));
        Repository::change_passphrase(path.as_os_str(), &with(old), &new)
    };
    assert_eq!(change("old", "new").unwrap_err().kind, ErrorKind::Busy, "one is at work");
    drop(repository);
    let content = |path: &PathBuf| (path.clone(), fs::read(path).unwrap());
    let before: BTreeSet<_> = files(&path).iter().map(content).collect();
    assert_eq!(change("wrong", "new").unwrap_err().kind, ErrorKind::NotPermitted);
    change("old", "new").unwrap();
    let after: BTreeSet<_> = files(&path).iter().map(content).collect();
    let other: Vec<_> = after.difference(&before).map(|(path, _)| path.clone()).collect();
    assert_eq!(other, [path.join("bedplate-backup")]);
    assert!(open(&path, &with("old"), Access::Read).is_err());
    let repository = open(&path, &with("new"), Access::Add).unwrap();
    assert!(place.restores(&repository, "one").unwrap());
    assert!(place.back_up(&repository, "two", Some("one")).unwrap().read_bytes <= 4096);
}

/// S-325, S-326, in a bucket.
#[cfg(feature = "object-store")]
#[test]
fn s_325_a_bucket_is_encrypted_as_a_directory_is() {
    let place = Place::new();
    let bucket = std::sync::Arc::new(object_store::memory::InMemory::new());
    let store = || crate::store::in_memory(&bucket);
    let repository = Repository::create_in(store(), &with("right")).unwrap();
    place.back_up(&repository, "a-backup-that-tells", None).unwrap();
    drop(repository);
    let copy = place.path("copy");
    for (dir, keys) in ["", "chunks", "manifests"].map(|dir| (dir, store().list(dir).unwrap())) {
        for (key, _) in keys {
            let value = store().values(Box::new(std::iter::once(key.clone())), u64::MAX).next();
            fs::create_dir_all(copy.join(&key).parent().unwrap()).unwrap();
            fs::write(copy.join(&key), value.unwrap().unwrap().unwrap()).unwrap();
        }
        assert!(dir.is_empty() || copy.join(dir).exists());
    }
    assert_eq!(told(&copy), [""; 0]);
    let wrong = Repository::open_in(store(), &with("wrong"), Access::Read).err().unwrap();
    assert_eq!(wrong.kind, ErrorKind::NotPermitted);
    let opened = [
        Repository::open_in(store(), &with("right"), Access::Read).unwrap(),
        open(&copy, &with("right"), Access::Read).unwrap(),
    ];
    for repository in opened {
        assert!(repository.verify(None, |_| ()).unwrap().faults.is_empty());
        assert!(place.restores(&repository, "a-backup-that-tells").unwrap());
    }
    store().write_first("bedplate-backup", b"format 1\n".to_vec()).unwrap();
    assert!(Repository::open_in(store(), &with("right"), Access::Add).is_ok());
}

/// Of two that make a repository at once the first decides; a lock on a mark that was replaced
/// protects nothing and is not had.
#[test]
fn a_mark_is_made_once() {
    let place = Place::new();
    let path = place.init("repository", "first");
    let text = fs::read(path.join("bedplate-backup")).unwrap();
    let store = crate::store::open(path.as_os_str()).unwrap();
    store.write_first("bedplate-backup", b"format 1\n".to_vec()).unwrap();
    assert_eq!(fs::read(path.join("bedplate-backup")).unwrap(), text);
    assert_eq!(files(&path).len(), 1, "what was to be the mark is gone");
    store.write_first("other", b"x".to_vec()).unwrap();
    assert_eq!(fs::read(path.join("other")).unwrap(), b"x");
}
