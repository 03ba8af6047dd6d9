//! The files below a path of a volume, mounted or not, and the rate at which something is done to
//! them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate::{FileKind, FileSystem, parse_size};
use bedplate_serve::control::Request;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::reach::{ask_here, ask_mount};

/// Where the files are.
pub enum Source<'a> {
    /// On a mount.
    Mounted(&'a Mount),
    /// In a volume that this process has open.
    Here(&'a FileSystem),
}

impl Source<'_> {
    /// Asks the daemon that serves the files, or the file system itself.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        match self {
            Self::Mounted(mount) => ask_mount(mount, request),
            Self::Here(fs) => ask_here(fs, request),
        }
    }

    /// Returns the names in a directory and what they are of; `None` for what is no directory.
    pub fn names(&self, path: &Path) -> Result<Option<Vec<(PathBuf, FileKind)>>> {
        match self {
            Self::Here(fs) => {
                let dir = fs.resolve(path)?;
                if dir.kind != FileKind::Directory {
                    return Ok(None);
                }
                let entries = fs.read_dir(dir.ino, None, usize::MAX)?;
                Ok(Some(
                    entries
                        .into_iter()
                        .map(|entry| {
                            (path.join(bedplate_serve::control::path_of(&entry.name)), entry.kind)
                        })
                        .collect(),
                ))
            }
            Self::Mounted(mount) => {
                let dir = mount.dir.join(path.strip_prefix("/").unwrap_or(path));
                if !dir.is_dir() {
                    return Ok(None);
                }
                let failed = |e: std::io::Error| {
                    if mount::is_stale(&e) {
                        live::stale(&dir)
                    } else {
                        Failure::system("list", &dir, &e)
                    }
                };
                let mut names = Vec::new();
                for entry in std::fs::read_dir(&dir).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    let kind = entry.file_type().map_err(failed)?;
                    if kind.is_file() || kind.is_dir() {
                        names.push((
                            path.join(entry.file_name()),
                            if kind.is_dir() { FileKind::Directory } else { FileKind::File },
                        ));
                    }
                }
                Ok(Some(names))
            }
        }
    }

    /// Everything below a path; a file is below itself.
    pub fn files(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let Some(names) = self.names(path)? else { return Ok(vec![path.to_owned()]) };
        let (mut files, mut todo) = (Vec::new(), names);
        while let Some((path, kind)) = todo.pop() {
            match kind {
                FileKind::File => files.push(path),
                FileKind::Directory => todo.extend(self.names(&path)?.unwrap_or_default()),
                _ => {}
            }
        }
        files.sort_unstable();
        Ok(files)
    }
}

/// Reads how much may be done in a second.
pub fn rate(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a rate of nothing would never end".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Keeps to a rate.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    moved: u64,
    rate: Option<u64>,
}

impl Pace {
    /// Begins now; `None`: as fast as it goes.
    pub fn new(rate: Option<u64>) -> Self {
        Self { began: Instant::now(), moved: 0, rate }
    }

    /// Returns how long after the beginning so many bytes may be done.
    fn due(&self) -> Duration {
        self.rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(self.moved as f64 / rate as f64))
    }

    /// Waits until so many bytes more may be done.
    pub fn wait(&mut self, bytes: u64) {
        self.moved += bytes;
        std::thread::sleep(self.due().saturating_sub(self.began.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_says_when_bytes_may_be_done() {
        let pace = |moved, rate| Pace { began: Instant::now(), moved, rate }.due();
        assert_eq!(pace(30 << 20, Some(10 << 20)), Duration::from_secs(3));
        assert_eq!(pace(30 << 20, None), Duration::ZERO);
        assert!(rate("0").is_err() && rate("fast").is_err());
        assert_eq!(rate("20m"), Ok(20 << 20));
    }
}
