//! Rot that nothing has read yet, found by a scrub: blocks that only checkpoints have, and all of the
//! volume's own, superblocks, log and pages of the metadata tree, on every member.

use std::collections::BTreeMap;

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, Snapshot};
use bedplate_fs::{FileSystem, MountOptions, OwnPlace, PlantedBug};
use bedplate_volume::{Role, Undecided};

use super::live::{
    Asks, BLOCK, Live, MEMBER_BYTES, MIRROR, ONE, PARITY, PAST, live, live_with, mount,
};

const LOG: &str = "the intent log";
const TREE: &str = "the metadata tree";

/// How a block rots.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rot {
    Bit,
    Whole,
}

impl Rot {
    fn befall(self, device: &MemoryDevice, at: u64) {
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        device.read_at(&mut bytes, at).unwrap();
        match self {
            Self::Bit => bytes[at as usize / BLOCK * 7 % 300 + 8] ^= 16,
            Self::Whole => bytes.fill(0xa5),
        }
        device.write_at(&bytes, at).unwrap();
    }
}

/// A block of the volume's own that is needed.
#[derive(Debug, Clone)]
struct Own {
    role: Role,
    address: u64,
    what: &'static str,
    /// All that it is a part of, by address.
    runs: Vec<Range<u64>>,
}

/// Returns what a member has of the volume's own that is needed, by its place there.
fn own(live: &Live, member: usize) -> BTreeMap<u64, Own> {
    let group = live.group.as_ref().unwrap();
    let mut own = BTreeMap::new();
    for volume in &group.config().volumes {
        let end = group.volume(volume.role).unwrap().size_bytes();
        for one in needed(&live.fs, volume.role, end) {
            let run = volume.layout.locate(one.address);
            let copy = run.copies().iter().find(|copy| usize::from(copy.member) == member);
            own.extend(copy.map(|copy| (copy.offset, one)));
        }
    }
    own
}

/// Returns what is needed of the volume's own on its device, or on that of its log.
fn needed(fs: &FileSystem, role: Role, end: u64) -> Vec<Own> {
    let addresses = (0..end).step_by(BLOCK);
    let own = addresses.filter_map(|address| {
        let own = fs.own_at(role == Role::Log, address).filter(OwnPlace::is_needed)?;
        let runs = own.runs.iter().map(|run| run.start..run.end()).collect();
        Some(Own { role, address, what: own.what(), runs })
    });
    own.collect()
}

/// Says whether all is right that a block belongs to, as a member has it, and others where it has
/// none of it.
fn is_right(live: &Live, member: usize, own: &Own) -> bool {
    let config = live.group.as_ref().unwrap().config();
    let volume = config.volumes.iter().find(|volume| volume.role == own.role).unwrap();
    let mut bytes = Vec::new();
    for address in own.runs.iter().flat_map(|run| run.clone().step_by(512)) {
        let run = volume.layout.locate(address);
        let of_member = run.copies().iter().find(|copy| usize::from(copy.member) == member);
        let copy = of_member.unwrap_or(&run.copies()[0]);
        let mut sector = AlignedBuf::zeroed(512);
        live.devices[usize::from(copy.member)].read_at(&mut sector, copy.offset).unwrap();
        bytes.extend_from_slice(&sector);
    }
    let place = live.fs.own_at(own.role == Role::Log, own.address);
    place.is_some_and(|place| place.is_right(&bytes))
}

/// Lets a block of a member rot, which a scrub mends. One of which nothing is read that has rotted may
/// as well count as right, so that the others become like it. Returns what was not mended.
fn mends(live: &Live, member: usize, at: u64, own: Option<&Own>) -> Result<(), String> {
    let group = live.group.as_ref().unwrap();
    for rot in [Rot::Bit, Rot::Whole] {
        let before = live.get(member, at);
        rot.befall(&live.devices[member], at);
        let is_read = own.is_none_or(|own| {
            rot == Rot::Whole && own.what != TREE || !is_right(live, member, own)
        });
        let told = || format!("member {member}, byte {at}, {own:?}, {rot:?}");
        let found = group.scrub(false, &Undecided, &mut |_| ()).map_err(|e| e.to_string())?;
        if found.differences.is_empty() {
            return Err(format!("{}: nothing was found", told()));
        }
        let mut found = group.scrub(true, &Undecided, &mut |_| ()).map_err(|e| e.to_string())?;
        live.fs.learn_pages().map_err(|e| format!("{}: {e}", told()))?;
        group.scrub_again(true, &Asks::of(live), &mut found).map_err(|e| e.to_string())?;
        let left = group.scrub(false, &Undecided, &mut |_| ()).map_err(|e| e.to_string())?;
        let is_mended = live.get(member, at)[..] == before[..];
        if !left.differences.is_empty() || is_read && !is_mended {
            live.put(member, at, &before);
            return Err(format!("{}: {:?}", told(), found.differences));
        }
    }
    Ok(())
}

/// Lets what a group has of the volume's own rot, of `some` kinds.
fn own_is_mended(live: &Live, some: &[&str]) -> Result<(), String> {
    live.fs.learn_pages().map_err(|e| e.to_string())?;
    let mut seen = BTreeMap::new();
    for member in 0..live.devices.len() {
        let of_member = own(live, member).into_iter();
        for (at, own) in of_member.filter(|(_, own)| some.contains(&own.what)) {
            let count: &mut usize = seen.entry(own.what).or_default();
            *count += 1;
            // Many pages of the tree are alike: some of each kind are enough.
            if *count <= 12 {
                mends(live, member, at, Some(&own))?;
            }
        }
    }
    assert_eq!(seen.len(), some.len(), "all kinds were there: {seen:?}");
    Ok(())
}

/// Lets blocks rot that only a checkpoint has.
fn kept_is_mended(live: &Live) -> Result<(), String> {
    for member in 0..live.devices.len() {
        let places = live.places(member);
        let past: Vec<_> = places.iter().filter(|place| place.path == PAST).collect();
        assert!(!past.is_empty(), "member {member} has blocks of the checkpoint");
        past.iter().take(3).try_for_each(|place| mends(live, member, place.at, None))?;
    }
    Ok(())
}

/// S-431: whatever rots of superblocks, the log and the tree on one member of a mirror or a RAID-5 is
/// found by a scrub, and mended.
#[test]
fn s_431_a_scrub_mends_what_rots_of_metadata() {
    for kind in [MIRROR, PARITY] {
        let live = live(kind);
        own_is_mended(&live, &["a superblock", LOG, TREE])
            .unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        live.end();
    }
}

/// S-431: so does what rots of a log on members of its own.
#[test]
fn s_431_a_scrub_mends_what_rots_of_a_log_device() {
    let live = live_with(MIRROR, 2);
    own_is_mended(&live, &["the head of the log device", LOG]).unwrap();
    live.end();
}

/// S-431: without another copy a check tells what rots of superblocks, the log and the tree, each
/// alone, of a volume as a crash leaves it. The end of a log cannot be told from a write that was not
/// finished.
#[test]
fn s_431_a_check_tells_what_rots_of_metadata_where_there_is_one_copy() {
    let live = live(ONE);
    let of_log = needed(&live.fs, Role::Data, MEMBER_BYTES).into_iter();
    let last = of_log.filter(|own| own.what == LOG).map(|own| own.runs[0].end).max();
    let geometry = live.devices[0].geometry();
    let crashed = live.devices[0].snapshot();
    let log = |own: &Own| own.what == LOG && Some(own.runs[0].end) != last;
    assert!(tells(&live.fs, &crashed, log) > 3, "log writes rotted");
    let superblocks = tells(&live.fs, &crashed, |own| own.what == "a superblock");
    assert_eq!(superblocks, 2);
    live.end();
    // What a mount that only reads knows of the tree is what is in use.
    let device = MemoryDevice::from_snapshot(&crashed, geometry);
    mount(Arc::clone(&device) as _).unmount().unwrap();
    let left = device.snapshot();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(device, None, options).unwrap();
    fs.learn_pages().unwrap();
    assert!(tells(&fs, &left, |own| own.what == TREE) > 3, "pages rotted");
    fs.unmount().unwrap();
}

/// Lets some of a volume's own rot, each block alone, and has a check tell it; returns how many.
fn tells(fs: &FileSystem, left: &Snapshot, some: impl Fn(&Own) -> bool) -> usize {
    // Without its header the tree does not open.
    let is_told = |device: &Arc<MemoryDevice>| {
        let checked = FileSystem::check_data(&(Arc::clone(device) as _), None);
        checked.map_or(true, |report| !report.findings.is_empty())
    };
    let device = || MemoryDevice::from_snapshot(left, MemoryDevice::new(1 << 20).geometry());
    assert!(!is_told(&device()), "without rot nothing is told");
    let own: Vec<Own> = needed(fs, Role::Data, MEMBER_BYTES).into_iter().filter(some).collect();
    let mut seen = 0;
    for (own, rot) in own.iter().flat_map(|own| [(own, Rot::Bit), (own, Rot::Whole)]) {
        let device = device();
        rot.befall(&device, own.address);
        let mut bytes = Vec::new();
        for run in &own.runs {
            let mut part = AlignedBuf::zeroed((run.end - run.start) as usize);
            device.read_at(&mut part, run.start).unwrap();
            bytes.extend_from_slice(&part);
        }
        if !fs.own_at(false, own.address).unwrap().is_right(&bytes) {
            seen += usize::from(rot == Rot::Whole);
            assert!(is_told(&device), "{own:?}, {rot:?} is told");
        }
    }
    seen
}

/// S-431: a block that only a checkpoint has is mended on whatever member it rots.
#[test]
fn s_431_a_scrub_mends_what_only_a_checkpoint_has() {
    for kind in [MIRROR, PARITY] {
        let live = live(kind);
        kept_is_mended(&live).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        live.end();
    }
}

fn planted(bug: PlantedBug, found: impl FnOnce(&Live) -> Result<(), String>) {
    let live = live(MIRROR);
    bedplate_fs::plant(Some(bug));
    let found = found(&live);
    bedplate_fs::plant(None);
    println!("{bug:?}: {}", found.unwrap_err());
}

/// What takes any bytes for a log write is noticed.
#[test]
fn s_431_a_log_write_that_is_not_compared() {
    planted(PlantedBug::LogWriteNotCompared, |live| own_is_mended(live, &[LOG]));
}

/// What asks nothing of checkpoints is noticed.
#[test]
fn s_431_what_only_a_checkpoint_has_and_is_not_compared() {
    planted(PlantedBug::KeptNotCompared, kept_is_mended);
}
