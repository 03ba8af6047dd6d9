//! Mistakes that tests switch on, to show that they would be found. Elsewhere the question is the
//! constant `false`.
//!
//! A test plants one in its own thread; `BEDPLATE_PLANTED=NAME` in the environment plants one in
//! the whole process, for `cargo xtask mutants`. Besides it only the judge's own tests ask for the
//! feature `planted-bugs`.

/// A mistake, where a slip of the hand would make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The labels say where a range lives before it is durable there.
    LabelsBeforeFlush,
    /// Writes go on to the old place of a range while it is copied.
    WritesNotHeld,
    /// Records of the parity log go on to name rows whose range left.
    RowsStayInLog,
    /// A range lives in its new place although the only member that holds it there has left.
    LostCopyCounts,
    /// A region's bit in the dirty region log is not flushed before the first write there.
    BitNotFlushed,
    /// A region's bit in the dirty region log stays in memory.
    BitNotWritten,
    /// A flush of a volume flushes one of its members.
    OneMemberFlushed,
    /// The table of a group with many volumes names a volume before that is made.
    TableBeforeVolume,
    /// A table is changed although a member that stays misses the change.
    TableWithoutMember,
    /// A member that missed a write goes on being read.
    FailedMemberStays,
    /// Bits of the dirty region log are taken back although what was written to the regions is not
    /// durable on all members.
    BitsClearedBeforeFlush,
    /// Bits of the dirty region log are cleared while a member misses writes.
    BitsClearedWhileAway,
    /// A region that is behind again is copied from where the last copy stopped.
    CopyFromTheMiddle,
    /// After a crash a copy is chosen and read before it is durable on all members.
    ChosenCopyNotFlushed,
    /// A region whose copies may differ after a crash is read.
    DoubtfulRegionRead,
    /// A region is copied while it is written to.
    LockedBesideWriters,
    /// A region's bit is cleared while it is written to.
    RetiredBesideWriters,
    /// A damaged sector of the dirty region log counts as clean.
    DamagedLogIsClean,
    /// A whole row is written beside a record that would undo it.
    RecordOutlivesRow,
    /// Rows are written in place before their record in the parity log is durable.
    RecordNotFlushed,
    /// A partial write computes the parity without what stays of the row.
    ParityOfNewAlone,
    /// The parity log starts over although what its records say is not durable in place.
    LogRestartsBeforeFlush,
    /// A recovery starts a new parity log before what it wrote again is durable.
    ReplayNotFlushed,
    /// The parity log starts over before its head is durable.
    HeadNotFlushed,
    /// A member counts as failed before rows written without a record are durable on the others.
    HeldRowsNotFlushed,
    /// A recovery writes again a record of which not every member has its part.
    HalfRecordReplayed,
    /// Two writes to one row go on side by side.
    RowsNotLocked,
    /// What a relayout copies is not marked for a member that is away.
    CopyNotMarked,
    /// The label of a member counts as what was written there, whatever it is.
    LabelNotCompared,
    /// What one member cannot read is not looked for on the others.
    ReadNotTriedElsewhere,
    /// A copy that is behind is copied from, if it is the first.
    FirstCopyBelieved,
    /// All rows of a member that is brought up to date are made of the first.
    FirstRowForAll,
    /// Where nothing says which copy is right, a scrub believes the first.
    ScrubBelievesFirst,
    /// A member that comes back with an older label than it had counts as the one that went.
    OlderCopyTaken,
    /// A copy that is not what was written stays, beside one that is.
    WrongCopyStays,
    /// Copies that a crash left unlike are made alike before it is known which one is right.
    CopiesNotHeld,
    /// What was found right of copies that may not be written over is not what reads return.
    RightNotKept,
    /// A relayout copies from one of several copies without a look at the others.
    SourceNotCompared,
    /// A member is brought up to date from one of several copies without a look at the others.
    SourceOfMemberNotCompared,
}

#[cfg(any(test, feature = "planted-bugs"))]
impl Mistake {
    /// All of them.
    const ALL: [Self; 39] = [
        Self::LabelsBeforeFlush,
        Self::WritesNotHeld,
        Self::RowsStayInLog,
        Self::LostCopyCounts,
        Self::BitNotFlushed,
        Self::BitNotWritten,
        Self::OneMemberFlushed,
        Self::TableBeforeVolume,
        Self::TableWithoutMember,
        Self::FailedMemberStays,
        Self::BitsClearedBeforeFlush,
        Self::BitsClearedWhileAway,
        Self::CopyFromTheMiddle,
        Self::ChosenCopyNotFlushed,
        Self::DoubtfulRegionRead,
        Self::LockedBesideWriters,
        Self::RetiredBesideWriters,
        Self::DamagedLogIsClean,
        Self::RecordOutlivesRow,
        Self::RecordNotFlushed,
        Self::ParityOfNewAlone,
        Self::LogRestartsBeforeFlush,
        Self::ReplayNotFlushed,
        Self::HeadNotFlushed,
        Self::HeldRowsNotFlushed,
        Self::HalfRecordReplayed,
        Self::RowsNotLocked,
        Self::CopyNotMarked,
        Self::LabelNotCompared,
        Self::ReadNotTriedElsewhere,
        Self::FirstCopyBelieved,
        Self::FirstRowForAll,
        Self::ScrubBelievesFirst,
        Self::OlderCopyTaken,
        Self::WrongCopyStays,
        Self::CopiesNotHeld,
        Self::RightNotKept,
        Self::SourceNotCompared,
        Self::SourceOfMemberNotCompared,
    ];
}

#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn is_planted(_: Mistake) -> bool {
    false
}

#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) use switch::is_planted;
#[cfg(feature = "planted-bugs")]
pub use switch::plant;
#[cfg(test)]
pub(crate) use switch::with_mistake;

#[cfg(any(test, feature = "planted-bugs"))]
mod switch {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Mistake;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    pub fn is_planted(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake) || in_process() == Some(mistake)
    }

    /// The mistake that the environment plants.
    fn in_process() -> Option<Mistake> {
        static NAMED: OnceLock<Option<Mistake>> = OnceLock::new();
        let find = || {
            let name = std::env::var("BEDPLATE_PLANTED").ok()?;
            Mistake::ALL.into_iter().find(|mistake| format!("{mistake:?}") == name)
        };
        *NAMED.get_or_init(find)
    }

    /// Plants a mistake in what this thread does from now on, or takes it out.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    #[cfg(test)]
    /// Makes a mistake while `act` runs on this thread.
    pub fn with_mistake<T>(mistake: Option<Mistake>, act: impl FnOnce() -> T) -> T {
        PLANTED.set(mistake);
        let result = act();
        PLANTED.set(None);
        result
    }
}
