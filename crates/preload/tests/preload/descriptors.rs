//! Descriptors that are closed, copied, inherited and reused, with and without the library seeing
//! it.

use std::io::Read;
use std::sync::atomic::Ordering;

use bedplate_lease::wire::Request;

use super::daemon::FIRST;
use super::filesystem::DATA;
use super::stage::Stage;

#[test]
fn s_168_a_number_that_was_closed_and_reused_is_the_other_file() {
    let Some(stage) = Stage::new() else { return };
    for close in ["close 0", "syscallclose 0"] {
        let said =
            stage.run(&format!("open 0 @ rw pread 0 0 4096 {close} open 1 @@ rw pread 1 0 4096"));
        assert_eq!(said, "read 4096 D, close 0, read 4096 O");
    }
}

#[test]
fn i_lse_4_a_number_reused_unseen_is_the_other_file() {
    // Once, a write to another file went into the database file.
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw open 1 @@ rw pread 0 0 4096 rawdup2 1 0 pread 0 0 4096 pwrite 0 0 4096 x",
    );
    assert_eq!(said, "read 4096 D, read 4096 O, write 4096");
    assert_eq!(stage.on_device(FIRST), 'D');
    let said = stage.run("open 0 @ rw pread 0 0 4096 rawclose 0 pread 0 0 4096");
    assert_eq!(said, "read 4096 D, read EBADF");
}

#[test]
fn s_168_copies_have_the_lease_too() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw dup 0 1 fdup 0 2 close 0 pread 1 0 4096 pread 2 0 4096 open 3 @@ rw dup2 1 3 \
         pread 3 0 4096 open 4 @@ rw dup2 4 1 pread 1 0 4096 pread 3 0 4096",
    );
    let wanted = "close 0, read 4096 D, read 4096 D, dup 0, read 4096 D, dup 0, read 4096 O, \
                  read 4096 D";
    assert_eq!(said, wanted);
    assert!(stage.report().contains("reads=4 "), "{}", stage.report());
}

#[test]
fn s_168_the_last_close_is_told_and_lets_the_mount_go() {
    let Some(stage) = Stage::new() else { return };
    let mut child = stage
        .command("open 0 @ rw dup 0 1 close 0 close 1 wait")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = child.stdout.take().unwrap();
    while !said.contains("waits") {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        said.push(byte[0] as char);
    }
    // The program lives, and nothing of its holds the file open. The mount hears of it later.
    let open = || stage.mount.seen.open.load(Ordering::SeqCst);
    while open() != 0 {
        std::thread::yield_now();
    }
    let requests = stage.daemon.requests.lock().unwrap().clone();
    assert_eq!(requests.iter().filter(|r| **r == Request::Close { inode: DATA }).count(), 1);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn programs_that_close_everything_keep_the_librarys_descriptors() {
    let Some(stage) = Stage::new() else { return };
    for close in ["closefrom 3", "closeall"] {
        let said =
            stage.run(&format!("open 0 @ rw pread 0 0 4096 {close} open 0 @ rw pread 0 0 4096"));
        assert_eq!(said, "read 4096 D, read 4096 D", "{close}");
    }
    let said = stage.run("open 0 @ rw closerange 3 pread 0 0 4096 open 0 @ rw pread 0 0 4096");
    assert_eq!(said, "closerange 0, read EBADF, read 4096 D");
    // One attachment each: socket and device were not closed.
    assert_eq!(stage.daemon.clients.lock().unwrap().len(), 3);
}

#[test]
fn a_child_attaches_anew() {
    let Some(stage) = Stage::new() else { return };
    // The child says what comes behind `fork`, then the parent.
    let said = stage.run("open 0 @ rw pread 0 0 4096 fork pread 0 0 4096 pwrite 0 0 4096 c");
    let wanted = "read 4096 D, read 4096 D, write 4096, child 0, read 4096 c, write 4096";
    assert_eq!(said, wanted);
    assert_eq!(stage.daemon.clients.lock().unwrap().len(), 2);
    let report = stage.report();
    assert_eq!(report.lines().count(), 2, "{report}");
    assert!(report.lines().next().unwrap().contains(" reads=1 writes=1"), "{report}");
    assert!(report.lines().nth(1).unwrap().contains(" reads=2 writes=1"), "{report}");
}

#[test]
fn a_child_that_shares_the_memory_changes_nothing() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run("open 0 @ rw pread 0 0 4096 vfork 0 pread 0 0 4096 close 0");
    assert_eq!(said, "read 4096 D, read 4096 D, close 0");
    assert!(stage.report().contains("reads=2 "), "{}", stage.report());
}

#[test]
fn appending_from_now_on_ends_the_lease() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run("open 0 @ rw dup 0 1 append 1 pread 0 0 4096 pread 1 0 4096");
    assert_eq!(said, "append 0, read 4096 M, read 4096 M");
}

#[test]
fn streams_and_mappings_end_the_lease() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("open 0 @ rw pread 0 0 4096 stdio 0"), "read 4096 D, stdio M");
    assert_eq!(stage.run("open 0 @ rw mmap 0 pread 0 0 4096"), "mmap M, read 4096 M");
    assert!(stage.daemon.requests.lock().unwrap().contains(&Request::Suspend { inode: DATA }));
}

#[test]
fn s_168_locks_of_an_open_file_are_as_ever() {
    let Some(stage) = Stage::new() else { return };
    // A guard that stayed behind would keep the lock.
    let said = stage.run("open 0 @ rw flock 0 open 1 @ rw flock 1 close 0 flock 1");
    assert_eq!(said, "flock 0, flock EAGAIN, close 0, flock 0");
}

#[test]
fn a_thread_that_waits_can_be_cancelled() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("cancel"), "cancel 1, cancel 1");
}

#[test]
fn threads_that_open_and_close_wait_for_each_other() {
    // Once, a thread that was woken forgot the others that waited: they slept for good.
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.run("opens @ open 0 @ rw pread 0 0 4096"), "opens 800, read 4096 D");
}
