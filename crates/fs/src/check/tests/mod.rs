//! Every class of damage that a check knows: it is named, and mended or refused with the reason.
//! `docs/faults.md` has the table.

mod forged;
mod lists;

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, MemoryDevice, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_store::{COPY_B, DentryRow, ExtentRow, Table, extent_key, inode_key, pair_key};

use crate::forge::{self};
use crate::{
    BlockNo, Epoch, FileBlock, FileKind, FileSystem, FindingKind, InodeNo, MountOptions,
    OpenOptions, RenameMode,
};
pub(super) use forged::{Forged, delete, put};
use forged::{NEW, SIZE};

#[test]
fn a_sound_volume_has_no_findings() {
    Forged::new().finds(&[], true);
}

#[test]
fn a_damaged_superblock_copy_is_written_again_from_the_other() {
    for (at, name) in [(0, "byte 0"), (COPY_B, "byte 8388608")] {
        let v = Forged::new();
        let mut copy = AlignedBuf::zeroed(4096);
        v.device.read_at(&mut copy, at).unwrap();
        let whole = copy.to_vec();
        copy[100] ^= 1;
        v.device.write_at(&copy, at).unwrap();
        v.finds(&[(FindingKind::Superblock, name)], true);
        v.device.read_at(&mut copy, at).unwrap();
        assert_eq!(
            copy[..32],
            [&whole[..12], &copy[12..16], &whole[16..32]].concat(),
            "it is the same volume's"
        );
    }
}

#[test]
fn a_damaged_page_of_the_tree_is_named_and_left_alone() {
    let v = Forged::new();
    let metadata = forge::regions(&v.device)
        .unwrap()
        .into_iter()
        .find(|region| region.name == "metadata")
        .unwrap();
    let mut buf = AlignedBuf::zeroed(4096);
    let mut hit = false;
    for at in (metadata.start + 4096..metadata.start + metadata.len).step_by(4096) {
        v.device.read_at(&mut buf, at).unwrap();
        // Pages that hold names; one of them is of the present commit.
        if let Some(place) = buf.windows(9).position(|bytes| bytes == b"user.note") {
            buf[place] ^= 0x55;
            v.device.write_at(&buf, at).unwrap();
            hit = true;
        }
    }
    assert!(hit);
    v.finds(&[(FindingKind::Metadata, "metadata tree is damaged")], false);
}

#[test]
fn rows_that_cannot_be_read_are_named_by_their_key() {
    let v = Forged::new();
    v.put(&[put(Table::Inode, inode_key(InodeNo(77)), vec![9; 5])]);
    v.finds(&[(FindingKind::Row, "000000000000004d cannot be read")], false);
    let v = Forged::new();
    v.put(&[put(Table::Dentry, pair_key(v.d, b"odd"), vec![1])]);
    v.finds(&[(FindingKind::Row, "the name with key")], false);
    let v = Forged::new();
    v.put(&[put(Table::Extent, inode_key(v.one), vec![1])]);
    v.finds(&[(FindingKind::Row, "an extent row cannot be read")], false);
    let v = Forged::new();
    v.put(&[put(Table::Xattr, pair_key(v.one, b""), vec![1])]);
    v.finds(&[(FindingKind::Row, "an attribute that cannot be")], false);
}

#[test]
fn an_extent_outside_the_volume_is_refused() {
    let v = Forged::new();
    let row = ExtentRow {
        start: BlockNo(SIZE / 4096 - 1),
        len: 2,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    v.put(&[put(Table::Extent, extent_key(v.one, FileBlock(0)), row.encode())]);
    v.with_inode(v.one, |row| row.blocks = 2);
    v.finds(&[(FindingKind::ExtentRange, "claims 2 blocks from block 8191")], false);
    assert!(v.mount().is_err_and(|e| e.message.contains("claims 2 blocks")));
}

#[test]
fn an_extent_behind_the_largest_file_is_refused() {
    let v = Forged::new();
    let row = ExtentRow {
        start: BlockNo(5000),
        len: 1,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    v.put(&[put(Table::Extent, extent_key(v.one, FileBlock(1 << 60)), row.encode())]);
    v.with_inode(v.one, |row| row.blocks += 1);
    v.finds(&[(FindingKind::ExtentRange, "behind the end of the largest file")], false);
}

/// I-CKP-6, S-75: what was cloned from one file may share its blocks; a stranger may not, and no
/// file has a block twice.
#[test]
fn i_ckp_6_only_a_family_shares_blocks() {
    let v = Forged::new();
    let row = v.extent(v.one);
    v.put(&[put(Table::Extent, extent_key(v.two, FileBlock(0)), row.encode())]);
    v.with_inode(v.two, |row| row.parent = v.one);
    v.finds(&[], true);
    let fs = v.mount().unwrap();
    let free = fs.statfs().free_bytes;
    fs.remove("/d/one").unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free_bytes, free, "the other still has the blocks");
    fs.remove("/d/two").unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free_bytes, free + 3 * 4096);
    fs.unmount().unwrap();

    let v = Forged::new();
    let row = v.extent(v.one);
    v.put(&[put(Table::Extent, extent_key(v.one, FileBlock(7)), row.encode())]);
    v.with_inode(v.one, |row| (row.parent, row.blocks) = (v.two, 6));
    v.finds(&[(FindingKind::ExtentOverlap, "both claim 3 blocks")], false);
}

/// S-75: a clone that a crash left unfinished is no damage, and the next mount removes it with all
/// that is in it.
#[test]
fn s_75_an_unfinished_clone_is_removed_whole() {
    let v = Forged::new();
    let before = v.mount().unwrap();
    let (free, inodes) = (before.statfs().free_bytes, before.statfs().inodes);
    before.unmount().unwrap();
    v.put(&[
        delete(Table::Dentry, pair_key(InodeNo::ROOT, b"d")),
        put(Table::Orphan, inode_key(v.d), vec![1]),
    ]);
    v.with_inode(InodeNo::ROOT, |row| row.nlink = 2);
    v.with_inode(v.d, |row| row.nlink = 0);
    v.finds(&[], true);
    let fs = v.mount().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().inodes, inodes - 5, "the directory and what was in it");
    assert_eq!(fs.statfs().free_bytes, free + 6 * 4096);
    assert!(fs.attr(v.d).is_err() && fs.attr(v.e).is_err() && fs.attr(v.one).is_err());
    fs.unmount().unwrap();
    assert!(FileSystem::check(&v.device, None, false).unwrap().findings.is_empty());
}

#[test]
fn blocks_with_two_owners_are_refused_with_both_names() {
    let v = Forged::new();
    let row = v.extent(v.one);
    v.put(&[put(Table::Extent, extent_key(v.two, FileBlock(0)), row.encode())]);
    v.finds(&[(FindingKind::ExtentOverlap, "both claim 3 blocks")], false);
    let e = v.mount().map(drop).unwrap_err();
    assert!(
        e.message.contains(&format!("inode {}", v.one.0))
            && e.message.contains(&format!("inode {}", v.two.0)),
        "{e}"
    );

    let v = Forged::new();
    for region in forge::regions(&v.device).unwrap() {
        let row = ExtentRow { start: BlockNo(region.start / 4096), ..v.extent(v.one) };
        v.put(&[put(Table::Extent, extent_key(v.one, FileBlock(0)), row.encode())]);
        v.finds(&[(FindingKind::ExtentOverlap, "a region of the volume itself")], false);
        assert!(v.mount().is_err(), "file data must never reach the {}", region.name);
    }
}

#[test]
fn two_extents_over_one_block_of_a_file_are_refused() {
    let v = Forged::new();
    let row = ExtentRow {
        start: BlockNo(5000),
        len: 1,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    v.put(&[put(Table::Extent, extent_key(v.one, FileBlock(1)), row.encode())]);
    v.with_inode(v.one, |row| row.blocks += 1);
    v.finds(&[(FindingKind::ExtentOverlap, "two extents over its block 1")], false);
}

#[test]
fn rows_of_no_inode_are_removed() {
    let v = Forged::new();
    let row = ExtentRow {
        start: BlockNo(5000),
        len: 4,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    v.put(&[
        put(Table::Extent, extent_key(InodeNo(99), FileBlock(0)), row.encode()),
        put(Table::Xattr, pair_key(InodeNo(99), b"user.x"), vec![1]),
        put(Table::Orphan, inode_key(InodeNo(99)), vec![]),
        put(
            Table::Dentry,
            pair_key(InodeNo(99), b"name"),
            DentryRow { ino: v.one, kind: FileKind::File }.encode(),
        ),
    ]);
    let leftover = |part| (FindingKind::Leftover, part);
    v.finds(
        &[
            leftover("an extent of 4 blocks"),
            leftover("attribute 'user.x'"),
            leftover("the orphan entry"),
            leftover("'name' stands in inode 99"),
        ],
        true,
    );
}

#[test]
fn an_extent_of_what_is_no_file_is_refused() {
    let v = Forged::new();
    let row = ExtentRow {
        start: BlockNo(5000),
        len: 4,
        state: bedplate_store::ExtentState::Written,
        birth: Epoch(1),
    };
    v.put(&[put(Table::Extent, extent_key(v.link, FileBlock(0)), row.encode())]);
    v.finds(&[(FindingKind::Leftover, "is no regular file but has an extent")], false);
}

#[test]
fn a_name_that_leads_nowhere_is_removed() {
    let v = Forged::new();
    v.name(v.d, b"gone", InodeNo(99), FileKind::File);
    v.finds(&[(FindingKind::DanglingName, "'gone' in directory")], true);
    assert!(v.mount().unwrap().resolve("/d/gone").is_err());
}

#[test]
fn what_lost_its_name_is_found_under_lost_and_found() {
    let v = Forged::new();
    v.put(&[
        delete(Table::Dentry, pair_key(v.d, b"one")),
        delete(Table::Dentry, pair_key(v.d, b"e")),
    ]);
    v.with_inode(v.d, |row| row.nlink = 2);
    v.finds(
        &[(FindingKind::Unreachable, "has no name"), (FindingKind::Unreachable, "has no name")],
        true,
    );
    let fs = v.mount().unwrap();
    let found =
        fs.open(format!("/lost+found/inode-{}", v.one.0), &OpenOptions::read_only()).unwrap();
    let mut buf = [0; 4096];
    assert_eq!(found.read_at(&mut buf, 4096).unwrap(), 4096);
    assert_eq!(buf, [7; 4096]);
    assert_eq!(
        fs.resolve(format!("/lost+found/inode-{}", v.e.0)).unwrap().kind,
        FileKind::Directory
    );
    assert_eq!(fs.lookup(v.e, b"..").unwrap().ino, fs.resolve("/lost+found").unwrap().ino);
    // The next one to be made gets a number of its own.
    let made = fs.make(InodeNo::ROOT, b"new", FileKind::File, NEW, 0).unwrap();
    assert!(made.ino > fs.resolve("/lost+found").unwrap().ino);
}

#[test]
fn a_second_lost_and_found_gets_another_name() {
    let v = Forged::new();
    v.name(InodeNo::ROOT, b"lost+found", v.two, FileKind::File);
    v.with_inode(v.two, |row| row.nlink = 2);
    v.put(&[delete(Table::Dentry, pair_key(v.d, b"one"))]);
    v.finds(&[(FindingKind::Unreachable, "has no name")], true);
    v.mount().unwrap().resolve(format!("/lost+found-2/inode-{}", v.one.0)).unwrap();
}

#[test]
fn what_was_removed_but_not_listed_is_listed() {
    let v = Forged::new();
    v.put(&[delete(Table::Dentry, pair_key(v.d, b"one"))]);
    v.with_inode(v.one, |row| row.nlink = 0);
    v.finds(&[(FindingKind::Unreachable, "is not listed to be removed")], true);
    assert!(v.mount().unwrap().attr(v.one).is_err(), "the mount removed it");
}

#[test]
fn a_directory_to_be_removed_that_holds_names_is_kept() {
    let v = Forged::new();
    v.put(&[
        delete(Table::Dentry, pair_key(InodeNo::ROOT, b"d")),
        put(Table::Orphan, inode_key(v.d), vec![]),
    ]);
    v.with_inode(InodeNo::ROOT, |row| row.nlink = 2);
    v.finds(&[(FindingKind::Unreachable, "to be removed, but it holds 4 names")], true);
    v.mount().unwrap().resolve(format!("/lost+found/inode-{}/one", v.d.0)).unwrap();
}

#[test]
fn counts_are_set_to_what_was_found() {
    let v = Forged::new();
    v.with_inode(v.one, |row| (row.nlink, row.blocks) = (5, 1));
    v.with_inode(v.d, |row| row.nlink = 0);
    let link = |part| (FindingKind::LinkCount, part);
    v.finds(
        &[
            link("counts 5 links, 1 were found"),
            link("counts 0 links, 3 were found"),
            (FindingKind::AllocatedSize, "counts 1 allocated"),
        ],
        true,
    );
    let fs = v.mount().unwrap();
    assert_eq!(
        (fs.attr(v.one).unwrap().nlink, fs.attr(v.one).unwrap().allocated_bytes),
        (1, 3 * 4096)
    );
}

#[test]
fn a_named_inode_that_says_it_is_removed_is_not_removed() {
    let v = Forged::new();
    v.put(&[put(Table::Orphan, inode_key(v.one), vec![])]);
    v.with_inode(v.one, |row| row.nlink = 0);
    v.finds(&[(FindingKind::LinkCount, "counts 0 links, 1 were found")], true);
    assert_eq!(v.mount().unwrap().resolve("/d/one").unwrap().nlink, 1);
}

#[test]
fn directories_that_are_no_tree_are_refused() {
    let v = Forged::new();
    v.name(v.e, b"up", v.d, FileKind::Directory);
    v.with_inode(v.e, |row| row.nlink = 3);
    v.finds(
        &[
            (FindingKind::DirectoryLoop, "has a second name"),
            (FindingKind::DirectoryLoop, "reachable from itself only"),
        ],
        false,
    );

    let v = Forged::new();
    v.put(&[delete(Table::Dentry, pair_key(InodeNo::ROOT, b"d"))]);
    v.name(v.e, b"up", v.d, FileKind::Directory);
    v.with_inode(v.e, |row| row.nlink = 3);
    v.with_inode(v.d, |row| row.parent = v.e);
    v.with_inode(InodeNo::ROOT, |row| row.nlink = 2);
    v.finds(&[(FindingKind::DirectoryLoop, "reachable from itself only")], false);
    // A mount takes it: nothing is lost but what cannot be reached, and no walk goes in circles.
    let fs = v.mount().unwrap();
    fs.make(InodeNo::ROOT, b"f", FileKind::Directory, NEW, 0).unwrap();
    let e = fs.rename(InodeNo::ROOT, b"f", v.e, b"f", RenameMode::Replace).unwrap_err();
    assert!(e.message.contains("in a circle"), "{e}");
}

#[test]
fn a_name_of_the_root_is_removed() {
    let v = Forged::new();
    v.name(v.d, b"root", InodeNo::ROOT, FileKind::Directory);
    v.finds(&[(FindingKind::DirectoryLoop, "leads to the root")], true);
}

#[test]
fn a_name_that_cannot_be_is_removed_and_its_inode_is_kept() {
    for name in [&b"a/b"[..], b"", b"..", b"nul\0", &[b'x'; 256]] {
        let v = Forged::new();
        v.put(&[delete(Table::Dentry, pair_key(v.d, b"one"))]);
        v.name(v.d, name, v.one, FileKind::File);
        v.finds(
            &[(FindingKind::BadName, "cannot be one"), (FindingKind::Unreachable, "has no name")],
            true,
        );
        v.mount().unwrap().resolve(format!("/lost+found/inode-{}", v.one.0)).unwrap();
    }
}

#[test]
fn a_name_of_the_wrong_kind_says_what_the_inode_says() {
    let v = Forged::new();
    v.name(v.d, b"one", v.one, FileKind::Directory);
    assert!(v.mount().unwrap().resolve("/d/one/x").is_err());
    v.finds(&[(FindingKind::NameKind, "says Directory")], true);
    assert_eq!(v.mount().unwrap().read_dir(v.d, Some(b"link"), 1).unwrap()[0].kind, FileKind::File);
}

#[test]
fn a_parent_that_is_none_is_set() {
    let v = Forged::new();
    v.with_inode(v.e, |row| row.parent = InodeNo::ROOT);
    v.with_inode(InodeNo::ROOT, |row| row.parent = v.d);
    v.finds(
        &[
            (FindingKind::Parent, "its name stands in"),
            (FindingKind::Parent, "the root says its parent is"),
        ],
        true,
    );
    assert_eq!(v.mount().unwrap().parent(v.e).unwrap(), v.d);
}

#[test]
fn values_that_cannot_be_are_set_where_one_answer_is_right() {
    let v = Forged::new();
    v.with_inode(v.one, |row| row.mode = 0o100_644);
    v.with_inode(v.two, |row| row.size = u64::MAX);
    v.with_inode(v.link, |row| row.size = 1000);
    v.finds(
        &[
            (FindingKind::Mode, "permission bits 0o100644"),
            (FindingKind::Size, "more than any file can have"),
            (FindingKind::Size, "symbolic link"),
        ],
        true,
    );
    let fs = v.mount().unwrap();
    assert_eq!(
        (fs.attr(v.one).unwrap().mode, fs.attr(v.two).unwrap().size, fs.attr(v.link).unwrap().size),
        (0o644, 3 * 4096, 3)
    );

    let v = Forged::new();
    v.with_inode(v.one, |row| row.target = b"odd".to_vec());
    v.finds(&[(FindingKind::Row, "bytes of a target")], true);
    let v = Forged::new();
    v.with_inode(v.link, |row| row.target.clear());
    v.finds(&[(FindingKind::Row, "has a target of 0 bytes")], false);
}

#[test]
fn a_number_that_would_be_given_twice_is_refused_by_a_mount_and_mended() {
    for value in [v_next(3), v_next(u64::MAX), vec![1]] {
        let v = Forged::new();
        v.put(&[put(Table::Setting, b"next_ino".to_vec(), value)]);
        assert!(v.mount().is_err_and(|e| e.message.contains("next_ino") || e.message.contains(
            "run a check")));
        v.finds(&[(FindingKind::Setting, "next")], true);
        let fs = v.mount().unwrap();
        assert!(fs.make(InodeNo::ROOT, b"new", FileKind::File, NEW, 0).unwrap().ino > v.link);
    }
}

fn v_next(next: u64) -> Vec<u8> {
    next.to_le_bytes().to_vec()
}

#[test]
fn schedules_and_the_policy_of_a_full_volume_that_do_not_decode_are_removed() {
    for (key, value) in [
        (&b"schedule.hourly"[..], vec![0; 20]),
        (b"schedule.", vec![1; 20]),
        (b"checkpoint_policy", vec![7]),
    ] {
        let v = Forged::new();
        v.put(&[put(Table::Setting, key.to_vec(), value)]);
        v.finds(&[(FindingKind::Setting, "does not decode")], true);
    }
}

/// I-TUNE-1
#[test]
fn a_tunable_that_is_none_of_its_values_is_not_taken_and_mended() {
    for (value, what) in
        [(vec![1], "the tunable 'mode' is no number"), (v_next(99), "is not one of cached, direct")]
    {
        let v = Forged::new();
        v.put(&[
            put(Table::Setting, b"tune_mode".to_vec(), value),
            put(Table::Setting, b"tune_of_a_later_version".to_vec(), vec![1]),
        ]);
        assert_eq!(v.mount().unwrap().info().mode, crate::IoMode::Cached, "the default serves");
        v.finds(&[(FindingKind::Setting, what)], true);
    }
}

#[test]
fn a_missing_epoch_is_refused() {
    let v = Forged::new();
    v.put(&[delete(Table::Setting, b"epoch".to_vec())]);
    v.finds(&[(FindingKind::Setting, "'epoch'")], false);
    assert!(v.mount().is_err());
}

#[test]
fn a_missing_root_is_refused() {
    let v = Forged::new();
    v.put(&[delete(Table::Inode, inode_key(InodeNo::ROOT))]);
    v.finds(
        &[
            (FindingKind::Metadata, "root directory"),
            (FindingKind::Leftover, "stands in inode 1"),
            (FindingKind::Unreachable, "no name"),
        ],
        false,
    );
}

#[test]
fn a_checkpoint_of_the_future_is_refused_by_a_mount() {
    let v = Forged::new();
    let fs = v.mount().unwrap();
    fs.create_checkpoint("past", &crate::CheckpointOptions::default()).unwrap();
    fs.unmount().unwrap();
    v.put(&[put(Table::Setting, b"epoch".to_vec(), 1_u32.to_le_bytes().to_vec())]);
    assert!(v.mount().is_err_and(|e| e.message.contains("'past' is of epoch 1")));
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_named_and_left_alone() {
    let v = Forged::new();
    v.put(&[put(Table::Checkpoint, 9_u32.to_be_bytes().to_vec(), vec![1])]);
    v.finds(&[(FindingKind::Checkpoint, "checkpoint 00000009")], false);
    let v = Forged::new();
    v.put(&[put(Table::Before, vec![1, 2], vec![3])]);
    v.finds(
        &[
            (FindingKind::Checkpoint, "a row of a checkpoint, 0102"),
            (FindingKind::Row, "a before-image has a key"),
        ],
        false,
    );
}

/// What needs a guess in one place keeps a repair from everything.
#[test]
fn one_guess_keeps_a_repair_from_everything() {
    let v = Forged::new();
    v.with_inode(v.one, |row| row.nlink = 5);
    v.with_inode(v.link, |row| row.target.clear());
    v.finds(
        &[(FindingKind::LinkCount, "counts 5"), (FindingKind::Row, "target of 0 bytes")],
        false,
    );
}

/// I-CHK-2: a repair that a power cut ends anywhere leaves what a repair can mend, or what is
/// mended.
#[test]
fn i_chk_2_a_repair_that_is_cut_short_can_be_done_again() {
    let v = Forged::new();
    v.put(&[delete(Table::Dentry, pair_key(v.d, b"one"))]);
    v.with_inode(v.two, |row| row.nlink = 9);
    let mut copy = AlignedBuf::zeroed(4096);
    v.device.read_at(&mut copy, COPY_B).unwrap();
    copy[77] ^= 8;
    v.device.write_at(&copy, COPY_B).unwrap();

    let simulated = SimulatedDevice::over(&v.memory.snapshot(), &SimulatedOptions::default());
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    assert!(FileSystem::check(&device, None, true).unwrap().is_sound());
    let operations = simulated.operation_count();
    assert!(operations > 6, "{operations}");
    for after in 0..=operations {
        for choice in [
            CrashChoice::LoseAll,
            CrashChoice::KeepAll,
            CrashChoice::Seeded(after as u64),
            CrashChoice::InOrder(after as u64),
        ] {
            repairs_after_a_cut(&simulated.crash_content(after, &choice), v.one);
        }
    }
}

fn repairs_after_a_cut(image: &Snapshot, one: InodeNo) {
    let device: Arc<dyn BlockDevice> = MemoryDevice::from_snapshot(image, MemoryDevice::GEOMETRY);
    let report = FileSystem::check(&device, None, true).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    fs.resolve(format!("/lost+found/inode-{}", one.0)).unwrap();
}
