//! What is left of broken volumes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, MemoryDevice, ReadFault, SimulatedDevice,
    SimulatedOptions, Trigger,
};

use super::Salvage;
use super::pages::TreeFile;
use crate::forge::{self, RowImage};
use crate::{
    BlockNo, Epoch, ErrorKind, FileBlock, FileKind, FileSystem, FormatOptions, InodeNo, LostRange,
    MountOptions, NewFile, OpenOptions, RenameMode,
};
use bedplate_store::{
    COPY_B, DentryRow, ExtentRow, Region, Superblock, Table, extent_key, inode_key, pair_key,
};

const SIZE: u64 = 32 << 20;
const FILES: usize = 40;

/// A volume with `/d/file-N` of some blocks each, a link, an attribute, and nothing to recover
/// unless `crashed`.
struct Broken {
    memory: Arc<MemoryDevice>,
    device: Arc<dyn BlockDevice>,
}

fn content(number: usize) -> Vec<u8> {
    (0..5 * 4096 + number).map(|at| u8::try_from((at / 64 + number) % 251).unwrap()).collect()
}

impl Broken {
    fn new(crashed: bool) -> Self {
        let memory = MemoryDevice::new(SIZE);
        let device: Arc<dyn BlockDevice> = memory.clone();
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
        let d = fs.create_dir_all("/d").unwrap().ino;
        for number in 0..FILES {
            fs.open(format!("/d/file-{number}"), &OpenOptions::create())
                .unwrap()
                .write_at(&content(number), 0)
                .unwrap();
        }
        let new = NewFile { mode: 0o777, uid: 3, gid: 4, umask: 0 };
        fs.symlink(InodeNo::ROOT, b"link", b"d/file-0", new).unwrap();
        let first = fs.resolve("/d/file-0").unwrap().ino;
        fs.link(first, d, b"again").unwrap();
        fs.set_xattr(first, b"user.note", b"kept", false, false).unwrap();
        if crashed {
            fs.sync().unwrap();
        } else {
            fs.unmount().unwrap();
        }
        Self { memory, device }
    }

    fn put(&self, rows: &[RowImage]) {
        forge::put_rows(&self.device, rows).unwrap();
    }

    fn spoil(&self, at: u64, len: usize) {
        let mut buf = AlignedBuf::zeroed(len);
        buf.fill(0x5a);
        self.device.write_at(&buf, at).unwrap();
    }

    /// Spoils every page of the metadata that holds `bytes`: these, or the whole page.
    fn spoil_pages_with(&self, bytes: &[u8], all: bool) -> usize {
        let metadata = forge::regions(&self.device)
            .unwrap()
            .into_iter()
            .find(|region| region.name == "metadata")
            .unwrap();
        let mut buf = AlignedBuf::zeroed(4096);
        let mut spoiled = 0;
        for at in (metadata.start + 4096..metadata.start + metadata.len).step_by(4096) {
            self.device.read_at(&mut buf, at).unwrap();
            if let Some(place) = buf.windows(bytes.len()).position(|window| window == bytes) {
                buf[if all { 0 } else { place }] ^= 0xff;
                self.device.write_at(&buf, at).unwrap();
                spoiled += 1;
            }
        }
        spoiled
    }

    fn salvage(&self) -> Salvage {
        let before = self.memory.snapshot();
        let salvage = Salvage::open(&self.device, None, None).unwrap();
        let _all = (salvage.entries(), files(&salvage));
        assert_eq!(
            self.memory.snapshot().first_difference(&before),
            None,
            "a salvage writes nothing"
        );
        salvage
    }
}

/// Every file by path: its bytes, and what is lost of it.
fn files(salvage: &Salvage) -> BTreeMap<String, (Vec<u8>, Vec<LostRange>)> {
    let entries = salvage.entries();
    let mut paths: Vec<String> = Vec::new();
    let mut files = BTreeMap::new();
    for entry in &entries {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        paths.push(
            entry.parent.map_or_else(|| name.clone(), |parent| format!("{}/{name}", paths[parent])),
        );
        if entry.attr.kind == FileKind::File {
            let mut bytes = vec![0; usize::try_from(entry.attr.size.min(1 << 20)).unwrap()];
            let taken = salvage.read::<Infallible>(entry.attr.ino, |offset, data| {
                let at = usize::try_from(offset).unwrap();
                bytes[at..at + data.len()].copy_from_slice(data);
                Ok(())
            });
            let lost = taken.unwrap_or_else(|never| match never {});
            files.insert(paths[paths.len() - 1].clone(), (bytes, lost));
        }
    }
    files
}

/// How many of the files are there under their names, whole.
fn whole(salvage: &Salvage) -> usize {
    let files = files(salvage);
    (0..FILES)
        .filter(|number| {
            files.get(&format!("d/file-{number}")) == Some(&(content(*number), Vec::new()))
        })
        .count()
}

#[test]
fn everything_is_saved_of_a_sound_volume_also_of_one_that_was_killed() {
    for crashed in [false, true] {
        let salvage = Broken::new(crashed).salvage();
        assert!(salvage.losses().is_empty(), "{:?}", salvage.losses());
        assert_eq!(whole(&salvage), FILES);
        let entries = salvage.entries();
        assert!(entries.iter().all(|entry| entry.doubt.is_none()));
        assert!(entries.iter().any(|entry| entry.name == b"link" && entry.target == b"d/file-0"));
        let again = entries.iter().find(|entry| entry.name == b"again").unwrap();
        assert_eq!(
            (again.attr.nlink, salvage.attributes(again.attr.ino)),
            (2, vec![(b"user.note".to_vec(), b"kept".to_vec())])
        );
        assert_eq!(entries.len(), FILES + 3);
    }
}

#[test]
fn one_superblock_is_enough() {
    for at in [0, COPY_B] {
        let broken = Broken::new(true);
        broken.spoil(at, 4096);
        let salvage = broken.salvage();
        assert_eq!((whole(&salvage), salvage.losses().len()), (FILES, 1));
    }
}

#[test]
fn without_any_superblock_files_are_put_together_from_loose_pages() {
    let broken = Broken::new(false);
    broken.spoil(0, 4096);
    broken.spoil(COPY_B, 4096);
    let salvage = broken.salvage();
    assert!(salvage.losses().iter().any(|loss| loss.contains("both superblocks are lost")));
    assert_eq!(whole(&salvage), FILES);
    assert!(
        salvage.entries().iter().all(|entry| entry.doubt.is_some()),
        "nothing tells how old it is"
    );
}

#[test]
fn a_damaged_page_costs_what_stands_in_it_and_no_more() {
    let broken = Broken::new(false);
    // Extended attributes have pages of their own here.
    assert!(broken.spoil_pages_with(b"user.note", true) > 0);
    let error = FileSystem::mount(Arc::clone(&broken.device), None, MountOptions::default())
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(!FileSystem::check(&broken.device, None, false).unwrap().is_sound());
    let salvage = broken.salvage();
    assert_eq!(whole(&salvage), FILES);
    assert!(salvage.losses().iter().any(|loss| loss.contains("'xattr'")), "{:?}", salvage.losses());
}

#[test]
fn names_whose_pages_are_lost_become_numbers() {
    let broken = Broken::new(false);
    assert!(broken.spoil_pages_with(b"file-7", true) > 0);
    let salvage = broken.salvage();
    assert!(
        salvage.losses().iter().any(|loss| loss.contains("'dentry'")),
        "{:?}",
        salvage.losses()
    );
    let files = files(&salvage);
    let saved = (0..FILES)
        .filter(|number| {
            files.values().any(|(bytes, lost)| *bytes == content(*number) && lost.is_empty())
        })
        .count();
    assert_eq!(saved, FILES, "{:?}", files.keys());
    assert!(files.keys().any(|path| path.starts_with("lost+found/inode-")), "{:?}", files.keys());
}

#[test]
fn a_page_with_a_flipped_bit_is_read_for_what_it_is_worth() {
    let broken = Broken::new(false);
    assert!(broken.spoil_pages_with(b"file-7", false) > 0);
    let salvage = broken.salvage();
    assert_eq!(whole(&salvage), FILES - 1, "one name is wrong");
    let entries = salvage.entries();
    let odd = entries.iter().find(|entry| entry.name.ends_with(b"ile-7")).unwrap();
    assert!(odd.doubt.as_ref().is_some_and(|doubt| doubt.contains("name")), "{:?}", odd.doubt);
}

#[test]
fn a_damaged_log_is_followed_as_far_as_it_goes() {
    let broken = Broken::new(true);
    let log = forge::regions(&broken.device)
        .unwrap()
        .into_iter()
        .find(|region| region.name == "log")
        .unwrap();
    broken.spoil(log.start, 4096);
    // Everything stood in the log: nothing but the root is left.
    let salvage = broken.salvage();
    assert_eq!(whole(&salvage), 0);
}

#[test]
fn what_the_device_cannot_read_is_named_by_file_and_bytes() {
    let broken = Broken::new(false);
    let simulated = SimulatedDevice::over(&broken.memory.snapshot(), &SimulatedOptions::default());
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    let rows = forge::rows(&device).unwrap();
    let row = rows.iter().find(|row| row.table == Table::Extent as u8).unwrap();
    let extent = ExtentRow::decode(row.value.as_ref().unwrap()).unwrap();
    let bad = (extent.start.0 + 2) * 4096;
    simulated.inject(
        FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Always).within(bad..bad + 4096),
    );
    let salvage = Salvage::open(&device, None, None).unwrap();
    assert_eq!(whole(&salvage), FILES - 1);
    let files = files(&salvage);
    let (path, (bytes, lost)) = files.iter().find(|(_, (_, lost))| !lost.is_empty()).unwrap();
    assert_eq!((lost.len(), lost[0].offset, lost[0].len), (1, 8192, 4096), "{path}: {lost:?}");
    assert!(
        bytes[8192..12288].iter().all(|byte| *byte == 0) && bytes[..4096] == content(0)[..4096]
    );
}

#[test]
fn extents_that_cannot_be_are_lost_ranges_and_nothing_else_suffers() {
    let broken = Broken::new(false);
    let fs = FileSystem::mount(Arc::clone(&broken.device), None, MountOptions::default()).unwrap();
    let ino = fs.resolve("/d/file-3").unwrap().ino;
    fs.unmount().unwrap();
    let wild = ExtentRow {
        start: BlockNo(u64::MAX / 4096),
        len: u32::MAX,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    broken.put(&[RowImage {
        table: Table::Extent as u8,
        key: extent_key(ino, FileBlock(0)).to_vec(),
        value: Some(wild.encode().to_vec()),
    }]);
    assert_eq!(
        FileSystem::mount(Arc::clone(&broken.device), None, MountOptions::default())
            .map(|_| ())
            .unwrap_err()
            .kind,
        ErrorKind::Corrupt
    );
    let salvage = broken.salvage();
    assert_eq!(whole(&salvage), FILES - 1);
    let lost = &files(&salvage)["d/file-3"].1;
    assert!(
        lost.iter().map(|range| range.len).sum::<u64>() >= 5 * 4096
            && lost.iter().any(|range| range.reason.contains("outside the device")),
        "{lost:?}"
    );
}

#[test]
fn hostile_names_and_circles_come_to_an_end() {
    let broken = Broken::new(false);
    let fs = FileSystem::mount(Arc::clone(&broken.device), None, MountOptions::default()).unwrap();
    let d = fs.resolve("/d").unwrap().ino;
    fs.rename(InodeNo::ROOT, b"link", d, b"link", RenameMode::Replace).unwrap();
    fs.unmount().unwrap();
    let name = |dir: InodeNo, name: &[u8], ino: InodeNo| RowImage {
        table: Table::Dentry as u8,
        key: pair_key(dir, name),
        value: Some(DentryRow { ino, kind: FileKind::Directory }.encode()),
    };
    broken.put(&[
        name(d, b"d", d),
        name(d, b"root", InodeNo::ROOT),
        name(d, b"../../etc/passwd", d),
        name(d, b"..", d),
        name(InodeNo::ROOT, b"nowhere", InodeNo(u64::MAX)),
        RowImage {
            table: Table::Inode as u8,
            key: inode_key(InodeNo(u64::MAX)),
            value: Some(vec![1; 10]),
        },
    ]);
    let salvage = broken.salvage();
    assert_eq!(whole(&salvage), FILES);
    assert!(
        salvage.entries().iter().all(|entry| !entry.name.contains(&b'/') && entry.name != b"..")
    );
}

/// Every mount reads all extents. Forty branches, each of which names the next one twice, lead to
/// one leaf a million million times.
#[test]
fn a_tree_that_shares_its_pages_is_damaged_and_not_endless() {
    const DEPTH: usize = 40;
    let broken = Broken::new(false);
    let superblock = Superblock::read(&broken.device).unwrap().superblock;
    let chunk = superblock.chunks[0];
    assert!(chunk.len >= superblock.metadata_len, "one chunk holds all of it");
    let region = Region::new(Arc::clone(&broken.device), superblock.clone(), true);
    let (file, slots) = TreeFile::open(&region).unwrap();
    let root = file
        .tables(&slots[0])
        .0
        .into_iter()
        .find(|(name, _)| name == b"extent")
        .unwrap()
        .1
        .unwrap();
    let write = |page: u64, bytes: &[u8]| {
        let mut buf = AlignedBuf::zeroed(4096);
        buf[..bytes.len()].copy_from_slice(bytes);
        broken.device.write_at(&buf, chunk.start + file.place(page).unwrap().0).unwrap();
    };
    // Pages that nothing was ever written to.
    let free = |page: &u64| {
        let mut bytes = vec![1; 4096];
        file.place(*page).is_some_and(|(start, _)| region.read(start, &mut bytes).is_ok())
            && bytes.iter().all(|byte| *byte == 0)
    };
    let pages: Vec<u64> = (0..superblock.metadata_len / 4096).filter(free).take(DEPTH).collect();
    assert_eq!(pages.len(), DEPTH);
    let mut leaf = vec![0; 4096];
    region.read(file.place(root.page).unwrap().0, &mut leaf).unwrap();
    write(pages[DEPTH - 1], &leaf);
    for step in 0..DEPTH {
        // A key that lies above every key of the leaf, so that the left child is one to look at,
        // and the right one too.
        let mut branch = vec![2, 0, 1, 0, 0, 0, 0, 0];
        branch.extend([0; 32]);
        let child = pages[step];
        branch.extend([child.to_le_bytes(), child.to_le_bytes()].concat());
        branch.extend((8 + 48 + 4 + 16_u32).to_le_bytes());
        branch.extend([0xff; 16]);
        write(if step == 0 { root.page } else { pages[step - 1] }, &branch);
    }
    let error = FileSystem::mount(Arc::clone(&broken.device), None, MountOptions::default())
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(!FileSystem::check(&broken.device, None, false).unwrap().is_sound());
    broken.salvage();
}

#[test]
fn an_empty_device_holds_nothing() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE);
    let error = Salvage::open(&device, None, None).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotAVolume);
    assert!(error.message.contains("not one file was found"), "{error}");
}
