//! Paths, for programs that use the library directly.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::make::Making;
use crate::engine::Engine;
use crate::{Attr, Error, ErrorKind, FileKind, InodeNo, IoMode, NewFile, OpenOptions, Result};
use bedplate_store::DentryRow;

/// Most symbolic links one path may lead through.
const SYMLINKS_MAX: usize = 40;

/// Splits a name suffix: `users.dbf::concurrent` becomes (`users.dbf`, concurrent). A name without
/// a known suffix is returned whole.
#[must_use]
pub fn split_mode_suffix(name: &[u8]) -> (&[u8], Option<IoMode>) {
    for mode in IoMode::ALL {
        if let Some(head) = name.strip_suffix(mode.name().as_bytes())
            && let Some(stem) = head.strip_suffix(b"::")
            && !stem.is_empty()
        {
            return (stem, Some(mode));
        }
    }
    (name, None)
}

/// Makes an object under a name in a directory, as the caller of these functions does.
pub(crate) type Make<'a> = dyn Fn(InodeNo, &[u8], &Making<'_>) -> Result<Attr> + 'a;

/// A path led to its last component.
pub(crate) struct Leaf {
    pub(crate) dir: InodeNo,
    /// Empty for the root.
    pub(crate) name: Vec<u8>,
}

/// Components still to walk, last first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .rev()
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

impl Engine {
    /// Walks to the directory that holds the last component; with `follow`, also through a symbolic
    /// link there.
    pub(crate) fn walk(&self, path: &Path, follow: bool) -> Result<Leaf> {
        let mut todo = components(path.as_os_str().as_bytes());
        let mut links = 0;
        let mut dir = InodeNo::ROOT;
        while let Some(name) = todo.pop() {
            let last = todo.is_empty();
            if name == b".." {
                dir = self.parent(dir)?;
                continue;
            }
            let found = self
                .directory(dir)
                .and_then(|_| self.find(dir, &name))
                .map_err(|e| in_path(path, e))?;
            match found {
                Some(row) if row.kind == FileKind::Symlink && (follow || !last) => {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        return Err(Error::new(
                            ErrorKind::TooManyLinks,
                            format!(
                                "{} leads through more than {SYMLINKS_MAX} symbolic links",
                                path.display()
                            ),
                        ));
                    }
                    let Some(target) = self.target(dir, &name, row)? else {
                        todo.push(name);
                        continue;
                    };
                    if target.starts_with(b"/") {
                        dir = InodeNo::ROOT;
                    }
                    todo.extend(components(&target));
                }
                _ if last => return Ok(Leaf { dir, name }),
                Some(row) if row.kind == FileKind::Directory => dir = row.ino,
                Some(_) => {
                    return Err(not_a_directory(path, &name));
                }
                None => {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!(
                            "{}: '{}' does not exist",
                            path.display(),
                            bedplate_store::told_name(&name)
                        ),
                    ));
                }
            }
        }
        Ok(Leaf { dir, name: Vec::new() })
    }

    /// Returns what a symbolic link points to; nothing where something else has taken its name.
    fn target(&self, dir: InodeNo, name: &[u8], row: DentryRow) -> Result<Option<Vec<u8>>> {
        match self.read_link(row.ino) {
            Err(_) if self.find(dir, name)? != Some(row) => Ok(None),
            target => target.map(Some),
        }
    }

    pub(crate) fn resolve(&self, path: &Path) -> Result<Attr> {
        let leaf = self.walk(path, true)?;
        if leaf.name.is_empty() {
            return self.attr(leaf.dir);
        }
        let inode = self.follow(leaf.dir, &leaf.name).map_err(|e| in_path(path, e))?;
        Ok(inode.stat(self.block_size()))
    }

    /// Resolves for an open, creating where the options say so; returns the inode and the mode of a
    /// suffix (S-28: a name that really ends so wins).
    pub(crate) fn resolve_for_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        make: &Make<'_>,
    ) -> Result<(InodeNo, Option<IoMode>)> {
        let (stem, suffix) = split_mode_suffix(path.as_os_str().as_bytes());
        // `/d/::direct` has nothing before the suffix: it is a name like any other, as on a mount.
        let Some(suffix) = suffix.filter(|_| !stem.ends_with(b"/")) else {
            return Ok((self.resolve_file(path, options, make)?, None));
        };
        // Also a symbolic link that leads nowhere is a name that exists.
        if self
            .walk(path, false)
            .is_ok_and(|leaf| self.find(leaf.dir, &leaf.name).is_ok_and(|row| row.is_some()))
        {
            return Ok((self.resolve_file(path, options, make)?, None));
        }
        Ok((self.resolve_file(Path::new(OsStr::from_bytes(stem)), options, make)?, Some(suffix)))
    }

    fn resolve_file(&self, path: &Path, options: &OpenOptions, make: &Make<'_>) -> Result<InodeNo> {
        let leaf = self.walk(path, !options.exclusive)?;
        if leaf.name.is_empty() {
            return Err(Error::new(
                ErrorKind::IsDirectory,
                format!("{} is a directory", path.display()),
            ));
        }
        if let Some(row) = self.find(leaf.dir, &leaf.name)? {
            if options.create && options.exclusive {
                return Err(Error::new(ErrorKind::Exists, format!("{} exists", path.display())));
            }
            return Ok(row.ino);
        }
        if !options.create {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{} does not exist", path.display()),
            ));
        }
        let new = NewFile { mode: options.permissions, ..NewFile::default() };
        let made =
            make(leaf.dir, &leaf.name, &Making { kind: FileKind::File, new, rdev: 0, target: &[] });
        match made {
            Ok(attr) => Ok(attr.ino),
            Err(e) if e.kind == ErrorKind::Exists && !options.exclusive => {
                Ok(self.need(leaf.dir, &leaf.name)?.ino)
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) fn create_dir_all(&self, path: &Path, make: &Make<'_>) -> Result<Attr> {
        let mut at = self.attr(InodeNo::ROOT)?;
        for name in components(path.as_os_str().as_bytes()).into_iter().rev() {
            if name == b".." {
                at = self.attr(self.parent(at.ino)?)?;
                continue;
            }
            let making = Making {
                kind: FileKind::Directory,
                new: NewFile { mode: 0o755, uid: at.uid, gid: at.gid, umask: 0 },
                rdev: 0,
                target: &[],
            };
            at = match make(at.ino, &name, &making) {
                Err(e) if e.kind == ErrorKind::Exists => self.lookup(at.ino, &name)?,
                other => other?,
            };
            if at.kind != FileKind::Directory {
                return Err(not_a_directory(path, &name));
            }
        }
        Ok(at)
    }

    pub(crate) fn remove_path(&self, path: &Path) -> Result<()> {
        let leaf = self.walk(path, false)?;
        let row = if leaf.name.is_empty() { None } else { self.find(leaf.dir, &leaf.name)? };
        match row {
            None if leaf.name.is_empty() => {
                Err(Error::new(ErrorKind::Busy, "the root directory cannot be removed"))
            }
            None => {
                Err(Error::new(ErrorKind::NotFound, format!("{} does not exist", path.display())))
            }
            Some(row) if row.kind == FileKind::Directory => self.rmdir(leaf.dir, &leaf.name),
            Some(_) => self.unlink(leaf.dir, &leaf.name),
        }
    }
}

fn not_a_directory(path: &Path, name: &[u8]) -> Error {
    let name = bedplate_store::told_name(name);
    let message = format!("{}: '{name}' is not a directory", path.display());
    Error::new(ErrorKind::NotDirectory, message)
}

fn in_path(path: &Path, mut error: Error) -> Error {
    error.message = format!("{}: {}", path.display(), error.message);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_name_modes() {
        assert_eq!(split_mode_suffix(b"a::concurrent"), (&b"a"[..], Some(IoMode::Concurrent)));
        assert_eq!(
            split_mode_suffix(b"a::concurrent+cache"),
            (&b"a"[..], Some(IoMode::ConcurrentCache))
        );
        assert_eq!(split_mode_suffix(b"a::other"), (&b"a::other"[..], None));
        assert_eq!(split_mode_suffix(b"::direct"), (&b"::direct"[..], None));
        assert_eq!(split_mode_suffix(b"plain"), (&b"plain"[..], None));
    }
}
