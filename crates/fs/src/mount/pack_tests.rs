//! Packs of extents: what they take, what they do not change, and what damage to one does.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};

use crate::salvage::Salvage;
use crate::{
    AllocateMode, CheckpointOptions, ErrorKind, FileSystem, FindingKind, FormatOptions, IoMode,
    Limits, MountOptions, OpenOptions, Result, forge,
};

const BLOCK: u64 = 4096;
const UNIT: u64 = 8192;

fn formatted(size: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(size);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

fn mount(device: &Arc<dyn BlockDevice>, packs: Option<usize>) -> FileSystem {
    let limits = Limits { extents_per_pack: packs, ..Limits::default() };
    let options = MountOptions { mode: IoMode::Concurrent, limits, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

/// The numbers below `count` in a random order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut seed = 11_u64;
    for at in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (seed >> 33) as usize % (at + 1));
    }
    order
}

fn content(unit: u64, round: u64) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(UNIT as usize);
    bytes.fill((unit * 31 + round * 7 + 1) as u8);
    bytes
}

/// Writes a file whole, and then unit by unit in a random order, each to a place of its own.
fn in_pieces(fs: &FileSystem, name: &str, units: u64) {
    let file = fs.open(name, &OpenOptions::create()).unwrap();
    fs.set_untorn(fs.resolve(name).unwrap().ino, Some(UNIT as u32)).unwrap();
    for unit in (0..units).chain(shuffled(units)) {
        file.write_at(&content(unit, 0), unit * UNIT).unwrap();
    }
    fs.sync().unwrap();
}

fn holds(fs: &FileSystem, name: &str, units: u64, round: u64) {
    let file = fs.open(name, &OpenOptions::read_only()).unwrap();
    let mut bytes = AlignedBuf::zeroed(UNIT as usize);
    for unit in 0..units {
        file.read_at(&mut bytes, unit * UNIT).unwrap();
        assert!(bytes[..] == content(unit, round)[..], "unit {unit} of {name}");
    }
}

fn findings(device: &Arc<dyn BlockDevice>) -> Vec<(FindingKind, String)> {
    let report = FileSystem::check(device, None, false).unwrap();
    report.findings.into_iter().map(|finding| (finding.kind, finding.message)).collect()
}

/// S-270: a file of pieces in any order takes at most eight bytes of metadata a piece, pages of the
/// tree included, and a file in one piece the row that it took before there were packs.
#[test]
fn s_270_a_piece_of_a_file_takes_eight_bytes_of_metadata() {
    let units = 12_000;
    let device = formatted(512 << 20);
    let fs = mount(&device, None);
    in_pieces(&fs, "/pieces", units);
    let extents = fs.info().extents;
    fs.unmount().unwrap();
    let (_, pages, rows) = forge::extent_table(&device).unwrap();
    let fs = mount(&device, None);
    let found = fs.info().extents;
    assert!(found > units * 9 / 10 && found >= extents, "{found} extents of {units} units");
    assert!(pages <= 8 * units, "{pages} bytes of {units} units in {rows} rows");
    holds(&fs, "/pieces", units, 0);
    fs.unmount().unwrap();
    assert_eq!(findings(&device), []);

    let device = formatted(64 << 20);
    let fs = mount(&device, None);
    let file = fs.open("/whole", &OpenOptions::create()).unwrap();
    file.write_at(&vec![1; 1 << 20], 0).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let (stored, _, rows) = forge::extent_table(&device).unwrap();
    assert_eq!((stored, rows), (16 + 17, 1), "one extent is a row as it was");
}

/// S-271: files, their past and what is free are the same whether packs hold three extents, or as
/// many as serve best, or none were known; a mount goes on with packs of another size.
#[test]
fn s_271_packs_change_nothing_that_is_read() {
    let device = formatted(128 << 20);
    for (round, packs) in [Some(3), None, Some(7), Some(2)].into_iter().enumerate() {
        let fs = mount(&device, packs);
        let name = format!("/f{round}");
        in_pieces(&fs, &name, 300);
        let file = fs.open(&name, &OpenOptions::create()).unwrap();
        fs.create_checkpoint(format!("c{round}"), &CheckpointOptions::default()).unwrap();
        for unit in (0..300).step_by(3) {
            file.write_at(&content(unit, 1), unit * UNIT).unwrap();
        }
        file.allocate(AllocateMode::PunchHole, 100 * UNIT, 50 * UNIT).unwrap();
        drop(file);
        fs.unmount().unwrap();
        assert_eq!(findings(&device), [], "{packs:?}");
        let fs = mount(&device, packs);
        for before in 0..=round {
            holds(&fs, &format!("/.checkpoints/c{round}/f{round}"), 300, 0);
            let file = fs.open(format!("/f{before}"), &OpenOptions::create()).unwrap();
            let mut bytes = AlignedBuf::zeroed(UNIT as usize);
            for unit in 0..300 {
                file.read_at(&mut bytes, unit * UNIT).unwrap();
                let expected = match unit {
                    100..150 => AlignedBuf::zeroed(UNIT as usize),
                    unit => content(unit, u64::from(unit % 3 == 0)),
                };
                assert!(bytes[..] == expected[..], "unit {unit} of {before} after {round}");
            }
        }
        fs.unmount().unwrap();
    }
}

/// S-272: a pack that is damaged is an error of its file that names where; other files are read and
/// written, a check names it, and a salvage has all the rest.
#[test]
fn s_272_a_damaged_pack_is_the_damage_of_one_file() {
    let device = formatted(64 << 20);
    let fs = mount(&device, Some(8));
    in_pieces(&fs, "/bad", 40);
    in_pieces(&fs, "/good", 40);
    let (ino, good) = (fs.resolve("/bad").unwrap().ino, fs.resolve("/good").unwrap().ino);
    fs.unmount().unwrap();
    let (first, extents) = forge::spoil_pack(&device, ino.0).unwrap().expect("it has packs");
    let place = format!("inode {} from its file block {first}", ino.0);

    let fs = mount(&device, Some(8));
    let read = || -> Result<usize> {
        fs.open("/bad", &OpenOptions::create())?.read_at(&mut AlignedBuf::zeroed(4096), 0)
    };
    let error = read().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains(&place), "{error}");
    holds(&fs, "/good", 40, 0);
    in_pieces(&fs, "/later", 20);
    fs.unmount().unwrap();
    let found = findings(&device);
    let named =
        |(kind, message): &(_, String)| *kind == FindingKind::Row && message.contains(&place);
    assert!(found.iter().any(named), "{found:?}");
    let report = FileSystem::check(&device, None, true).unwrap();
    assert!(!report.is_sound(), "no repair knows what was there");

    let salvage = Salvage::open(&device, None, None).unwrap();
    let saved = |ino| salvage.data(ino).iter().map(|(_, len)| len).sum::<u64>();
    assert_eq!(saved(good), 40 * UNIT);
    let lost = extents as u64 * UNIT;
    assert!((1..=40 * UNIT - lost).contains(&saved(ino)), "{} of the rest", saved(ino));
    assert!(salvage.losses().iter().any(|loss| loss.contains(&place)), "{:?}", salvage.losses());
    let fs = mount(&device, Some(8));
    holds(&fs, "/good", 40, 0);
    holds(&fs, "/later", 20, 0);
    drop(fs);
}

/// S-273: a volume of version 3 mounts as it is and gets no packs; upgraded, it has all that it
/// had, and its rows become packs where they are changed.
#[test]
fn s_273_a_volume_of_version_3_has_no_packs_before_its_upgrade() {
    let units = 400;
    let device = formatted(64 << 20);
    let fs = mount(&device, None);
    in_pieces(&fs, "/f", units);
    fs.unmount().unwrap();
    assert!(forge::extent_table(&device).unwrap().2 < units / 10, "it has packs");
    forge::make_old(&device, 3).unwrap();
    let plain = forge::extent_table(&device).unwrap().2;
    let fs = mount(&device, None);
    assert_eq!(fs.info().version, 3);
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    for unit in shuffled(units).into_iter().rev() {
        file.write_at(&content(unit, 1), unit * UNIT).unwrap();
    }
    drop(file);
    in_pieces(&fs, "/g", 20);
    fs.unmount().unwrap();
    assert_eq!(findings(&device), []);
    let rows = forge::extent_table(&device).unwrap().2;
    assert!(rows >= plain / 2, "{rows} rows: no packs");
    let report = FileSystem::upgrade(&device, None).unwrap();
    assert_eq!((report.from, report.to), (3, 5));
    let fs = mount(&device, None);
    assert_eq!((fs.info().version, fs.info().extents), (6, rows));
    holds(&fs, "/f", units, 1);
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    for unit in shuffled(units) {
        file.write_at(&content(unit, 2), unit * UNIT).unwrap();
    }
    file.allocate(AllocateMode::PunchHole, 2 * BLOCK, BLOCK).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let packed = forge::extent_table(&device).unwrap().2;
    assert!(packed < rows / 4, "{packed} rows");
    assert_eq!(findings(&device), []);
}
