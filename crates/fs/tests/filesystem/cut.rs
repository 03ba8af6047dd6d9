//! Power cuts in the middle of a file's life: what was synced is there, what was not is old or new
//! or zero, and never another file's.

use std::sync::Arc;

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice, SimulatedOptions, Snapshot};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, File, FileSystem, IoMode, OpenOptions, RollbackOptions,
};

use crate::common::assert_sound;
use crate::support::{Random, Skewed, format, mount_as};

const VOLUME_BYTES: u64 = 40 << 20;
const SPAN: u64 = 60_000;
/// What the free space is filled with before the test, so that a stale block shows.
const STALE: u8 = 0xdb;

/// The file after an operation, and where in the device's log the operation ended.
struct State {
    bytes: Vec<u8>,
    /// Operations in the device's log when it began and when it had returned.
    began: usize,
    ended: usize,
    /// Everything up to here was durable when it returned.
    synced: bool,
    what: String,
}

struct Life {
    device: Arc<SimulatedDevice>,
    file: File,
    random: Random,
    bytes: Vec<u8>,
    fill: u8,
    states: Vec<State>,
}

impl Life {
    fn step(&mut self) {
        let began = self.device.operation_count();
        let (what, synced) = match self.random.below(16) {
            0..=4 => self.write(),
            5..=9 => self.append(),
            10 => self.overwrite_tail(),
            11 => self.set_size(),
            12 => self.allocate(AllocateMode::PunchHole),
            13 => self.allocate(AllocateMode::ZeroRange { keep_size: true }),
            14 => self.allocate(AllocateMode::Preallocate { keep_size: true }),
            _ => {
                self.file.sync_data().expect("the device is sound");
                ("sync".to_owned(), true)
            }
        };
        let ended = self.device.operation_count();
        self.states.push(State { bytes: self.bytes.clone(), began, ended, synced, what });
    }

    fn put(&mut self, offset: u64, len: usize) -> (String, bool) {
        self.fill = if self.fill >= 200 { 1 } else { self.fill + 1 };
        let mut data = Skewed::new(len, 0);
        data.bytes().fill(self.fill);
        self.file.write_at(data.bytes(), offset).expect("there is room");
        let end = offset as usize + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].fill(self.fill);
        let synced = self.random.chance(2);
        if synced {
            self.file.sync_data().expect("the device is sound");
        }
        (format!("write {offset}+{len} of {}, synced {synced}", self.fill), synced)
    }

    fn len(&mut self) -> usize {
        let unit = [100, 512, 4096, 8192][self.random.below(4) as usize];
        ((1 + self.random.below(2)) * unit) as usize
    }

    fn write(&mut self) -> (String, bool) {
        let unit = [1, 512, 4096, 4096][self.random.below(4) as usize];
        let (offset, len) = (self.random.below(SPAN) / unit * unit, self.len());
        self.put(offset, len)
    }

    fn append(&mut self) -> (String, bool) {
        let len = self.len();
        self.put(self.bytes.len() as u64, len)
    }

    /// Changes what a record that is not sealed has just exposed (I-IO-3).
    fn overwrite_tail(&mut self) -> (String, bool) {
        let back = self.random.below(3000);
        let offset = (self.bytes.len() as u64).saturating_sub(back);
        let len = self.len();
        self.put(offset, len)
    }

    fn set_size(&mut self) -> (String, bool) {
        let size = self.random.below(SPAN);
        self.file.set_size(size).expect("it fits");
        self.bytes.resize(size as usize, 0);
        (format!("set_size {size}"), false)
    }

    fn allocate(&mut self, mode: AllocateMode) -> (String, bool) {
        let (offset, len) = (self.random.below(SPAN), self.len() as u64);
        self.file.allocate(mode, offset, len).expect("there is room");
        if !matches!(mode, AllocateMode::Preallocate { .. }) {
            let size = self.bytes.len() as u64;
            self.bytes[offset.min(size) as usize..(offset + len).min(size) as usize].fill(0);
        }
        (format!("{mode:?} {offset}+{len}"), false)
    }
}

/// I-IO-3, I-IO-4, I-IO-5: what a cut shows when bytes vouched for are overwritten, tails are
/// stale, or an end moves under the shared lock. Checks a file after a power cut behind `after`
/// device operations.
fn judge(states: &[State], after: usize, found: &[u8], context: &str) {
    let last_synced =
        states.iter().rposition(|state| state.synced && state.ended <= after).unwrap_or(0);
    let possible: Vec<&State> =
        states[last_synced..].iter().take_while(|state| state.began <= after).collect();
    let trace = || {
        possible
            .iter()
            .map(|state| format!("{} -> {} bytes", state.what, state.bytes.len()))
            .collect::<Vec<_>>()
            .join("\n")
    };
    // A write that was cut off may have grown the file by a part of it only when it is carried out
    // in parts; one record makes it all or nothing.
    let sizes: Vec<usize> = possible.iter().map(|state| state.bytes.len()).collect();
    assert!(
        sizes.contains(&found.len()),
        "S-1, S-5: size {} is none of {sizes:?}; {context}\n{}",
        found.len(),
        trace()
    );
    for (at, byte) in found.iter().enumerate() {
        let expected = possible
            .iter()
            .any(|state| state.bytes.get(at).map_or(*byte == 0, |held| held == byte));
        assert!(expected, "S-1, S-9, S-10: byte {at} is {byte:#x}; {context}\n{}", trace());
    }
}

fn power_cuts(mode: IoMode, block: u32, seed: u64, volatile_cache: bool) {
    cuts_under(mode, block, (seed, false), volatile_cache);
}

/// `summed`: the blocks of the file have checksums, and each is compared after each cut.
fn cuts_under(mode: IoMode, block: u32, (seed, summed): (u64, bool), volatile_cache: bool) {
    let options = SimulatedOptions { seed, ..SimulatedOptions::default() };
    let geometry = bedplate_block::Geometry { volatile_cache, ..options.geometry };
    let mut base = Snapshot::empty(VOLUME_BYTES);
    let stale = vec![STALE; 1 << 20];
    (0..VOLUME_BYTES >> 20).for_each(|mib| base.write(&stale, mib << 20));
    let device = SimulatedDevice::over(&base, &SimulatedOptions { geometry, ..options });
    let plain: Arc<dyn BlockDevice> = device.clone();
    format(&plain, block);
    let fs = mount_as(&plain, mode);
    let file = fs.open("/file", &OpenOptions::create()).expect("it opens");
    fs.set_integrity(file.ino(), summed).expect("the format has checksums");
    fs.sync().expect("a sync succeeds");
    let now = device.operation_count();
    let first =
        State { bytes: Vec::new(), began: now, ended: now, synced: true, what: "create".into() };
    let mut life = Life {
        device: Arc::clone(&device),
        file,
        random: Random::new(seed),
        bytes: Vec::new(),
        fill: 0,
        states: vec![first],
    };
    for _ in 0..50 {
        life.step();
    }
    let Life { states, file, .. } = life;
    let end = states.last().expect("there are some").ended;
    for after in now..=end {
        for choice in [
            CrashChoice::LoseAll,
            CrashChoice::KeepAll,
            CrashChoice::Seeded(seed * 1000 + after as u64),
        ] {
            if after % 3 != 0 && choice != CrashChoice::Seeded(seed * 1000 + after as u64) {
                continue;
            }
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
            let fs = mount_as(&image, IoMode::Concurrent);
            let file = fs.open("/file", &OpenOptions::read_only()).expect("the file is there");
            let mut found = vec![0; file.size() as usize];
            file.read_at(&mut found, 0).expect("it reads");
            judge(
                &states,
                after,
                &found,
                &format!(
                    "mode {mode} block {block} seed {seed} cut after {after} of {end}, {choice:?}"
                ),
            );
            drop(file);
            fs.unmount().expect("it unmounts");
            assert_sound(&image);
            let report = FileSystem::check_data(&image, None).expect("it is looked at");
            assert!(report.findings.is_empty(), "S-283: {:#?}", report.findings);
        }
    }
    drop((file, fs));
}

#[test]
fn concurrent_files_survive_power_cuts() {
    power_cuts(IoMode::Concurrent, 4096, 1, true);
    power_cuts(IoMode::Concurrent, 512, 2, true);
}

#[test]
fn direct_files_with_large_blocks_survive_power_cuts() {
    power_cuts(IoMode::Direct, 16_384, 3, true);
}

#[test]
fn cached_files_survive_power_cuts() {
    power_cuts(IoMode::Cached, 4096, 4, true);
}

#[test]
fn files_survive_power_cuts_of_a_device_without_a_cache() {
    power_cuts(IoMode::ConcurrentCache, 4096, 5, false);
}

/// S-283, I-SUM-3: what a cut leaves of blocks with checksums is what these are of. The checksum of a block in
/// which a file ends once vouched for bytes behind the end that no record had exposed; and blocks
/// that were to read as zeros were written while a crash would still find them summed.
#[test]
fn s_283_blocks_with_checksums_survive_power_cuts() {
    cuts_under(IoMode::Concurrent, 4096, (6, true), true);
    cuts_under(IoMode::Direct, 512, (7, true), true);
    cuts_under(IoMode::Cached, 4096, (4, true), true);
    cuts_under(IoMode::ConcurrentCache, 8192, (8, true), false);
}

/// S-56: a rollback that had returned is there after a power cut that takes everything the device
/// had not flushed.
#[test]
fn s_56_a_rollback_that_returned_survives_a_power_cut() {
    let device =
        SimulatedDevice::over(&Snapshot::empty(VOLUME_BYTES), &SimulatedOptions::default());
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared, 4096);
    let fs = mount_as(&shared, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let all = RollbackOptions::default();
    let of_one = RollbackOptions { path: Some("/file".into()), ..RollbackOptions::default() };
    for (number, options) in [all, of_one].into_iter().enumerate() {
        let name = format!("then{number}");
        file.write_at(&[1; 8192], 0).unwrap();
        fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
        file.write_at(&[2; 8192], 0).unwrap();
        file.sync_all().unwrap();
        fs.rollback(&name, &RollbackOptions { force: true, ..options }).unwrap();
        let image: Arc<dyn BlockDevice> =
            device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
        let after = mount_as(&image, IoMode::Concurrent);
        let mut bytes = [0; 8192];
        after.open("/file", &OpenOptions::read_only()).unwrap().read_at(&mut bytes, 0).unwrap();
        assert!(bytes == [1; 8192], "what was rolled back came again: {}", bytes[0]);
        after.unmount().unwrap();
        assert_sound(&image);
    }
    drop(file);
    fs.unmount().unwrap();
}

/// S-50, S-54: a checkpoint whose creation a power cut ended is not there, or shows what was
/// written in place before it, although nothing of that had been synced: each write alone arrives.
#[test]
fn s_50_s_54_a_checkpoint_that_a_cut_left_shows_what_was_written_before_it() {
    let device = SimulatedDevice::new(VOLUME_BYTES, 3);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    format(&shared, 4096);
    let fs = mount_as(&shared, IoMode::Direct);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let page = |fill: u8| {
        let mut page = bedplate_block::AlignedBuf::zeroed(4096);
        page.fill(fill);
        page
    };
    file.write_at(&page(1), 0).unwrap();
    fs.sync().unwrap();
    let place = || file.extents().unwrap()[0].volume_offset;
    let before = place();
    file.write_at(&page(2), 0).unwrap();
    assert_eq!(place(), before, "it is written in place");
    let first = device.operation_count();
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    let last = device.operation_count();
    drop((file, fs));
    let mut shown = 0;
    for after in first..=last {
        for kept in device.unflushed(after) {
            let image: Arc<dyn BlockDevice> =
                device.crash_image(after, &CrashChoice::Keep(vec![kept]));
            let fs = mount_as(&image, IoMode::Direct);
            if fs.checkpoints().is_empty() {
                continue;
            }
            let old = fs.open("/.checkpoints/c/file", &OpenOptions::read_only()).unwrap();
            let mut read = page(0);
            old.read_at(&mut read, 0).unwrap();
            assert_eq!(read[0], 2, "cut after {after}, only operation {kept} arrived");
            shown += 1;
        }
    }
    assert!(shown > 0, "a record arrived before its creation returned");
}
