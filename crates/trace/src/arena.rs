//! The memory that traced processes record in: one file, mapped by all of them.
//!
//! ```text
//!  header │ chunk │ chunk │ chunk │ …          taken in turn, each by one thread
//!           └ head, then records, one behind the other
//! ```
//!
//! A thread takes a chunk with one addition and fills it alone. What is recorded stays when its
//! process is killed, because the memory is a file's. When all chunks are taken, records are
//! counted as lost and the program goes on.
//!
//! - I-TRC-1: a slot belongs to the thread whose chunk it lies in; of a signal handler that
//!   interrupts that thread it has slots of its own.
//! - I-TRC-2: the first word of a slot is written last, so that what is read is whole.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::slot::{CHUNK, FILE, Identity, PROCESS, Slot, TEXT, WORDS, head};

/// Bytes of one record.
pub const SLOT_BYTES: usize = WORDS * 8;
/// Bytes before the first chunk.
pub const HEADER_BYTES: usize = 4096;
/// Records of a chunk, its head among them.
pub const CHUNK_SLOTS: usize = 256;
const CHUNK_WORDS: usize = CHUNK_SLOTS * WORDS;
const HEADER_WORDS: usize = HEADER_BYTES / 8;
const _: () = assert!(HEADER_BYTES.is_multiple_of(SLOT_BYTES), "chunks begin at whole records");

/// The first word of the file: what it is, and of which version.
pub const MAGIC_WORD: u64 = u64::from_le_bytes(*b"BEDARNA1");

/// Words of the header.
const MAGIC: usize = 0;
const TAKEN: usize = 1;
const LOST: usize = 2;
const FILES: usize = 3;
const PROCESSES: usize = 4;
/// 0: all processes record; 1: the first that comes; else that one's number, plus 1.
const ONLY: usize = 5;

/// The longest path that is kept.
const PATH_BYTES: usize = 4096;
/// Bytes of a path in one slot.
pub(crate) const TEXT_BYTES: usize = SLOT_BYTES - 8;
const _: () = assert!(
    PATH_BYTES.div_ceil(TEXT_BYTES) + 2 < CHUNK_SLOTS,
    "the longest path fits into a chunk"
);

/// The memory.
#[derive(Debug, Clone, Copy)]
pub struct Arena<'a> {
    words: &'a [AtomicU64],
}

/// The thread that a chunk is taken for.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    /// The process's number within the trace.
    pub process: u32,
    /// The process's number at the system.
    pub pid: u32,
    /// The thread's number at the system.
    pub thread: u32,
}

/// A part of the arena that one thread fills: numbers of slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The first that is free.
    pub first: u64,
    /// The first that is another's.
    pub end: u64,
}

impl<'a> Arena<'a> {
    /// Takes memory that is an arena already; nothing of other memory.
    #[must_use]
    pub fn open(words: &'a [AtomicU64]) -> Option<Self> {
        let is_one =
            words.len() >= HEADER_WORDS + CHUNK_WORDS && words[MAGIC].load(Acquire) == MAGIC_WORD;
        is_one.then_some(Self { words })
    }

    /// Returns the first bytes of a new one, in which all processes record or only the first that
    /// comes.
    #[must_use]
    pub fn header(only_the_first: bool) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC_WORD.to_le_bytes());
        bytes[ONLY * 8] = u8::from(only_the_first);
        bytes
    }

    /// Tells whether a process records; the first to ask may be the only one.
    #[must_use]
    pub fn admits(&self, pid: u32) -> bool {
        let only = &self.words[ONLY];
        match only.load(Relaxed) {
            0 => true,
            1 => only.compare_exchange(1, u64::from(pid) + 1, Relaxed, Relaxed).is_ok(),
            other => other == u64::from(pid) + 1,
        }
    }

    /// Gives out the number of a process, from 1 on.
    #[must_use]
    pub fn next_process(&self) -> u32 {
        (self.words[PROCESSES].fetch_add(1, Relaxed) + 1) as u32
    }

    /// Gives out the number of a file, from 1 on.
    #[must_use]
    pub fn next_file(&self) -> u32 {
        (self.words[FILES].fetch_add(1, Relaxed) + 1) as u32
    }

    /// Counts records that found no room.
    pub fn lose(&self, count: u64) {
        self.words[LOST].fetch_add(count, Relaxed);
    }

    /// Takes the next chunk for a thread; nothing when none is left.
    #[must_use]
    pub fn take(&self, who: &Who) -> Option<Chunk> {
        let chunks = (self.words.len() - HEADER_WORDS) / CHUNK_WORDS;
        if self.words[TAKEN].load(Relaxed) >= chunks as u64 {
            return None;
        }
        let number = self.words[TAKEN].fetch_add(1, Relaxed);
        let start = usize::try_from(number).ok().filter(|number| *number < chunks)?;
        let first = (HEADER_BYTES / SLOT_BYTES + start * CHUNK_SLOTS) as u64;
        let thread = u64::from(who.process) | u64::from(who.thread) << 32;
        let words = [head(CHUNK, 0, 0, who.pid), thread, 0, 0, 0, 0, 0, 0];
        self.write(first, &words);
        Some(Chunk { first: first + 1, end: first + CHUNK_SLOTS as u64 })
    }

    /// Records a call.
    pub fn record(&self, slot: u64, record: &Slot) {
        self.write(slot, &record.words());
    }

    /// Returns how many slots a path takes with its head.
    #[must_use]
    pub fn slots_of(path: &[u8]) -> u64 {
        1 + path.len().min(PATH_BYTES).div_ceil(TEXT_BYTES) as u64
    }

    /// Records what a file is. It takes [`slots_of`](Self::slots_of) its path.
    pub fn record_file(&self, slot: u64, file: &Identity, path: &[u8]) {
        let words = [
            head(FILE, u8::from(file.is_device), 0, path.len().min(PATH_BYTES) as u32),
            u64::from(file.file),
            file.device,
            file.inode,
            file.size_bytes,
            0,
            0,
            0,
        ];
        self.write_text(slot, &words, path);
    }

    /// Records a process with its program.
    pub fn record_process(&self, slot: u64, who: &Who, parent: u32, program: &[u8]) {
        let words = [
            head(PROCESS, 0, 0, program.len().min(PATH_BYTES) as u32),
            u64::from(who.process),
            u64::from(who.pid),
            u64::from(parent),
            0,
            0,
            0,
            0,
        ];
        self.write_text(slot, &words, program);
    }

    fn write_text(&self, slot: u64, words: &[u64; WORDS], text: &[u8]) {
        let text = &text[..text.len().min(PATH_BYTES)];
        for (at, part) in (slot + 1..).zip(text.chunks(TEXT_BYTES)) {
            let mut bytes = [0; SLOT_BYTES];
            bytes[0] = TEXT;
            bytes[8..8 + part.len()].copy_from_slice(part);
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            self.write(at, &words);
        }
        self.write(slot, words);
    }

    /// Writes a slot; one that lies nowhere is left out.
    #[inline]
    fn write(&self, slot: u64, words: &[u64; WORDS]) {
        let start = slot as usize * WORDS;
        let Some(to) = self.words.get(start..start + WORDS) else { return };
        for (to, word) in to.iter().zip(words).skip(1) {
            to.store(*word, Relaxed);
        }
        // I-TRC-2.
        to[0].store(words[0], Release);
    }
}

/// What the header of a finished arena says.
pub(crate) struct Header {
    pub lost: u64,
    pub chunks_taken: u64,
}

/// Reads the header from bytes.
pub(crate) fn header_of(bytes: &[u8]) -> Option<Header> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at * 8..at * 8 + 8)?.try_into().ok()?))
    };
    (word(MAGIC)? == MAGIC_WORD)
        .then_some(())
        .and_then(|()| Some(Header { lost: word(LOST)?, chunks_taken: word(TAKEN)? }))
}
