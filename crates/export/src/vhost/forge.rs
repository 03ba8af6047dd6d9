//! Requests in memory that is no guest's, for fuzzers.

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::memory::Segment;
use super::request::{self, Command, Serial, Terms};

/// How much memory the guest has, in bytes: what is given fills it from the front.
pub const MEMORY_BYTES: usize = 64 << 10;
/// The queue's size in entries; its descriptors are at 0, what is available at 4096, what is used
/// at 8192.
pub const QUEUE_SIZE: u16 = 16;

/// What a request would do.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads a range of the disk, in bytes, to this many bytes of buffers.
    Reads(u64, usize, u64),
    /// Writes a range of the disk, in bytes, from this many bytes of buffers.
    Writes(u64, usize, u64),
    /// Changes a range of the disk, in bytes.
    Changes(u64, u64),
    /// Neither.
    None,
}

/// Takes all requests that are available off a queue in a memory with these bytes; returns what
/// they would do to a disk of `size_bytes`, and whether the queue is still sound.
///
/// # Panics
/// Where there is no memory.
#[must_use]
pub fn requests(bytes: &[u8], size_bytes: u64, read_only: bool) -> (Vec<Effect>, bool) {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)])
        .expect("there is memory");
    let bytes = &bytes[..bytes.len().min(MEMORY_BYTES)];
    memory.write_slice(bytes, GuestAddress(0)).expect("it is as large");
    let mut queue = Queue::new(QUEUE_SIZE).expect("it is a power of two");
    queue.try_set_desc_table_address(GuestAddress(0)).expect("it is aligned");
    queue.try_set_avail_ring_address(GuestAddress(4096)).expect("it is aligned");
    queue.try_set_used_ring_address(GuestAddress(8192)).expect("it is aligned");
    queue.set_ready(true);
    let terms = Terms { size_bytes, read_only, serial: Serial::default() };
    let mut effects = Vec::new();
    loop {
        let chain = match queue.iter(&memory) {
            Ok(mut chains) => chains.next(),
            Err(_) => return (effects, false),
        };
        let Some(chain) = chain else { return (effects, true) };
        match request::parse(&memory, chain, &terms) {
            Ok(request) => effects.extend(request.command.map(told).unwrap_or_default()),
            Err(_) => return (effects, false),
        }
    }
}

fn told(command: Command) -> Vec<Effect> {
    let bytes = |segments: &[Segment]| segments.iter().map(|one| u64::from(one.len)).sum();
    match command {
        Command::Read { offset, len, to } => vec![Effect::Reads(offset, len, bytes(&to))],
        Command::Write { offset, len, from } => vec![Effect::Writes(offset, len, bytes(&from))],
        Command::Change(pieces) => {
            pieces.iter().map(|piece| Effect::Changes(piece.offset, piece.len)).collect()
        }
        Command::Flush | Command::Identify { .. } => vec![Effect::None],
    }
}
