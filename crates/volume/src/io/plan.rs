//! Planning: from a range of volume addresses to what each member is asked for. Pure but for the
//! choice among copies, which looks at how busy the members are.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, Segment};

use super::buffers::Buffers;
use crate::group::{Handles, MemberHandle};
use crate::layout::{Locate, Run};

/// A run of bytes of one member and where they stand in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte on the member.
    pub offset: u64,
    /// First byte in the buffer.
    pub from: usize,
    /// Length in bytes.
    pub len: usize,
}

/// What one member is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub handle: Arc<MemberHandle>,
    pub pieces: Vec<Piece>,
}

impl Share {
    /// Says whether its pieces are the caller's buffer from the first byte on.
    pub fn is_in_order(&self) -> bool {
        let mut next = 0;
        self.pieces.iter().all(|piece| {
            let fits = piece.from == next;
            next += piece.len;
            fits
        })
    }

    /// Returns the member's part of the buffer, piece behind piece, at the beginning of a buffer of
    /// our own.
    pub fn gather(&self, buf: &[u8], buffers: &Buffers) -> AlignedBuf {
        debug_assert!(
            self.pieces.iter().all(|piece| piece.len > 0 && piece.from + piece.len <= buf.len()),
            "a share lies in the buffer of {} bytes: {:?}",
            buf.len(),
            self.pieces
        );
        let mut out = buffers.take(self.len());
        let mut at = 0;
        for piece in &self.pieces {
            out[at..at + piece.len].copy_from_slice(&buf[piece.from..piece.from + piece.len]);
            at += piece.len;
        }
        debug_assert!(at <= out.len(), "what is gathered fits: {at} bytes in {}", out.len());
        out
    }

    /// Puts what the member read where it belongs.
    pub fn scatter(&self, read: &[u8], buf: &mut [u8]) {
        scatter(&self.pieces, read, buf);
    }

    /// Returns the pieces as the segments of one request; neighbours on the member become one.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let len = u32::try_from(piece.len).expect("a call is cut into parts below 4 GiB");
            match segments.last_mut() {
                Some(last)
                    if last.offset + u64::from(last.len) == piece.offset
                        && last.len.checked_add(len).is_some() =>
                {
                    last.len += len;
                }
                _ => segments.push(Segment { offset: piece.offset, len }),
            }
        }
        segments
    }

    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

/// Puts what a member read, piece behind piece, where it belongs.
pub(crate) fn scatter(pieces: &[Piece], read: &[u8], buf: &mut [u8]) {
    let mut at = 0;
    for piece in pieces {
        buf[piece.from..piece.from + piece.len].copy_from_slice(&read[at..at + piece.len]);
        at += piece.len;
    }
}

/// Returns the member at an index, if it is open.
#[inline]
pub(crate) fn handle_of(handles: &Handles, member: u16) -> Option<&Arc<MemberHandle>> {
    handles[usize::from(member)].as_ref()
}

/// Chooses the copy of a run to read: the least busy member, among equals the one whose head is
/// there. `copies_agree` is false while copies may differ and must not be made to agree: then it is
/// always the first.
#[inline]
pub(crate) fn choose<'a>(
    handles: &'a Handles,
    run: &Run,
    copies_agree: bool,
) -> Option<(&'a Arc<MemberHandle>, u64)> {
    let mut active = run
        .copies()
        .iter()
        .filter_map(|copy| Some((handle_of(handles, copy.member)?, copy.offset)))
        .filter(|(handle, _)| handle.is_active());
    if run.copies().len() == 1 || !copies_agree {
        return active.next();
    }
    active.min_by_key(|(handle, offset)| handle.cost(*offset))
}

/// Adds what a read of `len` bytes at `at` asks of the members. Returns the address of a byte of
/// which no copy is left.
pub(crate) fn read(
    layout: &impl Locate,
    handles: &Handles,
    copies_agree: bool,
    at: u64,
    from: usize,
    len: usize,
    shares: &mut Vec<Share>,
) -> Result<(), u64> {
    runs(layout, at, from, len, |run, address, from, len| {
        let (handle, offset) = choose(handles, run, copies_agree).ok_or(address)?;
        add(shares, handle, Piece { offset, from, len });
        Ok(())
    })
}

/// Adds what a write of `len` bytes at `at` asks of the members: of every copy. Returns the address
/// of a byte of which no copy is left.
pub(crate) fn write(
    layout: &impl Locate,
    handles: &Handles,
    at: u64,
    from: usize,
    len: usize,
    shares: &mut Vec<Share>,
) -> Result<(), u64> {
    runs(layout, at, from, len, |run, address, from, len| {
        let mut whole = false;
        for copy in run.copies() {
            if let Some(handle) =
                handle_of(handles, copy.member).filter(|handle| handle.takes_writes())
            {
                whole |= handle.is_active();
                add(shares, handle, Piece { offset: copy.offset, from, len });
            }
        }
        if whole { Ok(()) } else { Err(address) }
    })
}

/// Calls `each` with every run of a range: the run, its address, where it stands in the buffer, its
/// length.
pub(crate) fn runs<E>(
    layout: &impl Locate,
    mut at: u64,
    mut from: usize,
    len: usize,
    mut each: impl FnMut(&Run, u64, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let end = from + len;
    while from < end {
        let run = layout.locate(at);
        let len = usize::try_from(run.len).unwrap_or(usize::MAX).min(end - from);
        debug_assert!(len > 0 && len as u64 <= run.len, "I-LAY-1: a run holds what is asked of it");
        each(&run, at, from, len)?;
        at += len as u64;
        from += len;
    }
    Ok(())
}

pub(crate) fn add(shares: &mut Vec<Share>, handle: &Arc<MemberHandle>, piece: Piece) {
    debug_assert!(
        piece.len > 0 && piece.offset.checked_add(piece.len as u64).is_some(),
        "a piece holds a byte and ends somewhere: {piece:?}"
    );
    let Some(share) = shares.iter_mut().find(|share| Arc::ptr_eq(&share.handle, handle)) else {
        return shares.push(Share { handle: Arc::clone(handle), pieces: vec![piece] });
    };
    let last = share.pieces.last_mut().expect("a share has a piece");
    if last.offset + last.len as u64 == piece.offset && last.from + last.len == piece.from {
        last.len += piece.len;
    } else {
        share.pieces.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use bedplate_block::MemoryDevice;

    use super::*;
    use crate::{Extent, Id, Layout, MemberState, Mirror, Stripe};

    fn handles(count: u8) -> Handles {
        (0..count)
            .map(|n| {
                Some(MemberHandle::new(
                    Id([n; 16]),
                    MemoryDevice::new(1 << 20),
                    MemberState::Active,
                ))
            })
            .collect()
    }

    fn extent(member: u16) -> Layout {
        Layout::Extent(Extent { member, start: 4096, len: 64 << 10 })
    }

    #[test]
    fn a_striped_transfer_becomes_one_request_a_member() {
        let (layout, handles) =
            (Layout::Stripe(Stripe::new(4096, vec![extent(0), extent(1)])), handles(2));
        let mut shares = Vec::new();
        write(&layout, &handles, 2048, 0, 5 * 4096, &mut shares).unwrap();
        assert_eq!(shares.len(), 2);
        let bytes: Vec<u8> = (0..5 * 4096_usize).map(|at| (at / 512) as u8).collect();
        let mut back = vec![0; bytes.len()];
        for share in &shares {
            assert_eq!(
                share.segments().len(),
                1,
                "the units of a column are neighbours on its member"
            );
            share.scatter(&share.gather(&bytes, &Buffers::default()), &mut back);
        }
        assert_eq!(back, bytes);
        assert_eq!(shares.iter().map(Share::len).sum::<usize>(), bytes.len());
    }

    #[test]
    fn reads_go_to_the_least_busy_copy_and_then_to_the_nearest_head() {
        let (layout, handles) =
            (Layout::Mirror(Mirror::new(vec![extent(0), extent(1), extent(2)])), handles(3));
        let run = layout.locate(8192);
        let index = |chosen: Option<(&Arc<MemberHandle>, u64)>| chosen.unwrap().0.id.0[0];
        assert_eq!(index(choose(&handles, &run, true)), 0);
        let mut buf = AlignedBuf::zeroed(4096);
        handles[2].as_ref().unwrap().read(&mut buf, 8192).unwrap();
        assert_eq!(
            index(choose(&handles, &run, true)),
            2,
            "its head is at 12288, where the run begins"
        );
        handles[2].as_ref().unwrap().begin();
        assert_eq!(index(choose(&handles, &run, true)), 0);
        handles[0].as_ref().unwrap().set_state(MemberState::Failed);
        handles[1].as_ref().unwrap().set_state(MemberState::Stale);
        assert_eq!(index(choose(&handles, &run, true)), 2);
    }

    #[test]
    fn writes_go_to_stale_members_too_and_need_an_active_one() {
        let (layout, handles) =
            (Layout::Mirror(Mirror::new(vec![extent(0), extent(1)])), handles(2));
        handles[0].as_ref().unwrap().set_state(MemberState::Stale);
        let mut shares = Vec::new();
        write(&layout, &handles, 0, 0, 512, &mut shares).unwrap();
        assert_eq!(shares.len(), 2);
        handles[1].as_ref().unwrap().set_state(MemberState::Failed);
        assert_eq!(write(&layout, &handles, 512, 0, 512, &mut Vec::new()), Err(512));
        assert_eq!(read(&layout, &handles, true, 512, 0, 512, &mut Vec::new()), Err(512));
    }
}
