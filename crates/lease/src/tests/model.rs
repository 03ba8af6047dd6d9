//! Both halves, the very source, under a checker that runs their threads in every kind of order,
//! over a memory in which stores of a thread are seen late and in another order unless a fence or
//! their own order forbids it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle, ThreadId};

use crate::planted::{Mistake, plant, planted};
use crate::*;

mod appends;
mod order;
mod overwrites;
mod pages;
mod requests;

/// A store that only its own thread sees so far.
struct Pending {
    at: usize,
    value: u64,
    is_release: bool,
}

#[derive(Default)]
struct Cells {
    words: Vec<u64>,
    pending: HashMap<ThreadId, Vec<Pending>>,
}

impl Cells {
    /// Lets all see one store of `thread` that may be seen next, chosen by `choice`.
    fn commit(&mut self, thread: ThreadId, choice: usize) {
        let Some(pending) = self.pending.get_mut(&thread) else { return };
        let may_be_next = |i: usize| {
            let earlier = &pending[..i];
            i == 0 || !pending[i].is_release && earlier.iter().all(|p| p.at != pending[i].at)
        };
        let next: Vec<usize> = (0..pending.len()).filter(|&i| may_be_next(i)).collect();
        if !next.is_empty() {
            let store = pending.remove(next[choice % next.len()]);
            self.words[store.at] = store.value;
        }
    }

    fn drain(&mut self, thread: ThreadId) {
        for store in self.pending.remove(&thread).unwrap_or_default() {
            self.words[store.at] = store.value;
        }
    }
}

/// The memory. Threads take turns at each access, so its own lock is never waited for.
#[derive(Clone)]
struct Memory(Arc<Mutex<Cells>>);

impl Memory {
    fn new(words: usize) -> Self {
        Self(Arc::new(Mutex::new(Cells { words: vec![0; words], ..Cells::default() })))
    }

    /// Others go on, and some stores are seen.
    fn access<T>(&self, access: impl FnOnce(&mut Cells, ThreadId) -> T) -> T {
        thread::yield_now();
        let (is_seen, which, choice): (bool, usize, usize) =
            (thread_rng().gen_range(0..20) == 0, thread_rng().r#gen(), thread_rng().r#gen());
        let mut cells = self.0.lock().unwrap();
        if is_seen && !cells.pending.is_empty() {
            let mut threads: Vec<ThreadId> = cells.pending.keys().copied().collect();
            threads.sort_by_key(|thread| format!("{thread:?}"));
            cells.commit(threads[which % threads.len()], choice);
        }
        access(&mut cells, thread::current().id())
    }
}

impl Words for Memory {
    fn count(&self) -> usize {
        self.0.lock().unwrap().words.len()
    }

    fn load(&self, at: usize, _: Ordering) -> u64 {
        self.access(|cells, thread| {
            let own = cells.pending.get(&thread).into_iter().flatten().rev();
            let own = own.into_iter().find(|p| p.at == at).map(|p| p.value);
            own.unwrap_or_else(|| cells.words.get(at).copied().unwrap_or(0))
        })
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.access(|cells, thread| {
            if order == Ordering::SeqCst {
                cells.drain(thread);
                cells.words[at] = value;
            } else {
                let is_release = order == Ordering::Release;
                let pending = cells.pending.entry(thread).or_default();
                pending.push(Pending { at, value, is_release });
            }
        });
    }

    fn swap(&self, at: usize, value: u64) -> u64 {
        self.access(|cells, thread| {
            cells.drain(thread);
            std::mem::replace(&mut cells.words[at], value)
        })
    }

    fn replace(&self, at: usize, old: u64, new: u64) -> bool {
        self.access(|cells, thread| {
            cells.drain(thread);
            let is_old = cells.words[at] == old;
            if is_old {
                cells.words[at] = new;
            }
            is_old
        })
    }

    fn add(&self, at: usize, by: u64) {
        self.access(|cells, thread| {
            cells.drain(thread);
            cells.words[at] = cells.words[at].wrapping_add(by);
        });
    }

    fn fence(&self) {
        self.access(Cells::drain);
    }

    /// Loads are seen in their order.
    fn acquire(&self) {}
}

const SECTOR: u64 = 512;
const BLOCKS: usize = 8;
/// Threads that a client has at most.
const THREADS: usize = 2;

/// What a block of the device is for at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// Of the file with this inode.
    File(u64),
    /// Of it, and of a checkpoint.
    Frozen(u64),
    /// Of it, and a replay would look at it.
    Logged(u64),
    /// Of the tail of a client, filled or not.
    Tail(u64, bool),
}

#[derive(Clone)]
struct Stage {
    control: Control<Memory>,
    reader: Reader<Memory>,
    clients: Vec<(ClientSlots<Memory>, Slots<Memory>)>,
    device: Arc<Mutex<[Use; BLOCKS]>>,
}

fn stage(clients: usize) -> (Publisher<Memory>, Stage) {
    let geometry = Geometry {
        mount: 1,
        alignment_bytes: SECTOR,
        entries: 2,
        extents: 16,
        device_bytes: BLOCKS as u64 * SECTOR,
    };
    let control = Memory::new(geometry.words());
    let publisher = Publisher::create(control.clone(), geometry).unwrap();
    publisher.control().set_state(State::Serving);
    let client = |index: usize| {
        let memory = Memory::new(slots_words(THREADS, 2));
        let made = ClientSlots::create(memory.clone(), THREADS, 2, index as u64 + 1).unwrap();
        memory.fence();
        (made, Slots::open(memory).unwrap())
    };
    let stage = Stage {
        control: publisher.control().clone(),
        reader: Reader::open(control).unwrap(),
        clients: (0..clients).map(client).collect(),
        device: Arc::new(Mutex::new([Use::Free; BLOCKS])),
    };
    (publisher, stage)
}

fn extent(at: u64, block: usize) -> Extent {
    Extent { logical: at * SECTOR, device: block as u64 * SECTOR, len: SECTOR, is_writable: true }
}

fn file(extents: &[Extent]) -> FileLease<'_> {
    FileLease {
        may_read: true,
        may_write: true,
        may_sync: true,
        size_bytes: BLOCKS as u64 * SECTOR,
        unsealed_last: 0,
        data_lsn: 0,
        sharing: 0,
        extents,
        tail: None,
        cache_file: 0,
    }
}

impl Stage {
    fn set(&self, block: usize, to: Use) {
        self.device.lock().unwrap()[block] = to;
    }

    fn publish(&self, publisher: &mut Publisher<Memory>, inode: u64, block: usize) -> EntryRef {
        self.set(block, Use::File(inode));
        let of = publisher.publish(inode, &file(&[extent(0, block)])).unwrap();
        self.control.restore(of);
        of
    }

    fn drain(&self, of: EntryRef) {
        let look = |entry| self.clients.iter().find_map(|(seen, _)| seen.holder_of(entry));
        self.control.drain(of, look, |_| thread::yield_now());
    }

    /// Moves a file's block, as a truncation, a defragmentation or a copy-on-write does.
    fn relocate(
        &self,
        publisher: &mut Publisher<Memory>,
        of: EntryRef,
        inode: u64,
        blocks: (usize, usize),
        sharing: u64,
    ) {
        self.control.revoke(of);
        self.drain(of);
        self.set(blocks.0, Use::Free);
        self.set(blocks.1, Use::File(inode));
        publisher.rewrite(of, &FileLease { sharing, ..file(&[extent(0, blocks.1)]) });
        self.control.restore(of);
    }

    /// A client that makes some I/O on one file, each of which finds the block to be the file's
    /// from its first to its last moment.
    fn client(&self, index: usize, inode: u64, lease: Lease) -> JoinHandle<()> {
        let stage = self.clone();
        thread::spawn(move || {
            let slots = &stage.clients[index].1;
            let slot = slots.claim(index as u32 + 1, |_| false).expect("one thread, one slot");
            for round in 0..3 {
                let direction = if round == 1 { Direction::Read } else { Direction::Write };
                let io = Io { direction, offset: 0, len: SECTOR };
                let found = stage.reader.find(inode).filter(|_| round > 0).unwrap_or(lease);
                let Ok(permit) = stage.reader.begin_io(slots, slot, found, io) else { continue };
                for _ in 0..12 {
                    let block = (permit.device_offset / SECTOR) as usize;
                    let now = stage.device.lock().unwrap()[block];
                    let is_right = match direction {
                        Direction::Write => now == Use::File(inode),
                        _ => now != Use::Free && now.inode() == Some(inode),
                    };
                    assert!(is_right, "I-LSE-1: {direction:?} of {inode} at {block}: {now:?}");
                    thread::yield_now();
                }
                slots.leave(slot);
            }
        })
    }
}

impl Use {
    fn inode(self) -> Option<u64> {
        match self {
            Self::Free | Self::Tail(..) => None,
            Self::File(inode) | Self::Frozen(inode) | Self::Logged(inode) => Some(inode),
        }
    }
}

fn lease(of: EntryRef) -> Lease {
    Lease { entry: of.index, generation: of.generation }
}

/// The clients are anywhere when the daemon begins.
fn linger() {
    (0..thread_rng().gen_range(0..80)).for_each(|_| thread::yield_now());
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
}

/// I/O beside relocations, which free and reuse blocks.
fn slot_against_revoke() {
    let (mut publisher, stage) = stage(2);
    let of = stage.publish(&mut publisher, 5, 0);
    let threads = (0..2).map(|i| stage.client(i, 5, lease(of))).collect();
    for step in 0..3 {
        stage.relocate(&mut publisher, of, 5, (step, step + 1), 0);
    }
    join(threads);
}

/// I/O beside changes that only add to the map, which wait for no slot.
fn sequence_against_rewrite() {
    let (mut publisher, stage) = stage(1);
    stage.set(7, Use::File(5));
    let of = publisher.publish(5, &file(&[extent(4, 7)])).unwrap();
    stage.control.restore(of);
    let (reader, slots) = (stage.reader.clone(), stage.clients[0].1.clone());
    let client = thread::spawn(move || {
        let slot = slots.claim(1, |_| false).expect("one thread, one slot");
        for round in 0..4 {
            let place = [4, 1, 2, 4][round];
            let io = Io { direction: Direction::Read, offset: place * SECTOR, len: SECTOR };
            if let Ok(permit) = reader.begin_io(&slots, slot, lease(of), io) {
                let block = permit.device_offset / SECTOR;
                assert_eq!(block, place + 3, "I-LSE-1: the map is of one moment");
                slots.leave(slot);
            }
        }
    });
    for extents in [&[extent(2, 5), extent(4, 7)][..], &[extent(1, 4), extent(2, 5), extent(4, 7)]]
    {
        let is_open = planted(Mistake::RewrittenInTheOpen);
        if !is_open {
            stage.control.revoke(of);
        }
        publisher.rewrite(of, &file(extents));
        if !is_open {
            stage.control.restore(of);
        }
    }
    join(vec![client]);
}

/// An entry becomes another file's while clients of the first look it up and use it.
fn entry_used_again() {
    let (mut publisher, stage) = stage(2);
    let of = stage.publish(&mut publisher, 5, 0);
    let threads = (0..2).map(|i| stage.client(i, 5, lease(of))).collect();
    linger();
    stage.control.revoke(of);
    stage.drain(of);
    publisher.retract(of);
    stage.set(0, Use::Free);
    let of = stage.publish(&mut publisher, 6, 1);
    stage.control.revoke(of);
    stage.drain(of);
    publisher.retract(of);
    stage.set(1, Use::Free);
    stage.publish(&mut publisher, 5, 2);
    join(threads);
}

/// A checkpoint, after which blocks are written elsewhere.
fn write_flag_after_checkpoint() {
    let (mut publisher, stage) = stage(2);
    let of = stage.publish(&mut publisher, 5, 0);
    let threads = (0..2).map(|i| stage.client(i, 5, lease(of))).collect();
    linger();
    let sharing = stage.control.change_sharing();
    while stage.clients.iter().any(|(seen, _)| seen.writer().is_some()) {
        thread::yield_now();
    }
    stage.set(0, Use::Frozen(5));
    thread::yield_now();
    stage.control.revoke(of);
    stage.drain(of);
    stage.set(1, Use::File(5));
    publisher.rewrite(of, &FileLease { sharing, ..file(&[extent(0, 1)]) });
    stage.control.restore(of);
    join(threads);
}

/// A record names a block, which a replay looks at until it is sealed.
fn unsealed_record() {
    let (mut publisher, stage) = stage(2);
    stage.set(0, Use::Logged(5));
    let of = publisher.publish(5, &FileLease { unsealed_last: 3, ..file(&[extent(0, 0)]) });
    let of = of.unwrap();
    stage.control.restore(of);
    let threads = (0..2).map(|i| stage.client(i, 5, lease(of))).collect();
    linger();
    stage.set(0, Use::File(5));
    stage.control.set_sealed(3);
    join(threads);
}

/// Two clients that each change a half of one sector, one with the right to odd writes, which goes
/// from one to the other; a client without it writes whole sectors.
fn odd_writes_of_two() {
    let (mut publisher, stage) = stage(2);
    let of = stage.publish(&mut publisher, 5, 0);
    let sector = Arc::new(Mutex::new([0_u32; 2]));
    let threads = (0..2).map(|index| stage.odd_client(index, lease(of), &sector)).collect();
    for owner in [1, 2, 0] {
        stage.control.revoke(of);
        stage.drain(of);
        stage.control.set_odd_owner(of, owner);
        stage.control.restore(of);
        linger();
    }
    join(threads);
}

impl Stage {
    /// A client that counts its half of a sector up, by reading and writing all of it, where it has
    /// the right, and writes both halves as they are to be where it needs none.
    fn odd_client(
        &self,
        index: usize,
        lease: Lease,
        sector: &Arc<Mutex<[u32; 2]>>,
    ) -> JoinHandle<()> {
        let (stage, sector) = (self.clone(), Arc::clone(sector));
        thread::spawn(move || {
            let slots = &stage.clients[index].1;
            let slot = slots.claim(index as u32 + 1, |_| false).expect("one thread, one slot");
            for _ in 0..4 {
                let odd = Io { direction: Direction::Write, offset: index as u64 * 256, len: 256 };
                if stage.reader.begin_io(slots, slot, lease, odd).is_ok() {
                    let was = *sector.lock().unwrap();
                    linger();
                    let now = *sector.lock().unwrap();
                    assert_eq!(was, now, "I-LSE-5: no other writes a sector that is being changed");
                    sector.lock().unwrap()[index] += 1;
                    slots.leave(slot);
                }
                let whole = Io { direction: Direction::Write, offset: 0, len: SECTOR };
                if stage.reader.begin_io(slots, slot, lease, whole).is_ok() {
                    sector.lock().unwrap()[1 - index] += 1;
                    slots.leave(slot);
                }
            }
        })
    }
}

/// Two clients that make a file grow, each in its turn; the daemon takes what was filled into the
/// file, and gives what is left of the tail to the other.
fn growth_of_two() {
    let (mut publisher, stage) = stage(2);
    (1..6).for_each(|block| stage.set(block, Use::Tail(1, false)));
    let extents = [Extent { len: 6 * SECTOR, ..extent(0, 0) }];
    let lent = |owner: u64, size_bytes: u64| FileLease {
        size_bytes,
        tail: Some(Tail { owner, end_bytes: 6 * SECTOR, number: 1 }),
        ..file(&extents)
    };
    let of = publisher.publish(5, &lent(1, SECTOR)).unwrap();
    stage.clients[0].0.set_filled(of.index, SECTOR);
    stage.control.restore(of);
    let threads = (0..2).map(|index| stage.growing_client(index, lease(of))).collect();
    let mut size = 1;
    for owner in [2, 1] {
        linger();
        stage.control.revoke(of);
        stage.drain(of);
        let filled = stage.clients[2 - owner].0.filled(of.index) / SECTOR;
        for block in size..filled {
            let now = stage.device.lock().unwrap()[block as usize];
            assert!(matches!(now, Use::Tail(_, true)), "I-LSE-9: {block} is filled: {now:?}");
            stage.set(block as usize, Use::File(5));
        }
        size = filled;
        (size..6).for_each(|block| stage.set(block as usize, Use::Tail(owner as u64, false)));
        stage.clients[owner - 1].0.set_filled(of.index, size * SECTOR);
        publisher.rewrite(of, &lent(owner as u64, size * SECTOR));
        stage.control.restore(of);
    }
    join(threads);
}

impl Stage {
    /// A client that writes where it finds the end of the file, and may be killed.
    fn growing_client(&self, index: usize, lease: Lease) -> JoinHandle<()> {
        let (stage, owner) = (self.clone(), index as u64 + 1);
        thread::spawn(move || {
            let slots = &stage.clients[index].1;
            let slot = slots.claim(index as u32 + 1, |_| false).expect("one thread, one slot");
            for place in 1..6 {
                let offset = stage.reader.own_end(slots, lease).unwrap_or(place * SECTOR);
                let io = Io { direction: Direction::Write, offset, len: SECTOR };
                let Ok(permit) = stage.reader.begin_growth(slots, slot, lease, io, 0) else {
                    continue;
                };
                let block = (permit.device_offset / SECTOR) as usize;
                for _ in 0..6 {
                    let now = stage.device.lock().unwrap()[block];
                    let is_own = matches!(now, Use::Tail(of, _) if of == owner);
                    assert!(is_own || now == Use::File(5), "I-LSE-9: {owner} at {block}: {now:?}");
                    thread::yield_now();
                }
                // It is killed, and its slot counts no more.
                if thread_rng().gen_range(0..8) == 0 {
                    return slots.leave(slot);
                }
                if permit.fills_to != 0 {
                    stage.set(block, Use::Tail(owner, true));
                    slots.wrote(lease.entry, permit.fills_to);
                }
                slots.leave(slot);
            }
        })
    }
}

const ROUNDS: usize = 2_000;

fn check(model: fn()) {
    plant(None);
    shuttle::check_random(model, ROUNDS);
}

/// The model has to find the mistake.
fn finds(mistake: Mistake, model: fn()) {
    plant(Some(mistake));
    let found = catch_unwind(AssertUnwindSafe(|| shuttle::check_random(model, 50 * ROUNDS)));
    plant(None);
    let Err(panic) = found else { panic!("the model does not find {mistake:?}") };
    let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    let is_such = ["I-LSE-1", "I-LSE-5", "I-LSE-9", "I-LSE-10", "I-LSE-11", "I-LSE-12"]
        .iter()
        .any(|it| said.contains(it));
    assert!(is_such, "{mistake:?} is found as such: {said}");
}

#[test]
fn i_lse_1_io_ends_before_its_block_is_freed() {
    check(slot_against_revoke);
    finds(Mistake::NoFence, slot_against_revoke);
    finds(Mistake::NotDrained, slot_against_revoke);
}

#[test]
fn i_lse_1_a_map_is_of_one_moment() {
    check(sequence_against_rewrite);
    finds(Mistake::SequenceReadOnce, sequence_against_rewrite);
    finds(Mistake::RewrittenInTheOpen, sequence_against_rewrite);
}

#[test]
fn i_lse_3_no_client_takes_another_files_map() {
    check(entry_used_again);
    finds(Mistake::GenerationIgnored, entry_used_again);
    finds(Mistake::NotDrained, entry_used_again);
}

#[test]
fn i_lse_1_blocks_of_a_checkpoint_are_not_written() {
    check(write_flag_after_checkpoint);
    finds(Mistake::SharingIgnored, write_flag_after_checkpoint);
    finds(Mistake::NoFence, write_flag_after_checkpoint);
}

#[test]
fn i_lse_1_blocks_that_a_replay_looks_at_are_not_written() {
    check(unsealed_record);
    finds(Mistake::UnsealedWritten, unsealed_record);
}

#[test]
fn i_lse_5_a_sector_that_is_changed_in_part_has_one_writer() {
    check(odd_writes_of_two);
    finds(Mistake::OddOwnerIgnored, odd_writes_of_two);
    finds(Mistake::NotDrained, odd_writes_of_two);
}

#[test]
fn i_lse_9_a_file_grows_by_one_client_and_by_what_is_written() {
    check(growth_of_two);
    finds(Mistake::TailOwnerIgnored, growth_of_two);
    finds(Mistake::FilledTooEarly, growth_of_two);
    finds(Mistake::NotDrained, growth_of_two);
}
