//! Devices that lie, rot, dawdle and die: what `docs/faults.md` says of each is what happens.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, Fault, FaultRule, FlushFault, QueueOptions, ReadFault,
    SimulatedDevice, Trigger, WriteFault,
};
use bedplate_fs::{
    ErrorKind, FileSystem, FindingKind, FormatOptions, IoMode, MountOptions, OpenOptions, Queue,
};
use bedplate_sim::{DIRECTED, LostTally, Setup, try_lost_flushes};

const SIZE: u64 = 48 << 20;
const SUPERBLOCKS: [Range<u64>; 2] = [0..64 << 10, 8 << 20..(8 << 20) + (64 << 10)];
/// The log of a volume made as below, docs/format.md.
const LOG: Range<u64> = 64 << 10..(64 << 10) + (1 << 20);

fn volume(seed: u64) -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(SIZE, seed);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    FileSystem::format(
        &shared,
        None,
        &FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() },
    )
    .unwrap();
    device
}

fn mount(device: &Arc<SimulatedDevice>) -> bedplate_fs::Result<FileSystem> {
    let options = MountOptions {
        mode: IoMode::Concurrent,
        sync_interval: Duration::from_secs(86_400),
        ..MountOptions::default()
    };
    FileSystem::mount(Arc::clone(device) as _, None, options)
}

fn put(fs: &FileSystem, name: &str, fill: u8) -> bedplate_fs::Result<()> {
    let file = fs.open(name, &OpenOptions::create())?;
    file.write_at(&[fill; 20_000], 0)?;
    file.sync_all()
}

fn holds(fs: &FileSystem, name: &str, fill: u8) -> bool {
    let mut content = vec![0; 20_000];
    fs.open(name, &OpenOptions::read_only()).and_then(|file| file.read_at(&mut content, 0)).is_ok()
        && content == [fill; 20_000]
}

/// A volume with ten files, unmounted; the log's operations since then are counted from 0.
fn with_files(seed: u64) -> Arc<SimulatedDevice> {
    let device = volume(seed);
    let fs = mount(&device).unwrap();
    (0..10).for_each(|n| put(&fs, &format!("f{n}"), n + 1).unwrap());
    fs.unmount().unwrap();
    device.make_all_durable();
    device
}

/// Detected: the mount or the check says so, or the damaged place held nothing. Never a panic,
/// never another file's bytes.
fn detected_or_harmless(device: &Arc<SimulatedDevice>, what: &str) -> bool {
    let shared: Arc<dyn BlockDevice> = Arc::clone(device) as _;
    let report = FileSystem::check(&shared, None, false);
    let mounted = mount(device);
    let found = !report.as_ref().is_ok_and(|report| report.findings.is_empty()) || mounted.is_err();
    if let Err(error) = &mounted {
        assert!(
            matches!(error.kind, ErrorKind::Corrupt | ErrorKind::NotAVolume | ErrorKind::Io),
            "{what}: {error}"
        );
    }
    if let Ok(fs) = mounted {
        for n in 0..10 {
            let whole = holds(&fs, &format!("f{n}"), n + 1);
            assert!(whole || found, "{what}: f{n} is damaged, and neither mount nor check says so");
        }
    }
    found
}

/// I-SB-1: one copy is always whole, and using the second is told.
#[test]
fn s_39_a_bit_of_a_superblock() {
    for copy in SUPERBLOCKS {
        let device = with_files(1);
        device.inject(
            FaultRule::new(Fault::Write(WriteFault::FlipBit), Trigger::Always)
                .within(copy.start..copy.start + 512),
        );
        mount(&device).unwrap().unmount().unwrap();
        device.clear_faults();
        let report = FileSystem::check(&(Arc::clone(&device) as _), None, false).unwrap();
        assert!(
            report.findings.iter().any(|finding| finding.kind == FindingKind::Superblock),
            "the check names it"
        );
        let fs = mount(&device).unwrap();
        assert_eq!(fs.info().recovery.second_superblock, copy.start == 0);
        assert!(holds(&fs, "f3", 4));
    }
}

/// S-36: bits that rot anywhere in the metadata are found, or lie where nothing is.
#[test]
fn s_36_bits_that_rot_in_the_metadata() {
    let device = with_files(2);
    let base = device.snapshot();
    let mut found = 0;
    for step in 0..60 {
        // The tree lies behind the log.
        let offset = LOG.end + step * 4099;
        let device = SimulatedDevice::over(&base, &bedplate_block::SimulatedOptions::default());
        device.decay(offset, 1 << (step % 8));
        found += u32::from(detected_or_harmless(&device, &format!("byte {offset}")));
    }
    println!("{found} of 60 bits were found, the others lay where nothing is");
    assert!(found > 0, "no bit of the metadata was missed");
}

/// A log write that is lost, torn, turned or led astray although it was acknowledged: a later one
/// proves it, and the mount is refused.
#[test]
fn s_36_a_log_write_that_the_device_lied_about() {
    for fault in [
        WriteFault::Lose,
        WriteFault::Tear,
        WriteFault::FlipBit,
        WriteFault::Misdirect { to: 40 << 20 },
    ] {
        let device = with_files(3);
        let fs = mount(&device).unwrap();
        device.inject(FaultRule::new(Fault::Write(fault), Trigger::Next(1)).within(LOG));
        (0..4).for_each(|n| put(&fs, &format!("late{n}"), 99).unwrap());
        drop(fs);
        device.clear_faults();
        if !detected_or_harmless(&device, &format!("{fault:?}")) {
            // What was torn or turned was padding.
            assert!(
                matches!(fault, WriteFault::Tear | WriteFault::FlipBit),
                "{fault:?} of a log write went unnoticed"
            );
            let fs = mount(&device).unwrap();
            assert!(
                (0..4).all(|n| holds(&fs, &format!("late{n}"), 99)),
                "{fault:?} lost something and went unnoticed"
            );
            continue;
        }
        let error = mount(&device).err().expect("acknowledged records are lost");
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("read-only"), "{error}");
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs =
            FileSystem::mount(Arc::clone(&device) as _, None, options).expect("read-only it works");
        assert!(
            (0..10).all(|n| holds(&fs, &format!("f{n}"), n + 1)),
            "what was in order before is"
        );
    }
}

/// Data that is misdirected, lost or turned on its way is not noticed (docs/faults.md), and harms
/// nothing but what it hit.
#[test]
fn data_that_the_device_lied_about_harms_nothing_else() {
    for fault in [WriteFault::Lose, WriteFault::FlipBit, WriteFault::Misdirect { to: 40 << 20 }] {
        let device = with_files(4);
        let fs = mount(&device).unwrap();
        let at =
            fs.open("f5", &OpenOptions::read_only()).unwrap().extents().unwrap()[0].volume_offset;
        device.inject(FaultRule::new(Fault::Write(fault), Trigger::Next(1)).within(at..at + 4096));
        let file = fs.open("f5", &OpenOptions::read_write()).unwrap();
        file.write_at(&AlignedBuf::from_slice(&[77; 4096]), 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs.unmount().unwrap();
        device.clear_faults();
        let fs = mount(&device).unwrap();
        assert!(
            (0..10).filter(|n| *n != 5).all(|n| holds(&fs, &format!("f{n}"), n + 1)),
            "{fault:?}"
        );
        fs.unmount().unwrap();
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        assert!(FileSystem::check(&shared, None, false).unwrap().findings.is_empty(), "{fault:?}");
    }
}

/// S-35, S-36: reads that return other bytes once: a mount that meets them is refused or right, and
/// the next one is right.
#[test]
fn s_35_s_36_reads_that_return_something_else_once() {
    let device = with_files(5);
    let base = device.snapshot();
    for nth in 1..40 {
        for fault in [ReadFault::FlipBit, ReadFault::Misdirect { to: 20 << 20 }] {
            let device = SimulatedDevice::over(
                &base,
                &bedplate_block::SimulatedOptions {
                    seed: nth,
                    ..bedplate_block::SimulatedOptions::default()
                },
            );
            device.inject(FaultRule::new(Fault::Read(fault), Trigger::Nth(nth)));
            if let Err(error) = mount(&device) {
                assert!(
                    matches!(
                        error.kind,
                        ErrorKind::Corrupt | ErrorKind::NotAVolume | ErrorKind::Io
                    ),
                    "read {nth}, {fault:?}: {error}"
                );
            }
            device.clear_faults();
        }
    }
    assert!(!detected_or_harmless(&device, "nothing was written"));
}

/// A slow device changes nothing but the time; a full or dying one loses nothing that was
/// acknowledged.
#[test]
fn s_33_devices_that_dawdle_or_die() {
    let device = with_files(6);
    let pause = Duration::from_millis(1);
    let slow = [
        Fault::Read(ReadFault::Delay(pause)),
        Fault::Write(WriteFault::Delay(pause)),
        Fault::Flush(FlushFault::Delay(pause)),
    ];
    slow.into_iter().for_each(|fault| device.inject(FaultRule::new(fault, Trigger::OneIn(3))));
    let fs = mount(&device).unwrap();
    put(&fs, "late", 50).unwrap();
    fs.unmount().unwrap();
    device.clear_faults();
    assert!(!detected_or_harmless(&device, "slow"));
    for after in (1..60).step_by(4) {
        let device = with_files(after);
        let fs = mount(&device).unwrap();
        device.die_after(device.operation_count() + after as usize);
        let acknowledged =
            (0..20).take_while(|n| put(&fs, &format!("late{n}"), 60).is_ok()).count();
        assert!(fs.sync().is_err(), "S-33");
        drop(fs);
        let remains = SimulatedDevice::over(
            &device.crash_content(device.operation_count(), &CrashChoice::LoseAll),
            &bedplate_block::SimulatedOptions::default(),
        );
        assert!(!detected_or_harmless(&remains, "died"));
        let fs = mount(&remains).unwrap();
        assert!(
            (0..acknowledged).all(|n| holds(&fs, &format!("late{n}"), 60)),
            "died after {after}: {acknowledged} files were acknowledged"
        );
    }
}

/// Completions that come in another order, and twice: each operation ends once, with its own
/// buffer.
#[test]
fn completions_that_are_swapped_and_come_twice() {
    let device = with_files(7);
    device.inject(FaultRule::new(Fault::DuplicateCompletion, Trigger::OneIn(2)));
    let fs = mount(&device).unwrap();
    let file = Arc::new(fs.open("f1", &OpenOptions::read_write()).unwrap());
    let mut queue =
        Queue::new(&fs, &QueueOptions { depth_max: 4, ..QueueOptions::default() }).unwrap();
    for round in 0..40u64 {
        for token in 0..4u64 {
            let buf = AlignedBuf::from_slice(&[u8::try_from(round + token).expect("small"); 4096]);
            queue
                .write(&file, buf, token * 4096, round * 4 + token)
                .expect("there is room for four");
        }
        let mut ended = Vec::new();
        while ended.len() < 4 {
            queue.complete(4 - ended.len(), &mut ended).unwrap();
        }
        let mut tokens: Vec<u64> = ended.iter().map(|end| end.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3].map(|token| round * 4 + token), "each ends once");
        assert!(ended.iter().all(|end| {
            end.buf.as_ref().is_some_and(|buf| u64::from(buf[0]) == round + end.token % 4)
                && end.result.is_ok()
        }));
    }
    drop(queue);
    let mut content = vec![0; 16_384];
    file.read_at(&mut content, 0).unwrap();
    assert!(
        content.chunks(4096).zip(39..).all(|(page, fill)| page.iter().all(|byte| *byte == fill))
    );
}

/// A flush that is lost is harmless once another one has made up for it. Before that no software
/// above it can keep its promises.
#[test]
fn lost_flushes_are_harmless_once_another_made_up_for_them() {
    let mut total = LostTally::default();
    for name in [
        "write, sync, rename over the old file",
        "overwrite of what was just exposed",
        "modes switch in flight",
    ] {
        let directed =
            DIRECTED.iter().find(|directed| directed.name == name).expect("it has this name");
        let tally = try_lost_flushes(&Setup::DISK, &(directed.steps)())
            .unwrap_or_else(|what| panic!("{name}: {what}"));
        total.lost += tally.lost;
        total.made_up += tally.made_up;
        total.harmless += tally.harmless;
        total.broken += tally.broken;
    }
    println!("{total:?}");
    assert!(
        total.made_up > 0 && total.broken > 0,
        "the judge sees what a lost flush costs: {total:?}"
    );
}
