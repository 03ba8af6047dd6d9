//! RAID-5 through queues: what is in flight, what it costs, what waits for what.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceQueue, QueueOptions, Request, RequestKind, Segment,
};
use bedplate_volume::{MemberState, Role, Shape, Undecided};

use super::fixture::{Fixture, REGION_BYTES, stamp_of, stamped};
use super::parity::{Model, assert_parity, operations, raid5};

const UNIT: u64 = 16 << 10;

fn queue(device: &dyn BlockDevice) -> Box<dyn DeviceQueue> {
    device.queue(&QueueOptions { depth_max: 64, ..QueueOptions::default() }).unwrap()
}

fn push(queue: &mut dyn DeviceQueue, token: u64, buf: AlignedBuf, offset: u64) {
    let first = Segment { offset, len: buf.len() as u32 };
    queue
        .push(Request { token, kind: RequestKind::Write, buf: Some(buf), first, rest: Vec::new() })
        .unwrap();
}

fn complete_all(queue: &mut dyn DeviceQueue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(1, &mut done).unwrap();
    }
    assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
    done
}

/// A RAID-5 whose parity holds and whose regions are dirty.
fn ready(fixture: &Fixture, spares: usize) -> (bedplate_volume::Group, Arc<dyn BlockDevice>) {
    fixture.create(Shape::Raid5, 2, spares);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes() / REGION_BYTES).for_each(|region| {
        device.write_at(&AlignedBuf::zeroed(512), region * REGION_BYTES).unwrap();
    });
    device.flush().unwrap();
    (group, device)
}

/// S-95: small writes through a queue share the flush of the log, and neighbours make whole rows.
#[test]
fn a_queue_gathers_what_was_pushed() {
    let fixture = Fixture::new(4, 42);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&AlignedBuf::zeroed(3 << 18), 0).unwrap();
    let mut queue =
        device.queue(&QueueOptions { depth_max: 32, ..QueueOptions::default() }).unwrap();
    let mut round = |offset: &dyn Fn(u64) -> u64| {
        operations(&group);
        for token in 0..24 {
            let first = Segment { offset: offset(token), len: 4096 };
            let buf = Some(stamped(first.offset, 4096, token + 1));
            queue
                .push(Request { token, kind: RequestKind::Write, buf, first, rest: Vec::new() })
                .unwrap();
        }
        let mut done = Vec::new();
        while done.len() < 24 {
            queue.complete(1, &mut done).unwrap();
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        operations(&group)
    };
    // Two rows of 48 KiB, last pushed first.
    assert_eq!(round(&|token| (23 - token) * 4096), (0, 4, 0));
    // One of 4 KiB in each of 12 rows and more: one read, one log write, one flush, one write in
    // place on a member.
    let (reads, writes, flushes) = round(&|token| (token * 2 + 4) * 12_288);
    assert!(
        reads <= 4 && writes <= 8 && flushes <= 4,
        "{reads} reads, {writes} writes, {flushes} flushes"
    );
    assert_parity(&raid5(&group), &fixture.devices(), "gathered");
}

/// S-95: the minimum for k of n data units is min(k + 1, n - k) reads and k + 1 writes; the log
/// adds a write and a flush for each member that is written, once for all that goes together, and
/// nothing where whole rows are written.
#[test]
fn s_95_a_write_through_a_queue_costs_the_least_member_operations_and_the_log() {
    for members in [3_u64, 4, 5] {
        let fixture = Fixture::new(members as usize, 44);
        let (group, device) = ready(&fixture, 0);
        let (mut queue, data) = (queue(&*device), members - 1);
        operations(&group);
        for units in 1..=data {
            // Row 0 was logged above, so a later row is taken for what is written whole.
            let row = if units == data { 3 * data * UNIT } else { 0 };
            push(&mut *queue, 0, AlignedBuf::zeroed((units * UNIT) as usize), row);
            complete_all(&mut *queue);
            let told = operations(&group);
            let log = if units == data { 0 } else { units + 1 };
            let reads = if units == data { 0 } else { (units + 1).min(data - units) };
            println!(
                "raid5 on {members}, queue, {units} of {data} units: reads {} (least {reads}), \
                 writes {} (least {} and {log} of the log)",
                told.0,
                told.1,
                units + 1
            );
            assert_eq!(
                told,
                (reads, units + 1 + log, log),
                "{units} of {data} units on {members} members"
            );
        }
    }
}

/// S-95
#[test]
fn s_95_submit_leaves_writes_under_way_and_whatever_else_needs_their_rows_carries_them_out() {
    let mut fixture = Fixture::new(4, 45);
    fixture.lazy = true;
    let (group, device) = ready(&fixture, 0);
    let mut queue = queue(&*device);
    let submitted = |queue: &mut dyn DeviceQueue, number: u64| {
        let before: Vec<usize> =
            fixture.members.iter().map(|member| member.operation_count()).collect();
        (0..6).for_each(|n| push(queue, n, stamped(n * 12_288, 8192, number), n * 12_288));
        queue.submit().unwrap();
        assert_eq!(
            fixture.members.iter().map(|member| member.operation_count()).collect::<Vec<_>>(),
            before,
            "nothing was waited for"
        );
        assert_eq!(queue.in_flight(), 6);
    };
    submitted(&mut *queue, 7);
    // A positioned write to the same rows from the same thread.
    device.write_at(&stamped(4096, 4096, 8), 4096).unwrap();
    let mut back = AlignedBuf::zeroed(8192);
    device.read_at(&mut back, 0).unwrap();
    assert_eq!(
        (stamp_of(&back[..512], 0), stamp_of(&back[4096..4608], 4096)),
        (7, 8),
        "the queue had the rows first"
    );
    assert_eq!(complete_all(&mut *queue).len(), 6);
    // A scrub.
    submitted(&mut *queue, 9);
    let report = group.scrub(false, &Undecided, &mut |_| ()).unwrap();
    assert_eq!(report.differences, []);
    assert_eq!(complete_all(&mut *queue).len(), 6);
    // A flush that a member does not survive, and a read that has to be made from the others.
    submitted(&mut *queue, 10);
    fixture.members[1].die();
    device.write_at(&stamped(UNIT, 4096, 11), UNIT).unwrap();
    device.flush().unwrap();
    assert_eq!(group.config().members[1].state, MemberState::Failed);
    assert_eq!(complete_all(&mut *queue).len(), 6);
    device.read_at(&mut back, 12_288).unwrap();
    assert_eq!((stamp_of(&back[..512], 12_288), stamp_of(&back[4096..4608], 16_384)), (10, 11));
    // A queue that is dropped with writes under way carries them out.
    submitted(&mut *queue, 12);
    drop(queue);
    device.read_at(&mut back, 0).unwrap();
    assert_eq!(stamp_of(&back[..512], 0), 12);
}

/// S-95: a queue that waits for rows which another queue's writes hold carries those out; the queue
/// that submitted them need not be polled meanwhile.
#[test]
fn s_95_a_queue_does_not_wait_for_the_owner_of_another() {
    let mut fixture = Fixture::new(4, 48);
    fixture.lazy = true;
    let (_group, device) = ready(&fixture, 0);
    let (mut first, mut second) = (queue(&*device), queue(&*device));
    push(&mut *first, 1, stamped(0, 4096, 1), 0);
    first.submit().unwrap();
    push(&mut *second, 2, stamped(8192, 4096, 2), 8192);
    assert_eq!(complete_all(&mut *second).len(), 1);
    push(&mut *second, 3, stamped(4096, 4096, 3), 4096);
    second.submit().unwrap();
    push(&mut *first, 4, stamped(12_288, 4096, 4), 12_288);
    drop(first);
    drop(second);
    let mut back = AlignedBuf::zeroed(UNIT as usize);
    device.read_at(&mut back, 0).unwrap();
    let stamps: Vec<u64> =
        (0..UNIT).step_by(4096).map(|at| stamp_of(&back[at as usize..][..512], at)).collect();
    assert_eq!(stamps, [1, 3, 2, 0], "what was not submitted is not written");
}

/// S-60, S-95
#[test]
fn a_member_that_dies_while_flights_are_in_the_air_is_missed_by_nobody() {
    for (dying, after) in [(0, 1), (1, 4), (2, 9), (3, 14), (0, 22), (1, 35)] {
        let fixture = Fixture::new(5, 46);
        let (group, device) = ready(&fixture, 1);
        let mut queue = queue(&*device);
        fixture.members[dying].die_after(fixture.members[dying].operation_count() + after);
        let mut model = Model::new(&*device);
        for round in 0..4_u64 {
            for n in 0..40 {
                let (at, len) = (n * 20_480 + round * 512, 512 * (1 + n as usize % 40));
                let buf = stamped(at, len, round * 100 + n + 1);
                model.bytes[at as usize..at as usize + len].copy_from_slice(&buf);
                push(&mut *queue, n, buf, at);
                if n % 7 == 6 {
                    queue.submit().unwrap();
                }
            }
            assert_eq!(complete_all(&mut *queue).len(), 40);
        }
        assert_eq!(group.config().members[dying].state, MemberState::Failed, "it died under way");
        model.check(&*device, "without a member");
        group.sync().unwrap();
        assert_eq!(
            group.config().members[dying].state,
            MemberState::Active,
            "the spare has its place"
        );
        model.check(&*device, "with the spare");
        let config = group.config();
        let places = config.members[..4].iter().map(|member| {
            fixture.device(member.path.trim_start_matches("member").parse().unwrap())
        });
        assert_parity(&raid5(&group), &places.collect::<Vec<_>>(), "with the spare");
    }
}

/// Threads that share every row: two with queues, two with positioned calls, one that looks through
/// everything meanwhile.
#[test]
fn many_threads_write_the_same_rows_of_a_raid_5() {
    const BLOCK: u64 = 2048;
    const THREADS: u64 = 4;
    let fixture = Fixture::new(4, 47);
    let (group, device) = ready(&fixture, 0);
    let blocks = 480;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = Arc::clone(&device);
            scope.spawn(move || {
                let mut queue = queue(&*device);
                for round in 0..3 {
                    for n in (thread..blocks).step_by(THREADS as usize) {
                        let buf = stamped(n * BLOCK, BLOCK as usize, round * 10 + thread + 1);
                        if thread % 2 == 0 {
                            device.write_at(&buf, n * BLOCK).unwrap();
                        } else {
                            push(&mut *queue, n, buf, n * BLOCK);
                            if queue.in_flight() == 24 {
                                complete_all(&mut *queue);
                            }
                        }
                    }
                    complete_all(&mut *queue);
                }
            });
        }
        scope.spawn(|| {
            assert_eq!(group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences, []);
        });
    });
    let mut all = AlignedBuf::zeroed((blocks * BLOCK) as usize);
    device.read_at(&mut all, 0).unwrap();
    for n in 0..blocks {
        let at = n * BLOCK;
        all[at as usize..][..BLOCK as usize].chunks(512).zip(0..).for_each(|(sector, s)| {
            assert_eq!(stamp_of(sector, at + 512 * s), 20 + n % THREADS + 1);
        });
    }
    assert_parity(&raid5(&group), &fixture.devices(), "threads");
}
