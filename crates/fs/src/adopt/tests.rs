use bedplate_block::{AlignedBuf, MemoryDevice};

use super::*;
use crate::{FileSystem, MountOptions, OpenOptions};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn inode(kind: FileKind, names: &[(usize, &str)]) -> AdoptedInode {
    AdoptedInode {
        kind,
        mode: 0o640,
        uid: 3,
        gid: 4,
        rdev: 0,
        size: 0,
        times: [Timestamp(1), Timestamp(2), Timestamp(3), Timestamp(4)],
        target: Vec::new(),
        attributes: Vec::new(),
        extents: Vec::new(),
        names: names.iter().map(|(dir, name)| (*dir, name.as_bytes().to_vec())).collect(),
    }
}

/// A file of three blocks with a hole, another of unwritten blocks, a directory, a link.
fn adoption() -> Adoption {
    let file = AdoptedInode {
        size: 3 * BLOCK + 5,
        extents: vec![
            AdoptedExtent { file_block: 0, start: 5000, blocks: 2, unwritten: false },
            AdoptedExtent { file_block: 3, start: 4000, blocks: 1, unwritten: false },
        ],
        attributes: vec![(b"user.a".to_vec(), b"b".to_vec())],
        ..inode(FileKind::File, &[(0, "f"), (1, "again")])
    };
    let reserved = AdoptedInode {
        extents: vec![AdoptedExtent { file_block: 0, start: 6000, blocks: 9, unwritten: true }],
        size: BLOCK,
        ..inode(FileKind::File, &[(1, "reserved")])
    };
    let link =
        AdoptedInode { target: b"d/again".to_vec(), ..inode(FileKind::Symlink, &[(0, "l")]) };
    Adoption {
        block_size: 4096,
        size_bytes: 64 * MIB,
        log: 40 * MIB..42 * MIB,
        metadata: vec![30 * MIB..31 * MIB, 32 * MIB..40 * MIB],
        inodes: vec![
            inode(FileKind::Directory, &[]),
            inode(FileKind::Directory, &[(0, "d")]),
            file,
            reserved,
            link,
        ],
    }
}

fn filled() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 * MIB);
    for block in 0..64 * MIB / BLOCK {
        let bytes = AlignedBuf::from_slice(&[block as u8; BLOCK as usize]);
        device.write_at(&bytes, block * BLOCK).unwrap();
    }
    device
}

/// S-598
#[test]
fn s_598_a_volume_is_made_of_blocks_that_lie_on_the_device() {
    let device = filled();
    let made = adopt(&device, &adoption()).unwrap();
    assert!(FileSystem::probe(&device).is_err(), "S-598: the superblock is the caller's to write");
    for at in [0, 8 * MIB] {
        device.write_at(&AlignedBuf::from_slice(&made.superblock), at).unwrap();
    }
    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(report.findings.is_empty(), "S-598: {:?}", report.findings);
    assert_eq!(report.extents, 3);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    assert_eq!(fs.info().recovery.extents, 0, "S-598: the free space is stored");
    let file = fs.open("/d/again", &OpenOptions::create()).unwrap();
    let mut bytes = AlignedBuf::zeroed(4 * BLOCK as usize);
    let read = file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(read as u64, 3 * BLOCK + 5);
    let byte = |at: u64| bytes[at as usize * BLOCK as usize];
    assert_eq!(
        [byte(0), byte(1), byte(2), byte(3)],
        [5000_u64 as u8, 5001_u64 as u8, 0, 4000_u64 as u8]
    );
    drop(file);
    let reserved = fs.open("/d/reserved", &OpenOptions::create()).unwrap();
    reserved.read_at(&mut bytes[..BLOCK as usize], 0).unwrap();
    assert!(bytes[..BLOCK as usize].iter().all(|byte| *byte == 0), "S-598: unwritten");
    drop(reserved);
    fs.unmount().unwrap();
    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(report.findings.is_empty(), "S-598: {:?}", report.findings);
}

#[test]
fn what_makes_no_volume_is_refused() {
    let device = filled();
    let changes: [&dyn Fn(&mut Adoption); 8] = [
        &|it| it.block_size = 4000,
        &|it| it.size_bytes = 65 * MIB,
        &|it| it.log.end = it.log.start + 4096,
        &|it| it.metadata = vec![MIB..MIB + 4096; METADATA_RUNS_MAX + 1],
        &|it| it.metadata[0].end += 1,
        &|it| it.inodes[1].names.push((0, b"e".to_vec())),
        &|it| it.inodes[2].names[0].0 = 3,
        &|it| it.inodes[2].extents[1].file_block = 1,
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut broken = adoption();
        change(&mut broken);
        let error = adopt(&device, &broken).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "change {at}: {error}");
    }
    let mut long = adoption();
    long.inodes[2].size = Grid::FILE_BYTES_MAX + 1;
    assert_eq!(adopt(&device, &long).unwrap_err().kind, ErrorKind::TooLarge);
    let mut cramped = adoption();
    cramped.metadata.truncate(1);
    cramped.metadata[0].end = cramped.metadata[0].start + (64 << 10);
    assert_eq!(adopt(&device, &cramped).unwrap_err().kind, ErrorKind::NoSpace);
}

#[test]
fn a_superblock_counts_over_bytes_that_are_kept() {
    let device = filled();
    let made = adopt(&device, &adoption()).unwrap();
    let old = [0x5a; CONTENT_BYTES];
    for kept in [512..2048, 1536..2048, 0..0] {
        let mixed = superblock_over(&made.superblock, &old, kept.clone()).unwrap();
        assert_eq!(mixed[kept.clone()], old[kept.clone()]);
        assert_eq!(mixed == made.superblock, kept.is_empty());
    }
    for kept in [0..8, 100..120, 2048..2560] {
        assert!(superblock_over(&made.superblock, &old, kept.clone()).is_err(), "{kept:?}");
    }
}
