use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};

use super::commit_map::{Change, Mark, SizeChange};
use super::write::{Payload, WriteStrategy};
use crate::engine::Listed;
use crate::{
    ErrorKind, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Reason, SetAttr,
    Timestamp,
};
use bedplate_store::{InodeRow, RecordKind, RowChange, Table, inode_key};

fn volume() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

fn mount(device: &Arc<dyn BlockDevice>, mode: IoMode) -> FileSystem {
    let options =
        MountOptions { mode, sync_interval: Duration::from_secs(3600), ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

#[test]
fn an_interrupted_truncation_goes_on_at_the_next_mount() {
    let device = volume();
    let fs = mount(&device, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    file.set_size(3000 * 8192).unwrap();
    let page = AlignedBuf::zeroed(4096);
    (0..3000).for_each(|i| assert_eq!(file.write_at(&page, i * 8192).unwrap(), i * 8192));
    {
        // The first record of a truncation to 100 bytes, and nothing after it.
        let io = file.io();
        let _alone = io.state().lock.exclusive(io.fs);
        let (from, remains) = io.tail(&(1..u64::MAX)).unwrap();
        assert!(remains);
        let change = Change::new(RecordKind::Truncate, SizeChange::Set(100)).marked(Mark::Begin);
        io.commit_map(change, from..u64::MAX, |map| map.plan_remove(from..u64::MAX)).unwrap();
    }
    file.sync_data().unwrap();
    drop((file, fs));
    let fs = mount(&device, IoMode::Concurrent);
    assert_eq!(fs.info().recovery.orphans, 1);
    let file = fs.open("/file", &OpenOptions::read_write()).unwrap();
    assert_eq!(
        (file.size(), file.attr().unwrap().allocated_bytes, file.extents().unwrap().len()),
        (100, 4096, 1)
    );
    drop(file);
    fs.unmount().unwrap();
    let fs = mount(&device, IoMode::Concurrent);
    assert_eq!(fs.info().recovery.orphans, 0);
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

#[test]
fn a_large_map_is_forgotten_with_the_last_open_and_read_again() {
    let device = volume();
    let fs = mount(&device, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let page = AlignedBuf::zeroed(4096);
    (0..4700).for_each(|i| assert_eq!(file.write_at(&page, i * 8192).unwrap(), i * 8192));
    let (ino, extents) = (file.ino(), file.extents().unwrap());
    drop(file);
    let inode = fs.state().inode(ino).unwrap();
    assert!(!inode.data.map_is_loaded());
    let file = fs.open("/file", &OpenOptions::read_write()).unwrap();
    assert!(inode.data.map_is_loaded());
    assert_eq!(file.extents().unwrap(), extents);
    fs.unmount().unwrap();
}

#[test]
fn a_file_larger_than_any_file_is_refused() {
    let device = volume();
    let fs = mount(&device, IoMode::Concurrent);
    let ino = fs.open("/file", &OpenOptions::create()).unwrap().ino();
    let key = inode_key(ino);
    let row = InodeRow::decode(&fs.state().row(Table::Inode, &key).unwrap().unwrap()).unwrap();
    let hostile = InodeRow { size: u64::MAX, ..row };
    let changing = fs.state().change();
    fs.state()
        .commit(RecordKind::SetAttr, vec![RowChange::put(Table::Inode, key, hostile.encode())]);
    drop(changing);
    fs.sync().unwrap();
    drop(fs);
    let fs = mount(&device, IoMode::Concurrent);
    let error = fs.open("/file", &OpenOptions::read_write()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("run a check"), "{error}");
}

#[test]
fn s_30_conflicting_opens_are_served_cached_and_counted() {
    let device = volume();
    let fs = mount(&device, IoMode::Concurrent);
    let concurrent = fs.open("/file", &OpenOptions::create()).unwrap();
    concurrent.write_at(&AlignedBuf::from_slice(&[1; 8192]), 0).unwrap();
    let cached = fs
        .open("/file", &OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() })
        .unwrap();
    assert_eq!(
        (concurrent.effective_mode(), concurrent.requested_mode()),
        (IoMode::Cached, IoMode::Concurrent)
    );
    cached.write_at(&[2; 100], 50).unwrap();
    let mut buf = AlignedBuf::zeroed(8192);
    concurrent.read_at(&mut buf, 0).unwrap();
    assert_eq!((buf[49], buf[50], buf[149], buf[150]), (1, 2, 2, 1), "S-20");
    drop(cached);
    assert_eq!(concurrent.effective_mode(), IoMode::Concurrent);
    let io = concurrent.io();
    assert_eq!(io.cached().dirty_bytes(), 0, "dirty pages were written");
    concurrent.read_at(&mut buf, 0).unwrap();
    assert_eq!((buf[49], buf[50]), (1, 2));
    let counters = concurrent.counters();
    assert_eq!((counters.mode_transitions, counters.reason(Reason::MixedOpen)), (2, 1));
    assert_eq!((counters.reads, counters.writes, counters.direct), (2, 2, 2));
}

#[test]
fn callers_that_cache_and_direct_opens_bypass_the_library_cache_together() {
    let device = volume();
    let fs = mount(&device, IoMode::Cached);
    let options = OpenOptions { caller_caches: true, ..OpenOptions::create() };
    let (a, b) = (
        fs.open("/file", &options).unwrap(),
        fs.open("/file", &OpenOptions { direct_flag: true, ..options.clone() }).unwrap(),
    );
    assert_eq!((a.effective_mode(), b.requested_mode()), (IoMode::Cached, IoMode::Direct));
    a.write_at(&[3; 4096], 0).unwrap();
    assert!(!a.io().has_cache());
    let library = fs.open("/file", &OpenOptions::read_write()).unwrap();
    let mut buf = [0; 4096];
    library.read_at(&mut buf, 0).unwrap();
    assert!(a.io().has_cache(), "as soon as one open needs it, all go through it");
    library.write_at(&[4; 10], 0).unwrap();
    a.read_at(&mut buf, 0).unwrap();
    assert_eq!((buf[9], buf[10]), (4, 3));
}

#[test]
fn the_access_time_moves_once_after_a_change() {
    let device = volume();
    let fs = mount(&device, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    file.write_at(&[1; 10], 0).unwrap();
    let before = file.attr().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file.read_at(&mut [0; 10], 0).unwrap();
    let after = file.attr().unwrap();
    assert!(after.atime > before.atime && after.mtime == before.mtime);
    file.sync_all().unwrap();
    let again = fs.open("/file", &OpenOptions::read_only()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    again.read_at(&mut [0; 10], 0).unwrap();
    assert_eq!(
        again.attr().unwrap().atime,
        after.atime,
        "it is younger than the last change and than a day"
    );
}

/// S-70: making a checkpoint and rolling back looked at every inode in memory: 7 ms with 20,000 of
/// them.
#[test]
fn s_70_a_checkpoint_looks_at_open_files_only() {
    let device = volume();
    let fs = mount(&device, IoMode::Cached);
    let page = AlignedBuf::zeroed(4096);
    let open: Vec<_> =
        (0..3).map(|i| fs.open(format!("/open{i}"), &OpenOptions::create()).unwrap()).collect();
    for i in 0..200 {
        fs.open(format!("/closed{i}"), &OpenOptions::create()).unwrap().write_at(&page, 0).unwrap();
    }
    fs.sync().unwrap();
    let state = fs.state();
    let listed = || state.listed(Listed::Open).iter().map(|inode| inode.ino).collect::<Vec<_>>();
    assert_eq!(listed(), open.iter().map(crate::File::ino).collect::<Vec<_>>());
    assert_eq!(state.listed(Listed::Cached).len(), 200, "each was written through the cache");
    let before = state.inode_table().walks.load(std::sync::atomic::Ordering::Relaxed);
    fs.create_checkpoint("c", &crate::CheckpointOptions::default()).unwrap();
    drop(open);
    assert_eq!(listed(), []);
    fs.remove("/closed7").unwrap();
    fs.rollback("c", &crate::RollbackOptions::default()).unwrap();
    assert_eq!(
        state.inode_table().walks.load(std::sync::atomic::Ordering::Relaxed),
        before,
        "no pass looked at all inodes"
    );
    assert_eq!(fs.resolve("/closed7").unwrap().size, 4096);
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

/// S-141: every close of a small file on a mount waited for a write of the device.
#[test]
fn s_141_small_writes_of_callers_that_cache_wait_for_no_device() {
    let device = volume();
    let fs = mount(&device, IoMode::Cached);
    let options = OpenOptions { caller_caches: true, ..OpenOptions::create() };
    let before = device.counters();
    for i in 0..20 {
        let file = fs.open(format!("/f{i}"), &options).unwrap();
        file.write_at(&[i; 5000], 0).unwrap();
    }
    assert_eq!(device.counters().writes, before.writes, "S-141");
    assert_eq!(fs.resolve("/f7").unwrap().allocated_bytes, 8192, "blocks that are set aside count");
    let mut buf = [0; 6000];
    let read =
        |name: &str, buf: &mut [u8]| fs.open(name, &options).unwrap().read_at(buf, 0).unwrap();
    assert_eq!((read("/f7", &mut buf), buf[0], buf[4999]), (5000, 7, 7));
    fs.remove("/f3").unwrap();
    fs.sync().unwrap();
    let info = fs.info();
    assert_eq!(
        (info.cache.dirty_bytes, info.cache.resident_bytes),
        (0, 0),
        "what was written is kept by the callers alone"
    );
    assert_eq!(info.cache.write_behind_runs, 19, "a file that was removed is never written");
    assert_eq!((read("/f8", &mut buf), buf[0], buf[4999]), (5000, 8, 8));
    assert_eq!(fs.info().cache.resident_bytes, 0, "nor is what callers read");
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

#[test]
fn what_is_large_or_synced_goes_past_the_cache_that_absorbs() {
    let device = volume();
    let fs = mount(&device, IoMode::Cached);
    let options = OpenOptions { caller_caches: true, ..OpenOptions::create() };
    let file = fs.open("/file", &options).unwrap();
    let writes = |bytes: &[u8], offset: u64| {
        let before = device.counters().writes;
        file.write_at(bytes, offset).unwrap();
        device.counters().writes - before
    };
    let page = |byte: u8| {
        let mut page = AlignedBuf::zeroed(8192);
        page.fill(byte);
        page
    };
    assert_eq!(writes(&page(1), (1 << 20) - 8192), 0, "it lies near the beginning");
    assert_eq!(
        writes(&page(2), (1 << 20) - 4096),
        2,
        "a page that was dirty goes first, for it may not come later"
    );
    let mut buf = [0; 16384];
    let mut read = |from: u64| {
        let len = file.read_at(&mut buf, from).unwrap();
        (len, buf[0], buf[4096], buf[8192])
    };
    assert_eq!(read((1 << 20) - 8192), (12288, 1, 2, 2));
    assert_eq!(read((1 << 20) - 16384), (16384, 0, 0, 1), "a hole before it");
    assert_eq!(writes(&page(3), 0), 0);
    file.sync_data().unwrap();
    assert_eq!(writes(&page(4), 0), 1, "a caller that syncs waits for the device anyway");
    assert_eq!(read(0), (16384, 4, 4, 0));
    drop(file);
    let file = fs.open("/file", &options).unwrap();
    let before = device.counters().writes;
    file.write_at(&page(5), 0).unwrap();
    assert_eq!(device.counters().writes, before, "the open that was synced has ended");
    let direct =
        fs.open("/file", &OpenOptions { direct_flag: true, ..OpenOptions::read_write() }).unwrap();
    assert_eq!(
        file.io().cached().dirty_bytes(),
        0,
        "beside an open in another mode nothing is absorbed"
    );
    let mut buf = page(0);
    direct.read_at(&mut buf, 0).unwrap();
    assert_eq!((buf[0], buf[8191]), (5, 5));
    drop((file, direct));
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

/// S-141: a program that writes a new file, closes it, forgets the sync and renames it over the old
/// one found an empty file after a crash.
#[test]
fn s_141_what_was_absorbed_is_written_before_its_file_replaces_another() {
    let device = volume();
    let fs = mount(&device, IoMode::Cached);
    let options = OpenOptions { caller_caches: true, ..OpenOptions::create() };
    let write =
        |name: &str, byte: u8| fs.open(name, &options).unwrap().write_at(&[byte; 5000], 0).unwrap();
    write("/file", 1);
    fs.sync().unwrap();
    write("/new", 2);
    fs.rename_path("/new", "/file").unwrap();
    // The log goes out with the sync of another file, the file's pages do not.
    fs.state().sync_to(fs.state().last_lsn()).unwrap();
    drop(fs);
    let fs = mount(&device, IoMode::Cached);
    let mut buf = [0; 5001];
    assert_eq!(
        fs.open("/file", &OpenOptions::read_only()).unwrap().read_at(&mut buf, 0).unwrap(),
        5000,
        "S-141"
    );
    assert_eq!((buf[0], buf[4999]), (2, 2));
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

/// A file that was unpacked got its time set, and when its pages were written behind it got the
/// time of that instead.
#[test]
fn a_time_that_was_set_outlives_the_write_behind_of_what_was_written_before() {
    for caller_caches in [false, true] {
        let device = volume();
        let fs = mount(&device, IoMode::Cached);
        let options = OpenOptions { caller_caches, ..OpenOptions::create() };
        let file = fs.open("/file", &options).unwrap();
        let time = |nanos| SetAttr { mtime: Some(Timestamp(nanos)), ..SetAttr::default() };
        for round in 1..3 {
            // The first fills blocks, the second lies in them.
            file.write_at(&[round; 5000], 0).unwrap();
            assert!(file.attr().unwrap().mtime.0 > 9, "a write moves the time");
            fs.set_attr(file.ino(), &time(round.into())).unwrap();
            fs.sync().unwrap();
            assert_eq!(file.attr().unwrap().mtime, Timestamp(round.into()), "{caller_caches}");
        }
        drop((file, fs));
        let fs = mount(&device, IoMode::Cached);
        assert_eq!(fs.resolve("/file").unwrap().mtime, Timestamp(2));
        fs.unmount().unwrap();
    }
}

/// S-20: a write was planned, to fill some blocks and go over its others in place. Then the file was
/// to be written untorn, or with checksums, so the others got new blocks, too. Only what had been
/// planned was published: the write had succeeded, and a part of it was not in the file.
#[test]
fn s_20_a_setting_that_comes_between_the_plan_of_a_write_and_its_blocks_loses_nothing() {
    for integrity in [false, true] {
        let device = volume();
        let fs = mount(&device, IoMode::Concurrent);
        let file = fs.open("/file", &OpenOptions::create()).unwrap();
        let mut pages = AlignedBuf::zeroed(5 * 4096);
        file.write_at(&pages, 0).unwrap();
        fs.create_checkpoint("c", &crate::CheckpointOptions::default()).unwrap();
        // The last is the file's own again.
        file.write_at(&pages[..4096], 4 * 4096).unwrap();
        pages.fill(7);
        let (io, data) = (file.io(), Payload::new(&pages, 0).unwrap());
        std::thread::scope(|scope| {
            let held = io.state().lock.shared(io.fs);
            let Ok(WriteStrategy::Fill(blocks)) = io.plan_write(&data) else {
                panic!("four blocks are to be filled");
            };
            assert_eq!(blocks, 0..4);
            // It waits for the lock in the end.
            let set = scope.spawn(|| {
                if integrity {
                    fs.set_integrity(file.ino(), true)
                } else {
                    fs.set_untorn(file.ino(), Some(8192))
                }
            });
            while !io.redirects_all() {
                std::thread::yield_now();
            }
            assert!(!io.fill(&held, data, blocks).unwrap(), "integrity {integrity}");
            drop(held);
            set.join().unwrap().unwrap();
        });
        io.write_uncached(data).unwrap();
        let mut seen = AlignedBuf::zeroed(pages.len());
        file.read_at(&mut seen, 0).unwrap();
        assert!(*seen == *pages, "integrity {integrity}: S-20");
        drop(file);
        fs.unmount().unwrap();
        assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
    }
}
