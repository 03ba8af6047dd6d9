//! `bedplate defrag FILE|DIR|VOLUME`

pub mod report;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate::{DefragStep, Fragmentation, format_size};
use bedplate_serve::control::Request;
use clap::Args;
use serde::Serialize;

use crate::address::PathArg;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::{Devices, Volume};
use crate::tree::{Pace, Source, rate};

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
    output.show(&arguments.defragment(&Source::Mounted(mount), &inside, output)?)
}

fn alone(volume: &Path, path: &Path, arguments: &Arguments, output: &Output) -> Result<()> {
    let access = if arguments.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let volume = Volume::new(volume, &arguments.devices);
    output.show(
        &volume.with(access, output, |fs| arguments.defragment(&Source::Here(fs), path, output))?,
    )
}

impl Arguments {
    fn defragment(&self, source: &Source<'_>, path: &Path, output: &Output) -> Result<Report> {
        let mut report = Report { dry_run: self.dry_run, files: Vec::new(), files_looked_at: 0 };
        let mut pace = Pace::new(self.rate);
        for path in source.files(path)? {
            report.files_looked_at += 1;
            let before: Fragmentation = source
                .ask(&Request::Fragmentation { path: path.as_os_str().as_bytes().to_vec() })?;
            if before.runs > 1 {
                report.files.push(self.file(source, path, before, &mut pace, output)?);
            }
        }
        Ok(report)
    }

    fn file(
        &self,
        source: &Source<'_>,
        path: PathBuf,
        before: Fragmentation,
        pace: &mut Pace,
        output: &Output,
    ) -> Result<Defragmented> {
        let mut done = Defragmented { path, before, after: before, moved_bytes: 0, stuck_bytes: 0 };
        if self.dry_run {
            return Ok(done);
        }
        let mut bar = progress::Bytes::new(output, text::name(&done.path), before.bytes);
        let (mut from, unshare) = (Some(0), self.unshare);
        while let Some(at) = from {
            let step: DefragStep = source.ask(&Request::Defragment {
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
        done.after = source
            .ask(&Request::Fragmentation { path: done.path.as_os_str().as_bytes().to_vec() })?;
        Ok(done)
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
