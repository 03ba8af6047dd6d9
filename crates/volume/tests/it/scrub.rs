//! Copies that differ are found, judged, and repaired only when an arbiter knows which is right.

use std::ops::Range;

use bedplate_block::{AlignedBuf, Fault, FaultRule, ReadFault, Trigger};
use bedplate_volume::{Group, PageArbiter, Role, ScrubReport, Shape, Undecided};

use super::fixture::{Fixture, stamped};

/// Takes the copy whose first byte is not odd.
struct Even;

impl PageArbiter for Even {
    fn judge(
        &self,
        _: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let mut buf = vec![0; 512];
        (0..copies).find(|copy| read(*copy, range.start, &mut buf) && buf[0].is_multiple_of(2))
    }
}

/// S-64
#[test]
fn a_turned_bit_is_found_and_left_until_somebody_knows_which_copy_is_right() {
    for shape in [Shape::Mirror, Shape::StripeMirror, Shape::MirrorStripe] {
        let fixture = Fixture::new(4, 40);
        fixture.create(shape, 2, 0);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        (0..device.size_bytes() / 4096)
            .for_each(|n| device.write_at(&AlignedBuf::from_slice(&[4; 4096]), n * 4096).unwrap());
        let clean = group.scrub(true, &Undecided, &mut |_| ()).unwrap();
        assert_eq!(
            (clean.differences.len(), clean.compared_bytes, clean.skipped_regions),
            (0, device.size_bytes(), 0),
            "{shape:?}"
        );

        fixture.members[1].decay((4 << 20) + 8192, 1);
        let told = group.scrub(true, &Undecided, &mut |_| ()).unwrap().differences;
        assert_eq!(
            (told.len(), told[0].right, told[0].repaired, told[0].range.end - told[0].range.start),
            (1, None, false, 512)
        );
        assert!(told[0].copies.contains(&(1, (4 << 20) + 8192)), "{told:?}");

        let only_told = group.scrub(false, &Even, &mut |_| ()).unwrap().differences;
        assert!(only_told[0].right.is_some_and(|right| right != 1) && !only_told[0].repaired);
        assert!(group.scrub(true, &Even, &mut |_| ()).unwrap().differences[0].repaired);
        assert_eq!(group.scrub(true, &Undecided, &mut |_| ()).unwrap().differences, []);
        assert_eq!(group.statistics()[1].as_ref().unwrap().corrected, 1);
    }
}

#[test]
fn a_copy_that_cannot_be_read_is_wrong() {
    let fixture = Fixture::new(2, 41);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    fixture.members[0].inject(
        FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1))
            .within(4 << 20..(4 << 20) + 512),
    );
    let mut done = 0;
    let report = group.scrub(true, &Undecided, &mut |bytes| done += bytes).unwrap();
    let difference = &report.differences[0];
    assert_eq!(
        (difference.right, difference.unreadable.as_slice(), difference.repaired, done),
        (Some(1), &[0][..], true, device.size_bytes())
    );
}

/// Pages of 4 KiB that say where they belong, except in a range that belongs to no file.
struct Pages {
    nobodys: Range<u64>,
}

const PAGE: u64 = 4096;

impl Pages {
    fn is_whole(page: &[u8], address: u64) -> bool {
        let number = &page[8..16];
        let word = |(at, word): (u64, &[u8])| {
            word[..8] == (address + at / 512 * 512).to_le_bytes() && &word[8..] == number
        };
        number != [0; 8] && (0..).step_by(16).zip(page.chunks(16)).all(word)
    }
}

impl PageArbiter for Pages {
    fn judge(
        &self,
        _: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let start = range.start / PAGE * PAGE;
        let mut page = vec![0; PAGE as usize];
        let whole: Vec<usize> = (0..copies)
            .filter(|copy| read(*copy, start, &mut page) && Self::is_whole(&page, start))
            .collect();
        Some(whole)
            .filter(|whole| whole.len() == 1 && !self.nobodys.contains(&range.start))
            .map(|whole| whole[0])
    }
}

const ALL: Pages = Pages { nobodys: 0..0 };
const UNIT: u64 = 16 << 10;
/// Where row 0 is on every member: data on members 0, 1 and 2, parity on member 3.
const ROW: u64 = 4 << 20;

/// A RAID-5 over four members that is full of pages.
fn full(seed: u64) -> (Fixture, Group) {
    let fixture = Fixture::new(4, seed);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes() / PAGE)
        .for_each(|n| device.write_at(&stamped(n * PAGE, PAGE as usize, n + 1), n * PAGE).unwrap());
    device.flush().unwrap();
    (fixture, group)
}

fn scrub(group: &Group, repair: bool, judge: &dyn PageArbiter) -> ScrubReport {
    group.scrub(repair, judge, &mut |_| ()).unwrap()
}

fn stands(fixture: &Fixture) -> Vec<Vec<u8>> {
    let bytes = |index: usize| {
        let mut buf = AlignedBuf::zeroed(UNIT as usize);
        fixture.device(index).read_at(&mut buf, ROW).unwrap();
        buf.to_vec()
    };
    (0..4).map(bytes).collect()
}

/// S-107: a bit in one unit of data is made again, and named by its exact place; nothing is written
/// unless that is asked for.
#[test]
fn s_107_a_unit_of_data_whose_page_fails_and_is_whole_as_the_row_makes_it_is_made_again() {
    let (fixture, group) = full(60);
    let good = stands(&fixture);
    fixture.members[1].decay(ROW + 8192 + 700, 4);
    let bad = stands(&fixture);
    let told = scrub(&group, false, &ALL).differences;
    let place = UNIT + 8192 + 512..UNIT + 8192 + 1024;
    assert_eq!(
        (told.len(), told[0].wrong, told[0].right, told[0].repaired),
        (1, Some(1), None, false)
    );
    assert_eq!((&told[0].range, &told[0].places[..]), (&place, &[place.clone()][..]));
    assert!(told[0].copies.contains(&(1, ROW + 8192 + 512)), "{told:?}");
    assert!(scrub(&group, true, &Undecided).differences[0].wrong.is_none());
    assert!(stands(&fixture) == bad, "who does not know touches nothing");
    // A later arbiter knows more.
    let mut report = scrub(&group, true, &Undecided);
    group.scrub_again(true, &ALL, &mut report).unwrap();
    assert_eq!(
        (report.differences.len(), report.differences[0].wrong, report.differences[0].repaired),
        (1, Some(1), true)
    );
    assert!(stands(&fixture) == good);
    assert_eq!(scrub(&group, true, &Undecided).differences, []);
    assert_eq!(group.statistics()[1].as_ref().unwrap().corrected, 1);
}

/// S-107: parity is believed to be wrong only where the pages of every unit of data are whole as
/// they stand.
#[test]
fn s_107_parity_is_made_again_only_where_every_page_of_the_row_is_whole() {
    let (fixture, group) = full(61);
    let good = stands(&fixture);
    fixture.members[3].decay(ROW + 5000, 4);
    let bad = stands(&fixture);
    let doubtful = scrub(&group, true, &Pages { nobodys: 0..4096 * 3 }).differences;
    assert_eq!(
        (doubtful.len(), doubtful[0].wrong, doubtful[0].repaired, doubtful[0].places.len()),
        (1, None, false, 3)
    );
    assert!(
        stands(&fixture) == bad,
        "what lies in the first unit is no page, and may be what is wrong"
    );
    let told = scrub(&group, true, &ALL).differences;
    assert_eq!(
        (told.len(), told[0].wrong, told[0].repaired, told[0].places.len()),
        (1, Some(3), true, 0)
    );
    assert!(stands(&fixture) == good && scrub(&group, false, &Undecided).differences.is_empty());
    // Unowned data beside a page that is wrong does not matter.
    fixture.members[2].decay(ROW + 5000, 4);
    assert!(
        scrub(&group, true, &Pages { nobodys: 0..4096 * 3 }).differences[0].repaired
            && stands(&fixture) == good
    );
}

/// S-107: two units that are wrong at the same place are told and left; at different places each is
/// made from the other.
#[test]
fn s_107_two_wrong_units_are_left_where_neither_follows_from_the_row() {
    let (fixture, group) = full(62);
    let good = stands(&fixture);
    for (first, second) in [(0, 1), (1, 3)] {
        fixture.members[first].decay(ROW + 700, 4);
        fixture.members[second].decay(ROW + 700, 2);
        let bad = stands(&fixture);
        let told = scrub(&group, true, &ALL).differences;
        assert_eq!(
            (told.len(), told[0].wrong, told[0].repaired),
            (1, None, false),
            "{first} and {second}"
        );
        assert!(stands(&fixture) == bad);
        fixture.members[first].decay(ROW + 700, 4);
        fixture.members[second].decay(ROW + 700, 2);
    }
    fixture.members[0].decay(ROW + 700, 4);
    fixture.members[1].decay(ROW + 3000, 2);
    assert_eq!(
        scrub(&group, true, &ALL)
            .differences
            .iter()
            .map(|one| (one.wrong, one.repaired))
            .collect::<Vec<_>>(),
        [(Some(0), true), (Some(1), true)]
    );
    assert!(stands(&fixture) == good && scrub(&group, false, &Undecided).differences.is_empty());
}
