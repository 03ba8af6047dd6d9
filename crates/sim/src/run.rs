//! Runs a workload on the simulated device, holds what the file system does against the model, and
//! writes down what had been promised when.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::InodeNo;

use crate::act::Stage;
use crate::bed::{Bed, SIZE_MAX, Wires, fresh_bed, quiet};
use crate::history::{Done, History};
use crate::kept::{compare, used_numbers};
use crate::live::{carry_out, hold_against};
use crate::model::Model;
use crate::outcome::{Outcome, Promise};
use crate::view::{Seen, difference, see};
use crate::workload::{Ground, Setup, Step};

/// Runs `steps` on a fresh volume.
///
/// # Errors
/// What the live file system did that the model does not: one sentence, and the number of the step.
pub fn record(setup: &Setup, steps: &[Step]) -> std::result::Result<History, String> {
    record_on(fresh_bed(setup, 0), setup.block_size, None, steps)
}

/// Runs `steps` on the volume of some devices; `known` are inode numbers that an earlier life on it
/// used.
pub(crate) fn record_on(
    bed: Bed,
    block_size: u32,
    known: Option<BTreeSet<InodeNo>>,
    steps: &[Step],
) -> std::result::Result<History, String> {
    let wires = bed.connect();
    let fs = wires.mount(quiet()).map_err(|e| format!("the volume does not mount: {e}"))?;
    let seen = see(&fs).map_err(|e| format!("the volume cannot be read: {e}"))?;
    // A member that was away when the power went is behind until the next mount brought it up to
    // date.
    let whole = known.is_none();
    let model = Model::recovered(block_size, seen, known.unwrap_or_default());
    let history = History::new(bed, model);
    let mut recorder =
        Recorder { wires, whole, returns: false, stage: Some(Stage::new(fs)), history };
    for (number, step) in steps.iter().enumerate() {
        recorder.step(step, number).map_err(|what| format!("step {number}, {step:?}: {what}"))?;
    }
    recorder.compare()?;
    Ok(recorder.history)
}

/// Looking at everything opens every file, which changes how it is served: not after every step.
const COMPARE_EVERY: usize = 8;

struct Recorder {
    wires: Wires,
    /// No member of the group is away or behind.
    whole: bool,
    /// Members that are away are there at the next mount.
    returns: bool,
    /// `None` only between two mounts.
    stage: Option<Stage>,
    history: History,
}

impl Recorder {
    fn step(&mut self, step: &Step, number: usize) -> std::result::Result<(), String> {
        let outcome = match step {
            Step::Remount => self.remount()?,
            Step::Kill => self.kill()?,
            Step::Grow(mib) => self.grow(*mib)?,
            Step::Die(step, calls) => self.die(step, *calls)?,
            Step::Vanish(member) => self.vanish(usize::from(*member)),
            Step::Return => self.return_all(),
            Step::Overwrite(member, old) => self.overwrite(usize::from(*member), *old)?,
            Step::During(first, second, turns) => return self.during(first, second, turns),
            _ => carry_out(self.stage.as_ref().expect("it is mounted"), &mut self.history, step)?,
        };
        if number.is_multiple_of(COMPARE_EVERY) {
            self.compare()?;
        }
        let (end, view) = (self.history.operations(), self.history.model.view());
        let Outcome { promise, touched, moved, wrote, .. } = outcome;
        self.history.push(Done { end, view, promise, touched, moved, wrote, ..Done::default() });
        Ok(())
    }

    fn during(
        &mut self,
        first: &Step,
        second: &Step,
        turns: &[u16],
    ) -> std::result::Result<(), String> {
        assert!(
            !first.is_recorders() && !second.is_recorders(),
            "a step that mounts or changes devices is no half of a pair"
        );
        crate::pair::carry_out(
            self.stage.as_ref().expect("it is mounted"),
            &mut self.history,
            first,
            second,
            turns,
        )
    }

    fn see(&self) -> std::result::Result<Seen, String> {
        see(&self.stage.as_ref().expect("it is mounted").fs)
            .map_err(|e| format!("a sound volume cannot be read: {e}"))
    }

    fn remount(&mut self) -> std::result::Result<Outcome, String> {
        let stage = self.stage.take().expect("it is mounted");
        stage.unmount().map_err(|e| format!("nothing keeps a volume from being unmounted: {e}"))?;
        self.mount_again(true)?;
        self.whole = !self.is_one_away();
        self.history.model.apply(&Step::Remount, &Outcome::default())?;
        self.compare()?;
        Ok(Outcome { promise: Promise::All, ..Outcome::default() })
    }

    /// The process dies: what only it knew is gone, what the device was told is not.
    fn kill(&mut self) -> std::result::Result<Outcome, String> {
        let at = self.history.operations();
        self.wires.cut();
        drop(self.stage.take());
        self.wires = self.history.bed.connect();
        self.mount_again(false)?;
        self.history.deaths.push(at..self.history.operations());
        let seen = self.see()?;
        compare(&self.history, at, &seen.view)
            .map_err(|what| format!("after the process died: {what}"))?;
        let used = used_numbers(&self.history, at);
        let block_size = self.history.model.block_size;
        self.history.model = Model::recovered(block_size, seen, used);
        Ok(Outcome { promise: Promise::All, ..Outcome::default() })
    }

    /// The process dies in the middle of a step, or after it where that takes fewer calls.
    fn die(&mut self, step: &Step, calls: u16) -> std::result::Result<Outcome, String> {
        assert!(
            !step.is_recorders() && !step.makes(),
            "only a step whose outcome is known beforehand is cut short"
        );
        self.wires.cut_after(calls.into());
        let stage = self.stage.as_ref().expect("it is mounted");
        let result = stage.carry_out(step);
        let mut done = Done { end: self.history.operations(), part: true, ..Done::default() };
        match result {
            Ok(outcome) if !self.wires.is_cut() => {
                hold_against(&mut self.history.model, step, &Ok(outcome.clone()))?;
                let Outcome { promise, touched, moved, wrote, .. } = outcome;
                done = Done { promise, touched, moved, wrote, ..done };
            }
            // It had come some way: all, some or nothing of it is there.
            _ => drop(self.history.model.apply(step, &Outcome::default())),
        }
        self.history.push(Done { view: self.history.model.view(), ..done });
        self.kill()
    }

    /// Mounts; with `sync` what members are behind with is copied first.
    fn mount_again(&mut self, sync: bool) -> std::result::Result<(), String> {
        self.arrive();
        let fs = self
            .wires
            .mount_synced(sync, quiet())
            .map_err(|e| format!("the volume does not mount again: {e}"))?;
        self.stage = Some(Stage::new(fs));
        Ok(())
    }

    fn is_one_away(&self) -> bool {
        let bed = &self.history.bed;
        (0..bed.ground().members()).any(|member| bed.is_away(member))
    }

    /// A member answers no more, if none is away or behind.
    fn vanish(&mut self, member: usize) -> Outcome {
        let bed = &self.history.bed;
        if bed.ground() != Ground::One && self.whole && !self.is_one_away() {
            bed.set_away(member % bed.ground().members(), true);
            self.whole = false;
        }
        Outcome::default()
    }

    /// A member is written over beneath the group, if none is away or behind. What is read of it
    /// before the group knows is not promised.
    fn overwrite(&mut self, member: usize, old: bool) -> std::result::Result<Outcome, String> {
        let bed = &self.history.bed;
        if bed.ground() != Ground::One && self.whole && !self.is_one_away() {
            let member = member % bed.ground().members();
            bed.overwrite_labels(member, old).map_err(|e| e.to_string())?;
            self.wires
                .check_members()
                .map_err(|e| format!("a member was written over, and the others do not do: {e}"))?;
            bed.overwrite_data(member, old).map_err(|e| e.to_string())?;
            self.whole = false;
            bed.lose(member);
        }
        Ok(Outcome::default())
    }

    /// Members are there again, and behind until the next mount brought them up to date. An open
    /// group does not look for them.
    fn return_all(&mut self) -> Outcome {
        self.returns = true;
        Outcome::default()
    }

    /// Members that return do so while nothing is mounted.
    fn arrive(&mut self) {
        if std::mem::take(&mut self.returns) {
            self.history.bed.return_all();
        }
    }

    fn grow(&mut self, mib: u8) -> std::result::Result<Outcome, String> {
        if self.history.bed.ground() != Ground::One {
            return Ok(Outcome::default());
        }
        let device = Arc::clone(self.history.bed.data());
        let size = (device.refresh_size().map_err(|e| e.to_string())? + (u64::from(mib) << 20))
            .min(SIZE_MAX);
        device.grow(size);
        let grown = self
            .stage
            .as_ref()
            .expect("it is mounted")
            .fs
            .grow()
            .map_err(|e| format!("the volume does not grow: {e}"))?;
        if grown == size {
            Ok(Outcome::default())
        } else {
            Err(format!("the volume has {grown} bytes after it grew to {size}"))
        }
    }

    /// Holds all that the live file system shows against the model.
    fn compare(&self) -> std::result::Result<(), String> {
        let seen = self.see()?;
        let expected = self.history.model.view();
        difference(&seen.view, &expected)
            .map_or(Ok(()), |what| Err(format!("the live file system is wrong: {what}")))
    }
}
