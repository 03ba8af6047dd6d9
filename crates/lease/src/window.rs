//! What a client that has the right to odd writes keeps of a file: the bytes around its last such
//! write, so that the next one, which mostly goes on there, reads nothing.
//!
//! ```text
//!   file     ──────┬───────────window───────────┬──────
//!                  │ written │ read ahead       │
//!   odd write           └─sectors─┘  within: nothing is read
//!                                        across, beyond: a new window begins at its first sector
//! ```
//!
//! The memory is the caller's; this says what lies in it (I-LSE-6).

use std::ops::Range;

use crate::planted::{Mistake, planted};
use crate::reader::{Io, Lease, Permit};

/// The longest window in bytes, and the longest odd write with the sectors around it.
pub const WINDOW_BYTES: usize = 64 << 10;

/// Under what a window was read: nothing of it is used under anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowKey {
    /// The process, and the time in it: a child of a fork has another.
    pub epoch: u64,
    /// The mount's place in the client.
    pub mount: usize,
    /// The file.
    pub lease: Lease,
    /// The sequence of its entry.
    pub seq: u64,
}

/// What to do for an odd write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// So many bytes are to be read from the place of the permit on, to the beginning of the
    /// memory, and [`Window::filled`] is to be called; 0: nothing.
    pub read: usize,
    /// Where in the memory the write's first sector lies.
    pub sectors_at: usize,
    /// How long its sectors are.
    pub sectors_len: usize,
    /// Where in the memory its bytes go.
    pub bytes_at: usize,
}

/// What lies in a window's memory.
#[derive(Debug)]
pub struct Window {
    key: Option<WindowKey>,
    /// Bytes of the file.
    range: Range<u64>,
    /// What the memory will hold once it is read.
    wanted: Option<(WindowKey, Range<u64>)>,
    /// Where the last odd write ended.
    next: u64,
}

impl Window {
    /// Makes one that holds nothing.
    pub const fn new() -> Self {
        Self { key: None, range: 0..0, wanted: None, next: 0 }
    }

    /// Plans an odd write that was permitted; nothing where it is too long. Reads ahead where it
    /// goes on at the end of the one before.
    pub fn plan(
        &mut self,
        key: WindowKey,
        io: Io,
        permit: &Permit,
        alignment_bytes: u64,
    ) -> Option<Plan> {
        let sectors = io.sectors(alignment_bytes)?;
        let end = sectors.offset + sectors.len;
        if sectors.len > WINDOW_BYTES as u64 || sectors.len > permit.room {
            return None;
        }
        let follows = io.offset == self.next;
        self.next = io.offset + io.len;
        let is_same = |held: &WindowKey| {
            let ignored = planted(Mistake::WindowOutlivesLease);
            *held == key || (ignored && WindowKey { seq: key.seq, ..*held } == key)
        };
        let holds = self.key.as_ref().is_some_and(is_same)
            && self.range.start <= sectors.offset
            && end <= self.range.end;
        let mut read = 0;
        if !holds {
            let ahead = permit.room.min(WINDOW_BYTES as u64);
            read = if follows { ahead } else { sectors.len } as usize;
            (self.key, self.range) = (None, 0..0);
            self.wanted = Some((key, sectors.offset..sectors.offset + read as u64));
        }
        let start = if holds { self.range.start } else { sectors.offset };
        Some(Plan {
            read,
            sectors_at: (sectors.offset - start) as usize,
            sectors_len: sectors.len as usize,
            bytes_at: (io.offset - start) as usize,
        })
    }

    /// The memory holds what the plan said.
    pub fn filled(&mut self) {
        if let Some((key, range)) = self.wanted.take() {
            (self.key, self.range) = (Some(key), range);
        }
    }

    /// Forgets what is held: something is about to be written past it, or what was written of it
    /// may not have reached the device.
    pub fn forget(&mut self) {
        (self.key, self.range, self.wanted) = (None, 0..0, None);
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::Direction;
    use crate::planted::plant;

    fn key(seq: u64) -> WindowKey {
        WindowKey { epoch: 1, mount: 0, lease: Lease { entry: 3, generation: 7 }, seq }
    }

    fn plan(window: &mut Window, seq: u64, offset: u64, len: u64) -> Option<Plan> {
        let io = Io { direction: Direction::Write, offset, len };
        let permit = Permit { room: 1 << 20, seq, is_odd_owner: true, ..Permit::default() };
        window.plan(key(seq), io, &permit, 512)
    }

    fn reads(window: &mut Window, seq: u64, offset: u64, len: u64) -> usize {
        let read = plan(window, seq, offset, len).unwrap().read;
        window.filled();
        read
    }

    #[test]
    fn a_log_in_odd_pieces_reads_once_a_window() {
        let mut window = Window::new();
        assert_eq!(reads(&mut window, 2, 32, 24), 512, "where the next one goes is not known");
        assert_eq!(reads(&mut window, 2, 56, 4096), WINDOW_BYTES, "it goes on");
        let mut at = 56 + 4096;
        let mut all = 0;
        for _ in 0..14 {
            all += reads(&mut window, 2, at, 24) + reads(&mut window, 2, at + 24, 4096);
            at += 24 + 4096;
        }
        assert_eq!(all, 0);
        let expected = Plan { read: 0, sectors_at: 1024, sectors_len: 1024, bytes_at: 1500 };
        assert_eq!(plan(&mut window, 2, 1500, 100), Some(expected));
        assert_eq!(plan(&mut window, 2, 1, WINDOW_BYTES as u64), None, "too long");
    }

    /// I-LSE-6: after the sequence moved, in a child, and after a write past it, it is read anew.
    #[test]
    fn i_lse_6_a_window_ends_with_what_it_was_read_under() {
        let again = |seq| {
            let mut window = Window::new();
            reads(&mut window, 2, 100, 10);
            reads(&mut window, seq, 120, 10)
        };
        assert_eq!((again(2), again(4)), (0, 512));
        plant(Some(Mistake::WindowOutlivesLease));
        assert_eq!(again(4), 0, "the mistake is one that this test sees");
        plant(None);
        let mut window = Window::new();
        reads(&mut window, 2, 100, 10);
        window.forget();
        assert_eq!(reads(&mut window, 2, 120, 10), 512);
        let child = WindowKey { epoch: 2, ..key(2) };
        let io = Io { direction: Direction::Write, offset: 120, len: 10 };
        let permit = Permit { room: 4096, seq: 2, is_odd_owner: true, ..Permit::default() };
        assert_eq!(window.plan(child, io, &permit, 512).map(|plan| plan.read), Some(512));
        plan(&mut window, 2, 100, 10);
        assert_eq!(plan(&mut window, 2, 100, 10).map(|plan| plan.read), Some(512), "never filled");
    }
}
