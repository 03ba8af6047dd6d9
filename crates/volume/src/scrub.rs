//! Comparing the copies of everything, and making those good that differ where it can be known which is right.
//!
//! A copy that cannot be read is wrong. Of copies that can all be read and differ, a [`Judge`] may know: the database whose page it is. Where
//! nobody knows, the difference is told and nothing is touched.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::AlignedBuf;

use crate::core::Core;
use crate::layout::{Locate, Run};
use crate::live::Live;
use crate::plan::live_of;
use crate::space::Space;
use crate::{Group, Result, Role};

/// Knows which of several copies is right.
pub trait Judge {
    /// Returns the ordinal of the copy that is right in a range of volume addresses, if that can be known. `read` fills a buffer from a copy, at
    /// any address, and says whether that worked; addresses and lengths are multiples of the volume's block.
    fn judge(&self, role: Role, range: Range<u64>, copies: usize, read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool) -> Option<usize>;
}

/// Knows nothing: differences are told and left.
#[derive(Debug, Clone, Copy, Default)]
pub struct Undecided;

impl Judge for Undecided {
    fn judge(&self, _: Role, _: Range<u64>, _: usize, _: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool) -> Option<usize> {
        None
    }
}

/// Copies that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The volume.
    pub role: Role,
    /// The volume addresses.
    pub range: Range<u64>,
    /// The members that hold a copy, or of a RAID-5 a part of the row, by their index, and where on them.
    pub copies: Vec<(usize, u64)>,
    /// The members whose copy cannot be read.
    pub unreadable: Vec<usize>,
    /// The member whose copy is right, where that is known.
    pub right: Option<usize>,
    /// Whether the others were made good from it.
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
/// How often a busy region is tried again.
const TRIES: usize = 20;

impl Group {
    /// Compares all copies, region by region, while the volumes are in use. With `repair`, copies that are known to be wrong are written anew.
    /// `progress` gets the bytes done after each region.
    ///
    /// # Errors
    /// `Broken` or `Device` when a repair fails and nothing stands in for the member.
    pub fn scrub(&self, repair: bool, judge: &dyn Judge, progress: &mut dyn FnMut(u64)) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        for core in &self.open.inner.cores {
            for region in 0.. {
                // Taken anew for every region: one that is moved meanwhile is compared where it is now.
                let space = core.spaces.get();
                let Some(redundancy) = space.redundancy.as_ref().filter(|redundancy| region < redundancy.regions.count()) else { break };
                let (start, len) = redundancy.regions.range(region);
                drop(space);
                if self.scrub_region(core, region, start..start + len, repair, judge, &mut report)? {
                    progress(len);
                } else {
                    report.skipped_regions += 1;
                }
            }
        }
        self.open.inner.throttle.leave(&self.open.inner.cores);
        Ok(report)
    }

    /// Compares a region in parts, each of which keeps writes to the region waiting. Returns whether it could be locked.
    fn scrub_region(&self, core: &Core, region: u64, range: Range<u64>, repair: bool, judge: &dyn Judge, report: &mut ScrubReport) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let pace = self.open.inner.throttle.wait(&self.open.inner.cores);
            let began = Instant::now();
            let space = core.spaces.get();
            let Some(redundancy) = space.redundancy.as_ref().filter(|redundancy| region < redundancy.regions.count()) else { return Ok(false) };
            let end = (at + crate::sync::part_end(&space, at, 0, pace.chunk_bytes)).min(range.end);
            core.settle_regions(&space, at, end - at)?;
            let locked = (0..TRIES).any(|_| redundancy.regions.lock(region, Duration::from_millis(10)));
            if !locked {
                return Ok(false);
            }
            let scrubbed = core.scrub_range(&space, at..end, repair, judge, report);
            redundancy.regions.unlock(region, 0);
            scrubbed?;
            at = end;
            std::thread::sleep(pace.rest(began.elapsed()));
        }
        Ok(true)
    }
}

/// A copy of a run as it was read; `None` where it could not be.
struct Held {
    live: Arc<Live>,
    member: usize,
    offset: u64,
    bytes: Option<AlignedBuf>,
}

impl Core {
    /// Compares a range of a region that the caller has locked.
    fn scrub_range(&self, space: &Space, range: Range<u64>, repair: bool, judge: &dyn Judge, report: &mut ScrubReport) -> block::Result<()> {
        for (at, len) in space.stretches(range.start, range.end - range.start) {
            match space.parity_at(at) {
                Some(parity) => self.scrub_rows(parity, &(at..at + len), repair, report)?,
                None => self.scrub_copies(space, at..at + len, repair, judge, report)?,
            }
        }
        Ok(())
    }

    fn scrub_copies(&self, space: &Space, range: Range<u64>, repair: bool, judge: &dyn Judge, report: &mut ScrubReport) -> block::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let run = space.locate(at);
            let len = run.len.min(range.end - at).min(CHUNK_BYTES as u64) as usize;
            let held = self.read_copies(&run, len);
            if held.len() > 1 {
                report.compared_bytes += len as u64;
                for part in differing(&held, len, self.geometry.logical_block_size as usize) {
                    report.differences.push(self.settle_difference(space, at, part, &held, repair, judge)?);
                }
            }
            at += len as u64;
        }
        Ok(())
    }

    fn read_copies(&self, run: &Run, len: usize) -> Vec<Held> {
        let lives = self.shared.lives();
        let active = run.copies().iter().filter_map(|copy| Some((copy, live_of(&lives, copy.member).filter(|live| live.is_active())?)));
        active
            .map(|(copy, live)| {
                let mut bytes = AlignedBuf::zeroed(len);
                let good = live.read(&mut bytes, copy.offset).is_ok();
                Held { live: Arc::clone(live), member: copy.member.into(), offset: copy.offset, bytes: good.then_some(bytes) }
            })
            .collect()
    }

    fn settle_difference(
        &self,
        space: &Space,
        at: u64,
        part: Range<usize>,
        held: &[Held],
        repair: bool,
        judge: &dyn Judge,
    ) -> block::Result<Difference> {
        let range = at + part.start as u64..at + part.end as u64;
        let readable: Vec<usize> = (0..held.len()).filter(|copy| held[*copy].bytes.is_some()).collect();
        let content = |copy: usize| held[copy].bytes.as_ref().map(|bytes| &bytes[part.clone()]);
        let agree = readable.windows(2).all(|pair| content(pair[0]) == content(pair[1]));
        let right = match readable.first() {
            Some(first) if agree => Some(*first),
            Some(_) => self.ask(space, judge, &range, held),
            None => None,
        };
        let mut repaired = false;
        if let Some((right, bytes)) = right.and_then(|right| Some((right, content(right)?))).filter(|_| repair) {
            let wrong = held.iter().enumerate().filter(|(copy, held)| *copy != right && content(*copy) != Some(bytes) && held.live.is_active());
            let mut failures = Vec::new();
            for (_, held) in wrong {
                match held.live.write(&AlignedBuf::from_slice(bytes), held.offset + part.start as u64).and_then(|()| held.live.flush()) {
                    Ok(()) => held.live.note_corrected(),
                    Err(error) => failures.push((Arc::clone(&held.live), error)),
                }
            }
            self.settle(failures)?;
            repaired = true;
        }
        Ok(Difference {
            role: self.role,
            range,
            copies: held.iter().map(|held| (held.member, held.offset + part.start as u64)).collect(),
            unreadable: held.iter().filter(|held| held.bytes.is_none()).map(|held| held.member).collect(),
            right: right.map(|right| held[right].member),
            repaired,
        })
    }

    /// Asks who knows. Copies are numbered as in this run; elsewhere the copy on the same member is meant, or the one with the same number.
    fn ask(&self, space: &Space, judge: &dyn Judge, range: &Range<u64>, held: &[Held]) -> Option<usize> {
        let lives = self.shared.lives();
        let mut read = |copy: usize, address: u64, buf: &mut [u8]| {
            if self.check(space, block::Operation::Read, address, buf.len() as u64).is_err() {
                return false;
            }
            let read = crate::plan::runs(space, address, 0, buf.len(), |run, _, from, len| {
                let same = run.copies().iter().find(|one| usize::from(one.member) == held[copy].member);
                let place = same.or(run.copies().get(copy)).ok_or(())?;
                let live = live_of(&lives, place.member).ok_or(())?;
                let mut bytes = AlignedBuf::zeroed(len);
                live.read(&mut bytes, place.offset).map_err(drop)?;
                buf[from..from + len].copy_from_slice(&bytes);
                Ok::<(), ()>(())
            });
            read.is_ok()
        };
        judge.judge(self.role, range.clone(), held.len(), &mut read).filter(|right| held.get(*right).is_some_and(|held| held.bytes.is_some()))
    }
}

fn part_of<'a>(held: &'a Held, part: &Range<usize>) -> Option<&'a [u8]> {
    held.bytes.as_ref().map(|bytes| &bytes[part.clone()])
}

/// Returns the ranges in which copies differ or cannot be read, in whole blocks, neighbours joined.
fn differing(held: &[Held], len: usize, block: usize) -> Vec<Range<usize>> {
    if held.iter().any(|held| held.bytes.is_none()) {
        return std::iter::once(0..len).collect();
    }
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for start in (0..len).step_by(block) {
        let part = start..(start + block).min(len);
        if held.windows(2).any(|pair| part_of(&pair[0], &part) != part_of(&pair[1], &part)) {
            match ranges.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => ranges.push(part),
            }
        }
    }
    ranges
}
