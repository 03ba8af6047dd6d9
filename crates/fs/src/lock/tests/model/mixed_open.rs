//! A file whose opens conflict: served through the cache while they do, and past it again
//! afterwards. The steps are those of `data/open.rs` (`change_opens`, `switch`), `data/read.rs` and
//! `data/write.rs`, over the very locks and the very table of opens; the cache and the device are a
//! number each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::{InodeLock, Yields, spawn_all};
use crate::IoMode;
use crate::mode::{OpenClass, OpenTable, Service};

struct File {
    opens: Mutex<OpenTable>,
    service: AtomicU64,
    order: InodeLock,
    lock: InodeLock,
    /// What the cache holds, if anything; dirty.
    cache: Mutex<Option<u64>>,
    device: AtomicU64,
    /// The last write that has returned.
    returned: AtomicU64,
    /// Whether the service is looked at again under the lock. The planted mistake: it is not.
    looks_again: bool,
}

fn class(mode: IoMode) -> OpenClass {
    OpenClass { mode: Some(mode), direct_flag: false, caller_caches: false }
}

impl File {
    fn new(mode: IoMode, looks_again: bool) -> Self {
        let mut opens = OpenTable::default();
        opens.add(class(mode));
        let service = AtomicU64::new(opens.service(None, IoMode::Cached).word().into());
        let (order, lock, cache, device, returned) = Default::default();
        Self {
            opens: Mutex::new(opens),
            service,
            order,
            lock,
            cache,
            device,
            returned,
            looks_again,
        }
    }

    fn is_cached(&self) -> bool {
        let word = u16::try_from(self.service.load(Ordering::SeqCst)).expect("two bytes");
        Service::of_word(word).path() == IoMode::Cached
    }

    fn change_opens(&self, change: impl FnOnce(&mut OpenTable)) {
        let mut opens = self.opens.lock().expect("no thread panicked");
        change(&mut opens);
        let next = opens.service(None, IoMode::Cached).word();
        if self.service.load(Ordering::SeqCst) == u64::from(next) {
            return;
        }
        let _order = self.order.exclusive(&Yields);
        if let Some(dirty) = self.cache.lock().expect("no thread panicked").take() {
            let _shared = self.lock.shared(&Yields);
            self.device.store(dirty, Ordering::SeqCst);
        }
        let _alone = self.lock.exclusive(&Yields);
        self.service.store(next.into(), Ordering::SeqCst);
    }

    fn write(&self, value: u64) {
        loop {
            if self.is_cached() {
                let _order = self.order.exclusive(&Yields);
                if self.looks_again && !self.is_cached() {
                    continue;
                }
                *self.cache.lock().expect("no thread panicked") = Some(value);
            } else {
                let _held = self.lock.shared(&Yields);
                if self.looks_again && self.is_cached() {
                    continue;
                }
                self.device.store(value, Ordering::SeqCst);
            }
            break;
        }
        self.returned.store(value, Ordering::SeqCst);
    }

    /// S-20, S-29, S-30: a read sees every write that had returned, whatever was opened or closed
    /// meanwhile.
    fn read(&self) {
        let returned = self.returned.load(Ordering::SeqCst);
        let seen = loop {
            if self.is_cached() {
                let _order = self.order.shared(&Yields);
                if self.looks_again && !self.is_cached() {
                    continue;
                }
                let cached = *self.cache.lock().expect("no thread panicked");
                break cached.unwrap_or_else(|| self.device.load(Ordering::SeqCst));
            }
            let _held = self.lock.shared(&Yields);
            if self.looks_again && self.is_cached() {
                continue;
            }
            break self.device.load(Ordering::SeqCst);
        };
        assert!(seen >= returned, "S-20: write {returned} had returned, the read saw {seen}");
    }
}

fn mixed_open(looks_again: bool) {
    let file = Arc::new(File::new(IoMode::Concurrent, looks_again));
    let spawn = |work: fn(&File)| {
        let file = Arc::clone(&file);
        thread::spawn(move || work(&file))
    };
    let opener = |file: &File| {
        for mode in [IoMode::Cached, IoMode::Direct, IoMode::Cached] {
            file.change_opens(|table| table.add(class(mode)));
            thread::yield_now();
            file.change_opens(|table| table.remove(class(mode)));
        }
    };
    spawn_all([
        spawn(opener),
        spawn(|file| (1..5).for_each(|value| file.write(value))),
        spawn(|file| (0..3).for_each(|_| file.read())),
    ]);
    file.read();
    assert!(
        !file.is_cached() && file.cache.lock().expect("no thread panicked").is_none(),
        "S-30: the cache was given up with the last conflicting open"
    );
}

/// S-20, S-29, S-30
#[test]
fn no_order_of_threads_loses_a_write_over_a_change_of_the_service() {
    shuttle::check_random(|| mixed_open(true), 2000);
    shuttle::check_pct(|| mixed_open(true), 2000, 3);
}

#[test]
fn the_checker_sees_io_that_does_not_look_again_under_the_lock() {
    let found =
        catch_unwind(AssertUnwindSafe(|| shuttle::check_random(|| mixed_open(false), 2000)));
    assert!(found.is_err(), "no order of threads showed the planted mistake");
}
