//! The data path of one volume: positioned calls, and what the queue shares with them.
//!
//! ```text
//!   read   unsynced regions first (after a crash) ─► runs ─► one copy each ─► failed? another copy, and the failed one is rewritten from it
//!   write  enter the regions (dirty region log) ─► runs ─► all copies at once ─► failed? that member leaves durably ─► acknowledge
//!   flush  every member with unflushed writes at once
//! ```
//! * I-VOL-1: a write is acknowledged only when every copy that will ever be read again has it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_block::{AlignedBuf, ErrorKind, Geometry, Operation, RequestKind, Result};
use parking_lot::Mutex;

use super::buffers::Buffers;
use super::epoch::{EpochTable, LayoutEpoch, POLL_INTERVAL};
use super::fanout::{Done, Job, Lanes};
use super::plan::{self, Share};
use super::raid5::UncertainRows;
use super::relayout_step_state::RelayoutStepState;
use crate::group::{GroupState, Handles, MemberHandle};
use crate::layout::{Locate, Run};
use crate::meter::VolumeMeter;
use crate::planted::{Mistake, is_planted};
use crate::redundancy::{Drl, Obstacle, Redundancy};
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
    pub copies_agree: bool,
    /// Rows of which nothing is made from parity: only while a group is only looked at.
    pub uncertain_rows: OnceLock<UncertainRows>,
    pub lanes: Lanes,
    pub meter: VolumeMeter,
    pub buffers: Buffers,
    /// A leaf lock.
    pub relayout_step_state: Mutex<RelayoutStepState>,
    pub latched: AtomicBool,
    pub latch: Mutex<Option<bedplate_block::Error>>,
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
                    "offset and length ({len} bytes) must be multiples of the volume's block of {block} bytes"
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

    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_in(&self.epochs.get(), buf, offset)
    }

    /// Reads by an epoch that the caller holds.
    pub fn read_in(&self, epoch: &LayoutEpoch, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(epoch, Operation::Read, offset, buf.len() as u64)?;
        self.check_buffer(Operation::Read, offset, buf)?;
        if buf.is_empty() {
            return Ok(());
        }
        self.resync_range(epoch, offset, buf.len() as u64)?;
        let handles = self.group_state.handles();
        let run = epoch.locate(offset);
        if run.len >= buf.len() as u64 {
            return self.read_run(epoch, &handles, &run, buf, offset);
        }
        for (at, part) in (offset..).step_by(ROUND_BYTES).zip(buf.chunks_mut(ROUND_BYTES)) {
            self.read_round(epoch, &handles, part, at)?;
        }
        Ok(())
    }

    /// Reads a run from the best copy, and from the others when that fails.
    fn read_run(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        run: &Run,
        buf: &mut [u8],
        address: u64,
    ) -> Result<()> {
        let Some((handle, offset)) = plan::choose(handles, run, self.copies_agree) else {
            return match epoch.parity_at(address) {
                Some(parity) => self.read_without(parity, buf, address, None),
                None => Err(self.no_copy(Operation::Read, address)),
            };
        };
        match (handle.read(buf, offset), epoch.parity_at(address)) {
            (Err(error), Some(parity)) => self.read_without(parity, buf, address, Some(error)),
            (Err(error), None) if run.copies().len() > 1 => {
                self.read_elsewhere(epoch, handles, run, buf, address, (handle, error))
            }
            (result, _) => result,
        }
    }

    /// Reads another copy than the one that failed, and makes the failed one good from it; a member
    /// that cannot be made good leaves.
    #[cold]
    fn read_elsewhere(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        run: &Run,
        buf: &mut [u8],
        address: u64,
        (bad, first): (&Arc<MemberHandle>, bedplate_block::Error),
    ) -> Result<()> {
        let other = run
            .copies()
            .iter()
            .filter_map(|copy| Some((plan::handle_of(handles, copy.member)?, copy.offset)));
        let mut other = other.filter(|(handle, _)| handle.is_active() && !Arc::ptr_eq(handle, bad));
        if !other.any(|(handle, offset)| handle.read(buf, offset).is_ok()) {
            return Err(first);
        }
        tracing::warn!(volume = self.name, member = bad.name(), error = %first, "read from another copy");
        if self.group_state.read_only {
            return Ok(());
        }
        match self.rewrite(epoch, handles, bad, address, buf.len()) {
            Ok(true) => bad.note_corrected(),
            Ok(false) => {}
            Err(error) => self.fail_members(vec![(Arc::clone(bad), error)])?,
        }
        Ok(())
    }

    /// Writes what another copy holds over a range of a member that it could not read. Nothing
    /// happens in a region that is busy now.
    fn rewrite(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        bad: &Arc<MemberHandle>,
        address: u64,
        len: usize,
    ) -> Result<bool> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(false) };
        self.check_members(epoch)?;
        let (first, last) = redundancy.regions.span(address, len as u64);
        for region in first..=last {
            if !redundancy.regions.lock(region, DRAIN_TIMEOUT) {
                return Ok(false);
            }
            let (start, size) = redundancy.regions.range(region);
            let (from, to) = (start.max(address), (start + size).min(address + len as u64));
            let result = self.copy_over(epoch, handles, bad, from, to - from);
            redundancy.regions.unlock(region, 0);
            result?;
        }
        Ok(true)
    }

    fn copy_over(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        bad: &Arc<MemberHandle>,
        at: u64,
        len: u64,
    ) -> Result<()> {
        let mut bytes = AlignedBuf::zeroed(len as usize);
        plan::runs(epoch, at, 0, len as usize, |run, address, from, len| {
            let good = run
                .copies()
                .iter()
                .filter_map(|copy| Some((plan::handle_of(handles, copy.member)?, copy.offset)));
            let read = good
                .filter(|(handle, _)| handle.is_active() && !Arc::ptr_eq(handle, bad))
                .map(|(handle, offset)| handle.read(&mut bytes[from..from + len], offset));
            read.into_iter()
                .find(std::result::Result::is_ok)
                .unwrap_or_else(|| Err(self.no_copy(Operation::Read, address)))?;
            let place = run.copies().iter().find(|copy| {
                plan::handle_of(handles, copy.member).is_some_and(|handle| Arc::ptr_eq(handle, bad))
            });
            place.map_or(Ok(()), |copy| bad.write(&bytes[from..from + len], copy.offset))
        })
    }

    /// Reads a range that lies on several members.
    fn read_round(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        buf: &mut [u8],
        at: u64,
    ) -> Result<()> {
        let mut shares = Vec::new();
        if let Err(address) =
            plan::read(epoch, handles, self.copies_agree, at, 0, buf.len(), &mut shares)
        {
            return if epoch.has_parity() {
                self.read_runs(epoch, handles, buf, at)
            } else {
                Err(self.no_copy(Operation::Read, address))
            };
        }
        let own = shares.pop().expect("a range that is not empty lies somewhere");
        let jobs = shares
            .iter()
            .map(|share| job(share, RequestKind::Read, self.buffers.take(share.len())))
            .collect();
        let (done, own_read) = self.lanes.run(jobs, || read_share(&own, buf));
        let mut failed = Vec::new();
        for (share, done) in shares.iter().zip(done) {
            match (done.result, done.buf) {
                (Ok(()), Some(read)) => {
                    share.scatter(&read, buf);
                    self.buffers.give(read);
                }
                _ => failed.push(share),
            }
        }
        if own_read.is_err() {
            failed.push(&own);
        }
        for piece in failed.into_iter().flat_map(|share| &share.pieces) {
            let part = &mut buf[piece.from..piece.from + piece.len];
            self.read_runs(epoch, handles, part, at + piece.from as u64)?;
        }
        Ok(())
    }

    /// Reads run after run, each with its own second chance.
    fn read_runs(
        &self,
        epoch: &LayoutEpoch,
        handles: &Handles,
        buf: &mut [u8],
        at: u64,
    ) -> Result<()> {
        plan::runs(epoch, at, 0, buf.len(), |run, address, from, len| {
            self.read_run(epoch, handles, run, &mut buf[from..from + len], address)
        })
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

    /// Hands the hint on where there is one copy of everything; copies that the device may let
    /// differ afterwards would not be copies.
    pub fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let (handles, mut taken) = (self.group_state.handles(), false);
        self.check(&self.epochs.get(), Operation::Discard, offset, len)?;
        self.each_part(offset, len, |at, len| {
            let epoch = self.epochs.get_for_write(at, len);
            self.check(&epoch, Operation::Discard, at, len)?;
            if epoch.redundancy.is_some() {
                return Ok(());
            }
            let mut shares = Vec::new();
            plan::write(&*epoch, &handles, at, 0, len as usize, &mut shares)
                .map_err(|address| self.no_copy(Operation::Discard, address))?;
            for share in &shares {
                for segment in share.segments() {
                    taken |= share.handle.discard(segment.offset, segment.len.into())?;
                }
            }
            Ok(())
        })?;
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

    /// Counts a write into its regions: bits durable, copies in agreement, no copy under way.
    pub fn enter(&self, epoch: &LayoutEpoch, offset: u64, len: u64) -> Result<()> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(()) };
        if len == 0 {
            return Ok(());
        }
        let (first, last) = redundancy.regions.span(offset, len);
        for region in first..=last {
            if let Err(error) = self.enter_region(epoch, redundancy, region, last) {
                (first..region).for_each(|entered| redundancy.regions.leave(entered));
                return Err(error);
            }
        }
        Ok(())
    }

    #[inline]
    fn enter_region(
        &self,
        epoch: &LayoutEpoch,
        redundancy: &Redundancy,
        region: u64,
        last: u64,
    ) -> Result<()> {
        while let Err(obstacle) = redundancy.regions.enter(region) {
            match obstacle {
                Obstacle::Clean => self.mark(epoch, redundancy, region, last)?,
                Obstacle::Unsynced => drop(self.sync_region(epoch, region)?),
                Obstacle::Locked => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(())
    }

    pub fn leave(&self, epoch: &LayoutEpoch, offset: u64, len: u64) {
        let Some(redundancy) = epoch.redundancy.as_ref().filter(|_| len > 0) else { return };
        let (first, last) = redundancy.regions.span(offset, len);
        (first..=last).for_each(|region| redundancy.regions.leave(region));
    }

    /// Makes the bits of regions durable on every member that takes writes.
    pub fn mark(
        &self,
        epoch: &LayoutEpoch,
        redundancy: &Redundancy,
        first: u64,
        last: u64,
    ) -> Result<()> {
        let mut log = redundancy.log.lock();
        let pages = log.change(first..=last, true);
        if !pages.is_empty()
            && !is_planted(Mistake::BitNotWritten)
            && let Err(error) =
                self.write_log(epoch, &log, &pages, !is_planted(Mistake::BitNotFlushed))
        {
            let undone: Vec<u64> =
                (first..=last).filter(|region| !redundancy.regions.is_dirty(*region)).collect();
            log.change(undone, false);
            return Err(error);
        }
        // I-DRL-1: the bits are durable; writes may enter from now on.
        (first..=last).for_each(|region| redundancy.regions.set_dirty(region));
        self.group_state.waker.wake();
        assert!(
            (first..=last).all(|region| log.is_dirty(region)),
            "a region that may be written is in the log"
        );
        Ok(())
    }

    /// Writes pages of the dirty region log to every member that takes writes.
    pub fn write_log(
        &self,
        epoch: &LayoutEpoch,
        log: &Drl,
        pages: &[usize],
        durable: bool,
    ) -> Result<()> {
        let handles = self.group_state.handles();
        let mut failures = Vec::new();
        for handle in epoch
            .members
            .iter()
            .filter_map(|member| handles[*member].as_ref())
            .filter(|handle| handle.takes_writes())
        {
            let written = log
                .write(&*handle.device, pages)
                .and_then(|()| if durable { handle.device.flush() } else { Ok(()) });
            failures.extend(written.err().map(|error| (Arc::clone(handle), error)));
        }
        self.fail_members(failures)
    }

    /// Makes the regions of a range agree that a crash left in doubt.
    #[inline]
    pub fn resync_range(&self, epoch: &LayoutEpoch, offset: u64, len: u64) -> Result<()> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(()) };
        let (first, last) = redundancy.regions.span(offset, len);
        for region in first..=last {
            while redundancy.regions.is_unsynced(region) {
                if !self.sync_region(epoch, region)? {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
        Ok(())
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

fn read_share(share: &Share, buf: &mut [u8]) -> Result<()> {
    share.pieces.iter().try_for_each(|piece| {
        let part = &mut buf[piece.from..piece.from + piece.len];
        if is_aligned(&share.handle, part) {
            return share.handle.read(part, piece.offset);
        }
        let mut bounce = AlignedBuf::zeroed(piece.len);
        share.handle.read(&mut bounce, piece.offset)?;
        part.copy_from_slice(&bounce);
        Ok(())
    })
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
