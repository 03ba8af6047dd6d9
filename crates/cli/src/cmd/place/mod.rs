//! `bedplate place PATH… [--on MEMBER[,MEMBER…] | --anywhere]`

mod report;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate::{FileKind, FilePlacement, PlaceStep};
use bedplate_serve::control::{PlaceRequest, Request};
use clap::Args;

use self::report::{Moved, Placed, Report};
use crate::address::PathArg;
use crate::device::{Access, place as device_place};
use crate::failure::Result;
use crate::mount::{self, live};
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::{Devices, Volume};
use crate::tree::{Pace, Source, rate};

/// Show or set on which members of a group files lie, and move them there while they are in use
///
/// A member can be chosen where a part of the volume lies on it alone: each member of a
/// concatenation; where that has copies, the members of all copies of a part, together. A stripe or
/// RAID-5 has every row on all members. New blocks of the file come from the members until these
/// are full, then from anywhere, counted as 'elsewhere'; what is created in a directory takes its
/// placement over. Each step moves 1 MiB of data at most and remaps it with one record: programs go
/// on between two steps, and a power cut does no harm. To choose by: 'bedplate volume stat' shows
/// which members are busy, 'bedplate iostat' which files are.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Files or directories on a mount, or VOLUME:/PATH inside a volume that is not mounted
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The members, by path, by the end of that, or by identity
    #[arg(long, value_delimiter = ',', value_name = "MEMBER", conflicts_with = "anywhere")]
    on: Vec<String>,
    /// Let them lie anywhere again; nothing moves
    #[arg(long)]
    anywhere: bool,
    /// Also what is in the directories, all the way down
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Also move what checkpoints or other files need: the copies take space of their own
    #[arg(long, requires = "on")]
    unshare: bool,
    /// Move no more than this in a second, as in 20m
    #[arg(long, value_parser = rate, value_name = "BYTES", requires = "on")]
    rate: Option<u64>,
    #[command(flatten)]
    devices: Devices,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mut work = Work {
        arguments,
        members: members(&arguments.on)?,
        pace: Pace::new(arguments.rate),
        report: Report::default(),
        output,
    };
    for path in &arguments.paths {
        work.path(path)?;
    }
    output.show(&work.report)
}

/// Returns the members as the group names them: whole paths, where they are paths.
fn members(named: &[String]) -> Result<Vec<String>> {
    let whole = |name: &String| {
        let path = Path::new(name);
        if path.components().count() < 2 || !device_place::exists(path) {
            return Ok(name.clone());
        }
        Ok(device_place::whole(path)?.to_string_lossy().into_owned())
    };
    named.iter().map(whole).collect()
}

/// A run of the command.
struct Work<'a> {
    arguments: &'a Arguments,
    members: Vec<String>,
    pace: Pace,
    report: Report,
    output: &'a Output,
}

impl Work<'_> {
    fn changes(&self) -> bool {
        self.arguments.anywhere || !self.members.is_empty()
    }

    fn path(&mut self, path: &Path) -> Result<()> {
        match PathArg::parse(path) {
            PathArg::Live(path) => {
                let mount = live::require_mount(&path)?;
                let inside = mount.inside(&mount::canonical(&path)?);
                self.below(&Source::Mounted(&mount), &inside)
            }
            PathArg::Inside { volume, path } => {
                let access = if self.changes() { Access::ReadWrite } else { Access::ReadOnly };
                let (volume, output) = (Volume::new(volume, &self.arguments.devices), self.output);
                volume.with(access, output, |fs| self.below(&Source::Here(fs), &path))
            }
        }
    }

    /// Does what is asked of a path, and of what is below it.
    fn below(&mut self, source: &Source<'_>, path: &Path) -> Result<()> {
        self.one(source, path)?;
        if !self.arguments.recursive {
            return Ok(());
        }
        let mut todo = vec![path.to_owned()];
        while let Some(dir) = todo.pop() {
            let mut names = source.names(&dir)?.unwrap_or_default();
            names.sort_unstable_by(|one, two| one.0.cmp(&two.0));
            for (path, kind) in names {
                if matches!(kind, FileKind::File | FileKind::Directory) {
                    self.one(source, &path)?;
                }
                if kind == FileKind::Directory {
                    todo.push(path);
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, source: &Source<'_>, path: &Path) -> Result<()> {
        let ask = |ask| Request::Place { path: path.as_os_str().as_bytes().to_vec(), ask };
        if self.changes() {
            let members = (!self.arguments.anywhere).then(|| self.members.clone());
            source.ask::<()>(&ask(PlaceRequest::Set { members }))?;
        }
        let before: FilePlacement = source.ask(&ask(PlaceRequest::Tell))?;
        let wanted = before.misplaced_bytes - before.shared_bytes;
        let moves = !self.members.is_empty()
            && (wanted > 0 || (self.arguments.unshare && before.shared_bytes > 0));
        let (moved, placement) = if moves {
            let moved = self.move_all(source, path, before.misplaced_bytes)?;
            (moved, source.ask(&ask(PlaceRequest::Tell))?)
        } else {
            (Moved::default(), before)
        };
        self.report.paths.push(Placed { path: path.to_owned(), placement, moved });
        Ok(())
    }

    /// Moves what lies elsewhere.
    fn move_all(&mut self, source: &Source<'_>, path: &Path, bytes: u64) -> Result<Moved> {
        let mut bar = progress::Bytes::new(self.output, text::name(path), bytes);
        let (mut from, mut moved) = (Some(0), Moved::default());
        while let Some(at) = from {
            let step: PlaceStep = source.ask(&Request::Place {
                path: path.as_os_str().as_bytes().to_vec(),
                ask: PlaceRequest::Move { from: at, unshare: self.arguments.unshare },
            })?;
            moved.moved_bytes += step.moved_bytes;
            moved.is_full |= step.is_full;
            bar.advance(step.moved_bytes);
            self.pace.wait(step.moved_bytes);
            from = step.next;
        }
        Ok(moved)
    }
}
