//! Recovery on devices that forget what was not flushed, cut at every moment of it; and the metadata region's room.

use block::{CrashChoice, Fault, FaultRule, FlushFault, MemoryDevice, SimulatedDevice, Trigger};

use super::*;
use crate::log::tests::tap::{Moments, Tap};
use crate::superblock::{CHUNKS_MAX, COPY_B, COPY_BYTES, LOG_BYTES_MIN};
use crate::{FileSystem, FormatOptions, IoMode, OpenOptions};

const BLOCK: u32 = 65_536;
const BLOCKS: u64 = 1024;

/// A region that would have to lie in more chunks than a superblock holds does not grow, and what had been found for it is free again at once,
/// not only after the next mount.
#[test]
fn a_growth_of_the_metadata_that_is_refused_gives_its_blocks_back() {
    let block = u64::from(BLOCK);
    // Every other block is in use.
    let mut claims = Claims::new(BLOCK, BLOCKS);
    for at in (0..BLOCKS).step_by(2) {
        claims.mark_used(Claim::new(BlockNo(at), 1, Owner::Region("a test"))).expect("nobody else has it");
    }
    let space = Arc::new(claims.into_space(|ino| ino).expect("nothing is claimed twice"));
    let superblock = Superblock {
        uuid: [7; 16],
        generation: 1,
        block_size: BLOCK,
        size_bytes: BLOCKS * block,
        clean: false,
        log_separate: false,
        log: ByteRun { start: COPY_B + COPY_BYTES, len: LOG_BYTES_MIN },
        metadata_len: 0,
        chunks: Vec::new(),
    };
    let region = Region::new(MemoryDevice::new(BLOCKS * block), superblock, false);
    region.set_grow(grow_from(&space, BLOCK));
    let before = space.totals();
    let error = region.resize((CHUNKS_MAX as u64 + 1) * block).expect_err("there are too many runs");
    assert!(error.kind == ErrorKind::NoSpace && error.message.contains("too fragmented"), "{error}");
    assert_eq!(space.totals(), before, "they are free again, and no more is kept from data than before");
    assert!(region.superblock().chunks.is_empty());
}

const VOLUME: u64 = 64 << 20;
const LOG: u64 = 32 << 20;

fn quiet() -> MountOptions {
    MountOptions { sync_interval: std::time::Duration::from_secs(86_400), mode: IoMode::Direct, ..MountOptions::default() }
}

/// A data device and, perhaps, a log device, and the processes that mount them one after the other.
struct Pair {
    data: Arc<SimulatedDevice>,
    log: Option<Arc<SimulatedDevice>>,
    moments: Arc<Moments>,
}

impl Pair {
    fn formatted(separate: bool) -> Self {
        let data = SimulatedDevice::new(VOLUME, 1);
        let log = separate.then(|| SimulatedDevice::new(LOG, 2));
        let pair = Self { data, log, moments: Arc::default() };
        let shared = |device: &Arc<SimulatedDevice>| Arc::clone(device) as Arc<dyn BlockDevice>;
        let options = FormatOptions { log_bytes: Some(16 << 20), ..FormatOptions::default() };
        FileSystem::format(&shared(&pair.data), pair.log.as_ref().map(shared).as_ref(), &options).unwrap();
        pair
    }

    fn mount(&self) -> FileSystem {
        self.moments.restart();
        let data = Tap::over(Arc::clone(&self.data), &self.moments, false);
        let log = self.log.as_ref().map(|log| Tap::over(Arc::clone(log), &self.moments, false));
        self.moments.note();
        FileSystem::mount(data, log, quiet()).unwrap()
    }

    /// What a cut at a moment of the last mount leaves: of the data device what `choice` says, of the log's own nothing that was not flushed.
    fn cut(&self, moment: usize, choice: &CrashChoice) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        let at = self.moments.at(moment);
        let log = self.log.as_ref().map(|log| log.crash_image(at[1], &CrashChoice::LoseAll) as Arc<dyn BlockDevice>);
        (self.data.crash_image(at[0], choice), log)
    }

    fn capacity(fs: &FileSystem) -> u64 {
        fs.state().meta.region().superblock().chunks.iter().map(|chunk| chunk.len).sum()
    }
}

/// Writes at least so many bytes, in records whose data replay checks.
fn write(fs: &FileSystem, path: &str, len: u64, fill: u8) {
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    let mut part = block::AlignedBuf::zeroed(128 << 10);
    part.fill(fill);
    for at in (0..len).step_by(part.len()) {
        file.write_at(&part, at).unwrap();
    }
}

fn assert_holds(fs: &FileSystem, path: &str, fill: u8, context: &str) {
    let Ok(file) = fs.open(path, &OpenOptions::read_only()) else { return };
    let mut bytes = block::AlignedBuf::zeroed(usize::try_from(file.size()).unwrap());
    file.read_at(&mut bytes, 0).unwrap();
    let wrong = bytes.iter().position(|byte| *byte != fill);
    assert_eq!(wrong, None, "{context}: '{path}' of {} bytes is damaged at this byte", bytes.len());
}

/// Adds so many rows that the tree must grow for them, and removes the file whose blocks suit that growth best.
fn remove_and_outgrow(fs: &FileSystem, path: &str) {
    fs.unlink(InodeNo::ROOT, path.trim_start_matches('/').as_bytes()).unwrap();
    let rows = Pair::capacity(fs) / 60_000 + 4;
    (0..rows).for_each(|i| fs.set_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes(), &[7; 60_000], false, false).unwrap());
}

/// Judges what cuts at some fifty moments of the last mount leave.
fn check_cuts(pair: &Pair, mut judge: impl FnMut(&FileSystem, &str)) {
    let count = pair.moments.count();
    for moment in (0..count).step_by(1 + count / 50) {
        let choice = [CrashChoice::KeepAll, CrashChoice::LoseAll, CrashChoice::Seeded(moment as u64)][moment % 3].clone();
        let context = format!("cut at moment {moment}, {choice:?}");
        let (data, log) = pair.cut(moment, &choice);
        let fs = FileSystem::mount(data, log, quiet()).unwrap_or_else(|e| panic!("{context}: {e}"));
        judge(&fs, &context);
    }
}

/// I-REC-1, I-META-3, S-1, S-37: a process is killed between a log write and its flush, and the recovery lets the metadata region grow into blocks that
/// the log write frees. A power cut then takes the log write back: the file that it removed is there, and whole.
#[test]
fn i_rec_1_i_meta_3_s_1_s_37_recovery_relies_on_no_log_write_that_a_power_cut_may_take_back() {
    let pair = Pair::formatted(true);
    let fs = pair.mount();
    let len = Pair::capacity(&fs) + (256 << 10);
    for (path, len, fill) in [("/before", 1, 1), ("/kept", len, 0xa5), ("/behind", 1, 2)] {
        write(&fs, path, len, fill);
    }
    fs.unmount().unwrap();
    let fs = pair.mount();
    let before = Pair::capacity(&fs);
    remove_and_outgrow(&fs, "/kept");
    let log = pair.log.as_ref().unwrap();
    // Nothing comes of the flush, as if the process had ended before it.
    log.inject(FaultRule::new(Fault::Flush(FlushFault::Lose), Trigger::Always));
    fs.sync().unwrap();
    log.clear_faults();
    drop(fs);
    let fs = pair.mount();
    assert!(Pair::capacity(&fs) > before, "the metadata region grew during recovery");
    assert!(fs.open("/kept", &OpenOptions::read_only()).is_err(), "recovery found the log write");
    drop(fs);
    check_cuts(&pair, |fs, context| assert_holds(fs, "/kept", 0xa5, context));
}

/// I-REC-2, S-3, S-37: what was written and removed again before one sync is checked by every replay until the tree holds the removal. Would a recovery
/// that is cut short have used its blocks, the next one would end before everything that was synced with it.
#[test]
fn i_rec_2_s_3_s_37_recovery_does_not_use_what_a_further_replay_checks() {
    let pair = Pair::formatted(false);
    let fs = pair.mount();
    let len = Pair::capacity(&fs) + (256 << 10);
    write(&fs, "/before", 1, 1);
    fs.sync().unwrap();
    write(&fs, "/removed", len, 0xa5);
    write(&fs, "/behind", 1, 2);
    remove_and_outgrow(&fs, "/removed");
    let before = Pair::capacity(&fs);
    fs.sync().unwrap();
    drop(fs);
    let fs = pair.mount();
    assert!(Pair::capacity(&fs) > before, "the metadata region grew during recovery");
    drop(fs);
    check_cuts(&pair, |fs, context| {
        assert!(fs.lookup(InodeNo::ROOT, b"behind").is_ok(), "{context}: what was synced is gone");
        assert_holds(fs, "/behind", 2, context);
        assert!(fs.get_xattr(InodeNo::ROOT, b"user.3").is_ok(), "{context}: what was synced is gone");
    });
}
