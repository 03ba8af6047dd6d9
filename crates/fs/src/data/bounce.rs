//! Aligned memory for I/O that is not: one buffer a thread, kept between calls.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use bedplate_block::AlignedBuf;

/// What a thread moves at once through its bounce buffer, in bytes.
pub(crate) const BOUNCE_BYTES: usize = 256 << 10;

thread_local! {
    static KEPT: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// A bounce buffer of [`BOUNCE_BYTES`], content unspecified; goes back to its thread when dropped.
pub(crate) struct Bounce(Option<AlignedBuf>);

impl Bounce {
    /// Takes the thread's buffer, or a new one where it is in use further up the stack.
    pub(crate) fn take() -> Self {
        Self(Some(KEPT.take().unwrap_or_else(|| AlignedBuf::zeroed(BOUNCE_BYTES))))
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // While the thread ends there is nowhere to keep it.
        let _ = KEPT.try_with(|kept| kept.set(self.0.take()));
    }
}

impl Deref for Bounce {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().expect("held until dropped")
    }
}

impl DerefMut for Bounce {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().expect("held until dropped")
    }
}
