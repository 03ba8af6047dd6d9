//! Restoring a backup into a directory.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Entry, Kind, Manifest};
use crate::repository::Repository;
use crate::settings;
use crate::torn;

/// Zeros of this size are left out, as the holes they were or could have been.
const HOLE_BYTES: usize = 4096;
const _: () =
    assert!(crate::CHUNK_BYTES.is_multiple_of(HOLE_BYTES as u64), "a chunk is whole holes");

/// What was done.
#[derive(Debug, Serialize)]
pub struct Restored {
    /// Where.
    pub path: PathBuf,
    /// Names.
    pub entries: usize,
    /// Bytes of files.
    pub bytes: u64,
    /// What could not be restored beside content and names, one sentence for each kind of thing.
    pub left_out: Vec<String>,
    /// What is not safe here about what was restored, one sentence each.
    pub warnings: Vec<String>,
}

/// Where a backup is restored to: an empty directory.
#[derive(Debug)]
pub struct Target {
    dir: PathBuf,
    /// Whether it lies on a Bedplate mount, which takes the settings of files.
    on_mount: bool,
}

impl Target {
    /// Makes the directory where it does not exist. `on_mount` tells whether a canonical path lies
    /// on a Bedplate mount.
    ///
    /// # Errors
    /// `NotEmpty`, those of the system, and those of `on_mount`.
    pub fn prepare<E: From<Error>>(
        dir: &Path,
        on_mount: impl FnOnce(&Path) -> std::result::Result<bool, E>,
    ) -> std::result::Result<Self, E> {
        let dir = empty(dir)?;
        let on_mount = on_mount(&dir)?;
        Ok(Self { dir, on_mount })
    }
}

fn empty(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).map_err(|e| Error::system("make", dir, &e))?;
    if fs::read_dir(dir).map_err(|e| Error::system("read", dir, &e))?.next().is_some() {
        return Err(Error::new(
            ErrorKind::NotEmpty,
            format!("{} is not empty: restore into an empty directory", dir.display()),
        ));
    }
    dir.canonicalize().map_err(|e| Error::system("find", dir, &e))
}

/// Restores into an empty directory. It returns once everything is durable. `progress` is called
/// with the bytes that are done and the bytes in all.
///
/// # Errors
/// `Corrupt` for a chunk that is missing or damaged, and those of the system and of the repository.
pub fn restore(
    repository: &Repository,
    manifest: &Manifest,
    target: Target,
    mut progress: impl FnMut(u64, u64),
) -> Result<Restored> {
    let Target { dir, on_mount } = target;
    let bytes = manifest.entries.iter().map(|entry| entry.size).sum();
    // The very chunks that are filled in below, in the same order.
    let files =
        manifest.entries.iter().filter(|entry| entry.kind == Kind::File && entry.link.is_none());
    let chunks = Box::new(repository.load(files.flat_map(|entry| &entry.data)));
    let mut work = Work { chunks, on_mount, left_out: LeftOut::default() };
    let mut done_bytes = 0;
    for entry in &manifest.entries {
        work.make(entry, &dir)?;
        done_bytes += entry.size;
        debug_assert!(
            done_bytes <= bytes,
            "no more is restored than the manifest names: {done_bytes} of {bytes}"
        );
        progress(done_bytes, bytes);
    }
    // Directories last and from below: what was made in them changed their times, and they may
    // forbid to be written.
    debug_assert!(work.chunks.next().is_none(), "every chunk that was loaded is in a file");
    for entry in manifest.entries.iter().rev().filter(|entry| entry.kind == Kind::Directory) {
        work.dress(entry, &dir.join(entry.path.path()))?;
    }
    let all = File::open(&dir).map_err(|e| Error::system("open", &dir, &e))?;
    bedplate_block::sync_file_system(&all).map_err(|e| Error::system("sync", &dir, &e))?;
    all.sync_all().map_err(|e| Error::system("sync", &dir, &e))?;
    let warnings = if on_mount { Vec::new() } else { torn::warnings(manifest, &dir) };
    let (entries, left_out) = (manifest.entries.len(), work.left_out.sentences());
    Ok(Restored { path: dir, entries, bytes, left_out, warnings })
}

/// Writes all but zeros, which are left as holes.
fn write_data(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let is_hole = |from: usize| {
        bytes[from..(from + HOLE_BYTES).min(bytes.len())].iter().all(|byte| *byte == 0)
    };
    let mut at = 0;
    while at < bytes.len() {
        let mut end = at;
        while end < bytes.len() && !is_hole(end) {
            end += HOLE_BYTES;
        }
        file.write_all_at(&bytes[at..end.min(bytes.len())], offset + at as u64)?;
        at = end.max(at) + if end < bytes.len() { HOLE_BYTES } else { 0 };
    }
    Ok(())
}

/// Names the file and the byte of which data is missing or damaged.
fn in_file(mut error: Error, path: &Path, at: u64) -> Error {
    error.message = format!("{}, byte {at}: {}", path.display(), error.message);
    error
}

struct Work<'a> {
    /// The chunks that are still to come.
    chunks: Box<dyn Iterator<Item = Result<Vec<u8>>> + 'a>,
    /// Whether the target lies on a Bedplate mount.
    on_mount: bool,
    left_out: LeftOut,
}

/// What could not be restored: the first of each kind, and how many there are.
#[derive(Default)]
struct LeftOut(Vec<(String, String, usize)>);

impl LeftOut {
    /// Counts one of a kind, which `sentence` explains.
    fn add(&mut self, kind: String, sentence: String) {
        match self.0.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., count)) => *count += 1,
            None => self.0.push((kind, sentence, 1)),
        }
    }

    fn sentences(self) -> Vec<String> {
        let told = |(_, first, count)| match count {
            1 => first,
            count => format!("{first}; {} more like it", count - 1),
        };
        self.0.into_iter().map(told).collect()
    }
}

impl Work<'_> {
    fn make(&mut self, entry: &Entry, root: &Path) -> Result<()> {
        let path = root.join(entry.path.path());
        if let Some(link) = &entry.link {
            return fs::hard_link(root.join(link.path()), &path)
                .map_err(|e| Error::system("link", &path, &e));
        }
        match entry.kind {
            Kind::Directory if entry.path.get().is_empty() => {
                self.mark(entry, &path);
                return Ok(());
            }
            Kind::Directory => {
                DirBuilder::new()
                    .mode(0o700)
                    .create(&path)
                    .map_err(|e| Error::system("make", &path, &e))?;
                self.mark(entry, &path);
                return Ok(());
            }
            Kind::File => self.fill(entry, &path)?,
            Kind::Symlink => {
                let target =
                    entry.target.as_ref().map(crate::manifest::Bytes::path).unwrap_or_default();
                std::os::unix::fs::symlink(target, &path)
                    .map_err(|e| Error::system("make", &path, &e))?;
            }
            Kind::Special => {
                let made = rustix::fs::mknodat(
                    CWD,
                    &path,
                    FileType::from_raw_mode(entry.mode),
                    Mode::from_raw_mode(entry.mode),
                    entry.rdev,
                );
                if let Err(error) = made {
                    let message = Error::system("make", &path, &error.into()).message;
                    self.left_out.add(format!("make: {error}"), message);
                    return Ok(());
                }
            }
        }
        self.dress(entry, &path)
    }

    fn fill(&mut self, entry: &Entry, path: &Path) -> Result<()> {
        let explain = |e: io::Error| Error::system("write", path, &e);
        // Private to this process until its permissions are restored.
        let file =
            File::options().write(true).create_new(true).mode(0o600).open(path).map_err(explain)?;
        self.mark(entry, path);
        for pieces in entry.content().by_chunk() {
            let start = pieces.first().map_or(0, |piece| piece.offset);
            let bytes = self
                .chunks
                .next()
                .expect("one comes for each")
                .map_err(|error| in_file(error, path, start))?;
            for piece in pieces {
                // What was loaded is as long as the manifest says, and the piece lies in that.
                let bytes = &bytes[piece.at as usize..(piece.at + piece.len) as usize];
                write_data(&file, bytes, piece.offset).map_err(explain)?;
            }
        }
        file.set_len(entry.size).map_err(explain)
    }

    /// Sets how Bedplate serves it, before anything is written.
    fn mark(&mut self, entry: &Entry, path: &Path) {
        let untorn = entry.untorn_bytes.map(|bytes| bytes.to_string());
        let extent = entry.extent_bytes.map(|bytes| bytes.to_string());
        for (name, value) in [
            (settings::MODE, entry.io_mode.as_ref()),
            (settings::UNTORN, untorn.as_ref()),
            (settings::INTEGRITY, entry.integrity.as_ref()),
            (settings::EXTENT_SIZE, extent.as_ref()),
        ] {
            match value {
                Some(value) if self.on_mount => {
                    if let Err(error) = settings::set(path, name, value) {
                        self.left_out.add(format!("{name}: {:?}", error.kind), error.message);
                    }
                }
                Some(value) => self.left_out.add(
                    name.to_owned(),
                    format!("{}: {name} = {value}: this is no Bedplate mount", path.display()),
                ),
                None => {}
            }
        }
    }

    /// Sets owner, attributes, permissions and times.
    fn dress(&mut self, entry: &Entry, path: &Path) -> Result<()> {
        let explain = |doing: &str, error: io::Error| Error::system(doing, path, &error);
        let owned = std::os::unix::fs::lchown(path, Some(entry.uid), Some(entry.gid));
        // A program must not act for another owner than it was given to.
        let mode = if owned.is_ok() { entry.mode } else { entry.mode & !0o6000 };
        if let Err(error) = owned {
            let message = Error::system("set the owner of", path, &error).message;
            self.left_out.add(format!("owner: {error}"), message);
        }
        for (name, value) in &entry.attributes {
            if let Err(error) = rustix::fs::lsetxattr(
                path,
                OsStr::from_bytes(name.get()),
                value.get(),
                XattrFlags::empty(),
            ) {
                let doing = format!("set the attribute {} of", name.get().escape_ascii());
                let kind = format!("{doing} {error}");
                self.left_out.add(kind, Error::system(&doing, path, &error.into()).message);
            }
        }
        if entry.kind != Kind::Symlink {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))
                .map_err(|e| explain("set the permissions of", e.into()))?;
        }
        let time = Timespec {
            tv_sec: entry.mtime.div_euclid(1_000_000_000),
            tv_nsec: entry.mtime.rem_euclid(1_000_000_000),
        };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| explain("set the times of", e.into()))
    }
}
