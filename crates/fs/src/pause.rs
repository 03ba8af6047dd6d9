//! Points at which the crash judge holds a thread up, so that another one does something in the
//! middle of what this one does.
//!
//! Only the judge asks for the feature `interleave`. Without it the call below is empty: no program
//! that users get links the judge.

/// Where a thread can be held up. Which locks it holds there is part of what the judge tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pause {
    /// A change begins, or goes on with its next record.
    Change,
    /// A record of a file's extents is planned and not logged yet: the inode lock and the map's
    /// lock are held.
    Planned,
    /// A record of a file's extents is logged, and what it frees not yet given back.
    Recorded,
    /// An inode without names and pins is about to be removed, or has lost its extents and not yet
    /// its row.
    Reclaim,
    /// The rows of a record are about to be logged, and the caller holds whatever locks it needs
    /// for that.
    Commit,
}

#[cfg(feature = "interleave")]
mod hook {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::Pause;

    /// What is called at each point.
    pub type PauseHook = Rc<dyn Fn(Pause)>;

    thread_local! {
        static HOOK: RefCell<Option<PauseHook>> = const { RefCell::new(None) };
    }

    /// Calls `hook` at each point that this thread comes to from now on, or no more.
    pub fn on_pause(hook: Option<PauseHook>) {
        HOOK.set(hook);
    }

    pub(crate) fn pause(at: Pause) {
        let hook = HOOK.with_borrow(Clone::clone);
        if let Some(hook) = hook {
            hook(at);
        }
    }
}

#[cfg(feature = "interleave")]
pub(crate) use hook::pause;
#[cfg(feature = "interleave")]
pub use hook::{PauseHook, on_pause};

/// No thread is held up.
#[cfg(not(feature = "interleave"))]
pub(crate) const fn pause(_: Pause) {}
