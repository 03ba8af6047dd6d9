//! Overwrites in a client's buffer (`appends.rs`): what it writes over whole sectors that the file has,
//! each with its place.
//!
//! ```text
//!   buffer   │ place │ length │ bytes … │ place │ length │ bytes … │      room      │
//!                                                                  cursor
//!   cursor   number << 32 | closed << 31 | bytes of the buffer that are full
//! ```
//!
//! - I-LSE-13: an overwrite is told to be done only when the cursor has moved over it, as an append is
//!   (I-LSE-12). It lies in the range that the daemon gave with the buffer, all of which the file has
//!   on the device; of what the client says of itself the daemon takes nothing else. They are taken in
//!   the order in which they were made.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::appends::{CLOSED, FILLED, OVER_CURSOR, OVER_FROM, OVER_TO};
use crate::places::{OVERWRITE_BYTES, append_at, overwrite_bytes_at};
use crate::planted::{Mistake, planted};
use crate::reader::Lease;
use crate::slots::{ClientSlots, Slots};
use crate::words::Words;

const WORD: u64 = size_of::<u64>() as u64;
/// Before the bytes of each: its place and its length.
const HEAD_BYTES: u64 = 2 * WORD;
const _: () = assert!(OVERWRITE_BYTES <= FILLED && OVERWRITE_BYTES.is_multiple_of(WORD));

/// What an overwrite's place and length are multiples of, in bytes, whatever the device's sector is; the
/// models look at each word.
pub const OVERWRITE_UNIT: u64 = if cfg!(test) { 2 * WORD } else { 512 };

/// Where the next overwrite of a file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverwriteRoom {
    buffer: usize,
    cursor: u64,
    from: u64,
    to: u64,
    /// How many bytes the next one can have.
    pub room: u64,
}

impl OverwriteRoom {
    /// The buffer's number: one thread of the client at a time writes to it.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Returns whether an overwrite may lie there, in bytes of the file.
    pub fn allows(&self, place: u64, len: u64) -> bool {
        let end = place.checked_add(len);
        len > 0
            && (place | len).is_multiple_of(OVERWRITE_UNIT)
            && place >= self.from
            && end.is_some_and(|end| end <= self.to)
    }
}

/// What was written over bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overwrite {
    /// Where in the file, in bytes.
    pub place: u64,
    /// What is there now.
    pub bytes: Vec<u8>,
    /// Where the next one begins in the buffer.
    pub next: u64,
}

impl<W: Words> Slots<W> {
    /// Returns where the next overwrite of a file goes, where this client has a buffer for it.
    #[inline]
    pub fn overwrite_room(&self, lease: Lease) -> Option<OverwriteRoom> {
        let (buffer, at) = self.buffer_of(lease)?;
        let get = |word| self.words.load(at + word, Acquire);
        let cursor = get(OVER_CURSOR);
        let (from, to, full) = (get(OVER_FROM), get(OVER_TO), cursor & FILLED);
        let is_open = cursor & CLOSED == 0 && full <= OVERWRITE_BYTES && full.is_multiple_of(WORD);
        (self.is_buffer_of(at, lease) && is_open).then(|| OverwriteRoom {
            buffer,
            cursor,
            from,
            to,
            room: (OVERWRITE_BYTES - full).saturating_sub(HEAD_BYTES),
        })
    }

    /// Puts bytes of an overwrite, so many behind its beginning, and within the room there is; no other
    /// thread of the client does so meanwhile.
    pub fn put_overwrite(&self, room: &OverwriteRoom, behind: u64, bytes: &[u8]) {
        debug_assert!(
            behind + bytes.len() as u64 <= room.room,
            "an overwrite of {} bytes {behind} behind its beginning has room: {room:?}",
            bytes.len()
        );
        let from = (room.cursor & FILLED) + HEAD_BYTES + behind;
        let words = overwrite_bytes_at(self.count, self.entries, room.buffer);
        self.put_bytes(words, from as usize, bytes);
    }

    /// Moves the cursor over an overwrite whose bytes were put; `false` where the buffer was closed
    /// meanwhile, and nothing was written over.
    pub fn overwrite(&self, room: &OverwriteRoom, place: u64, len: u64) -> bool {
        let full = room.cursor & FILLED;
        let words = overwrite_bytes_at(self.count, self.entries, room.buffer);
        let head = words + (full / WORD) as usize;
        self.words.store(head, place, Relaxed);
        self.words.store(head + 1, len, Relaxed);
        let at = append_at(self.count, self.entries, room.buffer) + OVER_CURSOR;
        let moved = room.cursor + HEAD_BYTES + len;
        if planted(Mistake::OverwroteInAClosed) {
            self.words.store(at, moved, std::sync::atomic::Ordering::Release);
            return true;
        }
        self.words.replace(at, room.cursor, moved)
    }
}

#[cfg(test)]
impl<W: Words> Slots<W> {
    /// Has an overwrite say something else of itself, as a client may.
    pub(crate) fn spoil_overwrite(&self, room: &OverwriteRoom, (place, len): (u64, u64)) {
        let words = overwrite_bytes_at(self.count, self.entries, room.buffer);
        let head = words + ((room.cursor & FILLED) / WORD) as usize;
        self.words.store(head, place, Relaxed);
        self.words.store(head + 1, len, Relaxed);
    }
}

impl<W: Words> ClientSlots<W> {
    /// Returns how many bytes of a buffer are full of overwrites, by what the client says and no more
    /// than it holds.
    pub fn overwritten(&self, buffer: usize) -> u64 {
        let at = append_at(self.count, self.entries, buffer);
        (self.words.load(at + OVER_CURSOR, Acquire) & FILLED).min(OVERWRITE_BYTES)
    }

    /// Copies the overwrite that begins so far in a buffer of which so much is full; `None` where there
    /// is none, or it does not lie in `over`, the range that the buffer was given with: a client that
    /// writes rubbish there is not listened to further.
    pub fn copy_overwrite(
        &self,
        buffer: usize,
        from: u64,
        full: u64,
        over: &Range<u64>,
    ) -> Option<Overwrite> {
        debug_assert!(full <= OVERWRITE_BYTES, "what is full lies in the buffer: {full}");
        let begin = from.checked_add(HEAD_BYTES).filter(|begin| *begin < full)?;
        let words = overwrite_bytes_at(self.count, self.entries, buffer);
        let head = words + (from / WORD) as usize;
        let (place, len) = (self.words.load(head, Relaxed), self.words.load(head + 1, Relaxed));
        let room =
            OverwriteRoom { buffer, cursor: 0, from: over.start, to: over.end, room: full - begin };
        if !room.allows(place, len) || len > room.room {
            return None;
        }
        let bytes = self.copy_bytes(words, begin, begin + len);
        Some(Overwrite { place, bytes, next: begin + len })
    }
}
