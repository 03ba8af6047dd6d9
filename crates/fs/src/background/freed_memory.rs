//! Memory that the allocator keeps of what was freed, given back to the system.
//!
//! Names and inodes by the hundred thousand are small pieces: where they are freed, the allocator keeps
//! their pages for the next ones. Once the process grows no more, the pages that nothing needs go back.
//! That costs milliseconds, and a fault for each page that is used again: so it is done once after the
//! process grew, and at most once a sync interval.

/// By how much the process has grown since memory went back the last time, or since it was smallest.
const GROWN_BYTES: u64 = 32 << 20;
/// A process that grew by no more between two looks grows no more.
const STEADY_BYTES: u64 = 1 << 20;

/// What the sync daemon knows of the memory of its process.
#[derive(Debug)]
pub(super) struct FreedMemory {
    /// How small the process was since.
    least: u64,
    /// Its size at the last look.
    last: u64,
}

impl FreedMemory {
    pub(super) fn new() -> Self {
        let now = bedplate_block::resident_bytes();
        Self { least: now, last: now }
    }

    /// Looks, once a sync interval, and gives back what is worth it.
    pub(super) fn look(&mut self) {
        self.look_at(bedplate_block::resident_bytes, bedplate_block::give_free_memory_back);
    }

    fn look_at(&mut self, resident: impl Fn() -> u64, give_back: impl FnOnce()) {
        let now = resident();
        let is_steady = now <= self.last.saturating_add(STEADY_BYTES);
        self.last = now;
        if is_steady && now >= self.least.saturating_add(GROWN_BYTES) {
            give_back();
            self.last = resident();
            self.least = self.last;
        } else {
            self.least = self.least.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn s_140_memory_goes_back_once_after_a_process_grew() {
        let (resident, given) = (Cell::new(40 * MIB), Cell::new(0));
        let mut memory = FreedMemory { least: 40 * MIB, last: 40 * MIB };
        let mut look = |now: u64, after: u64| {
            resident.set(now * MIB);
            let give_back = || {
                given.set(given.get() + 1);
                resident.set(after * MIB);
            };
            memory.look_at(|| resident.get(), give_back);
            given.get()
        };
        assert_eq!(look(60, 0), 0);
        assert_eq!(look(60, 0), 0, "it grew by little");
        assert_eq!(look(150, 0), 0, "it grows");
        assert_eq!(look(200, 0), 0, "it grows");
        assert_eq!(look(200, 120), 1, "it grows no more");
        assert_eq!(look(120, 0), 1, "what stays is needed");
        assert_eq!([look(151, 0), look(151, 0)], [1, 1]);
        assert_eq!(look(90, 0), 1, "smaller by itself");
        assert_eq!([look(122, 90), look(122, 90)], [1, 2], "and grown since");
    }
}
