//! Mounts that this process is a client of: socket, device, shared memory.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};

use bedplate_lease::wire::{
    ANSWER_BYTES, ATTACH_DESCRIPTORS, Answer, Offer, Place, REQUESTS_DESCRIPTORS, Request,
};
use bedplate_lease::{Lease, Reader, Reason, Slots};

use crate::own;
use crate::process::{self, Held};
use crate::shared::{Cache, Shared, map};
use crate::sys::{self, Fd, syscall};
use crate::{contexts, shadow, table};

/// Mounts that a process can be a client of at the same time.
pub const MOUNTS: usize = 4;
const _: () = assert!(MOUNTS <= table::MOUNTS_MAX, "a word has room for the number of every mount");

const NOT_ASKED: Fd = -1;

/// One mount.
pub struct Mount {
    /// Tells this mount's files from those of others.
    pub dev: u64,
    /// The mount's number, by which an offer names it.
    number: u64,
    /// What may be read and written, and where.
    pub reader: Reader<Shared>,
    /// Which file each thread does I/O on.
    pub slots: Slots<Shared>,
    /// The daemon's cache; nothing where it has none for others, or it does not fit into memory.
    pub cache: Option<Cache>,
    /// For I/O: a description of this process's own.
    device: AtomicI32,
    /// The one before it, which allowed only reads: a thread may still be using it. -1: none.
    replaced: AtomicI32,
    /// Kept open for as long as this process is a client.
    claim: Fd,
    socket: Fd,
    /// Counts the ends of asynchronous requests; or [`NOT_ASKED`], or less: there is none.
    counter: AtomicI32,
    /// What addresses of memory have to be multiples of.
    pub memory_alignment: u64,
    /// The description allows only reads.
    is_read_only: AtomicBool,
    /// The kernel can compare descriptors.
    pub has_query: bool,
}

struct Seat {
    /// The epoch in which this seat was taken; 0 is free.
    epoch: AtomicU64,
    mount: UnsafeCell<Option<Mount>>,
}

// SAFETY: `mount` is written under the process's lock before `epoch` says so, and not again within
// that epoch.
unsafe impl Sync for Seat {}

static SEATS: [Seat; MOUNTS] =
    [const { Seat { epoch: AtomicU64::new(0), mount: UnsafeCell::new(None) } }; MOUNTS];

/// Returns a mount of this process.
#[inline]
pub fn get(index: usize) -> Option<&'static Mount> {
    let seat = SEATS.get(index)?;
    let epoch = process::epoch();
    if epoch == 0 || seat.epoch.load(Acquire) != epoch {
        return None;
    }
    // SAFETY: the seat was taken in this epoch: written before, and not again.
    unsafe { (*seat.mount.get()).as_ref() }
}

/// All mounts of this process.
pub fn all() -> impl Iterator<Item = &'static Mount> {
    (0..MOUNTS).filter_map(get)
}

/// Lets go of what a fork copied from the parent: its socket above all, whose end tells the daemon
/// of the parent's. The mappings stay, for a call in the parent's midst that a signal handler
/// forked out of.
pub fn forget_parents() {
    contexts::forget_parents();
    shadow::forget_parents();
    for seat in &SEATS {
        if seat.epoch.swap(0, Relaxed) == 0 {
            continue;
        }
        // SAFETY: of the parent's epoch; a child begins with one thread, which holds the lock.
        if let Some(mount) = unsafe { (*seat.mount.get()).as_ref() } {
            let replaced = mount.replaced.load(Relaxed);
            for fd in [mount.device(), mount.claim, mount.socket] {
                own::close(fd);
            }
            let counter = mount.counter().flatten().unwrap_or(-1);
            [replaced, counter].into_iter().filter(|&fd| fd >= 0).for_each(own::close);
        }
    }
}

/// Asks the daemon to publish a file; attaches first where the mount is a new one. Returns the
/// mount's place and the lease.
pub fn publish(
    held: &Held,
    offer: &Offer,
    place: &Place,
    dev: u64,
) -> Result<(usize, Lease), Reason> {
    let known = (0..MOUNTS).find(|&i| get(i).is_some_and(|mount| mount.number == offer.mount));
    let (index, answer) = match known {
        Some(index) => {
            let mount = get(index).ok_or(Reason::Failed)?;
            (index, mount.ask(held, &Request::Publish { token: place.token })?)
        }
        None => attach(held, offer, place, dev)?,
    };
    answer.lease.map(|lease| (index, lease)).ok_or(Reason::TooManyFiles)
}

fn attach(_held: &Held, offer: &Offer, place: &Place, dev: u64) -> Result<(usize, Answer), Reason> {
    let index = (0..MOUNTS).find(|&i| get(i).is_none()).ok_or(Reason::TooManyClients)?;
    let socket = connect(place).ok_or(Reason::Failed)?;
    let asked = send(socket, &Request::Attach { token: place.token })
        .then(|| receive(socket))
        .flatten()
        .ok_or(Reason::Failed);
    let received = asked.and_then(|(answer, fds)| {
        if let Err(reason) = answer.done {
            fds.into_iter().flatten().for_each(sys::close);
            return Err(reason);
        }
        Ok((answer, fds))
    });
    let (answer, fds) = received.inspect_err(|_| own::close(socket))?;
    let Some(mount) = assemble(offer, dev, socket, fds, answer.is_read_only) else {
        own::close(socket);
        return Err(Reason::Failed);
    };
    let seat = &SEATS[index];
    // SAFETY: the seat is free in this epoch, and the lock is held.
    unsafe { *seat.mount.get() = Some(mount) };
    seat.epoch.store(process::epoch(), Release);
    Ok((index, answer))
}

/// Makes a mount of what came with the answer; closes all of it where something is wrong.
fn assemble(
    offer: &Offer,
    dev: u64,
    socket: Fd,
    fds: [Option<Fd>; ATTACH_DESCRIPTORS],
    is_read_only: bool,
) -> Option<Mount> {
    let [claim, device, control, slots, cache @ ..] = fds;
    let cache = Cache::of(cache);
    let reader = control.and_then(|fd| map(fd, libc::PROT_READ));
    let slots = slots.and_then(|fd| map(fd, libc::PROT_READ | libc::PROT_WRITE));
    let (claim, device) = (claim.and_then(own::move_away), device.and_then(own::move_away));
    let made = || {
        let reader = Reader::open(reader?).ok()?;
        let slots = Slots::open(slots?).ok()?;
        let device = device?;
        let kind = sys::stat(device)?.st_mode & libc::S_IFMT;
        let is_sound =
            matches!(kind, libc::S_IFBLK | libc::S_IFREG) && reader.geometry().mount == offer.mount;
        is_sound.then_some(Mount {
            dev,
            number: offer.mount,
            reader,
            slots,
            cache,
            device: AtomicI32::new(device),
            replaced: AtomicI32::new(-1),
            claim: claim?,
            socket,
            counter: AtomicI32::new(NOT_ASKED),
            memory_alignment: memory_alignment(device),
            is_read_only: AtomicBool::new(is_read_only),
            has_query: sys::is_same(device, device) == Some(true),
        })
    };
    let mount = made();
    if mount.is_none() {
        [claim, device].into_iter().flatten().for_each(own::close);
    }
    mount
}

/// What the device wants of addresses of memory: a sector where it does not say.
fn memory_alignment(device: Fd) -> u64 {
    const SECTOR: u64 = 512;
    let Some(stat) = sys::statx(device, 0, libc::STATX_DIOALIGN) else { return SECTOR };
    let says = stat.stx_mask & libc::STATX_DIOALIGN != 0;
    let alignment = u64::from(stat.stx_dio_mem_align);
    if says && alignment.is_power_of_two() { alignment } else { SECTOR }
}

fn connect(place: &Place) -> Option<Fd> {
    // SAFETY: all zeros is an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = place.socket.as_bytes();
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // A path ends with a 0, a name without a file with its last byte.
    let is_path = name.first() != Some(&0);
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len() + usize::from(is_path);
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    let low = unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) };
    let socket = (low >= 0).then(|| own::move_away(low as Fd)).flatten()?;
    // SAFETY: the kernel reads the address.
    if unsafe { syscall!(libc::SYS_connect, socket, &raw const address, len) } != 0 {
        own::close(socket);
        return None;
    }
    Some(socket)
}

fn send(socket: Fd, request: &Request) -> bool {
    let bytes = request.encode();
    // SAFETY: the kernel reads the bytes.
    let sent = unsafe {
        syscall!(libc::SYS_sendto, socket, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0, 0)
    };
    sent == bytes.len() as isize
}

/// Room for the descriptors of a message, aligned as its head.
const CONTROL_WORDS: usize = 8;

/// Receives an answer and what came with it.
fn receive(socket: Fd) -> Option<(Answer, [Option<Fd>; ATTACH_DESCRIPTORS])> {
    let mut bytes = [0_u8; ANSWER_BYTES];
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel fills what the message points to, within the lengths it says.
    let got =
        unsafe { syscall!(libc::SYS_recvmsg, socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let mut fds = [None; ATTACH_DESCRIPTORS];
    let head = size_of::<libc::cmsghdr>();
    let received = (message.msg_controllen as usize).min(size_of_val(&control));
    let byte = |at: usize| (control[at / 8] >> (at % 8 * 8)) as u32;
    let number = |at: usize| i32::from_ne_bytes(std::array::from_fn(|i| byte(at + i) as u8));
    let is_rights = received >= head
        && number(head - 8) == libc::SOL_SOCKET
        && number(head - 4) == libc::SCM_RIGHTS;
    if is_rights {
        let count = ((control[0] as usize).min(received) - head) / size_of::<Fd>();
        for (i, fd) in fds.iter_mut().enumerate().take(count) {
            *fd = Some(number(head + i * size_of::<Fd>()));
        }
    }
    if got <= 0 {
        fds.into_iter().flatten().for_each(sys::close);
        return None;
    }
    Some((Answer::decode(&bytes[..got as usize]), fds))
}

impl Mount {
    /// Returns the description for I/O.
    #[inline]
    pub fn device(&self) -> Fd {
        self.device.load(Relaxed)
    }

    /// Tells whether the description allows only reads.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Acquire)
    }

    /// Takes a description that allows writing in place of one that allows only reads. The old one
    /// stays open: another thread may be about to read from it.
    fn widen(&self, _held: &Held, device: Fd) {
        let kind = sys::stat(device).map_or(0, |stat| stat.st_mode & libc::S_IFMT);
        let was = sys::stat(self.device()).map_or(0, |stat| stat.st_mode & libc::S_IFMT);
        if !self.is_read_only() || kind == 0 || kind != was {
            return sys::close(device);
        }
        if let Some(device) = own::move_away(device) {
            self.replaced.store(self.device.swap(device, Relaxed), Relaxed);
            self.is_read_only.store(false, Release);
        }
    }

    /// Returns what is kept open for as long as this process is a client.
    pub fn claim(&self) -> Fd {
        self.claim
    }

    /// Returns the counter of asynchronous requests, if there is one; nothing where it was not asked
    /// for yet.
    #[inline]
    pub fn counter(&self) -> Option<Option<Fd>> {
        let counter = self.counter.load(Acquire);
        (counter != NOT_ASKED).then(|| (counter >= 0).then_some(counter))
    }

    /// Notes what came of asking for it.
    pub fn set_counter(&self, _held: &Held, counter: Option<Fd>) {
        self.counter.store(counter.unwrap_or(NOT_ASKED - 1), Release);
    }

    /// Asks the daemon to count the asynchronous requests of this process; returns the counter, and
    /// what tells the daemon that the process has its memory.
    pub fn ask_requests(&self, _held: &Held) -> Option<[Fd; REQUESTS_DESCRIPTORS]> {
        if !send(self.socket, &Request::Requests) {
            return None;
        }
        match receive(self.socket)? {
            (_, [Some(counter), Some(life), None, ..]) => Some([counter, life]),
            (_, fds) => {
                fds.into_iter().flatten().for_each(sys::close);
                None
            }
        }
    }

    /// Asks the daemon for something and waits for its answer.
    pub fn ask(&self, held: &Held, request: &Request) -> Result<Answer, Reason> {
        if !send(self.socket, request) {
            return Err(Reason::State);
        }
        let (answer, fds) = receive(self.socket).ok_or(Reason::State)?;
        // As with the answer to an attach: the second one is for I/O.
        let [claim, device, rest @ ..] = fds;
        claim.into_iter().chain(rest.into_iter().flatten()).for_each(sys::close);
        if let Some(device) = device {
            self.widen(held, device);
        }
        answer.done.map(|()| answer)
    }
}
