//! What operations of a volume take while work in the background goes on, and while it rests.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::RequestKind;

/// What operations took: sixteen buckets for every doubling from 1 µs on.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU32; Self::BUCKETS],
    total: AtomicU32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU32::new(0) }; Self::BUCKETS], total: AtomicU32::new(0) }
    }
}

impl Histogram {
    const BUCKETS: usize = 16 * 28;

    pub fn note(&self, took: Duration) {
        let sixteenths = (u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / 64).max(16);
        let power = sixteenths.ilog2() as usize - 4;
        let bucket = power * 16 + (sixteenths >> power) as usize - 16;
        self.counts[bucket.min(Self::BUCKETS - 1)].fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
    }

    pub fn total(&self) -> u32 {
        self.total.load(Relaxed)
    }

    /// Returns the time in nanoseconds within which 99 of 100 ended.
    pub fn p99(&self) -> u64 {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Relaxed).into()).collect();
        let (total, mut before) = (counts.iter().sum::<u64>(), 0);
        let reached = counts.iter().position(|count| {
            before += count;
            before * 100 >= total * 99
        });
        reached.map_or(0, |bucket| (17 + bucket as u64 % 16) << (bucket / 16) << 6)
    }

    /// Returns how many took longer than so many nanoseconds, to within a sixteenth.
    pub fn above(&self, nanoseconds: u64) -> u32 {
        let end = |bucket: usize| (17 + bucket as u64 % 16) << (bucket / 16) << 6;
        let longer = (0..Self::BUCKETS).rev().take_while(|bucket| end(*bucket) > nanoseconds);
        longer.map(|bucket| self.counts[bucket].load(Relaxed)).sum()
    }

    /// Keeps one of so many: none for 0. What is counted meanwhile may be lost, which harms no
    /// percentile.
    pub fn keep_one_of(&self, of: u32) {
        let mut total = 0;
        for count in &self.counts {
            let kept = count.load(Relaxed).checked_div(of).unwrap_or(0);
            count.store(kept, Relaxed);
            total += kept;
        }
        self.total.store(total, Relaxed);
    }
}

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is measured.
    Alone = 0,
    /// Nothing is copied: this is how it is without.
    Probing = 1,
    /// This is how it is meanwhile.
    Working = 2,
}

/// What operations of a volume took in each phase. Counted when an operation ends; a load of one
/// word while nothing is measured.
#[derive(Debug)]
pub(crate) struct Watch {
    phase: AtomicU8,
    /// When it began, in nanoseconds after `born`.
    began: AtomicU64,
    born: Instant,
    /// By kind.
    pub probed: [Histogram; 3],
    pub worked: [Histogram; 3],
}

impl Default for Watch {
    fn default() -> Self {
        let (probed, worked) = Default::default();
        Self {
            phase: AtomicU8::new(Phase::Alone as u8),
            began: AtomicU64::new(0),
            born: Instant::now(),
            probed,
            worked,
        }
    }
}

impl Watch {
    fn nanoseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    #[inline]
    pub fn note(&self, kind: RequestKind, start: Instant, took: Duration) {
        if self.phase.load(Relaxed) != Phase::Alone as u8 {
            self.measure(kind, start, took);
        }
    }

    #[cold]
    fn measure(&self, kind: RequestKind, start: Instant, took: Duration) {
        let kind = match kind {
            RequestKind::Read => 0,
            RequestKind::Write => 1,
            RequestKind::Flush => 2,
        };
        if self.phase.load(Relaxed) == Phase::Working as u8 {
            self.worked[kind].note(took);
        } else if self.nanoseconds(start) >= self.began.load(Relaxed) {
            // One that began before met the work.
            self.probed[kind].note(took);
        }
    }

    pub fn enter(&self, phase: Phase, now: Instant) {
        self.began.store(self.nanoseconds(now), Relaxed);
        self.phase.store(phase as u8, Relaxed);
    }
}
