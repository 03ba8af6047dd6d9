//! What went directly and what did not, told when the program ends.
//!
//! `BEDPLATE_LEASE_REPORT` is the number of a descriptor or the path of a file; every process adds
//! one line for its leases, and one for its files past the page cache. Nothing is told of a process
//! that had neither.

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_lease::{Counters, Fallback, Reason};

use crate::mount;
use crate::sys::{self, syscall};
use crate::uncached::{self, COUNTS, Count};

static REFUSED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// Calls of files that were new, and had no lease yet.
static NEW: AtomicU64 = AtomicU64::new(0);

/// Counts a call of a file that is new.
pub fn was_new() {
    NEW.fetch_add(1, Relaxed);
}

/// Writes that waited for others of the same file.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Counts a write that waits for others.
pub fn waited() {
    WAITED.fetch_add(1, Relaxed);
}

/// Counts a file that got no lease.
pub fn refused(reason: Reason) {
    if let Some(i) = Reason::ALL.iter().position(|&known| known == reason) {
        REFUSED[i].fetch_add(1, Relaxed);
    }
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// A line of bounded length, made without an allocator.
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.len += count;
        Ok(())
    }
}

fn write_line(line: &mut Line) -> std::fmt::Result {
    use std::fmt::Write;
    let mut sum = Counters::default();
    mount::all().for_each(|mount| sum.add(&mount.slots.counters()));
    write!(line, "bedplate-lease: pid={} reads={}", sys::pid(), sum.reads)?;
    write!(line, " writes={} syncs={} hits={}", sum.writes, sum.syncs, sum.hits)?;
    for (fallback, count) in Fallback::ALL.iter().zip(sum.fallbacks) {
        if count != 0 {
            write!(line, " {}={count}", fallback.name())?;
        }
    }
    for (name, count) in [("new-file", &NEW), ("waited", &WAITED)] {
        let count = count.load(Relaxed);
        if count != 0 {
            write!(line, " {name}={count}")?;
        }
    }
    for (reason, count) in Reason::ALL.iter().zip(&REFUSED) {
        let count = count.load(Relaxed);
        if count != 0 {
            write!(line, " refused-{reason:?}={count}")?;
        }
    }
    writeln!(line)
}

/// What went past the page cache.
fn write_uncached(line: &mut Line) -> std::fmt::Result {
    use std::fmt::Write;
    write!(line, "bedplate-direct: pid={}", sys::pid())?;
    for (what, name) in COUNTS {
        write!(line, " {name}={}", uncached::counted(what))?;
    }
    writeln!(line)
}

extern "C" fn at_exit() {
    // SAFETY: the program ends; its environment is whole.
    let wanted = unsafe {
        let value = getenv(c"BEDPLATE_LEASE_REPORT".as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
    };
    let has_asked = mount::all().next().is_some() || REFUSED.iter().any(|c| c.load(Relaxed) != 0);
    let is_direct = [Count::Files, Count::Refused].into_iter().any(|c| uncached::counted(c) != 0);
    let Some(wanted) = wanted.filter(|_| has_asked || is_direct) else { return };
    let mut line = Line { bytes: [0; 1024], len: 0 };
    if has_asked && write_line(&mut line).is_err()
        || is_direct && write_uncached(&mut line).is_err()
    {
        return;
    }
    let number = wanted.to_str().ok().and_then(|text| text.parse::<i32>().ok());
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path and the line are this function's.
    unsafe {
        let fd = number.unwrap_or_else(|| {
            syscall!(libc::SYS_openat, libc::AT_FDCWD, wanted.as_ptr(), flags, 0o600) as i32
        });
        syscall!(libc::SYS_write, fd, line.bytes.as_ptr(), line.len);
        if number.is_none() && fd >= 0 {
            sys::close(fd);
        }
    }
}

/// Called by the loader when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
