//! Full pieces of delayed writes, which threads write while their writers go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceCall, Hook, HookedDevice};
use bedplate_fs::{AllocateMode, ErrorKind, File, FileSystem, IoMode, OpenOptions};

use crate::common::assert_sound;
use crate::delayed::{Growing, MODES, growing};
use crate::support::{device, format, mount_as};

/// What a piece has, and each write of these tests.
const PIECE: usize = 1 << 20;
/// Threads that write pieces.
const HANDS: usize = 2;
/// Longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(60);

/// Holds writes of pieces back, or refuses them.
#[derive(Debug, Default)]
struct Gate {
    is_closed: AtomicBool,
    refuses: AtomicBool,
    /// Writes that wait at it.
    held: AtomicUsize,
    /// Writes that were refused.
    refused: AtomicUsize,
}

impl Gate {
    fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    fn open(&self) {
        self.is_closed.store(false, SeqCst);
    }
}

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if !matches!(call, DeviceCall::Write { bytes, .. } if bytes.len() >= PIECE / 2) {
            return pass();
        }
        self.held.fetch_add(1, SeqCst);
        until("the gate is opened", || !self.is_closed.load(SeqCst));
        self.held.fetch_sub(1, SeqCst);
        if self.refuses.load(SeqCst) {
            self.refused.fetch_add(1, SeqCst);
            return Err(bedplate_block::Error {
                kind: bedplate_block::ErrorKind::Io,
                operation: call.operation(),
                device: "gate".to_owned(),
                offset: None,
                detail: "told to refuse pieces".to_owned(),
                errno: None,
            });
        }
        pass()
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}: not within {LONG:?}");
        sleep(Duration::from_millis(1));
    }
}

struct Bed {
    gate: Arc<HookedDevice<Gate>>,
    it: Growing,
}

impl Bed {
    fn new(mode: IoMode) -> Self {
        let gate = HookedDevice::new(device(64 << 20, 512), Gate::default());
        let device: Arc<dyn BlockDevice> = Arc::clone(&gate) as Arc<dyn BlockDevice>;
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = fs.open("/f", &growing()).unwrap();
        Self { gate, it: Growing { device, fs, file, model: Vec::new() } }
    }

    /// As many pieces as there are threads, each held back in one of them.
    fn fill_hands(&mut self) {
        self.gate.close();
        (0..HANDS).for_each(|hand| self.it.append(PIECE, 1 + hand as u8));
        until("each hand writes a piece", || self.gate.held.load(SeqCst) == HANDS);
    }
}

/// A writer waited for the device with each piece that it filled, and the device for the writer.
#[test]
fn s_300_a_writer_goes_on_while_threads_write_what_it_filled() {
    for mode in MODES {
        let mut bed = Bed::new(mode);
        bed.fill_hands();
        (0..3).for_each(|round| bed.it.append(PIECE / 2, 10 + round));
        bed.it.append(777, 20);
        assert_eq!(bed.gate.held.load(SeqCst), HANDS, "{mode}: no writer waits there");
        Growing::holds(&bed.it.file, &bed.it.model, "S-301: while pieces are on their way");
        assert!(bed.it.waiting() >= 3 * PIECE as u64, "{mode}");
        bed.gate.open();
        bed.it.file.sync_all().unwrap();
        assert_eq!(bed.it.waiting(), 0, "{mode}");
        bed.it.compare_after_death(&mode.to_string());
    }
}

/// Over what is written, in order.
#[test]
fn s_365_a_stream_of_large_writes_goes_on_too() {
    let mut bed = Bed::new(IoMode::Concurrent);
    (0..6).for_each(|round| bed.it.append(PIECE, round));
    bed.it.file.sync_all().unwrap();
    // The first one goes on nowhere.
    bed.it.write(0, &AlignedBuf::from_slice(&[40; PIECE]));
    bed.gate.close();
    for at in 1..=HANDS {
        bed.it.write(at * PIECE, &AlignedBuf::from_slice(&vec![50 + at as u8; PIECE]));
    }
    until("each hand writes a piece", || bed.gate.held.load(SeqCst) == HANDS);
    bed.it.write(3 * PIECE, &AlignedBuf::from_slice(&vec![60; PIECE]));
    Growing::holds(&bed.it.file, &bed.it.model, "S-366: while pieces are on their way");
    bed.gate.open();
    bed.it.file.sync_data().unwrap();
    bed.it.compare_after_death("a stream of overwrites");
}

/// A writer that is quicker than the device writes as the threads do, and no more than a few pieces
/// wait.
#[test]
fn i_dly_4_a_writer_that_is_quicker_than_the_device_lends_a_hand() {
    let bed = Bed::new(IoMode::Concurrent);
    let Bed { gate, it } = &bed;
    gate.close();
    let written = AtomicU64::new(0);
    let write = |round: u64| {
        let bytes = AlignedBuf::from_slice(&vec![round as u8; PIECE]);
        it.file.write_at(&bytes, round * PIECE as u64).unwrap();
        written.fetch_add(1, SeqCst);
    };
    scope(|scope| {
        scope.spawn(|| (0..12).for_each(write));
        until("the writer waits at the device", || gate.held.load(SeqCst) == HANDS + 1);
        let (now, waiting) = (written.load(SeqCst), it.fs.info().delayed_bytes);
        assert!(
            // Three where the threads have not begun when the fourth piece is full.
            (3..=6).contains(&now) && waiting <= 7 * PIECE as u64,
            "{now} writes have returned, {waiting} bytes wait"
        );
        gate.open();
    });
    it.file.sync_data().unwrap();
    let model: Vec<u8> = (0..12 * PIECE).map(|at| (at / PIECE) as u8).collect();
    Growing::holds(&it.file, &model, "all of it");
}

/// S-33: what a thread could not write stays, and is told.
#[test]
fn s_302_what_a_thread_could_not_write_is_told_and_tried_again() {
    for tells in ["sync", "write"] {
        let mut bed = Bed::new(IoMode::Concurrent);
        bed.gate.refuses.store(true, SeqCst);
        bed.fill_hands();
        bed.it.append(PIECE, 7);
        bed.gate.open();
        until("all of them are refused", || {
            bed.gate.refused.load(SeqCst) > HANDS && bed.gate.held.load(SeqCst) == 0
        });
        let told = match tells {
            "sync" => bed.it.file.sync_data().map(drop),
            _ => write_until_told(&bed.it.file, &mut bed.it.model),
        };
        let it = &bed.it;
        assert_eq!(told.expect_err(tells).kind, ErrorKind::Io, "{tells}");
        Growing::holds(&it.file, &it.model, "what was refused is not there, what was taken is");
        bed.gate.refuses.store(false, SeqCst);
        it.file.sync_data().unwrap();
        assert_eq!(it.fs.info().delayed_bytes, 0, "{tells}");
        bed.it.compare_after_death(tells);
    }
}

/// Writes at the end until it is told that a piece is owed: a thread may put it back a moment later
/// than the device refused it.
fn write_until_told(file: &File, model: &mut Vec<u8>) -> bedplate_fs::Result<()> {
    let began = Instant::now();
    loop {
        file.write_at(&AlignedBuf::from_slice(&[9; 512]), model.len() as u64)?;
        model.extend([9; 512]);
        assert!(began.elapsed() < LONG, "no write is told what is owed");
    }
}

/// S-301: what needs the file alone waits for the threads.
#[test]
fn i_dly_2_changes_wait_for_pieces_that_are_on_their_way() {
    type Change = fn(&File);
    let changes: [(&str, usize, Change); 3] = [
        ("cut", PIECE / 2 + 100, |file| file.set_size(PIECE as u64 / 2 + 100).unwrap()),
        ("cut to nothing", 0, |file| file.set_size(0).unwrap()),
        ("punch", usize::MAX, |file| {
            file.allocate(AllocateMode::PunchHole, 4096, PIECE as u64).unwrap();
        }),
    ];
    for (what, left, change) in changes {
        let mut bed = Bed::new(IoMode::Concurrent);
        bed.fill_hands();
        bed.it.append(PIECE, 9);
        let is_done = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| {
                change(&bed.it.file);
                is_done.store(true, SeqCst);
            });
            sleep(Duration::from_millis(50));
            assert!(!is_done.load(SeqCst), "{what}: pieces are on their way");
            bed.gate.open();
        });
        if what == "punch" {
            bed.it.model[4096..4096 + PIECE].fill(0);
        }
        bed.it.model.truncate(left);
        let model = bed.it.model.clone();
        bed.it.file.sync_all().unwrap();
        if left > 0 {
            Growing::holds(&bed.it.file, &model, what);
        }
        let Growing { device, fs, file, .. } = bed.it;
        drop(file);
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// A last close and an unmount leave nothing to the threads.
#[test]
fn s_301_what_threads_have_not_written_an_unmount_writes() {
    let mut bed = Bed::new(IoMode::Concurrent);
    bed.fill_hands();
    (0..2).for_each(|round| bed.it.append(PIECE, 30 + round));
    let Bed { gate, it: Growing { device, fs, file, model } } = bed;
    scope(|scope| {
        scope.spawn(move || {
            drop(file);
            fs.unmount().unwrap();
        });
        sleep(Duration::from_millis(20));
        gate.open();
    });
    assert_sound(&device);
    let fs: FileSystem = mount_as(&device, IoMode::Concurrent);
    Growing::holds(&fs.open("/f", &OpenOptions::read_only()).unwrap(), &model, "after it");
}
