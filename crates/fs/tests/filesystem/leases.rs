//! Leases: a client that reads and writes the device by itself, beside everything that the file
//! system does with the same files. The client here is the protocol's own code on a descriptor of
//! its own, as the library for programs has it.

mod appends;
mod odd;
mod overwrites;
mod pages;
mod requests;
mod resting;
mod tail;

use std::fs::File as Descriptor;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions, SharedMemory};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, FormatOptions, IoMode,
    LeaseClient, LeaseProcess, LeaseRequests, MountOptions, OpenOptions, SetAttr, Timestamp,
};
use bedplate_lease::{Direction, Fallback, Io, Lease, Reader, Reason, Slots};

const BLOCK: usize = 4096;

/// A volume on an image, mounted in `concurrent` mode, that leases.
struct Volume {
    fs: FileSystem,
    device: Arc<dyn BlockDevice>,
    _dir: tempfile::TempDir,
}

impl Volume {
    fn new() -> Self {
        Self::synced_every(Duration::from_secs(3600))
    }

    fn synced_every(sync_interval: Duration) -> Self {
        let mode = IoMode::Concurrent;
        Self::with(MountOptions { mode, sync_interval, ..MountOptions::default() })
    }

    fn with(options: MountOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        bedplate_block::create_image(&path, 64 << 20, false).unwrap();
        let device = bedplate_block::open(&path, &DeviceOptions::default()).unwrap();
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        fs.lease_start(1).unwrap();
        Self { fs, device, _dir: dir }
    }

    fn open(&self, name: &str) -> File {
        self.fs.open(name, &OpenOptions::create()).unwrap()
    }

    /// A file of so many blocks, each filled with its number plus one, sealed.
    fn filled(&self, name: &str, blocks: usize) -> File {
        let file = self.open(name);
        (0..blocks).for_each(|block| write(&file, block, block as u8 + 1));
        self.seal();
        // Nothing vouches for its bytes by then, and the next write finds nothing but the lease.
        write(&file, 0, 1);
        file
    }

    /// Writes to a file until the volume is full; returns how many blocks that took.
    fn fill(&self) -> (File, u64) {
        let file = self.open("other");
        let mut block = 0;
        let full = loop {
            match file.write_at(&aligned(1), block * BLOCK as u64) {
                Ok(_) => block += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind, ErrorKind::NoSpace);
        (file, block)
    }

    /// Two rounds of the log: the second one seals what the first made durable.
    fn seal(&self) {
        for i in 0..3 {
            drop(self.fs.open(format!("seal-{i}"), &OpenOptions::create()).unwrap());
            self.fs.sync().unwrap();
        }
    }

    fn end(self) {
        let Self { fs, device, _dir } = self;
        fs.unmount().unwrap();
        let report = FileSystem::check(&device, None, false).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

fn aligned(byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCK);
    buf.fill(byte);
    buf
}

fn write(file: &File, block: usize, byte: u8) {
    file.write_at(&aligned(byte), (block * BLOCK) as u64).unwrap();
}

/// The byte that fills a block of a file, as the mount reads it.
fn read(file: &File, block: usize) -> u8 {
    let mut buf = aligned(0);
    assert_eq!(file.read_at(&mut buf, (block * BLOCK) as u64).unwrap(), BLOCK);
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a block of one byte");
    buf[0]
}

/// A process with leases, which is a thread here.
struct Client {
    reader: Reader<SharedMemory>,
    slots: Slots<SharedMemory>,
    slot: usize,
    device: Descriptor,
    client: Arc<LeaseClient>,
    alive: Arc<AtomicBool>,
}

/// The number of a thread that had been ended.
const ENDED_THREAD: u32 = 77;

/// A process that is alive while this says so, and can be ended.
struct Alive(Arc<AtomicBool>);

impl LeaseProcess for Alive {
    fn is_alive(&self) -> bool {
        self.0.load(SeqCst)
    }

    fn has_thread_ended(&self, thread: u32) -> bool {
        thread == ENDED_THREAD
    }

    fn kill(&self) -> std::io::Result<()> {
        self.0.store(false, SeqCst);
        Ok(())
    }
}

impl Client {
    fn attach(fs: &FileSystem) -> Self {
        let alive = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&alive);
        let client = fs.lease_attach(std::process::id(), 0, Alive(asked)).unwrap();
        let slots = Slots::open(client.memory().clone()).unwrap();
        Self {
            reader: Reader::open(fs.lease_memory().unwrap()).unwrap(),
            slot: slots.claim(1, |_| false).unwrap(),
            slots,
            device: fs.lease_device(false).unwrap().io.into(),
            client,
            alive,
        }
    }

    fn begin(&self, lease: Lease, direction: Direction, block: usize) -> Result<u64, Fallback> {
        let io = Io { direction, offset: (block * BLOCK) as u64, len: BLOCK as u64 };
        self.reader.begin_io(&self.slots, self.slot, lease, io).map(|permit| permit.device_offset)
    }

    /// Begins a write of parts of sectors; returns where its first sector lies.
    fn begin_odd(&self, lease: Lease, offset: u64, len: usize) -> Result<u64, Fallback> {
        let io = Io { direction: Direction::Write, offset, len: len as u64 };
        self.reader.begin_io(&self.slots, self.slot, lease, io).map(|permit| permit.device_offset)
    }

    /// Writes a byte of the first sector of a file, and the rest of it as it was.
    fn write_odd(&self, lease: Lease, offset: usize, byte: u8) -> Result<(), Fallback> {
        let at = self.begin_odd(lease, offset as u64, 1)?;
        let mut sector = AlignedBuf::zeroed(512);
        self.device.read_exact_at(&mut sector, at).unwrap();
        sector[offset] = byte;
        self.device.write_all_at(&sector, at).unwrap();
        self.end(lease, Direction::Write);
        Ok(())
    }

    fn end(&self, lease: Lease, direction: Direction) {
        if direction == Direction::Write {
            self.slots.touch(lease.entry);
        }
        self.slots.count_done(self.slot, direction);
        self.slots.leave(self.slot);
    }

    fn read(&self, lease: Lease, block: usize) -> Result<u8, Fallback> {
        let at = self.begin(lease, Direction::Read, block)?;
        let mut buf = aligned(0);
        self.device.read_exact_at(&mut buf, at).unwrap();
        self.end(lease, Direction::Read);
        Ok(buf[0])
    }

    fn write(&self, lease: Lease, block: usize, byte: u8) -> Result<(), Fallback> {
        let at = self.begin(lease, Direction::Write, block)?;
        self.device.write_all_at(&aligned(byte), at).unwrap();
        self.end(lease, Direction::Write);
        Ok(())
    }

    fn sync(&self, lease: Lease) -> Result<(), Fallback> {
        self.reader.begin_sync(&self.slots, self.slot, lease)?;
        self.device.sync_data().unwrap();
        self.end(lease, Direction::Sync);
        Ok(())
    }
}

/// Whether a write was refused because of what else needs the blocks.
fn refused(written: Result<(), Fallback>) -> bool {
    matches!(written, Err(Fallback::Shared | Fallback::Forbidden))
}

/// S-210: a program's aligned reads and writes of written blocks go to the device by themselves,
/// and the mount sees the same bytes.
#[test]
fn s_210_what_a_lease_reads_and_writes_is_what_the_mount_reads_and_writes() {
    let volume = Volume::new();
    let file = volume.filled("f", 8);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.reader.find(file.ino().0), Some(lease));
    (0..8).for_each(|block| assert_eq!(client.read(lease, block), Ok(block as u8 + 1)));
    client.write(lease, 3, 77).unwrap();
    client.sync(lease).unwrap();
    assert_eq!(read(&file, 3), 77);
    write(&file, 3, 78);
    assert_eq!(client.read(lease, 3), Ok(78));
    assert_eq!(client.read(lease, 8), Err(Fallback::BeyondSize));
    let report = volume.fs.lease_report().unwrap();
    assert_eq!(
        (report.clients[0].reads, report.clients[0].writes, report.clients[0].syncs),
        (9, 1, 1)
    );
    assert!(report.files[0].inode == file.ino() && report.files[0].handed_out);
    drop(file);
    assert!(volume.fs.lease_report().unwrap().files.is_empty(), "its last open has ended");
    assert_eq!(client.read(lease, 0), Err(Fallback::Revoked));
    volume.fs.lease_detach(&client.client);
    let file = volume.open("f");
    assert_eq!((read(&file, 2), read(&file, 3)), (3, 78));
    drop(file);
    volume.end();
}

/// S-211: what needs a file alone waits for a process that is in the midst of I/O, says so, and
/// goes on when the process does. Here the blocks that a truncation frees would be another file's
/// before the write reached them.
#[test]
fn s_211_a_truncation_waits_for_a_process_that_is_writing() {
    let volume = Volume::new();
    let file = Arc::new(volume.filled("f", 8));
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let at = client.begin(lease, Direction::Write, 6).unwrap();
    let cutting = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || file.set_size(4 * BLOCK as u64).unwrap())
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while volume.fs.lease_report().unwrap().waits.is_empty() {
        assert!(Instant::now() < deadline, "S-211: the wait is told of");
        assert!(!cutting.is_finished(), "S-211: it waits for the process");
        std::thread::sleep(Duration::from_millis(5));
    }
    let wait = volume.fs.lease_report().unwrap().waits[0].clone();
    assert!(wait.writes && wait.inode == Some(file.ino()) && wait.pid == std::process::id());
    let other = Client::attach(&volume.fs);
    assert_eq!(other.read(lease, 0), Err(Fallback::Revoked), "nothing begins meanwhile");
    assert!(!cutting.is_finished());
    client.device.write_all_at(&aligned(9), at).unwrap();
    client.end(lease, Direction::Write);
    cutting.join().unwrap();
    assert!(volume.fs.lease_report().unwrap().waits.is_empty());
    assert_eq!(client.read(lease, 3), Ok(4));
    assert_eq!(client.read(lease, 4), Err(Fallback::BeyondSize));
    file.set_size(8 * BLOCK as u64).unwrap();
    assert_eq!(client.read(lease, 4), Err(Fallback::Unmapped), "a hole now");
    drop(file);
    volume.end();
}

/// S-211: a process that was killed in the midst of I/O holds nothing up: its I/O ended with it.
#[test]
fn s_211_a_process_that_ended_is_not_waited_for() {
    let volume = Volume::new();
    let file = volume.filled("f", 8);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.begin(lease, Direction::Write, 6).unwrap();
    client.alive.store(false, SeqCst);
    file.set_size(0).unwrap();
    drop(file);
    volume.end();
}

/// S-211: a thread that was killed in the midst of I/O is not waited for although its process has
/// not ended: another thread of it may be in a request that waits here.
#[test]
fn s_211_a_thread_that_ended_is_not_waited_for() {
    let volume = Volume::new();
    let file = volume.filled("f", 8);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let slot = client.slots.claim(ENDED_THREAD, |_| false).unwrap();
    let io = Io { direction: Direction::Write, offset: 0, len: BLOCK as u64 };
    client.reader.begin_io(&client.slots, slot, lease, io).unwrap();
    file.set_size(0).unwrap();
    drop(file);
    volume.end();
}

/// S-172, I-LEA-2: what a checkpoint shows no process with a lease changes; after the first write
/// through the mount the file's own blocks are written directly again.
#[test]
fn s_172_a_checkpoint_keeps_what_leased_writes_would_change() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.write(lease, 0, 50).unwrap();
    volume.fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap();
    assert!(refused(client.write(lease, 0, 51)), "S-172");
    assert_eq!(client.read(lease, 0), Ok(50), "reading goes on");
    write(&file, 0, 52);
    volume.seal();
    // The map follows with the next look of the mount at the file.
    assert_eq!(read(&file, 0), 52);
    assert_eq!(client.read(lease, 0), Ok(52), "I-LEA-1: the block that took its place");
    client.write(lease, 0, 53).unwrap();
    assert_eq!(client.write(lease, 1, 54), Err(Fallback::Forbidden), "S-172: not its own");
    let past = volume.fs.open("/.checkpoints/before/f", &OpenOptions::read_only()).unwrap();
    assert_eq!((read(&past, 0), read(&past, 1)), (50, 2), "S-172");
    assert_eq!(past.lease(), Err(Reason::Kind));
    drop(past);
    volume.fs.delete_checkpoint("before").unwrap();
    assert!(refused(client.write(lease, 1, 54)), "until the map was made anew");
    assert_eq!(read(&file, 1), 2);
    client.write(lease, 1, 55).unwrap();
    assert_eq!((read(&file, 0), read(&file, 1)), (53, 55));
    drop(file);
    volume.end();
}

/// S-173, I-LEA-3: bytes that a record in the log vouches for are written by no process with a
/// lease until the record is sealed, so no recovery finds others there.
#[test]
fn s_173_new_blocks_are_written_directly_once_their_record_is_sealed() {
    let volume = Volume::new();
    let file = volume.open("f");
    write(&file, 0, 1);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.read(lease, 0), Ok(1));
    assert_eq!(client.sync(lease), Err(Fallback::Unsynced), "its record is not durable");
    assert_eq!(client.write(lease, 0, 2), Err(Fallback::Unsealed), "S-173");
    file.sync_data().unwrap();
    client.sync(lease).unwrap();
    volume.seal();
    client.write(lease, 0, 3).unwrap();
    write(&file, 1, 4);
    assert_eq!(client.sync(lease), Err(Fallback::Unsynced), "it grew");
    client.write(lease, 0, 5).unwrap();
    assert_eq!(client.write(lease, 1, 6), Err(Fallback::BeyondSize), "S-173");
    volume.seal();
    assert_eq!(read(&file, 1), 4);
    client.write(lease, 1, 7).unwrap();
    client.sync(lease).unwrap();
    assert_eq!((read(&file, 0), read(&file, 1)), (5, 7));
    drop(file);
    volume.end();
}

/// S-153: a file is leased only while the device is the only place that has its bytes.
#[test]
fn s_153_another_mode_takes_the_lease_and_only_asking_again_brings_it_back() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() };
    let other = volume.fs.open("f", &cached).unwrap();
    assert_eq!(client.read(lease, 0), Err(Fallback::Revoked), "S-153");
    assert_eq!(file.lease(), Err(Reason::Mode));
    write(&other, 0, 90);
    drop(other);
    assert_eq!(client.read(lease, 0), Err(Fallback::Revoked), "I-LEA-5");
    assert_eq!(file.lease(), Ok(lease));
    assert_eq!(client.read(lease, 0), Ok(90));
    file.suspend_lease();
    assert_eq!(client.read(lease, 0), Err(Fallback::Revoked));
    assert_eq!(file.lease(), Err(Reason::Suspended));
    drop(file);
    let file = volume.open("f");
    let again = file.lease().unwrap();
    assert_eq!(client.read(again, 0), Ok(90));
    volume.fs.set_untorn(file.ino(), Some(8192)).unwrap();
    assert!(refused(client.write(again, 0, 1)), "each write is a redirect now");
    drop(file);
    let file = volume.open("f");
    assert_eq!(file.lease(), Err(Reason::Untorn));
    drop(file);
    volume.end();
}

/// S-287: what has checksums is read and written by the mount, in a lease that was given before
/// too; and no lease is given of a file that gets them, or still has some.
#[test]
fn s_287_a_file_with_checksums_stays_on_the_mount() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    write(&file, 0, 7);
    volume.seal();
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.read(lease, 0), Ok(7));
    volume.fs.set_integrity(file.ino(), true).unwrap();
    assert!(refused(client.write(lease, 0, 1)), "each write is a redirect now");
    write(&file, 0, 8);
    file.sync_all().unwrap();
    assert!(client.read(lease, 0).is_err(), "the block has a checksum now");
    drop(file);
    let file = volume.open("f");
    assert_eq!(file.lease(), Err(Reason::Integrity));
    volume.fs.set_integrity(file.ino(), false).unwrap();
    assert_eq!(file.lease(), Err(Reason::Integrity), "the block still has one");
    write(&file, 0, 9);
    assert!(file.lease().is_ok());
    drop(file);
    volume.end();
}

/// S-153: an odd write that waits in memory for its sector keeps the file on the mount.
#[test]
fn s_153_held_bytes_are_written_before_a_lease_reads_past_them() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    file.write_at(&[200; 24], 10).unwrap();
    assert_eq!(client.read(lease, 0), Err(Fallback::Revoked), "S-153");
    file.sync_data().unwrap();
    let mut buf = aligned(0);
    let at = client.begin(lease, Direction::Read, 0).unwrap();
    client.device.read_exact_at(&mut buf, at).unwrap();
    client.end(lease, Direction::Read);
    assert!(buf[9] == 1 && buf[10..34] == [200; 24] && buf[34] == 1);
    // A copy of the sector that was held would bring the old bytes back with the next odd write.
    client.write(lease, 0, 7).unwrap();
    file.write_at(&[201; 24], 34).unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), BLOCK);
    assert!(buf[10..34] == [7; 24] && buf[34..58] == [201; 24] && buf[58] == 7, "S-153, I-LEA-4");
    drop(file);
    volume.end();
}

/// S-212: a flush that failed in a process with a lease counts for all.
#[test]
fn s_212_a_failed_flush_of_one_process_is_everybodys() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    volume.fs.lease_flush_failed(5);
    assert_eq!(file.sync_data().unwrap_err().kind, ErrorKind::Io, "S-212");
    assert_eq!(client.sync(lease), Err(Fallback::State));
    assert_eq!(client.read(lease, 0), Err(Fallback::State));
    assert_eq!(file.lease(), Err(Reason::State));
    assert!(file.allocate(AllocateMode::PunchHole, 0, 4096).is_err(), "S-33");
}

/// S-213: leased writes move the modification time, and one that was set stays.
#[test]
fn s_213_leased_writes_move_the_modification_time_once() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let time = |nanos| SetAttr { mtime: Some(Timestamp(nanos)), ..SetAttr::default() };
    volume.fs.set_attr(file.ino(), &time(1000)).unwrap();
    client.write(lease, 0, 2).unwrap();
    assert_eq!(volume.fs.leased_writes().into_iter().collect::<Vec<_>>(), [file.ino()]);
    assert!(volume.fs.attr(file.ino()).unwrap().mtime > Timestamp(1000), "S-213");
    client.write(lease, 0, 3).unwrap();
    volume.fs.set_attr(file.ino(), &time(2000)).unwrap();
    let _ = volume.fs.leased_writes();
    assert_eq!(volume.fs.attr(file.ino()).unwrap().mtime, Timestamp(2000), "S-213");
    client.read(lease, 0).unwrap();
    assert_eq!(volume.fs.attr(file.ino()).unwrap().mtime, Timestamp(2000));
    drop(file);
    volume.end();
}

/// What is told of leases never goes back when a process ends, and names every reason.
#[test]
fn s_215_what_processes_did_is_counted_when_they_have_ended_too() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let lease = file.lease().unwrap();
    for ended in 1..=2 {
        let client = Client::attach(&volume.fs);
        client.read(lease, 0).unwrap();
        client.write(lease, 1, 9).unwrap();
        client.sync(lease).unwrap();
        assert_eq!(client.read(lease, 1000), Err(Fallback::BeyondSize));
        volume.fs.lease_detach(&client.client);
        volume.fs.lease_detach(&client.client);
        let report = volume.fs.lease_report().unwrap();
        assert!(report.clients.is_empty());
        let total = report.total;
        assert_eq!((total.reads, total.writes, total.syncs), (ended, ended, ended), "S-215");
        let beyond = |(name, count): &(String, u64)| name == "beyond-size" && *count == ended;
        assert!(total.fallbacks.iter().any(beyond), "S-215: {:?}", total.fallbacks);
        assert_eq!(total.fallbacks.len(), Fallback::COUNT);
    }
    volume.fs.lease_refused(Some(file.ino()), Reason::Untorn);
    volume.fs.lease_refused(Some(file.ino()), Reason::Mode);
    let report = volume.fs.lease_report().unwrap();
    assert_eq!(report.refused_files.len(), 1);
    assert_eq!(report.refused_files[0].reason, Reason::Mode.sentence(), "S-215: the latest");
    assert!(report.total.refused.contains(&("untorn".to_owned(), 1)));
    drop(file);
    volume.end();
}

/// S-216: without `lease-kill=` a process that holds a file is waited for however long it takes;
/// with it, it is ended, and what waits goes on only once it has ended.
#[test]
fn s_216_a_process_that_holds_a_file_too_long_is_ended_where_that_is_wanted() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.begin(lease, Direction::Write, 0).unwrap();
    std::thread::scope(|scope| {
        let truncates = scope.spawn(|| file.set_size(BLOCK as u64).unwrap());
        // It is told of, which is later than it begins to wait.
        until(|| !volume.fs.lease_report().unwrap().waits.is_empty());
        assert!(!truncates.is_finished() && client.alive.load(SeqCst), "S-216: nothing was asked");
        assert_eq!(volume.fs.lease_report().unwrap().killed, 0);
        volume.fs.lease_kill_after(Some(Duration::from_secs(1)));
        truncates.join().unwrap();
        assert!(!client.alive.load(SeqCst), "S-216");
    });
    assert_eq!(volume.fs.lease_report().unwrap().killed, 1, "once");
    volume.fs.lease_detach(&client.client);
    drop(file);
    volume.end();
}

fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// S-214: without the request of a front end nothing is leased, and not where a device is shared
/// with a cache of the kernel or is in parts.
#[test]
fn s_214_nothing_is_leased_that_was_not_asked_for() {
    let device = crate::common::formatted();
    let fs = crate::common::mount(&device);
    let file = fs.open("f", &OpenOptions::create()).unwrap();
    assert_eq!(file.lease(), Err(Reason::Off));
    assert!(fs.lease_memory().is_none() && fs.lease_report().is_none());
    assert!(fs.lease_attach(1, 0, Alive(Arc::default())).is_err());
    assert_eq!(fs.lease_start(1).unwrap_err().kind, ErrorKind::Unsupported, "S-214");
    drop(file);
    fs.unmount().unwrap();
}
