//! What a volume says of its members: which addresses lie on which, as the layout has it now.

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_volume::{Role, Shape, Target, Which};

use super::fixture::{Fixture, new_group, quiet, stamped};

/// S-616: each range of a concatenation is on its member and on no other, as the members' own bytes
/// show; a stripe, a mirror and a RAID-5 have one range on all.
#[test]
fn s_616_the_ranges_of_a_concatenation_are_on_their_members() {
    let fixture = Fixture::new(2, 81);
    fixture.create(Shape::Concat, 1, 0);
    let group = fixture.import();
    let volume = group.volume(Role::Data).unwrap();
    let map = volume.member_map();
    assert!(map.members.len() == 2 && map.ranges.len() == 2 && !map.is_moving, "{map:?}");
    assert_eq!(map.ranges[1].bytes, map.ranges[0].bytes.end..volume.size_bytes());
    let ids: Vec<[u8; 16]> = group.config().members.iter().map(|member| member.id.0).collect();
    for (at, range) in map.ranges.iter().enumerate() {
        assert_eq!((range.members.len(), map.members[range.members[0]].id), (1, ids[at]));
        for address in [range.bytes.start, range.bytes.end - 512] {
            let data = stamped(address, 512, address + 7);
            volume.write_at(&data, address).unwrap();
            volume.flush().unwrap();
            let holders: Vec<usize> =
                (0..2).filter(|member| holds(&*fixture.device(*member), &data)).collect();
            assert_eq!(holders, [at], "address {address}");
        }
    }
    for (shape, count) in [(Shape::Stripe, 2), (Shape::Mirror, 2), (Shape::Raid5, 3)] {
        let fixture = Fixture::new(count, 82);
        fixture.create(shape, 2, 0);
        let map = fixture.import().volume(Role::Data).unwrap().member_map();
        assert_eq!(map.ranges.len(), 1, "{shape:?}");
        assert_eq!(map.ranges[0].members, (0..count).collect::<Vec<_>>(), "{shape:?}");
        assert!(map.only_on(|member| member.id == map.members[0].id).is_empty());
    }
}

fn holds(member: &dyn BlockDevice, sector: &[u8]) -> bool {
    let mut content = AlignedBuf::zeroed(member.size_bytes() as usize);
    member.read_at(&mut content, 0).unwrap();
    content.chunks(512).any(|found| found == sector)
}

/// S-621: during a relayout every address may lie on any member, and after it on the ones that it
/// moved to; each change is announced.
#[test]
fn s_621_what_a_volume_says_of_its_members_follows_a_relayout() {
    let fixture = Fixture::new(3, 83);
    let devices = fixture.devices();
    let new = new_group(Shape::Concat, 1, devices[..2].to_vec(), Vec::new());
    bedplate_volume::create(&new).unwrap();
    drop(new);
    let group = bedplate_volume::Group::import(&devices[..2], &quiet()).unwrap();
    group.sync().unwrap();
    let volume = group.volume(Role::Data).unwrap();
    let (before, mut version) = (volume.member_map(), volume.member_map_version());
    let mut is_announced = |what: &str| {
        let now = volume.member_map_version();
        assert_ne!(now, version, "{what}");
        version = now;
    };
    group.add_member(&devices[2]).unwrap();
    is_announced("a member comes");
    assert_eq!(volume.member_map(), before, "it holds nothing yet");
    let to = Target { without: Some(Which::At(0)), ..Target::default() };
    group.relayout(Role::Data, &to, volume.size_bytes()).unwrap();
    is_announced("a relayout begins");
    let moving = volume.member_map();
    assert!(moving.is_moving && moving.ranges.len() == 1 && moving.members.len() == 3);
    assert_eq!(moving.ranges[0].members, [0, 1, 2]);
    group.run_relayout(&mut |_| true).unwrap();
    is_announced("it ends");
    let after = volume.member_map();
    assert!(!after.is_moving && after.members.len() == 2, "{after:?}");
    assert!(after.members.iter().all(|member| member.id != before.members[0].id));
    let kept = |member: &bedplate_block::MemberName| member.id == before.members[1].id;
    assert_eq!(after.only_on(kept), before.only_on(kept), "the other one keeps its range");
}
