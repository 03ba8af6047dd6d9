//! Members that fail, come back, are replaced: nothing of it reaches the caller.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, FlushFault, QueueOptions, ReadFault, Request,
    RequestKind, Segment, Trigger, WriteFault,
};
use bedplate_volume::{ErrorKind, Group, ImportOptions, MemberState, Role, Shape};

use super::fixture::{Fixture, REGION_BYTES, quiet, stamp_of, stamped};

fn states(group: &Group) -> Vec<MemberState> {
    group.config().members.iter().map(|member| member.state).collect()
}

fn check(device: &dyn BlockDevice, expected: &[(u64, u64)]) {
    for (offset, number) in expected {
        let mut buf = AlignedBuf::zeroed(4096);
        device.read_at(&mut buf, *offset).unwrap();
        for (at, sector) in buf.chunks(512).enumerate() {
            assert_eq!(stamp_of(sector, offset + 512 * at as u64), *number, "at {offset}");
        }
    }
}

/// S-60
#[test]
fn a_member_that_fails_a_write_a_flush_or_a_queued_request_leaves_without_an_error() {
    for way in 0..5 {
        for victim in 0..2 {
            let fixture = Fixture::new(2, 10 + way);
            fixture.create(Shape::Mirror, 2, 0);
            let group = fixture.import();
            let device = group.volume(Role::Data).unwrap();
            device.write_at(&stamped(0, 4096, 1), 0).unwrap();
            let bad = &fixture.members[victim];
            match way {
                0 => bad.inject(
                    FaultRule::new(Fault::Write(WriteFault::Fail), Trigger::Next(1))
                        .within(4 << 20..5 << 20),
                ),
                1 => bad.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1))),
                _ => bad.die(),
            }
            if way == 3 || way == 4 {
                let mut queue = device.queue(&QueueOptions::default()).unwrap();
                let first = Segment { offset: 4096, len: 4096 };
                queue
                    .push(Request {
                        token: 1,
                        kind: RequestKind::Write,
                        buf: Some(stamped(4096, 4096, 2)),
                        first,
                        rest: Vec::new(),
                    })
                    .unwrap();
                if way == 4 {
                    queue
                        .push(Request {
                            token: 2,
                            kind: RequestKind::Read,
                            buf: Some(AlignedBuf::zeroed(4096)),
                            first: Segment { offset: 0, len: 4096 },
                            rest: Vec::new(),
                        })
                        .unwrap();
                }
                let mut done = Vec::new();
                while queue.in_flight() > 0 {
                    queue.complete(1, &mut done).unwrap();
                }
                assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
                queue
                    .push(Request {
                        token: 3,
                        kind: RequestKind::Flush,
                        buf: None,
                        first: Segment { offset: 0, len: 0 },
                        rest: Vec::new(),
                    })
                    .unwrap();
                queue.complete(1, &mut done).unwrap();
                assert!(done.last().unwrap().result.is_ok());
            } else {
                device.write_at(&stamped(4096, 4096, 2), 4096).unwrap();
                device.flush().unwrap();
            }
            assert_eq!(states(&group)[victim], MemberState::Failed, "way {way}");
            assert_eq!(states(&group)[1 - victim], MemberState::Active);
            check(&*device, &[(0, 1), (4096, 2)]);
        }
    }
}

#[test]
fn a_sector_that_cannot_be_read_is_made_good_from_the_other_copy() {
    let fixture = Fixture::new(2, 20);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    fixture.members[0].inject(FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1)));
    check(&*device, &[(0, 1)]);
    let statistics = group.statistics();
    assert_eq!(
        (statistics[0].as_ref().unwrap().corrected, statistics[0].as_ref().unwrap().reads.errors),
        (1, 1)
    );
    assert_eq!(states(&group), [MemberState::Active; 2]);
    group.reset_statistics();
    assert_eq!(group.statistics()[0].as_ref().unwrap().corrected, 0);
}

#[test]
fn when_the_last_copy_fails_the_caller_is_told_who_failed_and_nothing_is_called_durable_again() {
    let fixture = Fixture::new(2, 21);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    fixture.members[0].die();
    device.write_at(&stamped(0, 4096, 2), 0).unwrap();
    fixture.members[1].die();
    let error = device.write_at(&stamped(0, 4096, 3), 0).unwrap_err();
    assert!(error.detail.contains("member0") && error.detail.contains("member1"), "{error}");
    assert_eq!(device.flush().unwrap_err().detail, error.detail);
    assert!(device.read_at(&mut AlignedBuf::zeroed(512), 0).is_err());
}

#[test]
fn a_returned_member_catches_up_by_copying_only_what_it_missed() {
    for shape in [Shape::Mirror, Shape::StripeMirror, Shape::MirrorStripe] {
        let fixture = Fixture::new(4, 22);
        fixture.create(shape, 2, 0);
        {
            let device = fixture.import().volume(Role::Data).unwrap();
            (0..16).for_each(|n| {
                device.write_at(&stamped(n * REGION_BYTES, 4096, 1), n * REGION_BYTES).unwrap();
            });
        }
        let away = |index: usize| {
            (0..4).filter(|at| *at != index).map(|at| fixture.device(at)).collect::<Vec<_>>()
        };
        {
            let group =
                Group::import(&away(1), &ImportOptions { degraded: true, ..quiet() }).unwrap();
            let device = group.volume(Role::Data).unwrap();
            device.write_at(&stamped(0, 4096, 2), 0).unwrap();
            device.write_at(&stamped(5 * REGION_BYTES, 4096, 2), 5 * REGION_BYTES).unwrap();
        }
        // Again without it: what it misses adds up.
        {
            let group = Group::import(&away(1), &quiet()).unwrap();
            let device = group.volume(Role::Data).unwrap();
            device.write_at(&stamped(7 * REGION_BYTES, 4096, 3), 7 * REGION_BYTES).unwrap();
        }
        fixture.make_all_durable();
        let group = fixture.import();
        assert_eq!(states(&group)[1], MemberState::Stale);
        assert_eq!(group.progress().pending_bytes, 3 * REGION_BYTES, "{shape:?}");
        let device = group.volume(Role::Data).unwrap();
        device.write_at(&stamped(9 * REGION_BYTES, 4096, 4), 9 * REGION_BYTES).unwrap();
        group.sync().unwrap();
        assert_eq!(states(&group), [MemberState::Active; 4]);
        let copied = group.statistics()[1].as_ref().unwrap().writes.bytes;
        assert!(copied <= 3 * REGION_BYTES + 4096, "{shape:?} copied {copied}");
        // Now the others may go.
        drop((device, group));
        let lone = Group::import(
            &[fixture.device(1), fixture.device(if shape == Shape::MirrorStripe { 0 } else { 2 })],
            &ImportOptions { degraded: true, ..quiet() },
        );
        let device = lone.unwrap().volume(Role::Data).unwrap();
        check(
            &*device,
            &[
                (0, 2),
                (REGION_BYTES, 1),
                (5 * REGION_BYTES, 2),
                (7 * REGION_BYTES, 3),
                (9 * REGION_BYTES, 4),
            ],
        );
    }
}

#[test]
fn a_spare_takes_over_by_itself_and_holds_everything_in_the_end() {
    for shape in [Shape::Mirror, Shape::StripeMirror, Shape::MirrorStripe] {
        let fixture = Fixture::new(5, 23);
        fixture.create(shape, 2, 1);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let size = device.size_bytes();
        (0..size / 4096)
            .for_each(|n| device.write_at(&stamped(n * 4096, 4096, n + 1), n * 4096).unwrap());
        fixture.members[1].die();
        device.write_at(&stamped(4096, 4096, 999), 4096).unwrap();
        device.write_at(&stamped(20_480, 4096, 998), 20_480).unwrap();
        device.flush().unwrap();
        let failed = group
            .config()
            .members
            .iter()
            .filter(|member| member.state == MemberState::Failed)
            .count();
        if failed == 0 {
            continue; // The writes did not touch it.
        }
        group.sync().unwrap();
        let config = group.config();
        assert_eq!(
            (config.members[1].path.as_str(), config.members[1].state),
            ("member4", MemberState::Active),
            "{shape:?}"
        );
        assert_eq!(
            (config.members[4].path.as_str(), config.members[4].state),
            ("member1", MemberState::Failed)
        );
        // The other copies of what the spare took over die too.
        drop((device, group));
        let kept: &[usize] = if shape == Shape::MirrorStripe {
            &[0, 4]
        } else if shape == Shape::Mirror {
            &[4]
        } else {
            &[4, 2]
        };
        let group = Group::import(
            &kept.iter().map(|at| fixture.device(*at)).collect::<Vec<_>>(),
            &ImportOptions { degraded: true, ..quiet() },
        )
        .unwrap();
        let device = group.volume(Role::Data).unwrap();
        let expected: Vec<(u64, u64)> = (0..size / 4096)
            .map(|n| {
                (
                    n * 4096,
                    match n {
                        1 => 999,
                        5 => 998,
                        n => n + 1,
                    },
                )
            })
            .collect();
        check(&*device, &expected);
    }
}

#[test]
fn a_member_is_replaced_while_the_volume_is_in_use() {
    let fixture = Fixture::new(3, 24);
    fixture.create(Shape::Mirror, 2, 1);
    // Taken back from the group: a device of its own.
    bedplate_volume::Label::erase(&*fixture.device(2)).unwrap();
    let group = Group::import(&[fixture.device(0), fixture.device(1)], &quiet()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    group.replace(0, &fixture.device(2)).unwrap();
    device.write_at(&stamped(8192, 4096, 2), 8192).unwrap();
    assert_eq!(states(&group)[0], MemberState::Stale);
    assert_eq!(
        group.replace(1, &fixture.device(0)).unwrap_err().kind,
        ErrorKind::Invalid,
        "the other copy is not whole yet"
    );
    group.sync().unwrap();
    fixture.members[1].die();
    check(&*device, &[(0, 1), (8192, 2)]);
    assert_eq!(group.config().members[0].path, "member2");
    let error = group.remove(1).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("member1"), "{error}");
    group.add_spare(&fixture.device(0)).unwrap();
    group.remove(3).unwrap();
    group.remove(2).unwrap();
    assert_eq!(
        bedplate_volume::Label::read(&*fixture.device(0)).unwrap_err().kind,
        ErrorKind::NotAMember
    );
    assert_eq!(group.config().members.len(), 2);
}

#[test]
fn a_member_that_dies_during_its_rebuild_leaves_again() {
    let fixture = Fixture::new(3, 25);
    fixture.create(Shape::Mirror, 2, 1);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    fixture.members[0].die();
    device.write_at(&stamped(0, 4096, 2), 0).unwrap();
    let at = fixture.members[2].operation_count();
    fixture.members[2].die_after(at + 12);
    group.sync().unwrap();
    assert!(!states(&group).contains(&MemberState::Stale), "{:?}", states(&group));
    check(&*device, &[(0, 2)]);
    device.write_at(&stamped(0, 4096, 3), 0).unwrap();
    device.flush().unwrap();
    check(&*device, &[(0, 3)]);
}

/// S-63: a block that no member can read holds up no other, and is copied once it can be read.
#[test]
fn a_bad_block_during_a_rebuild_stops_the_copy_of_its_region_alone() {
    const BAD: u64 = 3 * REGION_BYTES + 8192;
    for (shape, count, readable) in
        [(Shape::Mirror, 2, false), (Shape::Mirror, 3, true), (Shape::Raid5, 4, false)]
    {
        let fixture = Fixture::new(count + 1, 27);
        let mut devices = fixture.devices();
        let new = devices.pop().unwrap();
        bedplate_volume::create(&super::fixture::new_group(shape, 2, devices.clone(), Vec::new()))
            .unwrap();
        let group = Group::import(&devices, &quiet()).unwrap();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        let expected: Vec<(u64, u64)> =
            (0..device.size_bytes() / 4096).map(|n| (n * 4096, n + 1)).collect();
        expected
            .iter()
            .for_each(|(at, number)| device.write_at(&stamped(*at, 4096, *number), *at).unwrap());
        device.flush().unwrap();
        // The place on the first member that holds this address.
        let copy = group.config().volumes[0].layout.locate(BAD).copies()[0];
        let (owner, replaced) = (usize::from(copy.member), (usize::from(copy.member) + 1) % count);
        fixture.members[owner].inject(
            FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Always)
                .within(copy.offset..copy.offset + 512),
        );
        group.replace(replaced, &new).unwrap();
        let synced = group.sync();
        if readable {
            synced.unwrap();
            assert_eq!(
                states(&group)[replaced],
                MemberState::Active,
                "{shape:?}: a third copy is as good"
            );
            check(&*device, &expected);
            continue;
        }
        let error = synced.unwrap_err();
        assert!(
            error.to_string().contains("injected") || error.to_string().contains("simulated"),
            "{shape:?}: {error}"
        );
        // A row may begin in one region and end in the next; what its stale member holds follows
        // from all others, the unreadable one among them.
        let (left, near) = if shape == Shape::Raid5 {
            (2 * REGION_BYTES, 2 * REGION_BYTES)
        } else {
            (REGION_BYTES, 1)
        };
        assert!(
            (1..=left).contains(&group.progress().pending_bytes),
            "{shape:?}: {:?}",
            group.progress()
        );
        assert_eq!(states(&group)[replaced], MemberState::Stale);
        let others: Vec<(u64, u64)> = expected
            .iter()
            .copied()
            .filter(|(at, _)| at.abs_diff(BAD / 4096 * 4096) >= near)
            .collect();
        check(&*device, &others);
        fixture.members[owner].clear_faults();
        group.sync().unwrap();
        assert_eq!(
            (states(&group)[replaced], group.progress().pending_bytes),
            (MemberState::Active, 0)
        );
        fixture.members[owner].die();
        check(&*device, &expected);
    }
}

#[test]
fn the_background_thread_rebuilds_while_the_volume_is_in_use() {
    let devices: Vec<Arc<dyn BlockDevice>> = Fixture::new(3, 26).devices();
    bedplate_volume::create(&super::fixture::new_group(
        Shape::Mirror,
        2,
        devices[..2].to_vec(),
        Vec::new(),
    ))
    .unwrap();
    let group = Group::import(&devices[..2], &ImportOptions::default()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    (0..16).for_each(|n| {
        device.write_at(&stamped(n * REGION_BYTES, 4096, 1), n * REGION_BYTES).unwrap();
    });
    group.replace(1, &Arc::clone(&devices[2])).unwrap();
    let start = std::time::Instant::now();
    let mut round = 1;
    while states(&group) != [MemberState::Active; 2] {
        round += 1;
        (0..16).for_each(|n| {
            device.write_at(&stamped(n * REGION_BYTES, 4096, round), n * REGION_BYTES).unwrap();
        });
        assert!(start.elapsed().as_secs() < 120, "the rebuild does not end");
    }
    drop((device, group));
    let group = Group::import(&devices[2..], &ImportOptions { degraded: true, ..quiet() }).unwrap();
    let expected: Vec<(u64, u64)> = (0..16).map(|n| (n * REGION_BYTES, round)).collect();
    check(&*group.volume(Role::Data).unwrap(), &expected);
}

/// I-VQU-1: what stays counted into a region keeps its bit in the dirty region log for ever.
#[test]
fn i_vqu_1_a_queued_write_is_counted_out_of_every_region_that_it_touched() {
    let fixture = Fixture::new(2, 29);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    for (token, at) in [(1, 0), (2, REGION_BYTES - 2048), (3, 3 * REGION_BYTES)] {
        let first = Segment { offset: at, len: 4096 };
        queue
            .push(Request {
                token,
                kind: RequestKind::Write,
                buf: Some(stamped(at, 4096, token)),
                first,
                rest: Vec::new(),
            })
            .unwrap();
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(1, &mut done).unwrap();
    }
    assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
    device.flush().unwrap();
    assert_eq!(group.clean_up().unwrap(), 0, "the first look finds them touched");
    assert_eq!(group.clean_up().unwrap(), 3, "regions 0, 1 and 3");
}
