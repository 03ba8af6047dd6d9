//! Checksums of file data: mistakes in keeping them are noticed; and of a group with two copies, or
//! with parity, whatever happens to any block of one member, what was written is read and the member
//! has it again.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_fs::{
    FileSystem, FormatOptions, InodeNo, IoMode, MountOptions, OpenOptions, PlantedBug,
};
use bedplate_sim::{Cuts, DIRECTED, Effort, Setup, try_steps};
use bedplate_volume::{Arrangement, Group, ImportOptions, Mistake, NewGroup, Role, Shape};

const BLOCK: usize = 4096;
const BLOCKS: usize = 40;
const MEMBER_BYTES: u64 = 40 << 20;
const QUIET: ImportOptions = ImportOptions { degraded: false, background: false, read_only: false };

/// A shape and how many members it has.
type Kind = (Shape, usize);
const MIRROR: Kind = (Shape::Mirror, 2);
const PARITY: Kind = (Shape::Raid5, 3);

/// A volume on a group, and a file on it whose blocks have checksums.
struct Bed {
    members: Vec<Arc<dyn BlockDevice>>,
    content: AlignedBuf,
}

/// Content of which no two blocks are alike.
fn content(seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCKS * BLOCK);
    let mut word = seed;
    for part in buf.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        part.copy_from_slice(&word.to_le_bytes());
    }
    buf
}

fn import(members: &[Arc<dyn BlockDevice>]) -> Group {
    Group::import(members, &QUIET).unwrap()
}

fn mount(group: &Group) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(group.volume(Role::Data).unwrap(), None, options).unwrap()
}

fn bed((shape, members): Kind, seed: u64) -> Bed {
    let members: Vec<Arc<dyn BlockDevice>> =
        (0..members).map(|_| MemoryDevice::new(MEMBER_BYTES) as _).collect();
    let new = NewGroup {
        name: "sums".into(),
        data: Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 },
        members: members.clone(),
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: Some(64 << 10),
        reserve_bytes: 0,
        force: false,
    };
    bedplate_volume::create(&new).unwrap();
    let group = import(&members);
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    drop(device);
    let fs = mount(&group);
    fs.set_integrity(InodeNo::ROOT, true).unwrap();
    let content = content(seed);
    fs.open("/f", &OpenOptions::create()).unwrap().write_at(&content, 0).unwrap();
    fs.unmount().unwrap();
    group.close().unwrap();
    Bed { members, content }
}

impl Bed {
    fn block(&self, number: usize) -> &[u8] {
        &self.content[number * BLOCK..][..BLOCK]
    }

    /// Where each block of the file lies, on each member that has it.
    fn places(&self) -> Vec<(usize, usize, u64)> {
        let mut found = Vec::new();
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        for (member, device) in self.members.iter().enumerate() {
            for at in (0..MEMBER_BYTES).step_by(BLOCK) {
                device.read_at(&mut bytes, at).unwrap();
                let number = (0..BLOCKS).find(|number| self.block(*number) == &bytes[..]);
                found.extend(number.map(|number| (number, member, at)));
            }
        }
        found
    }

    /// Mounts and reads the whole file; returns it and how many blocks were wrong, healed and lost.
    fn read(&self) -> (bedplate_fs::Result<AlignedBuf>, [u64; 3]) {
        let group = import(&self.members);
        let fs = mount(&group);
        let mut read = AlignedBuf::zeroed(BLOCKS * BLOCK);
        let mut result = Ok(());
        // Which copy a read takes is not the same each time.
        for round in 0..6 {
            let file = fs.open("/f", &OpenOptions::read_only()).unwrap();
            let mut now = AlignedBuf::zeroed(BLOCKS * BLOCK);
            // All at once, or block by block.
            let step = if round % 2 == 0 { BLOCKS * BLOCK } else { BLOCK };
            for (part, at) in now.chunks_mut(step).zip((0..).step_by(step)) {
                result = result.and_then(|()| file.read_at(part, at).map(drop));
            }
            if round == 0 || now[..] != self.content[..] {
                read = now;
            }
        }
        let counts = fs.info().integrity;
        fs.unmount().unwrap();
        group.close().unwrap();
        (result.map(|()| read), [counts.wrong_blocks, counts.healed_blocks, counts.lost_blocks])
    }
}

/// What happens to a block of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    /// A bit turns.
    Rot,
    /// It and its neighbour change places.
    Swapped,
    /// What was written never arrived.
    Lost,
}

fn befall(device: &Arc<dyn BlockDevice>, at: u64, ill: Ill) {
    let (mut one, mut two) = (AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(BLOCK));
    device.read_at(&mut one, at).unwrap();
    device.read_at(&mut two, at + BLOCK as u64).unwrap();
    match ill {
        Ill::Rot => one[at as usize / 7 % BLOCK] ^= 1,
        Ill::Swapped => {
            device.write_at(&one, at + BLOCK as u64).unwrap();
            one.copy_from_slice(&two);
        }
        Ill::Lost => one.fill(0xdb),
    }
    device.write_at(&one, at).unwrap();
}

const ILLS: [Ill; 3] = [Ill::Rot, Ill::Swapped, Ill::Lost];

/// Befalls every copy of every block in turn, in groups of a few so that there are fewer mounts.
/// Returns what was wrong first.
fn every_copy_in_turn(kind: Kind, ill: Ill) -> Result<(), String> {
    let bed = bed(kind, 17);
    let places = bed.places();
    assert!(places.len() >= BLOCKS, "{kind:?}: {} places", places.len());
    for member in 0..bed.members.len() {
        let here: Vec<_> = places.iter().filter(|place| place.1 == member).collect();
        for start in 0..8 {
            // Every eighth, so that neighbours are whole.
            let is_fit = |at: u64| {
                ill != Ill::Swapped || here.iter().any(|place| place.2 == at + BLOCK as u64)
            };
            let some: Vec<_> =
                here.iter().skip(start).step_by(8).filter(|place| is_fit(place.2)).collect();
            some.iter().for_each(|place| befall(&bed.members[member], place.2, ill));
            let (read, counts) = bed.read();
            let what = || format!("{kind:?}, {ill:?}, member {member}, from {start}");
            match read {
                Err(error) => return Err(format!("{}: {error}", what())),
                Ok(read) if read[..] != bed.content[..] => {
                    return Err(format!("{}: other bytes were read", what()));
                }
                Ok(_) if counts[0] != counts[1] || counts[2] > 0 => {
                    return Err(format!("{}: counted {counts:?}", what()));
                }
                Ok(_) => {}
            }
            // What no read met is wrong still; what one met is right on the member.
            let wrong = some.iter().filter(|(number, _, at)| {
                let mut bytes = AlignedBuf::zeroed(BLOCK);
                bed.members[member].read_at(&mut bytes, *at).unwrap();
                bytes[..] != *bed.block(*number)
            });
            let left = wrong.count() as u64;
            if left + counts[1] < some.len() as u64 || (kind.1 > 2 && left > 0) {
                return Err(format!("{}: {left} of {} are wrong still", what(), some.len()));
            }
            for (number, _, at) in &here {
                bed.members[member]
                    .write_at(&AlignedBuf::from_slice(bed.block(*number)), *at)
                    .unwrap();
            }
        }
    }
    Ok(())
}

/// S-284: rot, blocks in each other's place, and writes that never arrived, on every block of a
/// member in turn: of a mirror and of a RAID-5 what was written is read, and the member has it
/// again.
#[test]
fn s_284_with_two_copies_or_parity_no_wrong_byte_is_read_and_copies_are_mended() {
    for kind in [MIRROR, PARITY] {
        for ill in ILLS {
            every_copy_in_turn(kind, ill).unwrap();
        }
    }
}

/// S-281, S-284: where all copies of a block are wrong, reading it fails, and only that.
#[test]
fn s_284_where_no_copy_is_right_reading_fails() {
    let bed = bed(MIRROR, 3);
    for (number, member, at) in bed.places() {
        if number == 7 {
            befall(&bed.members[member], at, Ill::Rot);
        }
    }
    let (read, counts) = bed.read();
    let error = read.unwrap_err();
    assert!(error.message.contains("at byte 28672: block "), "{error}");
    assert!(counts[2] > 0 && counts[1] == 0, "{counts:?}");
}

/// Mistakes in healing are noticed.
#[test]
fn a_wrong_copy_that_stays() {
    bedplate_volume::plant(Some(Mistake::WrongCopyStays));
    let found = every_copy_in_turn(PARITY, Ill::Rot).unwrap_err();
    println!("WrongCopyStays: {found}");
    bedplate_volume::plant(None);
}

/// Mistakes in comparing are noticed.
#[test]
fn only_the_first_block_compared() {
    bedplate_fs::plant(Some(PlantedBug::OnlyFirstSumChecked));
    let found = every_copy_in_turn(MIRROR, Ill::Rot).unwrap_err();
    println!("OnlyFirstSumChecked: {found}");
    bedplate_fs::plant(None);
}

/// Mistakes in keeping checksums are noticed by crash states.
#[test]
fn checksums_that_are_not_replayed_or_not_replaced() {
    for bug in [PlantedBug::SumsNotReplayed, PlantedBug::OldSumKept] {
        bedplate_fs::plant(Some(bug));
        let directed = DIRECTED
            .iter()
            .find(|directed| directed.name == "blocks with checksums")
            .expect("the workload has this name");
        let effort = Effort { cuts: Cuts::Every(2), ..Effort::default() };
        let violation = try_steps(1, &Setup::DISK, &(directed.steps)(), &effort)
            .expect_err("nothing noticed it");
        println!("{bug:?}: state {}: {}", violation.states + 1, violation.what);
        bedplate_fs::plant(None);
    }
}
