//! Devices that are refused, by name, and that nothing was written to any of them.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceOptions, Fault, FaultRule, Geometry, MemoryDevice,
    SimulatedDevice, Trigger, WriteFault,
};
use bedplate_volume::{Arrival, ErrorKind, Group, ImportOptions, Label, Role, Shape};

use super::fixture::{Fixture, MEMBER_BYTES, new_group, quiet};

fn refused(devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> bedplate_volume::Error {
    Group::import(devices, options).unwrap_err()
}

/// S-62: runs an import that is refused and asserts that no device was written to.
fn refused_untouched(
    fixture: &Fixture,
    devices: &[Arc<dyn BlockDevice>],
    options: &ImportOptions,
) -> bedplate_volume::Error {
    let before: Vec<usize> =
        fixture.members.iter().map(|member| member.operation_count()).collect();
    let error = refused(devices, options);
    assert_eq!(
        fixture.members.iter().map(|member| member.operation_count()).collect::<Vec<_>>(),
        before,
        "{error}"
    );
    error
}

#[test]
fn a_missing_member_is_named_and_the_group_opens_without_it_only_when_told() {
    let fixture = Fixture::new(2, 1);
    fixture.create(Shape::Mirror, 2, 0);
    let error = refused_untouched(&fixture, &[fixture.device(0)], &quiet());
    assert!(
        error.kind == ErrorKind::Missing
            && error.message.contains("member1")
            && error.message.contains("degraded"),
        "{error}"
    );
    let degraded = ImportOptions { degraded: true, ..quiet() };
    drop(Group::import(&[fixture.device(0)], &degraded).unwrap());
    // From then on the group knows, and says no more.
    drop(Group::import(&[fixture.device(0)], &quiet()).unwrap());
}

#[test]
fn two_that_are_gone_are_refused_clearly_and_nothing_is_written() {
    let fixture = Fixture::new(4, 2);
    fixture.create(Shape::StripeMirror, 2, 0);
    let degraded = ImportOptions { degraded: true, ..quiet() };
    let error = refused_untouched(&fixture, &[fixture.device(2), fixture.device(3)], &degraded);
    assert!(
        error.kind == ErrorKind::Broken
            && error.message.contains("member0")
            && error.message.contains("member1"),
        "{error}"
    );
    assert!(error.message.contains("nothing was written"), "{error}");
    // One of each mirror is enough.
    drop(Group::import(&[fixture.device(1), fixture.device(2)], &degraded).unwrap());
}

#[test]
fn a_stripe_needs_all_its_members() {
    let fixture = Fixture::new(3, 3);
    fixture.create(Shape::Stripe, 2, 0);
    let error = refused_untouched(
        &fixture,
        &[fixture.device(0), fixture.device(2)],
        &ImportOptions { degraded: true, ..quiet() },
    );
    assert!(error.kind == ErrorKind::Broken && error.message.contains("member1"), "{error}");
}

#[test]
fn foreign_and_unlabelled_devices_are_named() {
    let (fixture, other) = (Fixture::new(2, 4), Fixture::new(2, 5));
    fixture.create(Shape::Mirror, 2, 0);
    other.create(Shape::Mirror, 2, 0);
    let error = refused_untouched(
        &fixture,
        &[fixture.device(0), fixture.device(1), other.device(1)],
        &quiet(),
    );
    assert_eq!(error.kind, ErrorKind::Foreign);
    let blank = SimulatedDevice::new(MEMBER_BYTES, 1);
    let error = refused_untouched(&fixture, &[fixture.device(0), blank], &quiet());
    assert!(error.kind == ErrorKind::NotAMember && error.message.contains("simulated"), "{error}");
    let error = refused_untouched(&fixture, &[fixture.device(0), fixture.device(0)], &quiet());
    assert_eq!(error.kind, ErrorKind::Duplicated);
    assert_eq!(refused(&[], &quiet()).kind, ErrorKind::Missing);
}

#[test]
fn members_that_went_on_without_each_other_are_refused() {
    let fixture = Fixture::new(2, 6);
    fixture.create(Shape::Mirror, 2, 0);
    let degraded = ImportOptions { degraded: true, ..quiet() };
    for index in [0, 1] {
        let group = Group::import(&[fixture.device(index)], &degraded).unwrap();
        group
            .volume(Role::Data)
            .unwrap()
            .write_at(&AlignedBuf::from_slice(&[index as u8 + 1; 512]), 0)
            .unwrap();
    }
    let error = refused_untouched(&fixture, &fixture.devices(), &quiet());
    assert!(
        error.kind == ErrorKind::Diverged
            && error.message.contains("member0")
            && error.message.contains("member1"),
        "{error}"
    );
}

#[test]
fn a_member_that_was_replaced_while_away_is_outdated() {
    let fixture = Fixture::new(3, 7);
    let mut devices = fixture.devices();
    let new = devices.pop().unwrap();
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices, Vec::new())).unwrap();
    let group =
        Group::import(&[fixture.device(0)], &ImportOptions { degraded: true, ..quiet() }).unwrap();
    group.replace(1, &new).unwrap();
    group.sync().unwrap();
    drop(group);
    let error = refused_untouched(&fixture, &fixture.devices(), &quiet());
    assert!(error.kind == ErrorKind::Outdated && error.message.contains("member1"), "{error}");
    drop(Group::import(&[fixture.device(2), fixture.device(0)], &quiet()).unwrap());
}

/// S-62: a member that failed while the group was in use was opened alone later. Its events had
/// leapt past those of the others by then, which were taken for members that had been away, and
/// written over.
#[test]
fn s_62_a_member_that_failed_and_went_on_alone_is_refused_beside_the_others() {
    for (shape, count) in [(Shape::Mirror, 2), (Shape::Mirror, 3)] {
        let fixture = Fixture::new(count, 10);
        fixture.create(shape, count, 0);
        let group = Group::import(&fixture.devices(), &quiet()).unwrap();
        let last = count - 1;
        fixture.members[last]
            .inject(FaultRule::new(Fault::Write(WriteFault::Fail), Trigger::Always));
        group.volume(Role::Data).unwrap().write_at(&AlignedBuf::from_slice(&[3; 512]), 0).unwrap();
        drop(group);
        let alone =
            MemoryDevice::from_snapshot(&fixture.members[last].snapshot(), MemoryDevice::GEOMETRY);
        drop(
            Group::import(&[Arc::clone(&alone) as _], &ImportOptions { degraded: true, ..quiet() })
                .unwrap(),
        );
        let mut devices = fixture.devices();
        devices[last] = alone;
        let error = refused_untouched(&fixture, &devices, &quiet());
        assert!(error.kind == ErrorKind::Diverged && error.message.contains("member0"), "{error}");
    }
}

/// Writes 512 bytes of `fill` to every 64 KiB of the data.
fn filled(group: &Group, fill: u8) {
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes())
        .step_by(64 << 10)
        .for_each(|at| device.write_at(&AlignedBuf::from_slice(&[fill; 512]), at).unwrap());
    device.flush().unwrap();
}

/// S-62: a disk that was put back from a snapshot of last week was taken for up to date, and what
/// it held was read.
#[test]
fn s_62_an_older_copy_of_a_member_is_refused_and_filled_anew_once_the_group_went_on_without_it() {
    for died_later in [false, true] {
        for shape in [Shape::Mirror, Shape::Raid5] {
            let fixture = Fixture::new(3, 9);
            let count = if shape == Shape::Mirror { 2 } else { 3 };
            bedplate_volume::create(&new_group(
                shape,
                2,
                fixture.devices()[..count].to_vec(),
                Vec::new(),
            ))
            .unwrap();
            let devices = fixture.devices()[..count].to_vec();
            let group = Group::import(&devices, &quiet()).unwrap();
            group.sync().unwrap();
            filled(&group, 1);
            drop(group);
            let copy = fixture.members[1].snapshot();
            let group = Group::import(&devices, &quiet()).unwrap();
            filled(&group, 2);
            if died_later {
                // What was written is in no log any more.
                group.clean_up().unwrap();
                group.clean_up().unwrap();
                fixture.members[1]
                    .inject(FaultRule::new(Fault::Write(WriteFault::Fail), Trigger::Always));
                group
                    .volume(Role::Data)
                    .unwrap()
                    .write_at(&AlignedBuf::from_slice(&[3; 512]), 0)
                    .unwrap();
            }
            drop(group);
            let old: Arc<dyn BlockDevice> =
                MemoryDevice::from_snapshot(&copy, MemoryDevice::GEOMETRY);
            let mut with_old = devices.clone();
            with_old[1] = Arc::clone(&old);
            if !died_later {
                let error = refused_untouched(&fixture, &with_old, &quiet());
                assert!(
                    error.kind == ErrorKind::Outdated
                        && error.message.contains("older copy")
                        && error.message.contains("member1"),
                    "{error}"
                );
                drop(
                    Group::import(&with_old, &ImportOptions { degraded: true, ..quiet() }).unwrap(),
                );
            }
            let group = Group::import(&with_old, &quiet()).unwrap();
            group.sync().unwrap();
            assert_eq!(
                group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap().differences,
                [],
                "{shape:?}, died later: {died_later}"
            );
            drop(group);
            // What it holds now is all that there is of its part.
            with_old.remove(0);
            let group =
                Group::import(&with_old, &ImportOptions { degraded: true, ..quiet() }).unwrap();
            let mut read = AlignedBuf::zeroed(512);
            group.volume(Role::Data).unwrap().read_at(&mut read, 512 << 10).unwrap();
            assert_eq!(read[..], [2; 512]);
        }
    }
}

#[test]
fn a_device_named_twice_or_a_member_of_another_group_makes_no_group() {
    let fixture = Fixture::new(3, 8);
    fixture.create(Shape::Mirror, 3, 0);
    let error =
        bedplate_volume::create(&new_group(Shape::Mirror, 2, fixture.devices(), Vec::new()))
            .unwrap_err();
    assert!(
        error.kind == ErrorKind::Foreign
            && error.message.contains("member0")
            && error.message.contains("tank"),
        "{error}"
    );
    let one = fixture.device(0);
    let twice = new_group(Shape::Mirror, 2, vec![Arc::clone(&one), one], Vec::new());
    assert_eq!(bedplate_volume::create(&twice).unwrap_err().kind, ErrorKind::Duplicated);
    let mut named = new_group(Shape::Mirror, 2, fixture.devices(), Vec::new());
    named.force = true;
    for name in ["", "a/b", "-x", "a:b"] {
        assert_eq!(
            bedplate_volume::create(&bedplate_volume::NewGroup {
                name: name.into(),
                ..named.clone()
            })
            .unwrap_err()
            .kind,
            ErrorKind::Invalid
        );
    }
    let odd = bedplate_volume::NewGroup { region_bytes: Some(3 << 16), ..named };
    assert_eq!(bedplate_volume::create(&odd).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn a_member_that_somebody_uses_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..2).map(|n| dir.path().join(format!("m{n}"))).collect();
    paths.iter().for_each(|path| bedplate_block::create_image(path, MEMBER_BYTES, false).unwrap());
    let open = || {
        paths
            .iter()
            .map(|path| bedplate_block::open(path, &DeviceOptions::default()))
            .collect::<Result<Vec<_>, _>>()
    };
    let devices = open().unwrap();
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices.clone(), Vec::new())).unwrap();
    let group = Group::import(&devices, &ImportOptions::default()).unwrap();
    drop(devices);
    let error = open().unwrap_err();
    assert!(
        error.kind == bedplate_block::ErrorKind::Busy && error.to_string().contains("m0"),
        "{error}"
    );
    let device = group.volume(Role::Data).unwrap();
    drop(group);
    assert!(open().is_err(), "a volume in use keeps its group open");
    drop(device);
    drop(open().unwrap());
}

#[test]
fn a_group_that_is_only_looked_at_is_not_written_to() {
    let fixture = Fixture::new(2, 9);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&AlignedBuf::from_slice(&[5; 4096]), 0).unwrap();
    device.flush().unwrap();
    // The power goes: the group was not closed.
    let now = fixture.clock.lock().last().unwrap().clone();
    let members: Vec<Arc<SimulatedDevice>> = fixture
        .after_cut(&now, 1)
        .iter()
        .map(|member| {
            SimulatedDevice::over(&member.snapshot(), &bedplate_block::SimulatedOptions::default())
        })
        .collect();
    let options = ImportOptions { read_only: true, ..quiet() };
    let looked = Group::import(
        &members.iter().map(|member| Arc::clone(member) as _).collect::<Vec<_>>(),
        &options,
    )
    .unwrap();
    let volume = looked.volume(Role::Data).unwrap();
    let mut back = AlignedBuf::zeroed(4096);
    volume.read_at(&mut back, 0).unwrap();
    assert_eq!(back[..], [5; 4096]);
    assert_eq!(volume.write_at(&back, 0).unwrap_err().kind, bedplate_block::ErrorKind::ReadOnly);
    drop((volume, looked));
    assert!(members.iter().all(|member| member.operation_count() == 0));
}

#[test]
fn a_read_only_device_makes_no_member() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    bedplate_block::create_image(&path, MEMBER_BYTES, false).unwrap();
    let device =
        bedplate_block::open(&path, &DeviceOptions { read_only: true, ..DeviceOptions::default() })
            .unwrap();
    let other = SimulatedDevice::new(MEMBER_BYTES, 1);
    let error =
        bedplate_volume::create(&new_group(Shape::Mirror, 2, vec![device, other], Vec::new()))
            .unwrap_err();
    assert!(
        error.kind == ErrorKind::Invalid
            && error.message.contains("read-only")
            && error.message.contains("/m "),
        "{error}"
    );
}

/// A device whose blocks are larger than the volume's was taken in, and every small write failed on
/// it from then on.
#[test]
fn a_device_with_larger_blocks_takes_nobodys_place() {
    let fixture = Fixture::new(2, 12);
    fixture.create(Shape::Mirror, 2, 0);
    let group = Group::import(&fixture.devices(), &quiet()).unwrap();
    let geometry = Geometry {
        logical_block_size: 4096,
        physical_block_size: 4096,
        untorn_unit: 4096,
        ..MemoryDevice::GEOMETRY
    };
    let coarse: Arc<dyn BlockDevice> = MemoryDevice::with_geometry(MEMBER_BYTES, geometry);
    for error in [group.add_spare(&coarse).unwrap_err(), group.replace(1, &coarse).unwrap_err()] {
        assert!(
            error.kind == ErrorKind::Invalid && error.message.contains("blocks of 4096 bytes"),
            "{error}"
        );
    }
    assert_eq!(
        Label::read(&*coarse).unwrap_err().kind,
        ErrorKind::NotAMember,
        "it was not written to"
    );
}

/// A device that was forced into a group lost its old label first, also where the group then
/// refused it.
#[test]
fn a_forced_device_that_is_refused_keeps_its_label() {
    let (fixture, other) = (Fixture::new(2, 13), Fixture::new(2, 14));
    fixture.create(Shape::Mirror, 2, 0);
    other.create(Shape::Mirror, 2, 0);
    let group = Group::import(&fixture.devices(), &quiet()).unwrap();
    let taken = other.device(1);
    let by_force = Arrival { device: &taken, force: true };
    let before = other.members[1].operation_count();
    assert_eq!(group.replace(0, &taken).unwrap_err().kind, ErrorKind::Foreign);
    assert_eq!(group.unrelocate(0, by_force).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(other.members[1].operation_count(), before, "nothing was written to it");
    group.replace(1, by_force).unwrap();
    assert_eq!(Label::read(&*taken).unwrap().config.id, group.config().id);
}
