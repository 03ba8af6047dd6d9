//! Making an empty file system.
//!
//! ```text
//! plan ─► wipe superblocks, old log head ─► flush ─► log head ─► tree ─► flush ─► superblock A ─► flush ─► superblock B ─► flush
//!         └ what was there mounts whole ┘ └───── nothing mounts ──────────────┘ └──── the new volume mounts whole ────────────┘
//! ```
//!
//! So a power cut at any moment leaves a whole volume or none (S-98).

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};
use parking_lot::Mutex;
use serde::Serialize;
use uuid::Uuid;

use crate::engine::{EPOCH, NEXT_INO};
use crate::{Epoch, Error, ErrorKind, FileKind, FormatOptions, InodeNo, Result, Timestamp};
use bedplate_store::{
    ByteRun, COPY_B, COPY_BYTES, Growth, InodeRow, LOG_BYTES_MIN, Lists, LogDeviceHead,
    LogPosition, Region, RowChange, Superblock, Table, VOLUME_BYTES_MIN, format_tree, inode_key,
};

/// What `format` made.
#[derive(Debug, Clone, Serialize)]
pub struct FormatReport {
    /// Identity of the volume.
    pub uuid: String,
    /// Allocation unit in bytes.
    pub block_size: u32,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Size of the intent log in bytes.
    pub log_bytes: u64,
    /// Whether the log lives on a device of its own.
    pub log_separate: bool,
    /// Whether nothing is left to recover: it is new, or its last mount ended with an unmount.
    pub clean: bool,
}

pub(crate) const LOG_BYTES_MAX: u64 = 128 << 20;
pub(crate) const SEPARATE_LOG_BYTES_MAX: u64 = 1 << 30;
/// The metadata region and the log start and grow in multiples of this, which every block size
/// divides.
pub(crate) const GRAIN: u64 = 64 << 10;
const _: () = assert!(
    LOG_BYTES_MAX <= SEPARATE_LOG_BYTES_MAX && LOG_BYTES_MAX.is_multiple_of(GRAIN),
    "a log of the largest size is whole grains, on a device of its own too"
);

/// Signatures of what should not be overwritten by mistake: byte address, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 7] = [
    (0, b"XFSB", "an XFS file system"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (512, b"LABELONE", "an LVM physical volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "a LUKS container"),
];

/// Formats; see [`FileSystem::format`](crate::FileSystem::format).
pub(crate) fn format(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    options: &FormatOptions,
) -> Result<FormatReport> {
    validate(device, options)?;
    if !options.force {
        refuse_used(device)?;
        log.map_or(Ok(()), refuse_used)?;
    }
    let uuid = Uuid::new_v4();
    let size_bytes =
        device.size_bytes() / u64::from(options.block_size) * u64::from(options.block_size);
    let head = log
        .map(|log| plan_log_device(log, options.log_bytes.unwrap_or(SEPARATE_LOG_BYTES_MAX), uuid))
        .transpose()?;
    let log_run = match &head {
        Some(head) => ByteRun { start: head.place.start_byte, len: head.place.len_bytes },
        None => plan_log(device, options, size_bytes)?,
    };
    let superblock = Superblock {
        uuid: *uuid.as_bytes(),
        generation: 0,
        block_size: options.block_size,
        size_bytes,
        clean: true,
        log_separate: log.is_some(),
        log: log_run,
        metadata_len: 0,
        chunks: Vec::new(),
        lists: Lists::default(),
        keeps_space: true,
        packs: true,
        sums: true,
        carries: false,
    };
    wipe(device)?;
    if let Some((log, head)) = log.zip(head) {
        wipe(log)?;
        head.write(log)?;
    }
    let region = Arc::new(Region::unpublished(Arc::clone(device), superblock.clone()));
    let next_free = if log.is_some() { COPY_BYTES } else { log_run.end().next_multiple_of(GRAIN) };
    let cursor = Mutex::new(next_free);
    region.set_grow(Box::new(move |bytes, _, _| {
        Ok(Growth { chunks: take_front(&mut cursor.lock(), bytes, size_bytes)?, lists: Vec::new() })
    }));
    format_tree(&region, &LogPosition::START, &first_rows(options))?;
    region.publish()?;
    Ok(FormatReport {
        uuid: superblock.uuid_text(),
        block_size: options.block_size,
        size_bytes,
        log_bytes: log_run.len,
        log_separate: log.is_some(),
        clean: true,
    })
}

fn validate(device: &Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
    let (geometry, name) = (device.geometry(), device.name());
    let bad = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    if !options.block_size.is_power_of_two() || !(512..=65536).contains(&options.block_size) {
        return bad(format!(
            "block size {} is not a power of two from 512 to 65536",
            options.block_size
        ));
    }
    if options.block_size < geometry.logical_block_size {
        return bad(format!(
            "{name}: block size {} is below the device's sector of {} bytes: use at least that",
            options.block_size, geometry.logical_block_size
        ));
    }
    if geometry.read_only {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{name} is read-only and cannot be formatted"),
        ));
    }
    if device.size_bytes() < VOLUME_BYTES_MIN {
        return bad(format!(
            "{name} has {} bytes, a volume needs at least {VOLUME_BYTES_MIN} (32 MiB)",
            device.size_bytes()
        ));
    }
    Ok(())
}

/// Refuses a device that holds something, unless forced.
pub(crate) fn refuse_used(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let exists = |what: &str| {
        Err(Error::new(
            ErrorKind::Exists,
            format!("{} holds {what}: only a format by force overwrites it", device.name()),
        ))
    };
    let head_bytes = (128 << 10).min(device.size_bytes());
    let mut head = AlignedBuf::zeroed(usize::try_from(head_bytes).expect("at most 128 KiB"));
    device.read_at(&mut head, 0)?;
    if let Some((_, _, what)) =
        SIGNATURES.iter().find(|(at, magic, _)| head.get(*at..at + magic.len()) == Some(*magic))
    {
        return exists(what);
    }
    match Superblock::read(device) {
        Err(e) if e.kind == ErrorKind::NotAVolume => {}
        _ => return exists("a Bedplate volume"),
    }
    if LogDeviceHead::read(device).map_or(true, |head| head.is_some()) {
        return exists("the intent log of a Bedplate volume");
    }
    Ok(())
}

/// Removes what a mount would look for, so that an interrupted format leaves nothing that looks
/// like a volume: both superblocks, and the head of a log device, which stands where a superblock
/// does.
pub(crate) fn wipe(device: &Arc<dyn BlockDevice>) -> Result<()> {
    for at in [0, COPY_B].into_iter().filter(|at| at + COPY_BYTES <= device.size_bytes()) {
        device.write_zeroes(at, COPY_BYTES)?;
    }
    Ok(device.flush()?)
}

/// Decides where the log lies on a device of its own.
pub(crate) fn plan_log_device(
    log: &Arc<dyn BlockDevice>,
    max: u64,
    uuid: Uuid,
) -> Result<LogDeviceHead> {
    LogDeviceHead::plan(uuid, log.size_bytes(), max, LOG_BYTES_MIN).ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "{} has {} bytes, an intent log needs at least {LOG_BYTES_MIN} (1 MiB)",
                log.name(),
                log.size_bytes()
            ),
        )
    })
}

/// Decides where the log lies on the volume.
fn plan_log(
    device: &Arc<dyn BlockDevice>,
    options: &FormatOptions,
    size_bytes: u64,
) -> Result<ByteRun> {
    let len = options
        .log_bytes
        .unwrap_or((size_bytes / 256).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX))
        .next_multiple_of(GRAIN);
    if len < LOG_BYTES_MIN || len > size_bytes / 4 {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{}: a log of {len} bytes does not suit a volume of {size_bytes}: use 1 MiB to a \
                 quarter of the volume",
                device.name()
            ),
        ));
    }
    let start = if COPY_BYTES + len <= COPY_B { COPY_BYTES } else { COPY_B + COPY_BYTES };
    Ok(ByteRun { start, len })
}

/// Takes bytes from the front of the volume, around superblock B.
pub(crate) fn take_front(cursor: &mut u64, bytes: u64, size_bytes: u64) -> Result<Vec<ByteRun>> {
    let mut left = bytes.next_multiple_of(GRAIN);
    let mut runs = Vec::new();
    while left > 0 {
        if *cursor == COPY_B {
            *cursor += COPY_BYTES;
        }
        let border = if *cursor < COPY_B { COPY_B } else { size_bytes / GRAIN * GRAIN };
        let take = left.min(border - *cursor);
        if take == 0 {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("{size_bytes} bytes are too few for the metadata of a volume"),
            ));
        }
        runs.push(ByteRun { start: *cursor, len: take });
        *cursor += take;
        left -= take;
    }
    Ok(runs)
}

fn first_rows(options: &FormatOptions) -> Vec<RowChange> {
    let now = Timestamp::now();
    let root = InodeRow {
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        io_mode: None,
        parent: InodeNo::ROOT,
        target: Vec::new(),
    };
    vec![
        RowChange::put(Table::Inode, inode_key(InodeNo::ROOT), root.encode()),
        RowChange::put(
            Table::Setting,
            NEXT_INO.to_vec(),
            (InodeNo::ROOT.0 + 1).to_le_bytes().to_vec(),
        ),
        RowChange::put(Table::Setting, EPOCH.to_vec(), Epoch(1).0.to_le_bytes().to_vec()),
    ]
}
