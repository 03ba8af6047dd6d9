//! What is counted, per file and for the whole file system. What every read and write counts is in
//! `file_counters.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Whether anything is counted or timed.
#[cfg(not(feature = "statistics-switch"))]
pub(crate) const fn counting() -> bool {
    true
}

#[cfg(feature = "statistics-switch")]
pub(crate) use switch::counting;
#[cfg(feature = "statistics-switch")]
pub use switch::statistics_switch;

#[cfg(feature = "statistics-switch")]
mod switch {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    static COUNTING: AtomicBool = AtomicBool::new(true);

    #[inline]
    pub(crate) fn counting() -> bool {
        COUNTING.load(Relaxed)
    }

    /// Switches counting and timing on or off for all file systems of the process, to measure what
    /// they cost.
    pub fn statistics_switch(counting: bool) {
        COUNTING.store(counting, Relaxed);
    }
}

/// Why an I/O was not served the way its mode asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[repr(usize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The offset is not a multiple of the I/O alignment.
    UnalignedOffset,
    /// The length is not a multiple of the I/O alignment.
    UnalignedLength,
    /// The buffer's address is not aligned.
    UnalignedBuffer,
    /// A write filled a hole: blocks were allocated.
    Hole,
    /// A write converted unwritten blocks.
    Unwritten,
    /// A write extended the file.
    Extend,
    /// A write or read ended within the file's last block.
    Tail,
    /// The I/O spanned several extents.
    Split,
    /// The file was open in conflicting modes and was served `cached`.
    MixedOpen,
    /// A write to blocks that a checkpoint needs went to new ones.
    Shared,
    /// Blocks came from other members than those that the file is placed on: these are full.
    Elsewhere,
}

impl Reason {
    /// All reasons, in the order of their indexes.
    pub const ALL: [Self; 11] = [
        Self::UnalignedOffset,
        Self::UnalignedLength,
        Self::UnalignedBuffer,
        Self::Hole,
        Self::Unwritten,
        Self::Extend,
        Self::Tail,
        Self::Split,
        Self::MixedOpen,
        Self::Shared,
        Self::Elsewhere,
    ];

    /// Returns the name as statistics print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnalignedOffset => "unaligned_offset",
            Self::UnalignedLength => "unaligned_length",
            Self::UnalignedBuffer => "unaligned_buffer",
            Self::Hole => "hole",
            Self::Unwritten => "unwritten",
            Self::Extend => "extend",
            Self::Tail => "tail",
            Self::Split => "split",
            Self::MixedOpen => "mixed_open",
            Self::Shared => "shared",
            Self::Elsewhere => "elsewhere",
        }
    }
}

const _: () = {
    let mut at = 0;
    while at < Reason::ALL.len() {
        assert!(Reason::ALL[at] as usize == at, "reasons are counted in the order of their list");
        at += 1;
    }
};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Live counters; updated without a lock.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)+
            pub(crate) reasons: [AtomicU64; Reason::ALL.len()],
        }

        /// A snapshot of the counters; single values are exact, the whole is not atomic.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CounterSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// How often each [`Reason`] kept an I/O from being served as its mode asks, in the
            /// order of [`Reason::ALL`].
            pub reasons: [u64; Reason::ALL.len()],
        }

        impl CounterSnapshot {
            /// Returns what came since an earlier snapshot of the same counters; after a reset, all
            /// there is.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                let since = |now: u64, then: u64| if now < then { now } else { now - then };
                Self {
                    $($name: since(self.$name, earlier.$name),)+
                    reasons: std::array::from_fn(|i| since(self.reasons[i], earlier.reasons[i])),
                }
            }

            /// Adds the counts of another file.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
                self.reasons.iter_mut().zip(&other.reasons).for_each(|(sum, value)| *sum += value);
            }
        }

        impl Counters {
            /// Adds the values of a snapshot.
            pub(crate) fn absorb(&self, other: &CounterSnapshot) {
                $(self.$name.fetch_add(other.$name, Relaxed);)+
                for (sum, value) in self.reasons.iter().zip(&other.reasons) {
                    sum.fetch_add(*value, Relaxed);
                }
            }

            /// Begins anew at 0.
            pub(crate) fn reset(&self) {
                [$(&self.$name,)+].into_iter().chain(&self.reasons).for_each(|value| value.store(0, Relaxed));
            }

            pub(crate) fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot {
                    $($name: self.$name.load(Relaxed),)+
                    reasons: std::array::from_fn(|i| self.reasons[i].load(Relaxed)),
                }
            }
        }
    };
}

counters! {
    /// Reads served.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes served.
    writes,
    /// Bytes written.
    written_bytes,
    /// I/Os that went direct, without a bounce buffer or the cache.
    direct,
    /// I/Os that went through a bounce buffer because something was not aligned.
    misaligned,
    /// Reads answered by the library cache.
    cache_hits,
    /// Reads that had to go to the device to fill the library cache.
    cache_misses,
    /// Bytes that left a cache behind a sequential read or write, because the file asks for it: the
    /// library's, and that of its callers (the kernel's page cache on a mount).
    released_bytes,
    /// Writes that waited in memory, to be written in larger pieces.
    delayed,
    /// Reads answered from what was read ahead past the caches.
    window_hits,
    /// Reads and writes that passed the library cache because they are large (`direct-above`).
    large,
    /// Times the file went over to `cached` because of a conflicting open, and back.
    mode_transitions,
    /// Syncs asked for.
    syncs,
    /// Nanoseconds that syncs took; not counted while nothing is timed.
    sync_wait_ns,
    /// Of them, nanoseconds that went into writing the file's dirty pages first; the rest was the
    /// log and the flush.
    sync_pages_ns,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        if counting() {
            counter.fetch_add(n, Relaxed);
        }
    }

    pub(crate) fn reason(&self, reason: Reason) {
        Self::add(&self.reasons[reason as usize], 1);
    }
}

impl CounterSnapshot {
    /// Returns how often `reason` was counted.
    #[must_use]
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }
}
