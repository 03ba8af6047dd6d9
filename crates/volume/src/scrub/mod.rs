//! Comparing the copies of everything, and making those good that differ where it can be known
//! which is right.
//!
//! A copy that cannot be read is wrong. Of copies that can all be read and differ, a
//! [`PageArbiter`] may know: the database whose page it is. Where none knows, the difference is
//! told and nothing is touched. Rows of a RAID-5 are compared in `rows.rs`.

mod pages;
mod rows;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bedplate_block::AlignedBuf;

pub use pages::{HEAD_BYTES, Innodb, PageFormat, Postgres, Sqlite, page_formats};

use crate::group::{FINDING_COPIES_MAX, Handles, MemberHandle};
use crate::io::plan::{self, handle_of};
use crate::io::{LayoutEpoch, VolumeIo};
use crate::layout::{Copy, Locate, Run};
use crate::planted::{Mistake, is_planted};
use crate::{Config, Role, ScrubFinding};

/// How long what lies there may be told, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Knows which of several copies is right.
pub trait PageArbiter {
    /// Returns the ordinal of the copy that is right in a range of volume addresses, if that can be
    /// known. `read` fills a buffer from a copy, at any address, and says whether that worked;
    /// addresses and lengths are multiples of the volume's block. In a RAID-5 the range is a part
    /// of one unit, copy 0 is what stands there, and copy 1 is what the rest of the row makes of
    /// it; elsewhere both are the same.
    fn judge(
        &self,
        role: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize>;

    /// Says in words what lies at a volume address, where that is known.
    fn lies_at(&self, role: Role, address: u64) -> Option<String> {
        let _unknown = (role, address);
        None
    }
}

/// Knows nothing: differences are told and left.
#[derive(Debug, Clone, Copy, Default)]
pub struct Undecided;

impl PageArbiter for Undecided {
    fn judge(
        &self,
        _: Role,
        _: Range<u64>,
        _: usize,
        _: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        None
    }
}

/// Copies that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The volume.
    pub role: Role,
    /// The volume addresses; of a RAID-5 those of the row, unless it is known that one unit of data
    /// is wrong, and where.
    pub range: Range<u64>,
    /// The addresses whose data may be wrong: of a RAID-5 a part of each data unit, unless more is
    /// known; none where the parity is wrong.
    pub places: Vec<Range<u64>>,
    /// The members that hold a copy, or of a RAID-5 a part of the row, by their index, and where on
    /// them.
    pub copies: Vec<(usize, u64)>,
    /// The members whose copy cannot be read.
    pub unreadable: Vec<usize>,
    /// The member whose copy is right, where that is known.
    pub right: Option<usize>,
    /// Of a RAID-5 the member whose part of the row is wrong, where that is known.
    pub wrong: Option<usize>,
    /// Whether what is wrong was made good.
    pub repaired: bool,
}

/// What a scrub found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes whose copies were compared.
    pub compared_bytes: u64,
    /// Regions that were written to all the time and could not be compared.
    pub skipped_regions: u64,
    /// What differs.
    pub differences: Vec<Difference>,
}

/// How much is compared at once.
const CHUNK_BYTES: usize = 256 << 10;
/// How much of what differs is judged at once, where nothing is known of all of it.
const PIECE_BYTES: usize = 4096;
/// How often a busy region is tried again, and how long each time.
const TRIES: usize = 20;
const DRAIN_TIMEOUT: Duration = Duration::from_millis(10);
const _: () = assert!(
    CHUNK_BYTES.is_multiple_of(4096) && TRIES > 0,
    "a chunk of a scrub is whole blocks of every device"
);

/// What is done about what differs.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    /// Whether copies that are known to be wrong are written again.
    pub repair: bool,
    pub judge: &'a dyn PageArbiter,
}

/// How far a part of a region came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    /// To this byte in it.
    Part(u64),
    /// To its end.
    Whole,
    /// Writes are under way there all the time.
    Busy,
    /// The volume has no such region.
    Absent,
}

/// A copy of a run as it was read; `None` where it could not be.
struct CopyRead {
    handle: Arc<MemberHandle>,
    member: usize,
    offset: u64,
    bytes: Option<AlignedBuf>,
}

impl VolumeIo {
    /// Compares a part of a region, from byte `from` in it on, about `most` bytes of each member,
    /// while writes to the region wait.
    pub fn scrub_part(
        &self,
        region: u64,
        from: u64,
        most: u64,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> bedplate_block::Result<Compared> {
        // Taken again for every part: a region that is moved meanwhile is compared where it is now.
        let epoch = self.epochs.get();
        let Some(redundancy) =
            epoch.redundancy.as_ref().filter(|redundancy| region < redundancy.regions.count())
        else {
            return Ok(Compared::Absent);
        };
        let (start, len) = redundancy.regions.range(region);
        let end = crate::io::part_end(&epoch, start, from, most).min(len);
        if from >= end {
            return Ok(Compared::Whole);
        }
        self.resync_range(&epoch, start + from, end - from)?;
        if !(0..TRIES).any(|_| redundancy.regions.lock_in_time(region, DRAIN_TIMEOUT)) {
            return Ok(Compared::Busy);
        }
        let scrubbed = self.scrub_range(&epoch, start + from..start + end, how, report);
        redundancy.regions.unlock(region, 0);
        scrubbed?;
        Ok(if end == len { Compared::Whole } else { Compared::Part(end) })
    }

    /// Compares a range in parts of about so many bytes of each member. Returns false where writes
    /// are under way in it all the time.
    pub fn scrub_parts(
        &self,
        range: &Range<u64>,
        most: u64,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> bedplate_block::Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let epoch = self.epochs.peek();
            let Some(redundancy) = &epoch.redundancy else { break };
            let (region, _) = redundancy.regions.span(at, 1);
            let (start, len) = redundancy.regions.range(region);
            drop(epoch);
            let most = most.min(range.end - at);
            at = match self.scrub_part(region, at - start, most, how, report)? {
                Compared::Part(byte) => start + byte,
                Compared::Whole => start + len,
                Compared::Busy => return Ok(false),
                Compared::Absent => break,
            };
        }
        Ok(true)
    }

    /// Returns the region with which what lies at an address is compared: that in which its row
    /// begins.
    pub fn region_compared_at(&self, at: u64) -> Option<u64> {
        let epoch = self.epochs.peek();
        let at = epoch.parity_at(at).map_or(at, |parity| at - at % parity.raid5.row_bytes());
        Some(epoch.redundancy.as_ref()?.regions.span(at, 1).0)
    }

    /// Compares a range of a region that the caller has locked.
    fn scrub_range(
        &self,
        epoch: &LayoutEpoch,
        range: Range<u64>,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> bedplate_block::Result<()> {
        for (at, len) in epoch.stretches(range.start, range.end - range.start) {
            match epoch.parity_at(at) {
                Some(parity) => self.scrub_rows(epoch, parity, &(at..at + len), how, report)?,
                None => self.scrub_copies(epoch, at..at + len, how, report)?,
            }
        }
        Ok(())
    }

    fn scrub_copies(
        &self,
        epoch: &LayoutEpoch,
        range: Range<u64>,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> bedplate_block::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let run = epoch.locate(at);
            let len = run.len.min(range.end - at).min(CHUNK_BYTES as u64) as usize;
            debug_assert!(len > 0, "I-LAY-1: a run holds at least a byte, also at {at}");
            let (held, parts) = self.compare_copies(epoch, &run, len)?;
            report.compared_bytes += if held.len() > 1 { len as u64 } else { 0 };
            for part in parts {
                for (part, right) in self.decide(epoch, at, part, &held, how.judge) {
                    let told = self.repair_difference(at, part, right, &held, how.repair)?;
                    report.differences.push(told);
                }
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Reads the copies of a run and returns the parts in which they differ. One that was
    /// overwritten is no copy.
    fn compare_copies(
        &self,
        epoch: &LayoutEpoch,
        run: &Run,
        len: usize,
    ) -> bedplate_block::Result<(Vec<CopyRead>, Vec<Range<usize>>)> {
        loop {
            let overwritten = self.group_state.overwritten_count();
            let held = self.read_copies(run, len);
            let unreadable = held.iter().any(|held| held.bytes.is_none());
            let differ = |part: &Range<usize>| {
                unreadable
                    || held
                        .windows(2)
                        .any(|pair| part_of(&pair[0], part) != part_of(&pair[1], part))
            };
            let parts = if held.len() > 1 {
                differing(len, self.geometry.logical_block_size as usize, differ)
            } else {
                Vec::new()
            };
            debug_assert!(
                parts.iter().all(|part| part.start < part.end && part.end <= len),
                "copies differ within the {len} bytes that were compared: {parts:?}"
            );
            if parts.is_empty() || !self.is_overwritten_since(epoch, overwritten)? {
                return Ok((held, parts));
            }
        }
    }

    fn read_copies(&self, run: &Run, len: usize) -> Vec<CopyRead> {
        let handles = self.group_state.handles();
        let active = run.copies().iter().filter_map(|copy| {
            Some((copy, handle_of(&handles, copy.member).filter(|handle| handle.is_active())?))
        });
        active
            .map(|(copy, handle)| {
                let mut bytes = AlignedBuf::zeroed(len);
                let good = handle.read(&mut bytes, copy.offset).is_ok();
                CopyRead {
                    handle: Arc::clone(handle),
                    member: copy.member.into(),
                    offset: copy.offset,
                    bytes: good.then_some(bytes),
                }
            })
            .collect()
    }

    /// Returns which copy is right of a part in which copies differ: of all of it, or else of its
    /// pieces, of which some may be known, and some of another copy.
    fn decide(
        &self,
        epoch: &LayoutEpoch,
        at: u64,
        part: Range<usize>,
        held: &[CopyRead],
        judge: &dyn PageArbiter,
    ) -> Vec<(Range<usize>, Option<usize>)> {
        let right = self.right_of(epoch, at, &part, held, judge);
        if right.is_some() || part.len() <= PIECE_BYTES {
            return vec![(part, right)];
        }
        let mut pieces: Vec<(Range<usize>, Option<usize>)> = Vec::new();
        let mut from = part.start;
        while from < part.end {
            let into_piece = ((at + from as u64) % PIECE_BYTES as u64) as usize;
            let to = part.end.min(from + PIECE_BYTES - into_piece);
            let right = self.right_of(epoch, at, &(from..to), held, judge);
            match pieces.last_mut().filter(|(_, before)| *before == right) {
                Some((piece, _)) => piece.end = to,
                None => pieces.push((from..to, right)),
            }
            from = to;
        }
        pieces
    }

    fn right_of(
        &self,
        epoch: &LayoutEpoch,
        at: u64,
        part: &Range<usize>,
        held: &[CopyRead],
        judge: &dyn PageArbiter,
    ) -> Option<usize> {
        let range = at + part.start as u64..at + part.end as u64;
        let mut readable = (0..held.len()).filter(|copy| held[*copy].bytes.is_some());
        let first = readable.next()?;
        let agree = readable.all(|copy| part_of(&held[copy], part) == part_of(&held[first], part));
        let right = if agree || is_planted(Mistake::ScrubBelievesFirst) {
            Some(first)
        } else {
            self.ask(epoch, judge, &range, held)
        };
        debug_assert!(
            right.is_none_or(|copy| held[copy].bytes.is_some()),
            "what is right was read: {right:?}"
        );
        right
    }

    fn repair_difference(
        &self,
        at: u64,
        part: Range<usize>,
        right: Option<usize>,
        held: &[CopyRead],
        repair: bool,
    ) -> bedplate_block::Result<Difference> {
        debug_assert!(held.len() > 1, "copies differ where there are several: {part:?}");
        let range = at + part.start as u64..at + part.end as u64;
        let content = |copy: usize| held[copy].bytes.as_ref().map(|bytes| &bytes[part.clone()]);
        let mut repaired = false;
        if let Some((right, bytes)) =
            right.and_then(|right| Some((right, content(right)?))).filter(|_| repair)
        {
            let wrong = held.iter().enumerate().filter(|(copy, held)| {
                *copy != right && content(*copy) != Some(bytes) && held.handle.is_active()
            });
            let mut failures = Vec::new();
            for (_, held) in wrong {
                match held
                    .handle
                    .write(&AlignedBuf::from_slice(bytes), held.offset + part.start as u64)
                    .and_then(|()| held.handle.flush())
                {
                    Ok(()) => held.handle.note_corrected(),
                    Err(error) => failures.push((Arc::clone(&held.handle), error)),
                }
            }
            self.fail_members(failures)?;
            repaired = true;
        }
        Ok(Difference {
            role: self.role,
            places: vec![range.clone()],
            range,
            copies: held
                .iter()
                .map(|held| (held.member, held.offset + part.start as u64))
                .collect(),
            unreadable: held
                .iter()
                .filter(|held| held.bytes.is_none())
                .map(|held| held.member)
                .collect(),
            right: right.map(|right| held[right].member),
            wrong: None,
            repaired,
        })
    }

    /// Asks the arbiter. Copies are numbered as in this run; elsewhere the copy on the same member
    /// is meant, or the one with the same number.
    fn ask(
        &self,
        epoch: &LayoutEpoch,
        judge: &dyn PageArbiter,
        range: &Range<u64>,
        held: &[CopyRead],
    ) -> Option<usize> {
        let handles = self.group_state.handles();
        let mut read = |copy: usize, address: u64, buf: &mut [u8]| {
            self.read_chosen(epoch, &handles, address, buf, &|run| {
                let same =
                    run.copies().iter().find(|one| usize::from(one.member) == held[copy].member);
                same.or(run.copies().get(copy)).copied()
            })
        };
        judge
            .judge(self.role, range.clone(), held.len(), &mut read)
            .filter(|right| held.get(*right).is_some_and(|held| held.bytes.is_some()))
    }

    /// Fills a buffer from copies of which one is chosen for each run, and from nowhere else.
    /// Returns whether that worked.
    pub fn read_chosen(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        address: u64,
        buf: &mut [u8],
        choose: &dyn Fn(&Run) -> Option<Copy>,
    ) -> bool {
        if self.check(epoch, bedplate_block::Operation::Read, address, buf.len() as u64).is_err() {
            return false;
        }
        let read = plan::runs(epoch, address, 0, buf.len(), |run, _, from, len| {
            let place = choose(run).ok_or(())?;
            let handle = handle_of(handles, place.member).ok_or(())?;
            let mut bytes = AlignedBuf::zeroed(len);
            handle.read(&mut bytes, place.offset).map_err(drop)?;
            buf[from..from + len].copy_from_slice(&bytes);
            Ok::<(), ()>(())
        });
        read.is_ok()
    }
}

fn part_of<'a>(held: &'a CopyRead, part: &Range<usize>) -> Option<&'a [u8]> {
    held.bytes.as_ref().map(|bytes| &bytes[part.clone()])
}

/// Returns the ranges of `len` bytes that differ, in whole blocks, neighbours joined.
pub(crate) fn differing(
    len: usize,
    block: usize,
    differs: impl Fn(&Range<usize>) -> bool,
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for part in (0..len)
        .step_by(block)
        .map(|start| start..(start + block).min(len))
        .filter(|part| differs(part))
    {
        match ranges.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => ranges.push(part),
        }
    }
    ranges
}

/// Makes a finding of a difference that was found just now.
pub(crate) fn finding(
    config: &Config,
    one: &Difference,
    judge: Option<&dyn PageArbiter>,
) -> ScrubFinding {
    let id = |member: usize| config.members.get(member).map(|member| member.id);
    let lies = one
        .places
        .iter()
        .filter_map(|place| judge?.lies_at(one.role, place.start))
        .collect::<Vec<_>>()
        .join(" or ");
    ScrubFinding {
        under_way: true,
        role: one.role,
        range: one.range.clone(),
        lies: Some(shortened(lies)).filter(|lies| !lies.is_empty()),
        parity: one.places.is_empty(),
        copies: one
            .copies
            .iter()
            .filter_map(|(member, offset)| Some((id(*member)?, *offset)))
            .take(FINDING_COPIES_MAX)
            .collect(),
        right: one.right.and_then(id),
        wrong: one.wrong.and_then(id),
        repaired: one.repaired,
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end =
            (0..=TEXT_BYTES_MAX - 3).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text += "…";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_place_has_an_end() {
        assert_eq!(shortened("ä".repeat(128)).len(), 256);
        let cut = shortened("ä".repeat(129));
        assert!(cut.len() <= TEXT_BYTES_MAX && cut.ends_with('…'), "{cut}");
    }
}
