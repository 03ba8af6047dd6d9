//! The reference counts of one region's blocks, as runs; and their row.
//!
//! ```text
//! 0   CRC-32C of the key and of what follows it                     u32
//! 4   runs from the region's first block to its last, each:
//!       length << 2 | what it is                                     varint
//!         0  free      1  one row covers it, and needs it
//!         2  as said behind it: rows, rows that need it              varint, varint
//! ```
//!
//! A varint has 7 bits a byte, the least first, and the top bit set where more follow. A region
//! without a row is free.

use std::ops::Range;

use super::Summary;
use crate::checksum::crc32c;
use crate::decode::Reader;
use crate::images::RefCount;
use crate::{Error, Result};

/// What changes in a region: blocks, and how many rows more cover and need them.
pub(crate) type Change = (Range<u32>, i64, i64);

/// The reference counts of a region. Neighbouring runs differ, and the last one ends with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts(Vec<(u32, RefCount)>);

/// What is free, in the low bits of a run.
const FREE: u64 = 0;
/// What one row covers and needs.
const OWN: u64 = 1;
/// What is told behind the length.
const TOLD: u64 = 2;
const TAG_BITS: u32 = 2;

impl RefCount {
    const FREE: Self = Self { rows: 0, needing: 0 };
    const OWN: Self = Self { rows: 1, needing: 1 };

    fn plus(self, rows: i64, needing: i64) -> Option<Self> {
        let sum = |count: u32, more: i64| u32::try_from(i64::from(count) + more).ok();
        let next = Self { rows: sum(self.rows, rows)?, needing: sum(self.needing, needing)? };
        (next.needing <= next.rows).then_some(next)
    }
}

impl Counts {
    /// Returns those of a region of so many blocks in which everything is free.
    pub(crate) fn free(blocks: u32) -> Self {
        Self(vec![(blocks, RefCount::FREE)])
    }

    fn push(&mut self, end: u32, count: RefCount) {
        match self.0.last_mut() {
            Some((last, same)) if *same == count => *last = end,
            _ => self.0.push((end, count)),
        }
    }

    /// Carries out changes, which are in order and apart.
    ///
    /// # Errors
    /// `Corrupt` when more rows leave a block than cover it; nothing is changed then.
    pub(crate) fn apply(&mut self, changes: &[Change]) -> Result<()> {
        let mut next = Self(Vec::with_capacity(self.0.len() + 2 * changes.len()));
        let (mut runs, mut at) = (self.0.iter().copied().peekable(), 0);
        let mut copy = |upto: u32, rows: i64, needing: i64| {
            while at < upto {
                let (end, count) = *runs.peek().expect("the last run ends with the region");
                let part = end.min(upto);
                let Some(count) = count.plus(rows, needing) else {
                    return Err(Error::corrupt(format!(
                        "block {at} of a region is covered by {} extents, {} of which need it, and \
                         more of them go: run a check",
                        count.rows, count.needing
                    )));
                };
                next.push(part, count);
                at = part;
                if part == end {
                    runs.next();
                }
            }
            Ok(())
        };
        for (range, rows, needing) in changes {
            copy(range.start, 0, 0)?;
            copy(range.end, *rows, *needing)?;
        }
        copy(self.blocks(), 0, 0)?;
        debug_assert_eq!(next.blocks(), self.blocks(), "I-SPC-6: a region keeps its length");
        *self = next;
        Ok(())
    }

    /// As [`apply`](Self::apply), in a region that begins at a block.
    pub(crate) fn change(&mut self, changes: &[Change], first: u64) -> Result<()> {
        self.apply(changes)
            .map_err(|e| Error::corrupt(format!("region of blocks from {first}: {}", e.message)))
    }

    /// Returns the blocks that several rows cover, in a region that begins at a block.
    pub(crate) fn shared(&self, first: u64) -> impl Iterator<Item = (Range<u64>, RefCount)> {
        let shared = self.runs().filter(|(_, count)| count.rows > 1);
        shared.map(move |(run, count)| {
            (first + u64::from(run.start)..first + u64::from(run.end), count)
        })
    }

    fn blocks(&self) -> u32 {
        self.0.last().map_or(0, |(end, _)| *end)
    }

    /// Returns all runs, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<u32>, RefCount)> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|(end, _)| *end));
        starts.zip(&self.0).map(|(start, (end, count))| (start..*end, *count))
    }

    /// Returns the free runs, in order.
    pub(crate) fn free_runs(&self) -> impl Iterator<Item = Range<u32>> {
        self.runs().filter(|(_, count)| count.rows == 0).map(|(run, _)| run)
    }

    /// Says how these counts, as stored, differ from the real ones of a region that begins at a
    /// block; `None` where they are the same.
    pub(crate) fn difference(&self, real: &Self, first: u64) -> Option<String> {
        if self == real {
            return None;
        }
        let at = (0..self.blocks()).find(|at| self.at(*at) != real.at(*at))?;
        let (stored, real) = (self.at(at), real.at(at));
        Some(format!(
            "block {} counts {} extents, {} of which need it, and there are {}, {} of which do",
            first + u64::from(at),
            stored.rows,
            stored.needing,
            real.rows,
            real.needing
        ))
    }

    fn at(&self, block: u32) -> RefCount {
        let index = self.0.partition_point(|(end, _)| *end <= block);
        self.0.get(index).map_or(RefCount::FREE, |(_, count)| *count)
    }

    /// Returns what a mount needs to know before it reads the row.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for (run, count) in self.runs() {
            let len = run.end - run.start;
            if count.rows == 0 {
                summary.free += len;
                summary.longest = summary.longest.max(len);
                summary.runs += 1;
            }
            summary.shared |= count.rows > 1;
        }
        summary
    }

    /// Encodes the row of a key; `None` where the region needs none.
    pub(crate) fn encode(&self, key: &[u8]) -> Option<Vec<u8>> {
        if matches!(self.0[..], [(_, RefCount::FREE)]) {
            return None;
        }
        let mut out = vec![0; 4];
        for (run, count) in self.runs() {
            let tag = match count {
                RefCount::FREE => FREE,
                RefCount::OWN => OWN,
                _ => TOLD,
            };
            put_varint(&mut out, u64::from(run.end - run.start) << TAG_BITS | tag);
            if tag == TOLD {
                put_varint(&mut out, count.rows.into());
                put_varint(&mut out, count.needing.into());
            }
        }
        super::seal(key, &mut out);
        Some(out)
    }

    /// Decodes the row of a key, of a region of so many blocks; `Corrupt` for what is none.
    pub(crate) fn decode(key: &[u8], row: &[u8], blocks: u32) -> Result<Self> {
        let mut r = Reader::new(super::unseal(key, row)?, "the reference counts of a region");
        let mut counts = Self(Vec::new());
        while !r.is_empty() {
            let word = varint(&mut r)?;
            let count = match word & ((1 << TAG_BITS) - 1) {
                FREE => RefCount::FREE,
                OWN => RefCount::OWN,
                TOLD => {
                    RefCount { rows: short(varint(&mut r)?)?, needing: short(varint(&mut r)?)? }
                }
                tag => return Err(damaged(&format!("a run of kind {tag}"))),
            };
            let len = short(word >> TAG_BITS)?;
            let end = counts.blocks().checked_add(len).filter(|end| len > 0 && *end <= blocks);
            let end = end.ok_or_else(|| damaged(&format!("a run of {len} blocks")))?;
            if count.needing > count.rows || (count.rows == 0 && word & 3 == TOLD) {
                return Err(damaged(&format!("{} of {} rows", count.needing, count.rows)));
            }
            counts.push(end, count);
        }
        if counts.blocks() == blocks {
            Ok(counts)
        } else {
            Err(damaged(&format!("{} blocks instead of {blocks}", counts.blocks())))
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("the reference counts of a region have {what}"))
}

fn short(word: u64) -> Result<u32> {
    u32::try_from(word).map_err(|_| damaged(&format!("a number {word}")))
}

fn put_varint(out: &mut Vec<u8>, mut word: u64) {
    while word >= 0x80 {
        out.push(word as u8 | 0x80);
        word >>= 7;
    }
    out.push(word as u8);
}

fn varint(r: &mut Reader<'_>) -> Result<u64> {
    let mut word = 0;
    for shift in (0..63).step_by(7) {
        let byte = r.u8()?;
        word |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(word);
        }
    }
    Err(damaged("a number that does not end"))
}

/// The checksum of a row under its key.
pub(super) fn sum(key: &[u8], body: &[u8]) -> u32 {
    crc32c(&[key, body].concat())
}
