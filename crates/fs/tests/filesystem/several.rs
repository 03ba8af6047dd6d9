//! Changes of several records: parked between two of them while something else is asked for. What
//! comes out is as if one had been after the other (I-CHG-1, I-CHG-2).
//!
//! Records carry three extents here, so that a file of ten spans four. The changing thread stops
//! between two of them; the other thread is given some time to go wrong, then the change goes on.
//! What is required holds however long either takes.

use std::sync::Arc;

use bedplate_block::AlignedBuf;
use bedplate_fs::{
    CheckpointOptions, CheckpointScope, CloneSource, Error, ErrorKind, FileSystem, InodeNo, IoMode,
    Limits, MountOptions, OpenOptions, Result, SetAttr,
};

use crate::common::assert_sound;
use crate::interrupted::{
    Bed, CHANGES, Change, EXTENTS, STRIDE, bed, content, each_interrupted, full, interrupted,
    mount, roll_back, truncate, used, write_full,
};
use crate::support::{device, format, options};

/// S-11, S-50, S-56. A checkpoint that was made between two records of a truncation by path showed
/// a size and blocks of neither moment; rolled back to and extended, the file had removed data
/// again. And a record that was under way took the checkpoint's images for those of the one before
/// (I-CKP-8): the older one lost its extents.
#[test]
fn i_chg_1_a_checkpoint_shows_a_change_of_several_records_whole_or_not_at_all() {
    let create =
        |fs: &FileSystem| fs.create_checkpoint("c", &CheckpointOptions::default()).map(drop);
    each_interrupted(create, |fs, story, (before, after), created| {
        created.unwrap();
        let shown = content(fs, "/.checkpoints/c/f");
        assert!(shown == before || shown == after, "{story}: the checkpoint shows neither moment");
        assert_eq!(content(fs, "/.checkpoints/base/f"), before, "{story}");
        assert_eq!(content(fs, "/f"), after, "{story}");
        roll_back(fs, "c", None).unwrap();
        assert_eq!(content(fs, "/f"), shown, "{story}: what the rollback gave back");
        assert_eq!(
            content(fs, "/.checkpoints/c/f"),
            shown,
            "{story}: the checkpoint after its rollback"
        );
        if let Some(mut bytes) = shown {
            truncate(fs, "/f", 2 * EXTENTS * STRIDE).unwrap();
            bytes.resize(2 * (EXTENTS * STRIDE) as usize, 0);
            assert_eq!(
                content(fs, "/f"),
                Some(bytes),
                "{story}: removed data came back with an extension"
            );
        }
        roll_back(fs, "base", None).unwrap();
        assert_eq!(content(fs, "/f"), before, "{story}: the older checkpoint kept its extents");
    });
}

/// S-56. The reclaim of a removed file went on below a rollback that had given the file its name
/// back: a name led to an inode that does not exist.
#[test]
fn i_chg_1_a_rollback_of_everything_falls_before_or_behind_a_change_of_several_records() {
    each_interrupted(
        |fs| roll_back(fs, "base", None),
        |fs, story, (before, after), rolled| {
            rolled.unwrap();
            let live = content(fs, "/f");
            assert!(live == before || live == after, "{story}");
            assert_eq!(content(fs, "/.checkpoints/base/f"), before, "{story}");
        },
    );
}

/// S-56.
#[test]
fn i_chg_1_a_rollback_of_a_file_falls_before_or_behind_a_change_of_several_records() {
    each_interrupted(
        |fs| roll_back(fs, "base", Some("/f")),
        |fs, story, (before, after), rolled| {
            rolled.unwrap();
            let live = content(fs, "/f");
            assert!(live == before || live == after, "{story}");
        },
    );
}

/// S-52.
#[test]
fn i_chg_1_a_checkpoint_is_deleted_before_or_behind_a_change_of_several_records() {
    each_interrupted(
        |fs| fs.delete_checkpoint("base"),
        |fs, story, (_, after), deleted| {
            deleted.unwrap();
            assert!(fs.checkpoints().is_empty());
            assert_eq!(content(fs, "/f"), after, "{story}");
        },
    );
}

/// S-75.
#[test]
fn i_chg_1_a_clone_has_a_change_of_several_records_whole_or_not_at_all() {
    each_interrupted(
        |fs| fs.clone_files(&CloneSource::Present("/f".into()), "/g").map(drop),
        |fs, story, (before, after), cloned| {
            let clone = content(fs, "/g");
            match cloned {
                Ok(()) => {
                    assert!(clone.is_some() && (clone == before || clone == after), "{story}");
                }
                Err(error) => assert!(
                    error.kind == ErrorKind::NotFound && after.is_none() && clone.is_none(),
                    "{story}: {error}"
                ),
            }
            assert_eq!(content(fs, "/f"), after, "{story}");
        },
    );
}

/// S-11.
#[test]
fn i_chg_1_a_truncation_or_removal_by_path_falls_before_or_behind_a_change_of_several_records() {
    let may_miss = |result: Result<()>, after: &Option<Vec<u8>>, story: &str| match result {
        Ok(()) => {}
        Err(Error { kind: ErrorKind::NotFound, .. }) => assert!(after.is_none(), "{story}"),
        Err(error) => panic!("{story}: {error}"),
    };
    each_interrupted(
        |fs| truncate(fs, "/f", 12 * STRIDE),
        |fs, story, (_, after), cut| {
            may_miss(cut, &after, story);
            let live = content(fs, "/f");
            let grown = after.clone().map(|mut bytes| {
                bytes.resize(12 * STRIDE as usize, 0);
                bytes
            });
            assert!(live == grown || live == after, "{story}");
        },
    );
    each_interrupted(
        |fs| fs.remove("/f"),
        |fs, story, (_, after), removed| {
            may_miss(removed, &after, story);
            assert_eq!(content(fs, "/f"), None, "{story}");
        },
    );
}

/// A checkpoint that is made while a clone is under construction has its files, without names.
/// Rolled back to, they came back and held their blocks until the next mount.
#[test]
fn a_checkpoint_in_the_middle_of_a_clone_brings_nothing_of_it_back() {
    for records in 1..4 {
        let bed = bed();
        let fs = &bed.fs;
        fs.create_dir_all("/d/e").unwrap();
        ["/d/a", "/d/b", "/d/e/c"].iter().for_each(|path| write_full(fs, path));
        let clone = Change {
            what: "clone",
            name: "clone of a directory",
            run: |fs| fs.clone_files(&CloneSource::Present("/d".into()), "/copy").map(drop),
            after: || None,
        };
        let create =
            |fs: &FileSystem| fs.create_checkpoint("c", &CheckpointOptions::default()).map(drop);
        let (cloned, created) =
            interrupted(&bed, &clone, records, create).expect("it takes several records");
        cloned.unwrap();
        created.unwrap();
        let of_file =
            [content(fs, "/.checkpoints/c/copy/a"), content(fs, "/.checkpoints/c/copy/e/c")];
        assert!(
            of_file == [None, None] || of_file == [Some(full()), Some(full())],
            "the clone is there whole or not at all"
        );
        roll_back(fs, "c", None).unwrap();
        assert_eq!(content(fs, "/copy/a"), of_file[0]);
        bed.fs.unmount().unwrap();
        let fs = mount(&bed.device, &Arc::default());
        assert_eq!(fs.info().recovery.orphans, 0, "after record {records}");
        fs.unmount().unwrap();
        assert_sound(&bed.device);
    }
}

/// Changes by number of an inode that is being reclaimed wrote rows of it again behind its last
/// record, or gave it a name.
#[test]
fn i_ino_2_nothing_changes_an_inode_that_is_being_reclaimed() {
    for records in 1..3 {
        let bed = bed();
        let ino = bed.fs.resolve("/f").unwrap().ino;
        let change = |fs: &FileSystem| -> [(&str, Result<()>); 7] {
            [
                ("link", fs.link(ino, InodeNo::ROOT, b"again").map(drop)),
                (
                    "size",
                    fs.set_attr(ino, &SetAttr { size: Some(1 << 20), ..SetAttr::default() })
                        .map(drop),
                ),
                (
                    "permissions",
                    fs.set_attr(ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() })
                        .map(drop),
                ),
                ("attribute", fs.set_xattr(ino, b"user.a", b"b", false, false)),
                ("mode", fs.set_io_mode(ino, Some(IoMode::Direct))),
                ("unit", fs.set_untorn(ino, Some(4096))),
                ("extent size", fs.set_extent_size(ino, Some(1 << 20))),
            ]
        };
        let remove =
            CHANGES.iter().find(|change| change.name == "remove").expect("it is one of them");
        let (removed, changed) =
            interrupted(&bed, remove, records, change).expect("it takes several records");
        removed.unwrap();
        for (what, result) in changed {
            assert_eq!(
                result.unwrap_err().kind,
                ErrorKind::NotFound,
                "{what} after record {records}"
            );
        }
        bed.fs.unmount().unwrap();
        assert_sound(&bed.device);
    }
}

/// The checkpoint that a clone of the present is made of was deleted by hand while the clone was
/// copied from it: the rest came from the present.
#[test]
fn what_a_clone_of_the_present_is_made_of_is_not_deleted_below_it() {
    let bed = bed();
    let clone = Change {
        what: "clone",
        name: "clone of a file",
        run: |fs| fs.clone_files(&CloneSource::Present("/f".into()), "/g").map(drop),
        after: || None,
    };
    let delete = |fs: &FileSystem| {
        // No list has it; its name has the number of an epoch.
        let mut deleted = (0..1000).map(|n| fs.delete_checkpoint(format!(".clone-{n}")));
        let is_there = |one: &bedplate_fs::Result<()>| {
            one.as_ref().err().is_none_or(|e| e.kind != ErrorKind::NotFound)
        };
        let deleted = deleted.find(is_there).expect("the clone is under way");
        truncate(fs, "/f", 0)?;
        deleted
    };
    let (cloned, deleted) = interrupted(&bed, &clone, 1, delete).expect("it takes several records");
    cloned.unwrap();
    assert_eq!(deleted.unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(content(&bed.fs, "/g"), Some(full()));
    bed.fs.unmount().unwrap();
    assert_sound(&bed.device);
}

/// A file that was open and had no name when a checkpoint was made came back with a rollback to it,
/// for nothing to reach, until the next mount.
#[test]
fn a_file_that_had_no_name_then_does_not_come_back() {
    let Bed { device, fs, .. } = bed();
    write_full(&fs, "/gone");
    let file = fs.open("/gone", &OpenOptions::read_write()).unwrap();
    fs.remove("/gone").unwrap();
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    drop(file);
    let before = used(&fs);
    roll_back(&fs, "c", None).unwrap();
    assert_eq!(used(&fs), before, "what it held belongs to the checkpoint alone");
    fs.unmount().unwrap();
    let fs = mount(&device, &Arc::default());
    assert_eq!(fs.info().recovery.orphans, 0);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Forced, below an open file without a name that the checkpoint has too: the open goes on, and its
/// last close removes the file.
#[test]
fn an_open_file_without_a_name_outlives_a_rollback_to_a_checkpoint_that_shows_it_so() {
    let Bed { device, fs, .. } = bed();
    write_full(&fs, "/gone");
    let file = fs.open("/gone", &OpenOptions::read_write()).unwrap();
    fs.remove("/gone").unwrap();
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    file.set_size(STRIDE).unwrap();
    roll_back(&fs, "c", None).unwrap();
    let mut bytes = vec![0; (EXTENTS * STRIDE) as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert_eq!(bytes, full());
    drop(file);
    fs.unmount().unwrap();
    let fs = mount(&device, &Arc::default());
    assert_eq!(fs.info().recovery.orphans, 0);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Between two records of a truncation or a reclaim an orphan row says what remains: the next mount
/// does it, and everything is free again.
#[test]
fn i_chg_2_a_change_that_a_crash_ends_between_two_records_goes_on_at_the_next_mount() {
    for change in CHANGES.iter().filter(|change| change.what != "punch") {
        for records in 1..3 {
            let bed = bed();
            bed.fs.delete_checkpoint("base").unwrap();
            bed.park.state.lock().at = Some((change.what, records));
            let copy = std::thread::scope(|scope| {
                let changing = scope.spawn(|| (change.run)(&bed.fs));
                assert!(bed.park.wait());
                bed.fs.sync().unwrap();
                let copy = device(bed.device.size_bytes(), 4096);
                let mut bytes = AlignedBuf::zeroed(bed.device.size_bytes() as usize);
                bed.device.read_at(&mut bytes, 0).unwrap();
                copy.write_at(&bytes, 0).unwrap();
                bed.park.go_on();
                changing.join().unwrap().unwrap();
                copy
            });
            let fs = mount(&copy, &Arc::default());
            assert_eq!(fs.info().recovery.orphans, 1, "{} after record {records}", change.name);
            assert_eq!(
                content(&fs, "/f"),
                (change.after)(),
                "{} after record {records}",
                change.name
            );
            assert_eq!(used(&fs), used(&bed.fs), "{} after record {records}", change.name);
            fs.unmount().unwrap();
            assert_sound(&copy);
        }
    }
}

/// Limits under which a change would never end are refused.
#[test]
fn a_record_carries_at_least_one_extent() {
    let device = device(32 << 20, 4096);
    format(&device, 4096);
    let limits = Limits { extents_per_record: 0, ..Limits::default() };
    let refused = FileSystem::mount(
        Arc::clone(&device),
        None,
        MountOptions { limits, ..options(IoMode::Concurrent) },
    );
    assert_eq!(refused.map(drop).unwrap_err().kind, ErrorKind::Invalid);
    assert_sound(&device);
}

/// S-56. At the size and with the limits of the product: a file of 5,000 extents is removed and
/// rolled back at once, from two threads, ten times.
#[test]
fn a_large_file_is_removed_beside_a_rollback_of_it() {
    let device = device(256 << 20, 4096);
    format(&device, 4096);
    let fs = FileSystem::mount(Arc::clone(&device), None, options(IoMode::Concurrent)).unwrap();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let mut page = AlignedBuf::zeroed(4096);
    page.fill(7);
    (0..5000).for_each(|i| assert_eq!(file.write_at(&page, i * STRIDE).unwrap(), i * STRIDE));
    drop(file);
    let options =
        CheckpointOptions { scope: CheckpointScope::Everything, ..CheckpointOptions::default() };
    fs.create_checkpoint("base", &options).unwrap();
    let whole = content(&fs, "/f");
    for _ in 0..10 {
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| fs.remove("/f"));
            roll_back(&fs, "base", None).unwrap();
            removing.join().unwrap().unwrap();
        });
        let live = content(&fs, "/f");
        assert!(live.is_none() || live == whole);
        roll_back(&fs, "base", None).unwrap();
        assert_eq!(content(&fs, "/f"), whole);
    }
    fs.unmount().unwrap();
    assert_sound(&device);
}
