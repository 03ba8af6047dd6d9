//! Reads in the daemon's cache.

use std::sync::atomic::Ordering::SeqCst;

use super::daemon::{CACHE_FILE, Cache};
use super::stage::Stage;

/// A mount whose file is read in a cache that has its first 32 KiB.
fn staged() -> Option<Stage> {
    let stage = Stage::new()?;
    *stage.daemon.cache.lock().unwrap() = Some(Cache::new(8));
    of_pages(&stage);
    Some(stage)
}

fn of_pages(stage: &Stage) {
    stage.daemon.rewrite(|file| {
        (file.may_read, file.may_write, file.may_sync) = (false, false, false);
        (file.extents, file.cache_file) = (&[], CACHE_FILE);
    });
}

/// S-422: what is in the cache is read there, of any place and length, and nothing asks the mount;
/// all else does.
#[test]
fn s_422_what_is_in_the_cache_is_read_there() {
    let Some(stage) = staged() else { return };
    let said = stage.run(
        "open 0 @ rw pread 0 0 8192 pread 0 4000 200 crooked 0 8192 4096 pread 0 32767 1 \
         pread 0 28672 4096",
    );
    assert_eq!(said, "read 8192 C, read 200 C, read 4096 C, read 1 C, read 4096 C", "S-422");
    assert_eq!(stage.mount.seen.reads.load(SeqCst), 0);
    let report = stage.report();
    assert!(report.contains(" reads=0 ") && report.contains(" hits=5"), "{report}");
    {
        let cache = stage.daemon.cache.lock().unwrap();
        let cache = cache.as_ref().unwrap();
        assert!(cache.uses[0].load(SeqCst) != 0 && cache.uses[5].load(SeqCst) == 0, "S-425");
        cache.rewrite(0, b'E', true);
        cache.rewrite(1, b'E', false);
    }
    let said = stage.run(
        "open 0 @ rw pread 0 0 4096 pread 0 0 8192 pread 0 28672 8192 pread 0 40960 100 \
         pwrite 0 8192 4096 x fdatasync 0",
    );
    assert!(
        said.starts_with("read 4096 E, read 8192 M, read 8192 M, read 100 M, write 4096"),
        "{said}"
    );
    assert_eq!(stage.on_mount(8192), 'x', "S-422: writes are the mount's");
    let report = stage.report();
    assert!(report.contains(" hits=1 uncached=5"), "{report}");
}

/// S-426: without a cache, or with one that makes no sense, the mount reads.
#[test]
fn s_426_without_a_cache_the_mount_reads() {
    let Some(stage) = Stage::new() else { return };
    of_pages(&stage);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 8192"), "read 8192 M", "S-426");
    assert!(stage.report().contains(" hits=0 uncached=1"), "{}", stage.report());
    let cache = Cache::new(8);
    cache.damage();
    *stage.daemon.cache.lock().unwrap() = Some(cache);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 8192"), "read 8192 M", "S-426");
}

/// I-LSE-4: a descriptor that became another file's unseen reads that one.
#[test]
fn i_lse_4_a_descriptor_that_is_another_files_reads_no_page() {
    let Some(stage) = staged() else { return };
    let said = stage.run("open 0 @ rw open 1 @@ rw pread 0 0 4096 rawdup2 1 0 pread 0 0 4096");
    assert_eq!(said, "read 4096 C, read 4096 O", "I-LSE-4");
}
