//! Copies that differ are found, judged, and made good only when somebody knows which is right.

use std::ops::Range;

use block::{AlignedBuf, Fault, FaultRule, ReadFault, Trigger};
use volume::{Judge, Role, Shape, Undecided};

use super::bed::{Bed, stamped};

/// Takes the copy whose first byte is not odd.
struct Even;

impl Judge for Even {
    fn judge(&self, _: Role, range: Range<u64>, copies: usize, read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool) -> Option<usize> {
        let mut buf = vec![0; 512];
        (0..copies).find(|copy| read(*copy, range.start, &mut buf) && buf[0].is_multiple_of(2))
    }
}

/// S-64
#[test]
fn a_turned_bit_is_found_and_left_until_somebody_knows_which_copy_is_right() {
    for shape in [Shape::Mirror, Shape::StripeMirror, Shape::MirrorStripe] {
        let bed = Bed::new(4, 40);
        bed.create(shape, 2, 0);
        let group = bed.import();
        let device = group.volume(Role::Data).unwrap();
        (0..device.size_bytes() / 4096).for_each(|n| device.write_at(&AlignedBuf::from_slice(&[4; 4096]), n * 4096).unwrap());
        let clean = group.scrub(true, &Undecided, &mut |_| ()).unwrap();
        assert_eq!((clean.differences.len(), clean.compared_bytes, clean.skipped_regions), (0, device.size_bytes(), 0), "{shape:?}");

        bed.members[1].decay((4 << 20) + 8192, 1);
        let told = group.scrub(true, &Undecided, &mut |_| ()).unwrap().differences;
        assert_eq!((told.len(), told[0].right, told[0].repaired, told[0].range.end - told[0].range.start), (1, None, false, 512));
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
    let bed = Bed::new(2, 41);
    bed.create(Shape::Mirror, 2, 0);
    let group = bed.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(0, 4096, 1), 0).unwrap();
    bed.members[0].inject(FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1)).within(4 << 20..(4 << 20) + 512));
    let mut done = 0;
    let report = group.scrub(true, &Undecided, &mut |bytes| done += bytes).unwrap();
    let difference = &report.differences[0];
    assert_eq!((difference.right, difference.unreadable.as_slice(), difference.repaired, done), (Some(1), &[0][..], true, device.size_bytes()));
}
