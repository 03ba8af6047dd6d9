//! Wakes a background thread before its time, and ends it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A handle to wake or end a background thread; clones are handles to the same thread. Its lock is
/// a leaf.
///
/// A wake-up is kept until [`take_wake`](Self::take_wake) or [`wait`](Self::wait), so that none is
/// lost while the thread works. Several are one.
#[derive(Debug, Default, Clone)]
pub struct Waker(Arc<Parked>);

#[derive(Debug, Default)]
struct Parked {
    signal: Mutex<Signal>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct Signal {
    woken: bool,
    stopped: bool,
}

impl Waker {
    /// Wakes the thread: a wait ends at once, the next one if the thread works.
    pub fn wake(&self) {
        self.0.signal.lock().woken = true;
        self.0.changed.notify_one();
    }

    /// Ends the thread: from now on waits return at once.
    pub fn stop(&self) {
        self.0.signal.lock().stopped = true;
        self.0.changed.notify_one();
    }

    /// Says whether the thread is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.signal.lock().stopped
    }

    /// Says whether there is a wake-up that was not taken yet.
    #[must_use]
    pub fn is_woken(&self) -> bool {
        self.0.signal.lock().woken
    }

    /// Takes a wake-up back; says whether there was one.
    #[must_use]
    pub fn take_wake(&self) -> bool {
        std::mem::take(&mut self.0.signal.lock().woken)
    }

    /// Waits for a wake-up, and takes it, or until the time is over. Says whether to go on.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.sleep(Some(timeout), |signal| !signal.woken);
        let mut signal = self.0.signal.lock();
        signal.woken = false;
        !signal.stopped
    }

    /// Waits for a wake-up, and leaves it, or until the time is over; without one for good. Says
    /// whether to go on.
    #[must_use]
    pub fn wait_and_keep(&self, timeout: Option<Duration>) -> bool {
        self.sleep(timeout, |signal| !signal.woken)
    }

    /// Waits until the time is over or something changes; a wake-up of before does not count. Says
    /// whether to go on.
    #[must_use]
    pub fn rest(&self, timeout: Duration) -> bool {
        self.sleep(Some(timeout), |_| true)
    }

    /// Sleeps once, where that is wanted and the thread is not to end.
    fn sleep(&self, timeout: Option<Duration>, wanted: impl Fn(&Signal) -> bool) -> bool {
        let mut signal = self.0.signal.lock();
        if !signal.stopped && wanted(&signal) {
            match timeout {
                Some(timeout) => {
                    self.0.changed.wait_for(&mut signal, timeout);
                }
                None => self.0.changed.wait(&mut signal),
            }
        }
        !signal.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wake_up_is_kept_until_it_is_taken() {
        let waker = Waker::default();
        assert!(waker.wait(Duration::ZERO) && !waker.take_wake());
        waker.wake();
        waker.wake();
        assert!(waker.wait_and_keep(None) && waker.wait_and_keep(Some(LONG)));
        assert!(waker.rest(Duration::ZERO));
        assert!(waker.wait(LONG) && !waker.take_wake(), "two are one, and it is taken");
        waker.wake();
        assert!(waker.is_woken() && waker.take_wake());
        assert!(!waker.is_woken() && !waker.take_wake());
    }

    #[test]
    fn a_thread_that_waits_is_woken_and_one_that_is_stopped_waits_no_more() {
        let waker = Waker::default();
        for wait in [|waker: &Waker| waker.wait(LONG), |waker: &Waker| waker.wait_and_keep(None)] {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| wait(&waker));
                waker.clone().wake();
                assert!(thread.join().unwrap());
            });
            let _taken = waker.take_wake();
        }
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| waker.wait_and_keep(None));
            waker.stop();
            assert!(!thread.join().unwrap());
        });
        assert!(
            waker.is_stopped()
                && !waker.wait(LONG)
                && !waker.rest(LONG)
                && !waker.wait_and_keep(None)
        );
    }
}
