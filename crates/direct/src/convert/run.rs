//! The steps of a conversion in order.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::begin;
use super::journal::{Journal, Phase, Place, Stopping, Switch, Verify};
use super::mirror::{Mirror, Pass, Source};
use super::switch;
use super::writers::{writers, writers_that_stay};
use crate::error::{Error, ErrorKind, Result, system};
use crate::{Progress, Rate};

/// A pass that takes no longer is followed by the stop.
const SHORT: Duration = Duration::from_secs(5);

/// The most passes before the stop.
const PASSES_MAX: usize = 16;

/// How often it is looked whether a database that was stopped has let go of its files.
const LOOKS_AFTER_STOP: usize = 100;

/// Stops and starts the database, and hears how far the conversion is.
pub trait Operator {
    /// Stops what writes; it is said how long it will be stopped.
    ///
    /// # Errors
    /// When it goes on.
    fn stop(&mut self, how: &Stopping, expected: Duration) -> Result<()>;

    /// Starts it.
    ///
    /// # Errors
    /// When it does not start.
    fn start(&mut self, how: &Stopping) -> Result<()>;

    /// Hears of a pass while the database runs.
    fn passed(&mut self, number: usize, pass: &Pass);
}

/// How busy the devices are kept.
#[derive(Debug, Clone, Copy)]
pub struct Pace<'a> {
    /// Files, or requests of a large one, that are under way at once.
    pub workers: usize,
    /// A limit of bytes a second that is read of the source.
    pub rate: Option<&'a Rate>,
}

/// What a conversion did.
#[derive(Debug, Default)]
pub struct Converted {
    /// The passes while the database ran; none where it had been stopped already.
    pub passes: Vec<Pass>,
    /// The pass while nothing wrote.
    pub last: Pass,
    /// Bytes that were compared while nothing wrote.
    pub compared: u64,
    /// How long the stop was expected to be.
    pub expected: Duration,
    /// How long it was, from the order to stop to the end of the order to start.
    pub stopped_for: Duration,
    /// What of attributes could not be kept.
    pub left: Vec<String>,
    /// Sockets, pipes and device nodes, which were left out.
    pub left_out: Vec<PathBuf>,
    /// Symbolic links that lead out of the directory, and whose ends were not copied.
    pub leading_out: Vec<PathBuf>,
    /// Processes that this user may not look into, and that may write.
    pub unseen: usize,
}

/// Carries a conversion out, from wherever its journal says that it is.
///
/// # Errors
/// When a step fails. The database is started again where it was stopped, on what the name leads to;
/// the journal stays.
pub fn run(
    place: Place,
    journal: &mut Journal,
    source: &mut dyn Source,
    operator: &mut dyn Operator,
    pace: Pace<'_>,
    progress: Progress<'_>,
) -> Result<Converted> {
    let mut done = Converted::default();
    if journal.phase == Phase::Switching && switch::is_done(journal) {
        switch::change(journal)?;
        note(&place, journal, Phase::Switched)?;
    }
    let mut stopped_at = Instant::now();
    if journal.phase < Phase::Switched {
        let mirror = Mirror::new(journal.target.clone(), pace.workers, pace.rate);
        let mut run = Run { place: &place, journal, source, mirror, progress, done };
        stopped_at = run.all_but_the_start(operator)?;
        done = run.done;
    }
    start(&place, journal, operator)?;
    done.stopped_for = stopped_at.elapsed();
    if journal.is_back() || journal.switch == Switch::No {
        place.remove()?;
    } else {
        note(&place, journal, Phase::Done)?;
    }
    Ok(done)
}

/// Gives a conversion up: the name leads to what it led to, the database is started again where it
/// was stopped, and the copy is removed. The copy of a conversion back stays: it is what the name
/// was.
///
/// # Errors
/// When the database was started on the copy, or a step fails.
pub fn abandon(place: Place, journal: &mut Journal, operator: &mut dyn Operator) -> Result<()> {
    let name = journal.name.display();
    let is_changed_back = journal.is_back() && switch::is_done(journal);
    if journal.phase >= Phase::Started || is_changed_back {
        let message = if journal.phase == Phase::Done {
            format!("{name} was converted: 'bedplate convert {name} --back' undoes it")
        } else {
            format!(
                "{name} leads to its copy already, and what was written to it would be lost: end \
                 the conversion with --continue"
            )
        };
        return Err(Error::new(ErrorKind::Busy, message));
    }
    if journal.phase >= Phase::Switching {
        switch::change_back(journal)?;
        note(&place, journal, Phase::Stopped)?;
    }
    if journal.phase == Phase::Stopped && !is_open(&journal.source)? {
        start_on(&journal.source, journal, operator)?;
    }
    if let Some(undone) = &journal.undoes {
        return place.write(undone);
    }
    remove_copy(journal)?;
    place.remove()
}

/// Removes what was copied. The target was empty or did not exist when the conversion began.
fn remove_copy(journal: &Journal) -> Result<()> {
    let target = &journal.target;
    if !target.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(target).map_err(system("read", target))? {
        let path = entry.map_err(system("read", target))?.path();
        let is_directory = path.symlink_metadata().is_ok_and(|is| is.is_dir());
        let removed =
            if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(system("remove", &path))?;
    }
    if journal.made_target {
        std::fs::remove_dir(target).map_err(system("remove", target))?;
    }
    Ok(())
}

fn note(place: &Place, journal: &mut Journal, phase: Phase) -> Result<()> {
    journal.phase = phase;
    place.write(journal)
}

/// Starts the database on the copy, unless it runs there already.
fn start(place: &Place, journal: &mut Journal, operator: &mut dyn Operator) -> Result<()> {
    if journal.switch == Switch::No && !journal.is_back() {
        return operator.start(&journal.stopping);
    }
    let copy = journal.copy_after_switch().to_owned();
    let runs = journal.phase == Phase::Started && is_open(&copy)?;
    note(place, journal, Phase::Started)?;
    if runs {
        return Ok(());
    }
    start_on(&copy, journal, operator).map_err(|error| {
        let name = journal.name.display();
        let message = format!(
            "{name} is converted, but {error}: start it yourself, or end the conversion with \
             'bedplate convert {name} --continue', which tries again"
        );
        Error::new(error.kind, message)
    })
}

/// Starts the database. One that a conversion had begun to start when it was killed may run by now.
fn start_on(directory: &Path, journal: &Journal, operator: &mut dyn Operator) -> Result<()> {
    match operator.start(&journal.stopping) {
        Err(_) if is_open(directory)? => Ok(()),
        started => started,
    }
}

/// Returns whether a process has files of a directory open for writing.
fn is_open(directory: &Path) -> Result<bool> {
    Ok(!writers(directory)?.processes.is_empty())
}

/// A conversion whose names are not changed yet.
struct Run<'a> {
    place: &'a Place,
    journal: &'a mut Journal,
    source: &'a mut dyn Source,
    mirror: Mirror<'a>,
    progress: Progress<'a>,
    done: Converted,
}

impl Run<'_> {
    /// Copies, stops, compares and changes the names; returns when the stop began.
    fn all_but_the_start(&mut self, operator: &mut dyn Operator) -> Result<Instant> {
        // One that was killed may have left the database stopped, or about to be.
        let may_be_stopped = self.journal.phase >= Phase::Stopped;
        let is_stopped = may_be_stopped && !is_open(&self.journal.source)?;
        if !is_stopped {
            note(self.place, self.journal, Phase::Copying)?;
            self.passes(operator)?;
        }
        note(self.place, self.journal, Phase::Stopped)?;
        let stopped_at = Instant::now();
        if !is_stopped
            && let Err(error) = operator.stop(&self.journal.stopping, self.done.expected)
            && (!may_be_stopped || is_open(&self.journal.source)?)
        {
            note(self.place, self.journal, Phase::Copying)?;
            return Err(self.explain(&error, "nothing was changed"));
        }
        let Err(error) = self.while_stopped() else { return Ok(stopped_at) };
        if self.journal.phase >= Phase::Switching {
            switch::change_back(self.journal)?;
        }
        let again = operator.start(&self.journal.stopping);
        note(self.place, self.journal, Phase::Copying)?;
        let what_is = match again {
            Ok(()) => "the database runs in its old place".to_owned(),
            Err(failed) => format!("its old place is whole, but {failed}"),
        };
        Err(self.explain(&error, &what_is))
    }

    fn explain(&self, error: &Error, what_is: &str) -> Error {
        let name = self.journal.name.display();
        let message = format!(
            "{error}; {what_is}: 'bedplate convert {name} --continue' goes on, --abandon ends it"
        );
        Error::new(error.kind, message)
    }

    /// Passes until one is short, or no shorter than the one before.
    fn passes(&mut self, operator: &mut dyn Operator) -> Result<()> {
        loop {
            let pass = self
                .mirror
                .pass(self.source, self.progress)
                .map_err(|error| self.explain(&error, "the source is as it was"))?;
            self.done.passes.push(pass);
            operator.passed(self.done.passes.len(), &pass);
            if self.done.passes.len() == 1 && self.journal.verify == Verify::Changed {
                // What differs is copied by the next pass.
                self.mirror.prove(self.progress)?;
            }
            if !goes_on(&self.done.passes) {
                break;
            }
        }
        let started = Instant::now();
        writers(&self.journal.source)?;
        let looks = 2 * started.elapsed();
        self.done.expected = expected(&self.done.passes, self.journal.verify) + looks;
        Ok(())
    }

    /// The last pass, the comparison and the change of names.
    fn while_stopped(&mut self) -> Result<()> {
        self.refuse_open(LOOKS_AFTER_STOP)?;
        self.done.last = self.mirror.pass(self.source, self.progress)?;
        if self.journal.verify == Verify::All {
            self.mirror.doubt_all();
        }
        let (different, read) = self.mirror.prove(self.progress)?;
        self.done.compared = read;
        if !different.is_empty() {
            // Changed through a mapping, which leaves no time behind: copied, and compared again.
            self.mirror.pass(self.source, self.progress)?;
            let (different, read) = self.mirror.prove(self.progress)?;
            self.done.compared += read;
            if let Some(path) = different.first() {
                return Err(self.differs(path));
            }
        }
        if let Some(path) = self.mirror.first_other_name()? {
            return Err(self.differs(&path));
        }
        if let Some(path) = self.source.changed_since()? {
            return Err(self.differs(&path));
        }
        self.refuse_open(begin::LOOKS)?;
        self.done.left = self.mirror.left.iter().cloned().collect();
        self.done.left_out.clone_from(&self.mirror.left_out);
        self.done.leading_out.clone_from(&self.mirror.leading_out);
        if self.journal.switch == Switch::No && !self.journal.is_back() {
            return Ok(());
        }
        note(self.place, self.journal, Phase::Switching)?;
        switch::change(self.journal)?;
        note(self.place, self.journal, Phase::Switched)
    }

    fn refuse_open(&mut self, looks: usize) -> Result<()> {
        let found = writers_that_stay(&self.journal.source, looks)?;
        self.done.unseen = found.unseen;
        if found.processes.is_empty() {
            return Ok(());
        }
        Err(begin::open(&self.journal.source, &found.processes))
    }

    fn differs(&self, path: &Path) -> Error {
        let message = format!(
            "{} and its copy differ although nothing has it open for writing: something writes to \
             it all the same",
            self.journal.source.join(path).display()
        );
        Error::new(ErrorKind::Differs, message)
    }
}

/// Returns whether another pass pays. The first says nothing: it copies everything.
fn goes_on(passes: &[Pass]) -> bool {
    let [.., before, last] = passes else { return true };
    let gets_shorter = last.took < before.took.mul_f64(0.75);
    last.took > SHORT && gets_shorter && passes.len() < PASSES_MAX
}

/// Tells how long the stop will be: a pass as the last one, and the comparison as fast as the first
/// pass copied.
fn expected(passes: &[Pass], verify: Verify) -> Duration {
    let (Some(first), Some(last)) = (passes.first(), passes.last()) else { return Duration::ZERO };
    let compared = match verify {
        Verify::All => first.took,
        Verify::Changed => {
            first.took.mul_f64((last.read as f64 / first.read.max(1) as f64).min(1.0))
        }
    };
    last.took + compared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: u64, read: u64) -> Pass {
        Pass { took: Duration::from_secs(seconds), read, ..Pass::default() }
    }

    #[test]
    fn passes_end_when_one_is_short_or_no_shorter_than_the_one_before() {
        assert!(goes_on(&[of(1, 0)]), "the first copies everything");
        assert!(!goes_on(&[of(900, 0), of(4, 0)]));
        assert!(goes_on(&[of(900, 0), of(300, 0)]));
        assert!(!goes_on(&[of(900, 0), of(300, 0), of(290, 0)]));
        assert!(!goes_on(&vec![of(900, 0); PASSES_MAX]));
    }

    #[test]
    fn the_stop_is_a_pass_and_a_comparison() {
        let passes = [of(100, 1000), of(7, 50)];
        assert_eq!(expected(&passes, Verify::All), Duration::from_secs(107));
        assert_eq!(expected(&passes, Verify::Changed), Duration::from_secs(12));
    }
}
