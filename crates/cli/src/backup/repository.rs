//! The directory that holds backups.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::CHUNK_BYTES;
use super::manifest::{Header, Manifest};
use crate::failure::{Failure, Result};

/// The file that says what the directory is; who changes what is there holds it locked.
const MARK: &str = "bedplate-backup";
const MARK_TEXT: &[u8] = b"format 1\n";
const CHUNKS: &str = "chunks";
const MANIFESTS: &str = "manifests";
/// How the names of files end that are being written.
const PARTIAL: &str = ".partial";

/// An open repository.
pub struct Repository {
    dir: PathBuf,
    /// Locked: shared by who adds and reads, alone by who removes.
    _mark: File,
}

/// What a verification found.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Backups looked at.
    pub backups: usize,
    /// Chunks read and compared with their hashes.
    pub chunks: usize,
    /// One sentence for each thing that is wrong.
    pub faults: Vec<String>,
}

/// What became free.
#[derive(Debug, Default, Serialize)]
pub struct Pruned {
    /// The backups that are gone.
    pub backups: Vec<String>,
    /// Chunks that no backup needs any more.
    pub chunks: usize,
    /// Their bytes.
    pub bytes: u64,
}

fn failed<'a>(doing: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> Failure + 'a {
    move |error| Failure::system(doing, path, &error)
}

impl Repository {
    /// Opens a repository to add to it; makes one of an empty directory, or of none.
    pub fn create(dir: &Path) -> Result<Self> {
        make_dir(dir)?;
        let mark = dir.join(MARK);
        if !mark.exists() {
            if listed(dir)?.iter().any(|path| !is_partial(path)) {
                return Err(Failure::new("exists", format!("{} holds something else than backups: name an empty directory", dir.display())));
            }
            write_whole(&mark, &mut |out| out.write_all(MARK_TEXT))?;
        }
        for part in [CHUNKS, MANIFESTS] {
            let part = dir.join(part);
            make_dir(&part)?;
        }
        Self::open(dir, false)
    }

    /// Opens a repository; `alone`: to remove something.
    pub fn open(dir: &Path, alone: bool) -> Result<Self> {
        let path = dir.join(MARK);
        let text = fs::read(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Failure::new("not_found", format!("{} holds no backups", dir.display())),
            _ => Failure::system("read", &path, &e),
        })?;
        if text != MARK_TEXT {
            return Err(Failure::new("newer_format", format!("{} is of another format: use a newer bedplate", dir.display())));
        }
        let mark = File::open(&path).map_err(failed("open", &path))?;
        let locked = if alone { mark.try_lock() } else { mark.try_lock_shared() };
        locked.map_err(|_| Failure::new("busy", format!("{} is in use by another backup command: wait for its end", dir.display())))?;
        Ok(Self { dir: dir.to_owned(), _mark: mark })
    }

    fn chunk(&self, hash: &str) -> PathBuf {
        self.dir.join(CHUNKS).join(&hash[..2]).join(hash)
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.dir.join(MANIFESTS).join(name)
    }

    /// Stores a chunk unless it is there; returns its hash, and whether it had to.
    pub fn store(&self, bytes: &[u8]) -> Result<(String, bool)> {
        let hash = blake3::hash(bytes).to_hex().to_string();
        let path = self.chunk(&hash);
        if path.metadata().is_ok_and(|meta| meta.len() == bytes.len() as u64) {
            return Ok((hash, false));
        }
        let parent = path.parent().expect("a chunk lies in a directory");
        make_dir(parent)?;
        write_whole(&path, &mut |out| out.write_all(bytes))?;
        Ok((hash, true))
    }

    /// Returns whether a chunk is there; what is in it is not looked at.
    pub fn holds(&self, hash: &str) -> bool {
        self.chunk(hash).exists()
    }

    /// Reads a chunk, and compares it with its hash.
    pub fn load(&self, hash: &str) -> Result<Vec<u8>> {
        let path = self.chunk(hash);
        let shown = path.display();
        let bytes = match path.metadata() {
            Ok(meta) if meta.len() > CHUNK_BYTES => Vec::new(),
            Ok(_) => fs::read(&path).map_err(failed("read", &path))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Failure::new("corrupt", format!("{shown} is missing: back up again, in full, or use another backup")));
            }
            Err(e) => return Err(Failure::system("read", &path, &e)),
        };
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(Failure::new("corrupt", format!("{shown} does not hold what its name says: remove it and back up again, in full")));
        }
        Ok(bytes)
    }

    /// Adds a backup: from here on it is there.
    pub fn add(&self, manifest: &Manifest) -> Result<()> {
        // The chunks are durable, their names not yet.
        self.sync()?;
        write_whole(&self.manifest(&manifest.header.name), &mut |out| manifest.write(out))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        let dir = File::open(&self.dir).map_err(failed("open", &self.dir))?;
        rustix::fs::syncfs(&dir).map_err(|e| failed("sync", &self.dir)(e.into()))
    }

    /// Refuses a name that cannot be one, or is taken.
    pub fn need_free(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') || name.ends_with(PARTIAL) || name.len() > 200 {
            return Err(Failure::usage(format!("'{name}' cannot be the name of a backup")));
        }
        if self.manifest(name).exists() {
            return Err(Failure::new("exists", format!("a backup '{name}' exists in {}", self.dir.display())));
        }
        Ok(())
    }

    /// Reads a backup.
    pub fn backup(&self, name: &str) -> Result<Manifest> {
        let path = self.manifest(name);
        match File::open(&path) {
            Ok(file) => {
                let manifest = Manifest::read(&mut BufReader::new(file), &path)?;
                // It is looked for by what it calls itself when the next one is made against it.
                if manifest.header.name != name {
                    return Err(Failure::new("corrupt", format!("{}: the manifest is that of another backup: use another one", path.display())));
                }
                Ok(manifest)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::new("not_found", format!("there is no backup '{name}' in {}", self.dir.display())))
            }
            Err(e) => Err(Failure::system("open", &path, &e)),
        }
    }

    /// Returns the names of the backups.
    pub fn names(&self) -> Result<Vec<String>> {
        let dir = self.dir.join(MANIFESTS);
        let mut names = Vec::new();
        for path in listed(&dir)?.iter().filter(|path| !is_partial(path)) {
            names.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns what the backups are of, oldest checkpoint first, and a sentence for each whose manifest is damaged.
    pub fn headers(&self) -> Result<(Vec<Header>, Vec<String>)> {
        let (mut headers, mut damaged) = (Vec::new(), Vec::new());
        for name in self.names()? {
            match self.backup(&name) {
                Ok(manifest) => headers.push(manifest.header),
                Err(failure) if failure.kind == "corrupt" => damaged.push(failure.message),
                Err(failure) => return Err(failure),
            }
        }
        headers.sort_by_key(|header| (header.created, header.epoch));
        Ok((headers, damaged))
    }

    /// Reads everything that a backup, or all of them, need.
    pub fn verify(&self, name: Option<&str>, mut progress: impl FnMut(u64)) -> Result<Verified> {
        let names = name.map_or_else(|| self.names(), |name| Ok(vec![name.to_owned()]))?;
        let mut verified = Verified { backups: names.len(), chunks: 0, faults: Vec::new() };
        let mut seen = HashSet::new();
        for name in names {
            let manifest = match self.backup(&name) {
                Ok(manifest) => manifest,
                Err(failure) if failure.kind == "corrupt" => {
                    verified.faults.push(failure.message);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            for entry in &manifest.entries {
                for (number, hash) in entry.chunks.iter().filter(|(_, hash)| seen.insert(hash.clone())) {
                    match self.load(hash) {
                        Ok(bytes) => progress(bytes.len() as u64),
                        Err(failure) => {
                            let path = entry.path.path();
                            verified.faults.push(format!("backup '{name}', {}, byte {}: {}", path.display(), number * CHUNK_BYTES, failure.message));
                        }
                    }
                }
            }
        }
        verified.chunks = seen.len();
        Ok(verified)
    }

    /// Removes backups, and the chunks that no other one needs. A crash leaves chunks too many at most.
    pub fn prune(&self, names: &[String]) -> Result<Pruned> {
        for name in names {
            // What cannot be read can be removed all the same; what does not exist cannot.
            let path = self.manifest(name);
            if !path.is_file() || name.contains('/') {
                return Err(Failure::new("not_found", format!("there is no backup '{name}' in {}", self.dir.display())));
            }
        }
        // Read before anything is removed: a backup that cannot be read may need any chunk.
        let mut needed = HashSet::new();
        for name in self.names()?.iter().filter(|name| !names.contains(name)) {
            needed.extend(self.backup(name)?.entries.into_iter().flat_map(|entry| entry.chunks).map(|(_, hash)| hash));
        }
        for name in names {
            let path = self.manifest(name);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
        let mut pruned = Pruned { backups: names.to_vec(), ..Pruned::default() };
        self.remove_unneeded(&needed, &mut pruned)?;
        Ok(pruned)
    }

    fn remove_unneeded(&self, needed: &HashSet<String>, pruned: &mut Pruned) -> Result<()> {
        for path in [self.dir.clone(), self.dir.join(MANIFESTS)].iter().map(|dir| listed(dir)).collect::<Result<Vec<_>>>()?.concat() {
            if is_partial(&path) {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        for part in listed(&self.dir.join(CHUNKS))? {
            for path in listed(&part)? {
                if path.file_name().is_some_and(|name| needed.contains(name.to_string_lossy().as_ref())) {
                    continue;
                }
                pruned.bytes += path.metadata().map_or(0, |meta| meta.len());
                pruned.chunks += 1;
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// Makes a directory that only its owner enters: what may be read of a file is in its permissions, which nothing here has.
fn make_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(PARTIAL)
}

/// Returns the paths in a directory.
fn listed(dir: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(dir).and_then(|names| names.map(|name| name.map(|name| name.path())).collect());
    paths.map_err(failed("read", dir))
}

/// Writes a file that is there whole or not at all.
fn write_whole(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}{PARTIAL}", std::process::id()));
    let partial = PathBuf::from(partial);
    let written = (|| {
        let mut out = BufWriter::new(File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?);
        write(&mut out)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_data()?;
        fs::rename(&partial, path)
    })();
    written.map_err(|error| {
        // The first failure is told; what is left is removed by the next prune.
        let _removed = fs::remove_file(&partial);
        Failure::system("write", path, &error)
    })
}
