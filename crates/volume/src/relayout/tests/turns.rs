//! Pauses, turns, new openings and threads that write meanwhile, at any moment; and what is
//! refused.

use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{QueueOptions, RequestKind, Segment};
use rand::SeedableRng;

use super::*;
use crate::{ErrorKind, RelayoutState};

/// S-91
#[test]
fn s_91_a_relayout_pauses_goes_on_and_turns_at_any_step() {
    let (mut turns, mut pauses, mut openings) = (0, 0, 0);
    for (at, transition) in transitions().iter().enumerate() {
        for seed in 0..6 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(700 + seed);
            let (mut scene, mut group) = Scene::begin(transition, 100 * at as u64 + seed);
            let before = group.config().volumes[0].layout.clone();
            let (mut steps, mut forward) = (0, true);
            while group.relayout_progress().is_some() {
                steps += 1;
                match rng.random_range(0..10) {
                    0 | 1 if steps < 60 => {
                        group.reverse_relayout().unwrap();
                        (forward, turns) = (!forward, turns + 1);
                    }
                    2 if steps < 60 => {
                        group.pause_relayout(true).unwrap();
                        let moved = group.relayout_progress().unwrap().moved_bytes;
                        group.run_relayout(&mut |_| true).unwrap();
                        let progress = group.relayout_progress();
                        assert!(
                            progress.is_none_or(|now| now.state == RelayoutState::Paused
                                && now.moved_bytes == moved)
                        );
                        if group.relayout_progress().is_some() {
                            group.pause_relayout(false).unwrap();
                        }
                        pauses += 1;
                    }
                    3 => {
                        drop(group);
                        group = scene.fixture.import();
                        openings += 1;
                    }
                    4..7 => scene.work(&group, &mut rng),
                    _ => group.run_relayout(&mut |_| false).unwrap(),
                }
            }
            let device = group.volume(Role::Data).unwrap();
            scene.check(&*device, "in the end");
            let layout = &group.config().volumes[0].layout;
            assert_eq!(
                layout == &before,
                !forward,
                "{}: it ended where it went last",
                transition.name
            );
            assert_eq!(device.size_bytes(), layout.size_bytes());
            group.sync().unwrap();
            let wrong = group.scrub(false, &crate::Undecided, &mut |_| ()).unwrap().differences;
            assert_eq!(wrong.iter().find(|one| one.range.start < scene.used_bytes), None);
        }
    }
    println!("relayouts: {turns} turns, {pauses} pauses, {openings} more openings, 0 violations");
}

/// S-94: threads and queues write all the time while the background thread moves everything.
#[test]
fn s_94_nobody_notices_a_relayout_in_the_background() {
    let columns = |columns| Target {
        columns: Some(columns),
        step_bytes_max: Some(STEP),
        ..Target::default()
    };
    unnoticed(Shape::Stripe, 2, 1, Target { unit_bytes: Some(4096), ..columns(3) });
    unnoticed(
        Shape::Concat,
        2,
        0,
        Target { shape: Some(Shape::Stripe), unit_bytes: Some(4096), ..columns(2) },
    );
}

/// S-89, S-94: as that, with rows of a RAID-5 on one side or on both. Power cuts, deaths and turns
/// of all kinds are those of S-90 to S-92.
#[test]
fn s_89_nobody_notices_that_a_raid_5_moves() {
    let columns = |columns| Target {
        columns: Some(columns),
        step_bytes_max: Some(STEP),
        ..Target::default()
    };
    unnoticed(Shape::Raid5, 3, 1, columns(4));
    unnoticed(Shape::Stripe, 2, 1, Target { shape: Some(Shape::Raid5), ..columns(3) });
}

/// Writes through queues all the while that a volume with so many members more becomes something
/// else.
fn unnoticed(shape: Shape, members: usize, added: usize, target: Target) {
    let fixture = Fixture::new(members + added, 77);
    let devices = fixture.devices();
    crate::create(&new_group(shape, 2, devices[..members].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..members], &ImportOptions::default()).unwrap();
    devices[members..].iter().for_each(|device| group.add_member(device).unwrap());
    let device = group.volume(Role::Data).unwrap();
    let (over, parts) = (AtomicBool::new(false), device.size_bytes() / 4);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (device, over) = (&device, &over);
            scope.spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(part);
                let (mut model, mut queue) =
                    (HashMap::new(), device.queue(&QueueOptions::default()).unwrap());
                let (mut round, mut done) = (0, Vec::new());
                while !over.load(Ordering::Acquire) || round < 50 {
                    round += 1;
                    // Several at once, to places that do not meet.
                    for lane in 0..4 {
                        let offset = part * parts
                            + lane * (parts / 4)
                            + rng.random_range(0..parts / 4 / 4096) * 4096;
                        let first = Segment { offset, len: 4096 };
                        queue
                            .push(::bedplate_block::Request {
                                token: lane,
                                kind: RequestKind::Write,
                                buf: Some(stamped(offset, 4096, round)),
                                first,
                                rest: Vec::new(),
                            })
                            .unwrap();
                        model.insert(offset, round);
                    }
                    queue.complete(4, &mut done).unwrap();
                    assert!(done.drain(..).all(|completion| completion.result.is_ok()));
                    let (offset, number) =
                        model.iter().next().map(|(at, number)| (*at, *number)).unwrap();
                    let mut buf = AlignedBuf::zeroed(4096);
                    device.read_at(&mut buf, offset).unwrap();
                    assert_eq!(stamp_of(&buf[..512], offset), number);
                }
                for (offset, number) in model {
                    let mut buf = AlignedBuf::zeroed(4096);
                    device.read_at(&mut buf, offset).unwrap();
                    assert_eq!(stamp_of(&buf[3584..], offset + 3584), number, "at {offset}");
                }
            });
        }
        group.relayout(Role::Data, &target, device.size_bytes()).unwrap();
        while group.relayout_progress().is_some() {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Release);
    });
    group.sync().unwrap();
    assert_eq!(group.scrub(false, &crate::Undecided, &mut |_| ()).unwrap().differences, []);
    let layout = &group.config().volumes[0].layout;
    assert_eq!(
        (layout.children().len(), device.size_bytes()),
        (members + added, layout.size_bytes())
    );
}

/// S-93
#[test]
fn s_93_a_volume_grows_and_shrinks_and_keeps_what_is_used() {
    let fixture = Fixture::new(3, 78);
    let devices = fixture.devices();
    crate::create(&new_group(Shape::Concat, 2, devices[..1].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..1], &quiet()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 1 << 20, 1), 0).unwrap();
    let error = group.grow(Role::Data, Some(3 << 20)).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("volume add"), "{error}");
    devices[1..].iter().for_each(|device| group.add_member(device).unwrap());
    group.grow(Role::Data, None).unwrap();
    assert!(group.grow(Role::Data, Some(1 << 20)).unwrap_err().message.contains("shrink"));
    assert_eq!(
        (device.size_bytes(), group.relayout_progress()),
        (3 << 20, None),
        "nothing had to move"
    );
    device.write_at(&stamped(2 << 20, 4096, 2), 2 << 20).unwrap();
    let shrunk = Target { size_bytes: Some(2 << 20), ..Target::default() };
    let error = group.relayout(Role::Data, &shrunk, (2 << 20) + 4096).unwrap_err();
    assert!(error.message.contains("in use by the file system"), "{error}");
    group.relayout(Role::Data, &shrunk, 2 << 20).unwrap();
    assert_eq!(device.size_bytes(), 2 << 20);
    assert!(device.read_at(&mut AlignedBuf::zeroed(4096), 2 << 20).is_err());
    assert!(seen(&*device, 1 << 20).iter().all(|(_, number)| *number == 1));
    // A member that nothing lies on any more can go.
    group.remove(2).unwrap();
    assert_eq!(group.config().members.len(), 2);
    drop((device, group));
    let group = Group::import(&devices[..2], &quiet()).unwrap();
    assert_eq!(group.volume(Role::Data).unwrap().size_bytes(), 2 << 20);
}

#[test]
fn what_cannot_be_is_refused_with_the_way_that_can() {
    let refusal = |shape, members: usize, target: Target| {
        let fixture = Fixture::new(members, 79);
        fixture.create(shape, 2, 0);
        let group = fixture.import();
        let error = group
            .relayout(Role::Data, &target, group.volume(Role::Data).unwrap().size_bytes())
            .unwrap_err();
        assert_eq!((error.kind, group.relayout_progress()), (ErrorKind::Invalid, None));
        error.message
    };
    let to = Target::default();
    let raid5 = Target { shape: Some(Shape::Raid5), columns: Some(3), ..to };
    assert!(refusal(Shape::Concat, 3, raid5).contains("shrink the volume first"));
    assert!(refusal(Shape::Stripe, 2, Target { columns: Some(4), ..to }).contains("volume add"));
    assert!(
        refusal(Shape::Stripe, 3, Target { columns: Some(2), ..to })
            .contains("shrink the volume first")
    );
    assert!(
        refusal(Shape::Stripe, 2, Target { unit_bytes: Some(1000), ..to })
            .contains("multiple of 512")
    );
    assert!(refusal(Shape::Stripe, 2, Target { plexes: Some(5), ..to }).contains("1 to 4 plexes"));
    assert!(
        refusal(Shape::Mirror, 2, Target { shape: Some(Shape::Raid5), ..to }).contains("columns")
    );
    assert!(refusal(Shape::Raid5, 3, Target { columns: Some(4), ..to }).contains("volume add"));
    assert!(
        refusal(Shape::Raid5, 3, Target { plexes: Some(2), shape: Some(Shape::Raid5), ..to })
            .contains("one plex")
    );
    assert!(
        refusal(Shape::Raid5, 3, Target { unit_bytes: Some(512 << 10), ..to })
            .contains("would overwrite")
    );
    let fixture = Fixture::new(2, 79);
    fixture.create(Shape::Stripe, 2, 0);
    let group = fixture.import();
    assert!(group.pause_relayout(true).unwrap_err().message.contains("no relayout"));
    group.relayout(Role::Data, &Target { unit_bytes: Some(32 << 10), ..to }, 0).unwrap();
    assert!(group.relayout(Role::Data, &to, 0).unwrap_err().message.contains("under way"));
}
