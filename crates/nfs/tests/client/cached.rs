//! Mode `cached`: what the server is asked, and what others see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bedplate_block::AlignedBuf;
use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::{Client, ErrorKind, File, Mode, OpenOptions, Queue};

use crate::server::{Act, FILE_BYTES, Heard, Server};

fn open(client: &Client, mode: Mode) -> File {
    client.open(b"file", &OpenOptions::create(mode)).unwrap()
}

/// Reads the whole file in order.
fn read_all(file: &File) -> Vec<u8> {
    let mut all = vec![0; FILE_BYTES + 1];
    let mut done = 0;
    loop {
        let end = all.len().min(done + 10_000);
        match file.read_at(&mut all[done..end], done as u64).unwrap() {
            0 => break,
            read => done += read,
        }
    }
    all.truncate(done);
    all
}

/// Waits until what is read ahead has come.
fn settled(server: &Server) -> usize {
    loop {
        let before = server.count(n::READ);
        std::thread::sleep(Duration::from_millis(200));
        if server.count(n::READ) == before {
            return before;
        }
    }
}

#[test]
fn s_581_what_was_read_is_asked_once_and_what_comes_next_is_asked_before() {
    let server = Server::start(|_| Act::Serve);
    let file = open(&server.client(""), Mode::Cached);
    assert!(read_all(&file) == server.bytes());
    let calls = settled(&server);
    assert!(calls < FILE_BYTES / 10_000, "{calls} calls are fewer than reads: they are larger");
    let read: u64 = server.heard().iter().map(|heard| u64::from(heard.count)).sum();
    assert!(read < 2 * FILE_BYTES as u64, "{read} bytes were asked for");
    assert!(read_all(&file) == server.bytes());
    assert_eq!(settled(&server), calls, "nothing is asked twice");
    // Read ahead: what follows is there before it is read.
    let server = Server::start(|_| Act::Serve);
    let file = open(&server.client(""), Mode::Cached);
    for at in 0..8 {
        file.read_at(&mut [0; 4096], at * 4096).unwrap();
    }
    settled(&server);
    let ahead = server.heard().iter().map(|heard| heard.offset + u64::from(heard.count)).max();
    assert!(ahead.unwrap() >= 64 << 10, "{ahead:?}");
    let server = Server::start(|_| Act::Serve);
    let file = open(&server.client("readahead=0"), Mode::Cached);
    for at in 0..8 {
        file.read_at(&mut [0; 4096], at * 4096).unwrap();
    }
    settled(&server);
    let ahead = server.heard().iter().map(|heard| heard.offset + u64::from(heard.count)).max();
    assert_eq!(ahead, Some(8 * 4096), "nothing is read ahead");
}

#[test]
fn s_581_pages_leave_behind_a_reader_where_that_is_asked_for() {
    let mut calls = [0, 0];
    for (calls, option) in calls.iter_mut().zip(["release-behind=no", "release-behind=read"]) {
        let server = Server::start(|_| Act::Serve);
        let file = open(&server.client(option), Mode::Cached);
        read_all(&file);
        let before = settled(&server);
        read_all(&file);
        *calls = settled(&server) - before;
    }
    assert!(calls[0] == 0 && calls[1] > 0, "{calls:?}");
}

#[test]
fn s_581_writes_wait_in_memory_and_are_durable_when_the_file_is_closed() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("");
    let file = open(&client, Mode::Cached);
    for at in 0..16 {
        file.write_at(&[at; 1000], 333 + u64::from(at) * 1000).unwrap();
    }
    assert_eq!(server.count(n::WRITE), 0, "nothing is written yet");
    let mut buf = [0; 1500];
    assert_eq!(file.read_at(&mut buf, 833), Ok(1500));
    assert!(buf[..500] == [0; 500] && buf[500..] == [1; 1000], "reads see it");
    // Behind the end of the file.
    file.write_at(b"the end", FILE_BYTES as u64 + 5000).unwrap();
    assert_eq!(file.size(), Ok(FILE_BYTES as u64 + 5007));
    file.close().unwrap();
    assert!(server.count(n::WRITE) <= 3, "neighbours are written together");
    let durable = server.durable();
    for at in 0..16 {
        assert_eq!(durable[333 + at * 1000..][..1000], [at as u8; 1000]);
    }
    assert_eq!(durable.len(), FILE_BYTES + 5007, "no byte more");
    assert_eq!(durable[FILE_BYTES..FILE_BYTES + 5000], [0; 5000]);
    assert_eq!(durable[FILE_BYTES + 5000..], *b"the end");
}

#[test]
fn s_581_an_open_sees_what_others_have_closed_before() {
    let server = Server::start(|_| Act::Serve);
    let (client, other) = (server.client(""), server.client(""));
    let file = open(&client, Mode::Cached);
    let mut buf = [0; 4];
    file.read_at(&mut buf, 0).unwrap();
    let theirs = open(&other, Mode::Cached);
    theirs.write_at(b"new!", 0).unwrap();
    theirs.close().unwrap();
    // A second open of the client, beside the one whose pages are of before.
    let again = open(&client, Mode::Cached);
    for file in [&again, &file] {
        assert_eq!((file.read_at(&mut buf, 0), &buf), (Ok(4), b"new!"));
    }
    // What the client has written itself is not forgotten over that.
    file.write_at(b"mine", 4).unwrap();
    let third = open(&client, Mode::Cached);
    let mut both = [0; 8];
    assert_eq!((third.read_at(&mut both, 0), &both), (Ok(8), b"new!mine"));
}

#[test]
fn s_575_a_file_that_is_open_in_cached_mode_too_goes_through_the_cache_until_that_ends() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("");
    let direct = Arc::new(open(&client, Mode::Direct));
    direct.write_at(b"direct", 0).unwrap();
    let cached = open(&client, Mode::Cached);
    assert_eq!((direct.effective_mode(), cached.effective_mode()), (Mode::Cached, Mode::Cached));
    cached.write_at(b"cached", 100).unwrap();
    direct.write_at(b"through", 200).unwrap();
    let writes = server.count(n::WRITE);
    let mut buf = [0; 7];
    assert_eq!((direct.read_at(&mut buf[..6], 100), &buf[..6]), (Ok(6), &b"cached"[..]));
    assert_eq!((cached.read_at(&mut buf, 200), &buf), (Ok(7), b"through"));
    let mut queue = Queue::new(2);
    let mut list = AlignedBuf::zeroed(4);
    list.copy_from_slice(b"list");
    queue.write(&direct, list, 300, 1).unwrap();
    queue.read(&direct, AlignedBuf::zeroed(7), 200, 2).unwrap();
    let mut done = Vec::new();
    queue.complete(2, &mut done);
    assert!(done.iter().all(|end| end.result.is_ok()));
    assert_eq!(server.count(n::WRITE), writes, "it waits in memory");
    cached.close().unwrap();
    assert_eq!(direct.effective_mode(), Mode::Direct);
    let durable = server.durable();
    let told = [&durable[..6], &durable[100..106], &durable[200..207], &durable[300..304]].concat();
    assert_eq!(told, b"directcachedthroughlist");
    direct.write_at(b"again", 0).unwrap();
    assert!(server.count(n::WRITE) > writes);
    assert_eq!(server.bytes()[..5], *b"again");
}

#[test]
fn s_573_what_waits_in_the_cache_survives_a_crash_of_the_server() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("cache=1048576&wsize=8192&nconnect=2");
    let file = open(&client, Mode::Cached);
    // More than may be dirty: some of it is written behind, not committed, and lost.
    for at in 0..200_u64 {
        file.write_at(&[at as u8; 8000], at * 8000).unwrap();
        if at % 37 == 0 {
            server.crash();
        }
    }
    file.sync().unwrap();
    let durable = server.durable();
    for at in 0..200 {
        assert!(durable[at * 8000..(at + 1) * 8000].iter().all(|byte| *byte == at as u8), "{at}");
    }
    file.set_size(12_345).unwrap();
    assert_eq!((file.size(), file.read_at(&mut [0; 100], 12_300)), (Ok(12_345), Ok(45)));
}

#[test]
fn s_574_a_write_behind_that_fails_is_told_by_the_next_sync_or_close() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let server = Server::start(move |heard: &Heard| {
        if heard.program == n::NFS && heard.procedure == n::WRITE && full.load(SeqCst) {
            Act::Body([28_u32.to_be_bytes(), [0; 4], [0; 4]].concat())
        } else {
            Act::Serve
        }
    });
    let client = server.client("nconnect=1");
    let file = open(&client, Mode::Cached);
    file.write_at(&[6; 10_000], 0).unwrap();
    let error = file.sync().unwrap_err();
    assert!(error.kind == ErrorKind::NoSpace && error.message.contains("no room"), "{error}");
    is_full.store(false, SeqCst);
    file.sync().unwrap();
    assert_eq!(server.durable()[..10_000], [6; 10_000], "it was kept, and tried again");
    // A close that cannot write says so, and another open is told at its sync.
    let beside = open(&client, Mode::Concurrent);
    file.write_at(&[7; 10_000], 0).unwrap();
    is_full.store(true, SeqCst);
    assert_eq!(file.close().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(beside.sync().unwrap_err().kind, ErrorKind::NoSpace);
    beside.sync().unwrap();
}
