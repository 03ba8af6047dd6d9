//! What belongs to this process and not to a child of it: one page that a fork wipes.
//!
//! The page's epoch is 0 in a child until that has set the page up anew, so nothing that the parent
//! held is used there. A child of `vfork` shares the memory with its parent and not the
//! descriptors; it has another number, and changes nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::sys::{self, syscall};

struct Page {
    epoch: AtomicU64,
    pid: AtomicU32,
    lock: AtomicU32,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// The last epoch that was given out, to this process or to those it was forked from.
static EPOCH_LAST: AtomicU64 = AtomicU64::new(0);

const PAGE_BYTES: usize = 4096;

fn page() -> Option<&'static Page> {
    // SAFETY: null, or the page that `set_up` mapped, which is never unmapped.
    unsafe { PAGE.load(Acquire).as_ref() }
}

/// Returns the process's epoch; 0 where nothing was set up since the process began.
#[inline]
pub fn epoch() -> u64 {
    page().map_or(0, |page| page.epoch.load(Relaxed))
}

/// Tells whether the descriptors of this process are those that the tables speak of.
pub fn is_home() -> bool {
    page().is_some_and(|page| page.pid.load(Relaxed) == sys::pid())
}

/// Tells whether the process may make no file larger than some size, which the kernel sees to.
pub fn has_size_limit() -> bool {
    let mut limit = [0_u64; 2];
    // SAFETY: the kernel fills two words.
    let done =
        unsafe { syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, limit.as_mut_ptr()) };
    done != 0 || limit[0] != libc::RLIM_INFINITY
}

/// Maps the page. Nothing where the kernel cannot wipe it for children.
fn set_up() -> Option<&'static Page> {
    if let Some(page) = page() {
        return Some(page);
    }
    let new = sys::map(PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, None)?;
    // SAFETY: the page that was just mapped.
    if unsafe { syscall!(libc::SYS_madvise, new, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    // A second thread that came here too has its page forgotten.
    let _ = PAGE.compare_exchange(std::ptr::null_mut(), new.cast(), Release, Relaxed);
    page()
}

/// The process's one lock, over all changes of the tables. Signals wait meanwhile, because their
/// handlers may open and close files.
pub struct Held {
    page: &'static Page,
    _signals: Signals,
}

/// Takes the lock; nothing in a child of `vfork`, and where nothing can be set up. The first holder
/// of a process begins its epoch: `begin` is called then.
pub fn lock(begin: impl FnOnce()) -> Option<Held> {
    let page = set_up()?;
    let signals = Signals::hold_back(0);
    // Taken after a wait it stays at 2, for there may be others that wait.
    if page.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        while page.lock.swap(2, Acquire) != 0 {
            // SAFETY: waits until the word is no longer 2, or wakes for nothing.
            unsafe { syscall!(libc::SYS_futex, &raw const page.lock, libc::FUTEX_WAIT, 2, 0) };
        }
    }
    let held = Held { page, _signals: signals };
    if page.epoch.load(Relaxed) == 0 {
        page.pid.store(sys::pid(), Relaxed);
        begin();
        page.epoch.store(EPOCH_LAST.fetch_add(1, Relaxed) + 1, Release);
    }
    (page.pid.load(Relaxed) == sys::pid()).then_some(held)
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.page.lock.swap(0, Release) == 2 {
            // SAFETY: wakes one that waits for the word.
            unsafe {
                syscall!(libc::SYS_futex, &raw const self.page.lock, libc::FUTEX_WAKE, 1);
            }
        }
    }
}

const SIGNAL_BYTES: usize = 8;

/// Signals wait while this exists, so that no handler runs, and none leaves the call for good.
pub struct Signals {
    old: u64,
}

/// What an instruction of the thread itself raises: held back, these would end the program.
pub const OF_INSTRUCTIONS: u64 = {
    const fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    bit(libc::SIGSEGV)
        | bit(libc::SIGBUS)
        | bit(libc::SIGILL)
        | bit(libc::SIGFPE)
        | bit(libc::SIGTRAP)
        | bit(libc::SIGSYS)
};

impl Signals {
    /// Holds back all but these.
    pub fn hold_back(all_but: u64) -> Self {
        let (set, mut old) = (!all_but, 0_u64);
        // SAFETY: the kernel reads and writes a word each.
        unsafe {
            syscall!(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const set,
                &raw mut old,
                SIGNAL_BYTES
            );
        }
        Self { old }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the kernel reads a word.
        unsafe {
            let old = &raw const self.old;
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, old, 0, SIGNAL_BYTES);
        }
    }
}
