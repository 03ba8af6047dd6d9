//! Volumes whose metadata has no room to grow: what goes on, what is refused, what unmounts, mounts
//! and power cuts leave.

use bedplate_block::{AlignedBuf, CrashChoice, SimulatedDevice};

use super::*;
use crate::{
    AllocateMode, CheckpointOptions, FileSystem, FormatOptions, IoMode, OpenOptions, RenameMode,
    SetAttr, SpacePolicy,
};
use bedplate_store::{RecordKind, RowChange};

const SIZE: u64 = 34 << 20;
const PART: usize = 1 << 20;

fn quiet() -> MountOptions {
    MountOptions {
        sync_interval: std::time::Duration::from_secs(86_400),
        mode: IoMode::Direct,
        ..MountOptions::default()
    }
}

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    FileSystem::mount(Arc::clone(device), None, quiet()).unwrap()
}

fn set(fs: &FileSystem, i: u32) -> Result<()> {
    fs.set_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes(), &[7; 30_000], false, false)
}

fn count(fs: &FileSystem) -> u32 {
    (0..).find(|i| fs.get_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes()).is_err()).unwrap()
}

fn unlink(fs: &FileSystem, name: &str) -> Result<()> {
    fs.unlink(InodeNo::ROOT, name.as_bytes())
}

/// A volume on which attributes were set until the tree asked for blocks that are not there.
struct Cramped {
    device: Arc<SimulatedDevice>,
    shared: Arc<dyn BlockDevice>,
    fs: FileSystem,
    /// How many attributes were set.
    accepted: u32,
}

/// The names of files that are there beside.
const SMALL: [&str; 4] = ["cut", "punched", "replaced", "removed"];

/// How many empty files there are.
const EMPTY: u32 = 1000;

fn cramped() -> Cramped {
    cramped_after(|_| ())
}

fn cramped_after(prepare: impl FnOnce(&FileSystem)) -> Cramped {
    let device = SimulatedDevice::new(2 * SIZE, 1);
    device.start_smaller(SIZE);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    FileSystem::format(
        &shared,
        None,
        &FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() },
    )
    .unwrap();
    let fs = mount(&shared);
    let part = AlignedBuf::zeroed(PART);
    for name in SMALL.iter().chain(&["other"]) {
        fs.open(format!("/{name}"), &OpenOptions::create())
            .unwrap()
            .write_at(&part[..64 << 10], 0)
            .unwrap();
    }
    (0..EMPTY).for_each(|i| drop(fs.open(format!("/empty.{i}"), &OpenOptions::create()).unwrap()));
    fs.create_checkpoint("kept", &CheckpointOptions::default()).unwrap();
    for (name, parts) in [("large", 14), ("half", 4)] {
        let file = fs.open(format!("/{name}"), &OpenOptions::create()).unwrap();
        (0..parts).for_each(|i| file.write_at(&part, i * PART as u64).map(drop).unwrap());
    }
    prepare(&fs);
    let (accepted, error) = (0..5000).find_map(|i| set(&fs, i).err().map(|e| (i, e))).unwrap();
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert_eq!(fs.info().failed, None);
    Cramped { device, shared, fs, accepted }
}

/// Mounts what a power cut now leaves of what was not flushed: nothing.
fn after_a_cut(device: &SimulatedDevice) -> FileSystem {
    let image: Arc<dyn BlockDevice> =
        device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
    mount(&image)
}

fn assert_sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// I-META-6, S-34: everything that was accepted before the first refusal can be made durable, in
/// the log.
#[test]
fn i_meta_6_s_34_what_was_accepted_becomes_durable_where_the_metadata_cannot_grow() {
    let Cramped { device, fs, accepted, .. } = cramped();
    fs.sync().unwrap();
    assert_eq!(count(&after_a_cut(&device)), accepted);
}

/// I-META-6: half of a large log is more than is buffered at once, and is written as it comes,
/// without the sync daemon.
#[test]
fn i_meta_6_what_a_large_log_does_not_buffer_is_written_where_the_metadata_may_not_grow() {
    let device: Arc<dyn BlockDevice> = SimulatedDevice::new(160 << 20, 1);
    FileSystem::format(
        &device,
        None,
        &FormatOptions { log_bytes: Some(40 << 20), ..FormatOptions::default() },
    )
    .unwrap();
    let fs = super::mount(device, None, quiet()).unwrap();
    let blocks = fs.space_totals().free - 512;
    fs.allocate(AllocRequest {
        goal: None,
        blocks,
        ahead: None,
        class: SpaceClass::Metadata,
        reserved: 0,
        part: None,
    })
    .unwrap();
    let set = |i: u32| {
        fs.begin_change()?;
        let rows = vec![RowChange::put(Table::Setting, i.to_le_bytes().to_vec(), vec![7; 30_000])];
        fs.commit(RecordKind::Setting, rows);
        Ok::<_, Error>(())
    };
    let (accepted, error) = (0..5000).find_map(|i| set(i).err().map(|e| (i, e))).unwrap();
    assert!(
        error.kind == ErrorKind::NoSpace && accepted > 600,
        "{accepted} were accepted: {error}"
    );
    fs.sync_to(fs.last_lsn()).unwrap();
}

/// I-META-6, S-34: where the metadata cannot grow, everything that frees blocks or names goes on,
/// becomes durable, and in the end makes the volume usable.
#[test]
fn i_meta_6_s_34_removals_go_on_where_the_metadata_cannot_grow() {
    let Cramped { device, shared, fs, accepted } = cramped();
    let lookup = |name: &str| fs.lookup(InodeNo::ROOT, name.as_bytes());
    unlink(&fs, "removed").unwrap();
    fs.rename(InodeNo::ROOT, b"other", InodeNo::ROOT, b"replaced", RenameMode::Replace).unwrap();
    fs.set_attr(lookup("cut").unwrap().ino, &SetAttr { size: Some(4096), ..SetAttr::default() })
        .unwrap();
    let file =
        fs.open("/punched", &OpenOptions { write: true, ..OpenOptions::read_only() }).unwrap();
    file.allocate(AllocateMode::PunchHole, 0, 32 << 10).unwrap();
    file.set_size(48 << 10).unwrap();
    drop(file);
    fs.open("/cut", &OpenOptions { write: true, truncate: true, ..OpenOptions::read_only() })
        .unwrap();
    fs.delete_checkpoint("kept").unwrap();
    assert_eq!(set(&fs, accepted).unwrap_err().kind, ErrorKind::NoSpace, "there is no room yet");
    fs.sync().unwrap();
    let image = after_a_cut(&device);
    assert_eq!((count(&image), image.checkpoints().len()), (accepted, 0));
    let sizes = ["cut", "punched", "replaced", "removed"]
        .map(|name| image.lookup(InodeNo::ROOT, name.as_bytes()).ok().map(|attr| attr.size));
    assert_eq!(sizes, [Some(0), Some(48 << 10), Some(64 << 10), None]);
    unlink(&fs, "large").unwrap();
    (accepted..accepted + 50).for_each(|i| set(&fs, i).unwrap());
    fs.unmount().unwrap();
    assert_sound(&shared);
    assert_eq!(count(&mount(&shared)), accepted + 50);
}

/// I-META-6, S-34: removals that give nothing back end where the log has no room for them. All that
/// was accepted becomes durable, and the volume unmounts.
#[test]
fn i_meta_6_s_34_removals_end_where_the_log_has_no_room_for_them() {
    let Cramped { device, shared, fs, accepted } = cramped();
    let ended = (0..EMPTY).find_map(|i| {
        let error = unlink(&fs, &format!("empty.{i}")).err();
        fs.sync().unwrap();
        error.map(|error| (i, error))
    });
    let (removed, error) = ended.unwrap();
    assert!(error.kind == ErrorKind::NoSpace && removed > 20, "{removed} were removed: {error}");
    let image = after_a_cut(&device);
    let empty = |i: u32| image.lookup(InodeNo::ROOT, format!("empty.{i}").as_bytes()).is_ok();
    assert_eq!(((0..EMPTY).find(|i| empty(*i)), count(&image)), (Some(removed), accepted));
    // The times of files that are only read take nothing of what is left.
    for i in removed..EMPTY {
        fs.open(format!("/empty.{i}"), &OpenOptions::read_only())
            .unwrap()
            .read_at(&mut [0], 0)
            .unwrap();
        fs.sync().unwrap();
    }
    // A checkpoint can be deleted all the same.
    fs.delete_checkpoint("kept").unwrap();
    assert!(after_a_cut(&device).checkpoints().is_empty());
    fs.unmount().unwrap();
    assert_sound(&shared);
}

/// S-34, S-37: a volume whose metadata cannot grow unmounts, and mounts again as it was: changes
/// are refused, removals go on, and so does the rest once there is room.
#[test]
fn s_34_s_37_a_volume_whose_metadata_cannot_grow_unmounts_and_mounts() {
    let Cramped { device, shared, fs, accepted } = cramped();
    fs.unmount().unwrap();
    for removed in ["cut", "punched"] {
        let fs = mount(&shared);
        assert!(fs.state().metadata().is_cramped(), "the tree had no room for what was replayed");
        assert_eq!(count(&fs), accepted);
        assert_eq!(set(&fs, accepted).unwrap_err().kind, ErrorKind::NoSpace);
        unlink(&fs, removed).unwrap();
        fs.sync().unwrap();
        assert!(after_a_cut(&device).lookup(InodeNo::ROOT, removed.as_bytes()).is_err());
        fs.unmount().unwrap();
        assert_sound(&shared);
    }
    let fs = mount(&shared);
    device.grow(2 * SIZE);
    fs.grow().unwrap();
    (accepted..accepted + 50).for_each(|i| set(&fs, i).unwrap());
    fs.unmount().unwrap();
    assert_sound(&shared);
    let fs = mount(&shared);
    assert!(!fs.state().metadata().is_cramped());
    assert_eq!(count(&fs), accepted + 50);
    assert!(
        ["cut", "punched"].iter().all(|name| fs.lookup(InodeNo::ROOT, name.as_bytes()).is_err())
    );
}

/// S-34: where the policy deletes the oldest checkpoints of a full volume, it does so for metadata
/// that cannot grow, too.
#[test]
fn s_34_the_oldest_checkpoints_go_where_the_metadata_cannot_grow() {
    let Cramped { fs, accepted, .. } = cramped_after(|fs| {
        let automatic = CheckpointOptions { automatic: true, ..CheckpointOptions::default() };
        fs.create_checkpoint("automatic", &automatic).unwrap();
        unlink(fs, "large").unwrap();
        fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
    });
    let names =
        || fs.checkpoints().into_iter().map(|checkpoint| checkpoint.name).collect::<Vec<_>>();
    assert_eq!(names(), [b"kept".to_vec(), b"automatic".to_vec()]);
    fs.state().relieve_metadata();
    assert_eq!(names(), [b"kept".to_vec()]);
    set(&fs, accepted).unwrap();
}

/// S-1, S-37: the power is cut at any moment of a mount of such a volume, of removals on it, and of
/// the metadata commit that they make possible.
#[test]
fn s_1_s_37_power_cuts_while_the_metadata_cannot_grow_lose_nothing() {
    let Cramped { device, shared, fs, accepted } = cramped();
    fs.unmount().unwrap();
    let mut durable = vec![(device.operation_count(), Vec::new())];
    let fs = mount(&shared);
    for name in ["cut", "punched", "large"] {
        unlink(&fs, name).unwrap();
        fs.sync().unwrap();
        let gone = durable.last().unwrap().1.iter().copied().chain([name]).collect();
        durable.push((device.operation_count(), gone));
    }
    set(&fs, accepted).unwrap();
    fs.unmount().unwrap();
    let (first, last) = (durable[0].0, device.operation_count());
    for at in (first..=last).step_by(1 + (last - first) / 60) {
        let choice = [CrashChoice::KeepAll, CrashChoice::LoseAll, CrashChoice::Seeded(at as u64)]
            [at % 3]
            .clone();
        let image: Arc<dyn BlockDevice> = device.crash_image(at, &choice);
        let gone = &durable.iter().rfind(|(since, _)| *since <= at).unwrap().1;
        let fs = FileSystem::mount(Arc::clone(&image), None, quiet())
            .unwrap_or_else(|e| panic!("cut at {at}, {choice:?}: {e}"));
        assert!(count(&fs) >= accepted, "cut at {at}, {choice:?}: {} of {accepted}", count(&fs));
        for name in gone {
            assert!(
                fs.lookup(InodeNo::ROOT, name.as_bytes()).is_err(),
                "cut at {at}, {choice:?}: '{name}' is back"
            );
        }
        fs.unmount().unwrap_or_else(|e| panic!("cut at {at}, {choice:?}: {e}"));
        assert_sound(&image);
    }
}
