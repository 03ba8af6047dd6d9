use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};

use crate::planted::{Mistake, with_mistake};
use crate::relayout::fixture::{Fixture, new_group, quiet, stamp_of, stamped};
use crate::{Group, PageArbiter, Role, Shape, Target, Undecided};

/// How much of the volume is filled and used.
const USED_BYTES: u64 = 512 << 10;
/// Where the data of a member begins.
const DATA_AT: u64 = 4 << 20;

/// Knows of sectors whether they are whole and in their place: of several copies the right one is the
/// only one of which all sectors are.
struct Stamps;

fn is_whole(sector: &[u8], address: u64) -> bool {
    let number = &sector[8..16];
    let is_word = |word: &[u8]| word[..8] == address.to_le_bytes() && &word[8..] == number;
    sector.chunks(16).all(is_word)
}

impl PageArbiter for Stamps {
    fn judge(
        &self,
        _: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let mut buf = vec![0; (range.end - range.start) as usize];
        let mut right = (0..copies).filter(|copy| {
            read(*copy, range.start, &mut buf)
                && (range.start..)
                    .step_by(512)
                    .zip(buf.chunks(512))
                    .all(|(at, it)| is_whole(it, at))
        });
        right.next().filter(|_| right.next().is_none())
    }
}

/// A group on which every sector that is used says where it belongs, and members that bring room.
fn filled(shape: Shape, members: usize, added: usize, plexes: usize) -> (Fixture, Group) {
    let fixture = Fixture::new(members + added, 71);
    let devices = fixture.devices();
    crate::create(&new_group(shape, plexes, devices[..members].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..members], &quiet()).unwrap();
    devices[members..].iter().for_each(|device| group.add_member(device).unwrap());
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, USED_BYTES as usize, 1), 0).unwrap();
    device.flush().unwrap();
    group.sync().unwrap();
    group.set_arbiter_provider(Some(Arc::new(|| Some(Box::new(Stamps)))));
    (fixture, group)
}

/// Returns the sectors that are not what was written.
fn wrong_sectors(device: &dyn BlockDevice) -> usize {
    let mut buf = AlignedBuf::zeroed(USED_BYTES as usize);
    device.read_at(&mut buf, 0).unwrap();
    (0..).step_by(512).zip(buf.chunks(512)).filter(|(at, sector)| !is_whole(sector, *at)).count()
}

fn differences(group: &Group) -> usize {
    let found = group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences;
    found.iter().filter(|one| one.range.start < USED_BYTES).count()
}

fn corrected(group: &Group) -> u64 {
    group.statistics().iter().flatten().map(|member| member.corrected).sum()
}

struct Change {
    shape: Shape,
    members: usize,
    added: usize,
    to: Target,
}

fn changes() -> Vec<Change> {
    let to = Target {
        step_bytes_max: Some(96 << 10),
        size_bytes: Some(USED_BYTES),
        ..Target::default()
    };
    let it = |shape, members, added, to| Change { shape, members, added, to };
    let shape = |shape| Target { shape: Some(shape), ..to };
    vec![
        it(Shape::Mirror, 2, 0, Target { columns: Some(2), ..shape(Shape::Stripe) }),
        it(Shape::Mirror, 2, 2, Target { columns: Some(2), ..to }),
        it(Shape::StripeMirror, 4, 0, Target { unit_bytes: Some(32 << 10), ..to }),
        it(Shape::Mirror, 2, 1, Target { columns: Some(3), ..shape(Shape::Raid5) }),
        it(Shape::Raid5, 3, 1, Target { columns: Some(4), ..to }),
        it(Shape::Raid5, 3, 0, Target { plexes: Some(2), ..shape(Shape::Mirror) }),
    ]
}

/// Rots sectors of a member, changes the layout, and returns how many sectors are wrong then, how many
/// places differ between copies, and how many were mended.
fn relaid_out(change: &Change, rotten: usize) -> (usize, usize, u64) {
    let (fixture, group) = filled(change.shape, change.members, change.added, 2);
    for at in [700, (40 << 10) + 100, 100 << 10, (120 << 10) + 5] {
        fixture.members[rotten].decay(DATA_AT + at, 4);
    }
    group.relayout(Role::Data, &change.to, USED_BYTES).unwrap();
    group.run_relayout(&mut |_| true).unwrap();
    let wrong = wrong_sectors(&*group.volume(Role::Data).unwrap());
    (wrong, differences(&group), corrected(&group))
}

/// S-498
#[test]
fn s_498_a_relayout_moves_the_copy_that_is_right() {
    let (mut lost, mut rotted) = (0, 0);
    for change in changes() {
        for rotten in 0..change.members {
            assert_eq!(
                relaid_out(&change, rotten),
                (0, 0, 4),
                "{:?}, member {rotten}",
                change.shape
            );
            let mistake = Some(Mistake::SourceNotCompared);
            rotted += 4;
            lost += with_mistake(mistake, || relaid_out(&change, rotten)).0;
        }
    }
    println!("of {rotted} sectors that rotted, {lost} were lost without a comparison");
    assert!(lost > 0, "nothing would have been lost without a comparison");
}

/// Returns the bytes that members were asked for while the layout changes.
fn read_bytes(change: &Change, compares: bool) -> u64 {
    let (_fixture, group) = filled(change.shape, change.members, change.added, 2);
    if !compares {
        group.set_arbiter_provider(None);
    }
    group.relayout(Role::Data, &change.to, USED_BYTES).unwrap();
    group.reset_statistics();
    group.run_relayout(&mut |_| true).unwrap();
    group.statistics().iter().flatten().map(|member| member.reads.bytes).sum()
}

/// S-498: what is compared is read once from each of two copies, or once as a row, and once to be
/// copied.
#[test]
fn s_498_a_comparison_reads_every_copy_once() {
    for change in changes() {
        let (without, with) = (read_bytes(&change, false), read_bytes(&change, true));
        println!("{:?}: {without} bytes are read, {with} with a comparison", change.shape);
        assert!(with <= 3 * without, "{:?}: {with} of {without}", change.shape);
    }
}

/// S-498: where nothing knows which copy is right, the relayout goes on, and so it does where nothing
/// could know.
#[test]
fn s_498_what_is_not_known_moves_as_one_copy_has_it() {
    for provides in [true, false] {
        let (fixture, group) = filled(Shape::Mirror, 2, 2, 2);
        fixture.members[0].decay(DATA_AT + 700, 4);
        let undecided: Arc<crate::ArbiterProvider> = Arc::new(|| Some(Box::new(Undecided)));
        group.set_arbiter_provider(provides.then_some(undecided));
        group
            .relayout(Role::Data, &Target { columns: Some(2), ..Target::default() }, USED_BYTES)
            .unwrap();
        group.run_relayout(&mut |_| true).unwrap();
        assert!(wrong_sectors(&*group.volume(Role::Data).unwrap()) <= 1);
        assert_eq!((differences(&group), corrected(&group)), (0, 0));
    }
}

/// S-498: a relayout that is turned round between the comparison and the step compares what goes back.
#[test]
fn s_498_what_goes_back_is_compared_too() {
    let (fixture, group) = filled(Shape::Mirror, 2, 2, 2);
    let to = Target { columns: Some(2), step_bytes_max: Some(96 << 10), ..Target::default() };
    group.relayout(Role::Data, &to, USED_BYTES).unwrap();
    let mut steps = 0;
    group
        .run_relayout(&mut |_| {
            steps += 1;
            steps < 3
        })
        .unwrap();
    let io = &group.open.runtime.ios[0];
    assert!(group.open.runtime.compare_step(io, u64::MAX).unwrap());
    for member in 0..4 {
        fixture.members[member].decay(DATA_AT + 1000 + 1024 * member as u64, 4);
    }
    group.reverse_relayout().unwrap();
    group.run_relayout(&mut |_| true).unwrap();
    assert_eq!(wrong_sectors(&*group.volume(Role::Data).unwrap()), 0);
    assert_eq!(differences(&group), 0);
}

/// Replaces a member of a mirror of three, of which another has rotted, and returns how many sectors
/// are wrong on the new one or the others.
fn replaced(rotten: usize, replaced: usize) -> (usize, u64) {
    let fixture = Fixture::new(4, 72);
    let devices = fixture.devices();
    crate::create(&new_group(Shape::Mirror, 3, devices[..3].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..3], &quiet()).unwrap();
    group.set_arbiter_provider(Some(Arc::new(|| Some(Box::new(Stamps)))));
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, USED_BYTES as usize, 1), 0).unwrap();
    device.flush().unwrap();
    for at in [700, (40 << 10) + 100, 300 << 10] {
        fixture.members[rotten].decay(DATA_AT + at, 4);
    }
    group.replace(replaced, &devices[3]).unwrap();
    group.sync().unwrap();
    let wrong: usize = (0..4)
        .filter(|member| *member != replaced)
        .map(|member| {
            let mut buf = AlignedBuf::zeroed(USED_BYTES as usize);
            devices[member].read_at(&mut buf, DATA_AT).unwrap();
            (0..).step_by(512).zip(buf.chunks(512)).filter(|(at, it)| !is_whole(it, *at)).count()
        })
        .sum();
    (wrong, corrected(&group))
}

/// S-499
#[test]
fn s_499_a_member_is_filled_from_the_copy_that_is_right() {
    for gone in 0..3 {
        for rotten in (0..3).filter(|rotten| *rotten != gone) {
            assert_eq!(replaced(rotten, gone), (0, 3), "{gone} is replaced, {rotten} has rotted");
        }
    }
    let mistake = Some(Mistake::SourceOfMemberNotCompared);
    let lost = with_mistake(mistake, || replaced(0, 2));
    assert!(lost.0 > 0, "nothing would have been lost without a comparison");
    let mut buf = AlignedBuf::zeroed(512);
    buf.copy_from_slice(&stamped(0, 512, 1));
    assert!(stamp_of(&buf, 0) == 1 && is_whole(&buf, 0) && !is_whole(&buf, 512));
}
