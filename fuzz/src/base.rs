//! The sound volumes that hostile ones are made of.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, Snapshot};
use bedplate_fs::forge::{self, RegionPlace, RowImage};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CheckpointScope, FileKind, FileSystem, FormatOptions, InodeNo,
    IoMode, MountOptions, NewFile, OpenOptions,
};

/// Bytes of a base volume: the smallest that there is.
pub const VOLUME_BYTES: u64 = 32 << 20;
/// Small files in a base: enough that the tree has branches.
const SMALL_FILES: usize = 150;

/// A sound volume and what an input may refer to.
pub struct Base {
    /// The content.
    pub snapshot: Snapshot,
    /// What its tree holds.
    pub rows: Vec<RowImage>,
    /// Its regions.
    pub regions: Vec<RegionPlace>,
    /// Where its log lies.
    pub log: RegionPlace,
}

/// Returns the base that a byte names: unmounted cleanly, unmounted cleanly with blocks of 512
/// bytes, killed with everything in the log, or with checkpoints of everything and of a directory.
pub fn base(number: u8) -> &'static Base {
    static BASES: [OnceLock<Base>; 4] = [const { OnceLock::new() }; 4];
    let number = usize::from(number) % BASES.len();
    BASES[number].get_or_init(|| match number {
        0 => make(4096, true, false),
        1 => make(512, true, false),
        2 => make(4096, false, false),
        _ => make(4096, true, true),
    })
}

/// Options that keep a mount small and quiet.
pub fn options(read_only: bool) -> MountOptions {
    MountOptions {
        mode: IoMode::Concurrent,
        read_only,
        cache_bytes: 1 << 20,
        metadata_cache_bytes: 1 << 20,
        sync_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    }
}

fn make(block_size: u32, clean: bool, checkpoints: bool) -> Base {
    let memory = MemoryDevice::new(VOLUME_BYTES);
    let device: Arc<dyn BlockDevice> = memory.clone();
    let options =
        FormatOptions { block_size, log_bytes: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(&device, None, &options).expect("an empty device is formatted");
    let fs = FileSystem::mount(Arc::clone(&device), None, self::options(false))
        .expect("a fresh volume mounts");
    fill(&fs).expect("a fresh volume has room");
    if checkpoints {
        add_checkpoints(&fs).expect("a fresh volume has room");
    }
    fs.sync().expect("memory does not fail");
    if clean {
        fs.unmount().expect("memory does not fail");
    } else {
        drop(fs);
    }
    let regions = forge::regions(&device).expect("the volume is sound");
    let log =
        *regions.iter().find(|region| region.name == "log").expect("the log is on the volume");
    Base {
        snapshot: memory.snapshot(),
        rows: forge::rows(&device).expect("the volume is sound"),
        regions,
        log,
    }
}

/// Makes checkpoints, and changes behind them.
fn add_checkpoints(fs: &FileSystem) -> bedplate_fs::Result<()> {
    fs.create_checkpoint("all", &CheckpointOptions::default())?;
    fs.open("/d/one", &OpenOptions::read_write())?.write_at(&[0x66; 8192], 4096)?;
    let scope = CheckpointScope::Paths(vec!["/d/e".into()]);
    fs.create_checkpoint("some", &CheckpointOptions { scope, ..CheckpointOptions::default() })?;
    fs.create_dir_all("/d/e/later")?;
    fs.remove("/d/two")
}

/// Makes one of everything.
fn fill(fs: &FileSystem) -> bedplate_fs::Result<()> {
    let new = NewFile { mode: 0o644, uid: 1, gid: 2, umask: 0 };
    let d = fs.create_dir_all("/d/e/f")?.ino;
    for number in 0..SMALL_FILES {
        fs.make(d, format!("small file number {number}").as_bytes(), FileKind::File, new, 0)?;
    }
    let mut data = AlignedBuf::zeroed(64 << 10);
    data.fill(0x5a);
    for name in ["one", "two", "three"] {
        let file = fs.open(format!("/d/{name}"), &OpenOptions::create())?;
        for step in 0..6 {
            // Files take turns, so that none of them is one extent.
            file.write_at(&data[..16 << 10], step * (48 << 10))?;
            fs.open(format!("/d/{name}-{step}"), &OpenOptions::create())?
                .write_at(&data[..4096], 0)?;
        }
        file.allocate(AllocateMode::Preallocate { keep_size: true }, 1 << 20, 64 << 10)?;
        file.allocate(AllocateMode::PunchHole, 48 << 10, 8 << 10)?;
        file.sync_all()?;
    }
    let one = fs.resolve("/d/one")?.ino;
    fs.link(one, InodeNo::ROOT, b"a second name")?;
    fs.symlink(InodeNo::ROOT, b"link", b"d/one", new)?;
    fs.make(InodeNo::ROOT, b"pipe", FileKind::Fifo, new, 0)?;
    fs.make(InodeNo::ROOT, b"null", FileKind::CharDevice, new, 0x103)?;
    fs.set_xattr(one, b"user.note", b"kept", false, false)?;
    fs.set_xattr(d, b"user.long", &[7; 3000], false, false)?;
    fs.set_io_mode(one, Some(IoMode::Direct))?;
    // Loses its name while it is retained: an orphan after a crash.
    let lost = fs.make(InodeNo::ROOT, b"lost", FileKind::File, new, 0)?.ino;
    fs.retain(lost)?;
    fs.open("/lost", &OpenOptions::read_write())?.write_at(&data[..8192], 0)?;
    fs.unlink(InodeNo::ROOT, b"lost")
}
