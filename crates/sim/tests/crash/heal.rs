//! Metadata of which one copy rots: of a group with two copies, or with parity, whatever happens to
//! the log, to the data that it checks or to the superblocks on one member, and whether the group was
//! closed in order or not, everything that was acknowledged is there and the member is mended.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, Snapshot};
use bedplate_fs::{FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, PlantedBug};
use bedplate_volume::{
    Arrangement, Group, ImportOptions, Mistake, NewGroup, Role, Shape, Undecided,
};

const BLOCK: usize = 4096;
const MEMBER_BYTES: u64 = 40 << 20;
const SECTOR: u64 = 512;

/// A shape and how many members it has.
type Kind = (Shape, usize);
const MIRROR: Kind = (Shape::Mirror, 2);
const PARITY: Kind = (Shape::Raid5, 3);

/// A group with a volume, as a crash or an unmount left it.
struct Left {
    members: Vec<Snapshot>,
    /// Each file has as many blocks as its number, and all its bytes are its number.
    files: u8,
}

fn import(members: &[Arc<MemoryDevice>]) -> Result<Group, String> {
    let members: Vec<Arc<dyn BlockDevice>> =
        members.iter().map(|member| Arc::clone(member) as _).collect();
    // With its thread, as in use: it makes copies alike.
    let options = ImportOptions { degraded: false, background: true, read_only: false };
    Group::import(&members, &options).map_err(|e| format!("the group does not open: {e}"))
}

fn mount(group: &Group, read_only: bool) -> Result<FileSystem, String> {
    let options = MountOptions { mode: IoMode::Concurrent, read_only, ..MountOptions::default() };
    FileSystem::mount(group.volume(Role::Data).unwrap(), None, options)
        .map_err(|e| format!("the volume does not mount: {e}"))
}

/// Makes a group of devices, and a volume on it.
fn create(shape: Shape, devices: &[Arc<MemoryDevice>]) {
    let new = NewGroup {
        name: "heal".into(),
        data: Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 },
        members: devices.iter().map(|device| Arc::clone(device) as _).collect(),
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: Some(64 << 10),
        reserve_bytes: 0,
        force: false,
    };
    bedplate_volume::create(&new).unwrap();
    let group = import(devices).unwrap();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    drop(device);
    group.close().unwrap();
}

/// Makes a volume with files, each synced; `cut`: it is left at this moment.
fn left((shape, members): Kind, cut: bool) -> Left {
    let devices: Vec<Arc<MemoryDevice>> =
        (0..members).map(|_| MemoryDevice::new(MEMBER_BYTES)).collect();
    create(shape, &devices);
    let group = import(&devices).unwrap();
    let fs = mount(&group, false).unwrap();
    let files = 6;
    for number in 1..=files {
        let file = fs.open(format!("/{number}"), &OpenOptions::create()).unwrap();
        let mut content = AlignedBuf::zeroed(usize::from(number) * BLOCK);
        content.fill(number);
        file.write_at(&content, 0).unwrap();
        file.sync_all().unwrap();
    }
    let snapshots = || devices.iter().map(|device| device.snapshot()).collect();
    let mut members: Vec<Snapshot> = snapshots();
    fs.unmount().unwrap();
    group.close().unwrap();
    if !cut {
        members = snapshots();
    }
    Left { members, files }
}

impl Left {
    /// Opens the group with one member's bytes changed, mounts it for reading and then for writing,
    /// and reads everything. Returns how the member looks after the mount for reading, and how many
    /// places differ between copies in the end, if they are compared.
    fn read_all(
        &self,
        member: usize,
        changed: Snapshot,
        compares: bool,
    ) -> Result<(Snapshot, usize), String> {
        let mut members = self.members.clone();
        members[member] = changed;
        let geometry = MemoryDevice::new(1 << 20).geometry();
        let devices: Vec<Arc<MemoryDevice>> =
            members.iter().map(|member| MemoryDevice::from_snapshot(member, geometry)).collect();
        let group = import(&devices)?;
        let mut mended = None;
        for read_only in [true, false] {
            let fs = mount(&group, read_only)?;
            let read = (1..=self.files).try_for_each(|number| self.read(&fs, number));
            fs.unmount().map_err(|e| format!("the volume does not unmount: {e}"))?;
            read?;
            mended.get_or_insert_with(|| devices[member].snapshot());
        }
        let report = FileSystem::check(&group.volume(Role::Data).unwrap(), None, false);
        let report = report.map_err(|e| format!("the volume cannot be checked: {e}"))?;
        if !report.findings.is_empty() {
            return Err(format!("a check finds {:?}", report.findings));
        }
        let mut differences = 0;
        if compares {
            let found = group.scrub(false, &Undecided, &mut |_| ());
            let found = found.map_err(|e| format!("the group cannot be compared: {e}"))?;
            differences = found.differences.len();
        }
        group.close().map_err(|e| format!("the group does not close: {e}"))?;
        Ok((mended.expect("it was mounted for reading"), differences))
    }

    fn read(&self, fs: &FileSystem, number: u8) -> Result<(), String> {
        let lost = |what: String| format!("file {number}, which was synced, {what}");
        let file = fs
            .open(format!("/{number}"), &OpenOptions::read_only())
            .map_err(|e| lost(format!("does not open: {e}")))?;
        let mut content = AlignedBuf::zeroed(BLOCK * usize::from(self.files + 1));
        let len =
            file.read_at(&mut content, 0).map_err(|e| lost(format!("cannot be read: {e}")))?;
        let is_right =
            len == usize::from(number) * BLOCK && content[..len].iter().all(|byte| *byte == number);
        is_right.then_some(()).ok_or_else(|| lost("has other bytes".into()))
    }

    /// Where a member has sectors that begin so.
    fn sectors_with(&self, member: usize, begin: &[u8]) -> Vec<u64> {
        let mut sector = vec![0; begin.len()];
        let is_so = |at: &u64| {
            self.members[member].read(&mut sector, *at);
            sector == begin
        };
        (0..MEMBER_BYTES).step_by(SECTOR as usize).filter(is_so).collect()
    }
}

/// How a sector rots.
#[derive(Debug, Clone, Copy)]
enum Rot {
    /// A bit of it turns.
    Bit,
    /// All of it is lost.
    Whole,
}

fn rot(member: &Snapshot, places: &[u64], how: Rot) -> Snapshot {
    let mut rotten = member.clone();
    for at in places {
        let mut sector = vec![0; SECTOR as usize];
        rotten.read(&mut sector, *at);
        match how {
            Rot::Bit => sector[(*at / SECTOR) as usize % 100 + 8] ^= 4,
            Rot::Whole => sector.fill(0),
        }
        rotten.write(&sector, *at);
    }
    rotten
}

/// What became of places that rotted.
#[derive(Debug, Default, Clone, Copy)]
struct Outcome {
    rotted: usize,
    /// Those that were as before when the volume had been mounted for reading.
    mended: usize,
    /// Those after which copies did not differ when it had been mounted for writing.
    alike: usize,
}

/// Rots places of each member in turn. Returns what was lost first.
fn rot_in_turn(
    left: &Left,
    compares: bool,
    places: impl Fn(usize) -> Vec<Vec<u64>>,
) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    for member in 0..left.members.len() {
        for places in places(member) {
            for how in [Rot::Bit, Rot::Whole] {
                let what = |e: String| format!("member {member}, bytes {places:?}, {how:?}: {e}");
                let rotten = rot(&left.members[member], &places, how);
                let (mended, differences) =
                    left.read_all(member, rotten, compares).map_err(what)?;
                let (mut now, mut then) = ([0; SECTOR as usize], [0; SECTOR as usize]);
                let is_mended = places.iter().all(|at| {
                    mended.read(&mut now, *at);
                    left.members[member].read(&mut then, *at);
                    now == then
                });
                outcome.rotted += 1;
                outcome.mended += usize::from(is_mended);
                outcome.alike += usize::from(differences == 0);
            }
        }
    }
    Ok(outcome)
}

/// Rots every log write on one member in turn, its head and its last sector.
fn rot_the_log(kind: Kind, cut: bool) -> Result<Outcome, String> {
    let left = left(kind, cut);
    rot_in_turn(&left, false, |member| {
        let heads = left.sectors_with(member, b"BEDPLOGW");
        heads.into_iter().map(|at| vec![at]).collect()
    })
}

/// S-408: of a mirror and of a RAID-5 that a crash left, every log write of one member rots in turn:
/// nothing that was synced is lost, and the member has the log write again.
#[test]
fn s_408_a_log_write_that_rots_on_one_member_is_replayed_from_another() {
    for kind in [MIRROR, PARITY] {
        let outcome = rot_the_log(kind, true).unwrap();
        // What the log holds of the time before the last metadata commit is not read any more, and of
        // a RAID-5 some of what looks like a log write is parity.
        let wanted = if kind == MIRROR { 24 } else { 12 };
        assert!(outcome.mended >= wanted, "{kind:?}: {outcome:?}");
    }
}

/// S-408: data that the last records expose, and that replay compares, rots on one member: what was
/// synced is there.
#[test]
fn s_408_data_that_replay_compares_is_taken_from_the_copy_that_has_it() {
    let left = left(MIRROR, true);
    let first = left.sectors_with(0, &[left.files; 512]);
    assert!(first.len() >= usize::from(left.files) * BLOCK / 512, "{} sectors", first.len());
    let outcome = rot_in_turn(&left, true, |_| vec![first.clone(), vec![first[0]], vec![first[9]]]);
    let outcome = outcome.unwrap();
    assert_eq!((outcome.mended, outcome.alike), (outcome.rotted, outcome.rotted));
}

/// Rots data that the last records expose on the first member, and only looks at the group.
fn look_at_rot() -> Result<(), String> {
    let left = left(MIRROR, true);
    let first = left.sectors_with(0, &[left.files; 512]);
    let mut members = left.members.clone();
    members[0] = rot(&members[0], &first, Rot::Whole);
    let geometry = MemoryDevice::new(1 << 20).geometry();
    let devices: Vec<Arc<dyn BlockDevice>> =
        members.iter().map(|it| MemoryDevice::from_snapshot(it, geometry) as _).collect();
    let options = ImportOptions { degraded: false, background: false, read_only: true };
    let group = Group::import(&devices, &options).map_err(|e| e.to_string())?;
    let fs = mount(&group, true)?;
    (1..=left.files).try_for_each(|number| left.read(&fs, number))
}

/// S-38, S-408: where nothing may be written over, what replay found right of unlike copies is what
/// is read of the file.
#[test]
fn s_38_a_group_that_is_only_looked_at_shows_what_replay_counted() {
    look_at_rot().unwrap();
}

/// Mistakes in keeping what was found right are noticed.
#[test]
fn what_was_found_right_and_is_not_read() {
    bedplate_volume::plant(Some(Mistake::RightNotKept));
    let found = look_at_rot().unwrap_err();
    println!("RightNotKept: {found}");
    bedplate_volume::plant(None);
}

/// S-409: both superblocks of one member rot, and the member has them again.
#[test]
fn s_409_superblocks_that_rot_on_one_member_are_read_from_another() {
    for kind in [MIRROR, PARITY] {
        for cut in [true, false] {
            let left = left(kind, cut);
            let outcome = rot_in_turn(&left, true, |member| {
                let both = left.sectors_with(member, b"BEDPLATE");
                let alone = both.iter().map(|at| vec![*at]);
                alone.chain([both.clone()]).filter(|places| !places.is_empty()).collect()
            });
            let outcome = outcome.unwrap();
            assert!(outcome.rotted >= 4, "{kind:?}: {outcome:?}");
            assert!(kind == PARITY || outcome.alike == outcome.rotted, "{cut}: {outcome:?}");
        }
    }
}

/// Mistakes in looking at copies are noticed.
#[test]
fn one_copy_of_the_log_that_is_believed() {
    bedplate_fs::plant(Some(PlantedBug::OneCopyReplayed));
    let found = rot_the_log(MIRROR, true).unwrap_err();
    println!("OneCopyReplayed: {found}");
    bedplate_fs::plant(None);
}

/// Mistakes in leaving copies as they are until they were looked at are noticed.
#[test]
fn copies_that_are_made_alike_at_once() {
    bedplate_volume::plant(Some(Mistake::CopiesNotHeld));
    let found = rot_the_log(MIRROR, true).unwrap_err();
    println!("CopiesNotHeld: {found}");
    bedplate_volume::plant(None);
}

/// Mistakes in reading superblocks are noticed.
#[test]
fn one_copy_of_the_superblock_that_is_believed() {
    bedplate_fs::plant(Some(PlantedBug::FirstSuperblockBelieved));
    let left = left(MIRROR, false);
    let found = rot_in_turn(&left, true, |member| vec![left.sectors_with(member, b"BEDPLATE")]);
    println!("FirstSuperblockBelieved: {}", found.unwrap_err());
    bedplate_fs::plant(None);
}

const NAMES: usize = 400;

/// A clean volume whose metadata tree has several levels, and the blocks of each member that hold
/// something of it: all that are neither zeros, nor data, nor of the group itself.
fn tree((shape, members): Kind) -> (Vec<Snapshot>, Vec<Vec<u64>>) {
    let devices: Vec<Arc<MemoryDevice>> =
        (0..members).map(|_| MemoryDevice::new(MEMBER_BYTES)).collect();
    create(shape, &devices);
    let group = import(&devices).unwrap();
    let fs = mount(&group, false).unwrap();
    for number in 0..NAMES {
        fs.open(name(number), &OpenOptions::create()).unwrap();
    }
    fs.unmount().unwrap();
    group.close().unwrap();
    let members: Vec<Snapshot> = devices.iter().map(|device| device.snapshot()).collect();
    let blocks = |member: &Snapshot| {
        let mut block = [0; BLOCK];
        let is_metadata = |at: &u64| {
            member.read(&mut block, *at);
            block.iter().any(|byte| *byte != 0)
        };
        ((4 << 20)..MEMBER_BYTES).step_by(BLOCK).filter(is_metadata).collect()
    };
    let blocks = members.iter().map(blocks).collect();
    (members, blocks)
}

fn name(number: usize) -> String {
    format!("/a-name-that-takes-some-room-in-the-tree-{number:04}")
}

/// Looks all names up; returns how many pages were mended.
fn find_all(fs: &FileSystem) -> Result<u64, String> {
    for number in 0..NAMES {
        fs.open(name(number), &OpenOptions::read_only())
            .map_err(|e| format!("{} is lost: {e}", name(number)))?;
    }
    let counts = fs.info().integrity;
    match counts.lost_pages {
        0 => Ok(counts.healed_pages),
        lost => Err(format!("{lost} pages are lost")),
    }
}

/// Opens a group with blocks of one member spoiled, before it is mounted or after that. Returns how
/// many pages were mended.
fn spoil(
    members: &[Snapshot],
    member: usize,
    places: &[u64],
    mounted: bool,
) -> Result<u64, String> {
    let geometry = MemoryDevice::new(1 << 20).geometry();
    let devices: Vec<Arc<MemoryDevice>> =
        members.iter().map(|member| MemoryDevice::from_snapshot(member, geometry)).collect();
    let rot = || {
        for at in places {
            let mut block = AlignedBuf::zeroed(BLOCK);
            devices[member].read_at(&mut block, *at).unwrap();
            block[(*at / 4096 * 131 % 1500) as usize] ^= 0x10;
            devices[member].write_at(&block, *at).unwrap();
        }
    };
    // A RAID-5 writes again at its import what its parity log has.
    let group = import(&devices)?;
    if !mounted {
        rot();
    }
    // What is written to a row of a RAID-5 makes its parity like what has rotted there: nothing is
    // written here before it is read.
    let fs = mount(&group, members.len() > 2)?;
    if mounted {
        rot();
    }
    let healed = find_all(&fs)?;
    fs.unmount().map_err(|e| format!("the volume does not unmount: {e}"))?;
    let report = FileSystem::check(&group.volume(Role::Data).unwrap(), None, false);
    let report = report.map_err(|e| format!("the volume cannot be checked: {e}"))?;
    if !report.findings.is_empty() {
        return Err(format!("a check finds {:?}", report.findings));
    }
    group.close().map_err(|e| format!("the group does not close: {e}"))?;
    Ok(healed)
}

/// Spoils every block of metadata of each member in turn, a few at once and all at once.
fn spoil_in_turn(kind: Kind) -> Result<u64, String> {
    let (members, blocks) = tree(kind);
    let mut healed = 0;
    for (member, blocks) in blocks.iter().enumerate() {
        assert!(blocks.len() > 20, "{kind:?}: {} blocks", blocks.len());
        for step in 0..=3 {
            let some: Vec<u64> = match step {
                3 => blocks.clone(),
                _ => blocks.iter().skip(step).step_by(3).copied().collect(),
            };
            let mounted = step % 2 == 1;
            healed += spoil(&members, member, &some, mounted).map_err(|e| {
                format!("{kind:?}, member {member}, step {step}, mounted {mounted}: {e}")
            })?;
        }
    }
    Ok(healed)
}

/// S-410, I-REG-4: whatever block of metadata rots on one member, before a mount or behind its back, all that
/// is read is right, and a check finds nothing.
#[test]
fn s_410_i_reg_4_a_page_of_the_tree_that_rots_on_one_member_is_read_from_another() {
    for kind in [MIRROR, PARITY] {
        let healed = spoil_in_turn(kind).unwrap();
        assert!(healed >= 10, "{kind:?}: {healed} pages were mended");
    }
}

/// S-411: a page of which no copy is right is not used: what needs it fails, and says so.
#[test]
fn s_411_a_page_of_the_tree_that_no_copy_has_is_an_error() {
    let (mut members, blocks) = tree(MIRROR);
    let mut lost = 0;
    for at in blocks[0].iter().step_by(7) {
        let whole = members.clone();
        for member in &mut members {
            let mut block = [0; BLOCK];
            member.read(&mut block, *at);
            block[200] ^= 1;
            member.write(&block, *at);
        }
        if let Err(error) = spoil(&members, 0, &[], false) {
            // A header that is damaged is told by redb.
            let is_told = error.contains("damaged") || error.contains("corrupted");
            assert!(is_told && !error.contains("not exist"), "byte {at}: {error}");
            lost += 1;
        }
        members = whole;
    }
    assert!(lost > 2, "{lost} of {} blocks were needed", blocks[0].len());
}

/// Mistakes in comparing pages are noticed.
#[test]
fn a_page_of_the_tree_that_is_not_compared() {
    bedplate_fs::plant(Some(PlantedBug::PageNotCompared));
    let found = spoil_in_turn(MIRROR).unwrap_err();
    println!("PageNotCompared: {found}");
    bedplate_fs::plant(None);
}
