//! What the program calls, recorded: `bedplate trace`.
//!
//! ```text
//!  program ── pread ──► calls ──► the call itself, with a clock read before and behind it
//!                         └─────► a slot of the thread's own chunk of the arena
//! ```
//!
//! `BEDPLATE_TRACE` names the arena, a file that all traced processes map; the calls go the ways
//! that they go without it. A descriptor is looked up once, when it is opened or first used, so
//! that those that a program inherited are known, too. What is no regular file and no block device
//! is left out.
//!
//! A chunk belongs to a thread of one process: a child of a fork takes new ones. A signal handler
//! that interrupts a record takes the slots behind it.

mod arena;
mod files;
mod record;

use std::ffi::c_char;

use bedplate_trace::{Call, NO_FILE, Slot, how};

use crate::sys::{self, Fd};
pub use files::{closed, closed_all, copied};

/// A call that began.
#[derive(Clone, Copy)]
pub struct Began {
    at_ns: u64,
    file: u32,
    fd: Fd,
}

/// Begins a call on a descriptor; nothing where it is not recorded.
#[inline]
pub fn begin(fd: Fd) -> Option<Began> {
    if !arena::is_on() {
        return None;
    }
    let file = files::find(fd)?;
    Some(Began { at_ns: record::now_ns(), file, fd })
}

/// Begins the closing of a descriptor, which is no file's from then on. One that was never used is
/// not looked up.
pub fn begin_close(fd: Fd) -> Option<Began> {
    let file = files::known(fd).filter(|_| arena::is_on())?;
    files::forget(fd);
    Some(Began { at_ns: record::now_ns(), file, fd })
}

/// Begins a call without a descriptor.
#[inline]
pub fn begin_any() -> Option<Began> {
    arena::is_on().then(|| Began { at_ns: record::now_ns(), file: NO_FILE, fd: -1 })
}

/// What a call was asked for, beside its file.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    /// Where; nothing where the descriptor stands.
    pub at: Option<i64>,
    pub bytes: u64,
    pub flags: u32,
    pub how: u8,
    /// The memory's address.
    pub memory: u64,
}

impl Began {
    /// Records the end of a call, whose result is the C library's.
    pub fn ended(self, call: Call, asked: &Asked, result: isize) {
        let took_ns = record::now_ns().saturating_sub(self.at_ns);
        let offset = match asked.at {
            Some(at) => at.max(0) as u64,
            None if call.is_move() => self.place_before(result),
            None => 0,
        };
        let placed = if asked.at.is_some() { how::PLACED } else { 0 };
        record::push(&Slot {
            call,
            how: asked.how | placed,
            errno: if result < 0 { sys::errno() as u16 } else { 0 },
            fd: self.fd,
            begin_ns: self.at_ns,
            took_ns,
            file: self.file,
            flags: asked.flags,
            offset,
            asked: asked.bytes,
            result: result as i64,
            key: asked.memory,
        });
    }

    /// Returns where a call began that moved so many bytes where the descriptor stands: asked
    /// behind it, so that a write to the end says where that was.
    fn place_before(self, moved: isize) -> u64 {
        let after = sys::fd_place(self.fd);
        (after.max(0) as u64).saturating_sub(moved.max(0) as u64)
    }
}

/// An open has ended: of one that failed the path that the program named is kept.
pub fn opened(began: Option<Began>, fd: Fd, path: *const c_char, flags: i32) {
    let Some(mut began) = began else { return };
    began.fd = fd;
    let asked = Asked { flags: flags as u32, at: Some(0), ..Asked::default() };
    if fd < 0 {
        let errno = sys::errno();
        began.file = files::named(path);
        sys::set_errno(errno);
        return began.ended(Call::Open, &asked, -1);
    }
    let took = record::now_ns();
    files::forget(fd);
    if let Some(file) = files::find(fd) {
        let slot = Slot {
            call: Call::Open,
            how: 0,
            errno: 0,
            fd,
            begin_ns: began.at_ns,
            took_ns: took.saturating_sub(began.at_ns),
            file,
            flags: flags as u32,
            offset: 0,
            asked: 0,
            result: fd.into(),
            key: 0,
        };
        record::push(&slot);
    }
}

/// A request to be handed over, as the program made it.
pub struct Request {
    pub fd: Fd,
    pub writes: bool,
    pub offset: i64,
    pub bytes: u64,
    pub key: u64,
}

/// Requests were handed over together.
pub fn submitted(began: Began, requests: impl Iterator<Item = Request>) {
    for request in requests {
        let Some(file) = files::find(request.fd) else { continue };
        record::push(&Slot {
            call: Call::Submit,
            how: 0,
            errno: 0,
            fd: request.fd,
            begin_ns: began.at_ns,
            took_ns: 0,
            file,
            flags: u32::from(request.writes),
            offset: request.offset.max(0) as u64,
            asked: request.bytes,
            result: 0,
            key: request.key,
        });
    }
}

/// The end of a request was collected.
pub fn completed(key: u64, result: i64) {
    record::push(&Slot {
        call: Call::Complete,
        how: 0,
        errno: 0,
        fd: -1,
        begin_ns: record::now_ns(),
        took_ns: 0,
        file: NO_FILE,
        flags: 0,
        offset: 0,
        asked: 0,
        result,
        key,
    });
}

/// Returns how many bytes parts of memory have together.
///
/// # Safety
///
/// They are the parts of a call that the kernel accepts; a list that is none of length 0.
pub unsafe fn bytes_of(parts: *const libc::iovec, count: usize) -> u64 {
    const PARTS_MAX: usize = 1024;
    if parts.is_null() || count > PARTS_MAX {
        return 0;
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.iov_len as u64))
}
