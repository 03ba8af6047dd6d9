//! Power cuts under a file that a process with a lease makes grow. The process is the protocol's own
//! code; its device is the file system's, so that a cut takes what it wrote too.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, SharedMemory, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_lease::{Direction, Io, Lease, Reader, Slots};

use crate::lease::{LeaseClient, LeaseProcess, Leases};
use crate::{File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions};

const VOLUME_BYTES: u64 = 40 << 20;
const BLOCK: u64 = 4096;
/// What the free space is filled with, so that a stale block shows.
const STALE: u8 = 0xdb;

struct Lives;

impl LeaseProcess for Lives {
    fn is_alive(&self) -> bool {
        true
    }

    fn has_thread_ended(&self, _: u32) -> bool {
        false
    }

    fn kill(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The file after an operation.
struct State {
    bytes: Vec<u8>,
    /// Operations in the device's log when it began and when it had returned.
    began: usize,
    ended: usize,
    synced: bool,
}

struct Life {
    fs: FileSystem,
    file: File,
    device: Arc<SimulatedDevice>,
    reader: Reader<SharedMemory>,
    slots: Slots<SharedMemory>,
    _client: Arc<LeaseClient>,
    random: u64,
    bytes: Vec<u8>,
    fill: u8,
    /// Writes that the process made by itself.
    direct: usize,
    states: Vec<State>,
}

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let mode = IoMode::Concurrent;
    let options =
        MountOptions { mode, sync_interval: Duration::from_secs(3600), ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut base = Snapshot::empty(VOLUME_BYTES);
        let stale = vec![STALE; 1 << 20];
        (0..VOLUME_BYTES >> 20).for_each(|mib| base.write(&stale, mib << 20));
        let options = SimulatedOptions { seed, ..SimulatedOptions::default() };
        let device = SimulatedDevice::over(&base, &options);
        let plain: Arc<dyn BlockDevice> = device.clone();
        FileSystem::format(&plain, None, &FormatOptions::default()).unwrap();
        let fs = mount(&plain);
        let leases = Arc::new(Leases::new(1, fs.state().grid().sector, VOLUME_BYTES).unwrap());
        assert!(fs.state().begin_leases(&leases));
        let watching = Arc::clone(&leases);
        fs.state().watch_epochs(move || watching.sharing_changed());
        leases.serve();
        fs.state().watch_log(leases.clone());
        let client = leases.attach(1, 0, Box::new(Lives)).unwrap();
        let slots = Slots::open(client.memory().clone()).unwrap();
        slots.claim(1, |_| false).unwrap();
        let file = fs.open("/file", &OpenOptions::create()).unwrap();
        fs.sync().unwrap();
        let now = device.operation_count();
        let first = State { bytes: Vec::new(), began: now, ended: now, synced: true };
        Self {
            file,
            device,
            reader: Reader::open(leases.memory().clone()).unwrap(),
            slots,
            _client: client,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            bytes: Vec::new(),
            fill: 0,
            direct: 0,
            states: vec![first],
            fs,
        }
    }

    fn below(&mut self, count: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % count
    }

    fn step(&mut self) {
        let began = self.device.operation_count();
        let end = self.bytes.len() as u64;
        let mut synced = false;
        match self.below(16) {
            0..=6 => {
                let blocks = 1 + self.below(3);
                self.write(end, blocks * BLOCK);
            }
            7..=8 => {
                let blocks = 1 + self.below(2);
                let at = self.below(end.max(BLOCK) / BLOCK) * BLOCK;
                self.write(at.min(end), blocks * BLOCK);
            }
            9 if self.below(4) == 0 => self.write(end, 512),
            9 => self.write(end, BLOCK),
            10 => self.mounted(end, BLOCK),
            11 => {
                let size = self.below(end / BLOCK + 2) * BLOCK;
                self.file.set_size(size).unwrap();
                self.bytes.resize(size as usize, 0);
            }
            12 => assert_eq!(self.file.size(), end, "S-354"),
            13 => {
                self.fs.sync().unwrap();
                synced = true;
            }
            _ => {
                self.file.sync_data().unwrap();
                synced = true;
            }
        }
        let ended = self.device.operation_count();
        self.states.push(State { bytes: self.bytes.clone(), began, ended, synced });
    }

    /// As a program writes: by itself where it can, after it has asked, and else through the mount.
    fn write(&mut self, offset: u64, len: u64) {
        let io = Io { direction: Direction::Write, offset, len };
        let lease = self.file.lease().unwrap();
        let is_written = self.begin(lease, io, self.next())
            || (self.reader.lacks_tail(&self.slots, lease, io)
                && self.file.lease_tail(self.slots.client(), offset, len).is_ok()
                && self.begin(lease, io, self.next()));
        if is_written {
            self.direct += 1;
            self.note(offset, len);
        } else {
            self.mounted(offset, len);
        }
    }

    fn begin(&self, lease: Lease, io: Io, fill: u8) -> bool {
        let Ok(permit) = self.reader.begin_growth(&self.slots, 0, lease, io, 0) else {
            return false;
        };
        let mut page = AlignedBuf::zeroed(io.len as usize);
        page.fill(fill);
        self.device.write_at(&page, permit.device_offset).unwrap();
        self.slots.wrote(lease.entry, permit.fills_to);
        self.slots.leave(0);
        true
    }

    fn mounted(&mut self, offset: u64, len: u64) {
        let mut page = AlignedBuf::zeroed(len as usize);
        page.fill(self.next());
        self.file.write_at(&page, offset).unwrap();
        self.note(offset, len);
    }

    fn next(&self) -> u8 {
        if self.fill >= 200 { 1 } else { self.fill + 1 }
    }

    fn note(&mut self, offset: u64, len: u64) {
        self.fill = self.next();
        let end = (offset + len) as usize;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].fill(self.fill);
    }
}

/// Checks a file after a power cut behind `after` device operations.
fn judge(states: &[State], after: usize, found: &[u8], context: &str) {
    let last = states.iter().rposition(|state| state.synced && state.ended <= after).unwrap_or(0);
    let possible: Vec<&State> =
        states[last..].iter().take_while(|state| state.began <= after).collect();
    let sizes: Vec<usize> = possible.iter().map(|state| state.bytes.len()).collect();
    assert!(sizes.contains(&found.len()), "S-355: {} is none of {sizes:?}; {context}", found.len());
    for (at, byte) in found.iter().enumerate() {
        let holds = |state: &&State| state.bytes.get(at).map_or(*byte == 0, |held| held == byte);
        assert!(possible.iter().any(holds), "S-356: byte {at} is {byte:#x}; {context}");
    }
}

/// S-355, S-356: after a power cut at any moment a file that a process made grow has what was synced,
/// ends where a write that had returned ended, and shows nothing that was not written there.
#[test]
fn s_356_a_power_cut_under_a_growing_file_shows_nothing_stale() {
    let mut direct = 0;
    for seed in 1..=3 {
        let mut life = Life::new(seed);
        let first = life.device.operation_count();
        (0..60).for_each(|_| life.step());
        let last = life.device.operation_count();
        direct += life.direct;
        for after in first..=last {
            let seeded = CrashChoice::Seeded(seed * 1000 + after as u64);
            let choices = [seeded, CrashChoice::LoseAll, CrashChoice::KeepAll];
            for choice in choices.into_iter().take(if after % 4 == 0 { 3 } else { 1 }) {
                let image: Arc<dyn BlockDevice> = life.device.crash_image(after, &choice);
                let fs = mount(&image);
                let file = fs.open("/file", &OpenOptions::read_only()).unwrap();
                let mut found = vec![0; file.size() as usize];
                file.read_at(&mut found, 0).unwrap();
                let context = format!("seed {seed}, cut after {after} of {last}, {choice:?}");
                judge(&life.states, after, &found, &context);
                drop(file);
                fs.unmount().unwrap();
                let report = FileSystem::check(&image, None, false).unwrap();
                assert!(report.findings.is_empty(), "S-356: {:#?}; {context}", report.findings);
            }
        }
    }
    assert!(direct > 60, "the process writes by itself: {direct} times");
}
