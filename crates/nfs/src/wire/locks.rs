//! Locks of byte ranges: NLM version 4, and of NSM what ties a client's locks to its connections.
//!
//! ```text
//!   client ── MON (name, secret, place) ──► server: this connection is the client's; state
//!          ── LOCK, UNLOCK, TEST, CANCEL, FREE_ALL ──► server: status
//! ```

use std::ops::Range;

use super::numbers::HANDLE_BYTES_MAX;
use super::xdr::{Garbage, Reader, Writer};
use crate::ranges::{LOCK_END, WHOLE_FILE};

/// NLM, among programs of RPC.
pub const NLM: u32 = 100_021;
/// Its version.
pub const NLM_VERSION: u32 = 4;
/// NSM.
pub const NSM: u32 = 100_024;
/// Its version.
pub const NSM_VERSION: u32 = 1;

/// Whether a lock could be had, and which lock is in the way.
pub const TEST: u32 = 1;
/// A lock.
pub const LOCK: u32 = 2;
/// No further wait for a lock.
pub const CANCEL: u32 = 3;
/// A lock given back.
pub const UNLOCK: u32 = 4;
/// A lock of a client that is not monitored.
pub const NM_LOCK: u32 = 22;
/// All locks of a client given back.
pub const FREE_ALL: u32 = 23;

/// NSM's procedure that tells the server's state.
pub const STAT: u32 = 1;
/// Has the server see to a client.
pub const MON: u32 = 2;

/// The most bytes of a client's name.
pub const CALLER_BYTES_MAX: usize = 255;
/// The most bytes of an owner.
pub const OWNER_BYTES_MAX: usize = 64;
/// The most bytes of what a reply carries back.
pub const COOKIE_BYTES_MAX: usize = 64;
/// Bytes of a client's secret.
pub const SECRET_BYTES: usize = 16;

/// `nlm4_stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// It is done.
    Granted = 0,
    /// Another owner has a lock that excludes it.
    Denied = 1,
    /// The server has no room for it, or does not tie this connection to a client.
    NoLocks = 2,
    /// As denied; the server will tell when it is granted.
    Blocked = 3,
    /// Clients take back what they had before the server was started.
    Grace = 4,
    /// Waiting for it would never end.
    Deadlock = 5,
    /// The export is read-only.
    ReadOnly = 6,
    /// The file is gone.
    Stale = 7,
    /// No file has bytes there.
    TooLarge = 8,
    /// The user may not, or the server cannot.
    Failed = 9,
}

impl Stat {
    const ALL: [Self; 10] = [
        Self::Granted,
        Self::Denied,
        Self::NoLocks,
        Self::Blocked,
        Self::Grace,
        Self::Deadlock,
        Self::ReadOnly,
        Self::Stale,
        Self::TooLarge,
        Self::Failed,
    ];

    /// Reads one.
    ///
    /// # Errors
    /// A number that is none.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        let number = from.u32()?;
        Self::ALL.into_iter().find(|stat| *stat as u32 == number).ok_or(Garbage)
    }
}

/// `nlm4_lock`: which range of which file, and whose lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// The client's name.
    pub caller: &'a [u8],
    /// By what the server knows the file.
    pub handle: &'a [u8],
    /// What tells the client's owners apart.
    pub owner: &'a [u8],
    /// The process, as far as it is told.
    pub process: u32,
    /// The first byte.
    pub offset: u64,
    /// How many; 0: all behind it.
    pub len: u64,
}

impl<'a> Target<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// What is none, or has longer names than are kept.
    pub fn read(from: &mut Reader<'a>) -> Result<Self, Garbage> {
        Ok(Self {
            caller: from.opaque(CALLER_BYTES_MAX)?,
            handle: from.opaque(HANDLE_BYTES_MAX)?,
            owner: from.opaque(OWNER_BYTES_MAX)?,
            process: from.u32()?,
            offset: from.u64()?,
            len: from.u64()?,
        })
    }

    /// Writes it.
    pub fn write(&self, out: &mut Writer) {
        [self.caller, self.handle, self.owner].iter().for_each(|bytes| out.opaque(bytes));
        out.u32(self.process);
        out.u64(self.offset);
        out.u64(self.len);
    }

    /// Returns the bytes, or [`WHOLE_FILE`]; `None` where no file has any there.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        if self.offset == WHOLE_FILE.start && self.len == 1 {
            return Some(WHOLE_FILE);
        }
        let end = match self.len {
            0 => LOCK_END,
            len => self.offset.saturating_add(len).min(LOCK_END),
        };
        (self.offset < end).then_some(self.offset..end)
    }
}

/// Returns a range as the protocol has it: its offset, and its length.
#[must_use]
pub fn place_of(range: &Range<u64>) -> (u64, u64) {
    let len = if range.end == LOCK_END { 0 } else { range.end - range.start };
    (range.start, len)
}

/// `nlm4_holder`: the lock that is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Nothing else has any of the range.
    pub is_exclusive: bool,
    /// The process, as far as it is told.
    pub process: u32,
    /// The owner; none of a program that runs on the server.
    pub owner: Vec<u8>,
    /// The bytes.
    pub range: Range<u64>,
}

impl Holder {
    /// Reads one.
    ///
    /// # Errors
    /// What is none.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        let (is_exclusive, process) = (from.bool()?, from.u32()?);
        let owner = from.opaque(OWNER_BYTES_MAX)?;
        let (offset, len) = (from.u64()?, from.u64()?);
        let place = Target { caller: b"", handle: b"", owner, process, offset, len };
        let range = place.range().ok_or(Garbage)?;
        Ok(Self { is_exclusive, process, owner: owner.to_vec(), range })
    }

    /// Writes it.
    pub fn write(&self, out: &mut Writer) {
        out.bool(self.is_exclusive);
        out.u32(self.process);
        out.opaque(&self.owner);
        let (offset, len) = place_of(&self.range);
        out.u64(offset);
        out.u64(len);
    }
}

/// The arguments of MON: which client makes the calls of this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Monitored<'a> {
    /// The client's name.
    pub name: &'a [u8],
    /// Which of the client's connections it is.
    pub place: u32,
    /// What no other client knows.
    pub secret: [u8; SECRET_BYTES],
}

impl<'a> Monitored<'a> {
    /// Reads them.
    ///
    /// # Errors
    /// What is none of them.
    pub fn read(from: &mut Reader<'a>) -> Result<Self, Garbage> {
        let name = from.opaque(CALLER_BYTES_MAX)?;
        // What is to be told of a restart: the connection itself tells.
        from.opaque(CALLER_BYTES_MAX)?;
        let [_program, _version, place] = [from.u32()?, from.u32()?, from.u32()?];
        Ok(Self { name, place, secret: from.array()? })
    }

    /// Writes them.
    pub fn write(&self, out: &mut Writer) {
        out.opaque(self.name);
        out.opaque(self.name);
        [NLM, NLM_VERSION, self.place].iter().for_each(|word| out.u32(*word));
        out.fixed(&self.secret);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let target =
            Target { caller: b"c", handle: b"h", owner: b"o", process: 7, offset: 5, len: 0 };
        let mut out = Writer::default();
        target.write(&mut out);
        let monitored = Monitored { name: b"name", place: 3, secret: [9; SECRET_BYTES] };
        monitored.write(&mut out);
        let holder =
            Holder { is_exclusive: true, process: 1, owner: b"own".to_vec(), range: 4..LOCK_END };
        holder.write(&mut out);
        let mut from = Reader::new(&out.0);
        assert_eq!(Target::read(&mut from), Ok(target));
        assert_eq!(Monitored::read(&mut from), Ok(monitored));
        assert_eq!(Holder::read(&mut from), Ok(holder));
        assert!(from.rest().is_empty());
    }

    #[test]
    fn s_606_a_range_is_of_64_bits_and_ends_where_files_do() {
        let at = |offset, len| {
            let target = Target { caller: b"", handle: b"", owner: b"", process: 0, offset, len };
            target.range()
        };
        assert_eq!(at(5, 10), Some(5..15));
        assert_eq!(at(5, 0), Some(5..LOCK_END));
        assert_eq!(at(5, u64::MAX), Some(5..LOCK_END));
        assert_eq!(
            (at(LOCK_END, 1), at(LOCK_END, 2), at(u64::MAX, 0)),
            (Some(WHOLE_FILE), None, None)
        );
        for range in [5..15, 5..LOCK_END, WHOLE_FILE] {
            let (offset, len) = place_of(&range);
            assert_eq!(at(offset, len), Some(range));
        }
    }
}
