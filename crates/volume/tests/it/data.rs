//! Every layout holds what is written to it, by positioned calls and by queues, and reports what it
//! should.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceQueue, Geometry, Hook, HookedDevice, MemoryDevice,
    QueueOptions, Request, RequestKind, Segment,
};
use bedplate_volume::{Group, ImportOptions, Role, Shape, Undecided};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Fixture, MEMBER_BYTES, new_group, quiet};

const SHAPES: [(Shape, usize, usize); 8] = [
    (Shape::Concat, 3, 2),
    (Shape::Stripe, 3, 2),
    (Shape::Mirror, 3, 2),
    (Shape::StripeMirror, 4, 2),
    (Shape::MirrorStripe, 4, 2),
    (Shape::MirrorStripe, 6, 3),
    (Shape::Raid5, 3, 2),
    (Shape::Raid5, 5, 2),
];

fn fill(rng: &mut Xoshiro256PlusPlus, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.chunks_mut(8).for_each(|word| word.copy_from_slice(&rng.random::<u64>().to_le_bytes()));
    buf
}

fn range(rng: &mut Xoshiro256PlusPlus, size: u64) -> (u64, usize) {
    let len = 512 * rng.random_range(1..=160_u64);
    (rng.random_range(0..=(size - len) / 512) * 512, len as usize)
}

#[test]
fn every_layout_is_a_plain_array_to_positioned_calls() {
    for (shape, members, plexes) in SHAPES {
        let fixture = Fixture::new(members, 1);
        fixture.create(shape, plexes, 0);
        let group = fixture.import();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        let mut model = vec![0_u8; device.size_bytes() as usize];
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        for step in 0..150 {
            let (offset, len) = range(&mut rng, device.size_bytes());
            let here = offset as usize..offset as usize + len;
            match step % 4 {
                0 | 1 => {
                    let buf = fill(&mut rng, len);
                    device.write_at(&buf, offset).unwrap();
                    model[here].copy_from_slice(&buf);
                }
                2 if step % 8 == 2 => {
                    device.write_zeroes(offset, len as u64).unwrap();
                    model[here].fill(0);
                }
                _ => {
                    let mut buf = AlignedBuf::zeroed(len);
                    device.read_at(&mut buf, offset).unwrap();
                    assert!(buf[..] == model[here], "{shape:?} at step {step}");
                }
            }
        }
        drop((device, group));
        // Closed and opened again, in another order.
        let mut devices = fixture.devices();
        devices.reverse();
        let group = Group::import(&devices, &quiet()).unwrap();
        assert_eq!(group.progress().pending_bytes, 0, "it was closed in order");
        let mut all = AlignedBuf::zeroed(model.len());
        group.volume(Role::Data).unwrap().read_at(&mut all, 0).unwrap();
        assert!(all[..] == model[..]);
    }
}

/// A daemon's last threads held the volume a moment longer than the daemon lived, so its group was
/// not closed, and what was dirty was compared at the next import, or rather copied from the first
/// member: a difference that a scrub should have told was gone.
#[test]
fn a_group_is_closed_while_somebody_still_holds_its_volume() {
    for (shape, members, plexes) in SHAPES {
        let fixture = Fixture::new(members, 2);
        fixture.create(shape, plexes, 0);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        group.sync().unwrap();
        device.write_at(&AlignedBuf::zeroed(8192), 0).unwrap();
        group.close().unwrap();
        group.close().unwrap();
        let refused = device.write_at(&AlignedBuf::zeroed(8192), 0).unwrap_err().to_string();
        assert!(refused.contains("the group was closed"), "{shape:?}: {refused}");
        // The next one, while the old handles are still about.
        let next = fixture.import();
        assert_eq!(next.progress().pending_bytes, 0, "{shape:?}");
        drop((device, group));
        next.volume(Role::Data).unwrap().write_at(&AlignedBuf::zeroed(8192), 0).unwrap();
        next.close().unwrap();
        assert!(next.config().clean);
    }
}

#[test]
fn every_layout_is_a_plain_array_to_queues() {
    for (shape, members, plexes) in SHAPES {
        let fixture = Fixture::new(members, 2);
        fixture.create(shape, plexes, 0);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let mut queue =
            device.queue(&QueueOptions { depth_max: 8, buffers: 4, buffer_bytes: 8192 }).unwrap();
        let mut model = vec![0_u8; device.size_bytes() as usize];
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
        for _ in 0..30 {
            // A round of writes to slots of their own, one of them in two segments; then they are
            // read back.
            let slot = device.size_bytes() / 8 / 512 * 512;
            let mut writes = Vec::new();
            for number in 0..6_u64 {
                let len = 512 * rng.random_range(2..=120_usize);
                let buf = fill(&mut rng, len);
                let split = 512 * rng.random_range(1..len / 512);
                let first = Segment { offset: number * slot, len: split as u32 };
                let rest =
                    vec![Segment { offset: number * slot + slot / 2, len: (len - split) as u32 }];
                model[first.offset as usize..][..split].copy_from_slice(&buf[..split]);
                model[rest[0].offset as usize..][..len - split].copy_from_slice(&buf[split..]);
                writes.push((first, rest[0]));
                queue
                    .push(Request {
                        token: number,
                        kind: RequestKind::Write,
                        buf: Some(buf),
                        first,
                        rest,
                    })
                    .unwrap();
            }
            let mut done = Vec::new();
            queue.complete(6, &mut done).unwrap();
            while queue.in_flight() > 0 {
                queue.complete(1, &mut done).unwrap();
            }
            done.sort_by_key(|completion| completion.token);
            assert_eq!(
                done.iter().map(|completion| completion.token).collect::<Vec<_>>(),
                (0..6).collect::<Vec<_>>()
            );
            assert!(
                done.iter().all(|completion| completion.result.is_ok() && completion.buf.is_some())
            );
            queue
                .push(Request {
                    token: 9,
                    kind: RequestKind::Flush,
                    buf: None,
                    first: Segment { offset: 0, len: 0 },
                    rest: Vec::new(),
                })
                .unwrap();
            for (number, (first, rest)) in writes.iter().enumerate() {
                let buf = Some(AlignedBuf::zeroed((first.len + rest.len) as usize));
                queue
                    .push(Request {
                        token: number as u64,
                        kind: RequestKind::Read,
                        buf,
                        first: *first,
                        rest: vec![*rest],
                    })
                    .unwrap();
            }
            let mut done = Vec::new();
            while queue.in_flight() > 0 {
                queue.complete(1, &mut done).unwrap();
            }
            for completion in done.iter().filter(|completion| completion.token != 9) {
                let (first, rest) = writes[completion.token as usize];
                let buf = completion.buf.as_ref().unwrap();
                assert!(
                    buf[..first.len as usize]
                        == model[first.offset as usize..][..first.len as usize]
                );
                assert!(
                    buf[first.len as usize..] == model[rest.offset as usize..][..rest.len as usize]
                );
            }
        }
        // One of the queue's own buffers, handed to the member whole.
        let mut buf = queue.take_buffer().unwrap();
        buf.copy_from_slice(&fill(&mut rng, 8192));
        let expected = buf.to_vec();
        queue
            .push(Request {
                token: 1,
                kind: RequestKind::Write,
                buf: Some(buf),
                first: Segment { offset: 0, len: 8192 },
                rest: Vec::new(),
            })
            .unwrap();
        let mut done = Vec::new();
        queue.complete(1, &mut done).unwrap();
        queue.give_buffer(done.pop().unwrap().buf.unwrap());
        let mut back = AlignedBuf::zeroed(8192);
        device.read_at(&mut back, 0).unwrap();
        assert!(back[..] == expected[..]);
    }
}

#[test]
fn what_does_not_fit_the_volume_is_refused_before_any_member_sees_it() {
    let fixture = Fixture::new(2, 3);
    fixture.create(Shape::Mirror, 2, 0);
    let device = fixture.import().volume(Role::Data).unwrap();
    let buf = AlignedBuf::zeroed(4096);
    let kind = |result: bedplate_block::Result<()>| result.unwrap_err().kind;
    assert_eq!(kind(device.write_at(&buf[..100], 0)), bedplate_block::ErrorKind::Unaligned);
    assert_eq!(kind(device.write_at(&buf[8..520], 0)), bedplate_block::ErrorKind::Unaligned);
    assert_eq!(
        kind(device.write_at(&buf, device.size_bytes())),
        bedplate_block::ErrorKind::OutOfRange
    );
    assert_eq!(kind(device.write_at(&buf, u64::MAX - 511)), bedplate_block::ErrorKind::OutOfRange);
    device.write_at(&buf, 0).unwrap();
    assert!(device.discard(0, 4096).unwrap(), "both copies read as zeros afterwards");
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let flush = Request {
        token: 1,
        kind: RequestKind::Flush,
        buf: Some(buf),
        first: Segment { offset: 0, len: 0 },
        rest: Vec::new(),
    };
    queue.push(flush).unwrap();
    let mut done = Vec::new();
    queue.complete(1, &mut done).unwrap();
    assert_eq!(done[0].result.as_ref().unwrap_err().kind, bedplate_block::ErrorKind::Unsupported);
}

#[test]
fn s_483_a_volume_tells_the_length_of_its_rows() {
    const UNIT: u32 = 16 << 10;
    for (shape, plexes, members, row) in [
        (Shape::Mirror, 2, 2, 0),
        (Shape::Stripe, 1, 3, 3 * UNIT),
        (Shape::MirrorStripe, 2, 4, 2 * UNIT),
        (Shape::Raid5, 1, 4, 3 * UNIT),
    ] {
        let devices: Vec<Arc<dyn BlockDevice>> =
            (0..members).map(|_| MemoryDevice::new(MEMBER_BYTES) as _).collect();
        let new = new_group(shape, plexes, devices.clone(), Vec::new());
        bedplate_volume::create(&new).unwrap();
        let group = Group::import(&devices, &quiet()).unwrap();
        let told = group.volume(Role::Data).unwrap().geometry().row_bytes;
        assert_eq!(told, row, "S-483: {shape:?}");
    }
}

#[test]
fn members_of_different_sectors_and_sizes_make_a_volume_of_the_larger_sector_and_the_smaller_size()
{
    let geometry = Geometry {
        logical_block_size: 4096,
        untorn_unit: 16_384,
        volatile_cache: true,
        ..MemoryDevice::GEOMETRY
    };
    let large = MemoryDevice::with_geometry(MEMBER_BYTES + (3 << 20), geometry);
    let small = MemoryDevice::with_geometry(
        MEMBER_BYTES,
        Geometry { untorn_unit: 8192, ..MemoryDevice::GEOMETRY },
    );
    let devices: Vec<Arc<dyn BlockDevice>> = vec![large, small];
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices.clone(), Vec::new())).unwrap();
    let group = Group::import(&devices, &quiet()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    let combined = device.geometry();
    assert_eq!(
        (combined.logical_block_size, combined.untorn_unit, combined.volatile_cache),
        (4096, 8192, true)
    );
    assert_eq!(device.size_bytes(), MEMBER_BYTES - (4 << 20));
    assert_eq!(
        device.write_at(&AlignedBuf::zeroed(512), 512).unwrap_err().kind,
        bedplate_block::ErrorKind::Unaligned
    );
    device.write_at(&AlignedBuf::zeroed(4096), device.size_bytes() - 4096).unwrap();
}

#[test]
fn a_log_of_its_own_is_a_second_volume() {
    let devices: Vec<Arc<dyn BlockDevice>> =
        (0..5).map(|_| MemoryDevice::new(MEMBER_BYTES) as _).collect();
    let mut new = new_group(Shape::Stripe, 2, devices[..3].to_vec(), Vec::new());
    new.log_members = devices[3..].to_vec();
    bedplate_volume::create(&new).unwrap();
    let group = Group::import(&devices, &quiet()).unwrap();
    let (data, log) = (group.volume(Role::Data).unwrap(), group.volume(Role::Log).unwrap());
    log.write_at(&AlignedBuf::from_slice(&[7; 512]), 0).unwrap();
    let mut back = AlignedBuf::zeroed(512);
    data.read_at(&mut back, 0).unwrap();
    assert_eq!(back[0], 0);
    assert_eq!((data.name(), log.name(), data.size_bytes()), ("tank", "tank/log", 3 << 20));
}

#[test]
fn many_threads_write_a_mirror_and_its_background_thread_tidies_up() {
    let devices: Vec<Arc<dyn BlockDevice>> =
        (0..2).map(|_| MemoryDevice::new(MEMBER_BYTES) as _).collect();
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices.clone(), Vec::new())).unwrap();
    let group = Group::import(&devices.clone(), &ImportOptions::default()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let device = Arc::clone(&device);
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let offset = (thread * 64 + round % 64) * 4096;
                    let buf = AlignedBuf::from_slice(&[(thread + round) as u8; 4096]);
                    device.write_at(&buf, offset).unwrap();
                    let mut back = AlignedBuf::zeroed(4096);
                    device.read_at(&mut back, offset).unwrap();
                    assert!(back[..] == buf[..]);
                    if round % 50 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
    let statistics = group.volume_statistics(Role::Data).unwrap();
    assert_eq!(
        (statistics.writes.operations, statistics.writes.bytes, statistics.reads.operations),
        (800, 800 * 4096, 800)
    );
    assert!(
        statistics.flushes.operations == 16
            && statistics.writes.time_us_p99 >= statistics.writes.time_us_p50
    );
    drop((device, group));
    let (mut a, mut b) = (AlignedBuf::zeroed(1 << 20), AlignedBuf::zeroed(1 << 20));
    devices[0].read_at(&mut a, 4 << 20).unwrap();
    devices[1].read_at(&mut b, 4 << 20).unwrap();
    assert!(a[..] == b[..]);
}

/// A device that keeps what is discarded.
#[derive(Debug)]
struct Keeps;

impl Hook for Keeps {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if matches!(call, DeviceCall::Discard { .. }) { Ok(()) } else { pass() }
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        inner.queue(options)
    }
}

/// S-262: what is discarded of a mirror reads as zeros from every copy, also from a member that
/// keeps what is discarded; a mirror of such members is as it was, and so is a RAID-5.
#[test]
fn s_262_copies_stay_equal_where_a_group_is_discarded() {
    let mut read = AlignedBuf::zeroed(4096);
    for (shape, keeping, taken) in [
        (Shape::Mirror, 0, true),
        (Shape::Mirror, 1, true),
        (Shape::Mirror, 2, false),
        (Shape::Raid5, 0, false),
    ] {
        let count = if shape == Shape::Raid5 { 3 } else { 2 };
        let fixture = Fixture::new(count, 5);
        let member = |index: usize| {
            let device = fixture.device(index);
            if index < keeping {
                HookedDevice::named(format!("member{index}"), device, Keeps)
            } else {
                device
            }
        };
        let members: Vec<_> = (0..count).map(member).collect();
        bedplate_volume::create(&new_group(shape, 2, members.clone(), Vec::new())).unwrap();
        let group = Group::import(&members, &quiet()).unwrap();
        let device = group.volume(Role::Data).unwrap();
        let content = fill(&mut Xoshiro256PlusPlus::seed_from_u64(1), 4096);
        (0..64).for_each(|at| device.write_at(&content, at * 4096).unwrap());
        assert_eq!(device.discard(4 * 4096, 40 * 4096).unwrap(), taken, "{shape:?} {keeping}");
        for at in 0..64 {
            device.read_at(&mut read, at * 4096).unwrap();
            let is_zero = read.iter().all(|byte| *byte == 0);
            assert_eq!(is_zero, taken && (4..44).contains(&at), "{shape:?} {keeping}: block {at}");
        }
        let report = group.scrub(false, &Undecided, &mut |_| ()).unwrap();
        assert!(report.differences.is_empty(), "{shape:?} {keeping}: {:?}", report.differences);
        assert_eq!(
            device.discard(0, 4096).unwrap(),
            taken && keeping == 0,
            "it is not asked again"
        );
    }
}
