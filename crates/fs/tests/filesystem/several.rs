//! Changes of several records: parked between two of them while something else is asked for. What
//! comes out is as if one had been after the other (I-CHG-1, I-CHG-2).
//!
//! Records carry three extents here, so that a file of ten spans four. The changing thread stops
//! between two of them; the other thread is given some time to go wrong, then the change goes on.
//! What is required holds however long either takes.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CheckpointScope, CloneSource, Error, ErrorKind, FileSystem,
    InodeNo, IoMode, Limits, MountOptions, OpenOptions, Result, RollbackOptions, SetAttr,
};
use parking_lot::{Condvar, Mutex};

use crate::common::assert_sound;
use crate::support::{device, format, options};

const EXTENTS: u64 = 10;
const STRIDE: u64 = 8192;
/// How long the other operation may go wrong.
const CHANCE: Duration = Duration::from_millis(60);

/// Where a change stops: between two of its records.
#[derive(Default)]
struct Park {
    state: Mutex<Parked>,
    changed: Condvar,
}

#[derive(Default)]
struct Parked {
    /// The change to stop, and after how many records.
    at: Option<(&'static str, usize)>,
    records: usize,
    stopped: bool,
    /// The change came to its end.
    over: bool,
    go_on: bool,
}

impl Park {
    fn pass(&self, what: &str) {
        let mut state = self.state.lock();
        let Some((_, stop_at)) = state.at.filter(|(wanted, _)| *wanted == what) else { return };
        state.records += 1;
        if state.records != stop_at {
            return;
        }
        state.stopped = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| !state.go_on);
    }

    /// Waits until the change has stopped, or is over because it has fewer records; returns whether
    /// it stopped.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.stopped && !state.over);
        state.stopped
    }

    fn end(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    fn go_on(&self) {
        let mut state = self.state.lock();
        state.go_on = true;
        state.at = None;
        self.changed.notify_all();
    }
}

struct Bed {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    park: Arc<Park>,
}

fn mount(device: &Arc<dyn BlockDevice>, park: &Arc<Park>) -> FileSystem {
    let call = Arc::clone(park);
    let limits = Limits {
        extents_per_record: 3,
        names_per_record: 2,
        between_records: Some(Arc::new(move |what| call.pass(what))),
    };
    FileSystem::mount(
        Arc::clone(device),
        None,
        MountOptions { limits, ..options(IoMode::Concurrent) },
    )
    .unwrap()
}

/// What `/f` holds before anything happens.
fn full() -> Vec<u8> {
    (0..EXTENTS * STRIDE)
        .map(|at| if at % STRIDE < 4096 { 1 + (at / STRIDE) as u8 } else { 0 })
        .collect()
}

fn write_full(fs: &FileSystem, path: &str) {
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    file.set_size(EXTENTS * STRIDE).unwrap();
    for i in 0..EXTENTS {
        let mut page = AlignedBuf::zeroed(4096);
        page.fill(1 + i as u8);
        file.write_at(&page, i * STRIDE).unwrap();
    }
    assert_eq!(file.extents().unwrap().len() as u64, EXTENTS);
}

/// A file of ten extents, closed, and a checkpoint of it.
fn bed() -> Bed {
    let device = device(32 << 20, 4096);
    format(&device, 4096);
    let park = Arc::default();
    let fs = mount(&device, &park);
    write_full(&fs, "/f");
    fs.create_checkpoint("base", &CheckpointOptions::default()).unwrap();
    Bed { device, fs, park }
}

/// The bytes of a file; `None`: there is none.
fn content(fs: &FileSystem, path: &str) -> Option<Vec<u8>> {
    let file = match fs.open(path, &OpenOptions::read_only()) {
        Err(error) if error.kind == ErrorKind::NotFound => return None,
        file => file.unwrap(),
    };
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

/// Inodes, and free bytes.
fn used(fs: &FileSystem) -> (u64, u64) {
    let statfs = fs.statfs();
    (statfs.inodes, statfs.free_bytes)
}

fn truncate(fs: &FileSystem, path: &str, size: u64) -> Result<()> {
    let ino = fs.resolve(path)?.ino;
    fs.set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn roll_back(fs: &FileSystem, name: &str, path: Option<&str>) -> Result<()> {
    fs.rollback(name, &RollbackOptions { path: path.map(Into::into), force: true }).map(drop)
}

/// A change of several records, what `/f` holds after it, and what it says it is between two of
/// them.
struct Change {
    what: &'static str,
    name: &'static str,
    run: fn(&FileSystem) -> Result<()>,
    after: fn() -> Option<Vec<u8>>,
}

const CHANGES: [Change; 6] = [
    Change {
        what: "truncate",
        name: "truncate by path",
        run: |fs| truncate(fs, "/f", 3 * STRIDE),
        after: || Some(full()[..3 * 8192].to_vec()),
    },
    Change {
        what: "truncate",
        name: "open to truncate",
        run: |fs| {
            fs.open("/f", &OpenOptions { truncate: true, ..OpenOptions::read_write() }).map(drop)
        },
        after: || Some(Vec::new()),
    },
    Change { what: "reclaim", name: "remove", run: |fs| fs.remove("/f"), after: || None },
    Change {
        what: "reclaim",
        name: "last close of a removed file",
        run: |fs| {
            let file = fs.open("/f", &OpenOptions::read_only())?;
            fs.remove("/f")?;
            drop(file);
            Ok(())
        },
        after: || None,
    },
    Change {
        what: "reclaim",
        name: "rename over",
        run: |fs| {
            drop(fs.open("/small", &OpenOptions::create())?);
            fs.rename_path("/small", "/f")
        },
        after: || Some(Vec::new()),
    },
    Change {
        what: "punch",
        name: "punch",
        run: |fs| {
            fs.open("/f", &OpenOptions::read_write())?.allocate(
                AllocateMode::PunchHole,
                STRIDE,
                8 * STRIDE,
            )
        },
        after: || {
            Some(
                full()
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| if (8192..9 * 8192).contains(&at) { 0 } else { *byte })
                    .collect(),
            )
        },
    },
];

/// Runs a change to its `records`th record, then `other` on a thread of its own, then the rest of
/// the change. Returns what both said, or `None` where the change has fewer records.
fn interrupted<T: Send>(
    bed: &Bed,
    change: &Change,
    records: usize,
    other: impl FnOnce(&FileSystem) -> T + Send,
) -> Option<(Result<()>, T)> {
    bed.park.state.lock().at = Some((change.what, records));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let result = (change.run)(&bed.fs);
            bed.park.end();
            result
        });
        if !bed.park.wait() {
            changing.join().unwrap().unwrap();
            return None;
        }
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let told = Arc::clone(&done);
        let other = scope.spawn(move || {
            let result = other(&bed.fs);
            *told.0.lock() = true;
            told.1.notify_all();
            result
        });
        done.1.wait_while_for(&mut done.0.lock(), |done| !*done, CHANCE);
        bed.park.go_on();
        Some((changing.join().unwrap(), other.join().unwrap()))
    })
}

/// Runs every change, with `other` after each of its records, and `verify` on what came out.
fn each_interrupted(
    other: fn(&FileSystem) -> Result<()>,
    verify: impl Fn(&FileSystem, &str, (Option<Vec<u8>>, Option<Vec<u8>>), Result<()>),
) {
    for change in &CHANGES {
        for records in 1.. {
            let bed = bed();
            let Some((changed, others)) = interrupted(&bed, change, records, other) else {
                assert!(records > 2, "{} takes several records", change.name);
                break;
            };
            let story = format!("{}, interrupted after record {records}", change.name);
            // A rollback in between may have left nothing to change.
            assert!(changed.is_ok(), "{story}: {changed:?}");
            verify(&bed.fs, &story, (Some(full()), (change.after)()), others);
            let (device, live) = (Arc::clone(&bed.device), content(&bed.fs, "/f"));
            bed.fs.unmount().unwrap();
            assert_sound(&device);
            let fs = mount(&device, &Arc::default());
            assert_eq!(fs.info().recovery.orphans, 0, "{story}");
            assert_eq!(content(&fs, "/f"), live, "{story}");
            fs.unmount().unwrap();
        }
    }
}

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
                    assert!(clone.is_some() && (clone == before || clone == after), "{story}")
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
        let passing = fs
            .checkpoints()
            .into_iter()
            .find(|checkpoint| checkpoint.automatic)
            .expect("the clone is under way");
        let deleted = fs.delete_checkpoint(&passing.name);
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
