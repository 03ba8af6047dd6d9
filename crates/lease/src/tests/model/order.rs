//! Threads of one client that make a file grow together, in whatever order.

use super::*;

/// What the threads of the client share: the next place, and which are there for good.
#[derive(Clone)]
struct Shared {
    order: Order<Memory>,
    next: Arc<Mutex<u64>>,
    told: Arc<Mutex<Vec<u64>>>,
}

fn lent(extents: &[Extent], number: u64, size: u64) -> FileLease<'_> {
    let tail = Some(Tail { owner: 1, end_bytes: 7 * SECTOR, number });
    FileLease { size_bytes: size * SECTOR, tail, ..file(extents) }
}

/// Writes of one thread at the places that it draws, each at most twice.
fn growing_thread(stage: &Stage, lease: Lease, shared: &Shared) -> JoinHandle<()> {
    let (stage, shared) = (stage.clone(), shared.clone());
    thread::spawn(move || {
        let slots = &stage.clients[0].1;
        let mut claim = thread_rng().gen_range(0..1_000_000_u32);
        let slot = loop {
            claim += 1;
            if let Some(slot) = slots.claim(claim, |_| false) {
                break slot;
            }
        };
        loop {
            let place = {
                let mut next = shared.next.lock().unwrap();
                *next += 1;
                *next
            };
            if place >= 7 {
                return;
            }
            if thread_rng().gen_range(0..3) == 0 {
                linger();
            }
            if (0..3).any(|_| grow(&stage, slot, lease, &shared, place)) {
                shared.told.lock().unwrap().push(place);
            }
        }
    })
}

/// One write; returns whether the file has grown by it.
fn grow(stage: &Stage, slot: usize, lease: Lease, shared: &Shared, place: u64) -> bool {
    let slots = &stage.clients[0].1;
    let io = Io { direction: Direction::Write, offset: place * SECTOR, len: SECTOR };
    let Ok(permit) = stage.reader.begin_growth(slots, slot, lease, io, 4 * SECTOR) else {
        thread::yield_now();
        return false;
    };
    let block = (permit.device_offset / SECTOR) as usize;
    for _ in 0..4 {
        let now = stage.device.lock().unwrap()[block];
        assert!(matches!(now, Use::Tail(1, _)), "I-LSE-9: a write at {block}: {now:?}");
        thread::yield_now();
    }
    stage.set(block, Use::Tail(1, true));
    let filled = || slots.filled(lease.entry);
    let fill = |to| slots.wrote(lease.entry, to);
    if !permit.is_ahead {
        fill(permit.fills_to);
        shared.order.advance(permit.tail, filled, fill);
        slots.leave(slot);
        return true;
    }
    let noted = shared.order.note(permit.tail, &(io.offset..permit.fills_to));
    let noted = noted.expect("there are more places than threads");
    shared.order.advance(permit.tail, filled, fill);
    slots.leave(slot);
    for _ in 0..400 {
        if shared.order.is_filled(&noted) {
            break;
        }
        thread::yield_now();
    }
    let is_there = shared.order.end(noted);
    assert!(
        !is_there || filled() >= permit.fills_to,
        "I-LSE-11: {place} is filled when it is told"
    );
    is_there
}

/// The daemon takes what was filled into the file, and gives other blocks for the rest, now and then.
fn growth_of_threads() {
    let (mut publisher, stage) = stage(1);
    let extents = [Extent { len: 8 * SECTOR, ..extent(0, 0) }];
    (1..7).for_each(|block| stage.set(block, Use::Tail(1, false)));
    let of = publisher.publish(5, &lent(&extents, 1, 1)).unwrap();
    stage.clients[0].0.set_filled(of.index, SECTOR);
    stage.control.restore(of);
    let order = Order::new(Memory::new(ORDER_WORDS));
    let shared = Shared { order, next: Arc::default(), told: Arc::default() };
    let threads = (0..THREADS).map(|_| growing_thread(&stage, lease(of), &shared)).collect();
    let mut size = 1;
    for number in 2..4 {
        linger();
        size = collect(&mut publisher, &stage, of, &extents, (number, size));
    }
    join(threads);
    let size = collect(&mut publisher, &stage, of, &extents, (4, size));
    let told = shared.told.lock().unwrap();
    assert!(told.iter().all(|place| *place < size), "I-LSE-11: {told:?} of {size} are there");
}

/// Makes what is filled the file's; the rest is free, and becomes another tail. Returns the size.
fn collect(
    publisher: &mut Publisher<Memory>,
    stage: &Stage,
    of: EntryRef,
    extents: &[Extent],
    (number, size): (u64, u64),
) -> u64 {
    stage.control.revoke(of);
    stage.drain(of);
    let filled = stage.clients[0].0.filled(of.index) / SECTOR;
    for block in size..filled {
        let now = stage.device.lock().unwrap()[block as usize];
        assert!(matches!(now, Use::Tail(_, true)), "I-LSE-9: {block} is filled: {now:?}");
        stage.set(block as usize, Use::File(5));
    }
    (filled..7).for_each(|block| stage.set(block as usize, Use::Tail(1, false)));
    publisher.rewrite(of, &lent(extents, number, filled));
    stage.control.restore(of);
    filled
}

#[test]
fn i_lse_11_threads_fill_a_tail_in_whatever_order() {
    check(growth_of_threads);
    finds(Mistake::OrderOfAnotherTail, growth_of_threads);
    finds(Mistake::ToldBeforeFilled, growth_of_threads);
    finds(Mistake::FilledTooEarly, growth_of_threads);
    finds(Mistake::NotDrained, growth_of_threads);
}
