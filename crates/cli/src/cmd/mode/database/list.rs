//! The list of what is set, and what it was before: a file that the modes are put back from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::{IoMode, format_size};
use serde::{Deserialize, Serialize};

use super::files::{Found, Part};
use crate::cmd::mode::set_live;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::render::text;

/// A file or directory of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    pub path: String,
    pub part: Part,
    pub is_directory: bool,
    /// 0 for a directory.
    pub bytes: u64,
    /// The mode of its own that it had.
    pub mode_before: Option<String>,
}

/// What is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The mode; `None`: that of the mount or of the directory.
    pub mode: Option<String>,
    pub files: Vec<Listed>,
}

/// What putting back did.
#[derive(Debug, Default, Serialize)]
pub struct PutBack {
    /// Files and directories that have the mode again that they had.
    restored: u64,
    /// Files that were created meanwhile, and got the mode of the directory.
    created_since: u64,
    /// Of the list, what is gone.
    gone: u64,
    /// What has another mode by now than was set: it was left alone.
    changed_since: u64,
}

/// Of each device that files were found on, whether it is a mount of ours.
#[derive(Default)]
struct Mounts(HashMap<u64, bool>);

impl Mounts {
    fn has(&mut self, path: &Path, device: u64) -> Result<bool> {
        if let Some(known) = self.0.get(&device) {
            return Ok(*known);
        }
        let is_ours = match live::require_mount(path) {
            Err(failure) if failure.kind == "not_a_mount" => false,
            found => found.map(|_| true)?,
        };
        self.0.insert(device, is_ours);
        Ok(is_ours)
    }
}

impl List {
    /// Lists what lies on a mount; returns how many do not.
    pub fn of(found: impl IntoIterator<Item = Found>, mode: Option<IoMode>) -> Result<(Self, u64)> {
        let (mut files, mut elsewhere, mut mounts) = (Vec::new(), 0, Mounts::default());
        for Found { path, part, is_directory } in found {
            let metadata = match path.metadata() {
                // A table that was dropped meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(|error| Failure::system("look at", &path, &error))?,
            };
            if !mounts.has(&path, metadata.dev())? {
                elsewhere += 1;
                continue;
            }
            let mode_before = live::get(&path, live::MODE)?.filter(|mode| !mode.is_empty());
            let bytes = if is_directory { 0 } else { metadata.len() };
            let path = path.into_os_string().into_string().map_err(|path| {
                let path = text::name(Path::new(&path));
                let why = "has a name that is not UTF-8, which the list cannot hold";
                Failure::new("invalid", format!("{path} {why}: set it by 'bedplate mode'"))
            })?;
            files.push(Listed { path, part, is_directory, bytes, mode_before });
        }
        Ok((Self { mode: mode.map(|mode| mode.name().to_owned()), files }, elsewhere))
    }

    /// Reads a list.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::system("read the list", path, &error))?;
        let is_mode =
            |mode: &Option<String>| mode.as_ref().is_none_or(|mode| mode.parse::<IoMode>().is_ok());
        let list = serde_json::from_str::<Self>(&text).map_err(|error| error.to_string());
        let list = list.and_then(|list| {
            let before = list.files.iter().map(|file| &file.mode_before);
            let all = std::iter::once(&list.mode).chain(before).all(is_mode);
            if all { Ok(list) } else { Err("a mode in it is none".to_owned()) }
        });
        list.map_err(|why| {
            let path = path.display();
            Failure::new("invalid", format!("{path} is no list of 'bedplate mode database': {why}"))
        })
    }

    /// Writes it to a file that is not there yet, durably.
    pub fn write(&self, path: &Path) -> Result<()> {
        let refused = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let why = "is there already, and may be what modes are to be put back from: name \
                           another file";
                Failure::new("exists", format!("{} {why}", path.display()))
            }
            _ => Failure::system("write the list", path, &error),
        };
        let mut file = std::fs::File::create_new(path).map_err(refused)?;
        let text = serde_json::to_string_pretty(self).expect("a list is a document");
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| sync_name(path)).map_err(|error| {
            // What is not whole is in the way of the next try; the error says what happened.
            drop(std::fs::remove_file(path));
            refused(error)
        })
    }

    /// Sets the mode of everything that is listed.
    pub fn set(&self) -> Result<u64> {
        let mode = parsed(self.mode.as_deref());
        let mut set = 0;
        for file in &self.files {
            match set_live(Path::new(&file.path), mode) {
                Err(failure) if is_gone(&file.path) => tracing::debug!("{}", failure.message),
                done => {
                    done?;
                    set += 1;
                }
            }
        }
        Ok(set)
    }

    /// Gives everything the mode that it had.
    pub fn put_back(&self) -> Result<PutBack> {
        let mut done = PutBack::default();
        let listed: HashSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        for file in &self.files {
            let path = Path::new(&file.path);
            if is_gone(path) {
                done.gone += 1;
                continue;
            }
            if file.is_directory {
                for child in created_in(path, &listed)? {
                    if self.has_its_mode(&child)? {
                        set_live(&child, parsed(file.mode_before.as_deref()))?;
                        done.created_since += 1;
                    }
                }
            }
            if self.has_its_mode(path)? {
                set_live(path, parsed(file.mode_before.as_deref()))?;
                done.restored += 1;
            } else {
                done.changed_since += 1;
            }
        }
        Ok(done)
    }

    fn has_its_mode(&self, path: &Path) -> Result<bool> {
        Ok(live::get(path, live::MODE)?.filter(|mode| !mode.is_empty()) == self.mode)
    }
}

fn parsed(mode: Option<&str>) -> Option<IoMode> {
    mode.and_then(|mode| mode.parse().ok())
}

/// Makes the name of a file durable.
fn sync_name(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn is_gone(path: impl AsRef<Path>) -> bool {
    matches!(path.as_ref().symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// Files in a directory that are not listed.
fn created_in(directory: &Path, listed: &HashSet<&str>) -> Result<Vec<PathBuf>> {
    let unlisted = |error: std::io::Error| Failure::system("list", directory, &error);
    let mut created = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unlisted)? {
        let entry = entry.map_err(unlisted)?;
        let path = entry.path();
        let is_known = path.to_str().is_some_and(|path| listed.contains(path));
        if !is_known && entry.file_type().map_err(unlisted)?.is_file() {
            created.push(path);
        }
    }
    Ok(created)
}

impl fmt::Display for List {
    /// One line for the files of a directory that have one mode and are for the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: BTreeMap<(&Path, Part, &str), (u64, u64)> = BTreeMap::new();
        for file in self.files.iter().filter(|file| !file.is_directory) {
            let directory = Path::new(&file.path).parent().unwrap_or(Path::new("/"));
            let before = file.mode_before.as_deref().unwrap_or("not set");
            let line = lines.entry((directory, file.part, before)).or_default();
            *line = (line.0 + 1, line.1 + file.bytes);
        }
        let mode = self.mode.as_deref().unwrap_or("not set");
        for ((directory, part, before), (count, bytes)) in lines {
            let (directory, part, size) = (text::name(directory), part.name(), format_size(bytes));
            let files = text::count(count, "file");
            writeln!(f, "{directory}: {files} of {part}, {size}: {before} → {mode}")?;
        }
        let directories = self.files.iter().filter(|file| file.is_directory).count();
        match directories {
            0 => Ok(()),
            1 => writeln!(f, "and 1 directory, for what is created in it"),
            _ => writeln!(f, "and {directories} directories, for what is created in them"),
        }
    }
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { restored, created_since, gone, changed_since } = self;
        write!(f, "{restored} files and directories have the mode again that they had")?;
        for (count, what) in [
            (created_since, "were created since, and follow their directory"),
            (gone, "are gone"),
            (changed_since, "have another mode by now, and keep it"),
        ] {
            if *count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        Ok(())
    }
}
