//! A guest of vhost-user-blk without a machine around it: memory that is shared with the server, and
//! queues of virtio-blk in it.
//!
//! ```text
//!   calls of threads ── a queue each, one request at a time ─┐
//!                                                            ├─ memory ── server
//!   a list ──────────── one queue, many requests ────────────┘
//! ```
//! Each request has a slot: a header, data, a status, and the three descriptors that chain them,
//! which are written once. What is read or written is copied out of and into the shared memory, as a
//! guest's kernel does for buffered I/O; one that reads past its page cache saves that copy.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use bedplate::AlignedBuf;
use parking_lot::{Condvar, Mutex};
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_S_OK, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::target::{Done, Op, OpKind, QueueSetup, TargetFile, TargetQueue};
use crate::{Error, Result};

/// Where the memory begins for the guest: not at 0, so that an offset is told from an address.
const BASE: u64 = 1 << 20;
const SECTOR_BYTES: u64 = 512;
const PAGE_BYTES: u64 = 4096;
/// A request: its header, which the server reads, and its status, which it writes.
const HEADER_BYTES: u64 = 32;
const STATUS_AT: u64 = 16;
/// No status is that.
const NO_STATUS: u8 = 0xee;
/// A server that does not answer for so long has failed.
const PATIENCE_MS: i32 = 60_000;

/// How large the queues are.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuestSetup {
    /// How many queues: as many threads call at once.
    pub queues: usize,
    /// Requests that a queue holds.
    pub depth: usize,
    /// The most that a request moves, in bytes.
    pub buffer_bytes: usize,
}

impl GuestSetup {
    /// Returns how many entries a queue has: three a request, in a power of two.
    pub(super) fn entries(&self) -> u16 {
        let entries = (self.depth * 3).next_power_of_two();
        u16::try_from(entries).expect("a depth of at most 4096 was validated")
    }
}

/// A guest, connected to its server. Any number of threads may use it.
pub(super) struct Guest {
    /// The session ends with it.
    _frontend: Mutex<Frontend>,
    free: Mutex<Vec<Virtqueue>>,
    freed: Condvar,
    setup: GuestSetup,
}

impl Guest {
    /// Connects to a server, shares memory with it, and starts the queues.
    ///
    /// # Errors
    /// `Io` where the server is not reached or refuses.
    pub(super) fn connect(socket: &Path, setup: GuestSetup) -> Result<Arc<Self>> {
        let failed = |e: vhost::Error| Error::io(socket.display(), "cannot use the server", e);
        let mut frontend = Frontend::connect(socket, setup.queues as u64)
            .map_err(|e| Error::io(socket.display(), "cannot connect", e))?;
        frontend.set_owner().map_err(failed)?;
        let wanted = [VIRTIO_F_VERSION_1, VIRTIO_RING_F_EVENT_IDX, VIRTIO_BLK_F_FLUSH];
        let wanted = wanted.into_iter().chain([VIRTIO_BLK_F_MQ, PROTOCOL_FEATURES]);
        let wanted: u64 = wanted.map(|bit| 1 << bit).sum();
        let features = frontend.get_features().map_err(failed)? & wanted;
        let protocol = frontend
            .get_protocol_features()
            .map_err(|e| Error::io(socket.display(), "cannot use the server", e))?
            & (VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK);
        frontend
            .set_protocol_features(protocol)
            .map_err(|e| Error::io(socket.display(), "cannot use the server", e))?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features).map_err(failed)?;
        let room = Room::of(&setup);
        let memory = memory(room.queue_bytes * setup.queues as u64)
            .map_err(|e| Error::io(socket.display(), "cannot make memory to share", e))?;
        let regions = regions(&memory).map_err(failed)?;
        frontend.set_mem_table(&regions).map_err(failed)?;
        let knows_events = features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let queues = (0..setup.queues)
            .map(|index| {
                let queue = Virtqueue::new(index, &memory, &room, &setup, knows_events)?;
                queue.start(&mut frontend).map_err(failed)?;
                Ok(queue)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self {
            _frontend: Mutex::new(frontend),
            free: Mutex::new(queues),
            freed: Condvar::new(),
            setup,
        }))
    }

    /// Takes a queue that no other thread has, and gives it back afterwards.
    fn with_queue<T>(&self, f: impl FnOnce(&mut Virtqueue) -> Result<T>) -> Result<T> {
        let mut queue = self.take();
        let done = f(&mut queue);
        self.give_back(queue);
        done
    }

    fn take(&self) -> Virtqueue {
        let mut free = self.free.lock();
        loop {
            match free.pop() {
                Some(queue) => return queue,
                None => self.freed.wait(&mut free),
            }
        }
    }

    fn give_back(&self, queue: Virtqueue) {
        self.free.lock().push(queue);
        self.freed.notify_one();
    }
}

/// The bit by which protocol features are agreed on: vhost-user's own, none of virtio's.
const PROTOCOL_FEATURES: u32 = 30;

/// Makes memory that can be shared.
fn memory(bytes: u64) -> std::io::Result<GuestMemoryMmap> {
    let file = File::from(rustix::fs::memfd_create("bedplate-bench", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    let range = (GuestAddress(BASE), bytes as usize, Some(FileOffset::new(file, 0)));
    GuestMemoryMmap::from_ranges_with_files([range]).map_err(std::io::Error::other)
}

fn regions(memory: &GuestMemoryMmap) -> vhost::Result<Vec<VhostUserMemoryRegionInfo>> {
    memory.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect()
}

/// Where the parts of a queue lie, from its beginning on.
#[derive(Debug, Clone, Copy)]
struct Room {
    available: u64,
    used: u64,
    headers: u64,
    data: u64,
    data_bytes: u64,
    queue_bytes: u64,
}

impl Room {
    fn of(setup: &GuestSetup) -> Self {
        let (entries, depth) = (u64::from(setup.entries()), setup.depth as u64);
        let available = (entries * 16).next_multiple_of(PAGE_BYTES);
        let used = available + (6 + entries * 2).next_multiple_of(PAGE_BYTES);
        let headers = used + (6 + entries * 8).next_multiple_of(PAGE_BYTES);
        let data = headers + (depth * HEADER_BYTES).next_multiple_of(PAGE_BYTES);
        let data_bytes = (setup.buffer_bytes as u64).next_multiple_of(PAGE_BYTES);
        let queue_bytes = data + depth * data_bytes;
        Self { available, used, headers, data, data_bytes, queue_bytes }
    }
}

/// A queue in the shared memory, which one thread uses at a time.
struct Virtqueue {
    index: usize,
    memory: GuestMemoryMmap,
    base: u64,
    room: Room,
    entries: u16,
    knows_events: bool,
    kick: EventFd,
    call: EventFd,
    /// Wakes up once for each signal, which so need not be read.
    calls: Epoll,
    /// How many chains were made available, and how many of them the server knows of.
    available: u16,
    told: u16,
    /// How many answers were taken.
    used: u16,
}

fn lost(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::io("vhost-user-blk", "cannot use the shared memory", e)
}

impl Virtqueue {
    fn new(
        index: usize,
        memory: &GuestMemoryMmap,
        room: &Room,
        setup: &GuestSetup,
        knows_events: bool,
    ) -> Result<Self> {
        let event = || EventFd::new(EFD_NONBLOCK).map_err(lost);
        let (call, calls) = (event()?, Epoll::new().map_err(lost)?);
        let once = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), once).map_err(lost)?;
        let queue = Self {
            index,
            memory: memory.clone(),
            base: BASE + index as u64 * room.queue_bytes,
            room: *room,
            entries: setup.entries(),
            knows_events,
            kick: event()?,
            call,
            calls,
            available: 0,
            told: 0,
            used: 0,
        };
        (0..setup.depth as u16).try_for_each(|slot| queue.chain(slot))?;
        Ok(queue)
    }

    /// Writes the descriptors of a slot that are the same for each of its requests.
    fn chain(&self, slot: u16) -> Result<()> {
        let (head, header) = (slot * 3, self.header_at(slot));
        self.descriptor(head, header, STATUS_AT as u32, VRING_DESC_F_NEXT, head + 1)?;
        self.descriptor(head + 2, header + STATUS_AT, 1, VRING_DESC_F_WRITE, 0)
    }

    fn start(&self, frontend: &mut Frontend) -> vhost::Result<()> {
        let user = |offset| {
            let address = self.memory.get_host_address(GuestAddress(self.base + offset));
            address.map(|at| at as u64).map_err(|_| vhost::Error::InvalidGuestMemory)
        };
        let config = VringConfigData {
            queue_max_size: self.entries,
            queue_size: self.entries,
            flags: 0,
            desc_table_addr: user(0)?,
            used_ring_addr: user(self.room.used)?,
            avail_ring_addr: user(self.room.available)?,
            log_addr: None,
        };
        frontend.set_vring_num(self.index, self.entries)?;
        frontend.set_vring_base(self.index, 0)?;
        frontend.set_vring_addr(self.index, &config)?;
        frontend.set_vring_call(self.index, &self.call)?;
        frontend.set_vring_kick(self.index, &self.kick)?;
        frontend.set_vring_enable(self.index, true)
    }

    fn header_at(&self, slot: u16) -> u64 {
        self.base + self.room.headers + u64::from(slot) * HEADER_BYTES
    }

    fn data_at(&self, slot: u16) -> u64 {
        self.base + self.room.data + u64::from(slot) * self.room.data_bytes
    }

    fn put<T: vm_memory::ByteValued>(&self, address: u64, value: T) -> Result<()> {
        self.memory.write_obj(value, GuestAddress(address)).map_err(lost)
    }

    fn get<T: vm_memory::ByteValued>(&self, address: u64) -> Result<T> {
        self.memory.read_obj(GuestAddress(address)).map_err(lost)
    }

    fn descriptor(&self, number: u16, to: u64, len: u32, flags: u32, next: u16) -> Result<()> {
        let at = self.base + u64::from(number) * 16;
        self.put(at, to)?;
        self.put(at + 8, len)?;
        self.put(at + 12, flags as u16)?;
        self.put(at + 14, next)
    }

    /// Makes a request of a slot available; the server is told of it later.
    fn offer(&mut self, slot: u16, request: &Request<'_>) -> Result<()> {
        let (head, header, data) = (slot * 3, self.header_at(slot), self.data_at(slot));
        let (kind, len, flags) = match request {
            Request::Read { len, .. } => (VIRTIO_BLK_T_IN, *len, VRING_DESC_F_WRITE),
            Request::Write { bytes, .. } => (VIRTIO_BLK_T_OUT, bytes.len(), 0),
            Request::Flush => (VIRTIO_BLK_T_FLUSH, 0, 0),
        };
        let offset = match request {
            Request::Read { offset, .. } | Request::Write { offset, .. } => *offset,
            Request::Flush => 0,
        };
        if let Request::Write { bytes, .. } = request {
            self.memory.write_slice(bytes, GuestAddress(data)).map_err(lost)?;
        }
        self.put(header, kind)?;
        self.put(header + 4, 0_u32)?;
        self.put(header + 8, offset / SECTOR_BYTES)?;
        self.put(header + STATUS_AT, NO_STATUS)?;
        // A flush has no data: its header leads to its status.
        let next = if len == 0 { head + 2 } else { head + 1 };
        self.put(self.base + u64::from(head) * 16 + 14, next)?;
        if len > 0 {
            self.descriptor(head + 1, data, len as u32, flags | VRING_DESC_F_NEXT, head + 2)?;
        }
        let ring = self.base + self.room.available;
        self.put(ring + 4 + u64::from(self.available % self.entries) * 2, head)?;
        self.available = self.available.wrapping_add(1);
        self.memory.store(self.available, GuestAddress(ring + 2), Ordering::Release).map_err(lost)
    }

    /// Tells the server of what was made available, where it wants to be told.
    fn tell(&mut self) -> Result<()> {
        if self.told == self.available {
            return Ok(());
        }
        fence(Ordering::SeqCst);
        let used = self.base + self.room.used;
        let wanted = if self.knows_events {
            let event: u16 = self.get(used + 4 + u64::from(self.entries) * 8)?;
            let since = self.available.wrapping_sub(self.told);
            self.available.wrapping_sub(event).wrapping_sub(1) < since
        } else {
            self.get::<u16>(used)? & 1 == 0
        };
        self.told = self.available;
        if wanted { self.kick.write(1).map_err(lost) } else { Ok(()) }
    }

    fn used_index(&self) -> Result<u16> {
        let at = GuestAddress(self.base + self.room.used + 2);
        self.memory.load(at, Ordering::Acquire).map_err(lost)
    }

    /// Takes an answer that is there, and returns its slot.
    fn take(&mut self) -> Result<Option<u16>> {
        if self.used == self.used_index()? {
            return Ok(None);
        }
        let at = self.base + self.room.used + 4 + u64::from(self.used % self.entries) * 8;
        self.used = self.used.wrapping_add(1);
        let slot = (self.get::<u32>(at)? / 3) as u16;
        match u32::from(self.get::<u8>(self.header_at(slot) + STATUS_AT)?) {
            VIRTIO_BLK_S_OK => Ok(Some(slot)),
            status => Err(Error::target(format!(
                "vhost-user-blk: the server answered a request with status {status}"
            ))),
        }
    }

    /// Waits until an answer is there.
    fn wait(&mut self) -> Result<()> {
        self.tell()?;
        loop {
            // Asked for before the look, so that an answer after it is told.
            let at = self.base + self.room.available + 4 + u64::from(self.entries) * 2;
            self.put(at, self.used)?;
            fence(Ordering::SeqCst);
            if self.used != self.used_index()? {
                return Ok(());
            }
            match self.calls.wait(PATIENCE_MS, &mut [EpollEvent::default()]) {
                Ok(0) => {
                    return Err(Error::target(
                        "vhost-user-blk: the server has not answered for a minute",
                    ));
                }
                Err(e) if e.kind() != std::io::ErrorKind::Interrupted => return Err(lost(e)),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Carries one request out alone.
    fn call(&mut self, request: &Request<'_>) -> Result<()> {
        self.offer(0, request)?;
        self.wait()?;
        self.take().map(drop)
    }

    fn copy_out(&self, slot: u16, buf: &mut [u8]) -> Result<()> {
        self.memory.read_slice(buf, GuestAddress(self.data_at(slot))).map_err(lost)
    }
}

/// What a request asks for.
enum Request<'a> {
    Read { offset: u64, len: usize },
    Write { offset: u64, bytes: &'a [u8] },
    Flush,
}

/// The disk by calls of threads.
pub(super) struct GuestFile(pub Arc<Guest>);

impl TargetFile for GuestFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.with_queue(|queue| {
            queue.call(&Request::Read { offset, len: buf.len() })?;
            queue.copy_out(0, buf)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        // The fill of a file comes in larger pieces than a slot has.
        let piece = self.0.setup.buffer_bytes;
        bytes.chunks(piece).enumerate().try_for_each(|(number, bytes)| {
            let offset = offset + (number * piece) as u64;
            self.0.with_queue(|queue| queue.call(&Request::Write { offset, bytes }))
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.0.with_queue(|queue| queue.call(&Request::Flush))
    }

    fn align_bytes(&self) -> u64 {
        SECTOR_BYTES
    }
}

/// The disk by a list: one queue with many requests.
pub(super) struct GuestQueue {
    guest: Arc<Guest>,
    /// Gives back what it took.
    queue: Option<Virtqueue>,
    free: Vec<u16>,
    in_flight: Vec<Option<(Op, AlignedBuf)>>,
    setup: QueueSetup,
}

impl GuestQueue {
    pub(super) fn open(guest: &Arc<Guest>, setup: &QueueSetup) -> Result<Self> {
        if setup.depth > guest.setup.depth || setup.buffer_bytes > guest.setup.buffer_bytes {
            return Err(Error::target("vhost-user-blk: its queues hold less than is asked for"));
        }
        Ok(Self {
            guest: Arc::clone(guest),
            queue: Some(guest.take()),
            free: (0..setup.depth as u16).collect(),
            in_flight: (0..setup.depth).map(|_| None).collect(),
            setup: *setup,
        })
    }
}

impl Drop for GuestQueue {
    fn drop(&mut self) {
        // One with requests in flight, after a failure, is of no use to others.
        if let Some(queue) = self.queue.take()
            && self.free.len() == self.setup.depth
        {
            self.guest.give_back(queue);
        }
    }
}

impl TargetQueue for GuestQueue {
    fn take_buffer(&mut self) -> AlignedBuf {
        AlignedBuf::zeroed(self.setup.buffer_bytes)
    }

    fn push(&mut self, op: Op, buf: AlignedBuf) -> Result<()> {
        let (Some(queue), Some(slot)) = (&mut self.queue, self.free.pop()) else {
            return Err(Error::target("the queue took fewer operations than it was opened for"));
        };
        let request = match op.kind {
            OpKind::Read => Request::Read { offset: op.offset, len: buf.len() },
            OpKind::Write => Request::Write { offset: op.offset, bytes: &buf },
        };
        queue.offer(slot, &request)?;
        self.in_flight[usize::from(slot)] = Some((op, buf));
        Ok(())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        queue.tell()?;
        let enough = out.len() + min;
        loop {
            while let Some(slot) = queue.take()? {
                let taken = self.in_flight.get_mut(usize::from(slot)).and_then(Option::take);
                let (op, mut buf) = taken.ok_or_else(|| {
                    Error::target("vhost-user-blk: the server answered what was not asked")
                })?;
                if op.kind == OpKind::Read {
                    queue.copy_out(slot, &mut buf)?;
                }
                self.free.push(slot);
                out.push(Done { token: op.token, buf });
            }
            if out.len() >= enough {
                return Ok(());
            }
            queue.wait()?;
        }
    }
}
