//! `bedplate cp SOURCE… TARGET`

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bedplate::{format_duration, format_size, parse_size};
use bedplate_direct::{
    Copied, Options, Range, Rate, Reflink, Route, TreeCopied, inside_remote, is_remote,
    is_remote_directory, remote_name, remote_size,
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::render::text;

/// Copy files of any file system with large direct requests, past the page cache
///
/// Holes, owner, mode, extended attributes and times are kept. A target is whole or as it was: the
/// copy takes its name when it is synced. Where a file system refuses direct I/O the copy goes
/// through the page cache and out of it again, and says so. A source or the target may be a file of an
/// NFS server, nfs://HOST/PATH: of that owner and extended attributes are not kept.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to copy, with the target as the last
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<PathBuf>,
    /// Copy directories with all below them
    #[arg(short, long)]
    recursive: bool,
    /// Read each copy back from the device and compare it with what was read
    #[arg(long)]
    verify: bool,
    /// Whether a copy shares its blocks with the source: auto where the file system can, always or
    /// not at all, never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    reflink: Sharing,
    /// Go on from what an interrupted copy left, and leave what this one has done if it is
    /// interrupted
    #[arg(long)]
    resume: bool,
    /// Copy a part of a file into a file or device that exists: from byte OFFSET so many bytes (to
    /// the end without a number) to byte TARGET (OFFSET where it is not named)
    #[arg(long, value_parser = parse_range, value_name = "OFFSET:BYTES[:TARGET]", conflicts_with_all = ["recursive", "resume", "reflink"])]
    range: Option<Range>,
    /// Copy no more than so many bytes a second
    #[arg(long, value_parser = parse_size, value_name = "BYTES")]
    rate: Option<u64>,
    #[command(flatten)]
    requests: Requests,
}

/// How busy a device is kept.
#[derive(Debug, Args)]
pub struct Requests {
    /// Requests of 4 MiB that are under way at once
    #[arg(long, value_name = "N", default_value_t = bedplate_direct::WORKERS as u8,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    requests: u8,
}

impl Requests {
    /// Returns their number.
    pub fn get(&self) -> usize {
        usize::from(self.requests)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sharing {
    Auto,
    Always,
    Never,
}

/// Reads `OFFSET:BYTES[:TARGET]`.
fn parse_range(text: &str) -> std::result::Result<Range, String> {
    let mut parts = text.split(':');
    let (Some(offset), Some(len), target, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("write it as OFFSET:BYTES or OFFSET:BYTES:TARGET, for instance 1g:64m".into());
    };
    let size = |text: &str| parse_size(text).map_err(|error| error.to_string());
    let source = size(offset)?;
    let len = if len.is_empty() { None } else { Some(size(len)?) };
    Ok(Range { source, len, target: target.map_or(Ok(source), size)? })
}

/// Makes a limit of bytes a second.
pub fn rate(bytes: Option<u64>) -> Result<Option<Rate>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let bytes = NonZeroU64::new(bytes)
        .ok_or_else(|| Failure::usage("a rate of 0 bytes a second would never end"))?;
    Ok(Some(Rate::new(bytes)))
}

#[derive(Debug, Serialize)]
struct Done {
    copies: Vec<OneCopy>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum OneCopy {
    File(FileCopy),
    Tree(TreeCopy),
}

#[derive(Debug, Serialize)]
struct FileCopy {
    #[serde(serialize_with = "text::readable")]
    source: PathBuf,
    #[serde(serialize_with = "text::readable")]
    target: PathBuf,
    size_bytes: u64,
    copied_bytes: u64,
    resumed_at: u64,
    shared: bool,
    verified: bool,
    read_direct: bool,
    write_direct: bool,
    not_kept: Vec<String>,
    duration_us: u64,
}

#[derive(Debug, Serialize)]
struct TreeCopy {
    #[serde(serialize_with = "text::readable")]
    source: PathBuf,
    #[serde(serialize_with = "text::readable")]
    target: PathBuf,
    files: u64,
    directories: u64,
    links: u64,
    size_bytes: u64,
    copied_bytes: u64,
    buffered_files: u64,
    left_out: Vec<PathBuf>,
    not_kept: Vec<String>,
    duration_us: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let (target, sources) = arguments.paths.split_last().expect("clap asks for two paths");
    let options = Options {
        workers: arguments.requests.get(),
        verify: arguments.verify,
        reflink: match arguments.reflink {
            Sharing::Auto => Reflink::Auto,
            Sharing::Always => Reflink::Always,
            Sharing::Never => Reflink::Never,
        },
        rate: rate(arguments.rate)?,
        resume: arguments.resume,
        range: arguments.range,
    };
    if arguments.recursive && arguments.paths.iter().any(|path| is_remote(path)) {
        return Err(Failure::usage("directories are not copied from or to a server"));
    }
    let is_directory = target.is_dir() || is_remote(target) && is_remote_directory(target);
    if sources.len() > 1 && !is_directory {
        return Err(Failure::usage(format!(
            "{} is not a directory, which several files are copied to",
            text::name(target)
        )));
    }
    let total = sources.iter().map(|source| bytes_of(source, arguments)).sum();
    let bar = Mutex::new(Bytes::new(output, "copy", total));
    let progress = |bytes| {
        bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner).advance(bytes);
    };
    let mut copies = Vec::new();
    for source in sources {
        let to = if is_directory { inside(target, source)? } else { target.clone() };
        let started = Instant::now();
        if source.is_dir() {
            if !arguments.recursive {
                return Err(Failure::usage(format!(
                    "{} is a directory: copy it with --recursive",
                    text::name(source)
                )));
            }
            let done = bedplate_direct::copy_tree(source, &to, &options, &progress)?;
            copies.push(OneCopy::Tree(TreeCopy::new(source, to, done, started)));
        } else {
            let done = bedplate_direct::copy(source, &to, &options, &progress)?;
            copies.push(OneCopy::File(FileCopy::new(source, to, done, started)));
        }
    }
    drop(bar);
    output.show(&Done { copies })
}

/// Where a source goes in a directory.
fn inside(directory: &Path, source: &Path) -> Result<PathBuf> {
    let name = name_of(source)?;
    Ok(if is_remote(directory) { inside_remote(directory, &name) } else { directory.join(name) })
}

fn name_of(source: &Path) -> Result<OsString> {
    let nameless = || Failure::usage(format!("{} has no name", source.display()));
    if is_remote(source) {
        return remote_name(source).ok_or_else(nameless);
    }
    // `..` and `/` have no name of their own; what they lead to has.
    if let Some(name) = source.file_name() {
        return Ok(name.to_owned());
    }
    let whole =
        source.canonicalize().map_err(|error| Failure::system("look at", source, &error))?;
    whole.file_name().map(OsStr::to_owned).ok_or_else(nameless)
}

/// How much there is to copy, for the bar; what cannot be looked at is told by the copy.
fn bytes_of(source: &Path, arguments: &Arguments) -> u64 {
    if is_remote(source) {
        return remote_size(source);
    }
    let Ok(is) = std::fs::symlink_metadata(source) else { return 0 };
    if let Some(Range { len: Some(len), .. }) = arguments.range {
        return len;
    }
    if is.is_dir() && arguments.recursive {
        let entries = std::fs::read_dir(source).into_iter().flatten().flatten();
        return entries.map(|entry| bytes_of(&entry.path(), arguments)).sum();
    }
    if is.is_symlink() {
        return std::fs::metadata(source).map_or(0, |is| is.len());
    }
    if is.file_type().is_block_device() { 0 } else { is.len() }
}

fn micros(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX)
}

impl FileCopy {
    fn new(source: &Path, target: PathBuf, done: Copied, started: Instant) -> Self {
        Self {
            source: source.to_owned(),
            target,
            size_bytes: done.size,
            copied_bytes: done.copied,
            resumed_at: done.resumed_at,
            shared: done.is_shared,
            verified: done.is_verified,
            read_direct: done.read == Route::Direct,
            write_direct: done.write == Route::Direct,
            not_kept: done.left,
            duration_us: micros(started),
        }
    }
}

impl TreeCopy {
    fn new(source: &Path, target: PathBuf, done: TreeCopied, started: Instant) -> Self {
        Self {
            source: source.to_owned(),
            target,
            files: done.files,
            directories: done.directories,
            links: done.links,
            size_bytes: done.size,
            copied_bytes: done.copied,
            buffered_files: done.buffered,
            left_out: done.left_out,
            not_kept: done.left,
            duration_us: micros(started),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for copy in &self.copies {
            match copy {
                OneCopy::File(copy) => writeln!(f, "{copy}")?,
                OneCopy::Tree(copy) => writeln!(f, "{copy}")?,
            }
        }
        Ok(())
    }
}

/// `1 GiB in 1.2 s, 853 MiB a second`
fn write_speed(f: &mut fmt::Formatter<'_>, bytes: u64, duration_us: u64) -> fmt::Result {
    let took = Duration::from_micros(duration_us);
    write!(f, "{} in {}", format_size(bytes), format_duration(took))?;
    if bytes >= 1 << 20 && duration_us > 0 {
        let speed = bytes as f64 / 1_048_576.0 / took.as_secs_f64();
        write!(f, ", {speed:.0} MiB a second")?;
    }
    Ok(())
}

fn write_not_kept(f: &mut fmt::Formatter<'_>, not_kept: &[String]) -> fmt::Result {
    if not_kept.is_empty() {
        return Ok(());
    }
    write!(f, "; not kept, because the system refuses it: {}", not_kept.join(", "))
}

impl fmt::Display for FileCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: ", text::name(&self.source), text::name(&self.target))?;
        if self.shared {
            write!(f, "{}, shares its blocks", format_size(self.size_bytes))?;
            return write_not_kept(f, &self.not_kept);
        }
        write_speed(f, self.copied_bytes, self.duration_us)?;
        if self.resumed_at > 0 {
            write!(f, "; {} were there", format_size(self.resumed_at))?;
        }
        let holes = self.size_bytes.saturating_sub(self.copied_bytes + self.resumed_at);
        if holes > 0 && self.resumed_at == 0 {
            write!(f, "; {} are holes", format_size(holes))?;
        }
        if self.verified {
            write!(f, "; compared, equal")?;
        }
        for (is_direct, path) in
            [(self.read_direct, &self.source), (self.write_direct, &self.target)]
        {
            if !is_direct {
                let path = text::name(path);
                write!(f, "; {path} through the page cache: its file system takes no direct I/O")?;
            }
        }
        write_not_kept(f, &self.not_kept)
    }
}

impl fmt::Display for TreeCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {}: {} in {}, {}; ",
            text::name(&self.source),
            text::name(&self.target),
            text::count(self.files, "file"),
            text::count_in(self.directories, "directory", "directories"),
            text::count(self.links, "link"),
        )?;
        write_speed(f, self.copied_bytes, self.duration_us)?;
        if self.buffered_files > 0 {
            let files = text::count(self.buffered_files, "file");
            write!(f, "; {files} through the page cache: the file system takes no direct I/O")?;
        }
        for path in &self.left_out {
            write!(
                f,
                "\n  left out, neither a file nor a directory nor a link: {}",
                text::name(path)
            )?;
        }
        write_not_kept(f, &self.not_kept)
    }
}
