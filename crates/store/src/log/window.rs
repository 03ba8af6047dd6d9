//! A range of a device, read a window at a time in all its copies: where one copy is not what was
//! written, another may be (S-408).
//!
//! A device with one copy is read as ever. Of a mirror, or of a RAID-5 with what parity makes of its
//! rows, what differs in a window is kept beside it, and whatever has a checksum is looked for in all
//! of them; the one that is right is written over the others, and counts here from then on.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, Copies};

use super::batch::SECTOR;
use crate::checksum::Crc32c;
use crate::planted::{PlantedBug, planted};
use crate::{Error, Result};

/// The most versions of a window that are kept.
const VERSIONS_MAX: usize = 4;
/// The most choices of versions that are tried for ranges that have one checksum.
const CHOICES_MAX: usize = 256;

/// A range of a device, read a window at a time.
pub(super) struct Window<'a> {
    pub(super) device: &'a Arc<dyn BlockDevice>,
    start: u64,
    pub(super) len: u64,
    buf: AlignedBuf,
    /// Range of the device that `buf` holds.
    held: Range<u64>,
    /// What other copies hold of it, where they differ.
    others: Vec<AlignedBuf>,
    /// How often a copy was not what was written, and another was.
    pub(super) healed: u64,
}

impl<'a> Window<'a> {
    /// What is read at once.
    const BYTES: u64 = 256 << 10;

    pub(super) fn new(device: &'a Arc<dyn BlockDevice>, start: u64, len: u64) -> Self {
        let buf = AlignedBuf::zeroed(0);
        Self { device, start, len, buf, held: 0..0, others: Vec::new(), healed: 0 }
    }

    /// Reads the device again for whatever is asked for next.
    pub(super) fn forget(&mut self) {
        self.held = 0..0;
    }

    /// Returns `len` bytes from `offset` of the range.
    pub(super) fn bytes(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        let range = self.place(offset, len)?;
        Ok(&self.buf[range])
    }

    /// Returns `len` bytes from `offset` of the range as each copy has them, those that count first.
    pub(super) fn versions(&mut self, offset: u64, len: usize) -> Result<Vec<&[u8]>> {
        let range = self.place(offset, len)?;
        let mut versions = vec![&self.buf[range.clone()]];
        for other in &self.others {
            if !versions.contains(&&other[range.clone()]) {
                versions.push(&other[range.clone()]);
            }
        }
        Ok(versions)
    }

    /// Says whether a copy of `len` bytes from `offset` on is right, which counts from then on, and
    /// makes the others like it.
    pub(super) fn is_right(
        &mut self,
        offset: u64,
        len: usize,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        let mut versions = self.versions(offset, len)?.into_iter();
        let own = versions.next().is_some_and(is_right);
        if versions.next().is_none() || planted(PlantedBug::OneCopyReplayed) {
            return Ok(own);
        }
        drop(versions);
        let align = self.align();
        let (from, to) = (self.start + offset, self.start + offset + len as u64);
        let (low, high) = (from / align * align, to.next_multiple_of(align));
        let skip = index(from - low);
        let mut copy = AlignedBuf::zeroed(index(high - low));
        let found =
            self.device.read_right(&mut copy, low, &|bytes| is_right(&bytes[skip..skip + len]))?;
        if found == Copies::NoneRight {
            return Ok(false);
        }
        let range = self.place(offset, len)?;
        self.buf[range.clone()].copy_from_slice(&copy[skip..skip + len]);
        self.others.iter_mut().for_each(|other| {
            other[range.clone()].copy_from_slice(&copy[skip..skip + len]);
        });
        self.healed += 1;
        tracing::warn!(
            event = "metadata_healed",
            "{}: {len} bytes at byte {from}, of the log or of data that it checks, differ between \
             copies: those that are what was written count",
            self.device.name()
        );
        Ok(true)
    }

    /// Says whether ranges of the device hold what has this checksum, each in one of its copies, and
    /// makes the other copies like it.
    pub(super) fn hold(&mut self, ranges: &[(u64, u32)], crc: u32) -> Result<bool> {
        let mut all: Vec<Vec<Vec<u8>>> = Vec::with_capacity(ranges.len());
        for (offset, len) in ranges {
            let versions = self.versions(*offset, *len as usize)?;
            all.push(versions.into_iter().map(<[u8]>::to_vec).collect());
        }
        let choices = all.iter().fold(1_usize, |all, of| all.saturating_mul(of.len()));
        let most = all.iter().map(Vec::len).max().unwrap_or(1);
        let pick = |choice: usize| {
            let mut rest = choice.saturating_sub(most);
            all.iter().map(move |of| {
                // The first choices are of one copy for all.
                let at = if choice < most { choice.min(of.len() - 1) } else { rest % of.len() };
                rest /= of.len();
                &of[at]
            })
        };
        let found = (0..choices.saturating_add(most).min(CHOICES_MAX)).find(|choice| {
            let mut sum = Crc32c::new();
            pick(*choice).for_each(|bytes| sum.update(bytes));
            sum.finish() == crc
        });
        let Some(choice) = found else { return Ok(false) };
        for ((offset, len), (right, of)) in ranges.iter().zip(pick(choice).zip(&all)) {
            if of.len() > 1 {
                self.is_right(*offset, *len as usize, &|bytes| bytes == &right[..])?;
            }
        }
        Ok(true)
    }

    /// Reads a range unless the window holds it; returns where it is in the buffer.
    fn place(&mut self, offset: u64, len: usize) -> Result<Range<usize>> {
        let end =
            offset.checked_add(len as u64).filter(|end| *end <= self.len).ok_or_else(|| {
                let name = self.device.name();
                Error::corrupt(format!(
                    "{name}: the log names {len} bytes at byte {offset}, past the end at {}",
                    self.len
                ))
            })?;
        let (from, to) = (self.start + offset, self.start + end);
        if !(self.held.start <= from && to <= self.held.end) {
            self.load(from, to)?;
        }
        debug_assert!(
            self.held.start <= from && to <= self.held.end,
            "a window holds what is read of it: {from}..{to} of {:?}",
            self.held
        );
        let at = index(from - self.held.start);
        Ok(at..at + len)
    }

    fn align(&self) -> u64 {
        u64::from(self.device.geometry().logical_block_size).max(SECTOR)
    }

    fn load(&mut self, from: u64, to: u64) -> Result<()> {
        let align = self.align();
        let start = from / align * align;
        let end = to
            .max(start + Self::BYTES)
            .min(self.start + self.len)
            .next_multiple_of(align)
            .min(self.device.size_bytes())
            .max(to);
        debug_assert!(
            start <= from && to <= end && start.is_multiple_of(align),
            "a window begins on a block and covers {from}..{to}: {start}..{end}"
        );
        let len = index(end - start);
        self.held = 0..0;
        self.others.clear();
        if self.buf.len() < len {
            self.buf = AlignedBuf::zeroed(len);
        }
        self.read(len, start)?;
        self.held = start..end;
        Ok(())
    }

    /// Reads all copies; none is believed before what is in it was compared.
    fn read(&mut self, len: usize, start: u64) -> Result<()> {
        let versions: RefCell<Vec<AlignedBuf>> = RefCell::default();
        let note = |bytes: &[u8]| {
            let mut versions = versions.borrow_mut();
            if versions.len() < VERSIONS_MAX && !versions.iter().any(|known| known[..] == *bytes) {
                versions.push(AlignedBuf::from_slice(bytes));
            }
            false
        };
        self.device.read_right(&mut self.buf[..len], start, &note)?;
        self.others = versions.into_inner();
        if self.others.is_empty() {
            // Not one copy can be read: the device says why.
            return Ok(self.device.read_at(&mut self.buf[..len], start)?);
        }
        let first = self.others.remove(0);
        self.buf[..len].copy_from_slice(&first);
        Ok(())
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a window is a few megabytes")
}
