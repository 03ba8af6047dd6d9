//! A recorded workload: what was visible after each step, what each promised, and what the devices
//! saw.

use std::ops::Range;

use bedplate_block::Recorded;
use bedplate_fs::InodeNo;

use crate::bed::Bed;
use crate::model::Model;
use crate::outcome::{Promise, Wrote};
use crate::view::View;
use crate::workload::Change;

/// One step as it was carried out, or a part of one.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Device operations after it.
    pub end: usize,
    /// What was visible afterwards.
    pub view: View,
    /// What it promised.
    pub promise: Promise,
    /// Inodes whose names or attributes it changed.
    pub touched: Vec<InodeNo>,
    /// The file in which it moved bytes, and how: change, offset, length.
    pub moved: Option<(InodeNo, Change, u64, u64)>,
    /// What it wrote to a file, or which of its bytes it changed in another way.
    pub wrote: Option<Wrote>,
    /// More of the same step follows: its `end` is the step's, because it was not seen when this
    /// part was done.
    pub part: bool,
    /// When it began and ended, on a clock of all threads.
    pub span: Range<u64>,
}

/// Steps that another thread's sync promised: so many of them, from so many device operations on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) end: usize,
    pub(crate) steps: usize,
}

/// So many operations behind a pair a cut still counts as right after it.
const AFTER_PAIR: usize = 12;

/// Two steps that were carried out at once.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// How many pauses each of them came to.
    pub(crate) pauses: [u64; 2],
    /// The device operations while they were under way.
    pub(crate) operations: Range<usize>,
}

/// A recorded workload.
#[derive(Debug)]
pub struct History {
    /// The devices it ran on.
    pub bed: Bed,
    /// What the volume was like before the first step, durably.
    pub before: View,
    /// The steps.
    pub done: Vec<Done>,
    pub(crate) floors: Vec<Floor>,
    first: usize,
    pub(crate) model: Model,
    /// The device operations of mounts after the process died.
    pub(crate) deaths: Vec<Range<usize>>,
    /// The pairs of steps of which one came in the middle of the other.
    pub(crate) pairs: Vec<Pair>,
    /// The device operations while a bit of a member's data was another: nothing says which copy is
    /// right then.
    pub(crate) rotten: Vec<Range<usize>>,
}

impl History {
    /// Begins at a volume that was just mounted.
    pub(crate) fn new(bed: Bed, model: Model) -> Self {
        let first = bed.operation_count();
        Self {
            bed,
            before: model.view(),
            done: Vec::new(),
            floors: Vec::new(),
            first,
            model,
            deaths: Vec::new(),
            pairs: Vec::new(),
            rotten: Vec::new(),
        }
    }

    /// Adds a step that was carried out.
    pub(crate) fn push(&mut self, done: Done) {
        // What changed nothing (a rename onto itself) logs nothing, so a sync of what it touched
        // promises nothing more.
        let changed =
            self.done.last().map_or(&self.before, |last| &last.view).names != done.view.names;
        debug_assert!(
            self.done.last().is_none_or(|last| last.end <= done.end),
            "a step is over after the one before: {} and then {}",
            self.done.last().map_or(0, |last| last.end),
            done.end
        );
        let touched = if changed { done.touched } else { Vec::new() };
        self.done.push(Done { touched, ..done });
    }

    /// Adds what was visible in the middle of a step that is over.
    pub(crate) fn push_parts(&mut self, views: Vec<View>) {
        let end = self.operations();
        self.done.extend(views.into_iter().map(|view| Done {
            end,
            view,
            part: true,
            ..Done::default()
        }));
    }

    /// Adds what two steps did that were carried out at once.
    pub(crate) fn push_notes(&mut self, notes: Vec<Done>) {
        debug_assert!(
            notes.is_sorted_by_key(|note| note.end) && notes.last().is_some_and(|note| !note.part),
            "the last of what two steps left is both of them"
        );
        self.done.extend(notes);
    }

    /// Where a cut meets most: pairs of steps under way, mounts after a process died, and updates
    /// of the superblock of a single device.
    pub(crate) fn spans(&self) -> Vec<Range<usize>> {
        let pairs =
            self.pairs.iter().map(|pair| pair.operations.start..pair.operations.end + AFTER_PAIR);
        let data =
            if self.bed.devices().count() == 1 { self.bed.data().operations() } else { Vec::new() };
        let updates = data
            .iter()
            .enumerate()
            .filter(|(_, operation)| matches!(operation, Recorded::Write { offset: 0, .. }))
            .map(|(at, _)| at + 1..at + 4);
        let spans = pairs
            .chain(updates)
            .chain(self.deaths.iter().cloned())
            .map(|span| span.start.max(self.first)..span.end.min(self.operations()));
        spans.filter(|span| span.start < span.end).collect()
    }

    /// The same moment, or where a bit was another then, the next one at which it is right.
    pub(crate) fn sound(&self, after: usize) -> usize {
        self.rotten.iter().find(|span| span.contains(&after)).map_or(after, |span| span.end)
    }

    /// The operations of the data device of mounts after the process died.
    #[cfg(test)]
    pub(crate) fn deaths_on_data(&self) -> Vec<Range<usize>> {
        let on_data = |after: usize| self.bed.moments(after)[0];
        self.deaths.iter().map(|death| on_data(death.start)..on_data(death.end)).collect()
    }

    /// How many steps were over after so many device operations; parts are no steps.
    pub(crate) fn steps_over(&self, after: usize) -> usize {
        self.done.iter().take_while(|done| done.end <= after).filter(|done| !done.part).count()
    }

    /// The first operation after which a cut is judged (the volume is formatted and mounted).
    #[must_use]
    pub fn first_operation(&self) -> usize {
        self.first
    }

    /// How many operations the devices saw.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.bed.operation_count()
    }
}

/// The views from `from` steps done to `to` steps done.
pub(crate) fn views(history: &History, from: usize, to: usize) -> impl Iterator<Item = &View> {
    assert!(
        from <= to && to <= history.done.len(),
        "views are asked for of steps that were made: {from} to {to} of {}",
        history.done.len()
    );
    let before = (from == 0).then_some(&history.before);
    before.into_iter().chain(history.done[from.saturating_sub(1)..to].iter().map(|done| &done.view))
}

/// The content that a file had in a view; one that did not exist had none.
pub(crate) fn content_of(view: &View, ino: InodeNo) -> &[u8] {
    view.contents.get(&ino).map_or(&[], |content| content)
}
