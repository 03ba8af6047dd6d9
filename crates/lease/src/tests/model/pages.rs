//! Pages of the daemon's cache beside clients that read them.

use super::*;

const FILE: u64 = 7;
const PAGE_WORDS: usize = 3;

/// The daemon, with pages of three words behind the directory: each says which page it is of, and
/// which writing of it.
struct Daemon {
    memory: Memory,
    shard: PageShard<Memory>,
    shape: PageShape,
}

fn stage() -> (Daemon, PageReader<Memory>) {
    let shape = PageShape { shards: 1, frames: 2, page_bytes: 512 };
    let memory = Memory::new(shape.directory_words() + 2 * PAGE_WORDS);
    let uses = Memory::new(shape.uses_words());
    let shared = SharedPages::create(memory.clone(), uses.clone(), shape).unwrap();
    let shard = shared.shard(0, 2);
    memory.fence();
    let reader = PageReader::open(memory.clone(), uses, shape.frames_bytes()).unwrap();
    (Daemon { memory, shard, shape }, reader)
}

fn word_at(shape: &PageShape, frame: u32, word: usize) -> usize {
    shape.directory_words() + frame as usize * PAGE_WORDS + word
}

impl Daemon {
    fn write(&self, frame: u32, page: u64, writing: u64) {
        for word in 0..PAGE_WORDS {
            let at = word_at(&self.shape, frame, word);
            self.memory.store(at, page * 100 + writing, Ordering::Relaxed);
        }
    }

    fn bring(&self, frame: u32, page: u64, writing: u64) {
        self.write(frame, page, writing);
        self.shard.enter(frame, FILE, page);
        self.shard.publish(frame);
    }

    fn rewrite(&self, frame: u32, page: u64, writing: u64) {
        self.shard.withdraw(frame);
        self.write(frame, page, writing);
        self.shard.publish(frame);
    }

    fn evict(&self, frame: u32) {
        self.shard.withdraw(frame);
        self.shard.leave(frame);
    }
}

/// A client that reads pages: each is of one writing, and the page that was looked for.
fn client(reader: PageReader<Memory>, memory: Memory) -> JoinHandle<()> {
    thread::spawn(move || {
        for round in 0..8 {
            let page = round % 2;
            let Some(seen) = reader.find(FILE, page) else { continue };
            let words: [u64; PAGE_WORDS] = std::array::from_fn(|word| {
                memory.load(word_at(reader.shape(), seen.frame, word), Ordering::Relaxed)
            });
            if reader.is_still(&seen) {
                let is_one = words.iter().all(|word| *word == words[0] && word / 100 == page);
                assert!(is_one, "I-LSE-10: page {page} is of one moment: {words:?}");
                reader.note_use(&seen, 0, 512);
            }
        }
    })
}

/// A page is written again and again.
fn pages_are_rewritten() {
    let (daemon, reader) = stage();
    daemon.bring(0, 0, 1);
    let clients = (0..2).map(|_| client(reader.clone(), daemon.memory.clone())).collect();
    (2..5).for_each(|writing| daemon.rewrite(0, 0, writing));
    join(clients);
}

/// A frame becomes another page's.
fn frames_are_used_again() {
    let (daemon, reader) = stage();
    daemon.bring(0, 0, 1);
    daemon.memory.fence();
    let client = client(reader, daemon.memory.clone());
    for round in 1..4 {
        daemon.evict(0);
        daemon.bring(0, round % 2, round);
        // Seen at last.
        daemon.memory.fence();
    }
    join(vec![client]);
}

#[test]
fn i_lse_10_a_page_is_of_one_moment() {
    check(pages_are_rewritten);
    finds(Mistake::PageChangedInTheOpen, pages_are_rewritten);
    finds(Mistake::PageWithdrawnLate, pages_are_rewritten);
    finds(Mistake::PageNotLookedAtAgain, pages_are_rewritten);
}

#[test]
fn i_lse_10_a_page_is_the_one_that_was_looked_for() {
    check(frames_are_used_again);
    finds(Mistake::PageNotLookedAtAgain, frames_are_used_again);
}
