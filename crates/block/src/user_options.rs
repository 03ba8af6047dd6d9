//! What lists of mounts show of a mount besides what the kernel prints: the options of user space,
//! which libmount keeps in `/run/mount/utab`, a line for each mount.
//!
//! ```text
//! SRC=/srv/db.img TARGET=/mnt/db ROOT=/ OPTS=mode=concurrent,lease=owner
//! ```
//!
//! mount(8) and `findmnt --mtab` put them behind the kernel's options, and a remount by mount(8)
//! passes them on. umount(8) takes the line away. The file is replaced whole, under the lock that
//! libmount takes too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::mount_table::unescape;

/// The file, which only root may write.
const FILE: &str = "/run/mount/utab";

/// The line of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserOptions {
    file: PathBuf,
    source: PathBuf,
    dir: PathBuf,
}

impl UserOptions {
    /// Names the line of what is mounted on a directory, whether there is one or not.
    #[must_use]
    pub fn of(source: &Path, dir: &Path) -> Self {
        Self { file: FILE.into(), source: source.to_owned(), dir: dir.to_owned() }
    }

    /// Returns the options; none where there is no line, or no file.
    #[must_use]
    pub fn get(&self) -> Vec<String> {
        let text = std::fs::read(&self.file).unwrap_or_default();
        let line = lines(&text).find(|line| self.is_of(line));
        let options = line.and_then(|line| field(line, b"OPTS="));
        let options = options.map(|options| options.to_string_lossy().into_owned());
        options.iter().flat_map(|options| options.split(',')).map(str::to_owned).collect()
    }

    /// Puts the options in place of those that are there.
    ///
    /// # Errors
    /// Of the system: for ordinary users that the file is not theirs.
    pub fn put(&self, options: &str) -> io::Result<()> {
        self.replace(Some(options))
    }

    /// Takes the line away. One that is gone already is no error.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn remove(&self) -> io::Result<()> {
        match self.replace(None) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn replace(&self, options: Option<&str>) -> io::Result<()> {
        let _lock = self.lock()?;
        let text = match std::fs::read(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            text => text.unwrap_or_default(),
        };
        let mut new = Vec::new();
        for line in lines(&text).filter(|line| !self.is_of(line)) {
            new.extend_from_slice(line);
            new.push(b'\n');
        }
        if let Some(options) = options {
            let fields = [
                (&b"SRC="[..], self.source.as_os_str().as_bytes()),
                (b" TARGET=", self.dir.as_os_str().as_bytes()),
                (b" ROOT=/ OPTS=", options.as_bytes()),
            ];
            for (name, value) in fields {
                new.extend_from_slice(name);
                value.iter().for_each(|byte| escape(*byte, &mut new));
            }
            new.push(b'\n');
        }
        if new == text {
            return Ok(());
        }
        let beside = self.file.with_extension(format!("{}", std::process::id()));
        std::fs::write(&beside, new)
            .and_then(|()| std::fs::set_permissions(&beside, PermissionsExt::from_mode(0o644)))
            .and_then(|()| std::fs::rename(&beside, &self.file))
            .inspect_err(|_| drop(std::fs::remove_file(&beside)))
    }

    /// Takes the lock of libmount, which ends with the file that is returned.
    fn lock(&self) -> io::Result<File> {
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(self.file.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    fn is_of(&self, line: &[u8]) -> bool {
        field(line, b"SRC=").is_some_and(|source| *source == *self.source)
            && field(line, b"TARGET=").is_some_and(|dir| *dir == *self.dir)
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn field(line: &[u8], name: &[u8]) -> Option<PathBuf> {
    line.split(|byte| *byte == b' ').find_map(|field| field.strip_prefix(name)).map(unescape)
}

/// Writes what would end a field as the kernel does in its own lists.
fn escape(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").into_bytes()),
        _ => out.push(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(dir: &Path, source: &str, target: &str) -> UserOptions {
        let mut line = UserOptions::of(Path::new(source), Path::new(target));
        line.file = dir.join("utab");
        line
    }

    #[test]
    fn a_line_is_put_replaced_and_taken_away_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let other = "SRC=/dev/sda1 TARGET=/boot ROOT=/ OPTS=user=someone\n";
        std::fs::write(dir.path().join("utab"), other).unwrap();
        let own = line(dir.path(), "/srv/a b.img", r"/mnt/back\slash");
        assert_eq!(own.get(), Vec::<String>::new());
        own.put("mode=direct,lease=owner").unwrap();
        assert_eq!(own.get(), ["mode=direct", "lease=owner"]);
        own.put("mode=cached").unwrap();
        let text = std::fs::read_to_string(dir.path().join("utab")).unwrap();
        let expected = format!(
            "{other}SRC=/srv/a\\040b.img TARGET=/mnt/back\\134slash ROOT=/ OPTS=mode=cached\n"
        );
        assert_eq!(text, expected);
        assert_eq!(line(dir.path(), "/srv/a b.img", "/mnt").get(), Vec::<String>::new());
        own.remove().unwrap();
        own.remove().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("utab")).unwrap(), other);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "the file and its lock, nothing left beside them");
    }

    #[test]
    fn where_there_is_no_file_a_line_is_gone_and_a_new_one_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = line(&dir.path().join("none"), "a", "/b");
        own.remove().unwrap();
        assert_eq!(own.put("mode=cached").unwrap_err().kind(), io::ErrorKind::NotFound);
        let own = line(dir.path(), "a", "/b");
        own.put("mode=cached").unwrap();
        assert_eq!(own.get(), ["mode=cached"]);
    }

    #[test]
    fn threads_that_write_at_once_lose_no_line() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let own = line(dir.path(), "a", &format!("/mnt/{number}"));
                scope.spawn(move || own.put("mode=cached").unwrap());
            }
        });
        let text = std::fs::read_to_string(dir.path().join("utab")).unwrap();
        assert_eq!(text.lines().count(), 8, "{text}");
    }
}
