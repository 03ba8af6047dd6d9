//! Where everything lies in the slots of a client.
//!
//! ```text
//! word 0   header
//!     16   slots of 32 words
//!      …   a word an entry: touched
//!      …   a line each: requests begun, requests paused
//!      …   a word an entry: requests on the file
//!      …   a word an entry: up to where the client has filled its tail of the file, in bytes of it
//!      …   a word an entry: the buffer that the client has for the file, plus 1
//!      …   a line each: the buffers
//!      …   what was appended, by buffer
//!      …   what was overwritten, by buffer
//! ```

use crate::layout::LINE;

/// How many bytes an append buffer holds; the models make memories by the thousand.
pub const APPEND_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 128 << 10 };

/// How many bytes of overwrites a buffer holds, with two words for each of them.
pub const OVERWRITE_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 256 << 10 };

/// How many buffers a client has.
pub const APPENDS_PER_CLIENT: usize = 16;

pub(crate) const SLOT_WORDS: usize = 2 * LINE;

/// Returns how many words the memory of a client needs.
pub fn slots_words(slots: usize, entries: usize) -> usize {
    overwrite_bytes_at(slots, entries, APPENDS_PER_CLIENT)
}

pub(crate) fn slot_at(slot: usize) -> usize {
    LINE + slot * SLOT_WORDS
}

pub(crate) fn touched_at(slots: usize, entry: u32) -> usize {
    slot_at(slots) + entry as usize
}

pub(crate) fn begun_at(slots: usize, entries: usize) -> usize {
    (slot_at(slots) + entries).next_multiple_of(LINE)
}

pub(crate) fn paused_at(slots: usize, entries: usize) -> usize {
    begun_at(slots, entries) + LINE
}

pub(crate) fn of_file_at(slots: usize, entries: usize, entry: u32) -> usize {
    paused_at(slots, entries) + LINE + entry as usize
}

pub(crate) fn filled_at(slots: usize, entries: usize, entry: u32) -> usize {
    of_file_at(slots, entries, 0) + entries + entry as usize
}

pub(crate) fn append_of_at(slots: usize, entries: usize, entry: u32) -> usize {
    filled_at(slots, entries, 0) + entries + entry as usize
}

pub(crate) fn append_at(slots: usize, entries: usize, buffer: usize) -> usize {
    (append_of_at(slots, entries, 0) + entries).next_multiple_of(LINE) + buffer * LINE
}

pub(crate) fn append_bytes_at(slots: usize, entries: usize, buffer: usize) -> usize {
    const WORDS: usize = APPEND_BYTES as usize / size_of::<u64>();
    append_at(slots, entries, APPENDS_PER_CLIENT) + buffer * WORDS
}

pub(crate) fn overwrite_bytes_at(slots: usize, entries: usize, buffer: usize) -> usize {
    const WORDS: usize = OVERWRITE_BYTES as usize / size_of::<u64>();
    append_bytes_at(slots, entries, APPENDS_PER_CLIENT) + buffer * WORDS
}
