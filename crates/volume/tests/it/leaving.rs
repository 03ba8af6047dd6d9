//! Members that give up what they hold and leave, wherever they stand among the others.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_volume::{ErrorKind, Group, Label, MemberState, Role, Shape, Target, Which};

use super::fixture::{Fixture, new_group, quiet, stamp_of, stamped};

const STEP: u64 = 64 << 10;

fn fill(group: &Group) {
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes())
        .step_by(STEP as usize)
        .for_each(|at| device.write_at(&stamped(at, STEP as usize, 1 + at / STEP), at).unwrap());
    device.flush().unwrap();
}

fn check(group: &Group, context: &str) {
    let device = group.volume(Role::Data).unwrap();
    let mut seen = AlignedBuf::zeroed(device.size_bytes() as usize);
    device.read_at(&mut seen, 0).unwrap();
    let wrong = seen
        .chunks(512)
        .zip((0..).step_by(512))
        .find(|(sector, at)| stamp_of(sector, *at) != 1 + at / STEP);
    assert!(wrong.is_none(), "{context}: sector {:?}", wrong.map(|(_, at)| at));
}

/// Opens what has a place without options, as a user does.
fn open(devices: &[Arc<dyn BlockDevice>], context: &str) -> Group {
    let labels: Vec<_> =
        devices.iter().filter_map(|device| Some((device, Label::read(&**device).ok()?))).collect();
    let newest =
        labels.iter().map(|(_, label)| &label.config).max_by_key(|config| config.event).unwrap();
    let placed: Vec<_> = labels
        .iter()
        .filter(|(_, label)| label.has_place_in(newest))
        .map(|(device, _)| Arc::clone(device))
        .collect();
    Group::import(&placed, &quiet()).unwrap_or_else(|error| panic!("{context}: {error}"))
}

/// S-112: the first of several leaves; the others keep their places, and the next that comes takes
/// its.
#[test]
fn s_112_a_member_before_others_with_data_gives_its_data_away_and_leaves() {
    let mut states = 0;
    for (shape, count) in [(Shape::Concat, 2), (Shape::Stripe, 3), (Shape::Raid5, 3)] {
        let fixture = Fixture::new(count + 2, 80);
        let devices = fixture.devices();
        bedplate_volume::create(&new_group(shape, 2, devices[..count].to_vec(), Vec::new()))
            .unwrap();
        let group = Group::import(&devices[..count], &quiet()).unwrap();
        group.sync().unwrap();
        fill(&group);
        let error = group.remove(0).unwrap_err();
        assert!(
            error.kind == ErrorKind::Invalid && error.message.contains("relayout without member0"),
            "{error}"
        );
        let to = Target { without: Some(Which::At(0)), ..Target::default() };
        let error = group.relayout(Role::Data, &to, u64::MAX).unwrap_err();
        assert!(
            error.message.contains("no more without data") && error.message.contains("volume add"),
            "{error}"
        );
        group.add_member(&devices[count]).unwrap();
        group.relayout(Role::Data, &to, group.volume(Role::Data).unwrap().size_bytes()).unwrap();
        group.run_relayout(&mut |_| true).unwrap();
        group.sync().unwrap();
        let error = group.relayout(Role::Data, &to, 0).unwrap_err();
        assert!(error.message.contains("holds no data of this volume"), "{error}");
        fixture.make_all_durable();
        group.remove(0).unwrap();
        let removed = fixture.moments().len();
        assert_eq!(Label::read(&*devices[0]).unwrap_err().kind, ErrorKind::NotAMember);
        check(&group, "removed");
        assert_eq!(
            (group.config().members.len(), group.config().members[0].is_vacant()),
            (count + 1, true)
        );
        let error = group.remove(0).unwrap_err();
        assert!(error.message.contains("no member 0"), "{error}");
        group.add_spare(&devices[count + 1]).unwrap();
        let config = group.config();
        assert_eq!(
            (config.members.len(), config.members[0].state),
            (count + 1, MemberState::Spare),
            "{shape:?}"
        );
        drop(group);
        for (at, moment) in fixture.moments().into_iter().enumerate() {
            for choice in 0..5 {
                let context = format!("{shape:?}, cut at {moment:?}, choice {choice}");
                let images: Vec<Arc<dyn BlockDevice>> = fixture
                    .after_cut(&moment, choice)
                    .into_iter()
                    .map(|image| image as _)
                    .collect();
                let group = open(&images, &context);
                group.sync().unwrap();
                check(&group, &context);
                assert!(
                    at + 1 < removed || group.config().members[0].path != "member0",
                    "{context}"
                );
                drop(group);
                check(&open(&images, &context), &context);
                states += 1;
            }
        }
        // Removing the last one takes the empty places before it away as well.
        let group = open(&devices, "at last");
        group.remove(0).unwrap();
        check(&group, "at last");
    }
    println!("power cuts while a member before others leaves: {states} states tried, 0 violations");
}
