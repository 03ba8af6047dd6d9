//! Reads of what has a checksum: of all copies the one that is right, and the others made like it.
//!
//! ```text
//!   each run of the range ─► all its copies, and what parity makes of the others ─► the first choice that is right as a whole
//!                                                                                        └► written over every copy that differs
//! ```
//!
//! The caller vouches that nothing writes to the range meanwhile, so what is right stays right.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, Copies, Operation, Result};

use super::super::epoch::LayoutEpoch;
use super::super::plan;
use super::super::raid5::Parity;
use super::{DRAIN_TIMEOUT, VolumeIo};
use crate::group::{Handles, MemberHandle};
use crate::layout::Run;
use crate::planted::{Mistake, is_planted};

/// The most choices of copies that are tried for one range, besides those of one copy for all of it.
const CHOICES_MAX: usize = 256;
/// Copies are put together in pieces of so many bytes: each of them may be right elsewhere.
const PIECE_BYTES: usize = 4096;

/// What one copy of a run holds.
struct Copied {
    /// `None`: it cannot be read.
    bytes: Option<AlignedBuf>,
    /// Where it is; `None`: made from parity.
    place: Option<(Arc<MemberHandle>, u64)>,
}

/// A run of the range, and its copies.
struct Part {
    address: u64,
    from: usize,
    len: usize,
    copies: Vec<Copied>,
}

impl VolumeIo {
    /// Fills `buf` with copies that are right together, and makes the others like them.
    pub fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Copies> {
        let epoch = self.epochs.get();
        self.check(&epoch, Operation::Read, offset, buf.len() as u64)?;
        self.check_buffer(Operation::Read, offset, buf)?;
        self.resync_range(&epoch, offset, buf.len() as u64)?;
        let overwritten = self.group_state.overwritten_count();
        let parts = self.all_copies(&epoch, offset, buf.len())?;
        if !choose(&parts, buf, is_right) {
            return Ok(Copies::NoneRight);
        }
        if self.group_state.read_only {
            self.keep_unlike(&parts, buf);
            return Ok(Copies::Right { healed: false });
        }
        if self.is_overwritten_since(&epoch, overwritten)? {
            return Ok(Copies::Right { healed: false });
        }
        let (mut wrong, mut healed) = (0, true);
        for part in &parts {
            let right = &buf[part.from..part.from + part.len];
            let differs = |copy: &&Copied| copy.bytes.as_deref() != Some(right);
            for (handle, at) in
                part.copies.iter().filter(differs).filter_map(|copy| copy.place.as_ref())
            {
                wrong += 1;
                healed &= self.heal(&epoch, part.address, (handle, *at), right)?;
            }
        }
        Ok(Copies::Right { healed: healed && wrong > 0 })
    }

    /// Keeps the blocks of what is right of which some copy is not: no copy may be written over.
    fn keep_unlike(&self, parts: &[Part], right: &[u8]) {
        if is_planted(Mistake::RightNotKept) {
            return;
        }
        let block = self.geometry.logical_block_size as usize;
        for part in parts {
            for at in (0..part.len).step_by(block) {
                let right = &right[part.from + at..part.from + at + block];
                let differs = |copy: &Copied| {
                    copy.bytes.as_deref().is_none_or(|bytes| bytes[at..at + block] != *right)
                };
                if part.copies.iter().any(differs) {
                    self.chosen.keep(part.address + at as u64, right);
                }
            }
        }
    }

    fn all_copies(&self, epoch: &LayoutEpoch, offset: u64, len: usize) -> Result<Vec<Part>> {
        let handles = self.group_state.handles();
        let mut parts = Vec::new();
        plan::runs(epoch, offset, 0, len, |run, address, from, len| {
            let mut copies = read_copies(&handles, run, len);
            if let Some(parity) = epoch.parity_at(address) {
                let bytes = self.make_from_parity(parity, &handles, address, len);
                copies.push(Copied { bytes, place: None });
            }
            parts.push(Part { address, from, len, copies });
            Ok::<(), bedplate_block::Error>(())
        })?;
        Ok(parts)
    }

    /// Writes what is right over a copy; `false`: that has to wait for others.
    fn heal(
        &self,
        epoch: &LayoutEpoch,
        address: u64,
        (handle, at): (&Arc<MemberHandle>, u64),
        right: &[u8],
    ) -> Result<bool> {
        if is_planted(Mistake::WrongCopyStays) {
            return Ok(true);
        }
        let bytes = AlignedBuf::from_slice(right);
        let written = match (epoch.parity_at(address), &epoch.redundancy) {
            (Some(parity), _) => {
                let row = address / parity.raid5.row_bytes();
                let _row = self.lock_rows(parity, row, row);
                handle.write(&bytes, at)
            }
            (None, Some(redundancy)) => {
                let (first, last) = redundancy.regions.span(address, right.len() as u64);
                let mut locked = first..first;
                while locked.end <= last && redundancy.regions.lock(locked.end, DRAIN_TIMEOUT) {
                    locked.end += 1;
                }
                let written = (locked.end > last).then(|| handle.write(&bytes, at));
                locked.for_each(|region| redundancy.regions.unlock(region, 0));
                let Some(written) = written else { return Ok(false) };
                written
            }
            (None, None) => return Ok(false),
        };
        match written {
            Ok(()) => {
                handle.note_corrected();
                tracing::warn!(
                    volume = self.name,
                    member = handle.name(),
                    byte = at,
                    "a wrong copy was written over with one that has the right checksum"
                );
                Ok(true)
            }
            Err(error) => self.fail_members(vec![(Arc::clone(handle), error)]).map(|()| true),
        }
    }
}

/// Reads every copy of a run that counts.
fn read_copies(handles: &Handles, run: &Run, len: usize) -> Vec<Copied> {
    let places = run
        .copies()
        .iter()
        .filter_map(|copy| Some((plan::handle_of(handles, copy.member)?, copy.offset)))
        .filter(|(handle, _)| handle.is_active());
    places
        .map(|(handle, at)| {
            let mut bytes = AlignedBuf::zeroed(len);
            let read = handle.read(&mut bytes, at).is_ok();
            Copied { bytes: read.then_some(bytes), place: Some((Arc::clone(handle), at)) }
        })
        .collect()
}

/// Tries choices of a copy for each part until one is right as a whole, which is then in the buffer:
/// first the same copy for all, then mixed ones where copies differ.
fn choose(parts: &[Part], buf: &mut [u8], is_right: &dyn Fn(&[u8]) -> bool) -> bool {
    let readable: Vec<Vec<&AlignedBuf>> = parts
        .iter()
        .map(|part| part.copies.iter().filter_map(|copy| copy.bytes.as_ref()).collect())
        .collect();
    if readable.iter().any(Vec::is_empty) {
        return false;
    }
    let most = readable.iter().map(Vec::len).max().unwrap_or(0);
    let is_uniform = (0..most).any(|copy| {
        for (part, copies) in parts.iter().zip(&readable) {
            let copy = copies[copy.min(copies.len() - 1)];
            buf[part.from..part.from + part.len].copy_from_slice(copy);
        }
        is_right(buf)
    });
    is_uniform || mix(&unlike(parts, &readable), buf, is_right)
}

/// Returns the pieces that differ between copies: the first byte in the buffer, and all versions.
fn unlike<'a>(parts: &[Part], readable: &[Vec<&'a AlignedBuf>]) -> Vec<(usize, Vec<&'a [u8]>)> {
    let mut pieces = Vec::new();
    for (part, copies) in parts.iter().zip(readable) {
        for at in (0..part.len).step_by(PIECE_BYTES) {
            let end = (at + PIECE_BYTES).min(part.len);
            let mut versions: Vec<&[u8]> = Vec::with_capacity(1);
            for copy in copies {
                if !versions.contains(&&copy[at..end]) {
                    versions.push(&copy[at..end]);
                }
            }
            if versions.len() > 1 {
                pieces.push((part.from + at, versions));
            }
        }
    }
    pieces
}

/// Tries versions of pieces until the buffer is right as a whole.
fn mix(pieces: &[(usize, Vec<&[u8]>)], buf: &mut [u8], is_right: &dyn Fn(&[u8]) -> bool) -> bool {
    let choices = pieces.iter().fold(1_usize, |all, (_, of)| all.saturating_mul(of.len()));
    (0..choices.min(CHOICES_MAX)).any(|choice| {
        let mut rest = choice;
        for (at, versions) in pieces {
            let version = versions[rest % versions.len()];
            buf[*at..at + version.len()].copy_from_slice(version);
            rest /= versions.len();
        }
        is_right(buf)
    })
}

impl VolumeIo {
    fn make_from_parity(
        &self,
        parity: &Parity,
        handles: &Handles,
        address: u64,
        len: usize,
    ) -> Option<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(len);
        self.read_by_parity(parity, handles, &mut bytes, address).is_ok().then_some(bytes)
    }
}
