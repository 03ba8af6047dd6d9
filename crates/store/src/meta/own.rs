//! What the volume's own blocks must hold, superblocks, lists of chunks, the intent log and pages of
//! the tree: a scrub asks it where copies differ.
//!
//! What it says is of this moment. A log write or a page may be written over in the next one, and
//! then what was read before has the checksum of neither: no copy is right, and none is changed.

use bedplate_block::AlignedBuf;
use uuid::Uuid;

use super::MetaStore;
use super::region::OwnPage;
use crate::log::{LiveBatch, LogDeviceHead};
use crate::superblock::{ByteRun, COPY_B, COPY_BYTES, ListBlock};
use crate::{Result, Superblock};

/// How many pages are read while no metadata commit is under way.
const PAGES_AT_ONCE: usize = 64;

/// Something of the volume's own, as a whole.
#[derive(Debug)]
pub struct OwnPlace {
    /// Where its bytes are, in their order.
    pub runs: Vec<ByteRun>,
    holds: Holds,
}

#[derive(Debug)]
enum Holds {
    /// Nothing that is ever read again before it is written.
    Nothing,
    Superblock(Vec<u8>),
    List(ListBlock),
    LogDeviceHead(Uuid),
    Batch(LiveBatch, Uuid),
    Page(OwnPage),
}

impl OwnPlace {
    /// Returns whether anything is read there before it is written.
    pub fn is_needed(&self) -> bool {
        !matches!(self.holds, Holds::Nothing)
    }

    /// Says whether bytes, as long as all runs together, are what was written, as far as anything reads
    /// them: what follows the last row of a page, or the payload of a log write, may be anything.
    pub fn is_right(&self, bytes: &[u8]) -> bool {
        match &self.holds {
            Holds::Nothing => true,
            Holds::Superblock(content) => bytes.starts_with(content),
            Holds::List(list) => list.is_in(bytes),
            Holds::LogDeviceHead(volume) => LogDeviceHead::is_at_start_of(bytes, *volume),
            Holds::Batch(batch, volume) => batch.is_in(bytes, *volume),
            Holds::Page(page) => page.is_in(bytes),
        }
    }

    /// Returns where the run at an address ends, and which of several copies of the whole is what was
    /// written: none where all are the same, or nothing is read before it is written and any may
    /// count; nothing where that cannot be told. `read` fills a buffer from a copy, at an address, and
    /// says whether that worked.
    pub fn right_copy(
        &self,
        address: u64,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<(u64, Option<usize>)> {
        let run = self.runs.iter().find(|run| (run.start..run.end()).contains(&address))?;
        if !self.is_needed() {
            return Some((run.end(), None));
        }
        let held: Vec<Option<Vec<u8>>> = (0..copies).map(|copy| self.read(copy, read)).collect();
        let is_right =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| self.is_right(bytes));
        let right: Vec<bool> = held.iter().map(is_right).collect();
        if matches!(&self.holds, Holds::Page(page) if !page.is_exact()) {
            return Some((run.end(), right_of(&held, &right)?));
        }
        // Of several that are right any may count: they differ in nothing that is read.
        let first = right.iter().position(|is_right| *is_right)?;
        let all_alike = held.iter().all(|one| *one == held[first]);
        Some((run.end(), (!all_alike).then_some(first)))
    }

    /// Reads all of it as one copy has it.
    fn read(
        &self,
        copy: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for run in &self.runs {
            let from = bytes.len();
            bytes.resize(from + usize::try_from(run.len).ok()?, 0);
            if !read(copy, run.start, &mut bytes[from..]) {
                return None;
            }
        }
        Some(bytes)
    }

    /// Says in words what it is.
    pub fn what(&self) -> &'static str {
        match &self.holds {
            Holds::Nothing => "nothing that is in use",
            Holds::Superblock(_) => "a superblock",
            Holds::List(_) => "a list of metadata chunks",
            Holds::LogDeviceHead(_) => "the head of the log device",
            Holds::Batch(..) => "the intent log",
            Holds::Page(_) => "the metadata tree",
        }
    }
}

impl MetaStore {
    /// Returns what of the volume's own lies at an address, of the log's device with `of_log`;
    /// `None` where nothing of it does, or that is not known. Reads nothing from the device.
    pub fn own_at(&self, of_log: bool, address: u64) -> Option<OwnPlace> {
        let superblock = self.region().superblock();
        let is_in = |run: &ByteRun| (run.start..run.end()).contains(&address);
        if superblock.log_separate == of_log && is_in(&superblock.log) {
            return self.own_of_log(&superblock, address);
        }
        if of_log {
            return own_log_head(&superblock, address);
        }
        for start in [0, COPY_B] {
            if is_in(&ByteRun { start, len: COPY_BYTES }) {
                return Some(own_superblock(&superblock, start, address));
            }
        }
        if let Some(run) = superblock.list_runs().find(is_in) {
            let holds = Holds::List(superblock.list_at(run.start)?);
            return Some(OwnPlace { runs: vec![run], holds });
        }
        let (page, runs) = self.region().own_page(address)?;
        Some(OwnPlace { runs, holds: Holds::Page(page) })
    }

    fn own_of_log(&self, superblock: &Superblock, address: u64) -> Option<OwnPlace> {
        let start = superblock.log.start;
        let (offset, len, batch) = self.log.get()?.lies_at(address - start)?;
        let holds = batch
            .map_or(Holds::Nothing, |batch| Holds::Batch(batch, Uuid::from_bytes(superblock.uuid)));
        Some(OwnPlace { runs: vec![ByteRun { start: start + offset, len }], holds })
    }

    /// Reads all pages of the tree, so that of each is known what it must hold. A page of which the
    /// copy that is read is wrong is mended, as for any reader.
    ///
    /// # Errors
    /// `Corrupt` where no copy of a page is right; the rest was read.
    pub fn learn_pages(&self) -> Result<()> {
        let (mut walk, mut damage) = (self.region().page_walk(), Ok(()));
        while !walk.is_over() {
            // Pages are written in metadata commits alone: what is known of one holds meanwhile.
            self.alone(|| {
                for _ in 0..PAGES_AT_ONCE {
                    if let Err(error) = walk.step(self.region()) {
                        damage = Err(error);
                    }
                }
                Ok(())
            })?;
        }
        damage
    }
}

/// Returns which of several copies counts, of which some are right: none where all are the same.
/// Nothing where it cannot be told: no copy is right, or two that are differ.
pub fn right_of(held: &[Option<Vec<u8>>], right: &[bool]) -> Option<Option<usize>> {
    let mut all_right = (0..held.len()).filter(|copy| right[*copy]);
    let first = all_right.next()?;
    if !all_right.all(|copy| held[copy] == held[first]) {
        return None;
    }
    let all_alike = held.iter().all(|one| *one == held[first]);
    Some((!all_alike).then_some(first))
}

/// The head of a device that has the log alone, or what lies between that and the ring.
fn own_log_head(superblock: &Superblock, address: u64) -> Option<OwnPlace> {
    if !superblock.log_separate || address >= superblock.log.start {
        return None;
    }
    let len = (AlignedBuf::ALIGN as u64).max(superblock.block_size.into());
    let (run, holds) = if address < len {
        let volume = Uuid::from_bytes(superblock.uuid);
        (ByteRun { start: 0, len }, Holds::LogDeviceHead(volume))
    } else {
        (ByteRun { start: len, len: superblock.log.start - len }, Holds::Nothing)
    };
    Some(OwnPlace { runs: vec![run], holds })
}

/// The content of a copy of the superblock, or what lies behind it.
fn own_superblock(superblock: &Superblock, start: u64, address: u64) -> OwnPlace {
    let content = superblock.encode();
    let len = (content.len() as u64).next_multiple_of(superblock.block_size.into());
    if address - start < len {
        return OwnPlace { runs: vec![ByteRun { start, len }], holds: Holds::Superblock(content) };
    }
    let behind = ByteRun { start: start + len, len: COPY_BYTES - len };
    OwnPlace { runs: vec![behind], holds: Holds::Nothing }
}
