//! Labels: written, torn, turned over bit by bit, made up.

use bedplate_block::{BlockDevice, MemoryDevice};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::layout::{SCRATCH_BYTES, SCRATCH_START};
use crate::{
    Concat, Direction, Extent, Layout, Member, MemberState, Mirror, Piece, Relayout,
    RelocatedMember, Role, Stripe, VolumeConfig,
};

fn config() -> Config {
    let size = 64 << 20;
    let extent = |member| Layout::Extent(Extent { member, start: DATA_START_MIN, len: 32 << 20 });
    let pair = |a, b| Layout::Mirror(Mirror::new(vec![extent(a), extent(b)]));
    let member = |n: u8| Member {
        id: Id([n; 16]),
        path: format!("/dev/disk{n}"),
        size_bytes: size,
        state: MemberState::Active,
        since: 1,
        last_event: 0,
        relocated: None,
    };
    let mut members: Vec<Member> = (1..=7).map(member).collect();
    members[6].state = MemberState::Spare;
    Config {
        id: Id([9; 16]),
        name: "tank".into(),
        event: 3,
        common_event: 0,
        clean: true,
        foreground_percent: crate::FOREGROUND_PERCENT_DEFAULT,
        data_start: DATA_START_MIN,
        reserve_bytes: 0,
        scrub: None,
        findings: Vec::new(),
        split: None,
        members,
        volumes: vec![
            VolumeConfig {
                role: Role::Data,
                region_bytes: 1 << 20,
                layout: Layout::Stripe(Stripe::new(65_536, vec![pair(0, 1), pair(2, 3)])),
                relayout: None,
            },
            VolumeConfig {
                role: Role::Log,
                region_bytes: 1 << 20,
                layout: Layout::Concat(Concat::new(vec![pair(4, 5)])),
                relayout: None,
            },
        ],
    }
}

pub(crate) fn label() -> Label {
    Label { member: Id([2; 16]), config: config() }
}

/// Gives bytes the checksum that makes them believable.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[12..16].fill(0);
    let len = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
    let crc = crc32c(&bytes[..len.min(bytes.len())]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_label_comes_back_from_its_device() {
    let device = MemoryDevice::new(8 << 20);
    assert_eq!(Label::read(&*device).unwrap_err().kind, ErrorKind::NotAMember);
    label().write(&*device).unwrap();
    assert_eq!(Label::read(&*device).unwrap(), label());
    Label::erase(&*device).unwrap();
    assert_eq!(Label::read(&*device).unwrap_err().kind, ErrorKind::NotAMember);
}

/// A label between two layouts.
fn moving() -> Label {
    let mut label = label();
    let extent = |member, start, len| Layout::Extent(Extent { member, start, len });
    let next = Layout::Stripe(Stripe::new(
        32 << 10,
        (0..4).map(|member| extent(member, DATA_START_MIN, 32 << 20)).collect(),
    ));
    label.config.volumes[0].relayout = Some(Relayout {
        next,
        direction: Direction::Downward,
        position: 48 << 20,
        staged_bytes: 1 << 20,
        scratch: Layout::Mirror(Mirror::new(
            (0..2).map(|member| extent(member, SCRATCH_START, SCRATCH_BYTES)).collect(),
        )),
        grain_bytes: 1 << 20,
        step_bytes_max: 4 << 20,
        paused: true,
        logs_swapped: false,
        in_cycles: false,
    });
    label
}

/// As that, where what is moved fits the scratch area.
fn moving_with_parts() -> Label {
    let mut label = moving();
    label.config.volumes[0].relayout.as_mut().unwrap().staged_bytes = 512 << 10;
    label.config.volumes[0].relayout.as_mut().unwrap().grain_bytes = 512 << 10;
    label
}

#[test]
fn a_relayout_comes_back_and_makes_the_label_one_of_version_2() {
    let label = moving_with_parts();
    let bytes = label.encode().unwrap();
    assert_eq!((bytes[8], Label::decode(&bytes)), (2, Ok(label)));
    type Change = &'static dyn Fn(&mut Relayout);
    let broken: [(&str, Change); 6] = [
        ("scratch area", &|_| ()),
        ("not possible", &|r| r.position = 1 << 40),
        ("between steps", &|r| (r.position, r.staged_bytes) = (12345, 0)),
        ("not possible", &|r| r.grain_bytes = 0),
        ("scratch area begins", &|r| (r.scratch, r.staged_bytes) = (r.next.clone(), 0)),
        ("does not lie", &|r| {
            (r.next, r.staged_bytes) =
                (Layout::Extent(Extent { member: 0, start: 0, len: 64 << 20 }), 0);
        }),
    ];
    for (word, change) in broken {
        let mut label = moving();
        change(label.config.volumes[0].relayout.as_mut().unwrap());
        let Err(Refusal::Corrupt(fault)) = Label::decode(&label.encode().unwrap()) else {
            panic!("{word}")
        };
        assert!(fault.what.contains(word), "{word}: {fault:?}");
    }
}

#[test]
fn a_relayout_in_cycles_makes_the_label_one_of_version_6() {
    let extent = |member| Layout::Extent(Extent { member, start: DATA_START_MIN, len: 32 << 20 });
    let mut label = label();
    label.config.volumes[0].layout = Layout::Concat(Concat::new((0..4).map(extent).collect()));
    let next = Layout::Stripe(Stripe::new(32 << 10, (0..4).map(extent).collect()));
    let scratch =
        |member| Layout::Extent(Extent { member, start: SCRATCH_START, len: SCRATCH_BYTES });
    label.config.volumes[0].relayout = Some(Relayout {
        next,
        direction: Direction::Upward,
        position: 5 << 20,
        staged_bytes: 1 << 20,
        scratch: Layout::Stripe(Stripe::new(64 << 10, (0..4).map(scratch).collect())),
        grain_bytes: 32 << 10,
        step_bytes_max: 1 << 20,
        paused: false,
        logs_swapped: false,
        in_cycles: true,
    });
    let bytes = label.encode().unwrap();
    assert_eq!((bytes[8], Label::decode(&bytes)), (6, Ok(label.clone())));
    // The hand has its place there too, and pieces are not parted.
    let scratch = |unit, copies: usize| {
        let columns =
            (0..4).map(|member| Layout::Mirror(Mirror::new(vec![scratch(member); copies])));
        Layout::Stripe(Stripe::new(
            unit,
            if copies > 1 { columns.collect() } else { (0..4).map(scratch).collect() },
        ))
    };
    type Change<'a> = &'a dyn Fn(&mut Relayout);
    let broken: [Change<'_>; 3] =
        [&|r| r.staged_bytes = 2 << 20, &|r| r.scratch = scratch(16 << 10, 1), &|r| {
            (r.scratch, r.staged_bytes) = (scratch(64 << 10, 2), 0);
        }];
    for change in broken {
        let mut label = label.clone();
        change(label.config.volumes[0].relayout.as_mut().unwrap());
        let Err(Refusal::Corrupt(fault)) = Label::decode(&label.encode().unwrap()) else {
            panic!("it fits")
        };
        assert!(fault.what.contains("scratch area"), "{fault:?}");
    }
}

/// A label with a relocated member in room that is kept for one.
fn with_guest() -> Label {
    let mut label = label();
    let (was, host, other) = (Id([77; 16]), Id([5; 16]), Id([7; 16]));
    let pieces = vec![
        Piece { host, start: 40 << 20, len: 20 << 20 },
        Piece { host: other, start: DATA_START_MIN, len: 16 << 20 },
    ];
    label.config.members[6].state = MemberState::Active;
    label.config.members[1] = Member {
        size_bytes: 36 << 20,
        relocated: Some(RelocatedMember { was, pieces }),
        ..label.config.members[1].clone()
    };
    label.config.reserve_bytes = 28 << 20;
    label
}

#[test]
fn a_guest_comes_back_and_makes_the_label_one_of_version_3() {
    let label = with_guest();
    let bytes = label.encode().unwrap();
    assert_eq!((bytes[8], Label::decode(&bytes)), (3, Ok(label)));
    type Change = &'static dyn Fn(&mut Vec<Piece>);
    let broken: [(&str, Change); 6] = [
        ("do not make", &|pieces| pieces[0].len += 4096),
        ("no room", &|pieces| pieces[0].start = 30 << 20),
        ("no room", &|pieces| pieces[0].start = 50 << 20),
        ("no room", &|pieces| pieces[1].host = Id([8; 16])),
        ("no room", &|pieces| pieces[1].host = Id([2; 16])),
        ("no room", &|pieces| *pieces = vec![Piece { len: 18 << 20, ..pieces[0] }; 2]),
    ];
    for (word, change) in broken {
        let mut label = with_guest();
        change(&mut label.config.members[1].relocated.as_mut().unwrap().pieces);
        let Err(Refusal::Corrupt(fault)) = Label::decode(&label.encode().unwrap()) else {
            panic!("{word}")
        };
        assert!(fault.what.contains(word), "{word}: {fault:?}");
    }
}

#[test]
fn a_schedule_for_scrubs_comes_back_and_makes_the_label_one_of_version_4() {
    for mut label in [label(), moving_with_parts(), with_guest()] {
        label.config.scrub = Some(crate::ScrubSchedule::new(7 * 86_400, true));
        let bytes = label.encode().unwrap();
        assert_eq!((bytes[8], Label::decode(&bytes)), (4, Ok(label.clone())));
        label.config.scrub = Some(crate::ScrubSchedule::new(59, true));
        let Err(Refusal::Corrupt(fault)) = Label::decode(&label.encode().unwrap()) else {
            panic!("59 seconds")
        };
        assert!(fault.what.contains("59 seconds"), "{fault:?}");
    }
}

#[test]
fn what_a_member_knew_when_it_failed_makes_the_label_one_of_version_5() {
    let mut label = with_guest();
    (label.config.event, label.config.common_event) = (40, 39);
    label.config.set_state(2, MemberState::Failed);
    let bytes = label.encode().unwrap();
    assert_eq!(
        (bytes[8], Label::decode(&bytes), label.config.members[2].last_event),
        (5, Ok(label.clone()), 39)
    );
    label.config.set_state(2, MemberState::Stale);
    assert_eq!(label.encode().unwrap()[8], 3);
    let mut early = label.encode().unwrap();
    early[66..70].copy_from_slice(&41_u32.to_le_bytes());
    let Err(Refusal::Corrupt(fault)) = Label::decode(&sealed(early)) else {
        panic!("41 events ago")
    };
    assert!(fault.what.contains("41 events"), "{fault:?}");
}

/// What the fourth version wrote is read, and written again as it was.
#[test]
fn a_label_of_version_4_is_what_it_was() {
    let mut label = with_guest();
    label.config.scrub = Some(crate::ScrubSchedule {
        begun_s: Some(1_795_262_400),
        ..crate::ScrubSchedule::new(7 * 86_400, true)
    });
    let stored = include_bytes!("../../tests/labels/version-4.bin");
    assert_eq!(Label::decode(stored), Ok(label.clone()));
    assert_eq!(label.encode().unwrap(), stored);
}

/// What the third version wrote is read, and written again as it was.
#[test]
fn a_label_of_version_3_is_what_it_was() {
    let stored = include_bytes!("../../tests/labels/version-3.bin");
    assert_eq!(Label::decode(stored), Ok(with_guest()));
    assert_eq!(with_guest().encode().unwrap(), stored);
}

/// What the first version wrote is read, and written again as it was.
#[test]
fn a_label_of_version_1_is_what_it_was() {
    let stored = include_bytes!("../../tests/labels/version-1.bin");
    assert_eq!(Label::decode(stored), Ok(label()));
    assert_eq!(label().encode().unwrap(), stored);
}

#[test]
fn one_copy_is_enough_and_the_newer_counts() {
    let device = MemoryDevice::new(8 << 20);
    label().write(&*device).unwrap();
    let mut newer = label();
    newer.config.event += 1;
    let mut buf = AlignedBuf::zeroed(4096);
    let bytes = newer.encode().unwrap();
    buf[..bytes.len()].copy_from_slice(&bytes);
    device.write_at(&buf, COPIES[0]).unwrap();
    assert_eq!(Label::read(&*device).unwrap(), newer);
    device.write_at(&AlignedBuf::zeroed(4096), COPIES[0]).unwrap();
    assert_eq!(Label::read(&*device).unwrap(), label());
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let device = MemoryDevice::new(8 << 20);
    let mut bytes = label().encode().unwrap();
    bytes[8] = 9;
    let mut buf = AlignedBuf::zeroed(4096);
    buf[..bytes.len()].copy_from_slice(&sealed(bytes));
    device.write_at(&buf, 0).unwrap();
    let error = Label::read(&*device).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NewerFormat);
    assert!(error.message.contains("memory") && error.message.contains("version 9"), "{error}");
}

/// I-LAB-1: a group that no label is able to name is refused.
#[test]
fn i_lab_1_a_label_that_does_not_fit_is_refused() {
    let mut long = label();
    long.config.members = (0..128_u8)
        .map(|n| Member { id: Id([n; 16]), path: "x".repeat(1024), ..config().members[0].clone() })
        .collect();
    assert_eq!(long.encode().unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn a_thousand_random_labels_are_refused_or_read_without_a_panic() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let good = label().encode().unwrap();
    let (mut refused, mut read) = (0, 0);
    for round in 0..1000 {
        let mut bytes = good.clone();
        if round % 2 == 0 {
            // A believable head, and noise behind it.
            for byte in &mut bytes[HEAD_BYTES..] {
                *byte = rng.random_range(0..=255_u16) as u8;
            }
        } else {
            for _ in 0..rng.random_range(1..6_usize) {
                let at = rng.random_range(20..bytes.len());
                bytes[at] = rng.random_range(0..=255_u16) as u8;
            }
        }
        match Label::decode(&sealed(bytes)) {
            Ok(label) => {
                assert_eq!(label.config.fault(), None);
                let layout = &label.config.volumes[0].layout;
                assert!(layout.locate(layout.size_bytes() - 1).len > 0);
                read += 1;
            }
            Err(Refusal::Corrupt(_)) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    println!("labels: {refused} refused, {read} read");
    assert!(refused > 600);
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let good = label().encode().unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Label::decode(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn layouts_that_do_not_fit_their_members_are_refused() {
    type Change = &'static dyn Fn(&mut Config);
    let broken: [(&str, Change); 5] = [
        ("overlap", &|c| c.volumes[1].layout = c.volumes[0].layout.clone()),
        ("does not lie", &|c| c.members[1].size_bytes = 5 << 20),
        ("same identity", &|c| c.members[1].id = c.members[0].id),
        ("within the labels", &|c| c.data_start = 4096),
        ("regions", &|c| c.volumes[0].region_bytes = 3 << 20),
    ];
    for (word, change) in broken {
        let mut label = label();
        change(&mut label.config);
        let Err(Refusal::Corrupt(fault)) = Label::decode(&label.encode().unwrap()) else {
            panic!("{word}")
        };
        assert!(fault.what.contains(word), "{fault:?}");
    }
}
