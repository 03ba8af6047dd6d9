//! Reads, writes and syncs: what goes to the device, and what does not.

use std::sync::atomic::Ordering;

use bedplate_lease::Reason;

use super::daemon::{FIRST, SECOND, SHORT};
use super::stage::Stage;

#[test]
fn aligned_io_goes_to_the_device() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run("open 0 @ rw pread 0 0 8192 pread 0 131072 4096 pwrite 0 4096 512 x");
    assert_eq!(said, "read 8192 D, read 4096 D, write 512");
    assert_eq!((stage.on_device(FIRST + 4096), stage.on_mount(4096)), ('x', 'M'));
    assert_eq!(stage.on_device(FIRST + 4096 + 512), 'D');
    assert_eq!(stage.mount.seen.reads.load(Ordering::SeqCst), 0);
    let report = stage.report();
    assert!(report.contains(" reads=2 writes=1 syncs=0"), "{report}");
    assert!(stage.daemon.clients.lock().unwrap()[0].take_touched(stage.daemon.entry().index));
}

#[test]
fn what_the_map_does_not_allow_goes_to_the_mount() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw pread 0 196608 4096 pwrite 0 131072 4096 x pwrite 0 100 4096 y \
         pwrite 0 8192 100 z pread 0 262144 4096 pread 0 126976 8192",
    );
    assert_eq!(said, "read 4096 M, write 4096, write 4096, write 100, read 0, read 8192 ?");
    assert_eq!((stage.on_device(FIRST + 100), stage.on_mount(100)), ('D', 'y'));
    assert_eq!((stage.on_device(FIRST + 8192), stage.on_mount(8192)), ('D', 'z'));
    assert_eq!((stage.on_device(SECOND), stage.on_mount(131_072)), ('D', 'x'));
    let report = stage.report();
    for counted in ["reads=0", "unmapped=2", "forbidden=1", "unaligned=2", "beyond-size=1"] {
        assert!(report.contains(counted), "{counted}: {report}");
    }
}

/// S-524: advice to read ahead what goes to the device has the mount read nothing; elsewhere it is the
/// kernel's.
#[test]
fn s_524_what_is_read_on_the_device_is_not_read_ahead_by_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    let reads = || stage.mount.seen.reads.load(Ordering::SeqCst);
    let said = stage.run("open 0 @ rw advise 0 8192 8192 advise 0 100 24 pread 0 8192 8192");
    assert_eq!(said, "advise 0, advise 0, read 8192 D", "S-524");
    assert_eq!(reads(), 0, "S-524");
    assert!(stage.report().contains(" reads=1 "), "{}", stage.report());
    stage.daemon.rewrite(|file| file.may_read = false);
    assert_eq!(stage.run("open 0 @ rw advise 0 8192 8192"), "advise 0", "S-524");
    let begun = std::time::Instant::now();
    while reads() == 0 {
        assert!(begun.elapsed().as_secs() < 20, "S-524: the mount was not asked");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// S-218: of a read that is not aligned the whole sectors are read, and only within the file.
#[test]
fn s_218_a_read_of_a_part_of_a_sector_goes_to_the_device() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw pwrite 0 512 512 x pread 0 100 24 pread 0 512 24 pread 0 1000 24 \
         pread 0 510 2 pread 0 511 3 pread 0 262140 10",
    );
    // The last one passes the end: the mount says how much there is.
    assert_eq!(
        said, "write 512, read 24 D, read 24 x, read 24 x, read 2 D, read 3 ?, read 4 M",
        "S-218"
    );
    assert!(stage.report().contains(" reads=5 "), "{}", stage.report());
}

#[test]
fn memory_that_is_not_aligned_is_copied() {
    let Some(stage) = Stage::new() else { return };
    let said =
        stage.run("open 0 @ rw crooked 0 0 8192 crookedwrite 0 8192 4096 y pread 0 8192 4096");
    assert_eq!(said, "read 8192 D, write 4096, read 4096 y");
    assert_eq!((stage.on_device(FIRST + 8192), stage.on_mount(8192)), ('y', 'M'));
}

#[test]
fn several_parts_are_one_io() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("open 0 @ rw preadv 0 0 4096"), "read 8192 D");
    assert_eq!(stage.run("open 0 @ rw preadv 0 0 100"), "read 200 M");
}

#[test]
fn s_170_the_kernel_keeps_where_a_descriptor_stands() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw read 0 4096 tell 0 dup 0 1 write 1 4096 z tell 0 read 0 100 tell 1 seek 0 \
         258048 read 0 8192 tell 0 read 0 8192 tell 0",
    );
    let wanted = "read 4096 D, at 4096, write 4096, at 8192, read 100 M, at 8292, read 4096 M, \
                  at 262144, read 0, at 262144";
    assert_eq!(said, wanted);
    assert_eq!(stage.on_device(FIRST + 4096), 'z');
}

#[test]
fn a_data_sync_flushes_the_device_and_a_full_one_asks_the_mount() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("open 0 @ rw pwrite 0 0 4096 x fdatasync 0"), "write 4096, sync 0");
    assert_eq!(stage.mount.seen.syncs.load(Ordering::SeqCst), 0);
    assert_eq!(stage.run("open 0 @ rw fsync 0"), "sync 0");
    assert_eq!(stage.mount.seen.syncs.load(Ordering::SeqCst), 1);
    // A record of the file is not durable: the mount has to sync.
    stage.daemon.rewrite(|file| file.data_lsn = 5);
    assert_eq!(stage.run("open 0 @ rw fdatasync 0"), "sync 0");
    assert_eq!(stage.mount.seen.syncs.load(Ordering::SeqCst), 2);
    stage.daemon.publisher.lock().unwrap().control().set_durable(5);
    assert_eq!(stage.run("open 0 @ rw fdatasync 0"), "sync 0");
    assert_eq!(stage.mount.seen.syncs.load(Ordering::SeqCst), 2);
}

/// S-496: a sync that the daemon has to do waits for no other one of the file: two are with it at a
/// time, where the kernel passes one `fdatasync` on.
#[test]
fn s_496_syncs_of_threads_are_with_the_daemon_together() {
    let Some(stage) = Stage::new() else { return };
    stage.daemon.rewrite(|file| file.data_lsn = 5);
    let seen = &stage.mount.seen;
    seen.syncs_together.store(2, Ordering::SeqCst);
    assert_eq!(stage.run("open 0 @ rw syncs 0"), "syncs 0");
    assert_eq!(seen.syncs_beside.load(Ordering::SeqCst), 2);
    assert_eq!(seen.syncs.load(Ordering::SeqCst), 0);
    // Through the kernel where the daemon leaves it to that.
    seen.syncs_together.store(0, Ordering::SeqCst);
    assert_eq!(stage.run("open 0 @ rw fdatasync 0"), "sync 0");
    assert_eq!(seen.syncs.load(Ordering::SeqCst), 1);
}

/// S-497: of two threads that make the file grow, the one whose bytes lie behind the other's waits
/// for it: both go to the device, and neither takes the tail from them.
#[test]
fn s_497_a_write_behind_another_waits_for_it() {
    let Some(stage) = Stage::new() else { return };
    stage.daemon.rewrite(|file| file.size_bytes = SHORT);
    stage.daemon.has_tail.store(true, Ordering::SeqCst);
    // What is behind gives up after a moment: on a busy machine the other may come too late.
    let times = 20;
    let said =
        stage.run(&format!("open 0 @ rw pwrite 0 {SHORT} 512 x behind 0 {} {times}", SHORT + 512));
    assert_eq!(said, format!("write 512, behind {}", times * 3 * 512));
    let gone_to_mount = stage.mount.seen.writes.load(Ordering::SeqCst);
    assert!(gone_to_mount < times, "S-497: {gone_to_mount} of {times} took the tail");
    assert_eq!(
        (stage.on_device(FIRST + SHORT + 512), stage.on_device(FIRST + SHORT + 1024)),
        ('a', 'b')
    );
}

#[test]
fn opens_that_say_more_are_believed() {
    let Some(stage) = Stage::new() else { return };
    // O_APPEND never has a lease; writes of O_DSYNC are followed by a flush; access is kept.
    assert_eq!(stage.run("open 0 @ rwa pread 0 0 4096"), "read 4096 M");
    assert_eq!(stage.run("open 0 @ rws pwrite 0 0 4096 x"), "write 4096");
    assert!(stage.report().contains("writes=1 syncs=1"), "{}", stage.report());
    assert_eq!(stage.run("open 0 @ r pwrite 0 0 4096 y"), "write EBADF");
    assert_eq!(stage.run("open 0 @ w pread 0 0 4096"), "read EBADF");
    assert_eq!(stage.on_device(FIRST), 'x');
}

#[test]
fn threads_have_a_slot_each() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("open 0 @ rw threads 0 threads 0"), "threads 1600, threads 1600");
    assert!(stage.report().contains("reads=3200 "), "{}", stage.report());
    // Slots of the threads that ended are used again.
    assert!(stage.daemon.clients.lock().unwrap()[0].used() < 16);
}

#[test]
fn other_files_and_refusals_stay_on_the_mount() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("open 0 @@ rw pread 0 0 4096"), "read 4096 O");
    *stage.daemon.refusal.lock().unwrap() = Some(Reason::Untorn);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 4096"), "read 4096 M");
    let report = stage.report();
    assert!(report.contains("refused-Kind=1") && report.contains("refused-Untorn=1"), "{report}");
}
