//! Making a backup of a checkpoint that a mount shows.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;

use crate::content::{Reader, Taken};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Bytes, Entry, Header, Kind, Manifest, VERSION};
use crate::repository::Repository;
use crate::settings;

/// What a backup is made of.
pub struct Source<'a> {
    /// The directory in which the mount shows the checkpoint.
    pub dir: PathBuf,
    /// What the manifest will say of it.
    pub header: Header,
    /// The backup whose unchanged blocks are taken over, and what changed since.
    pub base: Option<(Manifest, Changed<'a>)>,
    /// The level of zstd at which data is stored; `None` stores it as it is.
    pub level: Option<i32>,
}

/// Parts of a file: offset and length.
pub type Ranges = Vec<(u64, u64)>;
/// Tells the ranges of a file, by its path, or in one sentence why they cannot be told.
pub type Tell<'a> = Box<dyn Fn(&Path) -> std::result::Result<Ranges, String> + 'a>;

/// What changed since another checkpoint.
pub struct Changed<'a> {
    /// The inodes that came or changed.
    pub inodes: BTreeSet<u64>,
    /// Tells the changed ranges of a file, by its path from the root.
    pub ranges: Tell<'a>,
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct Created {
    /// The backup.
    pub name: String,
    /// The one against which it was made.
    pub base: Option<String>,
    /// Names in it.
    pub entries: usize,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes that were read of the checkpoint.
    pub read_bytes: u64,
    /// Bytes that the repository did not have.
    pub stored_bytes: u64,
    /// Bytes that were written for them, compressed.
    pub written_bytes: u64,
    /// Bytes of the manifest.
    pub manifest_bytes: u64,
}

/// Backs a checkpoint up. `progress` is called with the bytes that are done and the bytes in all.
///
/// # Errors
/// Of the file system that is read, of the repository, and `Usage` or `Exists` for a name that
/// cannot be taken.
pub fn create(
    repository: &Repository,
    source: &Source<'_>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Created> {
    let mut walk = Walk { root: &source.dir, entries: Vec::new(), links: HashMap::new() };
    walk.add(PathBuf::new())?;
    let mut entries = walk.entries;
    let mut created = Created {
        name: source.header.name.clone(),
        base: source.header.base.clone(),
        entries: entries.len(),
        bytes: entries.iter().map(|entry| entry.size).sum(),
        read_bytes: 0,
        stored_bytes: 0,
        written_bytes: 0,
        manifest_bytes: 0,
    };
    let known: HashMap<u64, &Entry> = match &source.base {
        Some((base, _)) => base
            .entries
            .iter()
            .filter(|entry| entry.kind == Kind::File && entry.link.is_none())
            .map(|entry| (entry.ino, entry))
            .collect(),
        None => HashMap::new(),
    };
    let mut done_bytes = 0;
    for entry in entries.iter_mut().filter(|entry| entry.kind == Kind::File && entry.link.is_none())
    {
        let taken = content_of(repository, source, &known, entry)?;
        created.read_bytes += taken.read;
        created.stored_bytes += taken.stored;
        created.written_bytes += taken.written;
        debug_assert!(
            taken.stored <= taken.read && taken.read <= entry.size,
            "of {} bytes {} are read and {} of these stored",
            entry.size,
            taken.read,
            taken.stored
        );
        entry.set_content(taken.content);
        done_bytes += entry.size;
        debug_assert!(
            done_bytes <= created.bytes,
            "no more is backed up than was found: {done_bytes} of {}",
            created.bytes
        );
        progress(done_bytes, created.bytes);
    }
    let manifest =
        Manifest { header: Header { format: VERSION, ..source.header.clone() }, entries };
    created.manifest_bytes = repository.add(&manifest)?;
    Ok(created)
}

/// Returns what an entry is.
fn kind_of(real: &Path, meta: &Metadata) -> Result<Kind> {
    Ok(match meta.file_type() {
        kind if kind.is_file() => Kind::File,
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_fifo()
            || kind.is_socket()
            || kind.is_block_device()
            || kind.is_char_device() =>
        {
            Kind::Special
        }
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is of a kind that is not known", real.display()),
            ));
        }
    })
}

/// Stores the content of a file: what changed since the base, or all of it.
fn content_of(
    repository: &Repository,
    source: &Source<'_>,
    known: &HashMap<u64, &Entry>,
    entry: &Entry,
) -> Result<Taken> {
    let path = entry.path.path();
    let old =
        source.base.as_ref().zip(known.get(&entry.ino)).map(|((_, changed), old)| (*old, changed));
    let real = source.dir.join(&path);
    let reader = Reader { repository, path: real, size: entry.size, level: source.level };
    match old {
        Some((old, changed)) if !changed.inodes.contains(&entry.ino) => {
            reader.update(&old.content(), old.size, &[])
        }
        Some((old, changed)) => {
            let ranges = (changed.ranges)(&path).map_err(|why| Error::new(ErrorKind::Io, why))?;
            reader.update(&old.content(), old.size, &ranges)
        }
        None => reader.read_all(),
    }
}

struct Walk<'a> {
    root: &'a Path,
    entries: Vec<Entry>,
    /// First names of files with several, by inode.
    links: HashMap<u64, Bytes>,
}

impl Walk<'_> {
    /// Adds what a path names and all that is below it.
    fn add(&mut self, top: PathBuf) -> Result<()> {
        let mut todo = vec![top];
        while let Some(path) = todo.pop() {
            let real = self.root.join(&path);
            let meta =
                fs::symlink_metadata(&real).map_err(|e| Error::system("look at", &real, &e))?;
            let entry = self.entry(&path, &real, &meta)?;
            if entry.kind == Kind::Directory {
                let mut names = fs::read_dir(&real)
                    .and_then(|names| {
                        names
                            .map(|name| name.map(|name| name.file_name()))
                            .collect::<io::Result<Vec<_>>>()
                    })
                    .map_err(|e| Error::system("read", &real, &e))?;
                names.sort_unstable();
                todo.extend(names.into_iter().rev().map(|name| path.join(name)));
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, real: &Path, meta: &Metadata) -> Result<Entry> {
        let kind = kind_of(real, meta)?;
        let bytes = Bytes::from(path.as_os_str().as_bytes().to_vec());
        let link = match kind {
            Kind::File if meta.nlink() > 1 => self.links.get(&meta.ino()).cloned().or_else(|| {
                self.links.insert(meta.ino(), bytes.clone());
                None
            }),
            _ => None,
        };
        let target = match kind {
            Kind::Symlink => Some(
                fs::read_link(real)
                    .map_err(|e| Error::system("read", real, &e))?
                    .into_os_string()
                    .into_vec()
                    .into(),
            ),
            _ => None,
        };
        let marked = matches!(kind, Kind::File | Kind::Directory) && link.is_none();
        let untorn = if marked { settings::get(real, settings::UNTORN)? } else { None };
        Ok(Entry {
            path: bytes,
            kind,
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            mtime: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
            ino: number(meta.ino()),
            rdev: meta.rdev(),
            target,
            attributes: if link.is_some() { Vec::new() } else { attributes(real)? },
            io_mode: if marked { settings::get(real, settings::MODE)? } else { None },
            untorn_bytes: untorn.and_then(|text| text.split(' ').next()?.parse().ok()),
            integrity: if marked { settings::get(real, settings::INTEGRITY)? } else { None },
            extent_bytes: if marked {
                settings::get(real, settings::EXTENT_SIZE)?.and_then(|text| text.parse().ok())
            } else {
                None
            },
            size: if kind == Kind::File && link.is_none() { meta.size() } else { 0 },
            link,
            chunks: Vec::new(),
            data: Vec::new(),
            pieces: Vec::new(),
        })
    }
}

/// The number of an inode on its volume, in whichever checkpoint it is seen.
pub fn number(ino: u64) -> u64 {
    ino & 0xffff_ffff_ffff
}

/// Reads extended attributes, but for those that a mount answers itself.
fn attributes(path: &Path) -> Result<Vec<(Bytes, Bytes)>> {
    let refused = |error: Errno| Error::system("read the attributes of", path, &error.into());
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(refused(error)),
    };
    let mut found = Vec::new();
    for name in names[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(settings::PREFIX))
    {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])
            .map_err(refused)?;
        value.truncate(len);
        found.push((name.to_vec().into(), value.into()));
    }
    Ok(found)
}
