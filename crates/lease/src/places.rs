//! Where everything lies in the slots of a client.
//!
//! ```text
//! word 0   header
//!     16   slots of 32 words
//!      …   a word an entry: touched
//!      …   a line each: requests begun, requests paused
//!      …   a word an entry: requests on the file
//!      …   a word an entry: up to where the client has filled its tail of the file, in bytes of it
//! ```

use crate::layout::LINE;

pub(crate) const SLOT_WORDS: usize = 2 * LINE;

/// Returns how many words the memory of a client needs.
pub fn slots_words(slots: usize, entries: usize) -> usize {
    of_file_at(slots, entries, 0) + 2 * entries
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
