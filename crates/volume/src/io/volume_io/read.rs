//! Reads of a volume: from one copy, and from another where that one cannot be read.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, Operation, RequestKind, Result};

use super::super::epoch::LayoutEpoch;
use super::super::plan::{self, Share};
use super::*;
use crate::group::{Handles, MemberHandle};
use crate::layout::{Locate, Run};
use crate::planted::{Mistake, is_planted};

impl VolumeIo {
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
        self.read_some_copy(epoch, buf, offset)?;
        if self.chosen.any() {
            self.chosen.overlay(buf, offset);
        }
        Ok(())
    }

    fn read_some_copy(&self, epoch: &LayoutEpoch, buf: &mut [u8], offset: u64) -> Result<()> {
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
        debug_assert!(
            buf.len() as u64 <= run.len,
            "I-LAY-1: {} bytes are read of a run of {}",
            buf.len(),
            run.len
        );
        let Some((handle, offset)) = plan::choose(handles, run, self.copies_agree()) else {
            return match epoch.parity_at(address) {
                Some(parity) => self.read_without(parity, buf, address, None),
                None => Err(self.no_copy(Operation::Read, address)),
            };
        };
        match (handle.read(buf, offset), epoch.parity_at(address)) {
            (Err(error), Some(parity)) => self.read_without(parity, buf, address, Some(error)),
            (Err(error), None)
                if run.copies().len() > 1 && !is_planted(Mistake::ReadNotTriedElsewhere) =>
            {
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
        tracing::warn!(volume = self.name, member = bad.name(), error = %first,
            "read from another copy");
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
            debug_assert!(
                from < to,
                "a region that is gone through has some of the range: {from}..{to}"
            );
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
        debug_assert!(len > 0, "what is copied holds a byte: {at}");
        debug_assert!(
            epoch.redundancy.is_some(),
            "bytes are copied where they have other copies: {at}"
        );
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
            plan::read(epoch, handles, self.copies_agree(), at, 0, buf.len(), &mut shares)
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
