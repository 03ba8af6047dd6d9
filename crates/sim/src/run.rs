//! Runs a workload on the simulated device, holds what the file system does against the model, and
//! writes down what had been promised when.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::{ErrorKind, InodeNo};
use bedplate_volume::{Difference, MemberState, Undecided};

use crate::act::Stage;
use crate::bed::{Bed, SIZE_MAX, Wires, fresh_bed, quiet};
use crate::history::{Done, History};
use crate::kept::{compare, used_numbers};
use crate::live::{carry_out, hold_against};
use crate::model::Model;
use crate::outcome::{Outcome, Promise};
use crate::view::{Seen, difference, see};
use crate::workload::{Ailment, Backend, Setup, Step};

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
    let program = wires.attach(&fs)?;
    let stage = Stage::new(fs).moving_log(wires.spare_log()).beside(program);
    let mut recorder = Recorder {
        wires,
        whole,
        returns: false,
        rotten_label: None,
        exchanged: None,
        stage: Some(stage),
        history,
    };
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
    /// The member one copy of whose label is damaged.
    rotten_label: Option<usize>,
    /// The member that holds something else when it returns: what it held when the group was made,
    /// or nothing.
    exchanged: Option<(usize, bool)>,
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
            Step::Shrink(mib) => self.shrink(*mib)?,
            Step::Die(step, calls) => self.die(step, *calls)?,
            Step::Vanish(member) => self.vanish(usize::from(*member)),
            Step::Return => self.return_all(),
            Step::Overwrite(member, old) => self.overwrite(usize::from(*member), *old)?,
            Step::Ail(member, ailment) => self.ail(usize::from(*member), *ailment)?,
            Step::Scrub => self.scrub()?,
            Step::During(first, second, turns) => return self.during(first, second, turns),
            _ => carry_out(self.stage.as_ref().expect("it is mounted"), &mut self.history, step)?,
        };
        // As the sync daemon does, with what a mount found of a deletion.
        let stage = self.stage.as_ref().expect("it is mounted");
        stage.fs.delete_step().map_err(|e| format!("a deletion does not go on: {e}"))?;
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
        // The labels were written again.
        self.rotten_label = None;
        self.mount_again(true)?;
        self.whole = self.is_whole()?;
        self.history.model.apply(&Step::Remount, &Outcome::default())?;
        self.compare()?;
        Ok(Outcome { promise: Promise::All, ..Outcome::default() })
    }

    /// The process dies: what only it knew is gone, what the device was told is not.
    fn kill(&mut self) -> std::result::Result<Outcome, String> {
        let at = self.history.operations();
        self.wires.cut();
        drop(self.stage.take());
        self.history.bed.mend_rows();
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
        self.arrive()?;
        let fs = self
            .wires
            .mount_synced(sync, quiet())
            .map_err(|e| format!("the volume does not mount again: {e}"))?;
        let program = self.wires.attach(&fs)?;
        let stage = Stage::new(fs).moving_log(self.wires.spare_log());
        self.stage = Some(stage.beside(program));
        Ok(())
    }

    fn is_one_away(&self) -> bool {
        let bed = &self.history.bed;
        (0..bed.backend().members()).any(|member| bed.is_away(member))
    }

    /// Whether all members of a group that was just brought up to date are in it. One that is there
    /// and does not count would be lost for ever.
    fn is_whole(&self) -> std::result::Result<bool, String> {
        if self.history.bed.backend() == Backend::One {
            return Ok(true);
        }
        let members = self.wires.group()?.config().members;
        match members.iter().position(|member| member.state != MemberState::Active) {
            Some(member) if !self.is_one_away() => Err(format!(
                "all members are there, and after a sync {member} is not up to date: {:?}",
                members[member]
            )),
            behind => Ok(behind.is_none() && !self.is_one_away()),
        }
    }

    /// The member that something may happen to: any while none is away or behind, unless one ails
    /// already, then that one.
    fn patient(&self, member: usize) -> Option<usize> {
        let bed = &self.history.bed;
        let fit = bed.backend() != Backend::One && self.whole && !self.is_one_away();
        fit.then(|| {
            bed.unreadable_member()
                .or(self.rotten_label)
                .or(bed.decayed_member())
                .unwrap_or(member % bed.backend().members())
        })
    }

    /// A member answers no more, if none is away or behind.
    fn vanish(&mut self, member: usize) -> Outcome {
        if let Some(member) = self.patient(member) {
            self.history.bed.set_away(member, true);
            self.whole = false;
        }
        Outcome::default()
    }

    /// A member is written over beneath the group, if none is away or behind. What is read of it
    /// before the group knows is not promised.
    fn overwrite(&mut self, member: usize, old: bool) -> std::result::Result<Outcome, String> {
        if let Some(member) = self.patient(member) {
            let bed = &self.history.bed;
            let old = old && bed.was_member(member, &self.wires.group()?.config());
            bed.overwrite_labels(member, old).map_err(|e| e.to_string())?;
            self.wires
                .check_members()
                .map_err(|e| format!("a member was written over, and the others do not do: {e}"))?;
            if self.wires.group()?.config().members[member].state == MemberState::Active {
                return Err(format!(
                    "S-130: something wrote over member {member}, and it still counts"
                ));
            }
            bed.overwrite_data(member, old).map_err(|e| e.to_string())?;
            self.whole = false;
            bed.lose(member);
        }
        Ok(Outcome::default())
    }

    /// Something ails a member, if none is away or behind.
    fn ail(&mut self, member: usize, ailment: Ailment) -> std::result::Result<Outcome, String> {
        let Some(member) = self.patient(member) else { return Ok(Outcome::default()) };
        let bed = self.history.bed.clone();
        let group = self.wires.group()?;
        match ailment {
            Ailment::Dies(calls) => {
                bed.dies_after(member, calls.into());
                self.whole = false;
            }
            Ailment::Unreadable(number, pages) => {
                bed.make_unreadable(member, &group.config(), number.into(), pages.into());
            }
            // With both copies damaged the member would be none any more.
            Ailment::LabelRots(_) if self.rotten_label.is_some() => {}
            // A damaged copy of a label is none to rely on when a row is half written.
            Ailment::LabelRots(copy) if bed.backend() == Backend::Mirror => {
                bed.rot_label(member, copy.into());
                self.rotten_label = Some(member);
                self.wires.check_members().map_err(|e| {
                    format!("one copy of a label is damaged, and the other does not do: {e}")
                })?;
                if group.config().members.iter().any(|member| member.state != MemberState::Active) {
                    return Err("a member left although one copy of its label is whole".to_owned());
                }
            }
            Ailment::LabelRots(_) => {}
            Ailment::RegionLogRots(at) => bed.rot_region_log(member, at.into()),
            Ailment::Rots(_) if bed.unreadable_member().or(bed.decayed_member()).is_some() => {}
            Ailment::Decays(number) => {
                let fs = &self.stage.as_ref().expect("it is mounted").fs;
                bed.decay(fs, &group.config(), member, number.into());
            }
            Ailment::OwnDecays(number) => {
                let fs = &self.stage.as_ref().expect("it is mounted").fs;
                bed.decay_own(fs, &group.config(), member, number.into());
            }
            Ailment::Rots(number) => {
                let begin = self.history.operations();
                bed.rot(&group, member, number.into())?;
                self.history.rotten.push(begin + 1..self.history.operations());
            }
            Ailment::Exchanged(old) => {
                bed.set_away(member, true);
                self.whole = false;
                self.wires
                    .check_members()
                    .map_err(|e| format!("a member is away, and the others do not do: {e}"))?;
                self.exchanged = Some((member, old && bed.was_member(member, &group.config())));
            }
        }
        Ok(Outcome::default())
    }

    /// The group compares its copies: of a member of which something cannot be read that is written
    /// again, and nothing else differs.
    fn scrub(&mut self) -> std::result::Result<Outcome, String> {
        let bed = &self.history.bed;
        if bed.backend() == Backend::One || !self.whole || self.is_one_away() {
            return Ok(Outcome::default());
        }
        let ailing = bed.unreadable_member();
        let group = self.wires.group()?;
        let report = group
            .scrub(true, &Undecided, &mut |_| ())
            .map_err(|e| format!("the group cannot be compared: {e}"))?;
        let decayed = bed.decayed_member().is_some();
        let known = |one: &Difference| {
            let mended = one.repaired && one.unreadable.iter().copied().eq(ailing);
            mended || (decayed && one.unreadable.is_empty())
        };
        if let Some(other) = report.differences.iter().find(|one| !known(one)) {
            return Err(format!(
                "copies differ and none is unreadable, or what is was not made good: {other:?}"
            ));
        }
        match bed.unreadable_member() {
            Some(member) => Err(format!(
                "something of member {member} cannot be read after all copies were compared"
            )),
            None => {
                // The second look takes bits of the dirty region log back, as the background thread
                // does.
                let tidied = group.clean_up().and_then(|_| group.clean_up());
                tidied
                    .map(|_| Outcome::default())
                    .map_err(|e| format!("the dirty region log cannot be tidied: {e}"))
            }
        }
    }

    /// Members are there again, and behind until the next mount brought them up to date. An open
    /// group does not look for them.
    fn return_all(&mut self) -> Outcome {
        self.returns = true;
        Outcome::default()
    }

    /// Members that return do so while nothing is mounted.
    fn arrive(&mut self) -> std::result::Result<(), String> {
        let bed = &self.history.bed;
        // What is to die in the middle of a step does not die in the middle of an opening, which
        // may refuse it.
        bed.defuse();
        if std::mem::take(&mut self.returns) {
            if let Some((member, old)) =
                self.exchanged.take().filter(|(member, _)| bed.is_away(*member))
            {
                bed.overwrite_labels(member, old)
                    .and_then(|()| bed.overwrite_data(member, old))
                    .map_err(|e| e.to_string())?;
            }
            bed.return_all();
        }
        Ok(())
    }

    fn grow(&mut self, mib: u8) -> std::result::Result<Outcome, String> {
        if self.history.bed.backend() != Backend::One {
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

    /// The file system becomes smaller, and loses what lies beyond it.
    fn shrink(&mut self, mib: u8) -> std::result::Result<Outcome, String> {
        if self.history.bed.backend() != Backend::One {
            return Ok(Outcome::default());
        }
        let fs = &self.stage.as_ref().expect("it is mounted").fs;
        let size = crate::bed::smaller(fs, mib);
        match crate::bed::shrink(fs, size) {
            Ok(()) => {
                let device = self.history.bed.data();
                let beyond = device.refresh_size().map_err(|e| e.to_string())? - size;
                device.write_zeroes(size, beyond).map_err(|e| e.to_string())?;
            }
            Err(e) if matches!(e.kind, ErrorKind::NoSpace | ErrorKind::Invalid) => {}
            Err(e) => return Err(format!("the volume does not become smaller: {e}")),
        }
        Ok(Outcome::default())
    }

    /// Holds all that the live file system shows against the model.
    fn compare(&self) -> std::result::Result<(), String> {
        let seen = self.see()?;
        let expected = self.history.model.view();
        difference(&seen.view, &expected)
            .map_or(Ok(()), |what| Err(format!("the live file system is wrong: {what}")))
    }
}
