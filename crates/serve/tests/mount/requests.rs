//! Requests and writes of the device that a mount does without.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{Advice, XattrFlags, fadvise, getxattr, setxattr};
use rustix::io::Errno;

use crate::harness::Mounted;

const PAGE: usize = 8192;

/// Each write was a write of the device and a record before it was answered.
#[test]
fn s_300_small_writes_that_make_an_uncached_file_grow_reach_the_device_in_large_pieces() {
    for mode in ["direct", "concurrent", "concurrent+cache"] {
        let Some(m) = Mounted::new(&format!("mode={mode}")) else { return };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(m.path("f")).unwrap();
        let before = m.device.counters();
        for page in 0..384 {
            file.write_all(&[page as u8; PAGE]).unwrap();
        }
        file.write_all(b"and an odd end").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 384 * PAGE as u64 + 14);
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 383 * PAGE as u64).unwrap();
        assert_eq!(page, [127; PAGE], "{mode}: the last one is read");
        file.sync_data().unwrap();
        let writes = m.device.counters().writes - before.writes;
        assert!(writes <= 20, "{mode}: {writes} writes of the device");
        drop(file);
        let m = m.again("");
        let read = fs::read(m.path("f")).unwrap();
        let right =
            read.chunks(PAGE).take(384).enumerate().all(|(at, page)| page == [at as u8; PAGE]);
        assert!(right && read.ends_with(b"and an odd end"), "{mode}: what was synced");
        m.finish();
    }
}

/// `O_SYNC`, `O_DSYNC` and `O_DIRECT` ask for the device; so does `delay-writes=off`.
#[test]
fn s_300_writes_that_ask_for_the_device_get_it() {
    let cases = [
        ("mode=concurrent", libc::O_DSYNC),
        ("mode=concurrent", libc::O_SYNC),
        ("mode=concurrent", libc::O_DIRECT),
        ("mode=concurrent,delay-writes=off", 0),
    ];
    for (options, flags) in cases {
        let Some(m) = Mounted::new(options) else { return };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .custom_flags(flags)
            .open(m.path("f"))
            .unwrap();
        let before = m.device.counters().writes;
        for page in 0..10_u8 {
            let buf = bedplate_block::AlignedBuf::from_slice(&[page; PAGE]);
            file.write_all_at(&buf, u64::from(page) * PAGE as u64).unwrap();
        }
        let writes = m.device.counters().writes - before;
        assert!(writes >= 10, "{options}, flags {flags:o}: {writes} writes of the device");
        drop(file);
        m.finish();
    }
}

/// S-365, S-368, S-371: what PostgreSQL does with a table that is larger than its buffers.
#[test]
fn s_371_pages_that_are_named_read_and_written_in_order_take_few_requests_of_the_device() {
    for mode in ["direct", "concurrent"] {
        let Some(m) = Mounted::new(&format!("mode={mode}")) else { return };
        let file =
            File::options().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
        (0..384_u64).for_each(|page| file.write_all_at(&[1; PAGE], page * PAGE as u64).unwrap());
        file.sync_data().unwrap();
        let before = m.device.counters();
        let mut buf = [0; PAGE];
        for page in 0..384_u64 {
            file.read_exact_at(&mut buf, page * PAGE as u64).unwrap();
            assert_eq!(buf, [1; PAGE]);
            file.write_all_at(&[2; PAGE], page * PAGE as u64).unwrap();
        }
        file.sync_data().unwrap();
        let after = m.device.counters();
        let (reads, writes) = (after.reads - before.reads, after.writes - before.writes);
        assert!(reads <= 48 && writes <= 24, "{mode}: {reads} reads, {writes} writes");
        let pages = [300, 17, 120, 77, 250, 33];
        for page in pages {
            let at = page * PAGE as u64;
            fadvise(&file, at, NonZeroU64::new(PAGE as u64), Advice::WillNeed).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let before = m.device.counters().reads;
        for page in pages {
            file.read_exact_at(&mut buf, page * PAGE as u64).unwrap();
            assert_eq!(buf, [2; PAGE]);
        }
        assert_eq!(m.device.counters().reads - before, 0, "{mode}: they were read when named");
        drop(file);
        m.finish();
    }
}

/// With `read-window=off` each read of the device is the program's.
#[test]
fn s_370_a_mount_reads_nothing_ahead_where_that_is_off() {
    let Some(m) = Mounted::new("mode=concurrent,read-window=off") else { return };
    fs::write(m.path("f"), vec![1; 64 * PAGE]).unwrap();
    let file = File::open(m.path("f")).unwrap();
    // What waits in memory is not on the device to be read.
    file.sync_data().unwrap();
    let before = m.device.counters().reads;
    let mut buf = [0; PAGE];
    (0..64_u64).for_each(|page| file.read_exact_at(&mut buf, page * PAGE as u64).unwrap());
    assert!(m.device.counters().reads - before >= 64);
    drop(file);
    m.finish();
}

#[test]
fn s_291_a_mount_without_extended_attributes_refuses_them_and_serves_everything_else() {
    let Some(m) = Mounted::new("") else { return };
    File::create(m.path("f")).unwrap();
    setxattr(m.path("f"), "user.a", b"1", XattrFlags::empty()).unwrap();
    let m = m.again("xattr=off");
    for _ in 0..2 {
        let read = getxattr(m.path("f"), "user.a", &mut [0; 8]);
        assert_eq!(read, Err(Errno::OPNOTSUPP));
        let set = setxattr(m.path("f"), "user.a", b"2", XattrFlags::empty());
        assert_eq!(set, Err(Errno::OPNOTSUPP));
        let mode = getxattr(m.path("f"), "user.bedplate.effective_mode", &mut [0; 64]);
        assert_eq!(mode, Err(Errno::OPNOTSUPP));
    }
    fs::write(m.path("f"), b"content").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"content");
    let m = m.again("xattr=on");
    let mut value = [0; 8];
    assert_eq!(getxattr(m.path("f"), "user.a", &mut value), Ok(1));
    assert_eq!(value[0], b'1', "what was set before stays");
    m.finish();
}
