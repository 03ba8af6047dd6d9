//! What a chain of descriptors asks for: <https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html>,
//! section 5.2.6.
//!
//! ```text
//!   readable: type u32, reserved u32, sector u64 │ data of a write, ranges
//!   writable:                                    │ data of a read, the serial │ status u8
//! ```
//! I-VHO-1: what is carried out lies within the disk, and its buffers within the guest's memory.

use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::DescriptorChain;
use vm_memory::{Address, GuestAddress, GuestMemoryMmap, Permissions};

use super::memory::{Segment, gather, is_there};
use crate::Zeroing;

/// The unit of the protocol.
pub const SECTOR_BYTES: u64 = 512;
/// The most data of one request.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Ranges that one discard or writing of zeros may name.
pub const RANGES_MAX: usize = 16;
/// The longest range of them, in sectors: 2 GiB.
pub const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Buffers of a chain that are looked at; twice what a driver is told that there may be.
const SEGMENTS_MAX: usize = 256;
const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;

/// A disk's name among the disks of a guest.
pub type Serial = [u8; VIRTIO_BLK_ID_BYTES as usize];

/// What requests are held against.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Of whole sectors.
    pub size_bytes: u64,
    pub read_only: bool,
    pub serial: Serial,
}

/// A range that is discarded or zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub len: u64,
    pub change: Change,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Trim,
    Zero(Zeroing),
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Read { offset: u64, len: usize, to: Vec<Segment> },
    Write { offset: u64, len: usize, from: Vec<Segment> },
    Flush,
    Identify { to: Vec<Segment> },
    Change(Vec<Piece>),
}

/// Why nothing is done, and the status that says so.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: u8,
    pub text: &'static str,
}

impl Refused {
    fn io(text: &'static str) -> Self {
        Self { status: VIRTIO_BLK_S_IOERR as u8, text }
    }

    fn unsupported(text: &'static str) -> Self {
        Self { status: VIRTIO_BLK_S_UNSUPP as u8, text }
    }
}

/// A request that can be answered.
#[derive(Debug)]
pub struct Request {
    /// The chain's number.
    pub head: u16,
    pub status: GuestAddress,
    /// Writable bytes before the status.
    pub data_len: u64,
    pub command: Result<Command, Refused>,
}

/// Why a chain cannot even be answered.
pub type Broken = &'static str;

/// The buffers of a chain.
#[derive(Debug, Default)]
struct Buffers {
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    /// The writable one at the end.
    last: Option<Segment>,
    data_len: u64,
    refused: Option<Refused>,
}

/// Reads what a chain asks for.
///
/// # Errors
/// Where there is no byte for the status.
pub fn parse(
    memory: &GuestMemoryMmap,
    chain: DescriptorChain<&GuestMemoryMmap>,
    terms: &Terms,
) -> Result<Request, Broken> {
    let head = chain.head_index();
    let mut buffers = Buffers::walk(memory, chain)?;
    let status = buffers.take_status(memory)?;
    let data_len = buffers.data_len;
    let command = match buffers.refused.take() {
        Some(refused) => Err(refused),
        None => command(memory, buffers, terms),
    };
    Ok(Request { head, status, data_len, command })
}

impl Buffers {
    fn walk(
        memory: &GuestMemoryMmap,
        chain: DescriptorChain<&GuestMemoryMmap>,
    ) -> Result<Self, Broken> {
        let mut buffers = Self::default();
        let mut goes_on = true;
        for descriptor in chain {
            goes_on = descriptor.has_next();
            let segment = Segment { address: descriptor.addr(), len: descriptor.len() };
            if segment.len > 0 {
                buffers.add(memory, segment, descriptor.is_write_only());
            }
        }
        match goes_on {
            false => Ok(buffers),
            // The iterator ends at what it cannot follow, and after as many as the table has.
            true => Err("a chain of descriptors leads nowhere or in a circle"),
        }
    }

    fn add(&mut self, memory: &GuestMemoryMmap, segment: Segment, is_writable: bool) {
        let access = if is_writable { Permissions::Write } else { Permissions::Read };
        if !is_there(memory, segment, access) {
            self.refuse("a buffer lies outside of the guest's memory");
        } else if self.readable.len() + self.writable.len() >= SEGMENTS_MAX {
            self.refuse("a request has too many buffers");
        } else if is_writable {
            self.writable.push(segment);
        } else if self.last.is_none() {
            self.readable.push(segment);
        } else {
            self.refuse("a buffer to read from follows one to write to");
        }
        if is_writable {
            self.last = Some(segment);
            self.data_len += u64::from(segment.len);
        }
    }

    fn refuse(&mut self, text: &'static str) {
        self.refused.get_or_insert(Refused::io(text));
    }

    /// Takes the last writable byte.
    fn take_status(&mut self, memory: &GuestMemoryMmap) -> Result<GuestAddress, Broken> {
        let last = self.last.ok_or("a request has no byte for its status")?;
        let address = last
            .address
            .checked_add(u64::from(last.len - 1))
            .filter(|address| {
                is_there(memory, Segment { address: *address, len: 1 }, Permissions::Write)
            })
            .ok_or("the byte for a request's status lies outside of the guest's memory")?;
        self.data_len -= 1;
        if let Some(kept) = self.writable.last_mut().filter(|kept| **kept == last) {
            kept.len -= 1;
            if kept.len == 0 {
                self.writable.pop();
            }
        }
        Ok(address)
    }

    /// Returns how much is to be read from behind the header.
    fn payload_len(&self) -> u64 {
        let all: u64 = self.readable.iter().map(|segment| u64::from(segment.len)).sum();
        all - HEADER_BYTES as u64
    }

    /// Takes the header from the front of what is read from.
    fn skip_header(&mut self) {
        let mut left = HEADER_BYTES as u32;
        while left > 0 {
            let first = &mut self.readable[0];
            let len = first.len.min(left);
            left -= len;
            first.len -= len;
            first.address = first.address.unchecked_add(u64::from(len));
            if first.len == 0 {
                self.readable.remove(0);
            }
        }
    }
}

fn command(
    memory: &GuestMemoryMmap,
    mut buffers: Buffers,
    terms: &Terms,
) -> Result<Command, Refused> {
    let mut header = [0; HEADER_BYTES];
    if !gather(memory, &buffers.readable, &mut header) {
        return Err(Refused::io("a request is shorter than its header"));
    }
    let [a, b, c, d, _, _, _, _, sector @ ..] = header;
    let (kind, sector) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector));
    let (given, taken) = (buffers.payload_len(), buffers.data_len);
    buffers.skip_header();
    let changes =
        matches!(kind, VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES);
    if changes && terms.read_only {
        return Err(Refused::io("a disk that is read-only was to be changed"));
    }
    match kind {
        VIRTIO_BLK_T_IN => {
            only(given, "a read brings data")?;
            let (offset, len) = range(sector, taken, terms)?;
            Ok(Command::Read { offset, len, to: buffers.writable })
        }
        VIRTIO_BLK_T_OUT => {
            only(taken, "a write has buffers for data")?;
            let (offset, len) = range(sector, given, terms)?;
            Ok(Command::Write { offset, len, from: buffers.readable })
        }
        VIRTIO_BLK_T_FLUSH => Ok(Command::Flush),
        VIRTIO_BLK_T_GET_ID => Ok(Command::Identify { to: buffers.writable }),
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            only(taken, "a change of ranges has buffers for data")?;
            let trims = kind == VIRTIO_BLK_T_DISCARD;
            pieces(memory, &buffers.readable, given, trims, terms).map(Command::Change)
        }
        _ => Err(Refused::unsupported("a request is of a kind that is not served")),
    }
}

fn only(superfluous: u64, text: &'static str) -> Result<(), Refused> {
    if superfluous == 0 { Ok(()) } else { Err(Refused::io(text)) }
}

/// Returns the bytes of a read or write.
fn range(sector: u64, len: u64, terms: &Terms) -> Result<(u64, usize), Refused> {
    if !len.is_multiple_of(SECTOR_BYTES) {
        return Err(Refused::io("a request is for a part of a sector"));
    }
    if len > REQUEST_BYTES_MAX {
        return Err(Refused::io("a request is for more than 32 MiB"));
    }
    Ok((within(sector, len, terms)?, len as usize))
}

/// Returns where a range begins in bytes: it lies within the disk.
fn within(sector: u64, len: u64, terms: &Terms) -> Result<u64, Refused> {
    let offset = sector.checked_mul(SECTOR_BYTES);
    match offset.filter(|offset| offset.checked_add(len).is_some_and(|end| end <= terms.size_bytes))
    {
        Some(offset) => Ok(offset),
        None => Err(Refused::io("a request is for sectors beyond the end")),
    }
}

/// Reads the ranges of a discard, or of zeros to write.
fn pieces(
    memory: &GuestMemoryMmap,
    from: &[Segment],
    given: u64,
    trims: bool,
    terms: &Terms,
) -> Result<Vec<Piece>, Refused> {
    let mut bytes = [0; RANGES_MAX * RANGE_BYTES];
    let fits = given > 0 && given.is_multiple_of(RANGE_BYTES as u64) && given <= bytes.len() as u64;
    let bytes = &mut bytes[..if fits { given as usize } else { 0 }];
    if !fits || !gather(memory, from, bytes) {
        return Err(Refused::io("a change of ranges names none, a part of one, or too many"));
    }
    bytes.chunks_exact(RANGE_BYTES).map(|range| piece(range, trims, terms)).collect()
}

fn piece(range: &[u8], trims: bool, terms: &Terms) -> Result<Piece, Refused> {
    let (sector, rest) = range.split_first_chunk::<8>().expect("a range has 16 bytes");
    let (count, flags) = rest.split_first_chunk::<4>().expect("a range has 16 bytes");
    let count = u32::from_le_bytes(*count);
    let flags = u32::from_le_bytes(flags.try_into().expect("a range has 16 bytes"));
    let unmaps = flags == VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
    let change = match (trims, flags, unmaps) {
        (true, 0, _) => Change::Trim,
        (false, 0, _) => Change::Zero(Zeroing::KeepBlocks),
        (false, _, true) => Change::Zero(Zeroing::MayPunch),
        _ => return Err(Refused::unsupported("a change of ranges has flags that are not served")),
    };
    if count > RANGE_SECTORS_MAX {
        return Err(Refused::io("a change of ranges is of more than 2 GiB in one"));
    }
    let len = u64::from(count) * SECTOR_BYTES;
    Ok(Piece { offset: within(u64::from_le_bytes(*sector), len, terms)?, len, change })
}
