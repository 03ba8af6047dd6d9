//! A member dies after any of its operations, comes back old or damaged, and two die: no error to
//! the caller, nothing wrong afterwards.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, MemoryDevice, QueueOptions, Request, RequestKind, Segment,
    SimulatedDevice, SimulatedOptions,
};
use bedplate_volume::{ErrorKind, Group, ImportOptions, MemberState, Role, Shape, Undecided};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Fixture, quiet, stamp_of, stamped};

const SHAPES: [(Shape, usize); 3] =
    [(Shape::Mirror, 2), (Shape::StripeMirror, 4), (Shape::MirrorStripe, 4)];

/// What every sector shows that was written.
type Model = HashMap<u64, u64>;

/// Writes, reads and flushes, by calls and by a queue in turn; every one of them succeeds.
fn work(device: &dyn BlockDevice, model: &mut Model, seed: u64, steps: std::ops::Range<u64>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut queue =
        device.queue(&QueueOptions { depth_max: 4, ..QueueOptions::default() }).unwrap();
    for step in steps {
        let len = 512 * rng.random_range(1..=80_usize);
        let offset = rng.random_range(0..=(device.size_bytes() - len as u64) / 512) * 512;
        if step % 4 == 3 {
            check(device, model, offset, len);
            device.flush().unwrap();
            continue;
        }
        if step % 2 == 0 {
            device.write_at(&stamped(offset, len, step + 1), offset).unwrap();
        } else {
            let first = Segment { offset, len: len as u32 };
            queue
                .push(Request {
                    token: step,
                    kind: RequestKind::Write,
                    buf: Some(stamped(offset, len, step + 1)),
                    first,
                    rest: Vec::new(),
                })
                .unwrap();
            let mut done = Vec::new();
            queue.complete(1, &mut done).unwrap();
            assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        }
        model.extend((offset..offset + len as u64).step_by(512).map(|at| (at, step + 1)));
    }
}

fn check(device: &dyn BlockDevice, model: &Model, offset: u64, len: usize) {
    let mut buf = AlignedBuf::zeroed(len);
    device.read_at(&mut buf, offset).unwrap();
    for (at, sector) in (offset..).step_by(512).zip(buf.chunks(512)) {
        assert_eq!(stamp_of(sector, at), model.get(&at).copied().unwrap_or(0), "at {at}");
    }
}

fn check_all(group: &Group, model: &Model) {
    let device = group.volume(Role::Data).unwrap();
    check(&*device, model, 0, device.size_bytes() as usize);
}

fn devices(members: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    members.iter().map(|member| Arc::clone(member) as _).collect()
}

/// S-60, S-63
#[test]
fn a_member_dies_after_any_of_its_operations_and_comes_back_as_it_was() {
    let mut states = 0;
    for (shape, members) in SHAPES {
        let reference = Fixture::new(members, 50);
        reference.create(shape, 2, 0);
        let before = reference.members[1].operation_count();
        {
            let group = reference.import();
            work(&*group.volume(Role::Data).unwrap(), &mut Model::new(), 3, 0..16);
        }
        for dies_after in (before + 1..=reference.members[1].operation_count()).step_by(2) {
            let fixture = Fixture::new(members, 50);
            fixture.create(shape, 2, 0);
            let mut model = Model::new();
            fixture.members[1].die_after(dies_after);
            {
                let group = fixture.import();
                work(&*group.volume(Role::Data).unwrap(), &mut model, 3, 0..16);
                check_all(&group, &model);
            }
            // The dead one is away; the others are opened and written to; then it comes back with
            // what it held.
            let mut back: Vec<_> = fixture
                .members
                .iter()
                .map(|member| {
                    MemoryDevice::from_snapshot(&member.snapshot(), MemoryDevice::GEOMETRY)
                })
                .collect();
            let dead = back.remove(1);
            {
                let group =
                    Group::import(&devices(&back), &ImportOptions { degraded: true, ..quiet() })
                        .unwrap();
                work(&*group.volume(Role::Data).unwrap(), &mut model, 4, 100..108);
            }
            back.insert(1, dead);
            let group = Group::import(&devices(&back), &quiet()).unwrap();
            check_all(&group, &model);
            group.sync().unwrap();
            assert!(
                group.config().members.iter().all(|member| member.state == MemberState::Active)
            );
            assert_eq!(
                group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences,
                [],
                "{shape:?}, died after {dies_after}"
            );
            check_all(&group, &model);
            states += 1;
        }
    }
    println!("members that die and come back: {states} states tried, 0 violations");
}

#[test]
fn a_member_that_comes_back_damaged_is_named_or_copied_anew() {
    let fixture = Fixture::new(2, 51);
    fixture.create(Shape::Mirror, 2, 0);
    let mut model = Model::new();
    work(&*fixture.import().volume(Role::Data).unwrap(), &mut model, 5, 0..8);
    let alone = ImportOptions { degraded: true, ..quiet() };
    work(
        &*Group::import(&[fixture.device(0)], &alone).unwrap().volume(Role::Data).unwrap(),
        &mut model,
        6,
        8..16,
    );
    let snapshot = fixture.members[1].snapshot();
    let returned = |damage: &[u64]| {
        let device = SimulatedDevice::over(&snapshot, &SimulatedOptions::default());
        damage.iter().for_each(|at| device.decay(*at, 0x10));
        device
    };
    // Both labels damaged: refused by name, and the group goes on without it.
    let error = Group::import(&[fixture.device(0), returned(&[100, (1 << 20) + 100])], &quiet())
        .unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("simulated"), "{error}");
    // Its dirty region log damaged: what it says is not believed, and everything is copied.
    let group =
        Group::import(&[fixture.device(0), returned(&[100, (2 << 20) + 50])], &quiet()).unwrap();
    group.sync().unwrap();
    assert_eq!(group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences, []);
    check_all(&group, &model);
}

#[test]
fn two_that_die_one_after_the_other_are_an_error_that_names_both_unless_copies_are_left() {
    for (shape, first, second, lives) in [
        (Shape::Mirror, 0, 1, false),
        (Shape::StripeMirror, 0, 1, false),
        (Shape::StripeMirror, 0, 2, true),
        (Shape::MirrorStripe, 0, 1, true),
        (Shape::MirrorStripe, 0, 3, true),
        (Shape::MirrorStripe, 0, 2, false),
    ] {
        let fixture = Fixture::new(if shape == Shape::Mirror { 2 } else { 4 }, 52);
        fixture.create(shape, 2, 0);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let whole = stamped(0, 64 << 10, 1);
        device.write_at(&whole, 0).unwrap();
        fixture.members[first].die();
        device.write_at(&whole, 0).unwrap();
        fixture.members[second].die();
        let written = device.write_at(&stamped(0, 64 << 10, 2), 0);
        assert_eq!(written.is_ok(), lives, "{shape:?}, {first} and {second}: {written:?}");
        match written {
            Ok(()) => device.flush().unwrap(),
            Err(error) => {
                assert!(
                    error.detail.contains(&format!("member{first}"))
                        && error.detail.contains(&format!("member{second}")),
                    "{error}"
                );
                assert!(
                    device.flush().is_err() && device.write_at(&whole, 0).is_err(),
                    "nothing is written or called durable again"
                );
            }
        }
    }
}
