//! Recovery on devices that forget what was not flushed, cut at every moment of it; and the
//! metadata region's room.

use std::sync::OnceLock;

use bedplate_block::{
    CrashChoice, Fault, FaultRule, FlushFault, MemoryDevice, SimulatedDevice, Trigger,
};
use parking_lot::Mutex;

use super::*;
use crate::{FileSystem, FormatOptions, IoMode, Limits, OpenOptions};
use bedplate_store::{CHUNKS_INLINE, COPY_B, COPY_BYTES, LOG_BYTES_MIN, Lists};
use tap::{Moments, Tap};

#[path = "../../../store/src/log/tests/tap.rs"]
mod tap;

const BLOCK: u32 = 512;
const BLOCKS: u64 = 65_536;

/// A region without chunks on a volume of which only blocks for which `free` says so are free.
fn region(free: impl Fn(u64) -> bool) -> (Arc<dyn BlockDevice>, Arc<Allocator>, Region) {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(BLOCKS * u64::from(BLOCK));
    let (space, region) = region_on(&device, free);
    (device, space, region)
}

/// As [`region`], on a device.
fn region_on(
    device: &Arc<dyn BlockDevice>,
    free: impl Fn(u64) -> bool,
) -> (Arc<Allocator>, Region) {
    let block = u64::from(BLOCK);
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
        lists: Lists::default(),
        keeps_space: false,
        packs: false,
        sums: false,
        carries: false,
    };
    let used = |at: u64| {
        superblock
            .regions()
            .iter()
            .any(|region| (region.start..region.end()).contains(&(at * block)))
            || !free(at)
    };
    let mut claims = Claims::new(BLOCK, BLOCKS);
    for at in (0..BLOCKS).filter(|at| used(*at)) {
        claims.mark_used(Claim::new(BlockNo(at), 1, Owner::Region("a test"))).unwrap();
    }
    let space = Arc::new(claims.into_allocator(|ino| ino).unwrap());
    let region = Region::new(Arc::clone(device), superblock, false);
    region.set_grow(grow_from(&space, BLOCK));
    (space, region)
}

/// What had been found for a growth that is refused is free again at once, not only after the next
/// mount.
#[test]
fn a_growth_of_the_metadata_that_is_refused_gives_its_blocks_back() {
    // Room for the chunks, and not for their lists.
    let chunks = CHUNKS_INLINE as u64 + 40;
    let (_, space, region) = region(|at| at % 2 == 0 && (4096..4096 + 2 * chunks).contains(&at));
    let before = space.totals();
    let error = region.resize(chunks * u64::from(BLOCK)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert_eq!(
        space.totals(),
        before,
        "they are free again, and no more is kept from data than before"
    );
    assert!(region.superblock().chunks.is_empty());
}

/// I-REG-1, I-SB-1, I-SB-2: where nothing but single blocks is free, the region grows all the same,
/// and both copies of the superblock tell where it lies.
#[test]
fn i_reg_1_i_sb_1_i_sb_2_the_region_grows_into_single_blocks() {
    let block = u64::from(BLOCK);
    let (device, space, region) = region(|at| at % 2 == 0);
    let mut len = 0;
    for growth in [100, 28, 1, 29, 30, 5000] {
        len += growth * block;
        region.resize(len).unwrap();
        let found = Superblock::read(&device).unwrap();
        assert!(found.damage.is_empty() && found.bad_copy.is_none(), "{:?}", found.damage);
        assert_eq!(found.superblock, region.superblock());
        assert_eq!(found.superblock.chunks.len() as u64 * block, len, "a chunk for each block");
        assert_eq!(
            found.superblock.version(),
            if len <= CHUNKS_INLINE as u64 * block { 1 } else { 2 }
        );
    }
    let superblock = region.superblock();
    let reserved: u64 = superblock.regions().iter().map(|region| region.len / block).sum();
    assert_eq!(
        space.totals().free + reserved,
        BLOCKS / 2 + odd_blocks_of_regions(&superblock),
        "every block is free or belongs to one region"
    );
    let list = superblock.regions().last().unwrap().start;
    device.write_at(&bedplate_block::AlignedBuf::zeroed(BLOCK as usize), list).unwrap();
    let error = Superblock::read(&device).unwrap_err();
    assert!(
        error.kind == ErrorKind::Corrupt && error.message.contains("list of metadata chunks"),
        "S-36: {error}"
    );
}

/// I-REG-1: the tree's library wants zeros where its file grows. Where each superblock alone
/// arrives and nothing else that was not flushed, what it names is there: lists of chunks, and
/// zeros where other bytes were.
#[test]
fn i_reg_1_a_superblock_names_what_is_zeroed_and_durable() {
    let device = SimulatedDevice::new(BLOCKS * u64::from(BLOCK), 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let mut stale = bedplate_block::AlignedBuf::zeroed(1 << 20);
    stale.fill(0xdb);
    (0..shared.size_bytes()).step_by(1 << 20).for_each(|at| shared.write_at(&stale, at).unwrap());
    let (_, region) = region_on(&shared, |at| at % 2 == 0);
    region.update_superblock(|_| {}).unwrap();
    device.make_all_durable();
    // The second growth needs lists.
    let mut grown = 0;
    for blocks in [100, 300] {
        let start = device.operation_count();
        region.resize(blocks * u64::from(BLOCK)).unwrap();
        let end = device.operation_count();
        // The superblocks are written last.
        for after in (start..=end).filter(|after| after + 8 > end || after % 64 == 0) {
            let unflushed = device.unflushed(after);
            let choices = unflushed.into_iter().map(|kept| CrashChoice::Keep(vec![kept]));
            for choice in choices.chain([CrashChoice::LoseAll]) {
                let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
                let found = Superblock::read(&image).unwrap_or_else(|e| {
                    panic!("{blocks} blocks, cut after {after}, {choice:?}: {e}")
                });
                // I-SB-1: one that is a write behind is no damage.
                assert!(found.damage.is_empty(), "{:?}", found.damage);
                let len = found.superblock.metadata_len;
                let mut bytes = vec![1; len as usize];
                Region::new(image, found.superblock, true).read(0, &mut bytes).unwrap();
                let what = format!("{blocks} blocks, cut after {after}, {choice:?}");
                assert!(bytes.iter().all(|byte| *byte == 0), "{what}");
                grown += u64::from(len == blocks * u64::from(BLOCK));
            }
        }
    }
    assert!(grown > 2, "both copies, at both growths");
}

/// Blocks with odd numbers that belong to the volume itself: nothing of what grew does.
fn odd_blocks_of_regions(superblock: &Superblock) -> u64 {
    let block = u64::from(BLOCK);
    superblock
        .regions()
        .iter()
        .map(|region| {
            (region.start / block..region.end() / block).filter(|at| at % 2 == 1).count() as u64
        })
        .sum()
}

/// I-META-5, S-34: on a volume whose free space is single blocks the metadata grows past the chunks
/// that a superblock holds. Where it cannot grow any more changes are refused and nothing latches;
/// a larger volume takes them again.
#[test]
fn i_meta_5_s_34_metadata_that_cannot_grow_refuses_changes_and_latches_nothing() {
    let device = SimulatedDevice::new(4 * VOLUME, 1);
    device.start_smaller(40 << 20);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    FileSystem::format(
        &shared,
        None,
        &FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() },
    )
    .unwrap();
    let fs = FileSystem::mount(Arc::clone(&shared), None, quiet()).unwrap();
    let file = fs.open("/holes", &OpenOptions::create()).unwrap();
    let part = bedplate_block::AlignedBuf::zeroed(1 << 20);
    let full = (0..).step_by(part.len()).find(|at| file.write_at(&part, *at).is_err()).unwrap();
    for at in (0..full).step_by(8192) {
        file.allocate(crate::AllocateMode::PunchHole, at, 4096).unwrap();
    }
    fs.sync().unwrap();
    let set = |i: u32| {
        fs.set_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes(), &[7; 60_000], false, false)
    };
    let (refused, error) = (0..5000).find_map(|i| set(i).err().map(|e| (i, e))).unwrap();
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert!(
        fs.state().superblock().chunks.len() > CHUNKS_INLINE,
        "{:?}",
        fs.state().superblock().chunks.len()
    );
    assert_eq!(fs.info().failed, None);
    assert_eq!(fs.info().version, 6);
    // What the log has no room for is not durable, and a sync says so.
    assert!(fs.sync().map_or_else(|e| e.kind == ErrorKind::NoSpace, |()| true));
    assert!(
        fs.get_xattr(InodeNo::ROOT, b"user.0").is_ok()
            && fs.get_xattr(InodeNo::ROOT, format!("user.{}", refused - 1).as_bytes()).is_ok()
    );
    device.grow(4 * VOLUME);
    fs.grow().unwrap();
    fs.sync().unwrap();
    (refused..refused + 20).for_each(|i| set(i).unwrap());
    // S-400: the lists of its chunks name the volume.
    let identity = fs.renew_identity().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let report = FileSystem::check(&shared, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let fs = FileSystem::mount(shared, None, quiet()).unwrap();
    assert_eq!(fs.info().uuid, identity);
    assert!(
        (0..refused + 20)
            .all(|i| fs.get_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes()).is_ok())
    );
}

const VOLUME: u64 = 64 << 20;
const LOG: u64 = 32 << 20;

fn quiet() -> MountOptions {
    MountOptions {
        sync_interval: std::time::Duration::from_secs(86_400),
        mode: IoMode::Direct,
        ..MountOptions::default()
    }
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
        FileSystem::format(&shared(&pair.data), pair.log.as_ref().map(shared).as_ref(), &options)
            .unwrap();
        pair
    }

    fn mount(&self) -> FileSystem {
        self.moments.restart();
        let data = Tap::over(Arc::clone(&self.data), &self.moments, false);
        let log = self.log.as_ref().map(|log| Tap::over(Arc::clone(log), &self.moments, false));
        self.moments.note();
        FileSystem::mount(data, log, quiet()).unwrap()
    }

    /// What a cut at a moment of the last mount leaves: of the data device what `choice` says, of
    /// the log's own nothing that was not flushed.
    fn cut(
        &self,
        moment: usize,
        choice: &CrashChoice,
    ) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        let at = self.moments.at(moment);
        let log = self
            .log
            .as_ref()
            .map(|log| log.crash_image(at[1], &CrashChoice::LoseAll) as Arc<dyn BlockDevice>);
        (self.data.crash_image(at[0], choice), log)
    }

    fn capacity(fs: &FileSystem) -> u64 {
        fs.state().superblock().chunks.iter().map(|chunk| chunk.len).sum()
    }
}

/// Writes at least so many bytes, in records whose data replay checks.
fn write(fs: &FileSystem, path: &str, len: u64, fill: u8) {
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    let mut part = bedplate_block::AlignedBuf::zeroed(128 << 10);
    part.fill(fill);
    for at in (0..len).step_by(part.len()) {
        file.write_at(&part, at).unwrap();
    }
}

fn assert_holds(fs: &FileSystem, path: &str, fill: u8, context: &str) {
    let Ok(file) = fs.open(path, &OpenOptions::read_only()) else { return };
    let mut bytes = bedplate_block::AlignedBuf::zeroed(usize::try_from(file.size()).unwrap());
    file.read_at(&mut bytes, 0).unwrap();
    let wrong = bytes.iter().position(|byte| *byte != fill);
    assert_eq!(wrong, None, "{context}: '{path}' of {} bytes is damaged at this byte", bytes.len());
}

/// Adds so many rows that the tree must grow for them, and removes the file whose blocks suit that
/// growth best.
fn remove_and_outgrow(fs: &FileSystem, path: &str) {
    fs.unlink(InodeNo::ROOT, path.trim_start_matches('/').as_bytes()).unwrap();
    let rows = Pair::capacity(fs) / 60_000 + 4;
    (0..rows).for_each(|i| {
        fs.set_xattr(InodeNo::ROOT, format!("user.{i}").as_bytes(), &[7; 60_000], false, false)
            .unwrap();
    });
}

/// Judges what cuts at some fifty moments of the last mount leave.
fn check_cuts(pair: &Pair, mut judge: impl FnMut(&FileSystem, &str)) {
    let count = pair.moments.count();
    for moment in (0..count).step_by(1 + count / 50) {
        let choice =
            [CrashChoice::KeepAll, CrashChoice::LoseAll, CrashChoice::Seeded(moment as u64)]
                [moment % 3]
                .clone();
        let context = format!("cut at moment {moment}, {choice:?}");
        let (data, log) = pair.cut(moment, &choice);
        let fs = FileSystem::mount(data, log, quiet()).unwrap_or_else(|e| panic!("{context}: {e}"));
        judge(&fs, &context);
    }
}

/// I-REC-1, I-META-3, S-1, S-37: a process is killed between a log write and its flush, and the
/// recovery lets the metadata region grow into blocks that the log write frees. A power cut then
/// takes the log write back: the file that it removed is there, and whole.
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

/// I-REC-2, S-3, S-37: what was written and removed again before one sync is checked by every
/// replay until the tree holds the removal. Would a recovery that is cut short have used its
/// blocks, the next one would end before everything that was synced with it.
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
        assert!(
            fs.get_xattr(InodeNo::ROOT, b"user.3").is_ok(),
            "{context}: what was synced is gone"
        );
    });
}

/// Cuts the power between any two records of a truncation that takes several, each durable before
/// the next one; what recovery does not end is the error.
fn cut_between_the_records_of_a_truncation() -> std::result::Result<usize, String> {
    let device = SimulatedDevice::new(VOLUME, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    FileSystem::format(&shared, None, &FormatOptions::default()).unwrap();
    let (cuts, mounted) =
        (Arc::new(Mutex::new(Vec::new())), Arc::new(OnceLock::<std::sync::Weak<Engine>>::new()));
    let between = {
        let (device, cuts, mounted) =
            (Arc::clone(&device), Arc::clone(&cuts), Arc::clone(&mounted));
        move |_: &'static str| {
            let fs = mounted.get().and_then(std::sync::Weak::upgrade).unwrap();
            fs.sync_to(fs.last_lsn()).unwrap();
            cuts.lock().push(device.operation_count());
        }
    };
    let limits = Limits {
        extents_per_record: 4,
        between_records: Some(Arc::new(between)),
        ..Limits::default()
    };
    let fs = FileSystem::mount(shared, None, MountOptions { limits, ..quiet() }).unwrap();
    mounted.set(Arc::downgrade(fs.state())).unwrap();
    let file = fs.open("/long", &OpenOptions::create()).unwrap();
    let page = bedplate_block::AlignedBuf::zeroed(4096);
    (0..20).for_each(|i| file.write_at(&page, i * 8192).map(drop).unwrap());
    fs.sync().unwrap();
    file.set_size(4096).unwrap();
    for cut in cuts.lock().iter() {
        let image: Arc<dyn BlockDevice> = device.crash_image(*cut, &CrashChoice::LoseAll);
        let recovered = FileSystem::mount(Arc::clone(&image), None, quiet()).unwrap();
        let attr = recovered.lookup(InodeNo::ROOT, b"long").unwrap();
        if (attr.size, attr.allocated_bytes) != (4096, 4096) {
            return Err(format!(
                "cut after {cut}: {} bytes, {} of them allocated",
                attr.size, attr.allocated_bytes
            ));
        }
        recovered.unmount().unwrap();
        assert!(FileSystem::check(&image, None, false).unwrap().findings.is_empty());
    }
    let count = cuts.lock().len();
    Ok(count)
}

/// S-11, S-37: a truncation of which only some records survive a power cut is ended by recovery.
#[test]
fn s_11_s_37_a_truncation_that_was_cut_is_ended_by_recovery() {
    assert_eq!(cut_between_the_records_of_a_truncation(), Ok(4));
}

/// Without its mark recovery does not know of it, and blocks beyond the new end stay with the file.
#[test]
fn a_truncation_without_its_mark_is_found() {
    crate::plant(Some(crate::PlantedBug::TruncationNotMarked));
    let found = cut_between_the_records_of_a_truncation();
    crate::plant(None);
    println!("TruncationNotMarked: {}", found.expect_err("TruncationNotMarked went unnoticed"));
}
