//! Formatting, mounting, and what is refused with which sentence.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, Geometry, MemoryDevice, ReadFault, SimulatedDevice,
    Trigger,
};
use bedplate_fs::{
    ErrorKind, FileKind, FileSystem, FindingKind, FormatOptions, InodeNo, IoMode, MountOptions,
    OpenOptions,
};

use crate::common::{SIZE, assert_sound, device, formatted, mount, new_file};

const COPY_B: u64 = 8 << 20;

fn error_of(device: &Arc<dyn BlockDevice>) -> bedplate_fs::Error {
    FileSystem::mount(Arc::clone(device), None, MountOptions::default()).map(|_| ()).unwrap_err()
}

fn overwrite(device: &Arc<dyn BlockDevice>, at: u64, fill: u8) {
    let mut buf = AlignedBuf::zeroed(4096);
    buf.fill(fill);
    device.write_at(&buf, at).unwrap();
}

#[test]
fn s_40_what_is_no_volume_is_refused() {
    let device = device();
    let error = error_of(&device);
    assert_eq!(error.kind, ErrorKind::NotAVolume);
    assert!(error.message.contains("format it first"), "{error}");
    let small: Arc<dyn BlockDevice> = MemoryDevice::new(1 << 20);
    assert_eq!(error_of(&small).kind, ErrorKind::NotAVolume);
}

#[test]
fn options_out_of_range_are_refused() {
    for block_size in [0, 256, 1000, 131_072] {
        let options = FormatOptions { block_size, ..FormatOptions::default() };
        assert_eq!(
            FileSystem::format(&device(), None, &options).unwrap_err().kind,
            ErrorKind::Invalid
        );
    }
    let small: Arc<dyn BlockDevice> = MemoryDevice::new(16 << 20);
    let error = FileSystem::format(&small, None, &FormatOptions::default()).unwrap_err();
    assert!(error.message.contains("32 MiB"), "{error}");
    let log_bytes = Some(SIZE);
    assert_eq!(
        FileSystem::format(
            &device(),
            None,
            &FormatOptions { log_bytes, ..FormatOptions::default() }
        )
        .unwrap_err()
        .kind,
        ErrorKind::Invalid
    );
}

fn sector_device(sector: u32) -> Arc<dyn BlockDevice> {
    let geometry = Geometry {
        row_bytes: 0,
        logical_block_size: sector,
        physical_block_size: sector,
        buffer_align: 4096,
        untorn_unit: sector,
        volatile_cache: true,
        read_only: false,
    };
    MemoryDevice::with_geometry(SIZE, geometry)
}

#[test]
fn a_block_size_below_the_sector_is_refused() {
    let options = FormatOptions { block_size: 512, ..FormatOptions::default() };
    let error = FileSystem::format(&sector_device(4096), None, &options).unwrap_err();
    assert!(error.message.contains("sector of 4096"), "{error}");
}

#[test]
fn every_block_size_on_every_sector_size_mounts() {
    for sector in [512, 4096, 65536] {
        for block_size in [512, 1024, 4096, 65536] {
            if block_size < sector {
                continue;
            }
            let device = sector_device(sector);
            FileSystem::format(
                &device,
                None,
                &FormatOptions { block_size, ..FormatOptions::default() },
            )
            .unwrap();
            let fs = mount(&device);
            fs.make(InodeNo::ROOT, b"f", FileKind::File, new_file(), 0).unwrap();
            fs.unmount().unwrap();
            assert_sound(&device);
            mount(&device).lookup(InodeNo::ROOT, b"f").unwrap();
        }
    }
}

#[test]
fn the_second_superblock_serves_when_the_first_is_damaged() {
    let device = formatted();
    overwrite(&device, 0, 0xa5);
    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(!report.is_sound(), "the damage is named");
    let fs = mount(&device);
    assert!(fs.info().recovery.second_superblock);
    fs.unmount().unwrap();
    assert_sound(&device);
}

#[test]
fn check_mends_a_superblock_copy() {
    for at in [0, COPY_B] {
        let device = formatted();
        overwrite(&device, at, 0x11);
        let report = FileSystem::check(&device, None, true).unwrap();
        assert!(!report.findings.is_empty() && report.is_sound(), "{:?}", report.findings);
        assert_sound(&device);
    }
}

#[test]
fn two_damaged_superblocks_are_refused() {
    let device = formatted();
    overwrite(&device, 0, 0xa5);
    overwrite(&device, COPY_B, 0xa5);
    assert_eq!(error_of(&device).kind, ErrorKind::NotAVolume);
    let device = formatted();
    for at in [0, COPY_B] {
        let mut buf = AlignedBuf::zeroed(4096);
        device.read_at(&mut buf, at).unwrap();
        buf[100] ^= 1;
        device.write_at(&buf, at).unwrap();
    }
    assert_eq!(error_of(&device).kind, ErrorKind::Corrupt);
}

#[test]
fn s_40_a_truncated_image_is_refused_with_both_sizes() {
    let device = formatted();
    let half: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE / 2);
    let mut buf = AlignedBuf::zeroed(1 << 20);
    for at in (0..SIZE / 2).step_by(1 << 20) {
        device.read_at(&mut buf, at).unwrap();
        half.write_at(&buf, at).unwrap();
    }
    let error = error_of(&half);
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(
        error.message.contains("truncated") && error.message.contains(&SIZE.to_string()),
        "{error}"
    );
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let device = formatted();
    let fs = mount(&device);
    fs.make(InodeNo::ROOT, b"kept", FileKind::File, new_file(), 0).unwrap();
    fs.sync().unwrap();
    drop(fs);
    let before = device.counters().writes;
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    fs.lookup(InodeNo::ROOT, b"kept").unwrap();
    assert_eq!(
        fs.make(InodeNo::ROOT, b"new", FileKind::File, new_file(), 0).unwrap_err().kind,
        ErrorKind::ReadOnly
    );
    fs.sync().unwrap();
    fs.unmount().unwrap();
    assert_eq!(device.counters().writes, before, "a read-only mount must not write");
}

#[test]
fn the_log_may_live_on_its_own_device() {
    let (device, log, other) = (device(), device(), device());
    FileSystem::format(&device, Some(&log), &FormatOptions::default()).unwrap();
    FileSystem::format(&self::device(), Some(&other), &FormatOptions::default()).unwrap();
    assert_eq!(error_of(&device).kind, ErrorKind::NotFound, "the log device is missing");
    let mount = |log: &Arc<dyn BlockDevice>| {
        FileSystem::mount(Arc::clone(&device), Some(Arc::clone(log)), MountOptions::default())
    };
    assert_eq!(
        mount(&other).map(|_| ()).unwrap_err().kind,
        ErrorKind::NotFound,
        "another volume's log"
    );
    let fs = mount(&log).unwrap();
    fs.make(InodeNo::ROOT, b"f", FileKind::File, new_file(), 0).unwrap();
    fs.sync().unwrap();
    drop(fs);
    let fs = mount(&log).unwrap();
    // The reservation of inode numbers, and the file.
    assert_eq!(fs.info().recovery.records, 2);
    fs.lookup(InodeNo::ROOT, b"f").unwrap();
    fs.unmount().unwrap();
}

#[test]
fn metadata_grows_its_region() {
    let device = formatted();
    let fs = mount(&device);
    let before = fs.info().metadata_bytes;
    for i in 0..20_000 {
        fs.make(
            InodeNo::ROOT,
            format!("a rather long name for a file, number {i}").as_bytes(),
            FileKind::File,
            new_file(),
            0,
        )
        .unwrap();
    }
    fs.unmount().unwrap();
    assert_sound(&device);
    let fs = mount(&device);
    assert!(fs.info().metadata_bytes > before);
    assert_eq!(fs.statfs().inodes, 20_001);
}

#[test]
fn changes_after_unmount_are_refused() {
    let fs = mount(&formatted());
    let other = fs.clone();
    fs.unmount().unwrap();
    assert_eq!(
        other.make(InodeNo::ROOT, b"late", FileKind::File, new_file(), 0).unwrap_err().kind,
        ErrorKind::Busy
    );
}

/// Offsets of the log writes on a device.
fn log_writes(device: &Arc<dyn BlockDevice>) -> Vec<u64> {
    let mut buf = AlignedBuf::zeroed(4096);
    (0..SIZE / 4096)
        .map(|block| block * 4096)
        .filter(|at| {
            device.read_at(&mut buf, *at).unwrap();
            buf.starts_with(b"BEDPLOGW")
        })
        .collect()
}

#[test]
fn a_log_that_lost_acknowledged_records_to_damage_is_not_replayed_in_silence() {
    let device = formatted();
    let fs = mount(&device);
    for name in ["one", "two", "three", "four"] {
        fs.make(InodeNo::ROOT, name.as_bytes(), FileKind::File, new_file(), 0).unwrap();
        fs.sync().unwrap();
    }
    drop(fs);
    let writes = log_writes(&device);
    assert!(writes.len() >= 4);
    overwrite(&device, writes[2], 0x55);

    let error = error_of(&device);
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("is damaged") && error.message.contains("-o ro"), "{error}");
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    assert!(fs.resolve("/two").is_ok() && fs.resolve("/three").is_err());
    drop(fs);

    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(
        report.findings.iter().any(|finding| finding.kind == FindingKind::Log && !finding.mended),
        "{:?}",
        report.findings
    );
    assert!(FileSystem::check(&device, None, true).unwrap().is_sound());
    assert_sound(&device);
    let fs = mount(&device);
    assert!(fs.resolve("/two").is_ok() && fs.resolve("/four").is_err());
    fs.unmount().unwrap();
}

/// S-35: a failed read fails that read only, and names the device and the offset.
#[test]
fn s_35_a_failed_read_names_device_and_offset() {
    let simulated = SimulatedDevice::new(SIZE, 1);
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = mount(&device);
    let file = fs
        .open("f", &OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() })
        .unwrap();
    file.write_at(&[7; 8192], 0).unwrap();
    let at = file.extents().unwrap()[0].volume_offset;
    simulated.inject(
        FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1)).within(at..at + 8192),
    );
    let error = file.read_at(&mut [0; 8192], 0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(
        error.message.contains(device.name()) && error.message.contains(&at.to_string()),
        "{error}"
    );
    assert_eq!(file.read_at(&mut [0; 8192], 0).unwrap(), 8192);
    file.write_at(&[8; 4096], 0).unwrap();
    fs.sync().unwrap();
}

/// S-33: a flush that failed while the volume took over a larger device used to be forgotten: later
/// syncs succeeded, and growing again panicked.
#[test]
fn s_33_a_growth_that_fails_turns_the_volume_read_only() {
    let simulated = SimulatedDevice::new(2 * SIZE, 1);
    simulated.start_smaller(SIZE);
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = mount(&device);
    simulated.grow(2 * SIZE);
    simulated
        .inject(FaultRule::new(Fault::Flush(bedplate_block::FlushFault::Fail), Trigger::Next(1)));
    assert_eq!(fs.grow().unwrap_err().kind, ErrorKind::Io);
    assert_eq!(fs.sync().unwrap_err().kind, ErrorKind::Io, "the first failure stays");
    assert_eq!(fs.grow().unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(fs.create_dir_all("/d").unwrap_err().kind, ErrorKind::ReadOnly);
    assert!(fs.info().failed.is_some());
}
