//! Mistakes that tests switch on, to show that the models find them. Elsewhere the question is the
//! constant `false`.

/// A mistake, where a slip of the hand would make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The slot is set without a fence before the sequence is read.
    NoFence,
    /// The sequence is not looked at again after the map was read.
    SequenceReadOnce,
    /// Nothing asks whether a record that replay looks at names the blocks.
    UnsealedWritten,
    /// The write flag outlives a checkpoint.
    SharingIgnored,
    /// An entry of another file counts as the one that was looked up.
    GenerationIgnored,
    /// The map is rewritten while its sequence is even.
    RewrittenInTheOpen,
    /// A change of the map goes on although a slot holds the file.
    NotDrained,
    /// A client writes beside the one that has the right to odd writes.
    OddOwnerIgnored,
    /// A flush of the device stands for a data sync although a tail was filled.
    TailNotReported,
    /// A tail is filled by every process that has the file.
    TailOwnerIgnored,
    /// How far a tail is filled is told before it is.
    FilledTooEarly,
    /// A write that waits for those before it goes with those of whatever tail.
    OrderOfAnotherTail,
    /// A write that waited is told that it is there before the file has grown by it.
    ToldBeforeFilled,
    /// An append moves the cursor of its buffer without looking whether that was closed.
    AppendedToAClosed,
    /// A buffer for appends is given again under the number that it had.
    AppendNumberKept,
    /// An overwrite moves the cursor of its buffer without looking whether that was closed.
    OverwroteInAClosed,
    /// A window of the file's bytes outlives a change by others.
    WindowOutlivesLease,
    /// A change of the map goes on although a request on the file is in flight.
    RequestsNotAwaited,
    /// What began is read before what has ended.
    EndedReadLast,
    /// The bytes of a page of the cache change while it is published, and its version after them.
    PageChangedInTheOpen,
    /// A page of the cache is withdrawn without a fence before its bytes change.
    PageWithdrawnLate,
    /// A page of the cache is not looked at again after its bytes were copied.
    PageNotLookedAtAgain,
    /// A frame of the cache counts as the page that was looked for, whatever it holds.
    FrameNotCompared,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// Plants a mistake in this thread, or takes it away.
#[cfg(test)]
pub(crate) fn plant(mistake: Option<Mistake>) {
    PLANTED.with(|planted| planted.set(mistake));
}

/// Tells whether this mistake is planted.
#[cfg(test)]
pub(crate) fn planted(mistake: Mistake) -> bool {
    PLANTED.with(|planted| planted.get() == Some(mistake))
}

/// Tells whether this mistake is planted: never.
#[cfg(not(test))]
#[inline]
pub(crate) const fn planted(_mistake: Mistake) -> bool {
    false
}
