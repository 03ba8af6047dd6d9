//! The daemon's half, made up: one file is leased, and a test says what goes wrong.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bedplate_lease::wire::{Answer, Offer, Place, REQUEST_BYTES, Request, SocketName, Token};
use bedplate_lease::{
    ClientSlots, EntryRef, Extent, FileLease, Geometry, Lease, PageShape, PageShard, Publisher,
    Reason, SLOTS_PER_CLIENT, SharedPages, State, Tail, slots_words,
};

use super::device::Memory;
use super::filesystem::{DATA, SIZE};

pub const KIB: u64 = 1 << 10;
pub const DEVICE_BYTES: u64 = 4096 * KIB;
/// Where the first 128 KiB of `data` lie on the device.
pub const FIRST: u64 = 1024 * KIB;
/// The size of the file that grows.
pub const SHORT: u64 = 96 * KIB;
/// Where the next 64 KiB lie, which may only be read; the last 64 KiB have no extent.
pub const SECOND: u64 = 2048 * KIB;

const MOUNT: u64 = 77;

pub struct Daemon {
    pub publisher: Mutex<Publisher<Memory>>,
    pub control: Memory,
    pub clients: Mutex<Vec<ClientSlots<Memory>>>,
    pub requests: Mutex<Vec<Request>>,
    /// Count the ends of asynchronous requests, one for each client that makes any.
    pub counters: Mutex<Vec<OwnedFd>>,
    /// Why nothing is leased.
    pub refusal: Mutex<Option<Reason>>,
    /// The ioctl is answered.
    pub knows_ioctl: AtomicBool,
    /// A client that asks for a tail gets one, once.
    pub has_tail: AtomicBool,
    /// The pages that processes read, where there are any.
    pub cache: Mutex<Option<Cache>>,
    /// There is a socket.
    pub listens: AtomicBool,
    tokens: Mutex<HashSet<Token>>,
    token_last: AtomicU64,
    socket: String,
    device: File,
}

fn extents() -> [Extent; 2] {
    [
        Extent { logical: 0, device: FIRST, len: 128 * KIB, is_writable: true },
        Extent { logical: 128 * KIB, device: SECOND, len: 64 * KIB, is_writable: false },
    ]
}

impl Daemon {
    pub fn new(device: &Path) -> Arc<Self> {
        let geometry = Geometry {
            mount: MOUNT,
            alignment_bytes: 512,
            entries: 16,
            extents: 64,
            device_bytes: DEVICE_BYTES,
        };
        let control = Memory::new(c"control", geometry.words());
        let publisher = Publisher::create(control.clone(), geometry).unwrap();
        publisher.control().set_state(State::Serving);
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(device)
            .unwrap();
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let daemon = Arc::new(Self {
            publisher: Mutex::new(publisher),
            control,
            clients: Mutex::default(),
            requests: Mutex::default(),
            counters: Mutex::default(),
            refusal: Mutex::default(),
            knows_ioctl: AtomicBool::new(true),
            has_tail: AtomicBool::new(false),
            cache: Mutex::default(),
            listens: AtomicBool::new(true),
            tokens: Mutex::default(),
            token_last: AtomicU64::new(0),
            socket: format!("\0bedplate-preload-{}-{number}", std::process::id()),
            device,
        });
        daemon.publish();
        daemon.listen().unwrap();
        daemon
    }

    /// Publishes `data`, or what the entry says of it anew.
    fn publish(&self) {
        let mut publisher = self.publisher.lock().unwrap();
        let extents = extents();
        let of = publisher.publish(DATA, &lease(&extents)).unwrap();
        publisher.control().restore(of);
    }

    pub fn entry(&self) -> EntryRef {
        self.publisher.lock().unwrap().find(DATA).unwrap()
    }

    /// Changes what the entry says.
    pub fn rewrite(&self, change: impl FnOnce(&mut FileLease)) {
        let of = self.entry();
        let mut publisher = self.publisher.lock().unwrap();
        let extents = extents();
        let mut file = lease(&extents);
        change(&mut file);
        publisher.control().revoke(of);
        publisher.rewrite(of, &file);
        publisher.control().restore(of);
    }

    /// Gives the client a tail, from where the file ends with [`SHORT`] to where its extent does.
    pub fn give_tail(&self) -> bool {
        if !self.has_tail.swap(false, Ordering::SeqCst) {
            return false;
        }
        let entry = self.entry().index;
        self.clients.lock().unwrap().last().unwrap().set_filled(entry, SHORT);
        self.rewrite(|file| {
            file.size_bytes = SHORT;
            file.tail = Some(Tail { owner: 1, end_bytes: 128 * KIB, number: 1 });
        });
        true
    }

    /// What the kernel counted of the last client's requests since this was last asked.
    pub fn ended(&self) -> u64 {
        let mut count = 0_u64;
        let counters = self.counters.lock().unwrap();
        let Some(counter) = counters.last() else { return 0 };
        // SAFETY: the kernel fills a word.
        unsafe { libc::read(counter.as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    }

    pub fn answers_ioctl(&self) -> bool {
        self.knows_ioctl.load(Ordering::SeqCst)
    }

    pub fn offer(&self, inode: u64) -> Offer {
        let refusal = *self.refusal.lock().unwrap();
        let kind = (inode != DATA).then_some(Reason::Kind);
        let number = self.token_last.fetch_add(1, Ordering::SeqCst) + 1;
        let token: Token = std::array::from_fn(|i| number.to_le_bytes()[i % 8]);
        self.tokens.lock().unwrap().insert(token);
        let name = if self.listens.load(Ordering::SeqCst) { &self.socket } else { "\0nothing" };
        let socket = SocketName::new(name.as_bytes()).unwrap();
        let leased = match refusal.or(kind) {
            Some(reason) => Err(reason),
            None => Ok(Place { token, socket }),
        };
        Offer { mount: MOUNT, inode, leased }
    }

    fn listen(self: &Arc<Self>) -> Result<()> {
        let listener = listener(&self.socket)?;
        // Ends with the test's process: a clone of what it needs is all it holds.
        let daemon = Arc::downgrade(self);
        std::thread::spawn(move || {
            loop {
                // SAFETY: no address is asked for.
                let fd = unsafe {
                    libc::accept4(
                        listener.as_raw_fd(),
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                        libc::SOCK_CLOEXEC,
                    )
                };
                let Some(daemon) = daemon.upgrade().filter(|_| fd >= 0) else { return };
                // SAFETY: the descriptor is new.
                let connection = unsafe { OwnedFd::from_raw_fd(fd) };
                std::thread::spawn(move || daemon.serve(&connection));
            }
        });
        Ok(())
    }

    fn serve(&self, connection: &OwnedFd) {
        let mut bytes = [0_u8; REQUEST_BYTES + 1];
        loop {
            // SAFETY: the kernel fills the bytes.
            let got = unsafe {
                libc::recv(connection.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0)
            };
            let Some(got) = usize::try_from(got).ok().filter(|&got| got > 0) else { return };
            let Ok(request) = Request::decode(&bytes[..got]) else { return };
            let (answer, slots) = self.answer(request);
            self.requests.lock().unwrap().push(request);
            let (device, control) = (self.device.as_raw_fd(), self.control.fd());
            match (request, slots) {
                (Request::Requests, _) => {
                    // SAFETY: a new descriptor, if any.
                    let counter = unsafe {
                        OwnedFd::from_raw_fd(libc::eventfd(
                            0,
                            libc::EFD_CLOEXEC | libc::EFD_NONBLOCK,
                        ))
                    };
                    let life = Memory::new(c"life", 512);
                    send(connection.as_raw_fd(), &answer, &[counter.as_raw_fd(), life.fd()]);
                    self.counters.lock().unwrap().push(counter);
                }
                (_, Some(slots)) => {
                    let mut all = vec![device, device, control, slots.fd()];
                    if let Some(cache) = &*self.cache.lock().unwrap() {
                        all.extend([&cache.frames, &cache.directory, &cache.uses].map(Memory::fd));
                    }
                    send(connection.as_raw_fd(), &answer, &all);
                }
                (_, None) => send(connection.as_raw_fd(), &answer, &[]),
            }
        }
    }

    fn answer(&self, request: Request) -> (Answer, Option<Memory>) {
        let of = self.entry();
        let lease = Some(Lease { entry: of.index, generation: of.generation });
        let refused = |reason| (Answer::refused(reason), None);
        match request {
            Request::Attach { token } | Request::Publish { token }
                if !self.tokens.lock().unwrap().remove(&token) =>
            {
                refused(Reason::Token)
            }
            Request::Attach { .. } => {
                let memory = Memory::new(c"slots", slots_words(SLOTS_PER_CLIENT, 16));
                let client = ClientSlots::create(memory.clone(), SLOTS_PER_CLIENT, 16, 1).unwrap();
                self.clients.lock().unwrap().push(client);
                (Answer { lease, ..Answer::DONE }, Some(memory))
            }
            Request::Publish { .. } => (Answer { lease, ..Answer::DONE }, None),
            Request::Suspend { .. } => {
                self.rewrite(|file| {
                    (file.may_read, file.may_write, file.may_sync) = (false, false, false);
                });
                (Answer::DONE, None)
            }
            Request::Close { .. } | Request::FlushFailed { .. } | Request::Requests => {
                (Answer::DONE, None)
            }
        }
    }
}

/// The number by which the cache knows `data`.
pub const CACHE_FILE: u64 = 9;
const PAGE_BYTES: usize = 4096;

/// A cache with the first pages of `data`, each a frame of its own.
pub struct Cache {
    pub frames: Memory,
    directory: Memory,
    pub uses: Memory,
    shard: PageShard<Memory>,
}

impl Cache {
    /// Makes one of so many pages, filled with `C`.
    pub fn new(pages: u32) -> Self {
        let shape = PageShape { shards: 1, frames: 16, page_bytes: PAGE_BYTES };
        let frames = Memory::new(c"frames", shape.frames_bytes() / 8);
        let directory = Memory::new(c"directory", shape.directory_words());
        let uses = Memory::new(c"uses", shape.uses_words());
        let shared = SharedPages::create(directory.clone(), uses.clone(), shape).unwrap();
        let cache = Self { frames, directory, uses, shard: shared.shard(0, 16) };
        (0..pages).for_each(|page| {
            cache.fill(page, b'C');
            cache.shard.enter(page, CACHE_FILE, page.into());
            cache.shard.publish(page);
        });
        cache
    }

    /// Fills the frame of a page that is not published.
    fn fill(&self, page: u32, byte: u8) {
        let word = u64::from_ne_bytes([byte; 8]);
        let words = PAGE_BYTES / 8;
        let frame = &self.frames[page as usize * words..][..words];
        frame.iter().for_each(|at| at.store(word, Ordering::Relaxed));
    }

    /// Makes the directory one that contradicts itself.
    pub fn damage(&self) {
        self.directory[0].store(7, Ordering::SeqCst);
    }

    /// Writes a page, and may leave it withdrawn.
    pub fn rewrite(&self, page: u32, byte: u8, is_published: bool) {
        self.shard.withdraw(page);
        self.fill(page, byte);
        if is_published {
            self.shard.publish(page);
        }
    }
}

fn lease(extents: &[Extent]) -> FileLease<'_> {
    FileLease {
        may_read: true,
        may_write: true,
        may_sync: true,
        size_bytes: SIZE,
        unsealed_last: 0,
        data_lsn: 0,
        sharing: 0,
        extents,
        tail: None,
        cache_file: 0,
    }
}

fn listener(name: &str) -> Result<OwnedFd> {
    // SAFETY: a new descriptor; the address is whole, and all zeros is one.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
        let address = (&raw const address).cast();
        if libc::bind(fd.as_raw_fd(), address, len as u32) != 0
            || libc::listen(fd.as_raw_fd(), 64) != 0
        {
            return Err(Error::last_os_error());
        }
        Ok(fd)
    }
}

fn send(socket: i32, answer: &Answer, fds: &[i32]) {
    let mut bytes = answer.encode();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 8];
    // SAFETY: the message points to what lives here; the control memory has room for seven
    // descriptors behind a head.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of_val(fds) as u32) as usize;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of_val(fds) as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(head).cast(), fds.len());
        }
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL);
    }
}
