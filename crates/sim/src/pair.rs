//! One step in the middle of another: what both may have done, and what a power cut may leave of
//! it.
//!
//! Each of them happens at one moment of its own: the model carries them out one after the other,
//! in either order that fits what they returned and what the file system shows. A cut while both
//! are under way may leave neither, either or both, and once one has promised something, only what
//! keeps that.

use std::collections::BTreeMap;

use bedplate_fs::{ErrorKind, InodeNo};

use crate::act::Stage;
use crate::history::{Done, History, Pair};
use crate::interleave;
use crate::live::hold_against;
use crate::model::{Found, Model};
use crate::outcome::{Outcome, Promise};
use crate::view::{Seen, View, difference, see};
use crate::workload::Step;

/// A step that was carried out beside another.
struct Half<'a> {
    step: &'a Step,
    result: bedplate_fs::Result<Outcome>,
    /// Device operations when it returned.
    end: usize,
}

impl Half<'_> {
    fn promise(&self) -> Promise {
        self.result.as_ref().map_or(Promise::None, |outcome| outcome.promise)
    }

    /// Carries the step out in a model.
    fn follow(&self, model: &mut Model) -> Result<(), String> {
        if let Err(error) = &self.result
            && gives_way(self.step, error)
        {
            return Ok(());
        }
        hold_against(model, self.step, &self.result)
    }
}

/// Whether a step may be refused only because of what is under way beside it.
fn gives_way(step: &Step, error: &bedplate_fs::Error) -> bool {
    matches!(step, Step::Rollback(..) | Step::DeleteCheckpoint(_)) && error.kind == ErrorKind::Busy
}

/// Carries out a step in the middle of another, on the file system and in the model.
pub(crate) fn carry_out(
    stage: &Stage,
    history: &mut History,
    first: &Step,
    second: &Step,
    turns: &[u16],
) -> Result<(), String> {
    let (bed, begin) = (history.bed.clone(), history.operations());
    let timed = |step| {
        let bed = &bed;
        move || {
            let result = stage.carry_out(step);
            (result, bed.operation_count())
        }
    };
    let ((one, one_end), (other, other_end), met) =
        interleave::run(turns, timed(first), timed(second))?;
    debug_assert!(
        begin <= one_end.min(other_end),
        "both steps are over after they began: {begin}, {one_end}, {other_end}"
    );
    history.pairs.push(Pair { pauses: met.pauses, operations: begin..one_end.max(other_end) });
    let halves = [
        Half { step: first, result: one, end: one_end },
        Half { step: second, result: other, end: other_end },
    ];
    let seen = see(&stage.fs).map_err(|e| format!("a sound volume cannot be read: {e}"))?;
    let held = stage.held().map_err(|e| format!("a file that is held open cannot be read: {e}"))?;
    let possible = Possible::of(&history.model, &halves, &seen, &held)?;
    possible.note(history, &halves);
    Ok(())
}

/// Which inodes are held, and how many bytes they have.
fn in_short(held: &BTreeMap<u8, (InodeNo, Vec<u8>)>) -> String {
    let one = |(slot, (ino, bytes)): (&u8, &(InodeNo, Vec<u8>))| {
        format!("{slot}: inode {} of {} bytes", ino.0, bytes.len())
    };
    held.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The orders that fit.
struct Possible {
    /// What is visible when only this half was carried out, where it may have come first.
    alone: [Option<View>; 2],
    /// The model of both.
    both: Model,
}

impl Possible {
    /// Finds them: what the file system shows, and which files are held open by slot with what they
    /// hold, tell the orders apart. A file without a name is seen only so.
    fn of(
        before: &Model,
        halves: &[Half<'_>; 2],
        seen: &Seen,
        held: &BTreeMap<u8, (InodeNo, Vec<u8>)>,
    ) -> Result<Self, String> {
        let (mut alone, mut both, mut whys) = ([None, None], None, Vec::new());
        // The second may have found its file before the first took the name away.
        let orders = [None, Some(Found::Opened), Some(Found::Named)]
            .into_iter()
            .flat_map(|early| [(0, 1, early), (1, 0, early)]);
        for (first, second, early) in orders {
            let mut model = before.clone();
            if early.is_some_and(|early| {
                alone[first].is_some() || !model.find_early(halves[second].step, early)
            }) {
                continue;
            }
            let order = format!("{:?} before {:?}", halves[first].step, halves[second].step);
            let fits = halves[first].follow(&mut model).and_then(|()| {
                let between = model.view();
                halves[second].follow(&mut model)?;
                model.forget_found();
                let expected = model.held();
                if expected != *held {
                    return Err(format!(
                        "held are {}, not {}",
                        in_short(held),
                        in_short(&expected)
                    ));
                }
                difference(&seen.view, &model.view()).map_or(Ok(between), Err)
            });
            match fits {
                Ok(between) => {
                    alone[first] = Some(between);
                    both = Some(model);
                }
                Err(why) => whys.push(format!("not {order}: {why}")),
            }
        }
        Self::add_beside_clones(&mut alone, before, halves);
        let told = halves.iter().filter_map(|half| {
            half.result.as_ref().err().map(|error| format!("{:?} failed: {error}", half.step))
        });
        whys.extend(told);
        both.map(|both| Self { alone, both }).ok_or_else(|| {
            format!("what both did fits no order of them\n   {}", whys.join("\n   "))
        })
    }

    /// A clone of the present is of a moment before its records: what comes after that moment may
    /// be on the device without the clone, though the clone does not show it (S-75).
    fn add_beside_clones(alone: &mut [Option<View>; 2], before: &Model, halves: &[Half<'_>; 2]) {
        for (clone, beside) in [(0, 1), (1, 0)] {
            if !halves[clone].step.clones_present() || alone[beside].is_some() {
                continue;
            }
            let mut model = before.clone();
            if halves[beside].follow(&mut model).is_ok() {
                alone[beside] = Some(model.view());
            }
        }
    }

    /// Notes what could be seen when, and what was promised.
    fn note(self, history: &mut History, halves: &[Half<'_>; 2]) {
        let both = self.both.view();
        let [mut earlier, mut later] = [0, 1];
        if halves[1].end < halves[0].end {
            (earlier, later) = (1, 0);
        }
        let done = |view: &View, end: usize, promise: Promise| Done {
            end,
            view: view.clone(),
            promise,
            part: true,
            ..Done::default()
        };
        // Under way, either may be there, or both.
        let early_end = halves[earlier].end;
        let shown = self
            .alone
            .iter()
            .flatten()
            .chain([&both])
            .map(|view| done(view, early_end, Promise::None));
        let mut notes: Vec<Done> = shown.collect();
        let with = |index: usize| self.alone[index].as_ref().unwrap_or(&both);
        let early_promise = halves[earlier].promise();
        if early_promise != Promise::None {
            notes.push(done(with(earlier), early_end, early_promise));
            notes.push(done(&both, early_end, Promise::None));
        }
        let (late_end, late_promise) = (halves[later].end, halves[later].promise());
        if early_promise == Promise::None && late_promise != Promise::None {
            notes.push(done(with(later), late_end, late_promise));
            notes.push(done(&both, late_end, Promise::None));
        } else {
            notes.push(done(&both, late_end, late_promise));
        }
        let outcomes = || halves.iter().filter_map(|half| half.result.as_ref().ok());
        let last = notes.last_mut().expect("there are some");
        last.part = false;
        last.touched = outcomes().flat_map(|outcome| outcome.touched.iter().copied()).collect();
        last.wrote = outcomes().find_map(|outcome| outcome.wrote.clone());
        history.model = self.both;
        history.push_notes(notes);
    }
}
