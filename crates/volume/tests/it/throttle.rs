//! Background work beside foreground I/O.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_volume::{
    ErrorKind, FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED, Group, ImportOptions, MemberState,
    Role, Shape,
};

use super::fixture::new_group;

fn members(count: usize) -> Vec<Arc<dyn BlockDevice>> {
    (0..count).map(|_| MemoryDevice::new(96 << 20) as _).collect()
}

/// S-74: what the foreground feels is measured while a member is filled, and a region that is
/// written to between the parts of its copy is whole.
#[test]
fn s_74_a_member_is_filled_in_parts_while_somebody_writes_and_is_measured() {
    for shape in [Shape::Mirror, Shape::Raid5] {
        let members = members(5);
        bedplate_volume::create(&new_group(shape, 2, members[..4].to_vec(), Vec::new())).unwrap();
        let group = Group::import(&members[..4], &ImportOptions::default()).unwrap();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        group.replace(1, &members[4]).unwrap();
        let (start, mut found, mut number) = (Instant::now(), None, 0_u64);
        let is_full =
            || group.config().members.iter().all(|member| member.state == MemberState::Active);
        while !is_full() {
            number += 1;
            let at = number * 7919 % (device.size_bytes() / 4096) * 4096;
            device
                .write_at(&AlignedBuf::from_slice(&number.to_le_bytes().repeat(512)), at)
                .unwrap();
            if found.is_none() && group.foreground().found_percent.is_some() {
                found = group.foreground().found_percent;
                // Enough of it: counts at once.
                group.set_foreground(FOREGROUND_UNLIMITED).unwrap();
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "{shape:?}: {:?} after {number} writes",
                group.progress()
            );
        }
        assert!(
            found.is_some_and(|found| found > 0),
            "{shape:?}: nothing was measured in {:?}, {number} writes",
            start.elapsed()
        );
        let scrubbed = group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap();
        assert_eq!((scrubbed.differences.len(), scrubbed.skipped_regions), (0, 0), "{shape:?}");
    }
}

/// S-74
#[test]
fn s_74_the_factor_is_kept_in_the_labels_and_one_that_nothing_could_keep_is_refused() {
    let members = members(2);
    bedplate_volume::create(&new_group(Shape::Mirror, 2, members.clone(), Vec::new())).unwrap();
    let import = || {
        Group::import(&members, &ImportOptions { background: false, ..ImportOptions::default() })
            .unwrap()
    };
    assert_eq!(import().foreground().limit_percent, FOREGROUND_PERCENT_DEFAULT);
    for percent in [105, 300, FOREGROUND_UNLIMITED, FOREGROUND_PERCENT_DEFAULT] {
        import().set_foreground(percent).unwrap();
        assert_eq!(import().foreground().limit_percent, percent);
    }
    let refused = import().set_foreground(100).unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("1.05"), "{refused}");
}
