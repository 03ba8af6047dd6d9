//! What the kernel is handed in place of a program's request: a copy that names the device.
//!
//! ```text
//!   program's iocb ── copied, not changed ──► shadow ──► io_submit
//!   program's event ◄── the program's pointer in place of the shadow's ◄── io_getevents
//! ```
//!
//! A request of the program's is not changed in place: another thread may collect its end, and use
//! it for the next one, before the call that submitted it has returned.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use libc::iocb;

/// Requests that are in flight, or have ended and were not collected; more go to the mount.
const SHADOWS: usize = 4096;

/// How many are looked at for a free one.
const TRIES: usize = 256;

/// What a shadow stands for.
#[derive(Clone, Copy)]
pub struct What {
    /// The program's request.
    pub program: u64,
    /// The number of the context that it was submitted to.
    pub context: u64,
    /// The mount's place in the table of mounts.
    pub mount: usize,
    /// The file's entry.
    pub entry: u32,
    /// It is a write.
    pub writes: bool,
}

/// A word says which thread has the shadow: the count of its uses, and one of these.
const FREE: u64 = 0;
/// The thread that submits it; and a thread that collects its end before the submission returned.
const SUBMITTED: u64 = 1;
/// The thread that collects its end, or destroys its context.
const SETTLED: u64 = 2;
const PHASES: u64 = 3;
const USE: u64 = 4;

/// The bits of a mount's place in the word of a file.
const MOUNT_MASK: u64 = 0x7f;
const _: () = assert!(
    crate::table::MOUNTS_MAX <= MOUNT_MASK as usize,
    "the word of a file has room for every mount"
);

struct Shadow {
    request: UnsafeCell<iocb>,
    state: AtomicU64,
    program: AtomicU64,
    context: AtomicU64,
    /// Entry, mount, whether it writes.
    file: AtomicU64,
}

// SAFETY: `request` is written by the thread that took the shadow, before the kernel gets it, and
// read by the kernel alone.
unsafe impl Sync for Shadow {}

const NO_REQUEST: iocb = {
    // SAFETY: all zeros is a request.
    unsafe { std::mem::zeroed() }
};

static ALL: [Shadow; SHADOWS] = [const {
    Shadow {
        request: UnsafeCell::new(NO_REQUEST),
        state: AtomicU64::new(FREE),
        program: AtomicU64::new(0),
        context: AtomicU64::new(0),
        file: AtomicU64::new(0),
    }
}; SHADOWS];

/// Where the next search begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A shadow that a thread has taken for a submission.
#[derive(Clone, Copy)]
pub struct Ticket {
    shadow: &'static Shadow,
    state: u64,
}

/// Takes a shadow and fills it.
pub fn take(request: iocb, what: &What) -> Option<Ticket> {
    for _ in 0..TRIES {
        let shadow = &ALL[NEXT.fetch_add(1, Relaxed) % SHADOWS];
        let was = shadow.state.load(Relaxed);
        if was & PHASES != FREE {
            continue;
        }
        let state = was.wrapping_add(USE) | SUBMITTED;
        if shadow.state.compare_exchange(was, state, Acquire, Relaxed).is_err() {
            continue;
        }
        debug_assert!(
            what.mount <= MOUNT_MASK as usize,
            "the word of a file has room for its mount: {}",
            what.mount
        );
        // SAFETY: the shadow is this thread's.
        unsafe { *shadow.request.get() = request };
        shadow.program.store(what.program, Relaxed);
        shadow.context.store(what.context, Relaxed);
        let file = u64::from(what.entry) << 8 | (what.mount as u64) << 1 | u64::from(what.writes);
        shadow.file.store(file, Relaxed);
        return Some(Ticket { shadow, state });
    }
    None
}

impl Ticket {
    /// Returns what the kernel is handed.
    pub fn request(&self) -> *const iocb {
        self.shadow.request.get()
    }

    /// The kernel has taken it: it is free when its end is collected.
    pub fn settle(self) {
        let settled = self.state & !PHASES | SETTLED;
        let _ = self.shadow.state.compare_exchange(self.state, settled, Release, Relaxed);
    }

    /// The kernel has not taken it.
    pub fn give_back(self) {
        let _ =
            self.shadow.state.compare_exchange(self.state, self.state & !PHASES, Release, Relaxed);
    }
}

impl Shadow {
    fn what(&self) -> What {
        let file = self.file.load(Relaxed);
        What {
            program: self.program.load(Relaxed),
            context: self.context.load(Relaxed),
            mount: (file >> 1 & MOUNT_MASK) as usize,
            entry: (file >> 8) as u32,
            writes: file & 1 != 0,
        }
    }
}

/// Frees the shadow whose end was collected, and returns what it stood for; nothing where the
/// pointer is not to a shadow.
pub fn collect(request: u64) -> Option<What> {
    let first = ALL.as_ptr() as u64;
    let place = request.checked_sub(first)? as usize / size_of::<Shadow>();
    let shadow = ALL.get(place)?;
    let what = shadow.what();
    loop {
        let state = shadow.state.load(Acquire);
        if state & PHASES == FREE {
            return None;
        }
        // It is the only end of this request: but for the settling nothing changes the word.
        if shadow.state.compare_exchange(state, state & !PHASES, Release, Relaxed).is_ok() {
            return Some(what);
        }
    }
}

/// Frees what a context left that is no more; nothing collects it.
pub fn abandon(context: u64, mut each: impl FnMut(What)) {
    for shadow in &ALL {
        let state = shadow.state.load(Acquire);
        if state & PHASES != SETTLED || shadow.context.load(Relaxed) != context {
            continue;
        }
        let what = shadow.what();
        if shadow.state.compare_exchange(state, state & !PHASES, Release, Relaxed).is_ok() {
            each(what);
        }
    }
}

/// Frees all: a child of a fork has none of its parent's requests.
pub fn forget_parents() {
    if NEXT.load(Relaxed) != 0 {
        ALL.iter().for_each(|shadow| shadow.state.store(FREE, Relaxed));
    }
}
