//! What is looked at before anything is made.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::journal::{Journal, Phase, Place, Stopping, Switch, Verify};
use super::scan::{Amount, amount, require_directory, scan};
use super::switch::refuse_unchangeable;
use super::writers::writers_that_stay;
use crate::error::{Error, ErrorKind, Result, system};
use crate::file::DirectFile;
use crate::{Rate, WINDOW_BYTES};

/// How long a dry run reads to tell how fast the source is.
const MEASURED_FOR: Duration = Duration::from_secs(1);

/// How often it is looked whether a process has a file open for writing.
pub(super) const LOOKS: usize = 5;

/// How a directory is converted.
#[derive(Debug, Clone)]
pub struct How {
    /// What the name becomes.
    pub switch: Switch,
    /// What is compared while nothing writes.
    pub verify: Verify,
    /// How what writes is stopped.
    pub stopping: Stopping,
}

/// A conversion that can begin.
#[derive(Debug)]
pub struct Prepared {
    /// Its journal, which is not written yet.
    pub journal: Journal,
    /// Where the journal is kept.
    pub place: Place,
    /// What there is to copy.
    pub amount: Amount,
    /// Bytes that are free where the copy goes.
    pub free: u64,
}

/// Returns a name as it is noted: absolute, its directory without links. The name itself may be a
/// link.
///
/// # Errors
/// When there is no such directory.
pub fn name_of(path: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path).map_err(system("look at", path))?;
    let (Some(parent), Some(file)) = (whole.parent(), whole.file_name()) else {
        let message = format!("{} has no name that could be changed", path.display());
        return Err(Error::new(ErrorKind::Usage, message));
    };
    Ok(parent.canonicalize().map_err(system("look at", parent))?.join(file))
}

/// Looks whether the directory `name` can be copied to `target` and its name be changed.
///
/// # Errors
/// When it cannot: the target is not empty or lies in the source, has too little room, the name is
/// a mount point, another conversion of it runs or was not ended.
pub fn prepare(name: &Path, target: &Path, how: &How) -> Result<Prepared> {
    let source = require_directory(name)?;
    let name = name_of(name)?;
    let place = Place::take(&name, true)?;
    if let Some(there) = place.read()? {
        return Err(refusal(&there));
    }
    match look(&name, source, target, how, &place) {
        Ok((journal, amount, free)) => Ok(Prepared { journal, place, amount, free }),
        Err(error) => {
            place.remove()?;
            Err(error)
        }
    }
}

/// Describes a conversion of which nothing stands in the way.
fn look(
    name: &Path,
    source: PathBuf,
    target: &Path,
    how: &How,
    place: &Place,
) -> Result<(Journal, Amount, u64)> {
    let target = empty_target(target)?;
    refuse_one_in_the_other(&source, &target)?;
    refuse_mounts_within(&source)?;
    let is = std::fs::symlink_metadata(name).map_err(system("look at", name))?;
    let stopping = how.stopping.clone();
    let new = Journal::new(name, source, target, is.ino());
    let journal = Journal { switch: how.switch, verify: how.verify, stopping, ..new };
    refuse_unchangeable(&journal, place)?;
    refuse_writers_that_stay(&journal)?;
    let (amount, free) = room(&journal)?;
    Ok((journal, amount, free))
}

/// Looks whether a conversion of `name` can be undone.
///
/// # Errors
/// When there is none that ended, or the name leads elsewhere by now.
pub fn prepare_back(name: &Path, how: &How) -> Result<Prepared> {
    let name = name_of(name)?;
    let place = Place::take(&name, false)?;
    let done = match place.read()? {
        Some(done) if done.phase == Phase::Done => done,
        Some(other) => return Err(refusal(&other)),
        None => {
            let message = format!("{} was not converted", name.display());
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    };
    let undone = done.undone();
    let leads_to_copy = match done.switch {
        Switch::Bind => super::switch::is_done(&done),
        _ => name.canonicalize().is_ok_and(|path| path == done.target),
    };
    if !leads_to_copy || !undone.target.is_dir() {
        let message = format!(
            "{} does not lead to {} any more, or {} is gone: there is nothing to go back to",
            name.display(),
            done.target.display(),
            undone.target.display()
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let journal = Journal { verify: how.verify, stopping: how.stopping.clone(), ..undone };
    refuse_writers_that_stay(&journal)?;
    let amount = amount(&journal.source)?;
    let free = free_bytes(&journal.target)?;
    Ok(Prepared { journal, place, amount, free })
}

impl Prepared {
    /// Notes the conversion, and makes the directory of the copy.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn begin(mut self) -> Result<(Place, Journal)> {
        let target = &self.journal.target;
        self.journal.made_target = !target.exists();
        self.place.write(&self.journal)?;
        if self.journal.made_target {
            let made = std::fs::DirBuilder::new().mode(0o700).create(target);
            if let Err(error) = made {
                let error = Error::system("make", target, &error);
                self.place.remove()?;
                return Err(error);
            }
        }
        Ok((self.place, self.journal))
    }

    /// Leaves everything as it was; tells how many bytes a second the source was read with, where
    /// it holds enough to tell.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn give_up(self) -> Result<Option<u64>> {
        let speed = reading_speed(&self.journal.source);
        if !self.journal.is_back() {
            self.place.remove()?;
        }
        speed
    }
}

/// Explains what stands in the way of a new conversion.
fn refusal(there: &Journal) -> Error {
    let (name, target) = (there.name.display(), there.target.display());
    if there.phase == Phase::Done {
        let message = format!(
            "{name} was converted to {target}: 'bedplate convert {name} --back' undoes it, and \
             without {} it can be converted again",
            there
                .name
                .with_file_name(format!(
                    ".{}.convert",
                    there.name.file_name().unwrap_or_default().display()
                ))
                .display()
        );
        return Error::new(ErrorKind::Exists, message);
    }
    let message = format!(
        "a conversion of {name} to {target} was not ended: 'bedplate convert {name} --continue' \
         goes on, --abandon leaves {name} as it was"
    );
    Error::new(ErrorKind::Exists, message)
}

fn empty_target(target: &Path) -> Result<PathBuf> {
    let Ok(is) = std::fs::symlink_metadata(target) else { return name_of(target) };
    if !is.is_symlink() && !is.is_dir() {
        let message = format!("{} is not a directory", target.display());
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let whole = require_directory(target)?;
    let mut entries = std::fs::read_dir(&whole).map_err(system("read", target))?;
    if entries.next().is_some() {
        let message = format!(
            "{} is not empty: name a directory that does not exist, or an empty one",
            target.display()
        );
        return Err(Error::new(ErrorKind::Exists, message));
    }
    Ok(whole)
}

fn refuse_one_in_the_other(source: &Path, target: &Path) -> Result<()> {
    let (from, into) = (source.display(), target.display());
    let message = if target.starts_with(source) {
        format!("{into} lies in {from}, which is to be copied")
    } else if source.starts_with(target) {
        format!("{from} lies in {into}, which is to become its copy")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Usage, message))
}

/// A mount within the directory would be copied, and be left behind by the change of names.
fn refuse_mounts_within(source: &Path) -> Result<()> {
    let mounts = bedplate_block::MountEntry::all().map_err(system("look for mounts in", source))?;
    let within = mounts.iter().find(|entry| entry.dir != source && entry.dir.starts_with(source));
    within.map_or(Ok(()), |entry| {
        let message = format!(
            "{} is mounted within {}: unmount it, or convert the directories one by one",
            entry.dir.display(),
            source.display()
        );
        Err(Error::new(ErrorKind::Usage, message))
    })
}

/// Where nothing is said about how the database is stopped, none may run.
fn refuse_writers_that_stay(journal: &Journal) -> Result<()> {
    if journal.stopping != Stopping::None {
        return Ok(());
    }
    let found = writers_that_stay(&journal.source, LOOKS)?;
    if found.processes.is_empty() { Ok(()) } else { Err(open(&journal.source, &found.processes)) }
}

/// Explains that processes may still write.
pub(super) fn open(source: &Path, processes: &[String]) -> Error {
    let message = format!(
        "{} is open for writing in {}: stop them, or say how with --stop and --start, or --wait",
        source.display(),
        processes.join(", ")
    );
    Error::new(ErrorKind::Busy, message)
}

fn room(journal: &Journal) -> Result<(Amount, u64)> {
    let amount = amount(&journal.source)?;
    let target = &journal.target;
    let there = if target.exists() { target.as_path() } else { target.parent().unwrap_or(target) };
    let free = free_bytes(there)?;
    if free < amount.data {
        let message = format!(
            "{} holds {} bytes, and {} are free where {} is to be: free some, or make the volume \
             larger",
            journal.source.display(),
            amount.data,
            free,
            target.display()
        );
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    Ok((amount, free))
}

fn free_bytes(path: &Path) -> Result<u64> {
    let told = rustix::fs::statvfs(path).map_err(system("tell the free room of", path))?;
    Ok(told.f_bavail.saturating_mul(told.f_frsize))
}

/// Reads for a moment; returns the bytes a second, where there is enough to read.
fn reading_speed(source: &Path) -> Result<Option<u64>> {
    let started = Instant::now();
    let mut read = 0;
    let mut buffer = bedplate_block::AlignedBuf::zeroed(WINDOW_BYTES);
    for entry in scan(source)?.iter().filter(|entry| entry.is.is_file() && entry.is.blocks() > 0) {
        let file = DirectFile::open(&source.join(&entry.path))?;
        for at in (0..entry.is.len()).step_by(WINDOW_BYTES) {
            read += file.read(&mut buffer, at)? as u64;
            if started.elapsed() > MEASURED_FOR {
                return Ok(Some((read as f64 / started.elapsed().as_secs_f64()) as u64));
            }
        }
    }
    let is_enough = read >= WINDOW_BYTES as u64;
    Ok(is_enough.then(|| (read as f64 / started.elapsed().as_secs_f64().max(1e-6)) as u64))
}

/// Tells how many bytes a second a conversion can have at most.
#[must_use]
pub fn limited(speed: Option<u64>, rate: Option<&Rate>) -> Option<u64> {
    let limit = rate.map(Rate::bytes_per_second);
    speed.into_iter().chain(limit).min()
}
