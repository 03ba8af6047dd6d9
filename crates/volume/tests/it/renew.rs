//! Groups that are imported under another name and identity, beside the one that they are copies of.

use std::sync::Arc;

use bedplate_block::{BlockDevice, HookedDevice, MemoryDevice};
use bedplate_volume::{ErrorKind, Group, Id, ImportOptions, Label, Role, Shape};

use super::fixture::{Fixture, quiet, stamp_of, stamped};

fn named(devices: Vec<Arc<MemoryDevice>>) -> Vec<Arc<dyn BlockDevice>> {
    #[derive(Debug)]
    struct Through;
    impl bedplate_block::Hook for Through {
        fn call(
            &self,
            _: bedplate_block::DeviceCall<'_>,
            pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
        ) -> bedplate_block::Result<()> {
            pass()
        }
    }
    let name = |(at, device): (usize, Arc<MemoryDevice>)| {
        HookedDevice::named(format!("copy{at}"), device as _, Through) as Arc<dyn BlockDevice>
    };
    devices.into_iter().enumerate().map(name).collect()
}

fn fill(group: &Group, number: u64) {
    let volume = group.volume(Role::Data).unwrap();
    for at in (0..volume.size_bytes().min(1 << 20)).step_by(32 << 10) {
        volume.write_at(&stamped(at, 8192, number), at).unwrap();
    }
    volume.flush().unwrap();
}

fn shows(group: &Group, number: u64) -> bool {
    let volume = group.volume(Role::Data).unwrap();
    (0..volume.size_bytes().min(1 << 20)).step_by(32 << 10).all(|at| {
        let mut buf = bedplate_block::AlignedBuf::zeroed(8192);
        volume.read_at(&mut buf, at).unwrap();
        buf.chunks(512).zip(0..).all(|(sector, n)| stamp_of(sector, at + n * 512) == number)
    })
}

fn ids(group: &Group) -> Vec<Id> {
    let config = group.config();
    config.members.iter().map(|member| member.id).chain([config.id]).collect()
}

const SHAPES: [(Shape, usize, usize); 4] = [
    (Shape::Mirror, 2, 2),
    (Shape::Raid5, 1, 3),
    (Shape::StripeMirror, 2, 4),
    (Shape::Stripe, 1, 2),
];

/// S-400: copies of all members, made while the group was open, are a group of their own, open beside
/// it: each keeps what it had, and neither takes a member of the other for its own.
#[test]
fn s_400_a_copy_under_a_new_identity_is_open_beside_the_group() {
    for (shape, plexes, members) in SHAPES {
        let fixture = Fixture::new(members, 3);
        fixture.create(shape, plexes, 0);
        let original = fixture.import();
        fill(&original, 7);
        let now: Vec<usize> =
            fixture.members.iter().map(|member| member.operation_count()).collect();
        let copies = named(fixture.after_cut(&now, 1));
        let copy = Group::import_as(&copies, "tank2", &quiet()).unwrap();
        assert_eq!((copy.config().name, original.config().name), ("tank2".into(), "tank".into()));
        assert!(ids(&copy).iter().all(|id| !ids(&original).contains(id)), "{shape:?}");
        fill(&copy, 8);
        assert!(shows(&copy, 8) && shows(&original, 7), "{shape:?}");
        fill(&original, 9);
        drop(copy);
        let mixed = [vec![fixture.device(0)], copies[1..].to_vec()].concat();
        let error = Group::import(&mixed, &quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Foreign, "{error}");
        let copy = Group::import(&copies, &quiet()).unwrap();
        copy.sync().unwrap();
        assert!(shows(&copy, 8), "{shape:?}");
        drop(original);
        let original = fixture.import();
        assert!(shows(&original, 9), "{shape:?}");
        // Under its own name again: another identity all the same.
        let before = ids(&copy);
        drop(copy);
        let again = Group::import_as(&copies, "tank2", &quiet()).unwrap();
        assert!(ids(&again).iter().all(|id| !before.contains(id)) && shows(&again, 8));
    }
}

/// S-400: the half of a mirror that was split off.
#[test]
fn s_400_a_half_of_a_mirror_goes_on_under_a_new_identity() {
    let fixture = Fixture::new(2, 4);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    fill(&group, 5);
    drop(group);
    let half = [fixture.device(1)];
    let error = Group::import_as(&half, "half", &quiet()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Missing, "{error}");
    let degraded = ImportOptions { degraded: true, ..quiet() };
    let split = Group::import_as(&half, "half", &degraded).unwrap();
    let original = Group::import(&[fixture.device(0)], &degraded).unwrap();
    fill(&split, 6);
    assert!(shows(&split, 6) && shows(&original, 5));
    assert!(ids(&split).iter().all(|id| !ids(&original).contains(id)));
}

/// S-401, I-REN-1: a power cut in the middle leaves one identity or two that the same call makes one; never a
/// group that opens without the members which have the other.
#[test]
fn s_401_a_cut_is_mended_by_the_same_call() {
    for (shape, plexes, members) in SHAPES {
        let fixture = Fixture::new(members, 5);
        fixture.create(shape, plexes, 0);
        let group = fixture.import();
        fill(&group, 3);
        drop(group);
        fixture.make_all_durable();
        let old = Label::read(&*fixture.device(0)).unwrap().config.id;
        drop(Group::import_as(&fixture.devices(), "tank2", &quiet()).unwrap());
        let mut apart = 0;
        for (at, moment) in fixture.moments().iter().enumerate() {
            for choice in [0, 1, 2, at as u64 + 4] {
                let left = named(fixture.after_cut(moment, choice));
                let context = format!("{shape:?}, moment {at}, choice {choice}");
                let labels: Vec<Id> =
                    left.iter().map(|device| Label::read(&**device).unwrap().config.id).collect();
                if labels.iter().any(|id| *id != labels[0]) {
                    apart += 1;
                    let error = Group::import(&left, &quiet()).unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Foreign, "{context}: {error}");
                    let other = Group::import_as(&left, "other", &quiet()).unwrap_err();
                    assert_eq!(other.kind, ErrorKind::Foreign, "{context}: {other}");
                }
                let renewed = Group::import_as(&left, "tank2", &quiet())
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                renewed.sync().unwrap();
                assert!(shows(&renewed, 3), "{context}");
                assert!(!ids(&renewed).contains(&old), "{context}");
                drop(renewed);
                drop(Group::import(&left, &quiet()).unwrap());
            }
        }
        assert!(apart > 0, "{shape:?}: a cut came between two labels");
    }
}
