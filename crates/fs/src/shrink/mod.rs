//! Making a file system smaller while it is in use.
//!
//! ```text
//!   room? ─► fence: nothing is given out beyond ─► metadata ─► survey ─► blocks of files ─► survey ─► shared blocks
//!     └ no: what lacks, and what holds it            ▲                                              │
//!                                                    └───────── some are left: the next pass ◄──────┤
//!              free space ends ◄─ superblocks: the new size ◄─ metadata commit ◄─ all is free ◄─────┘
//! ```
//!
//! One call is one step of a fraction of a second, so that the command that asked for it can tell how
//! far it is, and stop. Given up, or left alone for a minute, it has moved blocks and changed nothing else.
//!
//! - I-SHR-1: the new size is written when nothing beyond it is in use, by any row of the present
//!   or of a checkpoint, by the volume itself or by a record that replay may meet: the metadata
//!   commit before it holds them all.
//! - Until then the old size holds, and a crash finds a whole file system of that size (S-373).

mod rewrite;
mod shared;
mod survey;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Phase, Shrinking};
use crate::{BlockNo, Error, ErrorKind, InodeNo, Result, format_size};
use bedplate_store::{COPY_B, COPY_BYTES, PlantedBug, VOLUME_BYTES_MIN, planted};
use survey::Survey;

/// How long one step takes, besides what is under way then.
const STEP: Duration = Duration::from_millis(200);
/// So many passes that free nothing are the end of it.
const IDLE_PASSES_MAX: u32 = 8;

/// What one step of a shrink did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkStep {
    /// The size that the file system has now, in bytes.
    pub size_bytes: u64,
    /// Bytes that this step moved.
    pub moved_bytes: u64,
    /// Bytes beyond the new end that are still in use.
    pub left_bytes: u64,
    /// The file system has its new size, durably.
    pub is_done: bool,
}

/// What a shrink would have to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkPlan {
    /// The size that the file system has, in bytes.
    pub size_bytes: u64,
    /// The size that it would have.
    pub new_bytes: u64,
    /// The smallest size that it could have now, about.
    pub size_bytes_min: u64,
    /// What would be moved: blocks that files have now.
    pub file_bytes: u64,
    /// What would be moved: blocks that checkpoints alone have.
    pub checkpoint_bytes: u64,
    /// What would be moved: metadata, and the intent log.
    pub metadata_bytes: u64,
    /// What lacks before the new end for all that.
    pub lacking_bytes: u64,
}

impl Engine {
    /// Says what a shrink to a size would have to do, and changes nothing.
    pub(crate) fn plan_shrink(&self, size: u64) -> Result<ShrinkPlan> {
        let held = self.lock_size();
        let limit = self.limit_of(size)?;
        let plan = self.plan_to(limit);
        drop(held);
        plan
    }

    /// Carries a shrink to a size on by a step; the first begins it.
    pub(crate) fn shrink(&self, size: u64) -> Result<ShrinkStep> {
        match self.shrink_now(size) {
            // A checkpoint that is deleted may still have the room that lacks.
            Err(error) if error.kind == ErrorKind::NoSpace && self.is_deleting() => {
                self.end_deletions()?;
                self.shrink_now(size)
            }
            step => step,
        }
    }

    fn shrink_now(&self, size: u64) -> Result<ShrinkStep> {
        self.begin_change()?;
        let mut held = self.lock_size();
        let limit = match self.limit_of(size) {
            Ok(limit) => limit,
            Err(error) => {
                self.give_up_shrinking(&mut held);
                return Err(error);
            }
        };
        if held.as_ref().is_some_and(|shrinking| shrinking.limit != limit) {
            self.give_up_shrinking(&mut held);
        }
        if held.is_none() {
            *held = Some(self.begin_shrink(limit)?);
        }
        let shrinking = held.as_mut().expect("it was just begun");
        let step = self.shrink_step(shrinking);
        match &step {
            Ok(step) if step.is_done => *held = None,
            Ok(_) => shrinking.touch(),
            Err(_) => self.give_up_shrinking(&mut held),
        }
        step
    }

    fn begin_shrink(&self, limit: BlockNo) -> Result<Shrinking> {
        self.need_shrink_room(limit)?;
        if let Some(shrinking) = self.begin_shrinking(limit) {
            return Ok(shrinking);
        }
        // Removed blocks, or dirty pages, were in the way.
        self.make_freed_reusable()?;
        self.begin_shrinking(limit).ok_or_else(|| {
            let message = "programs took the room that a smaller file system needs meanwhile: run \
                           it again, or ask for more";
            Error::new(ErrorKind::NoSpace, message)
        })
    }

    /// Gives a shrink up, if one is under way.
    pub(crate) fn stop_shrink(&self) {
        self.give_up_shrinking(&mut self.lock_size());
    }

    /// Returns where a file system of a size ends. It is smaller than the present one.
    fn limit_of(&self, size: u64) -> Result<BlockNo> {
        let superblock = self.superblock();
        let block = u64::from(superblock.block_size);
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
        let limit = size / block;
        if limit * block >= superblock.size_bytes {
            return invalid(format!(
                "the file system has {}, not more than {}: nothing is to be made smaller",
                format_size(superblock.size_bytes),
                format_size(size)
            ));
        }
        let min = VOLUME_BYTES_MIN.max(COPY_B + COPY_BYTES);
        if limit * block < min {
            return invalid(format!(
                "a file system of {} is not possible here: the smallest one that has room for its \
                 own parts, which do not move, has {}",
                format_size(size),
                format_size(min)
            ));
        }
        Ok(BlockNo(limit))
    }

    fn plan_to(&self, limit: BlockNo) -> Result<ShrinkPlan> {
        let superblock = self.superblock();
        let block = u64::from(superblock.block_size);
        let survey = Survey::of(self, limit)?;
        let totals = self.totals_around(limit);
        let files = survey.blocks(limit, |row| row.epoch.is_none());
        let min = totals.used + totals.used / 64 + totals.kept_below;
        Ok(ShrinkPlan {
            size_bytes: superblock.size_bytes,
            new_bytes: limit.0 * block,
            size_bytes_min: (min * block).next_multiple_of(1 << 20).min(superblock.size_bytes),
            file_bytes: files * block,
            checkpoint_bytes: (survey.blocks(limit, |_| true) - files) * block,
            metadata_bytes: superblock.metadata_beyond(limit.0 * block)
                + superblock.log_beyond(limit.0 * block),
            lacking_bytes: totals.lacking() * block,
        })
    }

    /// Refuses a shrink that would not find room for what lies beyond the new end.
    fn need_shrink_room(&self, limit: BlockNo) -> Result<()> {
        let mut totals = self.totals_around(limit);
        if totals.lacking() > 0 {
            // What was removed may be about to become free.
            self.make_freed_reusable()?;
            totals = self.totals_around(limit);
        }
        if totals.lacking() == 0 {
            return Ok(());
        }
        let plan = self.plan_to(limit)?;
        let checkpoints = self.reading(|rows| Ok(rows.checkpoint_set.listed().count()))?;
        let held = match checkpoints {
            0 => "delete files".to_owned(),
            count => format!("delete files or some of the {count} checkpoints"),
        };
        let block = u64::from(self.block_size());
        let message = format!(
            "{} lack for a file system of {}: beyond its end lie {} of files, {} that checkpoints \
             alone have and {} of metadata, and before it {} are free, of which {} are kept; \
             {held}, or ask for {} or more",
            format_size(plan.lacking_bytes),
            format_size(plan.new_bytes),
            format_size(plan.file_bytes),
            format_size(plan.checkpoint_bytes),
            format_size(plan.metadata_bytes),
            format_size(totals.free_below * block),
            format_size(totals.kept_below * block),
            format_size(plan.size_bytes_min)
        );
        Err(Error::no_space(totals.lacking(), message))
    }

    fn shrink_step(&self, shrinking: &mut Shrinking) -> Result<ShrinkStep> {
        let block = u64::from(self.block_size());
        let began = Instant::now();
        let (mut moved_bytes, mut is_done) = (0, false);
        while !is_done && began.elapsed() < STEP {
            if let Phase::End = shrinking.phase {
                is_done = self.end_pass(shrinking)?;
            } else {
                moved_bytes += self.carry_on(shrinking)?;
            }
        }
        let left_bytes = if is_done { 0 } else { self.left_beyond() * block };
        Ok(ShrinkStep {
            size_bytes: self.superblock().size_bytes,
            moved_bytes,
            left_bytes,
            is_done,
        })
    }

    /// Does the next of a pass; returns how many bytes moved.
    fn carry_on(&self, shrinking: &mut Shrinking) -> Result<u64> {
        let (limit, block) = (shrinking.limit, u64::from(self.block_size()));
        let survey = || {
            // A clone that is not finished has rows without its inode in memory.
            let _no_clone = self.lock_clones();
            Survey::of(self, limit)
        };
        match &mut shrinking.phase {
            Phase::Survey => {
                if planted(PlantedBug::ShrinkBeforeMoved) {
                    shrinking.phase = Phase::End;
                    return Ok(0);
                }
                // Of blocks that are in no row yet no survey knows.
                self.end_tails(None)?;
                // First, while there are runs that are long enough.
                let moved = self.move_log_before(limit)? + self.move_metadata(limit)?;
                shrinking.phase = Phase::Files(survey()?.files(), 0);
                Ok(moved)
            }
            Phase::Files(files, from) => {
                let Some(ino) = files.front().copied() else {
                    shrinking.phase = Phase::SurveyShared;
                    return Ok(0);
                };
                let (next, blocks) = self.evacuate_some(ino, *from, limit)?;
                *from = next.unwrap_or(0);
                if next.is_none() {
                    files.pop_front();
                }
                Ok(blocks * block)
            }
            Phase::SurveyShared => {
                // No row becomes more pieces than a window has blocks.
                let most = (shared::WINDOW_BYTES / block)
                    .min(self.limits().extents_per_record as u64)
                    .max(1);
                let windows = survey()?.windows(limit, most);
                shrinking.phase = Phase::Shared(windows);
                Ok(0)
            }
            Phase::Shared(windows) if windows.is_empty() => {
                shrinking.phase = Phase::End;
                Ok(0)
            }
            Phase::Shared(windows) => Ok(self.move_windows(windows)? * block),
            Phase::End => Ok(0),
        }
    }

    /// Moves the next blocks of a file; returns where to go on, and how many moved.
    fn evacuate_some(&self, ino: InodeNo, from: u64, limit: BlockNo) -> Result<(Option<u64>, u64)> {
        self.begin_change()?;
        let _no_clone = self.lock_clones();
        match self.inode(ino).and_then(|inode| self.evacuate(&inode, from, limit)) {
            Ok(step) => Ok((step.next, step.blocks)),
            // It was removed meanwhile.
            Err(error) if error.kind == ErrorKind::NotFound => Ok((None, 0)),
            Err(error) => Err(error),
        }
    }

    /// Ends a pass: the file system has its new size where nothing is left, else the next begins.
    fn end_pass(&self, shrinking: &mut Shrinking) -> Result<bool> {
        self.make_freed_reusable()?;
        let left = self.left_beyond();
        if left > 0 && !planted(PlantedBug::ShrinkBeforeMoved) {
            shrinking.idle_passes =
                if left < shrinking.left { 0 } else { shrinking.idle_passes + 1 };
            (shrinking.left, shrinking.phase) = (left, Phase::Survey);
            return if shrinking.idle_passes < IDLE_PASSES_MAX {
                Ok(false)
            } else {
                Err(self.stuck(shrinking, left)?)
            };
        }
        // What replay may meet from here on has nothing beyond the new end.
        self.metadata_commit()?;
        assert!(
            self.left_beyond() == 0 || planted(PlantedBug::ShrinkBeforeMoved),
            "I-SHR-1: nothing beyond block {} is in use when the size changes",
            shrinking.limit.0
        );
        let size = shrinking.limit.0 * u64::from(self.block_size());
        self.update_superblock(|superblock| superblock.size_bytes = size)?;
        self.end_space()?;
        Ok(true)
    }

    /// Says what does not leave.
    fn stuck(&self, shrinking: &Shrinking, left: u64) -> Result<Error> {
        let survey = Survey::of(self, shrinking.limit)?;
        let block = u64::from(self.block_size());
        let files = survey.files().len();
        Ok(Error::new(
            ErrorKind::Busy,
            format!(
                "{} beyond the new end do not become free, of which {files} files have some: the \
                 file system keeps its size; run it again while programs write less, or run a check",
                format_size(left * block)
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
