//! How busy the threads are that serve a mount, and how many there are to be.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, DeviceCall, Hook, HookedDevice, Result};
use bedplate_fs::{Tunable, TuneOptions};
use bedplate_serve::control::{Answer, Request, ThreadReport};
use parking_lot::{Condvar, Mutex};

use crate::harness::{Mounted, OVER_RING, ask, available, format_memory};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Reads of the device of this length are held up: nothing else has it.
const HELD_BYTES: usize = 12 << 10;
/// For how long all threads are held.
const HELD_FOR: Duration = Duration::from_millis(100);

/// Holds reads up while it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    held: usize,
}

impl Gate {
    fn set_closed(&self, closed: bool) {
        self.state.lock().closed = closed;
        self.changed.notify_all();
    }

    /// Waits until so many reads are held.
    fn await_held(&self, count: usize) {
        let mut state = self.state.lock();
        while state.held < count {
            assert!(!self.changed.wait_for(&mut state, LIMIT).timed_out(), "{state:?}");
        }
    }
}

impl Hook for Gate {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if matches!(call, DeviceCall::Read { len, .. } if len == HELD_BYTES as u64) {
            let mut state = self.state.lock();
            state.held += 1;
            self.changed.notify_all();
            while state.closed {
                self.changed.wait(&mut state);
            }
            state.held -= 1;
        }
        pass()
    }
}

fn is_over_ring() -> bool {
    std::env::var_os(OVER_RING).is_some()
}

pub fn report(m: &Mounted) -> ThreadReport {
    let Answer::Done(told) = ask(m.root(), &Request::Threads) else { panic!("no report") };
    serde_json::from_value(told).unwrap()
}

fn tune(m: &Mounted, threads: Option<u64>, live_only: bool) -> Answer {
    ask(
        m.root(),
        &Request::Tune(TuneOptions { changes: vec![(Tunable::Threads, threads)], live_only }),
    )
}

fn set(m: &Mounted, threads: u64) {
    assert!(matches!(tune(m, Some(threads), true), Answer::Done(_)), "S-508");
}

/// Waits until so many threads serve.
fn await_threads(m: &Mounted, threads: u32) {
    let began = Instant::now();
    loop {
        let told = report(m);
        if told.threads == threads {
            assert_eq!(told.wanted, threads, "S-508");
            return;
        }
        assert!(began.elapsed() < LIMIT, "S-508: {told:?}");
        std::thread::yield_now();
    }
}

fn direct(m: &Mounted, name: &str) -> File {
    let options = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.path(name));
    options.unwrap()
}

fn read(file: &File) -> Vec<u8> {
    let mut buf = AlignedBuf::zeroed(HELD_BYTES);
    file.read_exact_at(&mut buf, 0).unwrap();
    buf.to_vec()
}

/// S-507: while every thread is in a request, that time is counted, and a further request waits; as
/// soon as there is a further thread (S-508) that request is served, while the others still wait.
#[test]
fn s_507_s_508_a_request_that_finds_all_threads_busy_waits_for_a_further_one() {
    if is_over_ring() || !available() {
        return;
    }
    let device = HookedDevice::new(format_memory(), Gate::default());
    let m = Mounted::on(
        Arc::clone(&device) as _,
        "mode=concurrent,threads=2,read-window=0,delay-writes=0",
    );
    for name in ["a", "b", "c"] {
        fs::write(m.path(name), vec![name.as_bytes()[0]; HELD_BYTES]).unwrap();
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| direct(&m, name));
    let before = report(&m);
    assert_eq!((before.transport.as_str(), before.processors, before.threads), ("device", 1, 2));
    device.set_closed(true);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(read(&a), vec![b'a'; HELD_BYTES]));
        scope.spawn(|| assert_eq!(read(&b), vec![b'b'; HELD_BYTES]));
        device.await_held(2);
        let third = scope.spawn(|| assert_eq!(read(&c), vec![b'c'; HELD_BYTES]));
        std::thread::sleep(HELD_FOR);
        let told = report(&m);
        assert_eq!((told.threads, told.busy, told.total.busy_max), (2, 2, 2), "S-507");
        let all_busy = Duration::from_nanos(told.total.all_busy_ns - before.total.all_busy_ns);
        assert!(all_busy >= HELD_FOR, "S-507: {told:?}");
        assert!(told.recent.all_busy_ns <= told.total.all_busy_ns, "S-507: {told:?}");
        assert_eq!(device.state.lock().held, 2, "S-507: the third request waits for a thread");
        set(&m, 3);
        device.await_held(3);
        assert_eq!((report(&m).threads, report(&m).busy), (3, 3), "S-508");
        // One too many ends after its request, and not within it.
        set(&m, 2);
        assert_eq!(report(&m).threads, 3, "S-508");
        device.set_closed(false);
        third.join().unwrap();
    });
    await_threads(&m, 2);
    let after = report(&m);
    assert!(after.total.requests >= before.total.requests + 3, "S-507: {after:?}");
    assert_eq!(after.total.busy_max, 3, "S-507");
    drop((a, b, c));
    m.finish();
}

/// S-508: the number follows at once, up and down, on a mount that is idle and on one under load, and
/// no request is lost; a later mount has what was stored.
#[test]
fn s_508_the_number_of_threads_is_set_live() {
    if is_over_ring() {
        return;
    }
    let Some(m) = Mounted::new("threads=4") else { return };
    await_threads(&m, 4);
    for threads in [9, 1, 1, 40, 2] {
        set(&m, threads);
        await_threads(&m, threads as u32);
        fs::write(m.path("idle"), threads.to_string()).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (m, is_over) = (&m, &is_over);
            scope.spawn(move || {
                let path = m.path(&format!("f{number}"));
                for round in 0_u64.. {
                    fs::write(&path, round.to_string().repeat(5000)).unwrap();
                    assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string().repeat(5000));
                    if is_over.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        for round in 0..40 {
            set(&m, [1, 16, 3, 5][round % 4]);
        }
        await_threads(&m, 5);
        is_over.store(true, Relaxed);
    });
    assert!(matches!(tune(&m, Some(7), false), Answer::Done(_)), "S-508");
    let m = m.again("");
    await_threads(&m, 7);
    assert!(matches!(tune(&m, None, false), Answer::Done(_)), "S-508");
    await_threads(&m, Tunable::Threads.default_value() as u32);
    m.finish();
}

/// S-508: a number out of range is refused in a sentence, and as many threads serve as before.
#[test]
fn s_508_a_wrong_number_of_threads_is_refused_in_a_sentence() {
    let Some(m) = Mounted::new("threads=4") else { return };
    let before = report(&m);
    for wrong in [0, 1025, u64::MAX] {
        let Answer::Failed(kind, sentence) = tune(&m, Some(wrong), true) else {
            panic!("S-508: threads={wrong} was taken")
        };
        assert!(kind == "invalid" && sentence.starts_with("threads: "), "S-508: {sentence}");
        assert!(sentence.contains("from 1 to 1024") && !sentence.contains('\n'), "{sentence}");
    }
    let after = report(&m);
    assert_eq!((after.threads, after.wanted), (before.threads, before.wanted), "S-508");
    m.finish();
}

/// S-508: over io_uring each processor keeps the threads that it had from the start, and the refusal
/// says so; a number that comes to the same is taken.
#[test]
fn s_508_over_io_uring_the_number_is_fixed_and_the_refusal_says_so() {
    if !is_over_ring() {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    let told = report(&m);
    assert!(told.transport == "io_uring" && told.processors > 0, "S-507: {told:?}");
    assert_eq!(told.threads as usize % told.processors, 0, "S-507: {told:?}");
    let Answer::Failed(_, sentence) = tune(&m, Some(1024), true) else {
        panic!("S-508: 1024 threads were taken")
    };
    assert!(
        sentence.contains("io_uring") && sentence.contains("threads=1024"),
        "S-508: {sentence}"
    );
    assert_eq!(report(&m).threads, told.threads, "S-508");
    assert!(matches!(tune(&m, Some(told.threads.into()), true), Answer::Done(_)), "S-508");
    fs::write(m.path("f"), b"x").unwrap();
    assert!(report(&m).total.requests > told.total.requests, "S-507");
    m.finish();
}
