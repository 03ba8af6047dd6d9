use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::lock::inode_lock::WRITER;
use crate::lock::{Help, InodeLock, NoHelp};

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

/// Notes the waiters.
#[derive(Default)]
struct Notes(AtomicUsize);

impl Help for Notes {
    fn help(&self) {}
    fn waits(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn only_who_waits_is_noted() {
    let (lock, notes): (InodeLock, Notes) = Default::default();
    drop((lock.shared(&notes), lock.shared(&notes)));
    let writer = lock.exclusive(&notes);
    assert_eq!(notes.0.load(Ordering::SeqCst), 0);
    thread::scope(|scope| {
        scope.spawn(|| drop(lock.shared(&notes)));
        while notes.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        drop(writer);
    });
    assert_eq!(notes.0.load(Ordering::SeqCst), 1);
}
