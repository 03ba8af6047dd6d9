//! Writes into a tail that are on the device while what lies before them is not yet.
//!
//! ```text
//!   tail      ──── filled ────┤░░░ under way ░░░├── A ──┤── B ──┤
//!                                                noted   noted
//!             the write that ends at A moves what is filled over A and B, and tells them so
//! ```
//!
//! The memory is one process's own. A write that is permitted ahead is noted once it is on the device,
//! and has returned when what is filled has come over it. It is moved there by another write of the
//! same tail, whose slot is set: so that tail is still the process's, and a drain waits for the move.
//! The write that waits has its slot clear: what it waits for may need the daemon.
//!
//! - I-LSE-11: what is filled moves over a noted write only while that tail is the process's, and the
//!   write is told only after that.
//!
//! ```text
//! word 0   places in use
//!      1   places of 5 words: state, mount, tail, start, end
//! ```
//!
//! A state is `turn << 2 | what`: another turn for each use, so that a place which became another
//! write's is noticed.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use crate::planted::{Mistake, planted};
use crate::reader::TailName;
use crate::words::Words;

/// How many writes wait at a time.
const PLACES: usize = 32;
const PLACE_WORDS: usize = 5;

/// How many words the memory has.
pub const ORDER_WORDS: usize = 1 + PLACES * PLACE_WORDS;

const USED: usize = 0;
const STATE: usize = 0;
const MOUNT: usize = 1;
const TAIL: usize = 2;
const START: usize = 3;
const END: usize = 4;

const FREE: u64 = 0;
/// Its write says what it is.
const CLAIMED: u64 = 1;
const WAITS: u64 = 2;
const FILLED: u64 = 3;
const WHAT: u64 = 3;

fn place_at(place: usize) -> usize {
    1 + place * PLACE_WORDS
}

/// A write that was noted.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Noted {
    place: usize,
    /// The state that it was noted with.
    state: u64,
}

/// The writes of one process that wait for those before them.
#[derive(Debug, Clone)]
pub struct Order<W> {
    words: W,
}

impl<W: Words> Order<W> {
    /// Uses memory of [`ORDER_WORDS`] words, zeros at first.
    pub const fn new(words: W) -> Self {
        Self { words }
    }

    /// Notes a write that is on the device, its slot still set; nothing where too many wait. What is
    /// filled may have come to it meanwhile: the caller [advances](Self::advance).
    pub fn note(&self, tail: TailName, bytes: &Range<u64>) -> Option<Noted> {
        let words = &self.words;
        for place in 0..PLACES {
            let at = place_at(place);
            let was = words.load(at + STATE, Acquire);
            if was & WHAT != FREE || !words.replace(at + STATE, was, was | CLAIMED) {
                continue;
            }
            words.add(USED, 1);
            for (word, value) in
                [(MOUNT, tail.mount), (TAIL, tail.number), (START, bytes.start), (END, bytes.end)]
            {
                // Seen after the claim: a reader of the turn before finds that over.
                words.store(at + word, value, Release);
            }
            let state = was | WAITS;
            words.store(at + STATE, state, SeqCst);
            // Either what moves the end sees the note, or this one where the end is.
            words.fence();
            return Some(Noted { place, state });
        }
        None
    }

    /// Moves what is filled of a tail over the writes that wait there; `filled` tells how far it is, and
    /// `fill` raises it. The caller has a slot set under which the tail was found to be its process's,
    /// and has raised it itself or noted a write. Returns whether one waits no more.
    pub fn advance(&self, tail: TailName, filled: impl Fn() -> u64, fill: impl Fn(u64)) -> bool {
        self.words.fence();
        let mut is_any = false;
        while self.words.load(USED, Acquire) != 0
            && let Some((noted, end)) = self.next(tail, filled())
        {
            let told = || {
                self.words.replace(place_at(noted.place) + STATE, noted.state, noted.state | FILLED)
            };
            if planted(Mistake::ToldBeforeFilled) {
                told();
            }
            // Its bytes are on the device, also where the write does not wait any more.
            fill(end);
            is_any |= told();
        }
        is_any
    }

    /// The write that goes on where a tail is filled to, and its end.
    fn next(&self, tail: TailName, filled: u64) -> Option<(Noted, u64)> {
        (0..PLACES).find_map(|place| {
            let get = |word| self.words.load(place_at(place) + word, Acquire);
            let state = get(STATE);
            if state & WHAT != WAITS {
                return None;
            }
            let of = TailName { mount: get(MOUNT), number: get(TAIL) };
            let (start, end) = (get(START), get(END));
            let is_its = of == tail || planted(Mistake::OrderOfAnotherTail);
            let is_next = is_its && start <= filled && get(STATE) == state;
            is_next.then_some((Noted { place, state }, end))
        })
    }

    /// Tells whether the file has grown by a write.
    pub fn is_filled(&self, noted: &Noted) -> bool {
        self.words.load(place_at(noted.place) + STATE, Acquire) == noted.state | FILLED
    }

    /// Ends the wait of a write; returns whether the file has grown by it. If not, it is written once
    /// more.
    #[expect(clippy::needless_pass_by_value, reason = "a wait ends once")]
    pub fn end(&self, noted: Noted) -> bool {
        let Noted { place, state } = noted;
        let at = place_at(place) + STATE;
        // The next turn of the place.
        let free = (state | WHAT).wrapping_add(1);
        let is_given_up = self.words.replace(at, state, free);
        if !is_given_up {
            self.words.store(at, free, SeqCst);
        }
        self.words.add(USED, u64::MAX);
        !is_given_up
    }
}
