//! Copies a directory with all below it.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::attributes::{self, Left};
use crate::copy::{Options, copy_one};
use crate::error::{Error, ErrorKind, Result, system};
use crate::file::Route;
use crate::{Copied, Progress};

/// What the copy of a directory did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TreeCopied {
    /// Regular files, second names left out.
    pub files: u64,
    /// Bytes of the files.
    pub size: u64,
    /// Bytes that were read and written.
    pub copied: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, and further names of a file.
    pub links: u64,
    /// Files that went through the page cache on either side.
    pub buffered: u64,
    /// Sockets, pipes and device nodes, which are left out.
    pub left_out: Vec<PathBuf>,
    /// What of attributes could not be kept, each once.
    pub left: Vec<String>,
}

/// Copies a directory and all below it to `target`, which is made where it is missing; its times,
/// owners, modes, extended attributes, holes, symbolic links, and several names of one file too.
/// Everything is durable when it returns. A file of the target that has the name of a copied one is
/// replaced, and others stay.
///
/// # Errors
/// As [`copy`](crate::copy()); what was copied before stays.
pub fn copy_tree(
    source: &Path,
    target: &Path,
    options: &Options,
    progress: Progress<'_>,
) -> Result<TreeCopied> {
    refuse_below_itself(source, target)?;
    let mut tree = Tree {
        options,
        progress,
        names: HashMap::new(),
        done: TreeCopied::default(),
        left: Left::new(),
    };
    let mut directories = Vec::new();
    let mut waiting = vec![(source.to_owned(), target.to_owned())];
    while let Some((from, into)) = waiting.pop() {
        waiting.extend(tree.directory(&from, &into)?);
        directories.push((from, into));
    }
    // The innermost first: filling a directory moves its times.
    for (from, into) in directories.into_iter().rev() {
        attributes::keep_of_directory(&from, &into, &mut tree.left)?;
    }
    let root = File::open(target).map_err(system("open", target))?;
    bedplate_block::sync_file_system(&root).map_err(system("sync the file system of", target))?;
    tree.done.left = tree.left.into_iter().collect();
    Ok(tree.done)
}

fn refuse_below_itself(source: &Path, target: &Path) -> Result<()> {
    let from = source.canonicalize().map_err(system("look at", source))?;
    let mut above = std::path::absolute(target).map_err(system("look at", target))?;
    while !above.exists() && above.pop() {}
    let above = above.canonicalize().map_err(system("look at", target))?;
    if above.starts_with(&from) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{} lies in {}, which is copied", target.display(), source.display()),
        ));
    }
    Ok(())
}

struct Tree<'a> {
    options: &'a Options,
    progress: Progress<'a>,
    /// Where files with several names were copied to.
    names: HashMap<(u64, u64), PathBuf>,
    done: TreeCopied,
    left: Left,
}

impl Tree<'_> {
    /// Copies what a directory holds; returns the directories in it, with where they go.
    fn directory(&mut self, from: &Path, into: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        match std::fs::DirBuilder::new().mode(0o700).create(into) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && into.is_dir() => {}
            made => made.map_err(system("make", into))?,
        }
        self.done.directories += 1;
        let mut below = Vec::new();
        for entry in std::fs::read_dir(from).map_err(system("read", from))? {
            let entry = entry.map_err(system("read", from))?;
            let (path, to) = (entry.path(), into.join(entry.file_name()));
            let is = std::fs::symlink_metadata(&path).map_err(system("look at", &path))?;
            if is.is_dir() {
                below.push((path, to));
            } else if is.is_symlink() {
                self.symlink(&path, &to, &is)?;
            } else if is.is_file() {
                self.file(&path, &to, &is)?;
            } else {
                self.done.left_out.push(path);
            }
        }
        Ok(below)
    }

    fn file(&mut self, from: &Path, to: &Path, is: &Metadata) -> Result<()> {
        let id = (is.dev(), is.ino());
        if let Some(first) = self.names.get(&id) {
            replace(to)?;
            std::fs::hard_link(first, to).map_err(system("make", to))?;
            self.done.links += 1;
            return Ok(());
        }
        // A link of the target is replaced by the file, and what it leads to stays.
        if to.is_symlink() {
            replace(to)?;
        }
        let copied = copy_one(from, to, self.options, false, self.progress)?;
        self.count(&copied);
        if is.nlink() > 1 {
            self.names.insert(id, to.to_owned());
        }
        Ok(())
    }

    fn count(&mut self, copied: &Copied) {
        self.done.files += 1;
        self.done.size += copied.size;
        self.done.copied += copied.copied;
        let is_direct = copied.read == Route::Direct && copied.write == Route::Direct;
        self.done.buffered += u64::from(!is_direct);
        self.left.extend(copied.left.iter().cloned());
    }

    fn symlink(&mut self, from: &Path, to: &Path, is: &Metadata) -> Result<()> {
        let leads_to = std::fs::read_link(from).map_err(system("read", from))?;
        replace(to)?;
        std::os::unix::fs::symlink(leads_to, to).map_err(system("make", to))?;
        self.done.links += 1;
        attributes::keep_of_link(is, to, &mut self.left)
    }
}

/// Removes what is no directory from a name that is to be taken.
pub(crate) fn replace(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::system("replace", path, &error))
        }
        _ => Ok(()),
    }
}
