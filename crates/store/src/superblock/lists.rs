//! Chunk lists: where the chunks stand that the superblock has no room for.
//!
//! ```text
//! superblock ─► newest list block ─► the one before ─► … ─► first list block
//!   chunks 0 to 127      n …             …                   128 …
//! ```
//!
//! A list block is written once, when the region grows, and never changed: a superblock that names
//! an older list stays right (I-SB-1). Its chunks follow those of the block before.
//!
//! ```text
//! 0   magic "BEDPLIST"              8     32  address of the block before, 0: none   u64
//! 8   CRC-32C of the whole block,  u32    40  number of chunks                       u32
//!     this field taken as 0               44  zero                                   u32
//! 12  zero                         u32    48  chunks: first byte u64, length u64
//! 16  volume uuid                   16        zero
//! ```

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};

use super::{ByteRun, CHUNKS_INLINE, Superblock};
use crate::checksum::crc32c;
use crate::copies::read_a_right_copy;
use crate::decode::Reader;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"BEDPLIST";
const CRC_AT: usize = 8;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 16;

/// What a superblock says of its chunk lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListHead {
    /// Address of the newest list block.
    pub(super) at: u64,
    /// How many list blocks there are.
    pub(super) blocks: u32,
}

/// The list blocks of a superblock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lists {
    pub(super) head: Option<ListHead>,
    /// Address of each list block and how many of the chunks stand in it, oldest first; empty until
    /// they are read.
    pub(super) blocks: Vec<(u64, u32)>,
}

impl Lists {
    /// How many of the chunks stand in list blocks.
    pub(super) fn chunks(&self) -> usize {
        self.blocks.iter().map(|(_, chunks)| *chunks as usize).sum()
    }

    pub(super) fn are_read(&self) -> bool {
        self.head.is_none_or(|head| head.blocks as usize == self.blocks.len())
    }
}

/// A list block to be written before the superblock that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListBlock {
    at: u64,
    before: u64,
    volume: [u8; 16],
    chunks: Vec<ByteRun>,
}

impl ListBlock {
    /// Writes the block; nothing is flushed.
    pub fn write(&self, device: &Arc<dyn BlockDevice>, block_size: u32) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(block_size as usize);
        buf[..8].copy_from_slice(MAGIC);
        buf[16..32].copy_from_slice(&self.volume);
        buf[32..40].copy_from_slice(&self.before.to_le_bytes());
        buf[40..44].copy_from_slice(
            &u32::try_from(self.chunks.len()).expect("a block holds a few thousand").to_le_bytes(),
        );
        for (entry, chunk) in buf[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(&self.chunks) {
            entry[..8].copy_from_slice(&chunk.start.to_le_bytes());
            entry[8..].copy_from_slice(&chunk.len.to_le_bytes());
        }
        let crc = crc32c(&buf);
        buf[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(device.write_at(&buf, self.at)?)
    }

    /// Says whether bytes are this block.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        Self::decode(bytes, self.at).is_ok_and(|list| list == *self)
    }

    fn read(device: &Arc<dyn BlockDevice>, at: u64, block_size: u32) -> Result<Self> {
        let mut buf = AlignedBuf::zeroed(block_size as usize);
        read_a_right_copy(device, &mut buf, at, "a list of metadata chunks", &|bytes| {
            Self::decode(bytes, at).is_ok()
        })?;
        Self::decode(&buf, at)
    }

    fn decode(buf: &[u8], at: u64) -> Result<Self> {
        let bad = |what: &str| {
            Error::corrupt(format!("the list of metadata chunks at byte {at} is damaged: {what}"))
        };
        let mut r = Reader::new(buf, "a list of metadata chunks");
        if r.take(8)? != MAGIC {
            return Err(bad("the magic number is missing"));
        }
        let (crc, _) = (r.u32()?, r.u32()?);
        let volume = r.take(16)?.try_into().expect("16 bytes were taken");
        let (before, count, _) = (r.u64()?, r.u32()?, r.u32()?);
        let mut content = buf.to_vec();
        content[CRC_AT..CRC_AT + 4].fill(0);
        if crc32c(&content) != crc {
            return Err(bad("its checksum does not match"));
        }
        let chunks = (0..count)
            .map(|_| Ok(ByteRun { start: r.u64()?, len: r.u64()? }))
            .collect::<Result<_>>()?;
        Ok(Self { at, before, volume, chunks })
    }
}

impl Superblock {
    /// How many chunks a list block holds.
    fn list_entries(&self) -> usize {
        (self.block_size as usize - HEADER_BYTES) / ENTRY_BYTES
    }

    /// The places of the list blocks.
    pub(crate) fn list_runs(&self) -> impl Iterator<Item = ByteRun> {
        let len = u64::from(self.block_size);
        self.lists.blocks.iter().map(move |(at, _)| ByteRun { start: *at, len })
    }

    /// Returns the list block that lies at an address.
    pub(crate) fn list_at(&self, at: u64) -> Option<ListBlock> {
        let (mut before, mut from) = (0, self.inline_chunks().len());
        for &(list, chunks) in &self.lists.blocks {
            let to = from + chunks as usize;
            if list == at {
                let chunks = self.chunks.get(from..to)?.to_vec();
                return Some(ListBlock { at, before, volume: self.uuid, chunks });
            }
            (before, from) = (list, to);
        }
        None
    }

    /// Forgets all chunks and their lists, so that they are named again.
    pub(crate) fn forget_chunks(&mut self) {
        self.chunks.clear();
        self.lists = Lists::default();
    }

    /// The chunks that stand in the superblock itself.
    pub(super) fn inline_chunks(&self) -> &[ByteRun] {
        &self.chunks[..self.chunks.len() - self.lists.chunks()]
    }

    /// Adds runs to the inline chunks, as many as there is room for; those that continue the last
    /// one become part of it. Returns the others.
    fn add_inline(&mut self, runs: &[ByteRun]) -> Vec<ByteRun> {
        let mut rest: Vec<ByteRun> = Vec::new();
        for run in runs {
            let inline = self.lists.head.is_none() && rest.is_empty();
            let into = if inline { &mut self.chunks } else { &mut rest };
            let full = inline && into.len() == CHUNKS_INLINE;
            match into.last_mut() {
                Some(last) if last.end() == run.start => last.len += run.len,
                _ if full => rest.push(*run),
                _ => into.push(*run),
            }
        }
        rest
    }

    /// Returns how many list blocks these further chunks need.
    pub(crate) fn lists_for(&self, runs: &[ByteRun]) -> u64 {
        let rest = self.clone().add_inline(runs);
        rest.len().div_ceil(self.list_entries()) as u64
    }

    /// Adds chunks, with the places of the list blocks that they need; returns what is to be
    /// written there before this superblock is.
    pub fn extend(
        &mut self,
        runs: &[ByteRun],
        places: impl Iterator<Item = u64>,
    ) -> Vec<ListBlock> {
        let rest = self.add_inline(runs);
        let volume = self.uuid;
        let parts = rest.chunks(self.list_entries()).zip(places);
        let written: Vec<ListBlock> = parts
            .map(|(part, at)| {
                let before = self.lists.head.map_or(0, |head| head.at);
                let blocks = self.lists.head.map_or(0, |head| head.blocks) + 1;
                self.lists.head = Some(ListHead { at, blocks });
                self.lists
                    .blocks
                    .push((at, u32::try_from(part.len()).expect("a block holds a few thousand")));
                self.chunks.extend_from_slice(part);
                ListBlock { at, before, volume, chunks: part.to_vec() }
            })
            .collect();
        assert!(
            written.iter().map(|list| list.chunks.len()).sum::<usize>() == rest.len(),
            "every chunk stands somewhere"
        );
        written
    }

    /// Reads the list blocks that a decoded superblock names. Nothing in them is trusted: addresses
    /// are checked before use.
    pub(super) fn read_lists(&mut self, device: &Arc<dyn BlockDevice>, at: u64) -> Result<()> {
        let Some(head) = self.lists.head else { return Ok(()) };
        // A device that is too short is refused by its size.
        if device.size_bytes() < self.size_bytes
            || self.block_size < device.geometry().logical_block_size
        {
            return Ok(());
        }
        let block = u64::from(self.block_size);
        let mut next = head.at;
        let mut lists: Vec<ListBlock> = Vec::new();
        while next != 0 {
            let possible = next.is_multiple_of(block) && next <= self.size_bytes - block;
            if !possible || lists.len() >= head.blocks as usize {
                return Err(Error::corrupt(format!(
                    "the superblock at byte {at} names {} lists of chunks, which lead to byte \
                     {next}",
                    head.blocks
                )));
            }
            let list = ListBlock::read(device, next, self.block_size)?;
            if list.volume != self.uuid {
                return Err(Error::corrupt(format!(
                    "the list of metadata chunks at byte {next} belongs to another volume"
                )));
            }
            next = list.before;
            lists.push(list);
        }
        for list in lists.iter().rev() {
            self.lists
                .blocks
                .push((list.at, u32::try_from(list.chunks.len()).expect("it was read as one")));
            self.chunks.extend_from_slice(&list.chunks);
        }
        if !self.lists.are_read() {
            return Err(Error::corrupt(format!(
                "the superblock at byte {at} names {} lists of chunks, there are {}",
                head.blocks,
                lists.len()
            )));
        }
        self.validate(at)
    }
}
