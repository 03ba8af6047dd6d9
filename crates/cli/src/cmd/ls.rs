//! `bedplate ls VOLUME [PATH]`

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate::{Attr, FileKind, FileSystem, IoMode};
use clap::Args;
use serde::Serialize;

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::text::{self, Name};
use crate::session::Volume;

/// List a directory of a volume that is not mounted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// A directory or file inside the volume
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Show type, permissions, owner, size, time and I/O mode
    #[arg(short, long)]
    long: bool,
    /// List what lies below, too
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// How many entries are fetched at a time.
const PAGE: usize = 1024;

#[derive(Serialize)]
struct Entry {
    path: Name,
    kind: FileKind,
    ino: u64,
    permissions: String,
    links: u32,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    allocated_bytes: u64,
    modified: String,
    mode: Option<IoMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    path: Name,
    entries: Vec<Entry>,
    #[serde(skip)]
    long: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let entries = arguments.volume.with(Access::ReadOnly, output, |fs| list(fs, arguments))?;
    output.show(&Listing { path: arguments.path.clone().into(), entries, long: arguments.long })
}

fn list(fs: &FileSystem, arguments: &Arguments) -> Result<Vec<Entry>> {
    let attr = fs.resolve(&arguments.path)?;
    let mut entries = Vec::new();
    if attr.kind == FileKind::Directory {
        list_directory(fs, &attr, Path::new(""), arguments.recursive, &mut entries)?;
    } else {
        entries.push(entry(fs, &arguments.path, &attr)?);
    }
    Ok(entries)
}

/// How deep a tree is followed: the longest path that the system knows has as many components. A
/// damaged volume may have a loop.
pub const DEPTH_MAX: usize = 2048;

fn list_directory(
    fs: &FileSystem,
    dir: &Attr,
    below: &Path,
    recursive: bool,
    entries: &mut Vec<Entry>,
) -> Result<()> {
    if below.components().count() > DEPTH_MAX {
        return Err(too_deep());
    }
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = fs.read_dir(dir.ino, after.as_deref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.name.clone());
        for found in &page {
            let attr = fs.attr(found.ino)?;
            let path = below.join(OsStr::from_bytes(&found.name));
            entries.push(entry(fs, &path, &attr)?);
            if recursive && attr.kind == FileKind::Directory {
                list_directory(fs, &attr, &path, recursive, entries)?;
            }
        }
    }
}

/// Returns the failure of a tree without an end.
pub fn too_deep() -> Failure {
    Failure::new(
        "corrupt",
        "the directories are nested deeper than any path reaches: run 'bedplate check'",
    )
}

fn entry(fs: &FileSystem, path: &Path, attr: &Attr) -> Result<Entry> {
    let target = match attr.kind {
        FileKind::Symlink => {
            Some(bedplate::readable_name(&fs.read_link(attr.ino).map_err(Failure::from)?))
        }
        _ => None,
    };
    Ok(Entry {
        path: path.into(),
        kind: attr.kind,
        ino: attr.ino.0,
        permissions: text::permissions(attr.kind, attr.mode),
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size_bytes: attr.size,
        allocated_bytes: attr.allocated_bytes,
        modified: bedplate::format_time(attr.mtime),
        mode: attr.io_mode,
        target,
    })
}

impl Entry {
    fn name(&self, long: bool) -> String {
        match (&self.target, self.kind) {
            (Some(target), _) if long => format!("{} -> {}", self.path, text::one_line(target)),
            (_, FileKind::Directory) => format!("{}/", self.path),
            _ => self.path.to_string(),
        }
    }

    fn row(&self) -> Vec<String> {
        let mode = self.mode.map_or("-", IoMode::name).to_owned();
        let owner = format!("{}:{}", self.uid, self.gid);
        vec![
            self.permissions.clone(),
            self.links.to_string(),
            owner,
            self.size_bytes.to_string(),
            self.modified.clone(),
            mode,
            self.name(true),
        ]
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.long {
            let rows: Vec<Vec<String>> = self.entries.iter().map(Entry::row).collect();
            return f.write_str(&text::table(&rows, &[1, 3]));
        }
        self.entries.iter().try_for_each(|entry| writeln!(f, "{}", entry.name(false)))
    }
}
