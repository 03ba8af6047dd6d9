use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Waits;
use crate::lock::inode_lock::WRITER;
use crate::lock::{Help, InodeLock, NoHelp, RangeLock, Sharing};
use crate::statistics::WaitMeter;

#[test]
fn holders_exclude_each_other_as_the_table_says() {
    let lock: InodeLock = InodeLock::default();
    let (readers, writers, value) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(0u64));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let _guard = lock.exclusive(&NoHelp);
                    assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "I-LCK-1");
                    assert_eq!(readers.load(Ordering::SeqCst), 0, "I-LCK-1");
                    *value.try_lock().expect("a writer is alone") += 1;
                    writers.fetch_sub(1, Ordering::SeqCst);
                }
            });
            scope.spawn(|| {
                for _ in 0..2000 {
                    let _guard = lock.shared(&NoHelp);
                    readers.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(writers.load(Ordering::SeqCst), 0, "I-LCK-1");
                    readers.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(*value.lock(), 8000);
    assert_eq!(lock.state.0.load(Ordering::SeqCst), 0);
}

#[test]
fn a_waiting_writer_stops_new_readers_and_a_leaving_one_lets_them_in() {
    let lock = Arc::new(InodeLock::default());
    assert!(lock.try_acquire_shared());
    let order = Arc::new(Mutex::new(Vec::new()));
    let spawn = |name: &'static str, exclusive: bool| {
        let (lock, order) = (Arc::clone(&lock), Arc::clone(&order));
        thread::spawn(move || {
            let held = if exclusive {
                (None, Some(lock.exclusive(&NoHelp)))
            } else {
                (Some(lock.shared(&NoHelp)), None)
            };
            order.lock().push(name);
            drop(held);
        })
    };
    let first = spawn("writer 1", true);
    while lock.state.0.load(Ordering::SeqCst) & WRITER == 0 {
        thread::yield_now();
    }
    assert!(!lock.try_acquire_shared(), "a writer waits");
    let reader = spawn("reader", false);
    while lock.gate.lock().waiting_readers == 0 {
        thread::yield_now();
    }
    let second = spawn("writer 2", true);
    let releaser = Arc::clone(&lock);
    thread::spawn(move || releaser.release_shared())
        .join()
        .expect("I-LCK-2: another thread may release");
    for thread in [first, reader, second] {
        thread.join().expect("no waiter fails");
    }
    let order = order.lock();
    assert_eq!(order[0], "writer 1");
    assert_eq!(order.len(), 3);
}

#[test]
fn who_waits_long_helps_those_in_the_way() {
    struct Completer<'a>(&'a InodeLock, AtomicBool);
    impl Help for Completer<'_> {
        fn help(&self) {
            if !self.1.swap(true, Ordering::SeqCst) {
                self.0.release_shared();
            }
        }
    }
    let lock: InodeLock = InodeLock::default();
    lock.acquire_shared(&NoHelp);
    let help = Completer(&lock, AtomicBool::new(false));
    drop(lock.exclusive(&help));
    assert!(help.1.load(Ordering::SeqCst));
}

/// Counts waits.
#[derive(Default)]
struct Counts(WaitMeter);

impl Help for Counts {
    fn help(&self) {}
    fn meter(&self) -> Option<&WaitMeter> {
        Some(&self.0)
    }
}

impl Counts {
    fn told(&self) -> Waits {
        self.0.snapshot(false)
    }

    fn counts(&self) -> [u64; 3] {
        let told = self.told();
        [told.inode_shared, told.inode_exclusive, told.byte_range].map(|time| time.count)
    }

    /// Waits until so many wait.
    fn reach(&self, counts: [u64; 3]) {
        while self.counts() != counts {
            thread::yield_now();
        }
    }
}

const NAP: Duration = Duration::from_millis(5);

/// S-502: a lock that is free is taken without being counted, one that is held counts in its class
/// and with its time, for the file and for all.
#[test]
fn s_502_only_what_waits_is_counted_and_in_its_class() {
    let (all, file) = (Counts::default(), Arc::<WaitMeter>::default());
    let lock = InodeLock::default().counted_in(&file);
    drop((lock.shared(&all), lock.shared(&all)));
    let writer = lock.exclusive(&all);
    assert_eq!(all.counts(), [0, 0, 0], "S-502");
    thread::scope(|scope| {
        scope.spawn(|| drop(lock.shared(&all)));
        all.reach([1, 0, 0]);
        thread::sleep(NAP);
        drop(writer);
    });
    // A writer waits for a reader to leave, another one for its turn.
    let reader = lock.shared(&all);
    thread::scope(|scope| {
        scope.spawn(|| drop(lock.exclusive(&all)));
        all.reach([1, 1, 0]);
        scope.spawn(|| drop(lock.exclusive(&all)));
        all.reach([1, 2, 0]);
        thread::sleep(NAP);
        drop(reader);
    });
    let told = all.told();
    assert!(told.inode_shared.ns >= NAP.as_nanos() as u64, "S-502: {told:?}");
    assert!(told.inode_exclusive.ns >= 2 * NAP.as_nanos() as u64, "S-502: both waited");
    assert!(told.inode_exclusive.ns_max < told.inode_exclusive.ns, "S-502: {told:?}");
    assert_eq!(file.snapshot(false), told, "S-502");
    // What holds nothing up is not counted.
    let reader = lock.shared(&all);
    thread::scope(|scope| {
        scope.spawn(|| drop(lock.exclusive(&NoHelp)));
        while lock.state.0.load(Ordering::SeqCst) & WRITER == 0 {
            thread::yield_now();
        }
        drop(reader);
    });
    assert_eq!(all.told(), told, "S-502");
}

/// S-502: ranges have a class of their own; the range that is the whole file counts as its lock.
#[test]
fn s_502_ranges_have_a_class_and_the_whole_file_counts_as_its_lock() {
    let all = Counts::default();
    let lock = RangeLock::default();
    drop(lock.lock(0..8, Sharing::Exclusive, &all));
    let wait_for = |range: std::ops::Range<u64>, sharing, counts| {
        let held = lock.lock(4..6, Sharing::Exclusive, &all);
        thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock(range, sharing, &all)));
            all.reach(counts);
            drop(held);
        });
    };
    wait_for(0..8, Sharing::Shared, [0, 0, 1]);
    wait_for(5..9, Sharing::Exclusive, [0, 0, 2]);
    wait_for(0..u64::MAX, Sharing::Exclusive, [0, 1, 2]);
    assert!(all.told().byte_range.ns > 0 && all.told().inode_exclusive.ns > 0, "S-502");
}
