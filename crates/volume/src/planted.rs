//! Mistakes that the tests of this crate switch on, to show that they would be found. Elsewhere the question is the constant `false`.

/// A mistake, where a slip of the hand would make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The labels say where a range lives before it is durable there.
    LabelsBeforeFlush,
    /// Writes go on to the old place of a range while it is copied.
    WritesNotHeld,
    /// Records of the parity log go on to name rows whose range left.
    RowsStayInLog,
    /// The parity log starts over although what its records say is not durable in place.
    LogRestartsBeforeFlush,
    /// Bits of the dirty region log are taken back although what was written to the regions is not durable on all members.
    BitsClearedBeforeFlush,
    /// A range lives in its new place although the only member that holds it there has left.
    LostCopyCounts,
}

#[cfg(not(test))]
pub(crate) fn is_planted(_: Mistake) -> bool {
    false
}

#[cfg(test)]
pub(crate) use switch::{is_planted, with_mistake};

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    use super::Mistake;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    pub fn is_planted(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }

    /// Makes a mistake while `act` runs on this thread.
    pub fn with_mistake<T>(mistake: Option<Mistake>, act: impl FnOnce() -> T) -> T {
        PLANTED.set(mistake);
        let result = act();
        PLANTED.set(None);
        result
    }
}
