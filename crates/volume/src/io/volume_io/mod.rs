//! The data path of one volume: positioned calls, and what the queue shares with them.
//!
//! ```text
//!   read   unsynced regions first (after a crash) ─► runs ─► one copy each ─► failed? another copy, and the failed one is rewritten from it
//!   write  enter the regions (dirty region log) ─► runs ─► all copies at once ─► failed? that member leaves durably ─► acknowledge
//!   flush  every member with unflushed writes at once
//! ```
//! * I-VOL-1: a write is acknowledged only when every copy that will ever be read again has it.

mod chosen;
mod members;
mod read;
mod regions;
mod right;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{AlignedBuf, ErrorKind, Geometry, Operation, RequestKind, Result};

pub(crate) use self::chosen::ChosenBlocks;
use super::buffers::Buffers;
use super::epoch::{EpochTable, LayoutEpoch};
use super::fanout::{Done, Job, Lanes};
use super::plan::{self, Share};
use super::raid5::UncertainRows;
use super::relayout_step_state::RelayoutStepState;
use crate::group::{GroupState, MemberHandle};
use crate::layout::Locate;
use crate::meter::VolumeMeter;
use crate::planted::{Mistake, is_planted};
use crate::{Config, MemberState, Role};

/// The most that one round of parallel requests moves, because it passes through buffers of our
/// own.
const ROUND_BYTES: usize = 8 << 20;
/// How long the lock of a region waits for the writes under way in it.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(10);

/// One volume of an open group.
#[derive(Debug)]
pub(crate) struct VolumeIo {
    pub group_state: Arc<GroupState>,
    pub role: Role,
    /// Its place among the volumes of the group.
    pub ordinal: usize,
    pub name: String,
    pub geometry: Geometry,
    /// The untorn unit that is promised to later openings of the volume; that of
    /// [`geometry`](Self::geometry) at most.
    pub untorn_unit: AtomicU32,
    /// Where its addresses live.
    pub epochs: EpochTable,
    /// Whether reads may take any copy: not when a group that was not closed in order is only
    /// looked at.
    pub may_choose: bool,
    /// How many look at all copies, which stay as a crash left them meanwhile.
    pub held: AtomicU32,
    /// What was found right of copies that may not be made alike.
    pub chosen: ChosenBlocks,
    /// Rows of which nothing is made from parity: only while a group is only looked at.
    pub uncertain_rows: OnceLock<UncertainRows>,
    pub lanes: Lanes,
    pub meter: VolumeMeter,
    pub buffers: Buffers,
    /// A leaf lock.
    pub relayout_step_state: Mutex<RelayoutStepState, { rank::LAYOUT_EPOCH }>,
    /// A member turned out to keep what is discarded, so copies are not discarded.
    pub keeps_all: AtomicBool,
    pub latched: AtomicBool,
    /// A leaf.
    pub latch: Mutex<Option<bedplate_block::Error>, { rank::VOLUME_LEAF }>,
}

impl VolumeIo {
    pub fn error(
        &self,
        kind: ErrorKind,
        operation: Operation,
        offset: Option<u64>,
        detail: String,
    ) -> bedplate_block::Error {
        bedplate_block::Error {
            kind,
            operation,
            device: self.name.clone(),
            offset,
            detail,
            errno: None,
        }
    }

    /// Checks a range against size, block and access.
    #[inline]
    pub fn check(
        &self,
        epoch: &LayoutEpoch,
        operation: Operation,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let (block, size_bytes) = (u64::from(self.geometry.logical_block_size), epoch.size_bytes);
        let fits = offset <= size_bytes && len <= size_bytes - offset;
        if (offset | len) & (block - 1) == 0
            && fits
            && (operation == Operation::Read || !self.geometry.read_only)
        {
            return Ok(());
        }
        Err(match () {
            () if operation != Operation::Read && self.geometry.read_only => self.error(
                ErrorKind::ReadOnly,
                operation,
                Some(offset),
                "the volume is open for reading only".into(),
            ),
            () if !fits => {
                let detail = format!(
                    "{len} bytes from there pass the end of the volume at byte {size_bytes}"
                );
                self.error(ErrorKind::OutOfRange, operation, Some(offset), detail)
            }
            () => {
                let detail = format!(
                    "offset and length ({len} bytes) must be multiples of the volume's block of \
                     {block} bytes"
                );
                self.error(ErrorKind::Unaligned, operation, Some(offset), detail)
            }
        })
    }

    /// Refuses a buffer that a member would refuse.
    #[inline]
    pub fn check_buffer(&self, operation: Operation, offset: u64, buf: &[u8]) -> Result<()> {
        let align = self.geometry.buffer_align as usize;
        if buf.is_empty() || (buf.as_ptr() as usize).is_multiple_of(align) {
            return Ok(());
        }
        let detail = format!("the buffer's address is not a multiple of {align} bytes");
        Err(self.error(ErrorKind::Unaligned, operation, Some(offset), detail))
    }

    pub fn check_latch(&self) -> Result<()> {
        if !self.latched.load(Ordering::Acquire) {
            return Ok(());
        }
        self.latch.lock().clone().map_or(Ok(()), Err)
    }

    pub fn latch(&self, error: &bedplate_block::Error) {
        self.latch.lock().get_or_insert_with(|| error.clone());
        self.latched.store(true, Ordering::Release);
    }

    /// Refuses all writes from now on: the group says that nothing is in doubt.
    pub fn latch_closed(&self) {
        self.latch(&self.error(
            ErrorKind::ReadOnly,
            Operation::Write,
            None,
            "the group was closed: open it again".to_owned(),
        ));
    }

    pub fn no_copy(&self, operation: Operation, offset: u64) -> bedplate_block::Error {
        self.error_without(&self.group_state.config(), operation, offset)
    }

    /// As [`no_copy`](Self::no_copy), of a write under a configuration that may come to count.
    pub fn no_copy_of(&self, config: &Config, offset: u64) -> bedplate_block::Error {
        self.error_without(config, Operation::Write, offset)
    }

    fn error_without(
        &self,
        config: &Config,
        operation: Operation,
        offset: u64,
    ) -> bedplate_block::Error {
        let handles = self.group_state.handles();
        let is_lost = |index: usize| {
            handles
                .get(index)
                .and_then(Option::as_ref)
                .is_some_and(|handle| handle.is_overwritten())
        };
        let lost: Vec<String> = config
            .members
            .iter()
            .enumerate()
            .filter(|(index, member)| {
                (member.state != MemberState::Active || is_lost(*index)) && !member.is_vacant()
            })
            .map(|(_, member)| member.path.clone())
            .collect();
        self.error(
            ErrorKind::Io,
            operation,
            Some(offset),
            format!("no copy is left: {} failed", lost.join(" and ")),
        )
    }

    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_in(&self.epochs.get_for_write(offset, buf.len() as u64), buf, offset)
    }

    /// Writes by an epoch that the caller holds, in which the range is not barred.
    pub fn write_in(&self, epoch: &LayoutEpoch, buf: &[u8], offset: u64) -> Result<()> {
        self.check(epoch, Operation::Write, offset, buf.len() as u64)?;
        self.check_buffer(Operation::Write, offset, buf)?;
        if buf.is_empty() {
            return Ok(());
        }
        self.check_latch()?;
        self.enter(epoch, offset, buf.len() as u64)?;
        let result = self.write_entered(epoch, buf, offset);
        self.leave(epoch, offset, buf.len() as u64);
        result
    }

    /// Writes to a range whose regions were entered.
    pub fn write_entered(&self, epoch: &LayoutEpoch, buf: &[u8], offset: u64) -> Result<()> {
        if !epoch.has_parity() {
            return self.write_copies(epoch, buf, offset);
        }
        let mut from = 0;
        epoch.stretches(offset, buf.len() as u64).into_iter().try_for_each(|(at, len)| {
            let part = &buf[from..from + len as usize];
            from += part.len();
            match epoch.parity_at(at) {
                Some(parity) => self.write_rows(parity, at, part),
                None => self.write_copies(epoch, part, at),
            }
        })
    }

    /// Writes to every copy of a range that is in no RAID-5.
    fn write_copies(&self, epoch: &LayoutEpoch, buf: &[u8], offset: u64) -> Result<()> {
        let handles = self.group_state.handles();
        let run = epoch.locate(offset);
        if run.len >= buf.len() as u64 && run.copies().len() == 1 && !epoch.has_parity() {
            let handle = plan::handle_of(&handles, run.copies()[0].member)
                .filter(|handle| handle.is_active());
            let handle = handle.ok_or_else(|| self.no_copy(Operation::Write, offset))?;
            return handle.write(buf, run.copies()[0].offset);
        }
        for (at, part) in (offset..).step_by(ROUND_BYTES).zip(buf.chunks(ROUND_BYTES)) {
            let mut shares = Vec::new();
            plan::write(epoch, &handles, at, 0, part.len(), &mut shares)
                .map_err(|address| self.no_copy(Operation::Write, address))?;
            self.write_shares(shares, part)?;
        }
        Ok(())
    }

    /// Writes what each member gets of a buffer, all at once.
    pub fn write_shares(&self, mut shares: Vec<Share>, buf: &[u8]) -> Result<()> {
        let Some(own) = shares.pop() else { return Ok(()) };
        let jobs = shares
            .iter()
            .map(|share| job(share, RequestKind::Write, share.gather(buf, &self.buffers)))
            .collect();
        let (done, own_written) = self.lanes.run(jobs, || write_share(&own, buf));
        let mut failures = self.take_back(done);
        failures.extend(own_written.err().map(|error| (own.handle, error)));
        self.fail_members(failures)
    }

    /// Takes the buffers of jobs back and returns those that failed.
    pub fn take_back(&self, done: Vec<Done>) -> Vec<(Arc<MemberHandle>, bedplate_block::Error)> {
        let mut failures = Vec::new();
        for done in done {
            done.buf.into_iter().for_each(|buf| self.buffers.give(buf));
            failures.extend(done.result.err().map(|error| (done.handle, error)));
        }
        failures
    }

    /// Takes the members whose write or flush failed out of the group. Returns once that is
    /// durable, or with the error the caller gets.
    pub fn fail_members(
        &self,
        mut failures: Vec<(Arc<MemberHandle>, bedplate_block::Error)>,
    ) -> Result<()> {
        // I-PAR-2: what was written without a record is durable on the others before a member
        // counts as failed.
        let epoch = self.epochs.peek();
        let mut still = Vec::new();
        for parity in epoch.parities().filter(|_| !failures.is_empty()).collect::<Vec<_>>() {
            still.push(self.hold_rows(parity, &mut failures));
        }
        for (handle, error) in failures {
            if epoch.redundancy.is_none() {
                return Err(error);
            }
            if is_planted(Mistake::FailedMemberStays) {
                return Ok(());
            }
            // I-VOL-1: what the member missed is acknowledged only when it will never be read from
            // there.
            if let Err(broken) = self.group_state.fail(&handle, &error) {
                if error.kind == ErrorKind::NoSpace {
                    return Err(error);
                }
                let failure =
                    self.error(ErrorKind::Io, error.operation, error.offset, broken.message);
                self.latch(&failure);
                return Err(failure);
            }
            assert!(!handle.is_active(), "a member that missed a write is not read any more");
            self.lanes.forget(&handle);
        }
        Ok(())
    }

    pub fn flush(&self) -> Result<()> {
        self.flush_in(&self.epochs.get())
    }

    /// Flushes by an epoch that the caller holds.
    pub fn flush_in(&self, epoch: &LayoutEpoch) -> Result<()> {
        self.check_latch()?;
        let handles = self.group_state.handles();
        let mut needy: Vec<&Arc<MemberHandle>> = epoch
            .members
            .iter()
            .filter_map(|member| handles[*member].as_ref())
            .filter(|handle| handle.takes_writes() && handle.needs_flush().is_some())
            .collect();
        let Some(own) = needy.pop() else { return Ok(()) };
        if is_planted(Mistake::OneMemberFlushed) {
            needy.clear();
        }
        let jobs = needy.into_iter().map(|handle| Job {
            handle: Arc::clone(handle),
            kind: RequestKind::Flush,
            buf: None,
            segments: Vec::new(),
        });
        let (done, flushed) = self.lanes.run(jobs.collect(), || own.flush());
        let mut failures: Vec<_> =
            done.into_iter().filter_map(|done| Some((done.handle, done.result.err()?))).collect();
        failures.extend(flushed.err().map(|error| (Arc::clone(own), error)));
        self.fail_members_or_latch(failures)
    }

    /// As [`fail_members`](Self::fail_members); and where nothing stands in for the member, nothing
    /// is called durable any more.
    pub fn fail_members_or_latch(
        &self,
        failures: Vec<(Arc<MemberHandle>, bedplate_block::Error)>,
    ) -> Result<()> {
        let result = self.fail_members(failures);
        if let Err(error) = &result {
            self.latch(error);
        }
        result
    }

    /// Writes zeros to every copy of a range.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check(&self.epochs.get(), Operation::Write, offset, len)?;
        self.each_part(offset, len, |at, len| {
            let epoch = self.epochs.get_for_write(at, len);
            self.check(&epoch, Operation::Write, at, len)?;
            self.check_latch()?;
            self.enter(&epoch, at, len)?;
            let result = self.zero_entered(&epoch, at, len);
            self.leave(&epoch, at, len);
            result
        })
    }

    fn zero_entered(&self, epoch: &LayoutEpoch, at: u64, len: u64) -> Result<()> {
        if epoch.has_parity() {
            let zeros = AlignedBuf::zeroed(len.min(ROUND_BYTES as u64) as usize);
            return plan_parts(at, len, ROUND_BYTES as u64)
                .try_for_each(|(at, len)| self.write_entered(epoch, &zeros[..len], at));
        }
        let handles = self.group_state.handles();
        let mut shares = Vec::new();
        plan::write(epoch, &handles, at, 0, len as usize, &mut shares)
            .map_err(|address| self.no_copy(Operation::Write, address))?;
        let mut failures = Vec::new();
        for share in shares {
            let mut zeroed = share
                .segments()
                .into_iter()
                .map(|segment| share.handle.write_zeroes(segment.offset, segment.len.into()));
            if let Some(error) = zeroed.find_map(std::result::Result::err) {
                failures.push((Arc::clone(&share.handle), error));
            }
        }
        self.fail_members(failures)
    }

    /// Hands the hint on. Copies take it only where they read as zeros afterwards, and stay copies;
    /// under parity nothing is discarded.
    pub fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let mut taken = false;
        self.check(&self.epochs.get(), Operation::Discard, offset, len)?;
        self.each_part(offset, len, |at, len| {
            let epoch = self.epochs.get_for_write(at, len);
            self.check(&epoch, Operation::Discard, at, len)?;
            taken |= if epoch.has_parity() {
                false
            } else if epoch.redundancy.is_some() {
                self.discard_copies(&epoch, at, len)?
            } else {
                self.discard_single(&epoch, at, len)?
            };
            Ok(())
        })?;
        Ok(taken)
    }

    fn discard_single(&self, epoch: &LayoutEpoch, at: u64, len: u64) -> Result<bool> {
        let (handles, mut taken, mut shares) = (self.group_state.handles(), false, Vec::new());
        plan::write(epoch, &handles, at, 0, len as usize, &mut shares)
            .map_err(|address| self.no_copy(Operation::Discard, address))?;
        for share in &shares {
            for segment in share.segments() {
                taken |= share.handle.discard(segment.offset, segment.len.into())?;
            }
        }
        Ok(taken)
    }

    /// Zeroes a range of every copy, as [`write_zeroes`](Self::write_zeroes) does, by discarding
    /// it. Members that cannot, beside others that did, are written; a group that has such a one
    /// is not asked again.
    fn discard_copies(&self, epoch: &LayoutEpoch, at: u64, len: u64) -> Result<bool> {
        if self.keeps_all.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.check_latch()?;
        self.enter(epoch, at, len)?;
        let result = self.discard_entered(epoch, at, len);
        self.leave(epoch, at, len);
        result
    }

    fn discard_entered(&self, epoch: &LayoutEpoch, at: u64, len: u64) -> Result<bool> {
        let (handles, mut shares) = (self.group_state.handles(), Vec::new());
        plan::write(epoch, &handles, at, 0, len as usize, &mut shares)
            .map_err(|address| self.no_copy(Operation::Discard, address))?;
        let (mut taken, mut kept, mut failures) = (false, Vec::new(), Vec::new());
        for (share, segment) in
            shares.iter().flat_map(|share| share.segments().into_iter().map(move |s| (share, s)))
        {
            match share.handle.discard_to_zeros(segment.offset, segment.len.into()) {
                Ok(true) => taken = true,
                Ok(false) => kept.push((&share.handle, segment)),
                Err(error) => failures.push((Arc::clone(&share.handle), error)),
            }
        }
        debug_assert!(
            shares.iter().all(|share| share.handle.takes_writes()),
            "every copy that counts is asked"
        );
        if !kept.is_empty() {
            self.keeps_all.store(true, Ordering::Relaxed);
        }
        if taken || !failures.is_empty() {
            for (handle, segment) in kept {
                if let Err(error) = handle.write_zeroes(segment.offset, segment.len.into()) {
                    failures.push((Arc::clone(handle), error));
                }
            }
        }
        self.fail_members(failures)?;
        Ok(taken)
    }

    /// Cuts a range that moves no memory into parts of a gibibyte.
    fn each_part(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        const PART: u64 = 1 << 30;
        (offset..offset + len)
            .step_by(PART as usize)
            .try_for_each(|at| each(at, PART.min(offset + len - at)))
    }
}

/// Cuts a range into parts.
fn plan_parts(at: u64, len: u64, part: u64) -> impl Iterator<Item = (u64, usize)> {
    (at..at + len)
        .step_by(part as usize)
        .map(move |from| (from, part.min(at + len - from) as usize))
}

fn job(share: &Share, kind: RequestKind, buf: AlignedBuf) -> Job {
    Job { handle: Arc::clone(&share.handle), kind, buf: Some(buf), segments: share.segments() }
}

fn write_share(share: &Share, buf: &[u8]) -> Result<()> {
    share.pieces.iter().try_for_each(|piece| {
        let part = &buf[piece.from..piece.from + piece.len];
        if is_aligned(&share.handle, part) {
            share.handle.write(part, piece.offset)
        } else {
            share.handle.write(&AlignedBuf::from_slice(part), piece.offset)
        }
    })
}

/// A part of a buffer that is aligned need not be.
fn is_aligned(handle: &MemberHandle, part: &[u8]) -> bool {
    (part.as_ptr() as usize).is_multiple_of(handle.device.geometry().buffer_align as usize)
}
