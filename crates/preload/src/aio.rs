//! Asynchronous requests (`io_submit`): those on leased files go to the device.
//!
//! Programs come here through `syscall`, by which libaio makes all of its calls. A request that is
//! aligned and lies in one extent is handed to the kernel as a copy that names the device
//! ([`shadow`]); everything else goes on as it is. Completions come from the kernel, to the
//! program's own context, with the program's own pointer.
//!
//! ```text
//!   io_submit ─► run of requests on one leased file ─► slot, lease, counted, submitted, slot clear
//!           └──► run of others ─► as they are             (one run after another, in their order)
//! ```
//!
//! The slot covers the submission; a request in flight is covered by the daemon's counter, which it
//! carries ([`counter`]). So a request that has a counter of the program's own is the mount's.
//!
//! A program that takes events out of a context's ring by itself would see copies. Its ring is
//! marked as one of another layout, by which such programs know to ask the kernel.

use std::ffi::c_long;

use bedplate_lease::{Direction, Fallback, Io};
use libc::iocb;

use crate::process::{OF_INSTRUCTIONS, Signals};
use crate::shadow::{self, Ticket, What};
use crate::sys::{self, Fd, syscall};
use crate::visit::{Memory, Visit, enter};
use crate::{contexts, counter, direct, mount, open, table, traced};

/// Requests that are submitted at a time.
const RUN_MAX: usize = 64;

#[cfg(target_arch = "x86_64")]
const SYS_IO_PGETEVENTS: c_long = 333;
#[cfg(target_arch = "aarch64")]
const SYS_IO_PGETEVENTS: c_long = 292;

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
const FLAG_RESFD: u32 = 1;

/// The head of a context's ring, which the kernel maps for the program.
#[repr(C)]
struct Ring {
    id: u32,
    count: u32,
    head: u32,
    tail: u32,
    magic: u32,
}

#[repr(C)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// Carries out a call by number, where it is one of these; the result is the kernel's.
///
/// # Safety
///
/// The arguments are those of the program's own call.
#[inline]
pub unsafe fn call(number: c_long, all: [usize; 6]) -> Option<isize> {
    // SAFETY: the program's own call.
    unsafe {
        match number {
            libc::SYS_io_submit => Some(submit_traced(all)),
            libc::SYS_io_getevents | SYS_IO_PGETEVENTS => Some(events(number, all)),
            libc::SYS_io_setup => Some(set_up(all)),
            libc::SYS_io_destroy => Some(destroy(all)),
            _ => None,
        }
    }
}

unsafe extern "C" {
    fn getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
}

/// Tells whether the program is to be left alone (`BEDPLATE_LEASE_AIO=off`).
fn is_off() -> bool {
    // SAFETY: a name that lives; the value is only read.
    unsafe {
        let value = getenv(c"BEDPLATE_LEASE_AIO".as_ptr());
        !value.is_null() && std::ffi::CStr::from_ptr(value) == c"off"
    }
}

unsafe fn set_up(all: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let result = unsafe { sys::call6(libc::SYS_io_setup, all) };
    // A child of a fork forgets first what its parent had.
    if result == 0 && !is_off() && open::lock().is_some() {
        // SAFETY: the kernel has just written the context there.
        let context = unsafe { *(all[1] as *const u64) };
        if contexts::add(context) {
            // SAFETY: a context is the address of its ring, which is mapped to be written; the
            // kernel never looks at this word.
            unsafe { (&raw mut (*(context as *mut Ring)).magic).write_volatile(0) };
        }
    }
    result
}

/// The kernel waits for what is in flight. What has ended is never collected.
unsafe fn destroy(all: [usize; 6]) -> isize {
    let context = all[0] as u64;
    let number = contexts::remove(context);
    // SAFETY: the program's own call.
    let result = unsafe { sys::call6(libc::SYS_io_destroy, all) };
    if let Some(number) = number {
        abandon(number);
    }
    result
}

/// Frees what requests a context had, by its number.
fn abandon(number: u64) {
    shadow::abandon(number, |what| note_end(&what));
}

/// A request has ended, and that is known.
fn note_end(what: &What) {
    if let Some(mount) = mount::get(what.mount) {
        // What it wrote may be newer than what the daemon was told of when it began.
        if what.writes {
            mount.slots.touch(what.entry);
        }
        mount.slots.collect_request(what.entry, 1);
    }
}

unsafe fn events(number: c_long, all: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let count = unsafe { sys::call6(number, all) };
    let is_traced = count > 0 && traced::begin_any().is_some();
    for place in 0..count.max(0) as usize {
        // SAFETY: the kernel has filled so many events.
        let event = unsafe { &mut *(all[3] as *mut Event).add(place) };
        if let Some(what) = shadow::collect(event.request) {
            event.request = what.program;
            note_end(&what);
        }
        if is_traced {
            traced::completed(event.request, event.result);
        }
    }
    count
}

/// Submits requests, so many at a time, and records those that were taken. They are read before: the
/// program may use them again as soon as they are.
unsafe fn submit_traced(all: [usize; 6]) -> isize {
    let (count, list) = (all[1], all[2] as *const *const iocb);
    let is_list = count as isize > 0 && !list.is_null();
    if !is_list || traced::begin_any().is_none() {
        // SAFETY: the program's own call.
        return unsafe { submit(all) };
    }
    let mut done = 0;
    while done < count {
        let part = (count - done).min(RUN_MAX);
        // SAFETY: a part of the program's list, as for the call that it made.
        let result = unsafe { submit_part(all[0], list.add(done), part) };
        if result < 0 && done == 0 {
            return result;
        }
        done += result.max(0) as usize;
        if result < part as isize {
            break;
        }
    }
    done as isize
}

/// Submits and records at most [`RUN_MAX`] requests.
unsafe fn submit_part(context: usize, list: *const *const iocb, count: usize) -> isize {
    let mut requests: [Option<traced::Request>; RUN_MAX] = [const { None }; RUN_MAX];
    for (place, request) in requests.iter_mut().enumerate().take(count) {
        // SAFETY: the program's list, as for the call that it made.
        *request = unsafe { asked(*list.add(place)) };
    }
    let began = traced::begin_any();
    // SAFETY: the program's own call, or a part of it.
    let done = unsafe { submit([context, count, list as usize, 0, 0, 0]) };
    if let Some(began) = began {
        traced::submitted(began, requests.into_iter().take(done.max(0) as usize).flatten());
    }
    done
}

/// Returns what a request asks for, where that moves data.
unsafe fn asked(program: *const iocb) -> Option<traced::Request> {
    if program.is_null() {
        return None;
    }
    // SAFETY: the program's request, as for the call that it made.
    let request = unsafe { program.read_unaligned() };
    let (at, parts) = (request.aio_buf, request.aio_nbytes);
    let (writes, bytes) = match request.aio_lio_opcode {
        PREAD => (false, parts),
        PWRITE => (true, parts),
        // SAFETY: as above.
        PREADV => (false, unsafe { traced::bytes_of(at as *const libc::iovec, parts as usize) }),
        // SAFETY: as above.
        PWRITEV => (true, unsafe { traced::bytes_of(at as *const libc::iovec, parts as usize) }),
        _ => return None,
    };
    let (fd, offset) = (request.aio_fildes as Fd, request.aio_offset);
    Some(traced::Request { fd, writes, offset, bytes, key: program as u64 })
}

/// Submits runs of requests, one after another, until one is not taken whole.
unsafe fn submit(all: [usize; 6]) -> isize {
    let (context, count, list) = (all[0], all[1], all[2] as *const *const iocb);
    // SAFETY: the program's own call, or a part of it.
    let plain = |from: usize, count: usize| unsafe {
        syscall!(libc::SYS_io_submit, all[0], count, list.wrapping_add(from))
    };
    let number = contexts::number(context as u64);
    let Some(number) = number.filter(|_| count as isize > 0 && !list.is_null()) else {
        return plain(0, count);
    };
    let context = Context { address: context as u64, number };
    // SAFETY: the program's list, as for the call that it made.
    let requests = unsafe { std::slice::from_raw_parts(list, count) };
    let mut done = 0;
    while let rest @ [_, others @ ..] = &requests[done..] {
        let (asked, result) = direct(context, rest).unwrap_or_else(|| {
            let asked = 1 + others.iter().take_while(|other| Wanted::of(**other).is_none()).count();
            (asked, plain(done, asked))
        });
        if result < 0 && done == 0 {
            return result;
        }
        done += result.max(0) as usize;
        if result < asked as isize {
            break;
        }
    }
    done as isize
}

/// A context that is known.
#[derive(Clone, Copy)]
struct Context {
    address: u64,
    number: u64,
}

/// A request that may go to the device.
struct Wanted {
    program: u64,
    request: iocb,
    fd: Fd,
    direction: Direction,
}

impl Wanted {
    fn of(program: *const iocb) -> Option<Self> {
        if program.is_null() {
            return None;
        }
        // SAFETY: the program's request, as for the call that it made.
        let request = unsafe { program.read_unaligned() };
        let direction = match request.aio_lio_opcode {
            PREAD | PREADV => Direction::Read,
            PWRITE | PWRITEV => Direction::Write,
            _ => return None,
        };
        let is_plain = request.aio_flags == 0 && request.aio_rw_flags == 0;
        let fd = request.aio_fildes as Fd;
        let is_leased = is_plain && !matches!(table::find(fd), table::Found::Nothing);
        is_leased.then_some(Self { program: program as u64, request, fd, direction })
    }

    /// Says where it reads or writes, where that can be done in one piece.
    fn io(&self, visit: &Visit) -> Result<Io, Fallback> {
        let (open, mount) = (&visit.open, visit.mount);
        let is_allowed = match self.direction {
            Direction::Read => open.may_read,
            // A failed flush would be told to nothing but the program.
            _ => open.may_write && !open.is_durable && !mount.is_read_only(),
        };
        if !is_allowed {
            return Err(Fallback::Forbidden);
        }
        let at = self.request.aio_buf;
        let memory = match self.request.aio_lio_opcode {
            PREADV | PWRITEV => i32::try_from(self.request.aio_nbytes)
                .ok()
                .and_then(|count| direct::gather(self.fd, at as *const libc::iovec, count))
                .ok_or(Fallback::Unaligned)?,
            _ => Memory::Buffer(at as *mut _, self.request.aio_nbytes as usize),
        };
        if memory.is_mapped() {
            return Err(Fallback::Other);
        }
        let is_aligned = match memory {
            Memory::Buffer(at, _) => (at as u64).is_multiple_of(mount.memory_alignment),
            Memory::Vector(..) => true,
        };
        let offset = u64::try_from(self.request.aio_offset).map_err(|_| Fallback::Other)?;
        let io = Io { direction: self.direction, offset, len: memory.len() as u64 };
        if !is_aligned || io.is_odd(mount.reader.geometry().alignment_bytes) {
            return Err(Fallback::Unaligned);
        }
        Ok(io)
    }
}

/// Requests on one open file, in one direction, while the slot is set.
struct Run<'a> {
    visit: &'a Visit,
    context: Context,
    counter: Fd,
    direction: Direction,
    count: usize,
    tickets: [Option<Ticket>; RUN_MAX],
}

impl Run<'_> {
    /// Takes one in that goes to this place on the device.
    fn add(&mut self, wanted: &Wanted, at: u64) -> bool {
        let Visit { open, mount, .. } = self.visit;
        let mut request = wanted.request;
        request.aio_fildes = mount.device() as _;
        request.aio_offset = at as _;
        request.aio_flags = FLAG_RESFD;
        request.aio_resfd = self.counter as _;
        let what = What {
            program: wanted.program,
            context: self.context.number,
            mount: open.mount,
            entry: open.lease.entry,
            writes: self.direction == Direction::Write,
        };
        debug_assert!(self.count < RUN_MAX, "a run has room for one more: {}", self.count);
        let Some(ticket) = shadow::take(request, &what) else { return false };
        self.tickets[self.count] = Some(ticket);
        self.count += 1;
        true
    }

    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.tickets[..self.count].iter().flatten().copied()
    }

    /// Adds those that follow and belong to it.
    fn extend(&mut self, fd: Fd, more: &[*const iocb]) {
        let Visit { open, mount, .. } = self.visit;
        for program in more.iter().take(RUN_MAX - 1) {
            let is_alike = |it: &Wanted| it.fd == fd && it.direction == self.direction;
            let Some(wanted) = Wanted::of(*program).filter(is_alike) else { return };
            let also = |io| mount.reader.also_io(&mount.slots, open.lease, io);
            let Ok(permit) = wanted.io(self.visit).and_then(also) else { return };
            if !self.add(&wanted, permit.device_offset) {
                return;
            }
        }
    }

    /// Hands them to the kernel, and clears the slot.
    fn submit(self) -> isize {
        let Visit { open, mount, slot } = self.visit;
        let (slots, entry) = (&mount.slots, open.lease.entry);
        let mut list = [std::ptr::null(); RUN_MAX];
        for (place, ticket) in list.iter_mut().zip(self.tickets()) {
            *place = ticket.request();
        }
        slots.begin_requests(entry, self.count as u64);
        if self.direction == Direction::Write {
            slots.touch(entry);
        }
        debug_assert!(
            self.count > 0 && list[..self.count].iter().all(|request| !request.is_null()),
            "each request of a run has a copy"
        );
        let (context, list) = (self.context.address, list.as_ptr());
        // SAFETY: the requests are copies of the program's, which stay as long as they are in
        // flight.
        let result = unsafe { syscall!(libc::SYS_io_submit, context, self.count, list) };
        let taken = result.max(0) as usize;
        debug_assert!(
            taken <= self.count,
            "the kernel takes no more than there are: {taken} of {}",
            self.count
        );
        if taken < self.count {
            slots.unbegin_requests(entry, (self.count - taken) as u64);
        }
        for (place, ticket) in self.tickets().enumerate() {
            if place < taken { ticket.settle() } else { ticket.give_back() }
        }
        (0..taken).for_each(|_| slots.count_done(*slot, self.direction));
        slots.leave(*slot);
        // The context was destroyed meanwhile: nothing collects them.
        if taken > 0 && contexts::number(context) != Some(self.context.number) {
            abandon(self.context.number);
        }
        result
    }
}

/// Submits as many as belong together of requests from the first on, and returns how many those
/// were and the kernel's result; nothing where the first is the mount's.
fn direct(context: Context, requests: &[*const iocb]) -> Option<(usize, isize)> {
    let (first, more) = requests.split_first()?;
    let first = Wanted::of(*first)?;
    let visit = enter(first.fd)?;
    let (mount, slot) = (visit.mount, visit.slot);
    let io = first.io(&visit).inspect_err(|why| mount.slots.count_fallback(slot, *why)).ok()?;
    let counter = counter::of(mount)?;
    // No handler leaves this for good, or begins something of its own meanwhile.
    let _signals = Signals::hold_back(OF_INSTRUCTIONS);
    let permit = mount.reader.begin_io(&mount.slots, slot, visit.open.lease, io);
    let permit = permit.map_err(|why| direct::refused::<()>(first.fd, &visit, why)).ok()?;
    if mount.slots.is_paused() {
        return visit.give_up(Fallback::Revoked);
    }
    // The threads of this process take turns at the file, and a request has no thread.
    if permit.is_odd_owner {
        return visit.give_up(Fallback::Other);
    }
    if !visit.is_still(first.fd) {
        return visit.lost(first.fd);
    }
    let (direction, tickets) = (first.direction, [None; RUN_MAX]);
    let mut run = Run { visit: &visit, context, counter, direction, count: 0, tickets };
    if !run.add(&first, permit.device_offset) {
        return visit.give_up(Fallback::Other);
    }
    run.extend(first.fd, more);
    let count = run.count;
    let result = run.submit();
    // All but "later" is the mount's to find and to report.
    (result > 0 || result == -(libc::EAGAIN as isize)).then_some((count, result))
}
