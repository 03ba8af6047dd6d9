//! Asynchronous requests under leases: what needs a file alone waits for them, and not for the
//! process that began them.

use std::sync::atomic::AtomicU64;

use super::*;

/// The kernel, as far as it counts: how many requests have ended, and whether the memory of the
/// process is gone.
#[derive(Clone, Default)]
struct Kernel {
    ended: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl LeaseRequests for Kernel {
    fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}

/// A process that makes asynchronous requests.
struct Asker {
    client: Client,
    kernel: Kernel,
}

impl Asker {
    fn attach(fs: &FileSystem) -> Self {
        let (client, kernel) = (Client::attach(fs), Kernel::default());
        client.client.set_requests(kernel.clone());
        Self { client, kernel }
    }

    /// Begins a write of a block, and returns where it goes; nothing of the client's waits for it.
    fn begin(&self, lease: Lease, block: usize) -> Result<u64, Fallback> {
        let at = self.client.begin(lease, Direction::Write, block)?;
        self.client.slots.begin_requests(lease.entry, 1);
        self.client.slots.touch(lease.entry);
        self.client.slots.leave(self.client.slot);
        Ok(at)
    }

    /// The kernel makes it.
    fn end(&self, at: u64, byte: u8) {
        self.client.device.write_all_at(&aligned(byte), at).unwrap();
        self.kernel.ended.fetch_add(1, SeqCst);
    }
}

/// What happens while something waits; what it waits for then ends it.
fn waits(volume: &Volume, what: impl FnOnce() + Send + 'static, end: impl FnOnce()) {
    let doing = std::thread::spawn(what);
    let deadline = Instant::now() + Duration::from_secs(10);
    while volume.fs.lease_report().unwrap().waits.is_empty() {
        assert!(!doing.is_finished(), "S-362: it waits for the request");
        assert!(Instant::now() < deadline, "S-211: the wait is told of");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!doing.is_finished(), "S-362");
    end();
    doing.join().unwrap();
}

/// S-362: blocks that a truncation frees, and blocks that a checkpoint keeps, are not written by a
/// request that began before; the program need not collect it, and need not have the file open.
#[test]
fn s_362_what_needs_a_file_alone_waits_for_requests_in_flight() {
    let volume = Volume::new();
    let file = Arc::new(volume.filled("f", 8));
    let asker = Asker::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let at = asker.begin(lease, 6).unwrap();
    let cut = {
        let file = Arc::clone(&file);
        move || file.set_size(4 * BLOCK as u64).unwrap()
    };
    waits(&volume, cut, || {
        assert!(asker.client.slots.is_paused(), "S-362: its requests go to the mount meanwhile");
        assert_eq!(asker.begin(lease, 0), Err(Fallback::Revoked));
        asker.end(at, 9);
    });
    assert!(!asker.client.slots.is_paused());
    let at = asker.begin(lease, 1).unwrap();
    let fs = volume.fs.clone();
    let make = move || drop(fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap());
    waits(&volume, make, || asker.end(at, 9));
    assert_eq!(read(&file, 1), 9);
    // The last open ends with a request in flight.
    let (other, lease) = {
        let other = volume.filled("g", 2);
        let lease = other.lease().unwrap();
        (other, lease)
    };
    let at = asker.begin(lease, 0).unwrap();
    waits(&volume, move || drop(other), || asker.end(at, 9));
    assert_eq!(volume.fs.lease_report().unwrap().request_waits, 3);
    drop(file);
    volume.end();
}

/// S-362: requests on other files hold nothing up for longer than those in flight at that moment
/// take, and a file without any is not waited for at all.
#[test]
fn s_362_requests_on_other_files_are_not_waited_for() {
    let volume = Volume::new();
    let (file, other) = (volume.filled("f", 8), volume.filled("g", 8));
    let asker = Asker::attach(&volume.fs);
    let (lease, lease_of_other) = (file.lease().unwrap(), other.lease().unwrap());
    let at = asker.begin(lease_of_other, 0).unwrap();
    file.set_size(4 * BLOCK as u64).unwrap();
    assert_eq!(volume.fs.lease_report().unwrap().request_waits, 0);
    // Collected: it has ended, whatever else is in flight.
    let first = asker.begin(lease, 1).unwrap();
    asker.end(first, 7);
    asker.client.slots.collect_request(lease.entry, 1);
    file.set_size(3 * BLOCK as u64).unwrap();
    assert_eq!(volume.fs.lease_report().unwrap().request_waits, 0);
    asker.end(at, 7);
    drop((file, other));
    volume.end();
}

/// S-363: requests of a process that has ended are waited for; what the process could not count any
/// more is settled by the end of its memory.
#[test]
fn s_363_requests_outlive_their_process() {
    let volume = Volume::new();
    let file = Arc::new(volume.filled("f", 8));
    let asker = Asker::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let at = asker.begin(lease, 6).unwrap();
    asker.client.alive.store(false, SeqCst);
    assert!(asker.client.client.has_requests(), "S-363: the front end keeps it");
    let cut = |blocks: usize| {
        let file = Arc::clone(&file);
        move || file.set_size((blocks * BLOCK) as u64).unwrap()
    };
    waits(&volume, cut(5), || asker.end(at, 9));
    assert!(!asker.client.client.has_requests());
    // It was killed between the kernel's taking a request, or not, and its own counting.
    let asker = Asker::attach(&volume.fs);
    asker.begin(lease, 1).unwrap();
    asker.client.alive.store(false, SeqCst);
    waits(&volume, cut(1), || asker.kernel.over.store(true, SeqCst));
    assert!(!asker.client.client.has_requests());
    drop(file);
    volume.end();
}

/// S-364: a write that ended after its time was noted is noted again, collected or not.
#[test]
fn s_364_the_time_of_a_write_is_not_before_its_end() {
    let volume = Volume::new();
    let file = volume.filled("f", 8);
    let asker = Asker::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let at = asker.begin(lease, 1).unwrap();
    assert!(volume.fs.leased_writes().contains(&file.ino()));
    assert!(volume.fs.leased_writes().is_empty());
    let noted = file.attr().unwrap().mtime;
    std::thread::sleep(Duration::from_millis(5));
    asker.end(at, 9);
    // Something takes the file back, which is when it is seen that nothing collected the write.
    file.set_size(7 * BLOCK as u64).unwrap();
    let cut = file.attr().unwrap().mtime;
    assert!(volume.fs.leased_writes().contains(&file.ino()), "S-364");
    assert!(noted < cut && cut <= file.attr().unwrap().mtime, "S-364");
    drop(file);
    volume.end();
}

/// S-362: the end of the mount waits for requests too.
#[test]
fn s_362_an_unmount_waits_for_requests() {
    let volume = Volume::new();
    let file = volume.filled("f", 8);
    let asker = Asker::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let at = asker.begin(lease, 1).unwrap();
    let Volume { fs, device, _dir } = volume;
    // The file stays open, so that the end of the mount is the first to wait.
    let looking = fs.clone();
    let ending = std::thread::spawn(move || drop((fs.unmount(), file)));
    let deadline = Instant::now() + Duration::from_secs(10);
    while looking.lease_report().is_some_and(|report| report.waits.is_empty()) {
        assert!(Instant::now() < deadline && !ending.is_finished(), "S-362: it waits");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(looking);
    asker.end(at, 9);
    ending.join().unwrap();
    let mut block = aligned(0);
    device.read_at(&mut block, at).unwrap();
    assert_eq!(block[0], 9);
}
