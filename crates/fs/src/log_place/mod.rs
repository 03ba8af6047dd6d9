//! Where the intent log lies, and its moves to other places while the file system is in use.
//!
//! ```text
//!   plan ─► the new place: zeros, the head of a device ─► flush ─► MetaStore::move_log ─► the old place is free
//!    └ refused: nothing has changed                                  └ the tree holds all records; superblocks
//! ```
//!
//! - I-LPL-1: the blocks of the old place become free, or its device loses its head, once both
//!   superblocks name the new one.
//! - What a cut leaves before that is a log in the old place (I-LOG-9); blocks that were to be the
//!   new one are free at the next mount.

mod lost;
mod renewed;

use std::sync::Arc;

use bedplate_block::BlockDevice;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::engine::Engine;
use crate::format::{
    GRAIN, LOG_BYTES_MAX, SEPARATE_LOG_BYTES_MAX, plan_log_device, refuse_used, wipe,
};
use crate::{BlockNo, Error, ErrorKind, Result, format_size};
use bedplate_store::{
    LOG_BYTES_MIN, LogDeviceHead, LogParts, LogPlace, PlantedBug, Run, Superblock, planted,
};

pub(crate) use lost::bring_home;

/// Where an intent log lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpot {
    /// Its own device; `None`: it lies on the volume.
    pub device: Option<String>,
    /// The first byte of its ring there.
    pub start_byte: u64,
    /// The length of the ring in bytes.
    pub size_bytes: u64,
}

/// What a move of the intent log did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMove {
    /// Where the log was.
    pub from: LogSpot,
    /// Where it is since.
    pub to: LogSpot,
    /// Why its former device still looks like the log of this volume, where it does.
    pub left: Option<String>,
}

/// How an intent log is moved.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogMoveOptions {
    /// Size of the ring in bytes; `None`: as a format would choose it.
    pub size_bytes: Option<u64>,
    /// Overwrite whatever the device holds; or, where the log's device is lost, give up what only it
    /// had.
    pub force: bool,
    /// Only tell what would be done.
    pub dry_run: bool,
}

/// A new place, and what it takes to get there.
struct Plan {
    parts: LogParts,
    /// Bytes of the ring's device that were not the log's.
    fresh: Vec<(u64, u64)>,
    /// Blocks of the volume that the log leaves, and that were taken for it.
    leaves: Option<Run>,
    takes: Option<Run>,
}

impl Engine {
    /// Moves the intent log onto a device of its own, or home to the volume.
    pub(crate) fn move_log(
        &self,
        device: Option<Arc<dyn BlockDevice>>,
        options: &LogMoveOptions,
    ) -> Result<LogMove> {
        self.begin_change()?;
        let shrinking = self.lock_size();
        refuse_shrinking(shrinking.is_some())?;
        match device {
            Some(device) => self.move_log_to_device(&device, options),
            None => self.move_log_home(options),
        }
    }

    /// Gives the intent log another size, where it lies.
    pub(crate) fn resize_log(&self, size_bytes: u64, is_dry: bool) -> Result<LogMove> {
        self.begin_change()?;
        let shrinking = self.lock_size();
        refuse_shrinking(shrinking.is_some())?;
        let superblock = self.superblock();
        if self.log_device().is_some() {
            return self.resize_on_device(&superblock, size_bytes, is_dry);
        }
        let len = home_len(&superblock, Some(size_bytes))?;
        let old = superblock.log;
        if len == old.len {
            return Err(no_change(&superblock));
        }
        if len > old.len {
            return self.move_within(&superblock, len, is_dry);
        }
        let block = u64::from(superblock.block_size);
        let end = old.start + len;
        let plan = Plan {
            parts: self.log_parts(&superblock, None, old.start, len),
            fresh: Vec::new(),
            leaves: Some(Run { start: BlockNo(end / block), blocks: (old.end() - end) / block }),
            takes: None,
        };
        self.carry_out(&superblock, &plan, is_dry)
    }

    /// Moves the log before the end of a file system that becomes smaller, of the size lock held;
    /// as large as it is where there is room for that, else smaller. Returns how many bytes of the
    /// volume moved.
    pub(crate) fn move_log_before(&self, limit: BlockNo) -> Result<u64> {
        let superblock = self.superblock();
        let end = limit.0 * u64::from(superblock.block_size);
        if superblock.log_separate || superblock.log.end() <= end {
            return Ok(0);
        }
        let mut len = superblock.log.len;
        loop {
            match self.move_within(&superblock, len, false) {
                Err(error) if error.kind == ErrorKind::NoSpace && len > LOG_BYTES_MIN => {
                    len = (len / 2).next_multiple_of(GRAIN).max(LOG_BYTES_MIN);
                }
                other => return other.map(|_| superblock.log.len),
            }
        }
    }

    fn move_log_home(&self, options: &LogMoveOptions) -> Result<LogMove> {
        let superblock = self.superblock();
        if !superblock.log_separate {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} has its intent log on itself already: 'bedplate log resize' changes its size",
                    self.device_name()
                ),
            ));
        }
        let len = home_len(&superblock, options.size_bytes)?;
        self.move_within(&superblock, len, options.dry_run)
    }

    /// Moves the log to a free run of the volume.
    fn move_within(&self, superblock: &Superblock, len: u64, is_dry: bool) -> Result<LogMove> {
        let block = u64::from(superblock.block_size);
        let taken = match self.take_run(len / block) {
            Some(run) => run,
            None => {
                // What was removed may be about to become free.
                self.make_freed_reusable()?;
                self.take_run(len / block).ok_or_else(|| self.no_run(len))?
            }
        };
        let start = taken.start.0 * block;
        let old = superblock.log;
        let plan = Plan {
            parts: self.log_parts(superblock, None, start, len),
            fresh: vec![(start, len)],
            leaves: (!superblock.log_separate)
                .then(|| Run { start: BlockNo(old.start / block), blocks: old.len / block }),
            takes: Some(taken),
        };
        self.carry_out(superblock, &plan, is_dry)
    }

    /// Takes a run that begins where large blocks of devices do, as long as there is one.
    fn take_run(&self, blocks: u64) -> Option<Run> {
        let grain = GRAIN / u64::from(self.block_size());
        let Some(run) = self.allocate_run(blocks + grain - 1) else {
            return self.allocate_run(blocks);
        };
        let start = run.start.0.next_multiple_of(grain);
        let around = [
            Run { start: run.start, blocks: start - run.start.0 },
            Run { start: BlockNo(start + blocks), blocks: run.end() - start - blocks },
        ];
        let around: Vec<Run> = around.into_iter().filter(|rest| rest.blocks > 0).collect();
        self.free_unused(&around, 0);
        Some(Run { start: BlockNo(start), blocks })
    }

    fn no_run(&self, len: u64) -> Error {
        let block = u64::from(self.block_size());
        let longest = self.space_totals().run_max * block;
        Error::no_space(
            len / block,
            format!(
                "{} has no free run of {} for an intent log, the longest has {}: delete files, ask \
                 for a smaller log, or move the log onto a device of its own",
                self.device_name(),
                format_size(len),
                format_size(longest)
            ),
        )
    }

    fn move_log_to_device(
        &self,
        device: &Arc<dyn BlockDevice>,
        options: &LogMoveOptions,
    ) -> Result<LogMove> {
        let superblock = self.superblock();
        let volume = Uuid::from_bytes(superblock.uuid);
        if device.geometry().read_only {
            let message = format!("{} is read-only and can hold no intent log", device.name());
            return Err(Error::new(ErrorKind::ReadOnly, message));
        }
        let own = self.log_device();
        if [Some(self.device()), own.as_ref()]
            .into_iter()
            .flatten()
            .any(|own| Arc::ptr_eq(own, device))
        {
            let message = format!("{} is in use by this volume already", device.name());
            return Err(Error::new(ErrorKind::Busy, message));
        }
        // One that this volume left, or was about to take, when the power went.
        let is_ours = LogDeviceHead::read(device)
            .is_ok_and(|head| head.is_some_and(|head| head.is_of(volume)));
        if !options.force && !is_ours {
            refuse_used(device)?;
        }
        let max = options.size_bytes.unwrap_or(SEPARATE_LOG_BYTES_MAX);
        let head = plan_log_device(device, max, volume)?;
        let LogPlace { start_byte, len_bytes, .. } = head.place;
        if options.size_bytes.is_some_and(|size| size.next_multiple_of(GRAIN) > len_bytes) {
            return Err(too_small(device, max));
        }
        let block = u64::from(superblock.block_size);
        let old = superblock.log;
        let plan = Plan {
            parts: self.log_parts(&superblock, Some(device), start_byte, len_bytes),
            fresh: vec![(start_byte, len_bytes)],
            leaves: (!superblock.log_separate)
                .then(|| Run { start: BlockNo(old.start / block), blocks: old.len / block }),
            takes: None,
        };
        if !options.dry_run {
            wipe(device)?;
        }
        self.carry_out(&superblock, &plan, options.dry_run)
    }

    fn resize_on_device(
        &self,
        superblock: &Superblock,
        size_bytes: u64,
        is_dry: bool,
    ) -> Result<LogMove> {
        let device = self.log_device().expect("the caller looked");
        device.refresh_size()?;
        let head = plan_log_device(&device, size_bytes, Uuid::from_bytes(superblock.uuid))?;
        let LogPlace { start_byte, len_bytes, .. } = head.place;
        if size_bytes.next_multiple_of(GRAIN) > len_bytes {
            return Err(too_small(&device, size_bytes));
        }
        let old = superblock.log;
        if len_bytes == old.len {
            return Err(no_change(superblock));
        }
        let end = start_byte + len_bytes;
        let plan = Plan {
            parts: self.log_parts(superblock, Some(&device), start_byte, len_bytes),
            fresh: (end > old.end()).then(|| (old.end(), end - old.end())).into_iter().collect(),
            leaves: None,
            takes: None,
        };
        self.carry_out(superblock, &plan, is_dry)
    }

    fn log_parts(
        &self,
        superblock: &Superblock,
        device: Option<&Arc<dyn BlockDevice>>,
        start_byte: u64,
        len_bytes: u64,
    ) -> LogParts {
        LogParts {
            data: Arc::clone(self.device_of_records()),
            log: device.cloned(),
            volume: Uuid::from_bytes(superblock.uuid),
            place: LogPlace { separate: device.is_some(), start_byte, len_bytes },
        }
    }

    fn carry_out(&self, superblock: &Superblock, plan: &Plan, is_dry: bool) -> Result<LogMove> {
        let was = self.log_device();
        let report = LogMove {
            from: LogSpot {
                device: was.as_ref().map(|device| device.name().to_owned()),
                start_byte: superblock.log.start,
                size_bytes: superblock.log.len,
            },
            to: LogSpot {
                device: plan.parts.log.as_ref().map(|device| device.name().to_owned()),
                start_byte: plan.parts.place.start_byte,
                size_bytes: plan.parts.place.len_bytes,
            },
            left: None,
        };
        if is_dry {
            plan.takes.iter().for_each(|run| self.free_unused(&[*run], 0));
            return Ok(report);
        }
        if planted(PlantedBug::LogPlaceFreedEarly) {
            plan.leaves.iter().for_each(|run| self.free_unused(&[*run], 0));
        }
        let moved = plan
            .parts
            .suit()
            .and_then(|()| self.prepare(plan, was.as_ref()))
            .and_then(|()| self.move_log_to(&plan.parts));
        if let Err(error) = moved {
            // After a failure nothing is written any more, so the blocks are not used either.
            plan.takes.iter().for_each(|run| self.free_unused(&[*run], 0));
            return Err(error);
        }
        let now = self.superblock().log;
        assert!(
            (now.start, now.len) == (report.to.start_byte, report.to.size_bytes),
            "I-LPL-1: the superblocks name the new place before the old one is free"
        );
        if !planted(PlantedBug::LogPlaceFreedEarly) {
            plan.leaves.iter().for_each(|run| self.free_unused(&[*run], 0));
        }
        self.set_log_device(plan.parts.log.clone());
        let is_other = |device: &Arc<dyn BlockDevice>| {
            plan.parts.log.as_ref().is_none_or(|log| !Arc::ptr_eq(log, device))
        };
        let left = was.filter(is_other).and_then(|device| forget(&device));
        Ok(LogMove { left, ..report })
    }

    /// Makes the new place ready, durably. A device that is in use and fails then is trusted no
    /// more: a flush of it that succeeds later says nothing of what was written before.
    fn prepare(&self, plan: &Plan, was: Option<&Arc<dyn BlockDevice>>) -> Result<()> {
        let LogParts { log, place, volume, .. } = &plan.parts;
        let ready = plan.parts.prepare(&plan.fresh).and_then(|()| match log {
            Some(device) => {
                LogDeviceHead { volume: *volume, next: None, place: *place }.write(device)
            }
            None => Ok(()),
        });
        let is_in_use = log.as_ref().is_none_or(|log| was.is_some_and(|was| Arc::ptr_eq(log, was)));
        if let Err(error) = ready.as_ref()
            && is_in_use
        {
            self.fail(error.clone());
        }
        ready
    }
}

/// Lets a device hold no log any more; returns why it still does.
fn forget(device: &Arc<dyn BlockDevice>) -> Option<String> {
    let failed = wipe(device).err()?;
    tracing::warn!("{} still looks like the log of a volume: {failed}", device.name());
    Some(failed.message)
}

/// Returns how long a log on the volume is to be.
fn home_len(superblock: &Superblock, asked: Option<u64>) -> Result<u64> {
    let size = superblock.size_bytes;
    let len = asked
        .unwrap_or((size / 256).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX))
        .max(1)
        .checked_next_multiple_of(GRAIN)
        .filter(|len| (LOG_BYTES_MIN..=size / 4).contains(len));
    len.ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "a log of {} does not suit a file system of {}: use 1 MiB to a quarter of it",
                format_size(asked.unwrap_or(0)),
                format_size(size)
            ),
        )
    })
}

fn refuse_shrinking(is_shrinking: bool) -> Result<()> {
    if !is_shrinking {
        return Ok(());
    }
    let message = "the file system is being made smaller, and its log moves with it: stop that, or \
                   wait until it has ended";
    Err(Error::new(ErrorKind::Busy, message))
}

fn too_small(device: &Arc<dyn BlockDevice>, size: u64) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!(
            "{} has {}, too little for a log of {} and its head of 64 KiB",
            device.name(),
            format_size(device.size_bytes()),
            format_size(size)
        ),
    )
}

fn no_change(superblock: &Superblock) -> Error {
    let size = format_size(superblock.log.len);
    Error::new(ErrorKind::Invalid, format!("the intent log has {size} already: nothing changes"))
}

#[cfg(test)]
mod renewed_tests;
#[cfg(test)]
mod tests;
