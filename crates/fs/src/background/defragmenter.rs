//! The defragmenter: puts scattered files together in the background, slowly and while programs are
//! not busy.
//!
//! ```text
//!   rate 0 ─► off                      survey: all extents, some at a time ─► the most scattered files ─► steps of the worst ─► its report
//!   programs busy ─► waiting ◄──────────────┴──────────────────────────────────────────┘ │
//!   nothing scattered ─► idle, until the next survey                                      └ what a step moves is paid for by a pause: that is the rate
//! ```
//!
//! A step is that of [`FileSystem::defragment`](crate::FileSystem::defragment), with all it
//! promises (S-72, S-73): what checkpoints need stays.
//!
//! - I-MOV-1: a survey holds the metadata for at most [`ROWS_AT_ONCE`] rows.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_block::Waker;

use super::Daemon;
use crate::engine::{DefragmenterState, Engine, MovedFile};
use crate::{ErrorKind, InodeNo, Result};
use bedplate_store::{ExtentRow, PlantedBug, Table, planted, split_extent_key};

/// A file is scattered when it has at least so many runs, of less than this on average.
const RUNS_MIN: u64 = 16;
const RUN_BYTES_MAX: u64 = 256 << 10;
/// How many files one survey picks, the worst first.
const PICKED_MAX: usize = 64;
const _: () = assert!(RUNS_MIN > 1 && PICKED_MAX > 0, "a file in one run is not scattered");
/// Extents looked at while the metadata are held.
const ROWS_AT_ONCE: usize = 4096;
/// Sleep between two surveys, and while there is nothing to do.
const SURVEYED: Duration = Duration::from_secs(60);
const OFF: Duration = Duration::from_secs(24 * 3600);
/// How often it is looked whether programs are busy, and the longest pause.
const MOMENT: Duration = Duration::from_millis(500);
/// How many files are remembered that were put together.
const DONE_MAX: usize = 16;

/// Starts the defragmenter of a writable mount.
pub(crate) fn start(fs: &Arc<Engine>) -> std::io::Result<Daemon> {
    let (waker, weak) = (fs.defrag_status().waker().clone(), Arc::downgrade(fs));
    Daemon::spawn("bedplate-defrag", fs.defrag_status().waker().clone(), move || run(&waker, &weak))
}

fn run(waker: &Waker, fs: &Weak<Engine>) {
    let mut work = Work::default();
    loop {
        let turn = |fs: Arc<Engine>| {
            let sleep = work.turn(&fs);
            fs.defrag_status().update(|report| {
                report.now = work.current.as_ref().map(|current| current.file.clone());
            });
            sleep
        };
        let Some(sleep) = fs.upgrade().map(turn) else { return };
        if !waker.wait(sleep) {
            return;
        }
    }
}

/// A file that is being put together.
struct Current {
    file: MovedFile,
    next: u64,
}

/// What the defragmenter has to do.
#[derive(Default)]
struct Work {
    /// The worst first.
    picked: VecDeque<InodeNo>,
    current: Option<Current>,
    surveyed: Option<Instant>,
    /// What no step improved, and how many runs it had: left alone until it has more.
    hopeless: BTreeMap<InodeNo, u64>,
    /// Operations of programs that were counted, and when.
    counted: Option<(u64, Instant)>,
}

impl Work {
    /// One turn; returns how long to sleep.
    fn turn(&mut self, fs: &Engine) -> Duration {
        let (rate, load) = fs.defrag_status().bounds();
        if rate == 0 || fs.begin_change().is_err() {
            *self = Self { hopeless: std::mem::take(&mut self.hopeless), ..Self::default() };
            fs.defrag_status().set(DefragmenterState::Off);
            return OFF;
        }
        if self.is_busy(fs, load) && !planted(PlantedBug::MoverNeverWaits) {
            fs.defrag_status().set(DefragmenterState::Waiting);
            return MOMENT;
        }
        match self.work(fs, rate) {
            Ok(sleep) => sleep,
            Err(error) => {
                tracing::warn!("a scattered file was not put together: {error}");
                self.current = None;
                MOMENT
            }
        }
    }

    /// Returns whether programs do more than `load` operations a second.
    fn is_busy(&mut self, fs: &Engine, load: u64) -> bool {
        let sum = fs.counters();
        let (now, done) = (Instant::now(), sum.reads + sum.writes + sum.syncs);
        // Nothing is known yet, or it was counted anew: it looks for a moment before it moves.
        let Some((before, since)) = self.counted.filter(|(before, _)| *before <= done) else {
            self.counted = Some((done, now));
            return true;
        };
        let passed = now.duration_since(since);
        if passed >= MOMENT {
            self.counted = Some((done, now));
        }
        (done - before) as f64 > load as f64 * passed.max(MOMENT).as_secs_f64()
    }

    fn work(&mut self, fs: &Engine, rate: u64) -> Result<Duration> {
        // Files of a clone that is not finished are among those with extents: their rows come
        // without their inodes in memory.
        let Some(_no_clone) = fs.try_lock_clones() else { return Ok(MOMENT) };
        if self.current.is_none() && !self.pick(fs)? {
            fs.defrag_status().set(DefragmenterState::Idle);
            return Ok(SURVEYED);
        }
        fs.defrag_status().set(DefragmenterState::Working);
        let Some(current) = self.current.as_mut() else { return Ok(Duration::ZERO) };
        let began = Instant::now();
        let inode = match fs.need_live(current.file.ino).and_then(|()| fs.inode(current.file.ino)) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                self.current = None;
                return Ok(Duration::ZERO);
            }
            inode => inode?,
        };
        let step = fs.defragment(&inode, current.next, false)?;
        current.file.moved_bytes += step.moved_bytes;
        current.file.stuck_bytes += step.stuck_bytes;
        fs.defrag_status().update(|report| report.moved_bytes += step.moved_bytes);
        match step.next {
            Some(next) => current.next = next,
            None => {
                current.file.after = fs.fragmentation(&inode)?;
                let file = self.current.take().expect("it was just looked at").file;
                self.note(fs, file);
            }
        }
        let due = Duration::from_secs_f64(step.moved_bytes as f64 / rate as f64);
        Ok(due.saturating_sub(began.elapsed()))
    }

    fn note(&mut self, fs: &Engine, file: MovedFile) {
        if file.after.runs >= file.before.runs {
            self.hopeless.insert(file.ino, file.after.runs);
        }
        if file.moved_bytes > 0 {
            fs.defrag_status().update(|report| {
                report.files += 1;
                report.last.insert(0, file);
                report.last.truncate(DONE_MAX);
            });
        }
    }

    /// Chooses the next file; returns whether there is one.
    fn pick(&mut self, fs: &Engine) -> Result<bool> {
        if self.picked.is_empty() {
            if self.surveyed.is_some_and(|then| then.elapsed() < SURVEYED) {
                return Ok(false);
            }
            self.picked = self.survey(fs)?;
            self.surveyed = Some(Instant::now());
        }
        while let Some(ino) = self.picked.pop_front() {
            fs.defrag_status().update(|report| report.waiting_files = self.picked.len() as u64);
            let Ok(inode) = fs.need_live(ino).and_then(|()| fs.inode(ino)) else { continue };
            let before = fs.fragmentation(&inode)?;
            self.current = Some(Current {
                file: MovedFile { ino, before, after: before, moved_bytes: 0, stuck_bytes: 0 },
                next: 0,
            });
            return Ok(true);
        }
        Ok(false)
    }

    /// Looks at all extents; returns the most scattered files.
    fn survey(&self, fs: &Engine) -> Result<VecDeque<InodeNo>> {
        let mut found = Survey::new(fs.grid().block);
        let mut from: Option<Vec<u8>> = None;
        loop {
            let mut rows = 0;
            let begin = from.take();
            let bound = begin.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            fs.scan_rows(Table::Extent, bound, Bound::Unbounded, |key, value| {
                let (ino, at) = split_extent_key(key)?;
                found.add(ino, at.0, &ExtentRow::decode(value)?);
                rows += 1;
                if rows < ROWS_AT_ONCE {
                    return Ok(ControlFlow::Continue(()));
                }
                from = Some(key.to_vec());
                Ok(ControlFlow::Break(()))
            })?;
            assert!(rows <= ROWS_AT_ONCE, "I-MOV-1");
            if from.is_none() {
                break;
            }
            std::thread::yield_now();
        }
        let mut worst = found.end();
        worst.retain(|(runs, ino)| self.hopeless.get(ino).is_none_or(|before| runs > before));
        fs.defrag_status().update(|report| {
            report.surveys += 1;
            report.waiting_files = worst.len() as u64;
        });
        Ok(worst.into_iter().map(|(_, ino)| ino).collect())
    }
}

/// Runs of files, counted as their extents come in order.
struct Survey {
    block: u64,
    /// The file that is being counted: its runs, blocks, and where the last of them ends, in the
    /// file and on the volume.
    file: Option<(InodeNo, u64, u64, u64, u64)>,
    /// Runs and inode of the most scattered, the worst first.
    worst: Vec<(u64, InodeNo)>,
}

impl Survey {
    fn new(block: u64) -> Self {
        Self { block, file: None, worst: Vec::new() }
    }

    fn add(&mut self, ino: InodeNo, at: u64, extent: &ExtentRow) {
        if self.file.is_none_or(|(counted, ..)| counted != ino) {
            self.close();
            self.file = Some((ino, 0, 0, u64::MAX, u64::MAX));
        }
        let Some((_, runs, blocks, file_end, end)) = self.file.as_mut() else { return };
        // A hole in between is no seek: what lies behind it on the volume goes on where it was.
        let joins = *end == extent.start.0
            || !planted(PlantedBug::HolesCountAsSeeks)
                && *end != u64::MAX
                && extent.start.0.checked_sub(*end) == at.checked_sub(*file_end);
        *runs += u64::from(!joins);
        *blocks += u64::from(extent.len);
        (*file_end, *end) = (at + u64::from(extent.len), extent.start.0 + u64::from(extent.len));
    }

    fn close(&mut self) {
        let Some((ino, runs, blocks, ..)) = self.file.take() else { return };
        if runs < RUNS_MIN || blocks * self.block / runs >= RUN_BYTES_MAX {
            return;
        }
        let at = self.worst.partition_point(|(other, _)| *other >= runs);
        self.worst.insert(at, (runs, ino));
        self.worst.truncate(PICKED_MAX);
    }

    fn end(mut self) -> Vec<(u64, InodeNo)> {
        self.close();
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch};

    #[test]
    fn the_most_scattered_files_come_first() {
        let mut survey = Survey::new(4096);
        let row = |start, len| ExtentRow {
            start: BlockNo(start),
            len,
            state: bedplate_store::ExtentState::Written,
            birth: Epoch(1),
        };
        // 20 runs; 40 extents that are one run; 30 runs of a megabyte; 17 runs of 5 blocks; 40
        // extents that lie as their file does, with a hole behind each.
        (0..20).for_each(|n| survey.add(InodeNo(5), n, &row(1000 - 2 * n, 1)));
        (0..40).for_each(|n| survey.add(InodeNo(6), n, &row(2000 + n, 1)));
        (0..30).for_each(|n| survey.add(InodeNo(7), n * 256, &row(100_000 - 1000 * n, 256)));
        (0..17).for_each(|n| survey.add(InodeNo(8), n * 5, &row(9000 - 10 * n, 5)));
        (0..40).for_each(|n| survey.add(InodeNo(9), 2 * n, &row(5000 + 2 * n, 1)));
        assert_eq!(survey.end(), [(20, InodeNo(5)), (17, InodeNo(8))]);
    }
}
