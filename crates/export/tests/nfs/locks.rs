//! Locks of the project's own clients: against each other, against programs on the server, across
//! starts of the server and breaks of the network.

use std::fs::File as LocalFile;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bedplate_block::{find_record, try_lock_record, unlock_record};
use bedplate_export::nfs::{LockTimes, Rights};
use bedplate_nfs::{
    Client, ErrorKind, File, LOCK_END, LockOwner, Mode, OpenOptions, Result, Url, WHOLE_FILE,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::bed::{Bed, hasty, trusting};
use crate::library::url;
use crate::relay::Relay;

fn client(bed: &Bed, options: &str) -> Client {
    Client::connect(&url(bed, "", &format!("locks=server&{options}"))).unwrap().0
}

/// A client that reaches the server at another address.
fn client_at(bed: &Bed, address: SocketAddr, options: &str) -> Client {
    let port = Some(address.port());
    let url = url(bed, "", &format!("locks=server&{options}"));
    Client::connect(&Url { nfs_port: port, mount_port: port, ..url }).unwrap().0
}

fn open(client: &Client, mode: Mode) -> File {
    client.open(b"file", &OpenOptions::create(mode)).unwrap()
}

fn owner(number: u64) -> LockOwner {
    LockOwner { number, process: 7000 + number as u32 }
}

/// Asks once.
fn lock(file: &File, number: u64, range: Range<u64>, is_exclusive: bool) -> Result<bool> {
    file.lock(owner(number), range, is_exclusive, (false, &|| false))
}

fn wait(file: &File, number: u64, range: Range<u64>, is_exclusive: bool) -> bool {
    file.lock(owner(number), range, is_exclusive, (true, &|| false)).unwrap()
}

#[test]
fn s_606_clients_and_owners_exclude_each_other_by_ranges_and_kinds() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let (a, b) = (client(&bed, ""), client(&bed, "nconnect=1"));
    let (a, b) = (open(&a, Mode::Concurrent), open(&b, Mode::Direct));
    assert_eq!(lock(&a, 1, 10..20, true), Ok(true));
    for (range, is_exclusive, is_free) in
        [(0..10, true, true), (19..30, false, false), (20..LOCK_END, true, true)]
    {
        assert_eq!(lock(&b, 1, range.clone(), is_exclusive), Ok(is_free), "{range:?}");
        b.unlock(owner(1), &range).unwrap();
    }
    assert_eq!(lock(&a, 2, 15..16, false), Ok(false), "I-NLM-1: an owner of the same client, too");
    // The own lock takes another kind, and is split and joined.
    assert_eq!(lock(&a, 1, 12..14, false), Ok(true));
    assert_eq!(lock(&b, 1, 12..14, false), Ok(true), "shared by both");
    assert_eq!(lock(&b, 1, 11..14, false), Ok(false));
    assert_eq!(lock(&a, 1, 12..14, true), Ok(false));
    b.unlock(owner(1), &(12..14)).unwrap();
    assert_eq!(lock(&a, 1, 12..14, true), Ok(true));
    a.unlock(owner(1), &(14..16)).unwrap();
    assert_eq!(lock(&b, 1, 14..16, true), Ok(true));
    assert_eq!(lock(&b, 1, 13..14, true), Ok(false), "no more than that was given back");
    assert_eq!(lock(&b, 1, 16..17, true), Ok(false));
    let found = b.test_lock(owner(1), &(0..100), false).unwrap().unwrap();
    assert_eq!((found.range.clone(), found.is_exclusive, found.process), (10..14, true, 7001));
    let found = a.test_lock(owner(1), &(0..100), false).unwrap().unwrap();
    assert_eq!((found.range, found.process), (14..16, 7001));
    assert_eq!(a.test_lock(owner(1), &(0..14), true), Ok(None));
    // An end gives back what was locked through it.
    b.close().unwrap();
    assert_eq!(lock(&a, 1, 0..LOCK_END, true), Ok(true));
    let last = client(&bed, "");
    let last = open(&last, Mode::Concurrent);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(&last, 1, 5..6, true));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        a.unlock(owner(1), &(0..LOCK_END)).unwrap();
        assert!(waiting.join().unwrap());
    });
    let gave_up = a.lock(owner(1), 5..6, true, (true, &|| true));
    assert_eq!(gave_up, Ok(false), "a wait that is given up");
    last.unlock_all(owner(1)).unwrap();
    assert_eq!(lock(&a, 1, 5..6, true), Ok(true), "nothing of it is left");
}

#[test]
fn s_607_locks_of_clients_and_of_programs_on_the_server_are_in_one_table() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let a = client(&bed, "");
    let a = open(&a, Mode::Concurrent);
    let local = LocalFile::options().read(true).write(true).open(bed.path("file")).unwrap();
    assert!(try_lock_record(&local, 10..20, true).unwrap());
    assert_eq!(lock(&a, 1, 0..11, false), Ok(false));
    assert_eq!(lock(&a, 1, 20..30, true), Ok(true));
    let found = a.test_lock(owner(1), &(0..30), false).unwrap().unwrap();
    assert_eq!((found.range, found.is_exclusive), (10..20, true));
    assert!(!try_lock_record(&local, 29..31, false).unwrap());
    assert_eq!(find_record(&local, 0..100, false).unwrap().unwrap().bytes, 20..30);
    unlock_record(&local, 10..20).unwrap();
    assert_eq!(lock(&a, 1, 0..11, false), Ok(true));
    // `flock` is apart from them.
    flock(&local, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(lock(&a, 2, WHOLE_FILE, true), Ok(false));
    assert_eq!(lock(&a, 2, WHOLE_FILE, false), Ok(true));
    assert_eq!(lock(&a, 2, WHOLE_FILE, true), Ok(false));
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let other = LocalFile::open(bed.path("file")).unwrap();
    assert_eq!(flock(&other, exclusive), Err(Errno::AGAIN), "the shared one is still there");
    flock(&local, FlockOperation::Unlock).unwrap();
    assert_eq!(lock(&a, 2, WHOLE_FILE, true), Ok(true));
    assert_eq!(flock(&local, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    a.unlock_all(owner(2)).unwrap();
    flock(&local, exclusive).unwrap();
}

#[test]
fn s_608_locks_are_taken_back_from_a_server_that_has_started_again() {
    let Some(mut bed) = Bed::new(hasty()) else { return };
    let (a, b) = (client(&bed, ""), client(&bed, "nconnect=1"));
    let (a, b) = (open(&a, Mode::Concurrent), open(&b, Mode::Concurrent));
    assert_eq!(lock(&a, 1, 0..10, true), Ok(true));
    assert_eq!(lock(&a, 2, 50..60, false), Ok(true));
    assert_eq!(lock(&b, 1, 90..100, true), Ok(true));
    for _ in 0..2 {
        bed.restart_at(bed.address);
        // Asked within the grace time or after it, it is not to be had.
        assert_eq!(lock(&b, 1, 0..10, false), Ok(false));
        assert_eq!(lock(&b, 1, 50..60, true), Ok(false));
        assert_eq!(lock(&b, 1, 50..60, false), Ok(true));
        assert_eq!(lock(&a, 1, 99..100, false), Ok(false));
        a.write_at(b"under it", 0).unwrap();
        a.sync().unwrap();
    }
    a.unlock(owner(1), &(0..10)).unwrap();
    assert_eq!(lock(&b, 1, 0..10, true), Ok(true));
    b.write_at(b"b", 0).unwrap();
    drop((a, b));
    // Nothing is to be taken back, so a new lock waits for no grace: none of this server's ends.
    let forever = LockTimes { grace: Duration::from_secs(3600), ..hasty().lock_times };
    let rights = Rights { lock_times: forever, ..hasty() };
    bed.restart(Some(rights));
    let c = client(&bed, "");
    assert_eq!(lock(&open(&c, Mode::Concurrent), 1, 0..LOCK_END, true), Ok(true));
}

#[test]
fn s_610_a_client_whose_lock_another_got_reads_and_writes_nothing_until_it_unlocks() {
    for mode in [Mode::Concurrent, Mode::Cached] {
        let Some(bed) = Bed::new(hasty()) else { return };
        let relay = Relay::start(bed.address);
        let (a, b) = (client_at(&bed, relay.address, "nconnect=3"), client(&bed, ""));
        let (a, b) = (open(&a, mode), open(&b, Mode::Concurrent));
        assert_eq!(lock(&a, 1, 0..100, true), Ok(true));
        a.write_at(b"of a", 0).unwrap();
        a.sync().unwrap();
        a.write_at(b"later", 10).unwrap();
        relay.cut();
        // Once the server has given up on the other one.
        assert!(wait(&b, 1, 0..100, true));
        b.write_at(b"of b", 0).unwrap();
        b.unlock(owner(1), &(0..100)).unwrap();
        std::thread::scope(|scope| {
            // A call that waits for the network when the lock is lost.
            let writing = scope.spawn(|| {
                a.write_at(b"stale", 0)?;
                a.sync()
            });
            std::thread::sleep(Duration::from_millis(30));
            relay.mend();
            let error = writing.join().unwrap().unwrap_err();
            assert!(error.kind == ErrorKind::Io && error.message.contains("lock"), "{error}");
        });
        let refused = |done: Result<()>| {
            let error = done.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io, "{mode}: {error}");
        };
        refused(a.sync());
        refused(a.set_size(0));
        refused(lock(&a, 2, 0..1, false).map(drop));
        if mode == Mode::Concurrent {
            refused(a.write_at(b"stale", 0));
            refused(a.read_at(&mut [0; 4], 0).map(drop));
        }
        a.unlock(owner(1), &(0..50)).unwrap();
        refused(a.sync());
        a.unlock(owner(1), &(50..100)).unwrap();
        refused(a.sync());
        a.sync().unwrap();
        assert_eq!(lock(&a, 1, 0..100, true), Ok(true));
        let mut buf = [0; 4];
        assert_eq!((a.read_at(&mut buf, 0), &buf), (Ok(4), b"of b"), "{mode}");
        a.write_at(b"anew", 20).unwrap();
        a.close().unwrap();
        let whole = std::fs::read(bed.path("file")).unwrap();
        assert!(whole.starts_with(b"of b") && whole.ends_with(b"anew"), "I-NLM-3: {whole:?}");
    }
}

#[test]
fn s_611_what_was_written_under_a_lock_is_seen_under_the_next_one() {
    const ROUNDS: u64 = 40;
    let Some(mut bed) = Bed::new(hasty()) else { return };
    let address = bed.address;
    let setup = client(&bed, "");
    open(&setup, Mode::Concurrent).write_at(&[0; 8], 0).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counters: Vec<_> = [Mode::Cached, Mode::Cached, Mode::Concurrent]
            .into_iter()
            .map(|mode| {
                let client = client(&bed, "nconnect=2");
                scope.spawn(move || {
                    let file = open(&client, mode);
                    for _ in 0..ROUNDS {
                        assert!(wait(&file, 1, 0..8, true));
                        let mut bytes = [0; 8];
                        assert_eq!(file.read_at(&mut bytes, 0), Ok(8));
                        let count = u64::from_le_bytes(bytes) + 1;
                        file.write_at(&count.to_le_bytes(), 0).unwrap();
                        file.unlock(owner(1), &(0..8)).unwrap();
                    }
                })
            })
            .collect();
        let is_over = &is_over;
        let restarts = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            for _ in 0..3 {
                if !is_over.load(SeqCst) {
                    bed.restart_at(address);
                    std::thread::sleep(Duration::from_millis(2500));
                }
            }
            bed
        });
        counters.into_iter().for_each(|counter| counter.join().unwrap());
        is_over.store(true, SeqCst);
        let bed = restarts.join().unwrap();
        let bytes = std::fs::read(bed.path("file")).unwrap();
        assert_eq!(bytes, (3 * ROUNDS).to_le_bytes());
    });
}

#[test]
fn s_611_pages_are_on_the_server_when_an_unlock_returns() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let a = client(&bed, "");
    let a = open(&a, Mode::Cached);
    assert!(wait(&a, 1, 0..8, true));
    a.write_at(b"in pages", 0).unwrap();
    assert_eq!(std::fs::read(bed.path("file")).unwrap(), b"", "so far in pages alone");
    a.unlock(owner(1), &(0..8)).unwrap();
    assert_eq!(std::fs::read(bed.path("file")).unwrap(), b"in pages");
    // A lock looks at the file's bytes again.
    std::fs::write(bed.path("file"), b"of other").unwrap();
    assert!(wait(&a, 1, 0..8, false));
    let mut buf = [0; 8];
    assert_eq!((a.read_at(&mut buf, 0), &buf), (Ok(8), b"of other"));
}
