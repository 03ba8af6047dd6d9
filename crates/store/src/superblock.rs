//! The superblock: the volume's identity and where its regions lie.
//!
//! Two copies with equal content: A at byte 0, B at [`COPY_B`]. An update writes A, flushes, writes
//! B, flushes, so that at every moment one of them is whole. Each carries a generation and a
//! CRC-32C; the newer whole one counts.
//!
//! ```text
//! 0          64 KiB                  8 MiB        +64 KiB
//! | copy A   | log, metadata, data … | copy B     | data …
//! ```
//!
//! Invariants:
//! - I-SB-1: at every moment, also inside an update, at least one copy decodes.
//! - I-SB-3: both copies are equal and durable before a tree is opened for writing: what it then
//!   writes to a region that one copy alone names would be lost with that copy.
//! - I-SB-2: every region it names lies inside the volume, beside the copies, and overlaps no other
//!   region.

mod lists;

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, Copies};

use crate::checksum::crc32c;
use crate::copies::read_a_right_copy;
use crate::decode::Reader;
use crate::planted::{PlantedBug, planted};
use crate::{Error, ErrorKind, Result};

pub(crate) use lists::ListBlock;
pub use lists::Lists;

/// The newest format version that this software reads: 6 is written where records of the log may
/// carry data, else 5 where blocks may have checksums, else 4 where the tree may have packs of extents, else 3 where it keeps the free space, else 2 where there are chunk lists, else 1.
pub(crate) const VERSION: u32 = 6;
/// Bytes set aside for each copy.
pub const COPY_BYTES: u64 = 64 << 10;
/// Byte address of copy B: beyond what partition tools and stray `dd`s overwrite, and independent
/// of the size.
pub const COPY_B: u64 = 8 << 20;
/// The smallest volume.
pub const VOLUME_BYTES_MIN: u64 = 32 << 20;
/// The smallest log.
pub const LOG_BYTES_MIN: u64 = 1 << 20;
/// How many chunks of the metadata region stand in the superblock itself; what is more stands in
/// `superblock/lists.rs`.
pub const CHUNKS_INLINE: usize = 128;
/// Updates are counted: no count that is further away ever was.
pub(crate) const GENERATION_MAX: u64 = 1 << 48;

const MAGIC: &[u8; 8] = b"BEDPLATE";
/// Bytes of a copy that carry content.
pub const CONTENT_BYTES: usize = 4096;
const CRC_AT: usize = 12;
/// Where the newest chunk list is named.
const LISTS_AT: usize = 84 + 16 * CHUNKS_INLINE;
const _: () = assert!(
    CRC_AT + 4 <= LISTS_AT && LISTS_AT < CONTENT_BYTES && CONTENT_BYTES as u64 <= COPY_BYTES,
    "what a superblock says lies within a copy, its lists behind the chunks"
);
const _: () = assert!(
    COPY_BYTES <= COPY_B && COPY_B + COPY_BYTES + LOG_BYTES_MIN <= VOLUME_BYTES_MIN,
    "the smallest volume has room for both copies and a log"
);

/// A run of bytes on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRun {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ByteRun {
    /// Returns the byte behind the last.
    pub fn end(self) -> u64 {
        self.start + self.len
    }
}

/// The decoded superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Counts the writes of the superblock.
    pub generation: u64,
    /// Allocation unit in bytes.
    pub block_size: u32,
    /// Size of the file system in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// Whether the last mount ended with an unmount.
    pub clean: bool,
    /// Whether the log lives on a device of its own.
    pub log_separate: bool,
    /// Place of the log on its device.
    pub log: ByteRun,
    /// Logical length in bytes of the metadata tree's file, spread over the chunks.
    pub metadata_len: u64,
    /// Where the metadata region lies, in order.
    pub chunks: Vec<ByteRun>,
    /// Where the chunks stand that the superblock has no room for.
    pub lists: Lists,
    /// Whether the metadata tree keeps the free space.
    pub keeps_space: bool,
    /// Whether the metadata tree, which keeps the free space then, may have packs of extents.
    pub packs: bool,
    /// Whether blocks of file data, of a volume that has packs then, may have checksums.
    pub sums: bool,
    /// Whether records of the log, of a volume with checksums then, may carry data: while it is
    /// mounted, and after a crash.
    pub carries: bool,
}

/// Gives a copy the checksum that its bytes ask for.
pub fn seal(copy: &mut [u8]) {
    copy[CRC_AT..CRC_AT + 4].fill(0);
    let crc = crc32c(copy);
    copy[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A superblock and how it was found.
#[derive(Debug)]
pub struct Found {
    /// What was found.
    pub superblock: Superblock,
    /// What is wrong with copy A or B, if anything.
    pub damage: Vec<String>,
    /// Whether copy B had to be used.
    pub second: bool,
    /// The address of the copy that is damaged or behind the other one, if one is.
    pub bad_copy: Option<u64>,
}

impl Found {
    /// Writes a copy again that is damaged or behind; does nothing where both are equal. The good
    /// copy is not touched (I-SB-1): while the other is of no use, a write of the good one that
    /// tears would be the end of the volume.
    pub fn restore(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        let Some(at) = self.bad_copy else { return Ok(()) };
        // The good copy may be in a volatile cache only: the process that wrote it was killed
        // before its flush.
        device.flush()?;
        self.superblock.write_copy(device, at)
    }
}

impl Superblock {
    /// Encodes to [`CONTENT_BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let chunks = self.inline_chunks();
        assert!(chunks.len() <= CHUNKS_INLINE, "a superblock holds {CHUNKS_INLINE} chunks");
        let mut out = Vec::with_capacity(CONTENT_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.version().to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.block_size.to_le_bytes());
        out.extend_from_slice(
            &(u32::from(self.clean) | u32::from(self.log_separate) << 1).to_le_bytes(),
        );
        for word in [self.size_bytes, self.log.start, self.log.len, self.metadata_len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(
            &u32::try_from(chunks.len()).expect("at most CHUNKS_INLINE").to_le_bytes(),
        );
        for chunk in chunks {
            out.extend_from_slice(&chunk.start.to_le_bytes());
            out.extend_from_slice(&chunk.len.to_le_bytes());
        }
        out.resize(LISTS_AT, 0);
        if let Some(head) = self.lists.head {
            out.extend_from_slice(&head.at.to_le_bytes());
            out.extend_from_slice(&head.blocks.to_le_bytes());
        }
        out.resize(CONTENT_BYTES, 0);
        seal(&mut out);
        out
    }

    /// The oldest format version that can say all this.
    pub fn version(&self) -> u32 {
        debug_assert!(self.keeps_space || !self.packs, "packs came after the free space");
        debug_assert!(self.packs || !self.sums, "checksums came after packs");
        debug_assert!(self.sums || !self.carries, "data in the log came after checksums");
        match (self.packs, self.keeps_space, self.lists.head) {
            (true, ..) if self.sums => 5 + u32::from(self.carries),
            (true, ..) => 4,
            (false, true, _) => 3,
            (false, false, Some(_)) => 2,
            (false, false, None) => 1,
        }
    }

    /// Decodes one copy, without its chunk lists; `at` is its address for messages.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Self> {
        let mut r = Reader::new(bytes, "a superblock");
        if r.take(8)? != MAGIC {
            return Err(Error::new(
                ErrorKind::NotAVolume,
                format!("no Bedplate superblock at byte {at}: the magic number is missing"),
            ));
        }
        let (version, crc) = (r.u32()?, r.u32()?);
        check_head(bytes, version, crc, at)?;
        let uuid = r.take(16)?.try_into().expect("16 bytes were taken");
        let (generation, block_size, flags) = (r.u64()?, r.u32()?, r.u32()?);
        let (size_bytes, log, metadata_len) =
            (r.u64()?, ByteRun { start: r.u64()?, len: r.u64()? }, r.u64()?);
        let count = r.u32()? as usize;
        if count > CHUNKS_INLINE {
            return Err(Error::corrupt(format!(
                "the superblock at byte {at} names {count} metadata chunks, more than \
                 {CHUNKS_INLINE}"
            )));
        }
        let chunks = (0..count)
            .map(|_| Ok(ByteRun { start: r.u64()?, len: r.u64()? }))
            .collect::<Result<Vec<_>>>()?;
        let lists =
            if version == 1 { Lists::default() } else { Self::decode_lists(bytes, version, at)? };
        let (clean, log_separate) = (flags & 1 != 0, flags & 2 != 0);
        let superblock = Self {
            uuid,
            generation,
            block_size,
            size_bytes,
            clean,
            log_separate,
            log,
            metadata_len,
            chunks,
            lists,
            keeps_space: version >= 3,
            packs: version >= 4,
            sums: version >= 5,
            carries: version >= 6,
        };
        superblock.validate(at)?;
        Ok(superblock)
    }

    fn decode_lists(bytes: &[u8], version: u32, at: u64) -> Result<Lists> {
        let mut r = Reader::new(&bytes[LISTS_AT..], "a superblock");
        let (list, blocks) = (r.u64()?, r.u32()?);
        if version > 2 && (list, blocks) == (0, 0) {
            return Ok(Lists::default());
        }
        if list == 0 || blocks == 0 {
            return Err(Error::corrupt(format!(
                "the superblock at byte {at} has format version {version} and names no list of \
                 chunks"
            )));
        }
        Ok(Lists { head: Some(lists::ListHead { at: list, blocks }), blocks: Vec::new() })
    }

    /// Keeps I-SB-2 against hostile content.
    fn validate(&self, at: u64) -> Result<()> {
        let bad = |field: &str, value: u64| {
            Err(Error::corrupt(format!(
                "the superblock at byte {at} has an impossible {field}: {value}"
            )))
        };
        if !self.block_size.is_power_of_two() || !(512..=65536).contains(&self.block_size) {
            return bad("block size", self.block_size.into());
        }
        if self.generation > GENERATION_MAX {
            return bad("generation", self.generation);
        }
        let block = u64::from(self.block_size);
        if self.size_bytes < VOLUME_BYTES_MIN || !self.size_bytes.is_multiple_of(block) {
            return bad("size", self.size_bytes);
        }
        if self.log.len < LOG_BYTES_MIN || self.log.start.checked_add(self.log.len).is_none() {
            return bad("log length", self.log.len);
        }
        let mut regions = self.regions();
        for region in &regions {
            if region.start.checked_add(region.len).is_none_or(|end| end > self.size_bytes)
                || !(region.start | region.len).is_multiple_of(block)
            {
                return bad("region at byte", region.start);
            }
        }
        regions.sort_by_key(|region| region.start);
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].end() > pair[1].start) {
            return bad("overlap of regions at byte", pair[1].start);
        }
        let capacity: u64 = self.chunks.iter().map(|chunk| chunk.len).sum();
        if self.lists.are_read() && self.metadata_len > capacity {
            return bad("metadata length", self.metadata_len);
        }
        Ok(())
    }

    /// Returns every reserved region of the volume: copies, log (when on the volume), metadata
    /// chunks, chunk lists.
    pub fn regions(&self) -> Vec<ByteRun> {
        let mut regions =
            vec![ByteRun { start: 0, len: COPY_BYTES }, ByteRun { start: COPY_B, len: COPY_BYTES }];
        if !self.log_separate {
            regions.push(self.log);
        }
        regions.extend_from_slice(&self.chunks);
        regions.extend(self.list_runs());
        regions
    }

    /// Writes both copies, each made durable before the next is touched (I-SB-1).
    pub fn write(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        assert!(self.validate(0).is_ok(), "I-SB-2: {:?}", self.validate(0));
        self.write_unchecked(device)
    }

    /// Writes whatever it is; I-SB-2 is the caller's.
    pub fn write_unchecked(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        [0, COPY_B].into_iter().try_for_each(|at| self.write_copy(device, at))
    }

    fn write_copy(&self, device: &Arc<dyn BlockDevice>, at: u64) -> Result<()> {
        debug_assert!(
            (at == 0 || at == COPY_B) && device.size_bytes() >= at + CONTENT_BYTES as u64,
            "I-SB-1: a copy is written to its place on the device, and not to byte {at}"
        );
        let mut buf =
            AlignedBuf::zeroed(CONTENT_BYTES.max(device.geometry().logical_block_size as usize));
        buf[..CONTENT_BYTES].copy_from_slice(&self.encode());
        device.write_at(&buf, at)?;
        if planted(PlantedBug::SuperblockWithoutFlush) {
            return Ok(());
        }
        Ok(device.flush()?)
    }

    /// Makes what several devices hold of a copy alike, each of the two by itself: what is whole
    /// counts. Nothing else writes to the device meanwhile.
    pub fn mend(device: &Arc<dyn BlockDevice>) -> Result<()> {
        let len = CONTENT_BYTES.max(device.geometry().logical_block_size as usize);
        for at in [0, COPY_B].into_iter().filter(|at| at + len as u64 <= device.size_bytes()) {
            let mut buf = AlignedBuf::zeroed(len);
            let is_right = |bytes: &[u8]| is_whole(&bytes[..CONTENT_BYTES], at);
            if device.read_right(&mut buf, at, &is_right)? == (Copies::Right { healed: true }) {
                tracing::warn!(
                    event = "metadata_healed",
                    "{}: the superblock at byte {at} differed between copies; those that were not \
                     what was written are",
                    device.name()
                );
            }
        }
        Ok(())
    }

    /// Reads both copies and returns the newer whole one.
    pub fn read(device: &Arc<dyn BlockDevice>) -> Result<Found> {
        let copy = |at: u64| -> Result<Self> {
            let mut buf = AlignedBuf::zeroed(
                CONTENT_BYTES.max(device.geometry().logical_block_size as usize),
            );
            read_a_right_copy(device, &mut buf, at, "a superblock", &|bytes| {
                is_whole(&bytes[..CONTENT_BYTES], at)
            })?;
            let mut superblock = Self::decode(&buf[..CONTENT_BYTES], at)?;
            superblock.read_lists(device, at)?;
            Ok(superblock)
        };
        if device.size_bytes() < VOLUME_BYTES_MIN {
            // The rest of a volume is no stranger.
            if let Ok(superblock) = copy(0) {
                return Err(superblock.truncated(device));
            }
            return Err(Error::new(
                ErrorKind::NotAVolume,
                format!(
                    "{}: {} bytes are fewer than the smallest volume has ({VOLUME_BYTES_MIN}): not \
                     a Bedplate volume",
                    device.name(),
                    device.size_bytes()
                ),
            ));
        }
        let of_device =
            |e: Error| Error { message: format!("{}: {}", device.name(), e.message), ..e };
        Self::newer_whole(copy(0), copy(COPY_B)).map_err(of_device)
    }

    /// Chooses between the two copies.
    fn newer_whole(a: Result<Self>, b: Result<Self>) -> Result<Found> {
        let found = |superblock, damage, bad_copy| Found {
            superblock,
            damage,
            second: bad_copy == Some(0),
            bad_copy,
        };
        match (a, b) {
            (Ok(a), Ok(b)) if a.uuid == b.uuid && b.generation > a.generation => {
                Ok(found(b, vec!["superblock A (byte 0) is older than copy B".into()], Some(0)))
            }
            (Ok(a), Ok(b)) if a == b => Ok(found(a, Vec::new(), None)),
            // One update behind: a crash came between the two writes (I-SB-1). No damage, but not
            // to be left so (I-SB-3).
            (Ok(a), Ok(b)) if a.follows(&b) => Ok(found(a, Vec::new(), Some(COPY_B))),
            (Ok(a), Ok(_)) => {
                let damage = format!("superblock B (byte {COPY_B}) differs from copy A");
                Ok(found(a, vec![damage], Some(COPY_B)))
            }
            (Ok(a), Err(e)) if e.kind != ErrorKind::NewerFormat => {
                Ok(found(a, vec![e.message], Some(COPY_B)))
            }
            (Err(e), Ok(b)) if e.kind != ErrorKind::NewerFormat => {
                Ok(found(b, vec![e.message], Some(0)))
            }
            (Ok(_), Err(e)) => Err(e),
            (Err(mut e), second) => {
                if e.kind == ErrorKind::NotAVolume
                    && second.as_ref().is_err_and(|b| b.kind != ErrorKind::NotAVolume)
                {
                    e = second.expect_err("tested above");
                }
                if e.kind == ErrorKind::NotAVolume {
                    e.message.push_str("; format it first, or check the path");
                }
                Err(e)
            }
        }
    }

    /// Whether it is one update newer than another; the volume may have got another identity.
    fn follows(&self, before: &Self) -> bool {
        let is_same = self.uuid == before.uuid
            || (self.size_bytes, self.log) == (before.size_bytes, before.log);
        is_same && self.generation == before.generation + 1
    }

    /// Makes the error of a device that is shorter than its volume.
    pub fn truncated(&self, device: &Arc<dyn BlockDevice>) -> Error {
        Error::corrupt(format!(
            "{} is truncated: it has {} bytes, the volume on it {}; restore the missing end before \
             mounting",
            device.name(),
            device.size_bytes(),
            self.size_bytes
        ))
    }

    /// Returns the identity as people write it.
    pub fn uuid_text(&self) -> String {
        uuid::Uuid::from_bytes(self.uuid).to_string()
    }
}

/// Says whether a copy is as it was written, by whatever version.
fn is_whole(copy: &[u8], at: u64) -> bool {
    Superblock::decode(copy, at).map_or_else(|e| e.kind == ErrorKind::NewerFormat, |_| true)
}

/// Refuses a copy that does not have its checksum, and one of a version that is not known.
fn check_head(bytes: &[u8], version: u32, crc: u32, at: u64) -> Result<()> {
    let mut content = bytes.to_vec();
    content[CRC_AT..CRC_AT + 4].fill(0);
    if crc32c(&content) != crc {
        return Err(Error::corrupt(format!(
            "the superblock at byte {at} is damaged: its checksum does not match"
        )));
    }
    match version {
        0 => Err(Error::corrupt(format!("the superblock at byte {at} has format version 0"))),
        1..=VERSION => Ok(()),
        _ => Err(Error::new(
            ErrorKind::NewerFormat,
            format!(
                "the volume has format version {version}, this software reads up to {VERSION}: \
                 use a newer bedplate"
            ),
        )),
    }
}
