//! Mirrors that are split into two groups, and halves that become one mirror again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceCall, Hook, HookedDevice, QueueOptions};
use bedplate_block::{MemoryDevice, Request, RequestKind, Segment};
use bedplate_volume::{ErrorKind, Group, Label, MemberState, Role, Shape, Target, Which};

use super::fixture::{Fixture, REGION_BYTES, new_group, quiet, stamp_of, stamped};

/// Shapes with their copies, members, and a half of them.
pub const SHAPES: [(Shape, usize, usize, &[usize]); 4] = [
    (Shape::Mirror, 2, 2, &[1]),
    (Shape::Mirror, 3, 3, &[0]),
    (Shape::StripeMirror, 2, 4, &[0, 3]),
    (Shape::MirrorStripe, 2, 4, &[2, 3]),
];

pub fn which(members: &[usize]) -> Vec<Which> {
    members.iter().copied().map(Which::At).collect()
}

pub fn volume(group: &Group) -> Arc<dyn BlockDevice> {
    group.volume(Role::Data).unwrap()
}

/// Writes a block in every region.
pub fn fill(group: &Group, number: u64) {
    let device = volume(group);
    for at in (0..device.size_bytes()).step_by(REGION_BYTES as usize) {
        device.write_at(&stamped(at, 8192, number), at).unwrap();
    }
    device.flush().unwrap();
}

pub fn write(group: &Group, region: u64, number: u64) {
    let at = region * REGION_BYTES;
    volume(group).write_at(&stamped(at, 4096, number), at).unwrap();
    volume(group).flush().unwrap();
}

/// Returns what the first block of every region shows.
pub fn shown(group: &Group) -> Vec<u64> {
    let device = volume(group);
    let first = |at: u64| {
        let mut buf = AlignedBuf::zeroed(512);
        device.read_at(&mut buf, at).unwrap();
        stamp_of(&buf, at)
    };
    (0..device.size_bytes()).step_by(REGION_BYTES as usize).map(first).collect()
}

pub fn others(all: usize, members: &[usize]) -> Vec<usize> {
    (0..all).filter(|index| !members.contains(index)).collect()
}

pub fn some(fixture: &Fixture, members: &[usize]) -> Vec<Arc<dyn BlockDevice>> {
    members.iter().map(|index| fixture.device(*index)).collect()
}

/// A group of a shape, filled with 1, and split; closed.
fn split(shape: Shape, copies: usize, count: usize, members: &[usize], seed: u64) -> Fixture {
    let fixture = Fixture::new(count, seed);
    fixture.create(shape, copies, 0);
    let group = fixture.import();
    fill(&group, 1);
    group.split(&which(members), "half").unwrap();
    fixture
}

fn import(devices: &[Arc<dyn BlockDevice>]) -> Group {
    Group::import(devices, &quiet()).unwrap()
}

/// S-590: both halves open without options, show what was there, and go on by themselves.
#[test]
fn s_590_a_whole_copy_becomes_a_group_of_its_own() {
    for (shape, copies, count, members) in SHAPES {
        let fixture = split(shape, copies, count, members, 90);
        let stay = others(count, members);
        let (group, half) = (import(&some(&fixture, &stay)), import(&some(&fixture, members)));
        assert_eq!((group.config().name, half.config().name), ("tank".into(), "half".into()));
        let (one, two) = (group.config(), half.config());
        assert_ne!(one.id, two.id);
        assert!(one.members.iter().all(|member| two.index_of(member.id).is_none()), "{shape:?}");
        for index in 0..count {
            assert_eq!(one.is_split_off(index), members.contains(&index), "{shape:?}");
            assert_eq!(two.is_split_off(index), stay.contains(&index), "{shape:?}");
        }
        write(&group, 2, 7);
        write(&half, 3, 8);
        let (one, two) = (shown(&group), shown(&half));
        assert!(one[2] == 7 && one[3] == 1 && two[2] == 1 && two[3] == 8, "{shape:?}");
        group.sync().unwrap();
        half.sync().unwrap();
        drop((group, half));
        let all = Group::import(&fixture.devices(), &quiet()).unwrap_err();
        assert_eq!(all.kind, ErrorKind::Foreign, "{all}");
        assert_eq!(shown(&import(&some(&fixture, &stay))), one, "{shape:?}");
        assert_eq!(shown(&import(&some(&fixture, members))), two, "{shape:?}");
    }
}

/// S-590: a spare stays with the group and takes the place of none that was split off; a member that
/// is replaced ends the split.
#[test]
fn s_590_nothing_stands_in_for_a_half() {
    let fixture = Fixture::new(3, 91);
    fixture.create(Shape::Mirror, 2, 1);
    let group = fixture.import();
    fill(&group, 1);
    let left = group.split(&which(&[1]), "half").unwrap();
    group.sync().unwrap();
    let config = group.config();
    assert_eq!(
        (config.members[1].state, config.members[2].state),
        (MemberState::Failed, MemberState::Spare),
        "the spare waits"
    );
    let half = import(&left);
    assert!(half.config().members.get(2).is_none_or(bedplate_volume::Member::is_vacant));
    let error = group
        .relayout(Role::Data, &Target { plexes: Some(2), ..Target::default() }, 0)
        .unwrap_err();
    assert!(error.message.contains("half half was split off"), "{error}");
    drop(half);
    group.remove(2).unwrap();
    group.replace(1, &fixture.device(2)).unwrap();
    group.sync().unwrap();
    assert!(group.config().split.is_none(), "no member is away any more");
    drop(group);
    let error = Group::plan_join(&some(&fixture, &[0, 2]), &some(&fixture, &[1])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Foreign, "{error}");
}

/// S-591
#[test]
fn s_591_what_is_not_one_whole_copy_is_refused_in_one_sentence() {
    let refusal = |shape, copies, count, members: &[usize], name: &str, words: &str| {
        let fixture = Fixture::new(count, 92);
        fixture.create(shape, copies, 0);
        let group = fixture.import();
        let before = group.config();
        let error = group.split(&which(members), name).unwrap_err();
        assert!(
            error.kind == ErrorKind::Invalid && error.message.contains(words),
            "{shape:?} {members:?}: {error}"
        );
        assert_eq!(group.config(), before, "nothing changed");
    };
    refusal(Shape::Mirror, 2, 2, &[0, 1], "half", "more than one whole copy");
    refusal(Shape::Mirror, 2, 2, &[], "half", "not a whole copy");
    refusal(Shape::Mirror, 2, 2, &[1], "tank", "a name of its own");
    refusal(Shape::Mirror, 2, 2, &[1], "a/b", "no name");
    refusal(Shape::StripeMirror, 2, 4, &[0, 1], "half", "not a whole copy");
    refusal(Shape::StripeMirror, 2, 4, &[0, 2, 3], "half", "leave member2 out");
    refusal(Shape::MirrorStripe, 2, 4, &[0], "half", "not a whole copy");
    refusal(Shape::Raid5, 1, 3, &[0], "half", "only mirrors can be split");
    refusal(Shape::Stripe, 1, 2, &[0], "half", "only mirrors can be split");
    refusal(Shape::Concat, 1, 1, &[0], "half", "only mirrors can be split");
}

/// S-591: out of sync, split already, a log of one copy.
#[test]
fn s_591_a_group_that_is_not_in_sync_is_not_split() {
    let fixture = Fixture::new(4, 93);
    let devices = fixture.devices();
    let mut new = new_group(Shape::Mirror, 3, devices[..3].to_vec(), Vec::new());
    new.log_members = vec![Arc::clone(&devices[3])];
    bedplate_volume::create(&new).unwrap();
    let group = Group::import(&devices, &quiet()).unwrap();
    let error = group.split(&which(&[1]), "half").unwrap_err();
    assert!(error.message.contains("the log volume is a concat"), "{error}");
    drop(group);
    new.log_members.clear();
    new.force = true;
    bedplate_volume::create(&new).unwrap();
    let group = Group::import(&devices[..3], &quiet()).unwrap();
    fill(&group, 1);
    group.replace(2, bedplate_volume::Arrival { device: &devices[3], force: true }).unwrap();
    let error = group.split(&which(&[1]), "half").unwrap_err();
    assert!(error.message.contains("member3 is stale"), "{error}");
    group.sync().unwrap();
    group.split(&which(&[1]), "half").unwrap();
    let error = group.split(&which(&[2]), "third").unwrap_err();
    assert!(error.message.contains("half was split off already"), "{error}");
}

/// Writes through a queue, as the file system does.
fn queued(device: &Arc<dyn BlockDevice>, at: u64, number: u64) {
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let (buf, first) = (Some(stamped(at, 4096, number)), Segment { offset: at, len: 4096 });
    let request = Request { token: 0, kind: RequestKind::Write, buf, first, rest: Vec::new() };
    queue.push(request).unwrap();
    let mut done = Vec::new();
    queue.complete(1, &mut done).unwrap();
    done.remove(0).result.unwrap();
}

/// S-592: while writers write, each place after the one before it: the half holds what one moment
/// had, in order, and all that was acknowledged before.
#[test]
fn s_592_a_half_of_a_group_in_use_is_of_one_moment() {
    const PLACES: u64 = 6;
    for (round, (shape, copies, count, members)) in SHAPES.into_iter().enumerate() {
        let fixture = Fixture::new(count, 94 + round as u64);
        fixture.create(shape, copies, 0);
        let group = fixture.import();
        let device = volume(&group);
        let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    for place in 0..PLACES {
                        // Stripes have units of 16 KiB.
                        let at = place * (16 << 10);
                        if number % 2 == 0 {
                            device.write_at(&stamped(at, 4096, number), at).unwrap();
                        } else {
                            queued(&device, at, number);
                        }
                    }
                    acknowledged.store(number, Ordering::Release);
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            while acknowledged.load(Ordering::Acquire) < 20 {
                std::thread::yield_now();
            }
            let before = acknowledged.load(Ordering::Acquire);
            group.split(&which(members), "half").unwrap();
            let after = acknowledged.load(Ordering::Acquire);
            while acknowledged.load(Ordering::Acquire) < after + 20 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
            before
        });
        let half = import(&some(&fixture, members));
        let numbers: Vec<u64> = (0..PLACES)
            .map(|place| {
                let (at, mut buf) = (place * (16 << 10), AlignedBuf::zeroed(4096));
                volume(&half).read_at(&mut buf, at).unwrap();
                stamp_of(&buf[..512], at)
            })
            .collect();
        let in_order = numbers.windows(2).all(|pair| pair[0] >= pair[1]);
        assert!(in_order && numbers[0] <= numbers[PLACES as usize - 1] + 1, "{numbers:?}");
        assert!(numbers.iter().all(|number| *number >= before), "{numbers:?} after {before}");
    }
}

/// S-593: the halves become one mirror again with what the kept one has; only regions that either
/// wrote to are copied; the result has the name that is given and is whole.
#[test]
fn s_593_the_kept_half_is_copied_over_what_the_other_wrote() {
    for (shape, copies, count, members) in SHAPES {
        for keeps_half in [false, true] {
            let context = format!("{shape:?} of {copies}, the half kept: {keeps_half}");
            let fixture = split(shape, copies, count, members, 95);
            let stay = others(count, members);
            let sides = [some(&fixture, &stay), some(&fixture, members)];
            let [group, half] = [import(&sides[0]), import(&sides[1])];
            write(&group, 2, 7);
            write(&group, 4, 9);
            write(&half, 3, 8);
            write(&half, 4, 10);
            let expected = if keeps_half { shown(&half) } else { shown(&group) };
            drop((group, half));
            let (kept, other) =
                if keeps_half { (&sides[1], &sides[0]) } else { (&sides[0], &sides[1]) };
            let plan = Group::plan_join(kept, other).unwrap();
            assert_eq!((plan.kept.regions, plan.lost.regions), (2, 2), "{context}: {plan:?}");
            assert_eq!(plan.copied_bytes, 3 * REGION_BYTES, "{context}: {plan:?}");
            let group = Group::join(kept, other, "tank", &quiet()).unwrap();
            assert_eq!(shown(&group), expected, "{context}: before anything is copied");
            assert_eq!(group.config().name, "tank");
            group.sync().unwrap();
            let written: u64 =
                group.statistics().iter().flatten().map(|member| member.writes.bytes).sum();
            let copied = 3 * REGION_BYTES * if keeps_half { stay.len() as u64 } else { 1 };
            assert!(written <= copied, "{context}: {written} of {copied}");
            is_whole(&group, &expected, &context);
            drop(group);
            let group = import(&fixture.devices());
            is_whole(&group, &expected, &context);
            // And once more, from the beginning.
            group.split(&which(members), "half").unwrap();
        }
    }
}

/// All copies hold what is expected, and no half is known any more.
pub fn is_whole(group: &Group, expected: &[u64], context: &str) {
    assert_eq!(shown(group), expected, "{context}");
    let config = group.config();
    assert!(config.split.is_none(), "{context}: {:?}", config.split);
    assert!(
        config.members.iter().all(|member| member.state == MemberState::Active),
        "{context}: {:?}",
        config.members
    );
    let report = group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap();
    assert_eq!(report.differences, [], "{context}");
}

/// S-595: halves of different splits, of different shape, with other members, already joining.
#[test]
fn s_595_halves_that_do_not_fit_are_refused_and_left_as_they_are() {
    let fixture = split(Shape::Mirror, 2, 2, &[1], 96);
    let sides = [some(&fixture, &[0]), some(&fixture, &[1])];
    let refused = |kept: &[Arc<dyn BlockDevice>], other: &[Arc<dyn BlockDevice>], words: &str| {
        let labels = || -> Vec<Label> {
            kept.iter().chain(other).map(|device| Label::read(&**device).unwrap()).collect()
        };
        let before = labels();
        for error in [
            Group::plan_join(kept, other).unwrap_err(),
            Group::join(kept, other, "tank", &quiet()).unwrap_err(),
        ] {
            assert!(error.message.contains(words), "{error}");
        }
        assert_eq!(labels(), before);
    };
    let other = split(Shape::Mirror, 2, 2, &[1], 97);
    refused(&sides[0], &some(&other, &[1]), "not the halves of one split");
    refused(&some(&other, &[1]), &sides[0], "not the halves of one split");
    refused(&sides[0], &sides[0], "not the halves of one split");
    // A copy of the half from an earlier split.
    let now: Vec<usize> = fixture.members.iter().map(|member| member.operation_count()).collect();
    let earlier: Vec<Arc<dyn BlockDevice>> =
        fixture.after_cut(&now, 1).into_iter().skip(1).map(|device| device as _).collect();
    let group = Group::join(&sides[0], &sides[1], "tank", &quiet()).unwrap();
    group.sync().unwrap();
    group.split(&which(&[1]), "half").unwrap();
    drop(group);
    refused(&sides[0], &earlier, "not the halves of one split");
    // Under another identity.
    drop(Group::import_as(&earlier, "half", &quiet()).unwrap());
    refused(&sides[0], &earlier, "not the halves of one split");
    // Made smaller since.
    let half = import(&sides[1]);
    let error = half.relayout(Role::Data, &Target::default(), 0).unwrap_err();
    assert!(error.message.contains("was split off"), "{error}");
    drop(half);
    // A join that has begun the other way.
    let group = Group::join(&sides[1], &sides[0], "tank", &quiet()).unwrap();
    drop(group);
    let both = [sides[0].clone(), sides[1].clone()].concat();
    is_joined(&both);
}

fn is_joined(devices: &[Arc<dyn BlockDevice>]) {
    let group = import(devices);
    group.sync().unwrap();
    let expected = shown(&group);
    is_whole(&group, &expected, "joined the other way");
}

/// S-595: a half whose member was replaced, with its copy gone.
#[test]
fn s_595_a_half_with_another_member_is_refused() {
    let fixture = Fixture::new(5, 98);
    let devices = fixture.devices();
    bedplate_volume::create(&new_group(Shape::StripeMirror, 2, devices[..4].to_vec(), Vec::new()))
        .unwrap();
    let group = import(&devices[..4]);
    fill(&group, 1);
    group.split(&which(&[1, 3]), "half").unwrap();
    // The place of one of those that left is taken by another.
    group.replace(1, &devices[4]).unwrap();
    group.sync().unwrap();
    assert_eq!(group.config().split.unwrap().members.len(), 1);
    drop(group);
    let (kept, half) = (some(&fixture, &[0, 4, 2]), some(&fixture, &[1, 3]));
    let error = Group::join(&kept, &half, "tank", &quiet()).unwrap_err();
    assert!(error.message.contains("failed or was replaced in one of the halves"), "{error}");
    let error = Group::join(&half, &kept, "tank", &quiet()).unwrap_err();
    assert!(error.message.contains("failed or was replaced in one of the halves"), "{error}");
}

/// A device that fails from its n-th write or flush on.
#[derive(Debug)]
struct Dying(AtomicU64);

impl Hook for Dying {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let writes = !matches!(call, DeviceCall::Read { .. });
        let left = self.0.load(Ordering::Relaxed);
        if left == 0 {
            return Err(bedplate_block::Error {
                kind: bedplate_block::ErrorKind::Io,
                operation: bedplate_block::Operation::Write,
                device: "dying".into(),
                offset: None,
                detail: "it died".into(),
                errno: None,
            });
        }
        self.0.store(left - u64::from(writes), Ordering::Relaxed);
        pass()
    }
}

fn dying(device: Arc<dyn BlockDevice>, after: u64) -> Arc<dyn BlockDevice> {
    HookedDevice::named(device.name().to_owned(), device, Dying(AtomicU64::new(after)))
}

/// S-594: a member of the half that is taken in dies after any of its operations: the kept one goes
/// on, and is whole once the device is back.
#[test]
fn s_594_a_member_that_dies_while_it_comes_back_comes_back_later() {
    let mut states = 0;
    for (shape, copies, count, members) in SHAPES {
        for after in (0..60).step_by(3) {
            let context = format!("{shape:?} of {copies}, dies after {after}");
            let fixture = split(shape, copies, count, members, 99);
            let stay = others(count, members);
            let group = import(&some(&fixture, &stay));
            write(&group, 2, 7);
            let expected = shown(&group);
            drop(group);
            let half = import(&some(&fixture, members));
            write(&half, 2, 8);
            write(&half, 5, 8);
            drop(half);
            let mut other = some(&fixture, members);
            other[0] = dying(Arc::clone(&other[0]), after);
            let kept = some(&fixture, &stay);
            if let Ok(group) = Group::join(&kept, &other, "tank", &quiet()) {
                assert_eq!(shown(&group), expected, "{context}");
                let _may_fail = group.sync();
                assert_eq!(shown(&group), expected, "{context}");
            }
            let back = some(&fixture, members);
            let has_begun = Label::read(&*kept[0]).unwrap().config.split.is_none_or(|it| it.joins);
            let group = if has_begun {
                import(&[kept, back].concat())
            } else {
                Group::join(&kept, &back, "tank", &quiet()).unwrap()
            };
            assert_eq!(shown(&group), expected, "{context}");
            group.sync().unwrap();
            is_whole(&group, &expected, &context);
            states += 1;
        }
    }
    println!("members that die while they come back: {states} states tried, 0 violations");
}

/// S-594: a half that was copied to another machine and changed there is joined as it is there.
#[test]
fn s_594_a_half_that_was_changed_elsewhere_is_written_over() {
    let fixture = split(Shape::Mirror, 2, 2, &[1], 100);
    let now: Vec<usize> = fixture.members.iter().map(|member| member.operation_count()).collect();
    let elsewhere: Vec<Arc<MemoryDevice>> = fixture.after_cut(&now, 1);
    let copy: Vec<Arc<dyn BlockDevice>> = vec![Arc::clone(&elsewhere[1]) as _];
    let half = import(&copy);
    (3..9).for_each(|region| write(&half, region, 8));
    drop(half);
    let group = import(&some(&fixture, &[0]));
    write(&group, 3, 7);
    let expected = shown(&group);
    drop(group);
    // What the original of the half did meanwhile says nothing of its copy.
    let half = import(&some(&fixture, &[1]));
    write(&half, 10, 11);
    drop(half);
    let kept = some(&fixture, &[0]);
    assert_eq!(Group::plan_join(&kept, &copy).unwrap().lost.regions, 6);
    let group = Group::join(&kept, &copy, "tank", &quiet()).unwrap();
    assert_eq!(shown(&group), expected);
    group.sync().unwrap();
    is_whole(&group, &expected, "changed elsewhere");
    drop(group);
    let error = Group::import(&[kept, some(&fixture, &[1])].concat(), &quiet()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Foreign, "{error}");
}
