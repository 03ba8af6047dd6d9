use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};

use super::*;
use crate::group::{COPIES, sealed};
use crate::{Arrangement, Label, Shape};

const MIB: u64 = 1 << 20;

fn mib(start: u64, end: u64) -> Range<u64> {
    start * MIB..end * MIB
}

fn volume(name: &str, shape: Shape, size_mib: Option<u64>) -> NewVolume {
    NewVolume {
        name: name.into(),
        arrangement: Arrangement { shape, unit_bytes: shape.unit_bytes_default(), plexes: 2 },
        size_bytes: size_mib.map(|size| size * MIB),
        members: Vec::new(),
    }
}

fn made(sizes: &[u64], volumes: Vec<NewVolume>) -> Result<(Vec<Arc<MemoryDevice>>, VolumeTable)> {
    let devices: Vec<_> = sizes.iter().map(|size| MemoryDevice::new(size * MIB)).collect();
    let members = devices.iter().map(|device| Arc::clone(device) as _).collect();
    let new = NewDivided { name: "tank".into(), members, volumes, force: false };
    create_divided(&new).map(|table| (devices, table))
}

fn refusal(sizes: &[u64], volumes: Vec<NewVolume>) -> String {
    made(sizes, volumes).unwrap_err().message
}

/// S-565
#[test]
fn s_565_room_is_given_in_order_and_what_is_left_to_the_last() {
    let (_, table) = made(
        &[64, 80, 64],
        vec![volume("redo", Shape::Mirror, Some(8)), volume("data", Shape::Raid5, None)],
    )
    .unwrap();
    let [a, b, c] = [0, 1, 2].map(|at: usize| table.members[at].id);
    // A mirror takes the two with the most room: the label of a part takes 4 MiB.
    let redo = table.volume("redo").unwrap();
    assert_eq!(redo.part_on(a).unwrap().pieces, [mib(4, 16)]);
    assert_eq!(redo.part_on(b).unwrap().pieces, [mib(4, 16)]);
    assert!(redo.part_on(c).is_none());
    let data = table.volume("data").unwrap();
    assert_eq!(data.part_on(a).unwrap().pieces, [mib(16, 64)]);
    assert_eq!(data.part_on(c).unwrap().pieces, [mib(4, 52)]);
    assert_eq!([a, b, c].map(|id| table.free_bytes(id) / MIB), [0, 16, 12]);
    assert_eq!(table.free(b), [mib(64, 80)]);
}

/// S-565
#[test]
fn s_565_what_does_not_fit_is_refused_by_name() {
    let mirror = || volume("redo", Shape::Mirror, Some(8));
    let told = refusal(&[32, 32], vec![volume("redo", Shape::Mirror, Some(64))]);
    assert!(told.contains("redo needs 68 MiB") && told.contains("28 MiB are free"), "{told}");
    let told = refusal(&[32, 32], vec![mirror(), mirror()]);
    assert!(told.contains("two volumes redo"), "{told}");
    let told = refusal(&[32, 32], vec![volume("data", Shape::Raid5, None)]);
    assert!(told.contains("volume data") && told.contains("three members"), "{told}");
    let told = refusal(&[32, 32], vec![volume("rest", Shape::Stripe, None), mirror()]);
    assert!(told.contains("redo needs 12 MiB") && told.contains("0 MiB are free"), "{told}");
    let told = refusal(&[32, 32], vec![volume("a/b", Shape::Stripe, None)]);
    assert!(told.contains("no name"), "{told}");
    let told = refusal(&[32, 8], vec![mirror()]);
    assert!(told.contains("has 8 MiB"), "{told}");
    let told = refusal(&[32, 32], vec![volume("huge", Shape::Mirror, Some(u64::MAX >> 20))]);
    assert!(told.contains("no volume has") || told.contains("are free"), "{told}");
}

#[test]
fn room_in_pieces_is_used_and_too_many_are_refused() {
    let (_, mut table) =
        made(&[64, 64], (0..5).map(|n| volume(&format!("v{n}"), Shape::Mirror, Some(4))).collect())
            .unwrap();
    let member = table.members[0].id;
    table.volumes.retain(|volume| ["v1", "v3"].contains(&volume.name.as_str()));
    let free: Vec<u64> =
        table.free(member).iter().map(|range| (range.end - range.start) / MIB).collect();
    assert_eq!(free, [8, 8, 28], "gaps where others were");
    let parts = table.lay_out(&volume("new", Shape::Mirror, Some(30)), 512).unwrap();
    assert_eq!(parts[0].size_bytes(), 34 * MIB);
    assert_eq!(parts[0].pieces.len(), 2, "the largest first");
    // It grows where it is, as far as that goes, then elsewhere.
    table.extend("v1", member, 10 * MIB).unwrap();
    assert_eq!(table.volumes[0].part_on(member).unwrap().size_bytes(), 18 * MIB);
    assert_eq!(table.fault(), None);
    let error = table.extend("v1", member, 100 * MIB).unwrap_err().message;
    assert!(error.contains("needs 100 MiB more"), "{error}");
}

/// S-566
#[test]
fn s_566_a_table_that_is_damaged_or_lies_is_refused_and_one_good_copy_is_enough() {
    let (devices, table) = made(&[32, 32], vec![volume("redo", Shape::Mirror, Some(8))]).unwrap();
    let device = &devices[0];
    let mut slot = AlignedBuf::zeroed(4096);
    device.read_at(&mut slot, 0).unwrap();
    assert_eq!(slot[8], 8, "an older version says that it is too old");
    assert_eq!(Label::read(&**device).unwrap_err().kind, ErrorKind::Divided);
    let len = u32::from_le_bytes(slot[16..20].try_into().unwrap()) as usize;
    let write = |bytes: &[u8]| {
        COPIES
            .into_iter()
            .for_each(|at| device.write_at(&AlignedBuf::from_slice(bytes), at).unwrap());
    };
    let whole = slot.to_vec();
    for at in (0..len).filter(|at| !(8..12).contains(at)) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        write(&damaged);
        let kind = VolumeTable::read(&**device).unwrap_err().kind;
        let expected = if at < 8 { ErrorKind::NotAMember } else { ErrorKind::Corrupt };
        assert_eq!(kind, expected, "byte {at}");
        // Every value of it, under a checksum that fits: an error, or a table without a fault.
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut lying = whole[..len].to_vec();
            lying[at] = value;
            let mut lying = sealed(lying);
            lying.resize(4096, 0);
            write(&lying);
            if let Ok((_, table)) = VolumeTable::read(&**device) {
                assert_eq!(table.fault(), None, "byte {at}");
            }
        }
    }
    write(&whole);
    device.write_at(&AlignedBuf::zeroed(4096), COPIES[0]).unwrap();
    assert_eq!(VolumeTable::read(&**device).unwrap().1, table);
}

/// S-566
#[test]
fn s_566_two_volumes_never_share_a_byte() {
    let (_, good) = made(
        &[32, 32],
        vec![volume("a", Shape::Mirror, Some(4)), volume("b", Shape::Mirror, Some(4))],
    )
    .unwrap();
    type Change = &'static dyn Fn(&mut VolumeTable);
    let wrong: [(&str, Change); 9] = [
        ("I-TAB-1", &|t| t.volumes[1].parts[0].pieces = vec![mib(11, 20)]),
        ("outside", &|t| t.volumes[1].parts[0].pieces = vec![mib(3, 5)]),
        ("outside", &|t| t.volumes[1].parts[0].pieces = vec![mib(20, 33)]),
        ("outside", &|t| t.volumes[1].parts[0].pieces = vec![mib(20, 20)]),
        ("outside", &|t| t.volumes[1].parts[0].pieces[0].start += 512),
        ("a member that there is not", &|t| t.volumes[1].parts[0].member = Id([1; 16])),
        ("given twice", &|t| t.volumes[1].id = t.volumes[0].id),
        ("two of one member", &|t| t.volumes[1].parts[0].member = t.volumes[1].parts[1].member),
        ("no member has", &|t| t.members[0].size_bytes = 5),
    ];
    assert_eq!(good.fault(), None);
    for (word, change) in wrong {
        let mut table = good.clone();
        change(&mut table);
        let fault = table.fault().unwrap_or_else(|| panic!("{word}: nothing is wrong"));
        assert!(fault.contains(word), "{word}: {fault}");
    }
}

#[test]
fn of_two_tables_the_newer_counts_and_two_of_one_event_are_refused() {
    let (_, one) = made(&[32, 32], vec![volume("a", Shape::Mirror, Some(4))]).unwrap();
    let mut other = one.clone();
    other.event += 1;
    other.volumes.clear();
    assert_eq!(VolumeTable::newest([&one, &other, &one]).unwrap(), other);
    other.event = one.event;
    assert_eq!(VolumeTable::newest([&one, &other]).unwrap_err().kind, ErrorKind::Diverged);
    assert_eq!(VolumeTable::newest([]).unwrap_err().kind, ErrorKind::Missing);
}
