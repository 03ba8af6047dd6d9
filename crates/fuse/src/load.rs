//! How busy the threads are that serve: counted as each takes a request up and is done with it.
//!
//! ```text
//!   state, one word:  threads │ busy            begin(): busy + 1      end(): busy - 1      seat: threads + 1, - 1
//!                                               each learns what was before: one caller sees the last free thread go,
//!                                               and one sees a thread become free again
//!   all_busy, one word:  µs in sum │ spans that have begun and not ended
//! ```
//!
//! A request costs two atomic additions on a line of memory that only these threads write. The clock
//! is read where all threads become busy and where one becomes free again, and nowhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;

/// A thread in [`Load::state`]; busy threads are below.
const THREAD: u64 = 1 << 32;
/// A microsecond in [`Load::all_busy`]. Spans that have begun and not ended are below: more than
/// there may be threads, because each thread may have counted a begin or an end and not noted it.
const MICROSECOND: i64 = 1 << 12;

/// How busy a set of threads is, of which any may take the next request.
#[derive(Debug)]
#[repr(align(128))]
pub struct Load {
    state: AtomicU64,
    all_busy: AtomicI64,
    /// The most that were busy at once since the last [`take_busy_max`](Self::take_busy_max).
    busy_max: AtomicU32,
    /// More threads than these end.
    threads_max: AtomicU32,
    born: Instant,
    /// The threads, and what those did that have ended; a leaf. What changes the number of threads
    /// holds it.
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    taken: Vec<Arc<Counted>>,
    /// Of threads that have ended.
    requests: u64,
    processor: ProcessorTime,
    /// What was told last: two looks do not see the time run backwards.
    all_busy_us: u64,
}

/// What one thread counts alone.
#[derive(Debug)]
#[repr(align(64))]
struct Counted {
    /// By which the system knows it.
    tid: i32,
    requests: AtomicU64,
}

/// What threads had of processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// How long they ran, in nanoseconds.
    pub ran_ns: u64,
    /// How long they could have run and waited for a processor, in nanoseconds.
    pub waited_ns: u64,
}

impl ProcessorTime {
    /// Asks the system about a thread of this process; `None` where it does not tell, or the thread
    /// has ended.
    fn of(tid: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let (ran_ns, waited_ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self { ran_ns, waited_ns })
    }

    fn add(&mut self, other: Self) {
        self.ran_ns += other.ran_ns;
        self.waited_ns += other.waited_ns;
    }
}

/// How busy threads are at one moment, and what they did since they were started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Threads that there are.
    pub threads: u32,
    /// Threads that serve a request.
    pub busy: u32,
    /// Requests taken up and done with, by threads that have ended too.
    pub requests: u64,
    /// How long all threads were busy, in nanoseconds.
    pub all_busy_ns: u64,
    /// What they had of processors; `None` where the system does not tell.
    pub processor: Option<ProcessorTime>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            state: AtomicU64::new(0),
            all_busy: AtomicI64::new(0),
            busy_max: AtomicU32::new(0),
            threads_max: AtomicU32::new(u32::MAX),
            born: Instant::now(),
            seats: Mutex::default(),
        }
    }
}

impl Load {
    /// Returns how busy the threads are.
    #[must_use]
    pub fn look(&self) -> LoadReport {
        let mut seats = self.seats.lock();
        let state = self.state.load(Relaxed);
        seats.all_busy_us = seats.all_busy_us.max(self.all_busy_us());
        let mut report = LoadReport {
            threads: threads(state),
            busy: busy(state),
            requests: seats.requests,
            all_busy_ns: seats.all_busy_us * 1000,
            processor: Some(seats.processor),
        };
        for seat in &seats.taken {
            report.requests += seat.requests.load(Relaxed);
            report.processor = report.processor.and_then(|mut sum| {
                sum.add(ProcessorTime::of(seat.tid)?);
                Some(sum)
            });
        }
        report
    }

    /// Returns how many threads there are.
    #[must_use]
    pub fn threads(&self) -> u32 {
        threads(self.state.load(Relaxed))
    }

    /// Returns whether a thread waits for a request.
    #[must_use]
    pub fn has_free(&self) -> bool {
        let state = self.state.load(Relaxed);
        busy(state) < threads(state)
    }

    /// Returns the most threads that were busy at once since the last [`take_busy_max`](Self::take_busy_max).
    #[must_use]
    pub fn busy_max(&self) -> u32 {
        self.busy_max.load(Relaxed)
    }

    /// As [`busy_max`](Self::busy_max), which begins again with those that are busy now.
    pub fn take_busy_max(&self) -> u32 {
        self.busy_max.swap(busy(self.state.load(Relaxed)), Relaxed)
    }

    /// Returns how many threads there may be.
    pub(crate) fn threads_max(&self) -> u32 {
        self.threads_max.load(Relaxed)
    }

    /// Has threads beyond so many end, each after its next request.
    pub(crate) fn set_threads_max(&self, threads_max: u32) {
        let _seats = self.seats.lock();
        self.threads_max.store(threads_max, Relaxed);
    }

    fn begin(&self) {
        let before = self.state.fetch_add(1, Relaxed);
        self.changed(before, before + 1);
        let now = busy(before) + 1;
        if now > self.busy_max.load(Relaxed) {
            self.busy_max.fetch_max(now, Relaxed);
        }
    }

    fn end(&self) {
        let before = self.state.fetch_sub(1, Relaxed);
        assert!(busy(before) > 0, "what ends has begun");
        self.changed(before, before - 1);
    }

    /// Notes when all threads became busy, or one became free.
    fn changed(&self, before: u64, after: u64) {
        // Notes of several threads come in any order; their sum is the same.
        match (are_all_busy(before), are_all_busy(after)) {
            (false, true) => self.all_busy.fetch_add(1 - self.now_us() * MICROSECOND, Relaxed),
            (true, false) => self.all_busy.fetch_add(self.now_us() * MICROSECOND - 1, Relaxed),
            _ => return,
        };
    }

    fn all_busy_us(&self) -> u64 {
        let noted = self.all_busy.load(Relaxed);
        let begun = (noted + MICROSECOND / 2).rem_euclid(MICROSECOND) - MICROSECOND / 2;
        let sum = (noted - begun) / MICROSECOND + begun * self.now_us();
        u64::try_from(sum).unwrap_or(0)
    }

    fn now_us(&self) -> i64 {
        i64::try_from(self.born.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

fn threads(state: u64) -> u32 {
    (state >> 32) as u32
}

fn busy(state: u64) -> u32 {
    state as u32
}

fn are_all_busy(state: u64) -> bool {
    threads(state) > 0 && busy(state) >= threads(state)
}

/// The place of one thread, which counts from when it is made until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    load: Arc<Load>,
    /// There once the thread runs.
    counted: Option<Arc<Counted>>,
    has_left: bool,
}

impl Seat {
    /// Makes a place for a thread that is about to be started.
    pub(crate) fn new(load: &Arc<Load>) -> Self {
        let seats = load.seats.lock();
        let before = load.state.fetch_add(THREAD, Relaxed);
        load.changed(before, before + THREAD);
        drop(seats);
        Self { load: Arc::clone(load), counted: None, has_left: false }
    }

    /// Notes that the calling thread is the one.
    pub(crate) fn take(&mut self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let counted = Arc::new(Counted { tid, requests: AtomicU64::new(0) });
        self.load.seats.lock().taken.push(Arc::clone(&counted));
        self.counted = Some(counted);
    }

    /// Serves a request, and returns whether the thread is to go on.
    pub(crate) fn serve(&mut self, request: impl FnOnce()) -> bool {
        let counted = self.counted.as_ref().expect("the thread has taken its place");
        self.load.begin();
        let busy = Busy(&self.load);
        request();
        drop(busy);
        // This thread alone writes it.
        counted.requests.store(counted.requests.load(Relaxed) + 1, Relaxed);
        self.load.threads() <= self.load.threads_max() || !self.leaves()
    }

    /// Leaves where there are too many threads.
    fn leaves(&mut self) -> bool {
        let mut seats = self.load.seats.lock();
        if self.load.threads() > self.load.threads_max() {
            leave(&self.load, self.counted.as_ref(), &mut seats);
            self.has_left = true;
        }
        self.has_left
    }
}

/// Takes a thread out of the count, and keeps what it did.
fn leave(load: &Load, counted: Option<&Arc<Counted>>, seats: &mut Seats) {
    let before = load.state.fetch_sub(THREAD, Relaxed);
    assert!(threads(before) > 0, "a thread that leaves was counted");
    load.changed(before, before - THREAD);
    if let Some(counted) = counted {
        seats.taken.retain(|seat| !Arc::ptr_eq(seat, counted));
        seats.requests += counted.requests.load(Relaxed);
        seats.processor.add(ProcessorTime::of(counted.tid).unwrap_or_default());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.has_left {
            leave(&self.load, self.counted.as_ref(), &mut self.load.seats.lock());
        }
    }
}

/// Ends what began also where serving it panics.
struct Busy<'a>(&'a Load);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{JoinHandle, sleep, spawn};
    use std::time::Duration;

    use super::*;

    /// A thread that is busy from one word to the next.
    struct Held {
        words: Sender<()>,
        thread: JoinHandle<bool>,
    }

    impl Held {
        /// Returns when the thread is in a request.
        fn new(mut seat: Seat) -> Self {
            let ((words, heard), (told, is_in)) = (channel::<()>(), channel());
            let thread = spawn(move || {
                seat.take();
                seat.serve(|| {
                    told.send(()).unwrap();
                    heard.recv().unwrap();
                })
            });
            is_in.recv().unwrap();
            Self { words, thread }
        }

        /// Returns whether the thread was to go on.
        fn end(self) -> bool {
            self.words.send(()).unwrap();
            self.thread.join().unwrap()
        }
    }

    const HELD: Duration = Duration::from_millis(20);

    /// S-507: time counts as all busy exactly while no thread is free.
    #[test]
    fn s_507_all_are_busy_from_the_last_one_that_begins_to_the_first_one_that_ends() {
        let load = Arc::new(Load::default());
        let (one, other) = (Seat::new(&load), Seat::new(&load));
        let one = Held::new(one);
        sleep(HELD);
        let report = load.look();
        assert_eq!((report.threads, report.busy, load.busy_max()), (2, 1, 1), "S-507");
        assert_eq!((report.all_busy_ns, load.has_free()), (0, true), "S-507: one was free");
        let other = Held::new(other);
        sleep(HELD);
        let report = load.look();
        assert_eq!((report.busy, load.busy_max(), load.has_free()), (2, 2, false), "S-507");
        assert!(report.all_busy_ns >= HELD.as_nanos() as u64, "S-507: {report:?}");
        let further = Seat::new(&load);
        let before = load.look();
        sleep(HELD);
        assert_eq!(load.look().all_busy_ns, before.all_busy_ns, "S-507: the further one is free");
        drop(further);
        sleep(HELD);
        let again = load.look().all_busy_ns - before.all_busy_ns;
        assert!(again >= HELD.as_nanos() as u64, "S-507: none is free again: {again} ns");
        assert!(other.end() && one.end(), "there are not too many");
        let report = load.look();
        assert_eq!((report.threads, report.busy, report.requests), (0, 0, 2), "S-507");
        assert_eq!((load.take_busy_max(), load.busy_max()), (2, 0), "S-507: it begins again");
    }

    /// S-507: what is noted in any order comes to the same; threads that run at once lose nothing.
    #[test]
    fn s_507_many_threads_lose_no_request_and_no_time() {
        const REQUESTS: u64 = 20_000;
        let load = Arc::new(Load::default());
        let began = Instant::now();
        let seats: Vec<Seat> = (0..4).map(|_| Seat::new(&load)).collect();
        let run = |mut seat: Seat| {
            spawn(move || {
                seat.take();
                (0..REQUESTS).for_each(|_| assert!(seat.serve(std::thread::yield_now)));
            })
        };
        let threads: Vec<_> = seats.into_iter().map(run).collect();
        let mut last = 0;
        while load.threads() > 0 {
            let told = load.look().all_busy_ns;
            assert!(told >= last, "S-507: {told} after {last}");
            last = told;
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let report = load.look();
        assert_eq!((report.busy, report.requests), (0, 4 * REQUESTS), "S-507");
        assert!(report.all_busy_ns <= began.elapsed().as_nanos() as u64, "S-507: {report:?}");
        assert_eq!(load.look(), report, "S-507: nothing has begun that did not end");
    }

    /// S-507: an end that is noted before its beginning is not taken for 4,095 beginnings.
    #[test]
    fn s_507_an_end_may_be_noted_before_its_beginning() {
        let load = Load::default();
        sleep(Duration::from_millis(1));
        load.all_busy.fetch_add(100 * MICROSECOND - 1, Relaxed);
        assert_eq!(load.all_busy_us(), 0, "S-507");
        load.all_busy.fetch_add(1 - 40 * MICROSECOND, Relaxed);
        assert_eq!(load.all_busy_us(), 60, "S-507: from 40 µs to 100 µs");
    }

    /// S-508: a thread too many ends after its request, and the others stay.
    #[test]
    fn s_508_a_thread_too_many_ends_after_its_request() {
        let load = Arc::new(Load::default());
        let seats: Vec<Seat> = (0..3).map(|_| Seat::new(&load)).collect();
        let held: Vec<Held> = seats.into_iter().map(Held::new).collect();
        load.set_threads_max(2);
        assert_eq!(load.threads(), 3, "S-508: none ends within a request");
        let goes_on: Vec<bool> = held.into_iter().map(Held::end).collect();
        assert_eq!(goes_on, [false, true, true], "S-508");
        assert_eq!(load.look().requests, 3, "S-508: what it served stays counted");
    }

    #[test]
    fn s_507_the_system_tells_how_long_a_thread_ran_and_waited() {
        assert_eq!(
            ProcessorTime::parse("180679 2609418 2\n"),
            Some(ProcessorTime { ran_ns: 180_679, waited_ns: 2_609_418 }),
            "S-507"
        );
        assert_eq!((ProcessorTime::parse(""), ProcessorTime::parse("12 x 3")), (None, None));
        let load = Arc::new(Load::default());
        let mut seat = Seat::new(&load);
        seat.take();
        let Some(before) = load.look().processor else { return };
        let began = Instant::now();
        while began.elapsed() < HELD {}
        let after = load.look().processor.unwrap();
        let had = after.ran_ns + after.waited_ns - before.ran_ns - before.waited_ns;
        assert!(had >= HELD.as_nanos() as u64 / 2, "S-507: it ran all the time: {had} ns");
        drop(seat);
        assert!(load.look().processor.unwrap().ran_ns >= after.ran_ns, "S-507: it stays counted");
    }
}
