//! `bedplate defrag FILE|DIR|VOLUME`

pub mod report;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate::{DefragStep, FileKind, FileSystem, Fragmentation, format_size, parse_size};
use bedplate_serve::control::Request;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::address::PathArg;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::reach::{ask_here, ask_mount};
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::{Devices, Volume};

/// Move files that lie scattered on the volume together, while they are in use
///
/// Redirected writes (after a checkpoint, of untorn pages) and appends in turns leave a file in
/// many pieces, and reading it from end to end becomes random I/O. Each step copies 1 MiB at most
/// and remaps it with one record: programs go on between two steps, and a power cut does no harm.
/// What checkpoints need is left alone and counted, unless --unshare.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, VOLUME:/PATH inside a volume that is not mounted, or a whole
    /// volume
    place: PathBuf,
    /// Only tell how scattered the files are
    #[arg(long)]
    dry_run: bool,
    /// Copy no more than this in a second, as in 20m
    #[arg(long, value_parser = rate, value_name = "BYTES")]
    rate: Option<u64>,
    /// Also move what checkpoints need: the copies take space of their own until those are deleted
    #[arg(long)]
    unshare: bool,
    /// Tell what a mount moves by itself, in the background ('bedplate tune DIR defrag-rate=20m')
    #[arg(long, conflicts_with_all = ["dry_run", "rate", "unshare"])]
    report: bool,
    #[command(flatten)]
    devices: Devices,
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a rate of nothing would never end".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Where the files are.
enum Source<'a> {
    Mounted(&'a Mount),
    Here(&'a FileSystem),
}

#[derive(Debug, Serialize)]
struct Defragmented {
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    before: Fragmentation,
    after: Fragmentation,
    moved_bytes: u64,
    /// Has no better place in the free space.
    stuck_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    /// Those that lie in more than one run.
    files: Vec<Defragmented>,
    files_looked_at: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let path = match PathArg::parse(&arguments.place) {
        PathArg::Inside { volume, .. } if arguments.report => {
            return Err(Failure::usage(format!(
                "{}: --report is for a volume that is mounted",
                volume.display()
            )));
        }
        PathArg::Inside { volume, path } => return alone(&volume, &path, arguments, output),
        PathArg::Live(path) => path,
    };
    let refused = match live::require_mount(&path) {
        Ok(mount) => return mounted(&mount, &mount::canonical(&path)?, arguments, output),
        Err(refused) => refused,
    };
    match device::of_volume(&path)? {
        None if arguments.report => Err(refused),
        Some(mount) => mounted(&mount, &mount.dir, arguments, output),
        None if path.exists() && !path.is_dir() => alone(&path, Path::new("/"), arguments, output),
        None => Err(refused),
    }
}

fn mounted(mount: &Mount, path: &Path, arguments: &Arguments, output: &Output) -> Result<()> {
    if arguments.report {
        return report::show(mount, output);
    }
    let inside = mount.inside(path);
    output.show(&Source::Mounted(mount).defragment(&inside, arguments, output)?)
}

fn alone(volume: &Path, path: &Path, arguments: &Arguments, output: &Output) -> Result<()> {
    let access = if arguments.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let volume = Volume::new(volume, &arguments.devices);
    output.show(
        &volume.with(access, output, |fs| Source::Here(fs).defragment(path, arguments, output))?,
    )
}

impl Source<'_> {
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        match self {
            Self::Mounted(mount) => ask_mount(mount, request),
            Self::Here(fs) => ask_here(fs, request),
        }
    }

    /// Returns the names in a directory and what they are of; `None` for what is no directory.
    fn names(&self, path: &Path) -> Result<Option<Vec<(PathBuf, FileKind)>>> {
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
    fn files(&self, path: &Path) -> Result<Vec<PathBuf>> {
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

    fn defragment(&self, path: &Path, arguments: &Arguments, output: &Output) -> Result<Report> {
        let mut report =
            Report { dry_run: arguments.dry_run, files: Vec::new(), files_looked_at: 0 };
        let mut pace = Pace { began: Instant::now(), moved: 0, rate: arguments.rate };
        for path in self.files(path)? {
            report.files_looked_at += 1;
            let before: Fragmentation =
                self.ask(&Request::Fragmentation { path: path.as_os_str().as_bytes().to_vec() })?;
            if before.runs > 1 {
                report.files.push(self.file(path, before, arguments, &mut pace, output)?);
            }
        }
        Ok(report)
    }

    fn file(
        &self,
        path: PathBuf,
        before: Fragmentation,
        arguments: &Arguments,
        pace: &mut Pace,
        output: &Output,
    ) -> Result<Defragmented> {
        let mut done = Defragmented { path, before, after: before, moved_bytes: 0, stuck_bytes: 0 };
        if arguments.dry_run {
            return Ok(done);
        }
        let mut bar = progress::Bytes::new(output, text::name(&done.path), before.bytes);
        let (mut from, unshare) = (Some(0), arguments.unshare);
        while let Some(at) = from {
            let step: DefragStep = self.ask(&Request::Defragment {
                path: done.path.as_os_str().as_bytes().to_vec(),
                from: at,
                unshare,
            })?;
            done.moved_bytes += step.moved_bytes;
            done.stuck_bytes += step.stuck_bytes;
            bar.advance(step.next.map_or(0, |next| next - at));
            pace.wait(step.moved_bytes);
            from = step.next;
        }
        done.after =
            self.ask(&Request::Fragmentation { path: done.path.as_os_str().as_bytes().to_vec() })?;
        Ok(done)
    }
}

/// Keeps to a rate.
struct Pace {
    began: Instant,
    moved: u64,
    rate: Option<u64>,
}

impl Pace {
    /// Returns how long after the beginning so many bytes may be done.
    fn due(&self) -> Duration {
        self.rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(self.moved as f64 / rate as f64))
    }

    fn wait(&mut self, bytes: u64) {
        self.moved += bytes;
        std::thread::sleep(self.due().saturating_sub(self.began.elapsed()));
    }
}

/// Writes a number of runs and their mean length.
pub(super) fn told(state: &Fragmentation) -> String {
    let runs = if state.runs == 1 { "1 run".to_owned() } else { format!("{} runs", state.runs) };
    format!(
        "{runs} of {} on average",
        format_size(state.bytes.checked_div(state.runs).unwrap_or(0))
    )
}

impl fmt::Display for Defragmented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text::name(&self.path), told(&self.before))?;
        if self.moved_bytes > 0 {
            write!(f, ", now {}; {} moved", told(&self.after), format_size(self.moved_bytes))?;
        }
        if self.after.shared > 0 {
            write!(
                f,
                "; {} are needed by checkpoints and were left alone (--unshare copies them)",
                self.after.shared
            )?;
        }
        if self.stuck_bytes > 0 {
            write!(
                f,
                "; {} have no better place in the free space",
                format_size(self.stuck_bytes)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.iter().try_for_each(|file| writeln!(f, "{file}"))?;
        write!(
            f,
            "{} of {} files lie in more than one run",
            self.files.iter().filter(|file| file.after.runs > 1).count(),
            self.files_looked_at
        )
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

    #[test]
    fn a_report_tells_what_was_left_alone() {
        let state = |runs, shared| Fragmentation { runs, bytes: 8 << 20, shared };
        let file = Defragmented {
            path: "/t".into(),
            before: state(64, 3),
            after: state(4, 3),
            moved_bytes: 4 << 20,
            stuck_bytes: 0,
        };
        let text = file.to_string();
        assert!(
            text.contains(
                "64 runs of 128 KiB on average, now 4 runs of 2 MiB on average; 4 MiB moved; 3 are \
                 needed"
            ),
            "{text}"
        );
    }
}
