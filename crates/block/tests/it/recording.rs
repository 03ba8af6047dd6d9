//! The recording device against the simulated one: the same operations, the same power cuts, the
//! same remains.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, CrashStep, ErrorKind, Geometry, MemoryDevice, Recording,
    RecordingDevice, SimulatedDevice, SimulatedOptions, Source, Spooled,
};
use proptest::prelude::*;

const SECTOR: u64 = 512;
const SECTORS: u64 = 64;
const SIZE: u64 = SECTOR * SECTORS;
const DISK: Geometry = Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY };

#[derive(Debug, Clone)]
enum Step {
    Write { sector: u64, count: u64 },
    Zero { sector: u64, count: u64 },
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let place =
        || (0..SECTORS, 1..9_u64).prop_map(|(sector, count)| (sector, count.min(SECTORS - sector)));
    prop_oneof![
        6 => place().prop_map(|(sector, count)| Step::Write { sector, count }),
        1 => place().prop_map(|(sector, count)| Step::Zero { sector, count }),
        2 => Just(Step::Flush),
    ]
}

fn carry_out(device: &dyn BlockDevice, step: &Step, fill: u8) {
    match step {
        Step::Write { sector, count } => {
            device.write_at(&filled(count * SECTOR, fill), sector * SECTOR).unwrap();
        }
        Step::Zero { sector, count } => {
            device.write_zeroes(sector * SECTOR, count * SECTOR).unwrap();
        }
        Step::Flush => device.flush().unwrap(),
    }
}

fn filled(len: u64, fill: u8) -> AlignedBuf {
    AlignedBuf::from_slice(&vec![fill; usize::try_from(len).unwrap()])
}

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut buf = AlignedBuf::zeroed(SIZE as usize);
    device.read_at(&mut buf, 0).unwrap();
    buf.to_vec()
}

/// A memory device that holds one byte everywhere.
fn base() -> Arc<MemoryDevice> {
    let base = MemoryDevice::new(SIZE);
    base.write_at(&filled(SIZE, 0xEE), 0).unwrap();
    base
}

fn recording(geometry: Geometry) -> Arc<RecordingDevice> {
    RecordingDevice::over(base(), geometry, tempfile::tempfile().unwrap())
}

fn choices(seed: u64) -> [CrashChoice; 4] {
    [
        CrashChoice::LoseAll,
        CrashChoice::KeepAll,
        CrashChoice::InOrder(seed),
        CrashChoice::Seeded(seed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_cut_leaves_what_the_simulated_device_leaves(
        steps in prop::collection::vec(step(), 1..60),
        settled in 0..20_usize,
        volatile_cache in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let geometry = Geometry { volatile_cache, ..MemoryDevice::GEOMETRY };
        let recording = recording(geometry);
        let simulated = SimulatedDevice::over(&base().snapshot(), &SimulatedOptions { seed, geometry, shuffle: false });
        for (number, step) in steps.iter().enumerate() {
            if number == settled {
                recording.make_all_durable();
                simulated.make_all_durable();
            }
            carry_out(&*recording, step, number as u8 + 1);
            carry_out(&*simulated, step, number as u8 + 1);
        }
        prop_assert_eq!(recording.operation_count(), simulated.operation_count());
        let record = recording.recording();
        // Later operations do not touch the recording.
        carry_out(&*recording, &Step::Write { sector: 0, count: SECTORS }, 0x77);
        let count = simulated.operation_count();
        // Back and forth, so that the recording has to begin anew too.
        for after in (0..=count).chain((0..count).rev().step_by(5)) {
            prop_assert_eq!(record.unflushed(after), simulated.unflushed(after));
            for choice in choices(seed ^ after as u64) {
                let steps = record.crash_steps(after, &choice);
                prop_assert_eq!(&steps, &simulated.crash_steps(after, &choice));
                let left = record.crash_device(after, &steps, tempfile::tempfile().unwrap());
                prop_assert!(bytes(&*left) == bytes(&*simulated.crash_image(after, &choice)),
                    "after {} with {:?}", after, choice);
            }
        }
    }
}

#[test]
fn what_is_written_to_a_remainder_touches_neither_the_record_nor_another_remainder_and_can_be_cut_again()
 {
    let recording = recording(DISK);
    carry_out(&*recording, &Step::Write { sector: 0, count: 4 }, 1);
    let record = recording.recording();
    let make = || {
        record.crash_device(
            1,
            &record.crash_steps(1, &CrashChoice::KeepAll),
            tempfile::tempfile().unwrap(),
        )
    };
    let (first, second) = (make(), make());
    carry_out(&*first, &Step::Write { sector: 2, count: 1 }, 9);
    let expected = |third| [[1_u8; 512], [1; 512], [third; 512], [1; 512]].concat();
    assert_eq!(bytes(&*first)[..2048], expected(9));
    assert_eq!(bytes(&*second)[..2048], expected(1));
    let again = first.recording();
    assert_eq!(again.unflushed(1), vec![0]);
    for (choice, third) in [(CrashChoice::LoseAll, 1), (CrashChoice::KeepAll, 9)] {
        let left =
            again.crash_device(1, &again.crash_steps(1, &choice), tempfile::tempfile().unwrap());
        assert_eq!(bytes(&*left)[..2048], expected(third));
    }
}

#[test]
fn in_order_all_but_the_last_write_are_there() {
    let recording = recording(DISK);
    (0..4).for_each(|number| {
        carry_out(&*recording, &Step::Write { sector: 4 * number, count: 4 }, 1);
    });
    let record = recording.recording();
    let mut torn = 0;
    for seed in 0..40 {
        let steps = record.crash_steps(4, &CrashChoice::InOrder(seed));
        let is_whole = |step: &CrashStep| step.parts.len() == 1 && step.parts[0] == (0..2048);
        assert!(steps.len() == 4 && steps[..3].iter().all(is_whole), "{steps:?}");
        torn += usize::from(!is_whole(&steps[3]));
    }
    assert!(torn > 20, "the last write is hardly ever torn");
}

#[test]
fn a_stored_record_is_restored_and_a_damaged_one_is_refused() {
    let recording = recording(DISK);
    carry_out(&*recording, &Step::Write { sector: 0, count: 4 }, 1);
    recording.make_all_durable();
    carry_out(&*recording, &Step::Flush, 0);
    carry_out(&*recording, &Step::Write { sector: 8, count: 2 }, 2);
    carry_out(&*recording, &Step::Zero { sector: 9, count: 2 }, 0);
    let record = recording.recording();
    let (start, operations): (Vec<_>, Vec<_>) =
        (record.start().collect(), record.operations().to_vec());
    let spool = || {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &file,
            &[vec![1; 2048], vec![2; 1024]].concat(),
            0,
        )
        .unwrap();
        file
    };
    let restored = Recording::restore(base(), DISK, spool(), &start, &operations).unwrap();
    for after in 0..=3 {
        let content = |record: &Recording| {
            bytes(&*record.crash_device(
                after,
                &record.crash_steps(after, &CrashChoice::KeepAll),
                tempfile::tempfile().unwrap(),
            ))
        };
        assert!(content(&restored) == content(&record), "after {after}");
    }

    let stored = |at| Source::File { file: 0, at };
    for (operation, kind) in [
        (Spooled::Write { offset: SIZE, len: 512, source: Source::Zeros }, ErrorKind::OutOfRange),
        (Spooled::Write { offset: 100, len: 512, source: Source::Zeros }, ErrorKind::Unaligned),
        (Spooled::Write { offset: 0, len: 1024, source: stored(2560) }, ErrorKind::OutOfRange),
        (Spooled::Write { offset: 0, len: 1024, source: stored(u64::MAX) }, ErrorKind::OutOfRange),
        (
            Spooled::Write { offset: 0, len: 512, source: Source::File { file: 1, at: 0 } },
            ErrorKind::OutOfRange,
        ),
        (Spooled::Flush { covers: 1 }, ErrorKind::OutOfRange),
    ] {
        let error = Recording::restore(base(), DISK, spool(), &start, &[operation]).unwrap_err();
        assert_eq!(error.kind, kind, "{operation:?}: {error}");
    }
    let beyond = Recording::restore(base(), DISK, spool(), &[(0..4096, stored(0))], &[]);
    assert_eq!(beyond.unwrap_err().kind, ErrorKind::OutOfRange);
}

#[test]
fn a_copy_holds_what_the_device_shows() {
    let recording = recording(DISK);
    carry_out(&*recording, &Step::Zero { sector: 8, count: 8 }, 0);
    carry_out(&*recording, &Step::Write { sector: 40, count: 3 }, 5);
    let mut copy = vec![0; SIZE as usize];
    recording
        .copy_to(&mut |offset, bytes| {
            copy[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    assert!(copy == bytes(&*recording));
}

#[test]
fn a_full_spool_fails_the_write_and_keeps_it_out_of_the_record() {
    let full = std::fs::OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let recording = RecordingDevice::over(base(), DISK, full);
    let error = recording.write_at(&filled(512, 1), 0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_eq!((recording.operation_count(), recording.counters().errors), (0, 1));
    assert_eq!(bytes(&*recording)[0], 0xEE);
}
