//! `bedplate stat FILE`

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::{
    FileActivity, FileKind, FileSystem, IoMode, OpenOptions, ReleaseBehind, Untorn, Waits,
    format_size,
};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::address::PathArg;
use crate::cmd::mode::trial::{self, Trial};
use crate::device::Access;
use crate::failure::Result;
use crate::mount::{live, waits};
use crate::render::counters::Counters;
use crate::render::output::Output;
use crate::render::text::{self, Name};
use crate::session::{Devices, Volume};

/// Tell how a file lies on its volume and how its I/O is served: mode, alignment, extents, counters
/// with their reasons
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: PathBuf,
    /// List the extents, not only their number
    #[arg(short, long)]
    extents: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Serialize)]
struct Stat {
    path: Name,
    kind: FileKind,
    ino: u64,
    size_bytes: u64,
    allocated_bytes: u64,
    links: u32,
    /// The mode set on it, not counting what it gets from its directory or the mount.
    mode: Option<String>,
    effective_mode: Option<String>,
    /// What is written untorn, and whether the device promises it by itself.
    untorn: Option<Untorn>,
    /// Whether what is written gets checksums.
    integrity: bool,
    /// How many bytes have checksums; of a file.
    summed_bytes: Option<u64>,
    /// How much is wanted in one run of the volume.
    extent_bytes: Option<u64>,
    /// Which pages leave the caches behind a sequential read or write.
    release_behind: Option<ReleaseBehind>,
    /// The last trial of another mode.
    trial: Option<Trial>,
    block_size: u64,
    io_align: u64,
    /// The I/O size that programs are told to prefer (`st_blksize`).
    preferred_io_bytes: u64,
    /// A whole row of the volume below; 0: there are none.
    row_bytes: u64,
    buffer_align: u64,
    extents: Vec<Value>,
    /// Counted since the file was first opened in this mount; absent where nothing is mounted.
    counters: Option<Counters>,
    /// What its reads and writes waited for, as of the counters.
    waits: Option<Waits>,
    #[serde(skip)]
    list: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let stat = match PathArg::parse(&arguments.file) {
        PathArg::Live(path) => of_live(&path, arguments)?,
        PathArg::Inside { volume, path } => {
            Volume::new(volume, &arguments.devices)
                .with(Access::ReadOnly, output, |fs| of_inside(fs, &path, arguments))?
        }
    };
    output.show(&stat)
}

fn of_inside(fs: &FileSystem, path: &Path, arguments: &Arguments) -> Result<Stat> {
    let (attr, info) = (fs.resolve(path)?, fs.info());
    let mut effective_mode = None;
    let mut extents = Vec::new();
    if attr.kind == FileKind::File {
        let file = fs.open_inode(attr.ino, &OpenOptions::read_only())?;
        effective_mode = Some(file.effective_mode().to_string());
        extents = file.extents()?.iter().map(|extent| json!(extent)).collect();
    }
    Ok(Stat {
        path: arguments.file.clone().into(),
        kind: attr.kind,
        ino: attr.ino.0,
        size_bytes: attr.size,
        allocated_bytes: attr.allocated_bytes,
        links: attr.nlink,
        mode: attr.io_mode.map(IoMode::name).map(str::to_owned),
        effective_mode,
        untorn: fs.untorn(attr.ino)?,
        integrity: fs.integrity(attr.ino)?,
        summed_bytes: (attr.kind == FileKind::File)
            .then(|| fs.summed_bytes(attr.ino))
            .transpose()?,
        extent_bytes: fs.extent_size(attr.ino)?,
        release_behind: fs.release_behind(attr.ino)?,
        trial: fs
            .get_xattr(attr.ino, live::TRIAL.as_bytes())
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok()),
        block_size: info.block_size.into(),
        io_align: info.io_align.into(),
        preferred_io_bytes: match attr.kind {
            FileKind::File => fs.preferred_io(attr.io_mode).into(),
            _ => info.block_size.into(),
        },
        row_bytes: info.row_bytes.into(),
        buffer_align: info.buffer_align.into(),
        extents,
        counters: None,
        waits: None,
        list: arguments.extents,
    })
}

fn of_live(path: &Path, arguments: &Arguments) -> Result<Stat> {
    let mount = live::require_mount(path)?;
    let meta = std::fs::symlink_metadata(path)
        .map_err(|error| crate::failure::Failure::system("look at", path, &error))?;
    let info = live::info(&mount)?;
    let number = |name: &str| info.get(name).and_then(Value::as_u64).unwrap_or(0);
    let kind = kind(&meta);
    let is_file = kind == FileKind::File;
    let of_file = |name: &str| if is_file { live::get(path, name) } else { Ok(None) };
    let extents = if is_file { live::extents(path)? } else { Vec::new() };
    let counters = if is_file { live::get_json(path, live::COUNTERS)? } else { None };
    let activity: Option<FileActivity> =
        if is_file { live::get_as(path, live::ACTIVITY)? } else { None };
    Ok(Stat {
        path: arguments.file.clone().into(),
        kind,
        ino: meta.ino(),
        size_bytes: meta.size(),
        allocated_bytes: meta.blocks() * 512,
        links: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        mode: if is_file || kind == FileKind::Directory {
            live::get(path, live::MODE)?.filter(|mode| !mode.is_empty())
        } else {
            None
        },
        effective_mode: of_file(live::EFFECTIVE_MODE)?,
        untorn: if is_file || kind == FileKind::Directory {
            live::get(path, live::UNTORN)?.and_then(|text| super::mark::untorn::read(&text))
        } else {
            None
        },
        integrity: (is_file || kind == FileKind::Directory)
            && live::get(path, live::INTEGRITY)?.is_some(),
        summed_bytes: of_file(live::SUMMED_BYTES)?.and_then(|text| text.parse().ok()),
        extent_bytes: if is_file || kind == FileKind::Directory {
            live::get(path, live::EXTENT_SIZE)?.and_then(|text| text.parse().ok())
        } else {
            None
        },
        release_behind: if is_file || kind == FileKind::Directory {
            live::get(path, live::RELEASE_BEHIND)?.and_then(|text| text.parse().ok())
        } else {
            None
        },
        trial: if is_file { trial::of_file(path)? } else { None },
        block_size: number("block_size"),
        io_align: number("io_align"),
        preferred_io_bytes: meta.blksize(),
        row_bytes: number("row_bytes"),
        buffer_align: number("buffer_align"),
        extents,
        counters: counters.map(Counters::from_json),
        waits: activity.map(|activity| activity.waits),
        list: arguments.extents,
    })
}

fn kind(meta: &std::fs::Metadata) -> FileKind {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(meta.mode()) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::File,
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "path          {}", self.path)?;
        writeln!(f, "inode         {}, {}", self.ino, text::count(self.links.into(), "name"))?;
        writeln!(
            f,
            "size          {} ({}), {} allocated",
            self.size_bytes,
            format_size(self.size_bytes),
            format_size(self.allocated_bytes)
        )?;
        let mode = self.mode.as_deref().unwrap_or("not set: its directory's, or the mount's");
        writeln!(f, "mode          {mode}")?;
        if let Some(effective) = &self.effective_mode {
            writeln!(f, "served as     {effective}")?;
        }
        if let Some(Untorn { bytes, by_device }) = self.untorn {
            let by = if by_device { "by the device" } else { "by redirect to new blocks" };
            writeln!(f, "untorn        {}, {by}", format_size(bytes.into()))?;
        }
        let summed = self.summed_bytes.unwrap_or(0);
        if self.integrity || summed > 0 {
            let gets = if self.integrity { "what is written gets checksums" } else { "off" };
            writeln!(f, "integrity     {gets}; {} have them", format_size(summed))?;
        }
        if let Some(bytes) = self.extent_bytes {
            writeln!(f, "extent-size   {}", format_size(bytes))?;
        }
        if let Some(release) = self.release_behind {
            writeln!(f, "release       pages behind sequential I/O: {release}")?;
        }
        if let Some(trial) = &self.trial {
            writeln!(f, "last trial    {}", trial.line())?;
        }
        writeln!(
            f,
            "direct I/O    offset and length {}, buffer {}",
            format_size(self.io_align),
            format_size(self.buffer_align)
        )?;
        let rows = text::rows(self.row_bytes);
        writeln!(f, "preferred     I/O of {}{rows}", format_size(self.preferred_io_bytes))?;
        if self.kind == FileKind::File {
            writeln!(f, "extents       {}", self.extents.len())?;
        }
        if self.list {
            f.write_str(&extent_table(&self.extents))?;
        }
        if let Some(counters) = &self.counters {
            write!(f, "{counters}")?;
        }
        match self.waits.as_ref().and_then(waits::line) {
            Some(waits) => write!(f, "\nwaited        {waits}"),
            None => Ok(()),
        }
    }
}

fn extent_table(extents: &[Value]) -> String {
    let cell = |extent: &Value, name: &str| {
        extent.get(name).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), |n| n.to_string())
    };
    let head = ["file offset", "volume offset", "length", "state"].map(str::to_owned).to_vec();
    let rows = extents.iter().map(|extent| {
        let unwritten = extent.get("unwritten").and_then(Value::as_bool).unwrap_or(false);
        let state = if unwritten { "unwritten" } else { "written" }.to_owned();
        vec![cell(extent, "file_offset"), cell(extent, "volume_offset"), cell(extent, "len"), state]
    });
    text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[0, 1, 2])
}
