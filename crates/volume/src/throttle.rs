//! How fast members are brought up to date, moved and compared while others use the volumes: as
//! fast as leaves their latency within a factor that is stated.
//!
//! ```text
//!   alone ──an operation──► probing ──enough of them──► working ──now and then──► probing …
//!     ▲                     nothing is copied           p99 / p99 while probing > factor? slower : faster
//!     └──────────────────── no operation for a while ──────┘
//! ```
//! The work is done in *turns*: a piece is copied, then its worker rests. How large the piece is
//! and how long the rest is one *pace* of a ladder. What the foreground's operations take is
//! measured in both phases, reads, writes and flushes each for themselves, and the worst of the
//! three decides: one slow turn of the wheel would otherwise hide behind many quick ones. Both are
//! measured all the time, so the factor follows a load that changes.
//!
//! The lowest pace still works, one part in a hundred of the time: redundancy has to come back some
//! day.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, rank};

use crate::FOREGROUND_UNLIMITED;
use crate::io::VolumeIo;
use crate::watch::{Histogram, Phase, Watch};

/// What a turn does: how many bytes of each member, and how many times as long as that took its
/// worker rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    pub chunk_bytes: u64,
    pub rests: u32,
}

impl Pace {
    /// Returns how long to rest after a turn.
    pub fn rest(self, took: Duration) -> Duration {
        (took * self.rests).min(REST_MAX)
    }
}

const fn pace(chunk_kib: u64, rests: u32) -> Pace {
    Pace { chunk_bytes: chunk_kib << 10, rests }
}

/// From the fastest to the slowest. First pieces become small, because an operation waits for one
/// piece at most; then rests become long.
const LADDER: [Pace; 12] = [
    pace(256, 0),
    pace(256, 1),
    pace(128, 1),
    pace(64, 1),
    pace(32, 1),
    pace(32, 3),
    pace(16, 3),
    pace(16, 7),
    pace(8, 15),
    pace(8, 31),
    pace(4, 31),
    pace(4, 100),
];
/// Where a worker begins.
const FIRST: usize = 4;
/// The longest rest: a device that takes seconds for a piece is not helped by minutes.
const REST_MAX: Duration = Duration::from_secs(2);
/// Without any operation for so long, work goes at full speed.
const ALONE: Duration = Duration::from_millis(50);
/// How many operations of a kind tell a p99, and how many that a pace is slow enough.
const ENOUGH: u32 = 200;
const PLENTY: u32 = 1000;
/// How long a probe lasts at least and at most, and how many times as long is worked in between.
const PROBE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
const PROBES_APART: u32 = 9;
/// How long a pace is tried before it is judged.
const TRIAL: Duration = Duration::from_millis(50);
/// How long a worker that waits for the end of a probe sleeps between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// How many judgements a pace stands, after a faster one was too fast, before that is tried again:
/// at first and at most.
const HOLD: (u32, u32) = (8, 128);

const _: () = assert!(
    FIRST < LADDER.len() && ENOUGH <= PLENTY && HOLD.0 <= HOLD.1,
    "the first level is on the ladder, and the bounds of the throttle are in order"
);

const _: () = {
    let mut rung = 1;
    while rung < LADDER.len() {
        let (before, this) = (LADDER[rung - 1], LADDER[rung]);
        assert!(
            this.chunk_bytes <= before.chunk_bytes && this.rests >= before.rests,
            "each rung of the ladder leaves more of the devices to the load than the one before"
        );
        rung += 1;
    }
};

/// Sets the pace of everything that works in the background of a group.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// What latency may grow to, in hundredths of what it is without.
    factor_percent: AtomicU32,
    /// A leaf lock.
    state: Mutex<State, { rank::VOLUME_LEAF }>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    began: Instant,
    level: usize,
    /// When operations were last seen, and how many there had been.
    seen: Option<(Instant, u64)>,
    /// When it was last looked whether the pace is right.
    judged: Instant,
    /// When the last probe ended, and how long it took.
    probed: Option<(Instant, Duration)>,
    /// Judgements until a faster pace is tried, and how many there are after the next failure.
    hold: u32,
    hold_next: u32,
    /// What the last judgement found, in hundredths.
    found_percent: Option<u32>,
}

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Work(Pace),
    /// No work for a moment.
    Look(Duration),
}

impl Throttle {
    pub fn new(factor_percent: u16) -> Self {
        let state = State {
            phase: Phase::Alone,
            began: Instant::now(),
            level: FIRST,
            seen: None,
            probed: None,
            judged: Instant::now(),
            hold: 0,
            hold_next: HOLD.0,
            found_percent: None,
        };
        Self { factor_percent: AtomicU32::new(factor_percent.into()), state: Mutex::new(state) }
    }

    /// States another factor.
    pub fn set(&self, factor_percent: u16) {
        self.factor_percent.store(factor_percent.into(), Relaxed);
    }

    /// Returns what latency grew to, in hundredths, when that was last judged; `None` while the
    /// volumes are not used.
    pub fn found_percent(&self) -> Option<u32> {
        let state = self.state.lock();
        state.found_percent.filter(|_| state.phase != Phase::Alone)
    }

    /// Says what a worker does next. To be asked before each turn.
    pub fn turn(&self, ios: &[Arc<VolumeIo>]) -> Turn {
        let watches: Vec<&Watch> = ios.iter().map(|io| &io.meter.watch).collect();
        let operations = ios.iter().map(|io| io.meter.begun()).sum();
        let busy = ios.iter().any(|io| io.meter.busy() > 0);
        self.state.lock().turn(
            &watches,
            (operations, busy),
            self.factor_percent.load(Relaxed),
            Instant::now(),
        )
    }

    /// Waits until there is something to do: for callers with a thread of their own.
    pub fn wait(&self, ios: &[Arc<VolumeIo>]) -> Pace {
        loop {
            match self.turn(ios) {
                Turn::Work(pace) => return pace,
                Turn::Look(rest) => std::thread::sleep(rest),
            }
        }
    }

    /// Says that there is nothing to do: nothing is measured any more.
    pub fn leave(&self, ios: &[Arc<VolumeIo>]) {
        let mut state = self.state.lock();
        if state.phase != Phase::Alone {
            let watches: Vec<&Watch> = ios.iter().map(|io| &io.meter.watch).collect();
            state.enter(Phase::Alone, &watches, Instant::now());
        }
    }
}

impl State {
    fn enter(&mut self, phase: Phase, watches: &[&Watch], now: Instant) {
        (self.phase, self.began) = (phase, now);
        watches.iter().for_each(|watch| watch.enter(phase, now));
    }

    fn turn(
        &mut self,
        watches: &[&Watch],
        (operations, busy): (u64, bool),
        factor_percent: u32,
        now: Instant,
    ) -> Turn {
        let moved = self.seen.is_none_or(|(_, before)| before != operations);
        if moved || busy {
            self.seen = Some((now, operations));
        }
        let alone = self.seen.is_none_or(|(at, _)| now.saturating_duration_since(at) > ALONE);
        if alone || factor_percent == FOREGROUND_UNLIMITED.into() {
            if self.phase != Phase::Alone {
                self.enter(Phase::Alone, watches, now);
            }
            return Turn::Work(LADDER[0]);
        }
        let lasted = now.saturating_duration_since(self.began);
        match self.phase {
            Phase::Alone => {
                // The load that comes now may be another than the one before.
                for (probed, worked) in pairs(watches) {
                    probed.keep_one_of(0);
                    worked.keep_one_of(0);
                }
                self.hold_next = HOLD.0;
                self.enter(Phase::Probing, watches, now);
                Turn::Look(LOOK)
            }
            Phase::Probing
                if lasted < PROBE.0 || (lasted < PROBE.1 && !enough(watches, |pair| pair.0)) =>
            {
                Turn::Look(LOOK)
            }
            Phase::Probing => {
                self.probed = Some((now, lasted));
                self.enter(Phase::Working, watches, now);
                Turn::Work(LADDER[self.level])
            }
            Phase::Working => self.work(watches, factor_percent, now),
        }
    }

    /// Judges what was measured, and says whether to go on or to look again.
    fn work(&mut self, watches: &[&Watch], factor_percent: u32, now: Instant) -> Turn {
        debug_assert!(self.level < LADDER.len(), "level {} is on the ladder", self.level);
        if now.saturating_duration_since(self.judged) >= TRIAL && enough(watches, |pair| pair.1) {
            self.judge(watches, factor_percent);
            self.judged = now;
        }
        if self
            .probed
            .is_none_or(|(at, took)| now.saturating_duration_since(at) >= took * PROBES_APART)
        {
            // What was probed long ago counts half.
            pairs(watches)
                .filter(|(probed, _)| probed.total() > 8 * ENOUGH)
                .for_each(|(probed, _)| probed.keep_one_of(2));
            self.enter(Phase::Probing, watches, now);
            return Turn::Look(LOOK);
        }
        Turn::Work(LADDER[self.level])
    }

    /// Compares the phases, and sets the pace by the kind that suffers most. One in a hundred may
    /// take longer than the limit; a pace is too fast when more do than chance explains, which
    /// shows soon, and slow enough when that was not so for a while.
    fn judge(&mut self, watches: &[&Watch], factor_percent: u32) {
        let told = || {
            pairs(watches).filter(|(probed, worked)| probed.total().min(worked.total()) >= ENOUGH)
        };
        let above = |percent: u32| {
            let part = move |(probed, worked): (&Histogram, &Histogram)| {
                (worked.above(probed.p99() * u64::from(percent) / 100), worked.total())
            };
            told().map(part).map(|(above, total)| {
                f64::from(above)
                    - f64::from(total) / 100.0
                    - 2.0 * (f64::from(total) / 100.0).sqrt()
            })
        };
        let is_too_fast = |percent: u32| above(percent).any(|excess| excess > 0.0);
        let is_over = told().any(|(_, worked)| worked.total() >= PLENTY);
        let far = is_too_fast(2 * factor_percent);
        if !far && !is_over && !is_too_fast(factor_percent) {
            return;
        }
        self.found_percent =
            told().map(|(probed, worked)| (worked.p99() * 100 / probed.p99().max(1)) as u32).max();
        if far || is_too_fast(factor_percent) {
            self.level = (self.level + if far { 2 } else { 1 }).min(LADDER.len() - 1);
            (self.hold, self.hold_next) = (self.hold_next, (self.hold_next * 2).min(HOLD.1));
        } else if self.hold > 0 {
            self.hold -= 1;
        } else {
            self.level = self.level.saturating_sub(1);
        }
        pairs(watches).for_each(|(_, worked)| worked.keep_one_of(0));
    }
}

/// Says whether some kind was seen often enough.
fn enough<'a>(
    watches: &[&'a Watch],
    of: impl Fn((&'a Histogram, &'a Histogram)) -> &'a Histogram,
) -> bool {
    pairs(watches).any(|pair| of(pair).total() >= ENOUGH)
}

/// Returns what was measured of every kind of operation of every volume: while probing, and while
/// working.
fn pairs<'a>(watches: &[&'a Watch]) -> impl Iterator<Item = (&'a Histogram, &'a Histogram)> {
    watches.iter().flat_map(|watch| watch.probed.iter().zip(&watch.worked))
}

#[cfg(test)]
mod tests {
    use bedplate_block::RequestKind;

    use super::*;

    /// What a device does that moves half a byte in a nanosecond and serves one after the other,
    /// under a load whose operations take 100 µs.
    const OPERATION: Duration = Duration::from_micros(100);

    struct Simulated {
        state: State,
        watch: Watch,
        now: Instant,
        operations: u64,
        copied_bytes: u64,
        felt: Histogram,
    }

    impl Simulated {
        fn new() -> Self {
            let state = Throttle::new(0).state.into_inner();
            let (watch, felt) = (Watch::default(), Histogram::default());
            Self { now: Instant::now(), state, watch, operations: 0, copied_bytes: 0, felt }
        }

        /// The foreground works for so long.
        fn operate(&mut self, time: Duration, first: Duration) {
            let (mut left, mut took) = (time, OPERATION + first);
            while left > Duration::ZERO {
                let start = self.now;
                self.now += took;
                left = left.saturating_sub(took);
                self.operations += 1;
                self.watch.note(RequestKind::Write, start, took);
                self.felt.note(took);
                took = OPERATION;
            }
        }

        /// Copies for so long beside a load, at the pace that is set or without any.
        fn copy(&mut self, seconds: u64, factor_percent: u32, fixed: Option<Pace>) {
            let end = self.now + Duration::from_secs(seconds);
            while self.now < end {
                match self.state.turn(
                    &[&self.watch],
                    (self.operations, true),
                    factor_percent,
                    self.now,
                ) {
                    Turn::Look(rest) => self.operate(rest, Duration::ZERO),
                    Turn::Work(pace) => {
                        let pace = fixed.unwrap_or(pace);
                        let took = Duration::from_nanos(2 * pace.chunk_bytes);
                        self.copied_bytes += pace.chunk_bytes;
                        self.operate(took + pace.rest(took), took);
                    }
                }
            }
        }

        fn factor(&self) -> f64 {
            self.felt.p99() as f64 / OPERATION.as_nanos() as f64
        }
    }

    /// S-74
    #[test]
    fn s_74_latency_stays_within_the_factor_and_a_larger_one_copies_faster() {
        let mut rates = Vec::new();
        for percent in [120, 150, 300, 900] {
            let mut simulated = Simulated::new();
            simulated.copy(10, percent, None);
            simulated.felt.keep_one_of(0);
            let before = simulated.copied_bytes;
            simulated.copy(20, percent, None);
            assert!(
                simulated.factor() * 100.0 <= f64::from(percent) * 1.07,
                "{percent}: {}",
                simulated.factor()
            );
            rates.push((simulated.copied_bytes - before) / 20);
        }
        assert!(rates.is_sorted() && rates[3] > 4 * rates[0], "{rates:?}");
        println!("copied with factors of 1.2, 1.5, 3 and 9: {rates:?} bytes per second");
        let mut unlimited = Simulated::new();
        unlimited.copy(1, FOREGROUND_UNLIMITED.into(), None);
        assert_eq!(
            unlimited.state.turn(
                &[&unlimited.watch],
                (0, true),
                FOREGROUND_UNLIMITED.into(),
                unlimited.now
            ),
            Turn::Work(LADDER[0])
        );
        // Work without a throttle breaks every one of these limits.
        let mut fixed = Simulated::new();
        fixed.copy(2, 150, Some(LADDER[1]));
        assert!(fixed.factor() > 3.0, "{}", fixed.factor());
    }

    /// S-74
    #[test]
    fn s_74_who_is_alone_copies_at_full_speed_and_stops_for_a_look_when_somebody_comes() {
        let mut simulated = Simulated::new();
        let turn = |simulated: &mut Simulated, operations, busy| {
            let now = simulated.now;
            simulated.state.turn(&[&simulated.watch], (operations, busy), 150, now)
        };
        assert_eq!(turn(&mut simulated, 7, true), Turn::Look(LOOK), "there is a load");
        simulated.now += ALONE + Duration::from_millis(1);
        assert_eq!(
            turn(&mut simulated, 7, false),
            Turn::Work(LADDER[0]),
            "nothing has happened for a while"
        );
        assert_eq!(simulated.state.phase, Phase::Alone);
        simulated.now += Duration::from_secs(1);
        assert_eq!(turn(&mut simulated, 8, false), Turn::Look(LOOK));
        // A light load is not waited for until it has done enough.
        simulated.now += PROBE.1;
        assert_eq!(turn(&mut simulated, 9, true), Turn::Work(LADDER[FIRST]));
    }

    #[test]
    fn a_percentile_lies_within_a_sixteenth() {
        let histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.note(Duration::from_micros(us));
        }
        let p99 = histogram.p99();
        assert!((990_000..=990_000 * 17 / 16).contains(&p99), "{p99}");
        histogram.keep_one_of(2);
        assert!(histogram.total() < 500 && histogram.p99() <= 990_000 * 17 / 16);
        histogram.keep_one_of(0);
        assert_eq!((histogram.total(), histogram.p99()), (0, 64 * 17));
    }
}
