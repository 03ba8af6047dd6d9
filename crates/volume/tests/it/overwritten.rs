//! Members that something else writes over while the group is open: noticed by their labels at
//! every moment, never copied from, and filled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, HookedDevice, QueueOptions, ReadFault, Request,
    SimulatedDevice, SimulatedOptions, Trigger,
};
use bedplate_volume::{
    ErrorKind, Group, ImportOptions, Label, MemberState, NewGroup, PageArbiter, Role, Shape, Target,
};

use super::fixture::{MEMBER_BYTES, new_group, quiet, stamped};
use super::overwriting::{
    CHUNK, Doomed, NEVER, SHAPES, Scene, UNIT, With, check, check_from, clean, data, fill, state,
    sweep,
};

/// S-130: while the volume is idle.
#[test]
fn s_130_a_member_that_was_overwritten_leaves_and_is_filled_again() {
    for (shape, members) in SHAPES {
        for with in [With::Zeros, With::OlderCopy] {
            let (scene, context) = (Scene::of(shape, members, 0, 1), format!("{shape:?} {with:?}"));
            let group = scene.open();
            fill(&*data(&group), 1);
            group.check_members().unwrap();
            assert_eq!(
                (state(&group, 1), group.failures()),
                (MemberState::Active, vec![None; members]),
                "{context}"
            );
            scene.overwrite(1, with);
            group.check_members().unwrap();
            let why = group.failures()[1].clone().unwrap();
            assert!(
                state(&group, 1) == MemberState::Failed
                    && why.contains("member1")
                    && why.contains("label"),
                "{context}: {why}"
            );
            let reads = |group: &Group| group.statistics()[1].as_ref().unwrap().reads.operations;
            let before = reads(&group);
            check(&group, 1, &context);
            assert_eq!(reads(&group), before, "{context}: it is not read any more");
            fill(&*data(&group), 2);
            drop(group);
            let label =
                Label::read(&*scene.fixture.members[1]).ok().map(|label| label.config.event);
            assert!(label.is_none_or(|event| event == 1), "{context}: it gets no label");
            let found = if with == With::Zeros { scene.all_but(1) } else { scene.devices.clone() };
            let group = Group::import(&found, &quiet()).unwrap();
            check(&group, 2, &context);
            if with == With::Zeros {
                group.replace(1, &scene.devices[1]).unwrap();
            }
            group.sync().unwrap();
            assert_eq!(state(&group, 1), MemberState::Active, "{context}");
            clean(&group, &context);
            drop(group);
            check(&Group::import(&scene.devices, &quiet()).unwrap(), 2, &context);
        }
    }
}

/// S-130: an older copy of a member that had left because it was overwritten tells nothing of what
/// it missed, so all of it is copied.
#[test]
fn s_130_what_was_put_back_after_it_was_overwritten_is_filled_wholly() {
    let scene = Scene::of(Shape::Mirror, 2, 0, 1);
    let group = scene.open();
    let mut copy = AlignedBuf::zeroed(MEMBER_BYTES as usize);
    scene.fixture.members[1].read_at(&mut copy, 0).unwrap();
    fill(&*data(&group), 1);
    // Nothing of what was written is in the dirty region logs any more.
    while group.clean_up().unwrap() > 0 {}
    group.clean_up().unwrap();
    scene.overwrite(1, With::Zeros);
    group.check_members().unwrap();
    drop(group);
    scene.fixture.members[1].write_at(&copy, 0).unwrap();
    let group = Group::import(&scene.devices, &quiet()).unwrap();
    group.sync().unwrap();
    clean(&group, "put back");
    check(&group, 1, "put back");
}

/// S-130, I-GRP-2: the group is closed before anything else looks at the label; so it was that the
/// member got a new one, and was read from.
#[test]
fn s_130_no_label_is_written_over_what_is_not_the_last_one() {
    for (shape, members) in SHAPES {
        for with in [With::Zeros, With::OlderCopy] {
            let (scene, context) = (Scene::of(shape, members, 0, 1), format!("{shape:?} {with:?}"));
            let group = scene.open();
            fill(&*data(&group), 1);
            scene.overwrite(1, with);
            group.close().unwrap();
            drop(group);
            let label =
                Label::read(&*scene.fixture.members[1]).ok().map(|label| label.config.event);
            assert_eq!(label, (with == With::OlderCopy).then_some(1), "{context}");
            let group = Group::import(&scene.all_but(1), &quiet()).unwrap();
            assert_eq!(state(&group, 1), MemberState::Failed, "{context}");
            check(&group, 1, &context);
        }
    }
}

/// S-130: while the volume is written to, by calls and by a queue. What a mirror holds is right
/// afterwards; so are the rows of a RAID-5 that were not written between the overwriting and its
/// notice.
#[test]
fn s_130_a_member_that_is_overwritten_while_it_is_written_costs_no_copy() {
    for (shape, members) in SHAPES {
        let states = sweep(3, |after| {
            let scene = Scene::of(shape, members, 0, 1);
            let context = format!("{shape:?}, overwritten after {after}");
            let group = scene.open();
            let (device, half) = (
                data(&group),
                if shape == Shape::Raid5 { 1 << 20 } else { data(&group).size_bytes() },
            );
            fill(&*device, 1);
            scene.left.store(after, Ordering::Relaxed);
            let mut queue = device.queue(&QueueOptions::default()).unwrap();
            for at in (0..half).step_by(CHUNK) {
                let (len, buf) = (
                    CHUNK.min((half - at) as usize),
                    stamped(at, CHUNK.min((half - at) as usize), 2),
                );
                if (at / CHUNK as u64).is_multiple_of(2) {
                    device.write_at(&buf, at).unwrap();
                } else {
                    let first = bedplate_block::Segment { offset: at, len: len as u32 };
                    queue
                        .push(Request {
                            token: 0,
                            kind: bedplate_block::RequestKind::Write,
                            buf: Some(buf),
                            first,
                            rest: Vec::new(),
                        })
                        .unwrap();
                    let mut done = Vec::new();
                    queue.complete(1, &mut done).unwrap();
                    done.remove(0).result.unwrap();
                }
            }
            device.flush().unwrap();
            let left = scene.left.swap(NEVER, Ordering::Relaxed);
            group.check_members().unwrap();
            assert_eq!(state(&group, 1) == MemberState::Failed, left == 0, "{context}");
            if half < device.size_bytes() {
                check_from(&*device, half, 1, &context);
            } else {
                check(&group, 2, &context);
            }
            left
        });
        assert!(states > 2, "{shape:?}: {states}");
    }
}

/// S-130: while the volume is read.
#[test]
fn s_130_once_it_was_noticed_nothing_is_read_from_what_was_overwritten() {
    for (shape, members) in SHAPES {
        sweep(5, |after| {
            let scene = Scene::of(shape, members, 0, 1);
            let group = scene.open();
            let device = data(&group);
            fill(&*device, 1);
            scene.left.store(after, Ordering::Relaxed);
            let mut buf = AlignedBuf::zeroed(CHUNK);
            (0..device.size_bytes() - CHUNK as u64)
                .step_by(CHUNK)
                .for_each(|at| device.read_at(&mut buf, at).unwrap());
            let left = scene.left.swap(NEVER, Ordering::Relaxed);
            group.check_members().unwrap();
            check(&group, 1, &format!("{shape:?}, overwritten after {after}"));
            left
        });
    }
}

/// Says that the copy on the member that is overwritten is right: the arbiter does not know either.
struct Misled;

impl PageArbiter for Misled {
    fn judge(
        &self,
        _: Role,
        _: std::ops::Range<u64>,
        copies: usize,
        _: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        Some(1.min(copies - 1))
    }
}

/// S-130: while copies are compared, nothing is made good from it, and nothing that it holds is
/// told as a difference.
#[test]
fn s_130_a_scrub_does_not_compare_with_what_was_overwritten() {
    for (shape, members) in SHAPES {
        let states = sweep(7, |after| {
            let (scene, context) =
                (Scene::of(shape, members, 0, 1), format!("{shape:?}, overwritten after {after}"));
            let group = scene.open();
            fill(&*data(&group), 1);
            scene.left.store(after, Ordering::Relaxed);
            let report = group.scrub(true, &Misled, &mut |_| ()).unwrap();
            let left = scene.left.swap(NEVER, Ordering::Relaxed);
            assert_eq!(report.differences, [], "{context}");
            group.check_members().unwrap();
            check(&group, 1, &context);
            left
        });
        assert!(states > 2, "{shape:?}: {states}");
    }
}

/// S-130: while what a crash left is made to agree, no copy is written over from it.
#[test]
fn s_130_after_a_crash_nothing_is_made_to_agree_with_what_was_overwritten() {
    for (shape, members) in SHAPES {
        let scene = Scene::of(shape, members, 0, 0);
        let group = scene.open();
        fill(&*data(&group), 1);
        // Every region is in doubt, and every copy is right.
        let images: Vec<_> = scene.fixture.members.iter().map(|member| member.snapshot()).collect();
        drop(group);
        sweep(5, |after| {
            let members: Vec<_> = images
                .iter()
                .map(|image| SimulatedDevice::over(image, &SimulatedOptions::default()))
                .collect();
            let left = Arc::new(AtomicUsize::new(NEVER));
            let mut devices: Vec<Arc<dyn BlockDevice>> =
                members.iter().map(|member| Arc::clone(member) as _).collect();
            let doomed = Doomed { below: Arc::clone(&members[0]), left: Arc::clone(&left) };
            devices[0] =
                HookedDevice::named("member0".into(), Arc::clone(&members[0]) as _, doomed);
            let group = Group::import(&devices, &quiet()).unwrap();
            left.store(after, Ordering::Relaxed);
            group.sync().unwrap();
            let left = left.swap(NEVER, Ordering::Relaxed);
            let context = format!("{shape:?}, overwritten after {after}");
            group.check_members().unwrap();
            assert_eq!(state(&group, 0) == MemberState::Failed, left == 0, "{context}");
            check(&group, 1, &context);
            left
        });
    }
}

/// S-130: what is filled from a member that is overwritten meanwhile is filled again from another
/// before it counts.
#[test]
fn s_130_what_was_copied_from_an_overwritten_member_is_copied_again() {
    let states = sweep(5, |after| {
        let (scene, context) =
            (Scene::of(Shape::Mirror, 3, 1, 0), format!("overwritten after {after}"));
        let group = scene.open();
        fill(&*data(&group), 1);
        scene.fixture.members[2].die();
        data(&group).write_at(&stamped(0, 512, 1), 0).unwrap();
        scene.left.store(after, Ordering::Relaxed);
        // The spare is filled from the first copy.
        while group.sync().is_err() {}
        let left = scene.left.swap(NEVER, Ordering::Relaxed);
        group.check_members().unwrap();
        group.sync().unwrap();
        // The spare stands in for whichever left first.
        let active = (0..3).filter(|at| state(&group, *at) == MemberState::Active).count();
        assert_eq!(active, if left == 0 { 2 } else { 3 }, "{context}");
        check(&group, 1, &context);
        clean(&group, &context);
        left
    });
    assert!(states > 5, "{states}");
}

/// S-130: while a volume gets another layout.
#[test]
fn s_130_a_relayout_copies_nothing_from_what_was_overwritten() {
    let to = Target { step_bytes_max: Some(256 << 10), ..Target::default() };
    let ways = [
        (Shape::StripeMirror, 4, Target { unit_bytes: Some(32 << 10), ..to }),
        (Shape::Raid5, 4, Target { unit_bytes: Some(32 << 10), ..to }),
        (Shape::Mirror, 3, Target { shape: Some(Shape::Mirror), plexes: Some(2), ..to }),
    ];
    for (shape, members, target) in ways {
        sweep(11, |after| {
            let (scene, context) =
                (Scene::of(shape, members, 0, 0), format!("{shape:?}, overwritten after {after}"));
            let group = scene.open();
            fill(&*data(&group), 1);
            group.relayout(Role::Data, &target, 0).unwrap();
            scene.left.store(after, Ordering::Relaxed);
            group.run_relayout(&mut |_| true).unwrap_or_else(|error| panic!("{context}: {error}"));
            let left = scene.left.swap(NEVER, Ordering::Relaxed);
            group.check_members().unwrap();
            check(&group, 1, &context);
            left
        });
    }
}

/// S-130: where nothing has another copy, what was overwritten is an error, and so is every write.
#[test]
fn s_130_without_another_copy_it_is_an_error_that_names_the_member() {
    for (shape, members) in [(Shape::Stripe, 2), (Shape::Concat, 2), (Shape::Mirror, 2)] {
        let (scene, context) = (Scene::of(shape, members, 0, 1), format!("{shape:?}"));
        let group = scene.open();
        let device = data(&group);
        fill(&*device, 1);
        let event = group.config().event;
        scene.overwrite(1, With::Zeros);
        if shape == Shape::Mirror {
            scene.overwrite(0, With::Zeros);
        }
        let error = group.check_members().unwrap_err();
        assert!(error.message.contains("member1") || shape == Shape::Mirror, "{context}: {error}");
        assert!(group.failures()[1].is_some(), "{context}");
        let (good, bad) =
            (0..device.size_bytes()).step_by(UNIT).fold((false, false), |(good, bad), at| {
                let read = device.read_at(&mut AlignedBuf::zeroed(512), at);
                read.as_ref().err().into_iter().for_each(|error| {
                    assert!(error.detail.contains("member1"), "{context}: {error}");
                });
                (good || read.is_ok(), bad || read.is_err())
            });
        assert_eq!(
            (good, bad),
            (shape != Shape::Mirror, true),
            "{context}: the other member is read as ever"
        );
        assert!(
            device.write_at(&stamped(0, 512, 2), 0).is_err() && device.flush().is_err(),
            "{context}"
        );
        assert!(
            group.set_foreground(200).is_err() && group.config().event >= event,
            "{context}: no label can say anything"
        );
        let error = group.close().unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Broken | ErrorKind::Device), "{context}: {error}");
        drop((device, group));
        assert_eq!(
            Label::read(&*scene.fixture.members[1]).unwrap_err().kind,
            ErrorKind::NotAMember,
            "{context}"
        );
    }
}

/// S-130: a spare takes the place, and one that was overwritten itself takes none.
#[test]
fn s_130_a_spare_stands_in_unless_it_was_overwritten_too() {
    for victim in [1, 2] {
        let scene = Scene::of(Shape::Mirror, 2, 2, victim);
        let group = scene.open();
        fill(&*data(&group), 1);
        scene.overwrite(victim, With::Zeros);
        if victim == 2 {
            scene.fixture.members[1].die();
        }
        group.sync().unwrap();
        let config = group.config();
        assert_eq!(
            (config.members[1].state, config.members[1].path.as_str()),
            (MemberState::Active, if victim == 1 { "member2" } else { "member3" })
        );
        check(&group, 1, "with the spare");
        clean(&group, "with the spare");
    }
}

/// S-130: with a host goes what lies on it.
#[test]
fn s_130_with_a_host_that_is_overwritten_goes_what_lies_on_it() {
    let roomy = 2 * MEMBER_BYTES + (2 << 20);
    let new = |devices| NewGroup {
        reserve_bytes: roomy - MEMBER_BYTES,
        ..new_group(Shape::StripeMirror, 2, devices, Vec::new())
    };
    let scene = Scene::new(new, &[roomy; 4], 2);
    let group = scene.open();
    fill(&*data(&group), 1);
    scene.fixture.members[1].die();
    fill(&*data(&group), 2);
    group.sync().unwrap();
    let config = group.config();
    let host = config.members[1]
        .relocated
        .as_ref()
        .map(|relocated| config.index_of(relocated.pieces[0].host).unwrap())
        .unwrap();
    scene.fixture.members[host].write_zeroes(0, roomy).unwrap();
    group.check_members().unwrap();
    assert_eq!((state(&group, 1), state(&group, host)), (MemberState::Failed, MemberState::Failed));
    check(&group, 2, "without the host");
}

/// S-130: by itself, from the background thread.
#[test]
fn s_130_the_background_thread_notices_by_itself() {
    let scene = Scene::of(Shape::Mirror, 2, 0, 1);
    let group = Group::import(&scene.devices, &ImportOptions::default()).unwrap();
    data(&group).write_at(&stamped(0, 512, 1), 0).unwrap();
    scene.overwrite(1, With::Zeros);
    let start = Instant::now();
    while state(&group, 1) != MemberState::Failed {
        assert!(start.elapsed() < Duration::from_secs(300), "nothing noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(group.failures()[0], None);
}

/// S-130: a group that is only looked at is not written to, and does not read what was overwritten
/// either.
#[test]
fn s_130_a_group_that_is_open_for_reading_only_notices_when_it_is_asked() {
    let scene = Scene::of(Shape::Mirror, 2, 0, 1);
    let group = scene.open();
    fill(&*data(&group), 1);
    drop(group);
    let group =
        Group::import(&scene.devices, &ImportOptions { read_only: true, ..quiet() }).unwrap();
    scene.overwrite(1, With::Zeros);
    let operations = scene.fixture.members[0].operation_count();
    group.check_members().unwrap();
    assert!(state(&group, 1) == MemberState::Failed && group.failures()[1].is_some());
    check(&group, 1, "read-only");
    assert_eq!(scene.fixture.members[0].operation_count(), operations, "nothing was written");
}

/// S-130: a member that does not answer leaves as one that fails, while the volume is not used;
/// where the group is not whole without it nothing is latched, because it may answer again.
#[test]
fn s_130_a_member_whose_label_cannot_be_read_leaves_if_the_group_is_whole_without_it() {
    for shape in [Shape::Mirror, Shape::Stripe] {
        let scene = Scene::of(shape, 2, 0, 1);
        let group = scene.open();
        fill(&*data(&group), 1);
        let unreadable =
            FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Always).within(0..2 << 20);
        scene.fixture.members[1].inject(unreadable);
        group.check_members().unwrap();
        let failed = shape == Shape::Mirror;
        assert_eq!(
            (state(&group, 1) == MemberState::Failed, group.failures()[1].is_some()),
            (failed, failed),
            "{shape:?}"
        );
        fill(&*data(&group), 2);
        check(&group, 2, &format!("{shape:?}"));
        drop(group);
        scene.fixture.members[1].clear_faults();
        let group = scene.open();
        assert_eq!(state(&group, 1), MemberState::Active, "{shape:?}: it is back");
        check(&group, 2, &format!("{shape:?}, opened again"));
    }
}
