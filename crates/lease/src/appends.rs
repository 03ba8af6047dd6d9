//! Append buffers: memory of a client into which it writes what makes a file grow that rests on the
//! mount, and from which the daemon takes it.
//!
//! ```text
//!   file    ──── the mount's ────┤ base                              base + APPEND_BYTES
//!   buffer                       ├── taken ──┬── appended ──┬───────────┤
//!                                                           cursor
//!   header  cursor: number << 32 | closed << 31 | bytes appended; base; entry; generation;
//!           of the overwrites (`overwrites.rs`): cursor, from, to
//!   entry   a word: the buffer that the client has for the file, plus 1
//! ```
//!
//! The client puts bytes behind the cursor and moves it, with one exchange of the cursor against what
//! it had found there. The daemon takes what lies before the cursor, at any time and without waiting
//! for the client, and closes the buffer by another exchange: an append that has moved the cursor
//! before is in what it finds then, and any other fails and goes to the mount.
//!
//! - I-LSE-12: an append is told to be done only when the cursor has moved over it, in the buffer as it
//!   was given for this file: a buffer that is given again has another number. What lies before the
//!   cursor does not change, and one thread of the client at a time writes behind it.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::layout::LINE;
use crate::places::{APPEND_BYTES, APPENDS_PER_CLIENT, OVERWRITE_BYTES};
use crate::places::{append_at, append_bytes_at, append_of_at};
use crate::planted::{Mistake, planted};
use crate::reader::Lease;
use crate::slots::{ClientSlots, Slots};
use crate::words::Words;

const CURSOR: usize = 0;
const BASE: usize = 1;
const ENTRY: usize = 2;
const GENERATION: usize = 3;
pub(crate) const OVER_CURSOR: usize = 4;
pub(crate) const OVER_FROM: usize = 5;
pub(crate) const OVER_TO: usize = 6;
const _: () = assert!(OVER_TO < LINE, "a buffer's header is a line");

pub(crate) const CLOSED: u64 = 1 << 31;
pub(crate) const FILLED: u64 = CLOSED - 1;
pub(crate) const NUMBER_SHIFT: u32 = 32;
const _: () = assert!(APPEND_BYTES <= FILLED && APPEND_BYTES.is_multiple_of(8));

/// Where the next append of a file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendRoom {
    buffer: usize,
    cursor: u64,
    /// The place in the file, in bytes: where the file ends.
    pub offset: u64,
    /// How many bytes there is room for.
    pub room: u64,
}

impl AppendRoom {
    /// The buffer's number: one thread of the client at a time appends to it.
    pub fn buffer(&self) -> usize {
        self.buffer
    }
}

impl<W: Words> Slots<W> {
    /// Returns where the header of the buffer is that this client has for a file, and its number.
    #[inline]
    pub(crate) fn buffer_of(&self, lease: Lease) -> Option<(usize, usize)> {
        if lease.entry as usize >= self.entries {
            return None;
        }
        let at = append_of_at(self.count, self.entries, lease.entry);
        let buffer = self.words.load(at, Acquire).checked_sub(1)?;
        let buffer = usize::try_from(buffer).ok().filter(|it| *it < APPENDS_PER_CLIENT)?;
        Some((buffer, append_at(self.count, self.entries, buffer)))
    }

    /// Returns whether the buffer with its header there was given for a file. Looked at after the
    /// cursor that is moved then.
    #[inline]
    pub(crate) fn is_buffer_of(&self, at: usize, lease: Lease) -> bool {
        let get = |word| self.words.load(at + word, Acquire);
        get(ENTRY) == lease.entry.into() && get(GENERATION) == lease.generation
    }

    /// Returns where the next append of a file goes, where this client has a buffer for it.
    #[inline]
    pub fn append_room(&self, lease: Lease) -> Option<AppendRoom> {
        let (buffer, at) = self.buffer_of(lease)?;
        let get = |word| self.words.load(at + word, Acquire);
        let cursor = get(CURSOR);
        let (base, appended) = (get(BASE), cursor & FILLED);
        let is_open = cursor & CLOSED == 0 && appended <= APPEND_BYTES;
        (self.is_buffer_of(at, lease) && is_open).then(|| AppendRoom {
            buffer,
            cursor,
            offset: base.wrapping_add(appended),
            room: APPEND_BYTES - appended,
        })
    }

    /// Puts bytes, so many behind where the next append goes, and within the room there; no other
    /// thread of the client does so meanwhile.
    pub fn put_appended(&self, room: &AppendRoom, behind: u64, bytes: &[u8]) {
        debug_assert!(
            behind + bytes.len() as u64 <= room.room,
            "an append of {} bytes {behind} behind the cursor has room: {room:?}",
            bytes.len()
        );
        let from = (APPEND_BYTES - room.room + behind) as usize;
        self.put_bytes(append_bytes_at(self.count, self.entries, room.buffer), from, bytes);
    }

    /// Puts bytes into the memory that begins with a word, so many behind its beginning.
    pub(crate) fn put_bytes(&self, first_word: usize, from: usize, bytes: &[u8]) {
        const WORD: usize = size_of::<u64>();
        let mut word = first_word + from / WORD;
        let (first, rest) = bytes.split_at(bytes.len().min((WORD - from % WORD) % WORD));
        if !first.is_empty() {
            self.put_part(word, from % WORD, first);
            word += 1;
        }
        let (whole, last) = rest.as_chunks::<WORD>();
        for bytes in whole {
            self.words.store(word, u64::from_ne_bytes(*bytes), Relaxed);
            word += 1;
        }
        if !last.is_empty() {
            self.put_part(word, 0, last);
        }
    }

    /// Changes some bytes of a word; what the daemon may be reading of it stays as it is.
    fn put_part(&self, word: usize, from: usize, bytes: &[u8]) {
        let mut all = self.words.load(word, Relaxed).to_ne_bytes();
        all[from..from + bytes.len()].copy_from_slice(bytes);
        self.words.store(word, u64::from_ne_bytes(all), Relaxed);
    }

    /// Moves the cursor over bytes that were put; `false` where the buffer was closed meanwhile, and
    /// the bytes are not in the file.
    pub fn append(&self, room: &AppendRoom, len: u64) -> bool {
        let at = append_at(self.count, self.entries, room.buffer) + CURSOR;
        if planted(Mistake::AppendedToAClosed) {
            self.words.store(at, room.cursor + len, Release);
            return true;
        }
        self.words.replace(at, room.cursor, room.cursor + len)
    }
}

impl<W: Words> ClientSlots<W> {
    /// Gives the client a buffer, which is closed, for what is appended to a file from byte `base` on,
    /// and what is written over its bytes `over`, whole sectors before that, which may be none.
    /// `number` is one that the buffer was never given with.
    pub fn open_append(
        &self,
        buffer: usize,
        lease: Lease,
        base: u64,
        over: &Range<u64>,
        number: u32,
    ) {
        assert!((lease.entry as usize) < self.entries, "I-LSE-3: no entry {}", lease.entry);
        debug_assert!(over.end <= base, "I-LSE-12: overwritten is what the file has: {over:?}");
        let at = append_at(self.count, self.entries, buffer);
        let header = [
            (BASE, base),
            (ENTRY, lease.entry.into()),
            (GENERATION, lease.generation),
            (OVER_FROM, over.start),
            (OVER_TO, over.end),
        ];
        for (word, value) in header {
            self.words.store(at + word, value, Release);
        }
        let number = if planted(Mistake::AppendNumberKept) { 0 } else { number };
        for cursor in [CURSOR, OVER_CURSOR] {
            self.words.store(at + cursor, u64::from(number) << NUMBER_SHIFT, SeqCst);
        }
        let of = append_of_at(self.count, self.entries, lease.entry);
        self.words.store(of, buffer as u64 + 1, SeqCst);
    }

    /// Returns how many bytes were appended to a buffer, by what the client says and no more than it
    /// holds.
    pub fn appended(&self, buffer: usize) -> u64 {
        let at = append_at(self.count, self.entries, buffer);
        (self.words.load(at + CURSOR, Acquire) & FILLED).min(APPEND_BYTES)
    }

    /// Closes a buffer, which was given for the file of an entry with a number, and returns how many
    /// bytes were appended to it, and how many it holds of overwrites.
    pub fn close_append(&self, buffer: usize, entry: u32, number: u32) -> (u64, u64) {
        self.words.store(append_of_at(self.count, self.entries, entry), 0, Release);
        let at = append_at(self.count, self.entries, buffer);
        let closed = u64::from(number) << NUMBER_SHIFT | CLOSED;
        let left =
            |cursor, bytes_max| (self.words.swap(at + cursor, closed) & FILLED).min(bytes_max);
        (left(CURSOR, APPEND_BYTES), left(OVER_CURSOR, OVERWRITE_BYTES))
    }

    /// Copies bytes of a buffer that were appended.
    pub fn copy_appended(&self, buffer: usize, from: u64, to: u64) -> Vec<u8> {
        debug_assert!(
            from <= to && to <= APPEND_BYTES,
            "what is copied lies in the buffer: {from} to {to}"
        );
        self.copy_bytes(append_bytes_at(self.count, self.entries, buffer), from, to)
    }

    /// Copies bytes of the memory that begins with a word.
    pub(crate) fn copy_bytes(&self, first_word: usize, from: u64, to: u64) -> Vec<u8> {
        const WORD: u64 = size_of::<u64>() as u64;
        let first = from / WORD;
        let mut bytes = Vec::with_capacity((to - first * WORD + WORD) as usize);
        for word in first..to.div_ceil(WORD) {
            let value = self.words.load(first_word + word as usize, Relaxed);
            bytes.extend_from_slice(&value.to_ne_bytes());
        }
        bytes.truncate((to - first * WORD) as usize);
        bytes.drain(..(from - first * WORD) as usize);
        bytes
    }
}
