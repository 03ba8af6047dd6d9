//! The directory of the shared cache, as one thread sees it.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Relaxed};

use crate::planted::{Mistake, plant};
use crate::*;

#[derive(Clone, Debug)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    fn new(words: usize) -> Self {
        Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl std::ops::Deref for Memory {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

const SHAPE: PageShape = PageShape { shards: 2, frames: 40, page_bytes: 4096 };

fn made() -> (Memory, Memory, SharedPages<Memory>, PageReader<Memory>) {
    let (directory, uses) = (Memory::new(SHAPE.directory_words()), Memory::new(SHAPE.uses_words()));
    let shared = SharedPages::create(directory.clone(), uses.clone(), SHAPE).unwrap();
    let reader = PageReader::open(directory.clone(), uses.clone(), SHAPE.frames_bytes()).unwrap();
    (directory, uses, shared, reader)
}

/// Pages of a file that the first shard holds.
fn of_first_shard(file: u64) -> impl Iterator<Item = u64> {
    (0..).filter(move |page| shard_of(file, page / GROUP_PAGES, SHAPE.shards) == 0)
}

#[test]
fn what_is_published_is_found_until_it_is_withdrawn() {
    let (_, _, shared, reader) = made();
    let mut shard = shared.shard(0, 10);
    let mut all: HashMap<u32, u64> = HashMap::new();
    let mut pages = of_first_shard(5);
    for step in 0..2000_u32 {
        let frame = step.wrapping_mul(2_654_435_761) >> 7 & 31;
        if step == 1000 {
            shard.resize(40, all.keys().copied());
        }
        let frame = if step < 1000 { frame % 10 } else { frame };
        match all.remove(&frame) {
            Some(page) => {
                shard.withdraw(frame);
                assert_eq!(reader.find(5, page), None);
                shard.leave(frame);
            }
            None => {
                let page = pages.next().unwrap();
                shard.enter(frame, 5, page);
                assert_eq!(reader.find(5, page), None, "not before it is published");
                shard.publish(frame);
                all.insert(frame, page);
            }
        }
        for (frame, page) in &all {
            let seen = reader.find(5, *page).expect("each is found");
            assert!(seen.frame == *frame && reader.is_still(&seen));
            assert_eq!(reader.find(6, *page), None, "another file's");
        }
    }
}

#[test]
fn uses_are_counted_as_far_as_they_matter() {
    let (_, uses, shared, reader) = made();
    let shard = shared.shard(0, 10);
    let page = of_first_shard(5).next().unwrap();
    shard.enter(3, 5, page);
    shard.publish(3);
    let seen = reader.find(5, page).unwrap();
    (0..8).for_each(|part| reader.note_use(&seen, part * 512, part * 512 + 512));
    assert_eq!((shard.take_uses(3), shard.take_uses(3)), (1, 0), "one reader in small steps");
    (0..9).for_each(|_| reader.note_use(&seen, 0, 4096));
    assert_eq!(shard.take_uses(3), 3);
    uses[3].store(u64::MAX, Relaxed);
    assert_eq!(shard.take_uses(3), 3, "rubbish counts as no more");
}

#[test]
fn a_directory_that_contradicts_itself_is_refused_or_harmless() {
    let (directory, _, shared, _) = made();
    let shard = shared.shard(0, 10);
    let page = of_first_shard(5).next().unwrap();
    shard.enter(3, 5, page);
    shard.publish(3);
    let open = |words: &Memory| {
        PageReader::open(words.clone(), Memory::new(SHAPE.uses_words()), SHAPE.frames_bytes())
    };
    for at in 0..directory.len() {
        for value in [0, 1, u64::MAX, 1 << 32, 1 << 63] {
            let damaged = Memory::new(directory.len());
            let pairs = damaged.iter().zip(directory.iter());
            pairs.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
            damaged[at].store(value, Relaxed);
            if let Ok(reader) = open(&damaged) {
                for page in 0..64 {
                    let Some(seen) = reader.find(5, page) else { continue };
                    assert!((seen.frame as usize) < SHAPE.uses_words(), "word {at} is {value}");
                    reader.is_still(&seen);
                    reader.note_use(&seen, 0, 4096);
                }
            }
        }
    }
    assert_eq!(open(&Memory::new(8)).unwrap_err(), LayoutError::Damaged);
    let small = PageReader::open(directory, Memory::new(1), SHAPE.frames_bytes());
    assert_eq!(small.unwrap_err(), LayoutError::TooSmall);
}

/// Memory in which something happens once a word from `from` on was read that is not 0.
struct Interrupted {
    memory: Memory,
    from: usize,
    happens: Cell<Option<Box<dyn FnOnce()>>>,
}

impl Words for Interrupted {
    fn count(&self) -> usize {
        self.memory.len()
    }
    fn load(&self, at: usize, order: Ordering) -> u64 {
        let word = Words::load(&self.memory, at, order);
        if at >= self.from
            && word != 0
            && let Some(happens) = self.happens.take()
        {
            happens();
        }
        word
    }
    fn store(&self, at: usize, value: u64, order: Ordering) {
        Words::store(&self.memory, at, value, order);
    }
    fn swap(&self, at: usize, value: u64) -> u64 {
        Words::swap(&self.memory, at, value)
    }
    fn replace(&self, at: usize, old: u64, new: u64) -> bool {
        self.memory.replace(at, old, new)
    }
    fn add(&self, at: usize, by: u64) {
        self.memory.add(at, by);
    }
    fn fence(&self) {
        self.memory.fence();
    }
    fn acquire(&self) {
        self.memory.acquire();
    }
}

/// Looks a page up whose frame becomes another page's between the look at the table and that at the
/// frame.
fn find_beside_a_change() -> Option<Seen> {
    let (directory, uses, shared, _) = made();
    let shard = shared.shard(0, 10);
    let mut pages = of_first_shard(5);
    let (page, other) = (pages.next().unwrap(), pages.next().unwrap());
    shard.enter(3, 5, page);
    shard.publish(3);
    let happens = move || {
        shard.withdraw(3);
        shard.leave(3);
        shard.enter(3, 5, other);
        shard.publish(3);
    };
    let from = SHAPE.directory_words() - 2 * (SHAPE.frames * 2).next_power_of_two();
    let happens = Cell::new(Some(Box::new(happens) as Box<dyn FnOnce()>));
    let uses = Interrupted { memory: uses, from: usize::MAX, happens: Cell::new(None) };
    let directory = Interrupted { memory: directory, from, happens };
    PageReader::open(directory, uses, SHAPE.frames_bytes()).unwrap().find(5, page)
}

#[test]
fn i_lse_10_a_frame_that_holds_another_page_by_now_is_not_found() {
    assert_eq!(find_beside_a_change(), None);
    plant(Some(Mistake::FrameNotCompared));
    let found = find_beside_a_change();
    plant(None);
    assert!(found.is_some(), "the comparison is what finds it");
}
