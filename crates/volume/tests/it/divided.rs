//! Groups with many volumes: what each holds beside the others, members that are lost and replaced,
//! and power cuts in changes of the table.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, SimulatedDevice, Window, WindowPiece};

use super::fixture::{Fixture, quiet, stamp_of, stamped};
use super::tested::{
    Arrangement, Arrival, ErrorKind, Group, Id, ImportOptions, NewDivided, NewVolume, Role, Shape,
    TableLock, VolumeTable, add_member, add_volume, begin_replace, create_divided, end_replace,
    grow_volume, remove_volume,
};

type Devices = Vec<Arc<dyn BlockDevice>>;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 40 * MIB;

fn new(name: &str, shape: Shape, size_bytes: Option<u64>) -> NewVolume {
    let arrangement = Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 };
    NewVolume { name: name.into(), arrangement, size_bytes, members: Vec::new() }
}

fn window(device: &Arc<dyn BlockDevice>, pieces: &[Range<u64>]) -> Arc<dyn BlockDevice> {
    let piece = |piece: &Range<u64>| WindowPiece {
        device: Arc::clone(device),
        start: piece.start,
        len: piece.end - piece.start,
    };
    let name = format!("{} {pieces:?}", device.name());
    Window::open(name, pieces.iter().map(piece).collect())
}

/// Two volumes of different layouts on three members.
fn made(seed: u64) -> (Fixture, VolumeTable) {
    let fixture = Fixture::of_sizes(&[SIZE; 3], seed);
    let volumes =
        vec![new("redo", Shape::Mirror, Some(MIB)), new("data", Shape::Raid5, Some(4 * MIB))];
    let members = fixture.devices();
    let table = create_divided(&NewDivided { name: "tank".into(), members, volumes, force: false })
        .unwrap();
    fixture.make_all_durable();
    (fixture, table)
}

/// The devices of the members that a table names, by their identities.
fn by_id(devices: &[Arc<dyn BlockDevice>]) -> Vec<(Id, Arc<dyn BlockDevice>)> {
    let read = |device: &Arc<dyn BlockDevice>| {
        Some((VolumeTable::read(&**device).ok()?.0, Arc::clone(device)))
    };
    devices.iter().filter_map(read).collect()
}

fn newest(devices: &[Arc<dyn BlockDevice>]) -> VolumeTable {
    let tables: Vec<VolumeTable> =
        devices.iter().filter_map(|device| Some(VolumeTable::read(&**device).ok()?.1)).collect();
    VolumeTable::newest(tables.iter()).unwrap()
}

fn parts(devices: &[Arc<dyn BlockDevice>], table: &VolumeTable, volume: &str) -> Devices {
    let found = by_id(devices);
    let part = |(id, device): &(Id, Arc<dyn BlockDevice>)| {
        Some(window(device, &table.volume(volume)?.part_on(*id)?.pieces))
    };
    found.iter().filter_map(part).collect()
}

fn import(devices: &[Arc<dyn BlockDevice>], volume: &str, context: &str) -> Group {
    let table = newest(devices);
    let options = ImportOptions { degraded: true, ..quiet() };
    Group::import(&parts(devices, &table, volume), &options)
        .unwrap_or_else(|error| panic!("{context}: {volume}: {error}"))
}

fn lock(devices: &[Arc<dyn BlockDevice>]) -> TableLock {
    TableLock::open(devices.to_vec()).unwrap()
}

fn fill(group: &Group, write: u64) {
    let device = group.volume(Role::Data).unwrap();
    for at in (0..device.size_bytes()).step_by(256 << 10) {
        device.write_at(&stamped(at, 4096, write), at).unwrap();
    }
    device.flush().unwrap();
}

fn holds(group: &Group, write: u64, context: &str) {
    let device = group.volume(Role::Data).unwrap();
    for at in (0..device.size_bytes()).step_by(256 << 10) {
        let mut seen = AlignedBuf::zeroed(4096);
        device.read_at(&mut seen, at).unwrap();
        assert_eq!(stamp_of(&seen[..512], at), write, "{context}: byte {at}");
    }
}

/// S-564: each volume has its own bytes, labels and users.
#[test]
fn s_564_two_volumes_are_open_and_written_side_by_side() {
    let (fixture, table) = made(701);
    let devices = fixture.devices();
    let (redo, data) = (import(&devices, "redo", "first"), import(&devices, "data", "first"));
    assert_eq!((redo.config().name, data.config().name), ("tank/redo".into(), "tank/data".into()));
    assert_ne!(redo.config().id, data.config().id);
    assert_eq!(table.volume("redo").unwrap().id, redo.config().id);
    let size = |group: &Group| group.volume(Role::Data).unwrap().size_bytes();
    assert!(size(&redo) >= MIB && size(&data) >= 4 * MIB);
    std::thread::scope(|scope| {
        scope.spawn(|| fill(&redo, 3));
        scope.spawn(|| fill(&data, 4));
    });
    drop((redo, data));
    holds(&import(&devices, "redo", "again"), 3, "redo");
    holds(&import(&devices, "data", "again"), 4, "data");
    assert_eq!(newest(&devices), table, "volumes that are used change nothing in the table");
}

/// S-568: a member is lost, another takes its place, and every volume is whole again; the same
/// command goes on after it was interrupted.
#[test]
fn s_568_a_lost_member_is_replaced_in_every_volume() {
    let (fixture, table) = made(702);
    let devices = fixture.devices();
    for (volume, write) in [("redo", 3), ("data", 4)] {
        fill(&import(&devices, volume, "first"), write);
    }
    let lost = table.members[0].id;
    let left: Devices = devices[1..].to_vec();
    for volume in ["redo", "data"] {
        drop(import(&left, volume, "without one"));
    }
    let error = add_volume(&mut lock(&left), &new("late", Shape::Mirror, Some(MIB)), &|_, _| {
        panic!("nothing is opened")
    });
    let error = error.unwrap_err();
    assert!(error.kind == ErrorKind::Missing && error.message.contains("member0"), "{error}");

    let spare: Arc<dyn BlockDevice> = SimulatedDevice::new(SIZE, 70299);
    let new_id = begin_replace(&mut lock(&left), lost, &spare, false).unwrap();
    let all: Devices = left.iter().chain([&spare]).cloned().collect();
    assert!(begin_replace(&mut lock(&all), lost, &devices[0], true).is_err(), "it has one already");
    let table = newest(&all);
    for (volume, write) in [("redo", 3), ("data", 4)] {
        let group = Group::import(
            &parts(&left, &table, volume),
            &ImportOptions { degraded: true, ..quiet() },
        );
        let group = group.unwrap();
        let config = group.config();
        let gone =
            config.members.iter().find(|member| member.path.starts_with("member0")).unwrap().id;
        let part = window(&spare, &table.volume(volume).unwrap().part_on(new_id).unwrap().pieces);
        group.replace(gone, Arrival::from(&part)).unwrap();
        group.sync().unwrap();
        holds(&group, write, volume);
    }
    end_replace(&mut lock(&all), lost).unwrap();
    let table = newest(&all);
    assert!(table.member(lost).is_none() && table.members.iter().all(|m| m.replaces.is_none()));
    // The new one holds what the others do: without one of those, all is there.
    for (volume, write) in [("redo", 3), ("data", 4)] {
        holds(&import(&all, volume, "whole"), write, volume);
        holds(&import(&all[1..], volume, "without another"), write, volume);
    }
    let stale = TableLock::open(devices[..1].iter().chain(&all[1..]).cloned().collect());
    assert_eq!(stale.unwrap_err().kind, ErrorKind::Outdated, "the one that left has no place");
}

/// S-567
#[test]
fn s_567_what_is_refused_changes_nothing_and_room_comes_back() {
    let (fixture, before) = made(703);
    let devices = fixture.devices();
    let found = by_id(&devices);
    let open = |id: Id, pieces: &[Range<u64>]| {
        Ok(window(&found.iter().find(|(member, _)| *member == id).unwrap().1, pieces))
    };
    let mut held = lock(&devices);
    for (volume, word) in [
        (new("redo", Shape::Mirror, Some(MIB)), "two volumes redo"),
        (new("big", Shape::Mirror, Some(SIZE)), "needs 44 MiB"),
        (new("odd", Shape::StripeMirror, Some(MIB)), "do not make 2 copies"),
        (new("a:b", Shape::Mirror, Some(MIB)), "no name"),
    ] {
        let error = add_volume(&mut held, &volume, &open).unwrap_err().message;
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(remove_volume(&mut held, "none", &open).unwrap_err().kind, ErrorKind::NotFound);
    let busy = |_: Id, _: &[Range<u64>]| {
        Err(std::io::Error::other("in use")).map_err(|error| {
            bedplate_block::Error {
                kind: bedplate_block::ErrorKind::Busy,
                operation: bedplate_block::Operation::Open,
                device: "part".into(),
                offset: None,
                detail: error.to_string(),
                errno: None,
            }
            .into()
        })
    };
    assert_eq!(remove_volume(&mut held, "redo", &busy).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(newest(&devices), before, "nothing was written");
    let free: Vec<u64> = before.members.iter().map(|member| before.free_bytes(member.id)).collect();
    add_volume(&mut held, &new("late", Shape::Stripe, Some(6 * MIB)), &open).unwrap();
    fill(&import(&devices, "late", "added"), 9);
    remove_volume(&mut held, "late", &open).unwrap();
    let after = newest(&devices);
    let again: Vec<u64> = after.members.iter().map(|member| after.free_bytes(member.id)).collect();
    assert_eq!((free, after.volumes), (again, before.volumes));
}

/// S-567: a part grows, and the volume into it; nothing of it moves.
#[test]
fn s_567_a_volume_grows_into_free_space() {
    let (fixture, table) = made(704);
    let devices = fixture.devices();
    fill(&import(&devices, "redo", "first"), 3);
    let found = by_id(&devices);
    let open = |id: Id, pieces: &[Range<u64>]| {
        Ok(window(&found.iter().find(|(member, _)| *member == id).unwrap().1, pieces))
    };
    let more: Vec<(Id, u64)> =
        table.volume("redo").unwrap().parts.iter().map(|part| (part.member, 3 * MIB)).collect();
    grow_volume(&mut lock(&devices), "redo", &more, &open).unwrap();
    let group = import(&devices, "redo", "larger parts");
    let before = group.volume(Role::Data).unwrap().size_bytes();
    group.grow(Role::Data, None).unwrap();
    group.run_relayout(&mut |_| true).unwrap();
    let after = group.volume(Role::Data).unwrap().size_bytes();
    assert_eq!(after, before + 3 * MIB);
    let mut seen = AlignedBuf::zeroed(4096);
    group.volume(Role::Data).unwrap().read_at(&mut seen, 256 << 10).unwrap();
    assert_eq!(stamp_of(&seen[..512], 256 << 10), 3);
    let too_much: Vec<(Id, u64)> = more.iter().map(|(id, _)| (*id, SIZE)).collect();
    let error = grow_volume(&mut lock(&devices), "redo", &too_much, &open).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
}

/// S-567: a member that is added brings room that volumes are made in.
#[test]
fn s_567_a_member_that_is_added_brings_room() {
    let (fixture, _) = made(705);
    let mut devices = fixture.devices();
    let fourth: Arc<dyn BlockDevice> = SimulatedDevice::new(SIZE, 70599);
    let id = add_member(&mut lock(&devices), &fourth, false).unwrap();
    assert!(add_member(&mut lock(&devices), &fourth, false).is_err(), "it is one already");
    devices.push(fourth);
    let table = newest(&devices);
    assert_eq!(table.free_bytes(id), SIZE - 4 * MIB);
    let found = by_id(&devices);
    let open = |id: Id, pieces: &[Range<u64>]| {
        Ok(window(&found.iter().find(|(member, _)| *member == id).unwrap().1, pieces))
    };
    add_volume(&mut lock(&devices), &new("four", Shape::StripeMirror, None), &open).unwrap();
    fill(&import(&devices, "four", "added"), 5);
    holds(&import(&devices, "redo", "beside"), 0, "nothing was written to it");
}

/// What a power cut in the change of a table left is judged.
fn judge(left: &[Arc<dyn BlockDevice>], tables: [&VolumeTable; 2], context: &str) -> bool {
    let held = TableLock::open(left.to_vec()).unwrap_or_else(|error| panic!("{context}: {error}"));
    let table = held.table().clone();
    drop(held);
    let [old, new] = tables;
    let is_new = table.event > old.event;
    let named = |table: &VolumeTable| -> Vec<String> {
        table.volumes.iter().map(|volume| volume.name.clone()).collect()
    };
    assert_eq!(named(&table), named(if is_new { new } else { old }), "{context}");
    for device in left {
        assert_eq!(VolumeTable::read(&**device).unwrap().1, table, "{context}: all have it");
    }
    for volume in &table.volumes {
        let group = import(left, &volume.name, context);
        let write = if volume.name == "data" {
            4
        } else if volume.name == "redo" {
            3
        } else {
            0
        };
        if write > 0 {
            holds(&group, write, context);
        } else {
            fill(&group, 7);
            holds(&group, 7, context);
        }
    }
    is_new
}

fn cut_everywhere(fixture: &Fixture, tables: [&VolumeTable; 2]) -> (usize, usize) {
    let (mut states, mut new) = (0, 0);
    for (at, moment) in fixture.moments().iter().enumerate() {
        for choice in [0, 1, 2, 3, at as u64 + 4] {
            let left: Devices =
                fixture.after_cut(moment, choice).into_iter().map(|device| device as _).collect();
            new += usize::from(judge(&left, tables, &format!("cut at {at}, choice {choice}")));
            states += 1;
        }
    }
    (states, new)
}

/// S-567, I-TAB-1, I-TAB-2: after a power cut in the change of a table the group has the old one or
/// the new one, and every volume that it names is whole.
#[test]
fn s_567_a_cut_in_adding_and_removing_leaves_the_old_table_or_the_new_one() {
    let (fixture, before) = made(706);
    let devices = fixture.devices();
    for (volume, write) in [("redo", 3), ("data", 4)] {
        fill(&import(&devices, volume, "first"), write);
    }
    let found = by_id(&devices);
    let open = |id: Id, pieces: &[Range<u64>]| {
        Ok(window(&found.iter().find(|(member, _)| *member == id).unwrap().1, pieces))
    };
    fixture.make_all_durable();
    add_volume(&mut lock(&devices), &new("archive", Shape::Raid5, Some(2 * MIB)), &open).unwrap();
    let with = newest(&devices);
    let (states, added) = cut_everywhere(&fixture, [&before, &with]);
    assert!(0 < added && added < states, "{added} of {states}");
    fixture.make_all_durable();
    remove_volume(&mut lock(&devices), "archive", &open).unwrap();
    let without = newest(&devices);
    let (more, removed) = cut_everywhere(&fixture, [&with, &without]);
    assert!(0 < removed && removed < more, "{removed} of {more}");
    println!("power cuts in changes of a table: {} states tried, 0 violations", states + more);
}
