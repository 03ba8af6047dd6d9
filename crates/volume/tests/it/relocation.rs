//! Hot relocation to free space of other members, and back.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_volume::{ErrorKind, Group, ImportOptions, MemberState, NewGroup, Role, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{
    Acknowledged, Fixture, MEMBER_BYTES, allowed, new_group, quiet, stamp_of, stamped, ticks,
};

/// Room for a whole member besides its own data.
const ROOMY: u64 = 2 * MEMBER_BYTES + (2 << 20);

/// A group whose members leave room for others.
fn roomy(shape: Shape, count: usize, seed: u64) -> (Fixture, Group) {
    with_room(shape, count, seed, ROOMY - MEMBER_BYTES)
}

fn with_room(shape: Shape, count: usize, seed: u64, reserve_bytes: u64) -> (Fixture, Group) {
    let fixture = Fixture::of_sizes(&vec![MEMBER_BYTES + reserve_bytes; count], seed);
    let new = NewGroup { reserve_bytes, ..new_group(shape, 2, fixture.devices(), Vec::new()) };
    bedplate_volume::create(&new).unwrap();
    let group = fixture.import();
    group.sync().unwrap();
    (fixture, group)
}

fn fill(device: &dyn BlockDevice, number: u64) {
    (0..device.size_bytes())
        .step_by(65_536)
        .for_each(|at| device.write_at(&stamped(at, 65_536, number), at).unwrap());
    device.flush().unwrap();
}

fn seen(device: &dyn BlockDevice) -> Vec<u64> {
    let mut buf = AlignedBuf::zeroed(device.size_bytes() as usize);
    device.read_at(&mut buf, 0).unwrap();
    buf.chunks(512)
        .zip((0..).step_by(512))
        .map(|(sector, address)| stamp_of(sector, address))
        .collect()
}

fn all(device: &dyn BlockDevice, number: u64, context: &str) {
    assert!(seen(device).iter().all(|seen| *seen == number), "{context}");
}

/// S-87: the data of a member that fails is whole again in free space of others, and survives the
/// next failure.
#[test]
fn s_87_a_member_without_a_spare_moves_into_free_space_of_others() {
    // In whole on one host; in pieces on two.
    for (shape, count, room, pieces) in [
        (Shape::StripeMirror, 4, 7, 1),
        (Shape::StripeMirror, 6, 4, 2),
        (Shape::MirrorStripe, 4, 7, 1),
    ] {
        let (fixture, group) = with_room(shape, count, 40, room << 20);
        let device = group.volume(Role::Data).unwrap();
        fill(&*device, 1);
        fixture.members[1].die();
        fill(&*device, 2);
        group.sync().unwrap();
        let config = group.config();
        let relocated = &config.members[1];
        assert_eq!((relocated.state, config.stranded(1)), (MemberState::Active, None), "{shape:?}");
        let hosts: Vec<usize> = relocated
            .relocated
            .iter()
            .flat_map(|relocated| &relocated.pieces)
            .map(|piece| config.index_of(piece.host).unwrap())
            .collect();
        let partner = if shape == Shape::StripeMirror { 0 } else { 3 };
        assert!(
            hosts.len() == pieces && !hosts.contains(&partner),
            "{shape:?}: {hosts:?}, I-GST-1"
        );
        assert_eq!(
            config.members.last().map(|last| (last.path.as_str(), last.state)),
            Some(("member1", MemberState::Failed))
        );
        // Now the one that held the only other copy may go, or the host.
        let second = if shape == Shape::StripeMirror { 0 } else { hosts[0] };
        fixture.members[second].die();
        fill(&*device, 3);
        all(&*device, 3, "after the second failure");
        drop((device, group));
        // What is there after that opens again, the guest included.
        let kept: Vec<_> = (0..count)
            .filter(|at| ![1, second].contains(at))
            .map(|at| fixture.device(at))
            .collect();
        let group = Group::import(&kept, &ImportOptions { degraded: true, ..quiet() }).unwrap();
        all(&*group.volume(Role::Data).unwrap(), 3, "opened again");
    }
}

/// S-87: of a mirror or a RAID-5 every other member holds another part of the same rows.
#[test]
fn s_87_where_redundancy_would_be_a_lie_nothing_moves_and_that_is_said() {
    for (shape, count) in [(Shape::Mirror, 2), (Shape::Raid5, 3)] {
        let (fixture, group) = roomy(shape, count, 41);
        let device = group.volume(Role::Data).unwrap();
        fill(&*device, 1);
        fixture.members[1].die();
        fill(&*device, 2);
        group.sync().unwrap();
        let config = group.config();
        assert_eq!((config.members[1].state, config.members.len()), (MemberState::Failed, count));
        let why = config.stranded(1).unwrap();
        assert!(
            why.contains("another part of the same rows") && why.contains("add a spare"),
            "{why}"
        );
        // A member without data is room enough.
        let extra: Arc<dyn BlockDevice> = MemoryDevice::new(ROOMY);
        group.add_member(&extra).unwrap();
        group.sync().unwrap();
        let config = group.config();
        assert_eq!(
            (config.members[1].state, config.stranded(1)),
            (MemberState::Active, None),
            "{shape:?}"
        );
        fixture.members[0].die();
        fill(&*device, 3);
        all(&*device, 3, "without two of the first members");
        let host =
            config.index_of(config.members[1].relocated.as_ref().unwrap().pieces[0].host).unwrap();
        assert!(group.remove(host).unwrap_err().message.contains("unrelocate"));
    }
}

/// S-88: back on its own device, or on another, the room is free again.
#[test]
fn s_88_a_member_moves_back_to_the_device_that_it_was_on() {
    let (fixture, group) = roomy(Shape::StripeMirror, 4, 42);
    let device = group.volume(Role::Data).unwrap();
    fill(&*device, 1);
    fixture.members[1].die();
    fill(&*device, 2);
    group.sync().unwrap();
    drop((device, group));
    let back: Arc<dyn BlockDevice> =
        MemoryDevice::from_snapshot(&fixture.members[1].snapshot(), MemoryDevice::GEOMETRY);
    let others: Vec<_> = [0, 2, 3].into_iter().map(|at| fixture.device(at)).collect();
    let group = Group::import(&others, &quiet()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    let to = bedplate_volume::Target {
        unit_bytes: Some(32 << 10),
        ..bedplate_volume::Target::default()
    };
    assert!(group.relayout(Role::Data, &to, 0).unwrap_err().message.contains("unrelocate"));
    assert_eq!(group.unrelocate(0, &back).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(group.unrelocate(1, &fixture.device(2)).unwrap_err().kind, ErrorKind::Foreign);
    group.unrelocate(1, &back).unwrap();
    fill(&*device, 3);
    group.sync().unwrap();
    let config = group.config();
    assert!(
        config
            .members
            .iter()
            .all(|member| member.state == MemberState::Active && member.relocated.is_none())
            && config.members.len() == 4
    );
    assert_eq!(config.members[1].path, back.name());
    fixture.members[0].die();
    all(&*device, 3, "from the member that is back");
}

/// Works, lets member 1 die, and moves what it held; writes all the while.
fn run(
    seed: u64,
    second: Option<(usize, usize)>,
) -> (Fixture, Vec<Acknowledged>, HashMap<u64, u64>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (fixture, group) = roomy(Shape::StripeMirror, 6, seed);
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes())
        .step_by(4096)
        .for_each(|at| device.write_at(&stamped(at, 4096, 1), at).unwrap());
    device.flush().unwrap();
    fixture.make_all_durable();
    let (mut history, mut model, mut number) = (Vec::new(), HashMap::new(), 1);
    history.push(Acknowledged {
        write: Some((0, device.size_bytes() as usize, 1)),
        begun: 0,
        ended: 0,
    });
    history.push(Acknowledged { write: None, begun: 0, ended: 0 });
    fixture.members[1].die();
    if let Some((member, operations)) = second {
        fixture.members[member].die_after(fixture.members[member].operation_count() + operations);
    }
    for round in 0..12 {
        number += 1;
        let at = rng.random_range(0..device.size_bytes() / 4096) * 4096;
        let begun = ticks(&fixture);
        device.write_at(&stamped(at, 4096, number), at).unwrap();
        model.insert(at, number);
        history.push(Acknowledged {
            write: Some((at, 4096, number)),
            begun,
            ended: ticks(&fixture),
        });
        if round % 3 == 1 {
            let begun = ticks(&fixture);
            device.flush().unwrap();
            history.push(Acknowledged { write: None, begun, ended: ticks(&fixture) });
        }
        if round == 3 || round == 9 {
            group.sync().unwrap();
        }
    }
    for at in (0..device.size_bytes()).step_by(4096) {
        let mut buf = AlignedBuf::zeroed(4096);
        device.read_at(&mut buf, at).unwrap();
        assert_eq!(
            stamp_of(&buf[..512], at),
            model.get(&at).copied().unwrap_or(1),
            "seed {seed}, {second:?}, at {at}"
        );
    }
    (fixture, history, model)
}

/// S-87: whatever operation of whatever member a power cut follows while a member moves.
#[test]
fn s_87_a_power_cut_during_a_relocation_loses_nothing() {
    let (fixture, history, _) = run(43, None);
    let moments = fixture.moments();
    let every = std::env::var_os("BEDPLATE_EVERY_CUT").is_some();
    let (mut states, mut moved) = (0, 0);
    for moment in moments.iter().step_by(if every { 1 } else { moments.len().div_ceil(240) | 1 }) {
        states += 1;
        let images = fixture.after_cut(moment, states % 6);
        // Member 1 is dead for good.
        let devices: Vec<Arc<dyn BlockDevice>> = images
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != 1)
            .map(|(_, image)| Arc::clone(image) as _)
            .collect();
        // Until its death was noted it is missing, from then on it is not: nothing that moved is
        // ever missing.
        let group = match Group::import(&devices, &quiet()) {
            Err(error)
                if error.kind == ErrorKind::Missing && error.message.contains("member1 (") =>
            {
                Group::import(&devices, &ImportOptions { degraded: true, ..quiet() }).unwrap()
            }
            opened => opened.unwrap_or_else(|error| panic!("cut at {moment:?}: {error}")),
        };
        let device = group.volume(Role::Data).unwrap();
        let before = seen(&*device);
        for (number, at) in before.iter().zip((0..).step_by(512)) {
            let allowed = allowed(&history, at, moment.iter().sum());
            assert!(
                allowed.contains(number),
                "cut at {moment:?}: sector {at} shows {number}, allowed {allowed:?}"
            );
        }
        group.sync().unwrap();
        assert!(
            group.config().members[1].state == MemberState::Active,
            "cut at {moment:?}: {:?}",
            group.config().stranded(1)
        );
        assert!(seen(&*device) == before, "cut at {moment:?}: the move changed something");
        assert_eq!(
            group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap().differences,
            [],
            "cut at {moment:?}"
        );
        moved += u64::from(group.config().members[1].relocated.is_some());
    }
    println!(
        "power cuts during a relocation: {states} states tried, {moved} with the member moved in \
         the end, 0 violations"
    );
    assert_eq!(moved, states);
}

/// S-87: a second member dies at any moment of the move, its host among them.
#[test]
fn s_87_a_second_member_that_dies_during_a_relocation_causes_no_error() {
    let (reference, _, _) = run(44, None);
    let mut states = 0;
    for member in [2, 3, 4, 5] {
        let last = reference.members[member].operation_count();
        for operations in (1..last).step_by((last / 12).max(1)) {
            run(44, Some((member, operations)));
            states += 1;
        }
    }
    println!("second members that die during a relocation: {states} states tried, 0 violations");
}
