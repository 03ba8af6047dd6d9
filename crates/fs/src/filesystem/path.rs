//! The interface by paths.

use std::path::Path;

use super::FileSystem;
use crate::{Attr, ErrorKind, File, InodeNo, IoMode, OpenOptions, RenameMode, Result};

impl FileSystem {
    /// Follows a path from the root, symbolic links too; returns what it names.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `TooManyLinks` after 40 symbolic links.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.inner.fs.resolve(path.as_ref())
    }

    /// Opens a file by path; a suffix (`users.dbf::concurrent`) asks for a mode.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve) and [`open_inode`](Self::open_inode).
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        self.open_found(options, || {
            self.inner.fs.resolve_for_open(path, options, &|dir, name, making| {
                self.make_with_room(dir, name, making)
            })
        })
    }

    /// Opens what a lookup finds, in the mode that it names; looks again where that was removed
    /// since, as a rename or rollback does that replaces it.
    fn open_found(
        &self,
        options: &OpenOptions,
        mut find: impl FnMut() -> Result<(InodeNo, Option<IoMode>)>,
    ) -> Result<File> {
        let mut gone = None;
        loop {
            let (ino, suffix) = find()?;
            match self
                .open_inode(ino, &OpenOptions { mode: suffix.or(options.mode), ..options.clone() })
            {
                Err(error) if error.kind == ErrorKind::NotFound && gone != Some(ino) => {
                    gone = Some(ino);
                }
                result => return result,
            }
        }
    }

    /// Makes a directory and the missing ones above it.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.inner.fs.create_dir_all(path.as_ref(), &|dir, name, making| {
            self.make_with_room(dir, name, making)
        })
    }

    /// Removes a file or empty directory by path.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink) and [`rmdir`](Self::rmdir).
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        self.inner.fs.remove_path(path.as_ref())
    }

    /// Renames by path (replacing).
    ///
    /// # Errors
    /// As [`rename`](Self::rename).
    pub fn rename_path(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) =
            (self.inner.fs.walk(from.as_ref(), false)?, self.inner.fs.walk(to.as_ref(), false)?);
        self.rename(from.dir, &from.name, to.dir, &to.name, RenameMode::Replace)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bedplate_block::{BlockDevice, MemoryDevice};

    use super::*;
    use crate::{FormatOptions, MountOptions};

    /// The open failed with "inode N was removed" although the name led to a file at every moment.
    #[test]
    fn a_file_that_is_replaced_after_its_lookup_is_looked_up_again() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
        let make = |path: &str| fs.open(path, &OpenOptions::create()).unwrap().ino();
        let (old, new) = (make("/name"), make("/next"));
        let mut lookups = 0;
        let opened = fs.open_found(&OpenOptions::read_only(), || {
            lookups += 1;
            let found = fs.resolve("/name")?.ino;
            if lookups == 1 {
                assert_eq!(found, old);
                fs.rename_path("/next", "/name")?;
            }
            Ok((found, None))
        });
        assert_eq!((opened.unwrap().ino(), lookups), (new, 2));
        let gone = fs.open_found(&OpenOptions::read_only(), || Ok((old, None))).unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotFound, "a lookup that finds the same again ends it");
    }
}
