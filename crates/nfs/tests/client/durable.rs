//! What a sync promises, whatever becomes of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bedplate_block::AlignedBuf;
use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::{ErrorKind, Mode, OpenOptions, Queue, Stability};

use crate::server::{Act, FILE_BYTES, Heard, Server};

#[test]
fn s_573_what_a_server_lost_is_written_again_by_the_sync() {
    let server = Server::start(|_| Act::Serve);
    let file = server.file("wsize=1000");
    file.write_at(&[1; 5000], 0).unwrap();
    file.write_at(&[2; 100], 450).unwrap();
    server.crash();
    assert_ne!(server.bytes()[..5000], [1; 5000], "it is lost");
    // Written to the server that started again, over a part of what it lost.
    file.write_at(&[3; 2000], 1500).unwrap();
    file.sync().unwrap();
    let durable = server.durable();
    let expected =
        [vec![1; 450], vec![2; 100], vec![1; 950], vec![3; 2000], vec![1; 1500]].concat();
    assert!(durable[..5000] == expected[..], "the newest of each byte");
    let writes = server.count(n::WRITE);
    server.crash();
    file.sync().unwrap();
    assert_eq!(server.count(n::WRITE), writes, "what is durable is not written again");
    assert!(server.durable() == durable);
}

/// What a program wrote it reads, whatever the server remembers: a page that comes back older than it
/// was written would be changed, and written over what the sync saves.
#[test]
fn s_526_what_a_server_lost_is_read_as_it_was_written() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("rsize=1000&wsize=1000");
    let file = client.open(b"file", &OpenOptions::create(Mode::Concurrent)).unwrap();
    let end = FILE_BYTES as u64;
    file.write_at(&[1; 5000], 500).unwrap();
    file.write_at(&[2; 100], 1450).unwrap();
    file.write_at(&[3; 10], end + 100).unwrap();
    server.crash();
    let mut read = vec![9; 6000];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), 6000);
    let before = &server.bytes()[..6000];
    let expected = [&before[..500], &[1; 950], &[2; 100], &[1; 3950], &before[5500..]].concat();
    assert!(read == expected, "the newest of each byte");
    assert_eq!(file.read_at(&mut read[..700], 1500).unwrap(), 700);
    assert!(read[..700] == expected[1500..2200], "from the middle of what is kept");
    // The file is as long as it was made, too, and holds nothing in between.
    assert_eq!(file.read_at(&mut read, end - 1).unwrap(), 111);
    assert!(read[1..101] == [0; 100] && read[101..111] == [3; 10]);
    let attr = file.attributes().unwrap();
    assert_eq!((attr.size, client.present(file.handle(), attr).size), (end, end + 110));
    file.sync().unwrap();
    assert!(server.durable()[..6000] == expected[..]);
    // What was cut off is kept no longer.
    file.write_at(&[4; 100], 0).unwrap();
    file.set_size(50).unwrap();
    server.crash();
    assert!(file.read_at(&mut read[..200], 0).unwrap() >= 50 && read[..50] == [4; 50]);
    assert!(!read[50..100].contains(&4), "nothing comes back behind the end");
}

#[test]
fn s_573_a_crash_between_a_commit_and_its_answer_loses_nothing() {
    let crashes = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&crashes);
    // The connection ends after each commit until it was told.
    let server = Server::start(move |heard| {
        let is_commit = heard.program == n::NFS && heard.procedure == n::COMMIT;
        if is_commit && seen.fetch_add(1, SeqCst) < 3 { Act::Lose } else { Act::Serve }
    });
    let file = server.file("nconnect=2");
    file.write_at(b"one", 0).unwrap();
    file.sync().unwrap();
    file.write_at(b"two", 3).unwrap();
    server.crash();
    file.sync().unwrap();
    assert_eq!(server.durable()[..6], *b"onetwo");
}

#[test]
fn s_573_a_server_whose_verifier_always_changes_ends_up_with_stable_writes() {
    let verifier = AtomicU64::new(1000);
    let server = Server::start(move |heard: &Heard| match (heard.program, heard.procedure) {
        (n::NFS, n::COMMIT) => {
            let mut body = vec![0; 12];
            body.extend(verifier.fetch_add(1, SeqCst).to_be_bytes());
            Act::Body(body)
        }
        _ => Act::Serve,
    });
    let file = server.file("nconnect=1");
    file.write_at(&[5; 3000], 10).unwrap();
    file.sync().unwrap();
    assert_eq!(server.durable()[10..3010], [5; 3000]);
    let last = server.heard().into_iter().rfind(|heard| heard.procedure == n::WRITE).unwrap();
    assert_eq!(last.stable, n::FILE_SYNC);
}

#[test]
fn s_573_writes_that_crashes_go_through_are_all_there_after_a_sync() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("nconnect=3&wsize=4096");
    let file = Arc::new(client.open(b"file", &OpenOptions::create(Mode::Concurrent)).unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(15));
                server.crash();
            }
        });
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let file = Arc::clone(&file);
                scope.spawn(move || {
                    for round in 1..=30 {
                        for block in 0..4 {
                            let at = (writer * 4 + block) * 2048;
                            file.write_at(&[round; 2048], at).unwrap();
                        }
                        file.sync().unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.store(true, SeqCst);
    });
    server.crash();
    assert!(server.durable()[..16 * 2048].iter().all(|byte| *byte == 30), "S-573, I-NFC-2");
}

#[test]
fn s_573_a_list_of_writes_survives_a_crash_as_calls_do() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("wsize=4096&nconnect=2");
    let file = Arc::new(client.open(b"file", &OpenOptions::create(Mode::Direct)).unwrap());
    let mut queue = Queue::new(16);
    let mut done = Vec::new();
    for at in 0..8_u64 {
        let mut buf = AlignedBuf::zeroed(10_000);
        buf.fill(at as u8 + 1);
        queue.write(&file, buf, at * 10_000, at).unwrap();
        // Some are answered and not collected when the sync begins.
        queue.complete(usize::from(at == 3), &mut done);
    }
    server.crash();
    queue.complete(8 - done.len(), &mut done);
    file.sync().unwrap();
    assert!(done.len() == 8 && done.iter().all(|end| end.result == Ok(10_000)));
    let durable = server.durable();
    for at in 0..8 {
        assert!(durable[at * 10_000..(at + 1) * 10_000].iter().all(|byte| *byte == at as u8 + 1));
    }
}

#[test]
fn s_574_what_cannot_be_made_durable_fails_the_sync_and_is_tried_again() {
    let is_full = Arc::new(AtomicBool::new(false));
    let full = Arc::clone(&is_full);
    let server = Server::start(move |heard: &Heard| {
        let stable = heard.procedure == n::WRITE && heard.stable == n::FILE_SYNC;
        if heard.program == n::NFS && stable && full.load(SeqCst) {
            Act::Body([28_u32.to_be_bytes(), [0; 4], [0; 4]].concat())
        } else {
            Act::Serve
        }
    });
    let file = server.file("nconnect=1");
    file.write_at(&[8; 100], 0).unwrap();
    server.crash();
    is_full.store(true, SeqCst);
    for _ in 0..2 {
        let error = file.sync().unwrap_err();
        assert!(error.kind == ErrorKind::NoSpace && error.message.contains("no room"), "{error}");
    }
    is_full.store(false, SeqCst);
    file.sync().unwrap();
    assert_eq!(server.durable()[..100], [8; 100]);
    file.close().unwrap();
}

#[test]
fn s_574_writes_are_as_stable_as_they_are_asked_to_be_and_no_less() {
    let server = Server::start(|_| Act::Serve);
    let client = server.client("nconnect=1");
    for (stability, number) in
        [(Stability::DataSync, n::DATA_SYNC), (Stability::FileSync, n::FILE_SYNC)]
    {
        let open =
            OpenOptions { stability: Some(stability), ..OpenOptions::create(Mode::Concurrent) };
        let file = client.open(b"file", &open).unwrap();
        file.write_at(&[number as u8; 10], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(server.heard().last().unwrap().stable, number, "no commit follows");
        assert_eq!(server.durable()[..10], [number as u8; 10]);
    }
    let liar = Server::start(|heard| match (heard.program, heard.procedure) {
        (n::NFS, n::WRITE) => {
            let mut body = vec![0; 12];
            body.extend([10_u32, n::UNSTABLE].map(u32::to_be_bytes).concat());
            body.extend([0; 8]);
            Act::Body(body)
        }
        _ => Act::Serve,
    });
    let open = OpenOptions {
        stability: Some(Stability::FileSync),
        ..OpenOptions::create(Mode::Concurrent)
    };
    let file = liar.client("nconnect=1").open(b"file", &open).unwrap();
    assert_eq!(file.write_at(&[1; 10], 0).unwrap_err().kind, ErrorKind::Protocol);
}

#[test]
fn s_574_no_more_waits_for_a_commit_than_may() {
    let server = Server::start(|_| Act::Serve);
    let file = server.file("uncommitted=65536&nconnect=1");
    for at in 0..40 {
        file.write_at(&[4; 8192], at * 8192).unwrap();
    }
    // Each nine writes are more than 64 KiB.
    assert_eq!(server.count(n::COMMIT), 4);
    file.close().unwrap();
    assert_eq!(server.count(n::COMMIT), 5);
}

#[test]
fn s_575_in_direct_mode_one_writer_is_alone_and_in_concurrent_mode_none_waits() {
    for (mode, most_expected) in [(Mode::Direct, 1), (Mode::Concurrent, 4)] {
        let server = Server::start(|heard| match (heard.program, heard.procedure) {
            (n::NFS, n::WRITE) => Act::Hold,
            _ => Act::Serve,
        });
        let client = server.client("nconnect=4");
        let file = client.open(b"file", &OpenOptions::create(mode)).unwrap();
        let most = std::thread::scope(|scope| {
            let file = &file;
            let writers: Vec<_> = (0..4_u64)
                .map(|at| scope.spawn(move || file.write_at(&[1; 512], at * 512).unwrap()))
                .collect();
            let begun = Instant::now();
            while server.held() < most_expected && begun.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Time for one that has to wait and does not.
            std::thread::sleep(Duration::from_millis(50));
            let mut most = 0;
            while writers.iter().any(|writer| !writer.is_finished()) {
                most = most.max(server.held());
                server.release();
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        assert_eq!(most, most_expected, "{mode}");
    }
}
