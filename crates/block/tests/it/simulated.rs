//! The simulated device: its crash images against a plain model, and each of its faults.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, ErrorKind, Fault, FaultRule, FlushFault, FlushOutcome,
    Geometry, MemoryDevice, QueueOptions, ReadFault, Recorded, Request, RequestKind, Segment,
    SimulatedDevice, SimulatedOptions, Snapshot, Trigger, WriteFault,
};
use proptest::prelude::*;

const SECTOR: usize = 512;
const SECTORS: usize = 64;
const SIZE: u64 = (SECTOR * SECTORS) as u64;

/// One step of a workload; each write fills its sectors with a byte of its own.
#[derive(Debug, Clone)]
enum Step {
    Write { sector: usize, count: usize },
    Zero { sector: usize, count: usize },
    Discard { sector: usize, count: usize },
    Flush(FlushOutcome),
}

fn step() -> impl Strategy<Value = Step> {
    let place = || {
        (0..SECTORS, 1..9_usize).prop_map(|(sector, count)| (sector, count.min(SECTORS - sector)))
    };
    prop_oneof![
        6 => place().prop_map(|(sector, count)| Step::Write { sector, count }),
        1 => place().prop_map(|(sector, count)| Step::Zero { sector, count }),
        1 => place().prop_map(|(sector, count)| Step::Discard { sector, count }),
        2 => Just(Step::Flush(FlushOutcome::Honoured)),
        1 => Just(Step::Flush(FlushOutcome::Lost)),
        1 => Just(Step::Flush(FlushOutcome::Failed)),
    ]
}

/// What each sector may hold after a power cut, by the first byte: the newest certain value, and
/// every uncertain one since.
struct Model {
    /// For each sector every value it ever got, with the operation that wrote it.
    history: Vec<Vec<(usize, u8)>>,
    durable: Vec<bool>,
    doubtful: Vec<bool>,
}

impl Model {
    fn new() -> Self {
        Self { history: vec![Vec::new(); SECTORS], durable: Vec::new(), doubtful: Vec::new() }
    }

    fn apply(&mut self, step: &Step, fill: u8) {
        let number = self.durable.len();
        self.durable.push(false);
        self.doubtful.push(false);
        match step {
            Step::Write { sector, count } => self.history[*sector..sector + count]
                .iter_mut()
                .for_each(|values| values.push((number, fill))),
            Step::Zero { sector, count } | Step::Discard { sector, count } => {
                self.history[*sector..sector + count]
                    .iter_mut()
                    .for_each(|values| values.push((number, 0)));
            }
            Step::Flush(FlushOutcome::Honoured) => {
                (0..number).for_each(|earlier| self.durable[earlier] |= !self.doubtful[earlier]);
            }
            Step::Flush(FlushOutcome::Failed) => {
                (0..number).for_each(|earlier| self.doubtful[earlier] |= !self.durable[earlier]);
            }
            Step::Flush(FlushOutcome::Lost) => {}
        }
    }

    fn allowed(&self, sector: usize) -> Vec<u8> {
        let values = &self.history[sector];
        let certain = values.iter().rposition(|(number, _)| self.durable[*number]);
        let newest_certain = certain.map_or(0, |at| values[at].1);
        values[certain.map_or(0, |at| at + 1)..]
            .iter()
            .map(|(_, value)| *value)
            .chain([newest_certain])
            .collect()
    }

    fn newest(&self, sector: usize) -> u8 {
        self.history[sector].last().map_or(0, |(_, value)| *value)
    }

    fn oldest_allowed(&self, sector: usize) -> u8 {
        *self.allowed(sector).last().expect("a sector always holds something")
    }
}

fn carry_out(device: &SimulatedDevice, step: &Step, fill: u8) {
    let range = |sector: &usize, count: &usize| ((sector * SECTOR) as u64, (count * SECTOR) as u64);
    match step {
        Step::Write { sector, count } => {
            device.write_at(&filled(count * SECTOR, fill), range(sector, count).0).unwrap();
        }
        Step::Zero { sector, count } => {
            device.write_zeroes(range(sector, count).0, range(sector, count).1).unwrap();
        }
        Step::Discard { sector, count } => {
            assert!(device.discard(range(sector, count).0, range(sector, count).1).unwrap());
        }
        Step::Flush(outcome) => {
            match outcome {
                FlushOutcome::Honoured => {}
                FlushOutcome::Lost => {
                    device.inject(FaultRule::new(Fault::Flush(FlushFault::Lose), Trigger::Next(1)));
                }
                FlushOutcome::Failed => {
                    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
                }
            }
            assert_eq!(device.flush().is_err(), *outcome == FlushOutcome::Failed);
            device.clear_faults();
        }
    }
}

fn filled(len: usize, fill: u8) -> AlignedBuf {
    AlignedBuf::from_slice(&vec![fill; len])
}

fn sectors(content: &Snapshot) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    content.read(&mut bytes, 0);
    bytes.chunks(SECTOR).for_each(|sector| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
    });
    bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_power_cut_leaves_what_was_flushed_and_nothing_that_was_never_written(steps in prop::collection::vec(step(), 1..140), seed in any::<u64>()) {
        let device = SimulatedDevice::new(SIZE, seed);
        let mut model = Model::new();
        // Both before and after the log grew beyond the moment of the cut.
        let mut later = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let fill = (number % 255) as u8 + 1;
            carry_out(&device, step, fill);
            model.apply(step, fill);
            let after = device.operation_count();
            prop_assert_eq!(after, number + 1);
            let kept = sectors(&device.crash_content(after, &CrashChoice::KeepAll));
            let lost = sectors(&device.crash_content(after, &CrashChoice::LoseAll));
            let seeded = sectors(&device.crash_content(after, &CrashChoice::Seeded(seed ^ number as u64)));
            for sector in 0..SECTORS {
                prop_assert_eq!(kept[sector], model.newest(sector));
                prop_assert_eq!(lost[sector], model.oldest_allowed(sector), "sector {} after {}", sector, after);
                prop_assert!(model.allowed(sector).contains(&seeded[sector]),
                    "sector {} after {}", sector, after);
            }
            later.push((kept, lost, seeded));
        }
        for (number, (kept, lost, seeded)) in later.iter().enumerate() {
            prop_assert_eq!(&sectors(&device.crash_content(number + 1, &CrashChoice::KeepAll)), kept);
            prop_assert_eq!(&sectors(&device.crash_content(number + 1, &CrashChoice::LoseAll)), lost);
            prop_assert_eq!(&sectors(&device.crash_content(number + 1, &CrashChoice::Seeded(seed ^ number as u64))), seeded);
        }
    }

    #[test]
    fn a_write_within_the_untorn_unit_is_there_or_not(writes in prop::collection::vec((0..SECTORS / 8, 1..=8_usize), 1..12), seed in any::<u64>()) {
        let geometry = Geometry { untorn_unit: 8 * SECTOR as u32, volatile_cache: true, ..MemoryDevice::GEOMETRY };
        let device = SimulatedDevice::over(&Snapshot::empty(SIZE), &SimulatedOptions { seed, geometry, shuffle: true });
        for (number, (unit, count)) in writes.iter().enumerate() {
            device.write_at(&filled(count * SECTOR, number as u8 + 1), (unit * 8 * SECTOR) as u64).unwrap();
        }
        for choice in 0..16 {
            for step in device.crash_steps(writes.len(), &CrashChoice::Seeded(seed.wrapping_add(choice))) {
                prop_assert!(step.parts.len() == 1 && step.parts[0] == (0..(writes[step.operation].1 * SECTOR) as u64));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let run = || {
            let device = SimulatedDevice::new(SIZE, seed);
            device.inject(FaultRule::new(Fault::Write(WriteFault::Tear), Trigger::OneIn(3)));
            device.inject(FaultRule::new(Fault::Write(WriteFault::FlipBit), Trigger::OneIn(3)));
            for (number, step) in steps.iter().enumerate() {
                if let Step::Write { sector, count } = step {
                    device.write_at(&filled(count * SECTOR, number as u8), (sector * SECTOR) as u64).unwrap();
                }
            }
            (device.operations(), device.crash_steps(device.operation_count(), &CrashChoice::Seeded(seed)))
        };
        prop_assert!(run() == run());
    }
}

#[test]
fn a_seeded_choice_loses_keeps_tears_and_takes_prefixes() {
    let device = SimulatedDevice::new(SIZE, 1);
    (0..6).for_each(|number| {
        device.write_at(&filled(4 * SECTOR, 7), number * 4 * SECTOR as u64).unwrap();
    });
    let all: Vec<_> =
        (0..400).map(|seed| device.crash_steps(6, &CrashChoice::Seeded(seed))).collect();
    let whole =
        |parts: &[std::ops::Range<u64>]| parts.len() == 1 && parts[0] == (0..4 * SECTOR as u64);
    assert!(all.iter().any(Vec::is_empty) && all.iter().any(|steps| steps.len() == 6));
    assert!(all.iter().flatten().any(|step| !whole(&step.parts)), "nothing was torn");
    assert!(
        all.iter().any(|steps| !steps.is_empty() && steps[0].operation > 0),
        "nothing was reordered"
    );
    assert!(
        all.iter()
            .any(|steps| steps.len() == 3 && steps[2].operation == 2 && whole(&steps[2].parts)),
        "no prefix"
    );
}

#[test]
fn chosen_writes_arrive_in_the_chosen_order() {
    let device = SimulatedDevice::new(SIZE, 1);
    (1..=3).for_each(|fill| device.write_at(&filled(SECTOR, fill), 0).unwrap());
    assert_eq!(device.unflushed(3), vec![0, 1, 2]);
    let first_byte = |choice: &CrashChoice| sectors(&device.crash_content(3, choice))[0];
    assert_eq!(first_byte(&CrashChoice::Keep(vec![0, 2])), 3);
    assert_eq!(first_byte(&CrashChoice::Keep(vec![2, 0])), 1);
    assert_eq!(first_byte(&CrashChoice::Keep(vec![1])), 2);
}

#[test]
fn without_a_volatile_cache_only_the_write_on_its_way_is_uncertain() {
    let options = SimulatedOptions { seed: 3, geometry: MemoryDevice::GEOMETRY, shuffle: false };
    let device = SimulatedDevice::over(&Snapshot::empty(SIZE), &options);
    (0..3).for_each(|number| {
        device.write_at(&filled(SECTOR, number as u8 + 1), number * SECTOR as u64).unwrap();
    });
    assert_eq!(device.unflushed(1), vec![1]);
    assert_eq!(sectors(&device.crash_content(1, &CrashChoice::LoseAll))[..3], [1, 0, 0]);
    assert_eq!(sectors(&device.crash_content(1, &CrashChoice::KeepAll))[..3], [1, 2, 0]);
    assert_eq!(sectors(&device.crash_content(3, &CrashChoice::LoseAll))[..3], [1, 2, 3]);
}

#[test]
fn a_crash_image_is_a_device_that_can_crash_again() {
    let first = SimulatedDevice::new(SIZE, 1);
    first.write_at(&filled(SECTOR, 1), 0).unwrap();
    first.flush().unwrap();
    first.write_at(&filled(SECTOR, 2), 0).unwrap();
    let image = first.crash_image(3, &CrashChoice::LoseAll);
    assert_eq!(image.geometry(), first.geometry());
    image.write_at(&filled(SECTOR, 3), SECTOR as u64).unwrap();
    let second = SimulatedDevice::over(&image.snapshot(), &SimulatedOptions::default());
    second.write_at(&filled(SECTOR, 4), 2 * SECTOR as u64).unwrap();
    assert_eq!(sectors(&second.crash_content(1, &CrashChoice::LoseAll))[..3], [1, 3, 0]);
    assert_eq!(sectors(&second.snapshot())[..3], [1, 3, 4]);
    assert_eq!(sectors(&first.snapshot())[..3], [2, 0, 0]);
}

#[test]
fn settling_moves_the_first_crash_point() {
    let device = SimulatedDevice::new(SIZE, 1);
    device.write_at(&filled(SECTOR, 1), 0).unwrap();
    device.make_all_durable();
    assert_eq!(device.operation_count(), 0);
    assert_eq!(sectors(&device.crash_content(0, &CrashChoice::LoseAll))[0], 1);
}

#[test]
fn a_recorded_workload_replays_over_another_device() {
    let device = SimulatedDevice::new(SIZE, 1);
    device.write_at(&filled(4 * SECTOR, 9), 0).unwrap();
    device.write_zeroes(SECTOR as u64, SECTOR as u64).unwrap();
    device.discard(2 * SECTOR as u64, SECTOR as u64).unwrap();
    device.flush().unwrap();
    device.decay(3 * SECTOR as u64, 0x80);
    let other = MemoryDevice::new(SIZE);
    device.operations().iter().for_each(|operation| operation.replay(&*other).unwrap());
    assert_eq!(other.snapshot().first_difference(&device.snapshot()), None);
    assert_eq!(other.counters().flushes, 1);
}

#[test]
fn a_device_grows_on_command_and_says_so_when_asked() {
    let device = SimulatedDevice::new(SIZE, 1);
    device.start_smaller(SIZE / 2);
    let last = SIZE - SECTOR as u64;
    assert_eq!((device.size_bytes(), device.refresh_size().unwrap()), (SIZE / 2, SIZE / 2));
    assert_eq!(device.write_at(&filled(SECTOR, 1), last).unwrap_err().kind, ErrorKind::OutOfRange);
    device.grow(SIZE);
    assert_eq!(device.size_bytes(), SIZE / 2, "it was not asked yet");
    assert_eq!((device.refresh_size().unwrap(), device.size_bytes()), (SIZE, SIZE));
    device.write_at(&filled(SECTOR, 1), last).unwrap();
}

#[test]
fn triggers_strike_the_calls_they_name() {
    let outcomes = |trigger| {
        let device = SimulatedDevice::new(SIZE, 5);
        device.inject(
            FaultRule::new(Fault::Write(WriteFault::NoSpace), trigger).within(0..SECTOR as u64),
        );
        (0..12)
            .map(|_| {
                (
                    device.write_at(&filled(SECTOR, 1), SECTOR as u64).unwrap(),
                    device.write_at(&filled(SECTOR, 1), 0).is_err(),
                )
                    .1
            })
            .collect()
    };
    let failed: Vec<Vec<bool>> =
        [Trigger::Next(2), Trigger::Nth(3), Trigger::Always, Trigger::OneIn(3), Trigger::From(10)]
            .map(outcomes)
            .into();
    assert_eq!(
        failed[0],
        [true, true, false, false, false, false, false, false, false, false, false, false]
    );
    assert_eq!(
        failed[1],
        [false, false, true, false, false, false, false, false, false, false, false, false]
    );
    assert!(failed[2].iter().all(|failed| *failed));
    assert!(failed[3].iter().any(|failed| *failed) && !failed[3].iter().all(|failed| *failed));
    assert_eq!(failed[4].iter().position(|failed| *failed), Some(9));
    assert!(failed[4][9..].iter().all(|failed| *failed));
}

fn with_fault(fault: Fault) -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(SIZE, 11);
    device.write_at(&filled(SIZE as usize, 1), 0).unwrap();
    device.inject(FaultRule::new(fault, Trigger::Next(1)));
    device
}

#[test]
fn reads_fail_flip_and_go_astray_once() {
    let mut buf = AlignedBuf::zeroed(SECTOR);
    let failing = with_fault(Fault::Read(ReadFault::Fail));
    assert_eq!(failing.read_at(&mut buf, 0).unwrap_err().kind, ErrorKind::Io);
    failing.read_at(&mut buf, 0).unwrap();
    let flipping = with_fault(Fault::Read(ReadFault::FlipBit));
    flipping.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf.iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>(), 1);
    flipping.read_at(&mut buf, 0).unwrap();
    assert!(buf.iter().all(|byte| *byte == 1));
    let astray = with_fault(Fault::Read(ReadFault::Misdirect { to: u64::MAX }));
    astray.write_at(&filled(SECTOR, 2), SIZE - SECTOR as u64).unwrap();
    astray.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf[0], 2);
}

#[test]
fn writes_fail_in_part_get_lost_torn_flipped_and_go_astray() {
    let changed = |fault| {
        let device = with_fault(Fault::Write(fault));
        let result = device.write_at(&filled(8 * SECTOR, 2), 8 * SECTOR as u64);
        let mut bytes = vec![0; SIZE as usize];
        device.snapshot().read(&mut bytes, 0);
        let places: Vec<usize> = bytes
            .chunks(SECTOR)
            .enumerate()
            .filter(|(_, sector)| sector[0] != 1)
            .map(|(at, _)| at)
            .collect();
        (result.map_err(|error| error.kind), places, bytes)
    };
    let (result, places, _) = changed(WriteFault::Fail);
    assert!(
        result == Err(ErrorKind::Io)
            && places.len() < 8
            && places.iter().all(|at| (8..16).contains(at))
    );
    let (result, places, _) = changed(WriteFault::NoSpace);
    assert!(result == Err(ErrorKind::NoSpace) && places.is_empty());
    let (result, places, _) = changed(WriteFault::Lose);
    assert!(result.is_ok() && places.is_empty());
    let (result, places, _) = changed(WriteFault::Tear);
    assert!(result.is_ok() && places.len() < 8 && places.iter().all(|at| (8..16).contains(at)));
    let (result, places, _) = changed(WriteFault::Misdirect { to: 100 });
    assert!(result.is_ok() && places == (0..8).collect::<Vec<_>>());
    let (result, _, bytes) = changed(WriteFault::FlipBit);
    assert!(
        result.is_ok()
            && bytes[8 * SECTOR..16 * SECTOR]
                .iter()
                .map(|byte| (byte ^ 2).count_ones())
                .sum::<u32>()
                == 1
    );
}

#[test]
fn a_dead_device_answers_nothing_and_changes_nothing() {
    let device = SimulatedDevice::new(SIZE, 1);
    device.die_after(2);
    device.write_at(&filled(SECTOR, 1), 0).unwrap();
    device.flush().unwrap();
    assert_eq!(device.write_at(&filled(SECTOR, 2), 0).unwrap_err().kind, ErrorKind::Io);
    assert_eq!(device.flush().unwrap_err().kind, ErrorKind::Io);
    assert_eq!(device.read_at(&mut filled(SECTOR, 0), 0).unwrap_err().kind, ErrorKind::Io);
    assert_eq!((device.operation_count(), device.counters().errors), (2, 3));
    assert_eq!(sectors(&device.snapshot())[0], 1);
}

#[test]
fn a_delay_changes_nothing_but_the_time() {
    let pause = std::time::Duration::from_millis(1);
    let device = SimulatedDevice::new(SIZE, 1);
    for fault in [
        Fault::Read(ReadFault::Delay(pause)),
        Fault::Write(WriteFault::Delay(pause)),
        Fault::Flush(FlushFault::Delay(pause)),
    ] {
        device.inject(FaultRule::new(fault, Trigger::Always));
    }
    let start = std::time::Instant::now();
    device.write_at(&filled(SECTOR, 1), 0).unwrap();
    device.flush().unwrap();
    let mut buf = AlignedBuf::zeroed(SECTOR);
    device.read_at(&mut buf, 0).unwrap();
    assert!(buf[0] == 1 && start.elapsed() >= 3 * pause);
}

fn write(token: u64, fill: u8) -> Request {
    let first = Segment { offset: token * SECTOR as u64, len: SECTOR as u32 };
    Request {
        token,
        kind: RequestKind::Write,
        buf: Some(filled(SECTOR, fill)),
        first,
        rest: Vec::new(),
    }
}

#[test]
fn a_queue_shuffles_and_a_flush_in_it_covers_only_what_was_complete() {
    let device = SimulatedDevice::new(SIZE, 42);
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    queue.push(write(0, 1)).unwrap();
    let mut out = Vec::new();
    assert_eq!(queue.complete(1, &mut out).unwrap(), 1);
    (1..9).for_each(|token| queue.push(write(token, 1)).unwrap());
    let flush = Request {
        token: 9,
        kind: RequestKind::Flush,
        buf: None,
        first: Segment { offset: 0, len: 0 },
        rest: Vec::new(),
    };
    queue.push(flush).unwrap();
    while queue.in_flight() > 0 {
        queue.complete(1, &mut out).unwrap();
    }
    let order: Vec<u64> = out.iter().map(|done| done.token).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert!(sorted == (0..10).collect::<Vec<_>>() && order != sorted, "{order:?}");
    assert_eq!(device.unflushed(device.operation_count()).len(), 8);
    assert!(
        device
            .operations()
            .iter()
            .any(|operation| matches!(operation, Recorded::Flush { covers: 1, .. }))
    );
}

#[test]
fn a_completion_comes_twice_when_told_to() {
    let device = SimulatedDevice::new(SIZE, 1);
    device.inject(FaultRule::new(Fault::DuplicateCompletion, Trigger::Nth(2)));
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    (0..3).for_each(|token| queue.push(write(token, 1)).unwrap());
    let mut out = Vec::new();
    assert_eq!(queue.complete(3, &mut out).unwrap(), 4);
    assert_eq!(out.iter().filter(|done| done.token == out[1].token).count(), 2);
    assert_eq!(queue.in_flight(), 0);
}
