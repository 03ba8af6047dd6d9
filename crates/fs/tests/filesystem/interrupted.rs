//! Changes that take several records, with something else in their middle.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, FileSystem, IoMode, Limits, MountOptions,
    OpenOptions, Result, RollbackOptions, SetAttr,
};
use parking_lot::{Condvar, Mutex};

use crate::common::assert_sound;
use crate::support::{device, format, options};

pub const EXTENTS: u64 = 10;

pub const STRIDE: u64 = 8192;

/// How long the other operation may go wrong.
const CHANCE: Duration = Duration::from_millis(60);

/// Where a change stops: between two of its records.
#[derive(Default)]
pub struct Park {
    pub state: Mutex<Parked>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Parked {
    /// The change to stop, and after how many records.
    pub at: Option<(&'static str, usize)>,
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
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.stopped && !state.over);
        state.stopped
    }

    fn end(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    pub fn go_on(&self) {
        let mut state = self.state.lock();
        state.go_on = true;
        state.at = None;
        self.changed.notify_all();
    }
}

pub struct Bed {
    pub device: Arc<dyn BlockDevice>,
    pub fs: FileSystem,
    pub park: Arc<Park>,
}

pub fn mount(device: &Arc<dyn BlockDevice>, park: &Arc<Park>) -> FileSystem {
    mount_with(device, park, 2)
}

/// As [`mount`], with so many images to a record.
pub fn mount_with(
    device: &Arc<dyn BlockDevice>,
    park: &Arc<Park>,
    images_per_record: usize,
) -> FileSystem {
    let call = Arc::clone(park);
    let limits = Limits {
        extents_per_record: 3,
        images_per_record,
        names_per_record: 2,
        delayed_piece_bytes: 1 << 20,
        extents_per_pack: Some(3),
        extents_per_part: Some(2),
        between_records: Some(Arc::new(move |what| call.pass(what))),
        ..Limits::default()
    };
    FileSystem::mount(
        Arc::clone(device),
        None,
        MountOptions { limits, ..options(IoMode::Concurrent) },
    )
    .unwrap()
}

/// What `/f` holds before anything happens.
pub fn full() -> Vec<u8> {
    (0..EXTENTS * STRIDE)
        .map(|at| if at % STRIDE < 4096 { 1 + (at / STRIDE) as u8 } else { 0 })
        .collect()
}

pub fn write_full(fs: &FileSystem, path: &str) {
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
pub fn bed() -> Bed {
    let device = device(32 << 20, 4096);
    format(&device, 4096);
    let park = Arc::default();
    let fs = mount(&device, &park);
    write_full(&fs, "/f");
    fs.create_checkpoint("base", &CheckpointOptions::default()).unwrap();
    Bed { device, fs, park }
}

/// The bytes of a file; `None`: there is none.
pub fn content(fs: &FileSystem, path: &str) -> Option<Vec<u8>> {
    let file = match fs.open(path, &OpenOptions::read_only()) {
        Err(error) if error.kind == ErrorKind::NotFound => return None,
        file => file.unwrap(),
    };
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

/// Inodes, and free bytes.
pub fn used(fs: &FileSystem) -> (u64, u64) {
    let statfs = fs.statfs();
    (statfs.inodes, statfs.free_bytes)
}

pub fn truncate(fs: &FileSystem, path: &str, size: u64) -> Result<()> {
    let ino = fs.resolve(path)?.ino;
    fs.set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

pub fn roll_back(fs: &FileSystem, name: &str, path: Option<&str>) -> Result<()> {
    fs.rollback(name, &RollbackOptions { path: path.map(Into::into), force: true }).map(drop)
}

/// A change of several records, what `/f` holds after it, and what it says it is between two of
/// them.
pub struct Change {
    pub what: &'static str,
    pub name: &'static str,
    pub run: fn(&FileSystem) -> Result<()>,
    pub after: fn() -> Option<Vec<u8>>,
}

pub const CHANGES: [Change; 6] = [
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
pub fn interrupted<T: Send>(
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
pub fn each_interrupted(
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
