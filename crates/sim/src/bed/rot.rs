//! A bit that turns on a member of a group: a comparison of the copies tells it and leaves it, and
//! makes it good once it knows which copy is right (S-64). Which one a read returns before that is
//! not promised.

use std::ops::Range;

use bedplate_block::{AlignedBuf, Snapshot};
use bedplate_volume::{Difference, Group, PageArbiter, Role, Undecided};

use super::copies;

/// What a comparison takes at once, in bytes: the sector of all devices under groups.
const SECTOR: u64 = 512;

/// Knows the content of the volume.
struct Knows(AlignedBuf);

impl PageArbiter for Knows {
    fn judge(
        &self,
        _: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let right = &self.0[index(range.start)..index(range.end)];
        let mut found = AlignedBuf::zeroed(right.len());
        (0..copies).find(|copy| read(*copy, range.start, &mut found) && found[..] == *right)
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("a volume of the judge fits into memory")
}

/// Turns a bit in a page of a member that was written to, and lets the group compare its copies,
/// first without knowing which is right.
pub(super) fn compare(
    group: &Group,
    member: usize,
    number: usize,
    agreed: &[Snapshot],
    now: &dyn Fn() -> Vec<Snapshot>,
    decay: &dyn Fn(u64),
) -> Result<(), String> {
    let volume = group.volume(Role::Data).expect("every group has one");
    let mut content = AlignedBuf::zeroed(index(volume.size_bytes()));
    volume
        .read_at(&mut content, 0)
        .map_err(|e| format!("a group whose members are whole cannot be read: {e}"))?;
    // Only now: what a crash left in doubt was made to agree when it was read.
    let before = now();
    let Some(page) = copies::written(&group.config(), agreed, &before, member, number) else {
        return Ok(());
    };
    let at = page + (number as u64).wrapping_mul(0x9e37_79b9) % 4096;
    decay(at);
    let rotten = now();
    let scrub = |judge: &dyn PageArbiter| {
        group
            .scrub(true, judge, &mut |_| ())
            .map_err(|e| format!("the group cannot be compared: {e}"))
    };
    let place = (member, at / SECTOR * SECTOR);
    let only = |found: &[Difference]| found.len() == 1 && found[0].copies.contains(&place);
    let told = scrub(&Undecided)?.differences;
    if !only(&told) || told[0].repaired {
        return Err(format!(
            "S-64: a bit turned at byte {at} of member {member}, and a comparison told {told:?}"
        ));
    }
    if let Some(byte) = first_difference(&now(), &rotten) {
        return Err(format!(
            "S-64: a comparison that knows of no copy that it is wrong changed byte {byte}"
        ));
    }
    let told = scrub(&Knows(content))?.differences;
    let known = |found: &Difference| {
        found.wrong == Some(member) || found.right.is_some_and(|right| right != member)
    };
    if !only(&told) || !told[0].repaired || !known(&told[0]) {
        return Err(format!(
            "S-107: a bit turned at byte {at} of member {member}, and a comparison that knows the \
             content told {told:?}"
        ));
    }
    first_difference(&now(), &before).map_or(Ok(()), |byte| {
        Err(format!("S-64: byte {byte} is not what it was before a bit turned elsewhere"))
    })
}

fn first_difference(now: &[Snapshot], then: &[Snapshot]) -> Option<u64> {
    now.iter().zip(then).find_map(|(now, then)| now.first_difference(then))
}
