//! Syncs that programs with leases ask for by ioctl.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use bedplate_block::{DeviceCall, Hook, HookedDevice, Result};

/// A device whose flushes take a while, and are counted.
#[derive(Debug, Default)]
struct SlowFlushes(AtomicU64);

impl Hook for SlowFlushes {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if matches!(call, DeviceCall::Flush) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        pass()
    }
}

const THREADS: usize = 8;
const WRITES: usize = 30;

/// What the library asks: `_IO(0xBE, 4)`.
const BEGIN: &str = "
import errno, fcntl, mmap, os, threading
fd = os.open(os.environ['F'], os.O_RDWR | os.O_APPEND | os.O_CREAT)
def refused(fd):
    try: fcntl.ioctl(fd, 0xBE04)
    except OSError as error: return error.errno == errno.ENOTTY
";

/// Appends blocks by several threads, each of which makes every block of its own durable with `sync`;
/// returns how many flushes of the device that took.
fn append(leasing: &Leasing, device: &HookedDevice<SlowFlushes>, sync: &str) -> u64 {
    let path = leasing.mounted.path(if sync.contains("ioctl") { "beside" } else { "in-turn" });
    std::fs::File::create(&path).unwrap().sync_all().unwrap();
    let script = format!(
        "{BEGIN}
def work():
    for i in range({WRITES}):
        assert os.write(fd, b'x' * 4096) == 4096
        {sync}
threads = [threading.Thread(target=work) for i in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
"
    );
    let before = device.0.load(Ordering::SeqCst);
    assert!(leasing.python(&script, &path, false).status().unwrap().success(), "S-496: {sync}");
    let flushes = device.0.load(Ordering::SeqCst) - before;
    assert_eq!(path.metadata().unwrap().len(), (THREADS * WRITES * 4096) as u64);
    flushes
}

/// S-496: of syncs of one file that are asked for at the same time many share a flush; where the kernel
/// passes them on, one at a time, each has its own.
#[test]
fn s_496_syncs_of_one_file_share_flushes() {
    let slow = |device| HookedDevice::new(device, SlowFlushes::default());
    let mut hooked = None;
    let wrap = |device: Arc<dyn BlockDevice>| {
        let device = slow(device);
        hooked = Some(Arc::clone(&device));
        device as Arc<dyn BlockDevice>
    };
    let options = "mode=concurrent,lease=owner,sync=1h";
    let Some(leasing) = Leasing::on(options, wrap) else { return };
    let device = hooked.unwrap();
    let syncs = (THREADS * WRITES) as u64;
    let in_turn = append(&leasing, &device, "os.fdatasync(fd)");
    assert!(in_turn >= syncs, "the kernel passes on one after the other: {in_turn}");
    let beside = append(&leasing, &device, "fcntl.ioctl(fd, 0xBE04)");
    assert!(beside < syncs * 9 / 10, "S-496: {beside} flushes for {syncs} syncs");
    leasing.mounted.finish();
}

/// S-496: what such a sync leaves to the kernel is refused: files of which that has pages, directories,
/// and mounts that lease nothing.
#[test]
fn s_496_a_sync_is_refused_where_the_kernel_has_pages() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let path = leasing.filled("f", 16);
    let script = format!(
        "{BEGIN}
os.write(fd, b'x' * 4096)
assert fcntl.ioctl(fd, 0xBE04) == 0
assert refused(os.open(os.path.dirname(os.environ['F']), os.O_RDONLY))
seen = mmap.mmap(fd, 4096)
seen[0] = 9
assert refused(fd)
os.fdatasync(fd)
"
    );
    assert!(leasing.python(&script, &path, false).status().unwrap().success(), "S-496");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[0]), (17 * 4096, 9));
    let elsewhere = Mounted::new("mode=concurrent").unwrap();
    let script = format!("{BEGIN}assert refused(fd)");
    let path = elsewhere.path("f");
    assert!(leasing.python(&script, &path, false).status().unwrap().success(), "none leased there");
    elsewhere.finish();
    leasing.mounted.finish();
}
