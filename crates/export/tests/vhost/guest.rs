//! A guest: memory that is shared, and queues in it, driven by hand.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_ring::{
    VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
/// What a status is before the device writes it.
pub const NO_STATUS: u8 = 0xee;

pub const NEXT: u16 = VRING_DESC_F_NEXT as u16;
pub const WRITE: u16 = VRING_DESC_F_WRITE as u16;
pub const EVENT_IDX: u64 = 1 << 29;
pub const FLUSHES: u64 = 1 << 9;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;

/// Where the guest's memory begins, and how much there is.
pub const BASE: u64 = 0x10_0000;
pub const MEMORY_BYTES: u64 = 64 << 20;
/// Entries of a queue.
pub const SIZE: u16 = 64;
/// Each queue has a part of the memory: rings, headers and states, data.
const PART_BYTES: u64 = 12 << 20;
const DATA_BYTES: u64 = 128 << 10;

/// A guest, and the front end that speaks for it.
pub struct Guest {
    pub frontend: Frontend,
    pub memory: GuestMemoryMmap,
    pub queues: Vec<Queue>,
    pub features: u64,
}

/// A queue of a guest: requests have three descriptors each, in slots.
pub struct Queue {
    pub index: usize,
    pub memory: GuestMemoryMmap,
    pub base: u64,
    pub kick: EventFd,
    pub call: EventFd,
    pub available: u16,
    pub used: u16,
    features: u64,
}

impl Guest {
    /// Connects, and sets `count` queues up with all features that are offered.
    pub fn new(socket: &Path, count: usize) -> Self {
        Self::with(socket, count, !0)
    }

    /// As [`new`](Self::new), with those of the features that are in `wanted`.
    pub fn with(socket: &Path, count: usize, wanted: u64) -> Self {
        let mut guest = Self::connect(socket, wanted);
        for index in 0..count {
            let queue = guest.add_queue(index);
            guest.queues.push(queue);
        }
        guest
    }

    /// Connects, and shares the memory.
    pub fn connect(socket: &Path, wanted: u64) -> Self {
        let mut frontend = Frontend::connect(socket, 16).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap() & (wanted | PROTOCOL | VERSION_1);
        let offered = frontend.get_protocol_features().unwrap();
        let expected = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert_eq!(offered, expected);
        frontend.set_protocol_features(offered).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features).unwrap();
        let memory = memory(&[(BASE, MEMORY_BYTES)]);
        frontend.set_mem_table(&regions(&memory)).unwrap();
        Self { frontend, memory, queues: Vec::new(), features }
    }

    pub fn add_queue(&mut self, index: usize) -> Queue {
        let base = BASE + index as u64 * PART_BYTES;
        let queue = Queue {
            index,
            memory: self.memory.clone(),
            base,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
            available: 0,
            used: 0,
            features: self.features,
        };
        self.describe(&queue, SIZE, 0).unwrap();
        self.start(&queue);
        queue
    }

    /// Says where a queue lies, and where it goes on.
    pub fn describe(&self, queue: &Queue, size: u16, base: u16) -> vhost::Result<()> {
        let at = |offset| self.user_address(queue.base + offset);
        let config = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: at(0),
            used_ring_addr: at(USED),
            avail_ring_addr: at(AVAILABLE),
            log_addr: None,
        };
        self.frontend.set_vring_num(queue.index, size)?;
        self.frontend.set_vring_base(queue.index, base)?;
        self.frontend.set_vring_addr(queue.index, &config)
    }

    pub fn start(&mut self, queue: &Queue) {
        self.frontend.set_vring_call(queue.index, &queue.call).unwrap();
        self.frontend.set_vring_kick(queue.index, &queue.kick).unwrap();
        self.frontend.set_vring_enable(queue.index, true).unwrap();
    }

    /// Stops a queue, and returns where it goes on.
    pub fn stop(&mut self, index: usize) -> u16 {
        self.frontend.get_vring_base(index).unwrap() as u16
    }

    pub fn user_address(&self, address: u64) -> u64 {
        self.memory.get_host_address(GuestAddress(address)).unwrap().addr() as u64
    }

    /// Returns how many queues there may be.
    pub fn frontend_queues(&mut self) -> u64 {
        self.frontend.get_queue_num().unwrap()
    }

    /// Returns whether the server has ended the session.
    pub fn frontend_is_gone(&mut self) -> bool {
        self.frontend.get_queue_num().is_err()
    }

    pub fn config(&mut self, len: usize) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        self.frontend.get_config(0, len as u32, flags, &vec![0; len]).unwrap().1
    }
}

/// Makes memory of regions that can be shared.
pub fn memory(ranges: &[(u64, u64)]) -> GuestMemoryMmap {
    let ranges = ranges.iter().map(|(address, len)| {
        let file = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(*len).unwrap();
        (GuestAddress(*address), *len as usize, Some(FileOffset::new(file, 0)))
    });
    GuestMemoryMmap::from_ranges_with_files(ranges).unwrap()
}

pub fn regions(memory: &GuestMemoryMmap) -> Vec<VhostUserMemoryRegionInfo> {
    memory
        .iter()
        .map(|region| VhostUserMemoryRegionInfo::from_guest_region(region).unwrap())
        .collect()
}

/// Where the parts of a queue are, from its base on.
pub const AVAILABLE: u64 = 0x2000;
pub const USED: u64 = 0x3000;
const HEADERS: u64 = 0x4000;
pub const INDIRECT: u64 = 0x8000;
const DATA: u64 = 0x10_0000;

impl Queue {
    fn put<T: vm_memory::ByteValued>(&self, offset: u64, value: T) {
        self.memory.write_obj(value, GuestAddress(self.base + offset)).unwrap();
    }

    fn get<T: vm_memory::ByteValued>(&self, offset: u64) -> T {
        self.memory.read_obj(GuestAddress(self.base + offset)).unwrap()
    }

    /// Writes a descriptor of the table.
    pub fn descriptor(&self, number: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_at(0, number, address, len, flags, next);
    }

    /// Writes one of the table that begins at `table` from the base on.
    pub fn descriptor_at(
        &self,
        table: u64,
        number: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let at = table + u64::from(number) * 16;
        self.put(at, address);
        self.put(at + 8, len);
        self.put(at + 12, flags);
        self.put(at + 14, next);
    }

    /// Makes a chain available.
    pub fn offer(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + u64::from(self.available % SIZE) * 2, head);
        self.available = self.available.wrapping_add(1);
        self.set_available(self.available);
    }

    pub fn set_available(&self, index: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put(AVAILABLE + 2, index);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    pub fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// Tells of what is available, where the device wants to be told.
    pub fn kick_if_wanted(&self, before: u16) -> bool {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let wanted = if self.features & EVENT_IDX != 0 {
            let event: u16 = self.get(USED + 4 + u64::from(SIZE) * 8);
            let since = self.available.wrapping_sub(before);
            self.available.wrapping_sub(event).wrapping_sub(1) < since
        } else {
            self.get::<u16>(USED) & VRING_USED_F_NO_NOTIFY as u16 == 0
        };
        if wanted {
            self.kick();
        }
        wanted
    }

    /// Asks to be told of the answer after `index`.
    pub fn set_used_event(&self, index: u16) {
        self.put(AVAILABLE + 4 + u64::from(SIZE) * 2, index);
    }

    pub fn used_index(&self) -> u16 {
        self.get(USED + 2)
    }

    /// Takes an answer that is there: its chain, and how much was written.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        if self.used == self.used_index() {
            return None;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let at = USED + 4 + u64::from(self.used % SIZE) * 8;
        self.used = self.used.wrapping_add(1);
        self.set_used_event(self.used);
        Some((self.get::<u32>(at) as u16, self.get(at + 4)))
    }

    /// Waits for an answer.
    pub fn wait(&mut self) -> (u16, u32) {
        loop {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if let Some(answer) = self.take() {
                return answer;
            }
            assert!(self.is_told(20), "queue {} gets no answer", self.index);
        }
    }

    /// Returns whether the device tells of an answer within so many seconds.
    pub fn is_told(&self, seconds: i32) -> bool {
        let epoll = Epoll::new().unwrap();
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, self.call.as_raw_fd(), event).unwrap();
        let told = loop {
            match epoll.wait(seconds * 1000, &mut [EpollEvent::default()]) {
                Ok(count) => break count == 1,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Interrupted),
            }
        };
        if told {
            self.call.read().unwrap();
        }
        told
    }

    fn header_at(&self, slot: u16) -> u64 {
        HEADERS + u64::from(slot) * 32
    }

    pub fn status_at(&self, slot: u16) -> u64 {
        self.base + self.header_at(slot) + 16
    }

    pub fn data_at(&self, slot: u16) -> u64 {
        self.base + DATA + u64::from(slot) * DATA_BYTES
    }

    pub fn status(&self, slot: u16) -> u8 {
        self.get(self.header_at(slot) + 16)
    }

    /// Writes a request's header, and that it has no status yet.
    pub fn header(&self, slot: u16, kind: u32, sector: u64) -> u64 {
        let at = self.header_at(slot);
        self.put(at, kind);
        self.put(at + 4, 0_u32);
        self.put(at + 8, sector);
        self.put(at + 16, NO_STATUS);
        self.base + at
    }

    /// Offers a request of a slot whose chain begins at three times the slot.
    pub fn send(&mut self, slot: u16, kind: u32, sector: u64, data: &[u8], room: u32) {
        let (head, header) = (slot * 3, self.header(slot, kind, sector));
        let (at, status) = (self.data_at(slot), self.status_at(slot));
        self.memory.write_slice(data, GuestAddress(at)).unwrap();
        self.descriptor(head, header, 16, NEXT, head + 1);
        self.descriptor(head + 2, status, 1, WRITE, 0);
        if !data.is_empty() {
            self.descriptor(head + 1, at, data.len() as u32, NEXT, head + 2);
        } else if room > 0 {
            self.descriptor(head + 1, at, room, NEXT | WRITE, head + 2);
        } else {
            self.descriptor(head, header, 16, NEXT, head + 2);
        }
        self.offer(head);
    }

    /// Carries a request out alone, and returns its status and how much was written.
    pub fn ask(&mut self, kind: u32, sector: u64, data: &[u8], room: u32) -> (u8, u32) {
        let before = self.available;
        self.send(0, kind, sector, data, room);
        self.kick_if_wanted(before);
        let (head, written) = self.wait();
        assert_eq!(head, 0);
        (self.status(0), written)
    }

    pub fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_slice(&mut data, GuestAddress(self.data_at(slot))).unwrap();
        data
    }

    pub fn read(&mut self, sector: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.ask(IN, sector, &[], len as u32), (OK, len as u32 + 1));
        self.data(0, len)
    }

    pub fn write(&mut self, sector: u64, data: &[u8]) {
        assert_eq!(self.ask(OUT, sector, data, 0), (OK, 1));
    }
}

/// Makes the ranges of a discard or of zeros.
pub fn ranges(of: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sector, count, flags) in of {
        bytes.extend(sector.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
    }
    bytes
}
