//! A process that has leases.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::{SharedMemory, Sharing};
use bedplate_lease::{Counters, EntryRef, Holder, SLOTS_PER_CLIENT, slots_words};

use super::{LeaseRequests, Slots};
use crate::{Error, ErrorKind, Result};

/// A process as the system knows it, of one number that no other process can take over.
pub trait LeaseProcess: Send + Sync {
    /// Returns whether any thread of it may still do I/O.
    fn is_alive(&self) -> bool;

    /// Returns whether a thread of it, by the number that it has there, has ended; `false` where
    /// that cannot be told.
    fn has_thread_ended(&self, thread: u32) -> bool;

    /// Ends it at once, wherever it stands.
    ///
    /// # Errors
    /// When the system refuses.
    fn kill(&self) -> std::io::Result<()>;
}

/// A process that may do I/O under leases, until [`FileSystem::lease_detach`].
///
/// [`FileSystem::lease_detach`]: crate::FileSystem::lease_detach
pub struct LeaseClient {
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// No other client of the mount ever has it.
    pub(super) number: u64,
    memory: SharedMemory,
    pub(super) slots: Slots,
    process: Box<dyn LeaseProcess>,
    gone: AtomicBool,
    /// A bit for each append buffer that is in use.
    pub(super) buffers: AtomicU64,
    /// Of a process that makes asynchronous requests.
    pub(super) requests: OnceLock<Box<dyn LeaseRequests>>,
}

impl LeaseClient {
    pub(super) fn new(
        pid: u32,
        uid: u32,
        number: u64,
        entries: usize,
        process: Box<dyn LeaseProcess>,
    ) -> Result<Self> {
        let words = slots_words(SLOTS_PER_CLIENT, entries);
        let failed = |why: &dyn fmt::Display| {
            Error::new(ErrorKind::Io, format!("no memory for a client of leases: {why}"))
        };
        let memory = SharedMemory::new("bedplate-slots", words, Sharing::ReadWrite)
            .map_err(|error| failed(&error))?;
        let slots = Slots::create(memory.clone(), SLOTS_PER_CLIENT, entries, number)
            .map_err(|error| failed(&error))?;
        let (gone, buffers) = (AtomicBool::new(false), AtomicU64::new(0));
        let requests = OnceLock::new();
        Ok(Self { pid, uid, number, memory, slots, process, gone, buffers, requests })
    }

    /// Returns the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the slots, for the process to write.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns what the process counted, as it says.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.slots.counters()
    }

    /// Returns a slot that is set; a process that has ended does no I/O, whatever its slots say.
    pub(super) fn holder(&self, is_meant: impl Fn(&Holder) -> bool) -> Option<Holder> {
        if self.gone.load(Ordering::Acquire) { None } else { self.slots.holder(is_meant) }
    }

    /// Returns up to where it has filled its tail of a file, as it says.
    pub(super) fn filled(&self, entry: EntryRef) -> u64 {
        self.slots.filled(entry.index)
    }

    /// Says where a tail begins that it is about to be given.
    pub(super) fn set_filled(&self, entry: EntryRef, to: u64) {
        self.slots.set_filled(entry.index, to);
    }

    /// Returns whether it is known that the process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Ends the process (`lease-kill=`). Its I/O is over when it has ended, and not before.
    pub(super) fn kill(&self) -> std::io::Result<()> {
        self.process.kill()
    }

    /// Returns whether the thread that set a slot has ended: its I/O has ended with it.
    pub(super) fn has_thread_ended(&self, thread: u32) -> bool {
        self.process.has_thread_ended(thread)
    }

    /// Looks whether the process has ended.
    pub(super) fn look_whether_alive(&self) {
        if !self.process.is_alive() {
            self.set_gone();
        }
    }
}

impl fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseClient(process {})", self.pid)
    }
}

/// Says what the system tells of a process: its name, and whether it runs.
pub(super) fn describe(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "PID (NAME) STATE …", and a name may have any character.
    let named = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let Some((name, rest)) = named else { return "unknown".to_owned() };
    let state = match rest.trim_start().chars().next() {
        Some('T' | 't') => "stopped",
        Some('D') => "waiting for a device",
        Some('R' | 'S') => "running",
        Some('Z' | 'X') => "ended",
        _ => "in an unknown state",
    };
    format!("{name}, {state}")
}
