//! Calls in flight: their bound, calls that are made again, servers that are silent.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bedplate_block::AlignedBuf;
use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::{ErrorKind, Mode, OpenOptions, Queue};

use crate::server::{Act, FILE_BYTES, Heard, Server};

/// Does something of the first calls of a procedure.
fn first(procedure: u32, times: usize, act: impl Fn() -> Act) -> impl Fn(&Heard) -> Act {
    let seen = AtomicUsize::new(0);
    move |heard| {
        let is_it = heard.program == n::NFS && heard.procedure == procedure;
        if is_it && seen.fetch_add(1, SeqCst) < times { act() } else { Act::Serve }
    }
}

fn content(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn s_571_reads_and_writes_are_cut_to_what_the_server_takes_and_go_over_all_connections() {
    let server = Server::start(|_| Act::Serve);
    let file = server.file("rsize=8192&wsize=4096&nconnect=3");
    let mut buf = vec![0; 100_001];
    assert_eq!(file.read_at(&mut buf, 5), Ok(100_001));
    assert_eq!(buf, content(5, 100_001));
    let end = FILE_BYTES as u64 - 3;
    assert_eq!(file.read_at(&mut buf, end), Ok(3));
    assert_eq!(file.read_at(&mut buf, end + 3), Ok(0));
    file.write_at(&[9; 10_000], 77).unwrap();
    file.sync().unwrap();
    assert_eq!(server.durable()[77..10_077], [9; 10_000]);
    let heard = server.heard();
    let of = |procedure| heard.iter().filter(move |heard| heard.procedure == procedure);
    // Three connections: the calls may come in any order.
    let mut writes: Vec<_> = of(n::WRITE).map(|heard| (heard.offset, heard.count)).collect();
    writes.sort_unstable();
    assert_eq!(writes, [(77, 4096), (4173, 4096), (8269, 1808)]);
    assert!(of(n::READ).all(|heard| heard.count <= 8192));
    let connections: HashSet<_> = of(n::READ).map(|heard| heard.connection).collect();
    assert_eq!(connections.len(), 3);
}

#[test]
fn s_571_no_more_calls_are_in_flight_than_are_allowed() {
    let server = Server::start(|heard| match (heard.program, heard.procedure) {
        (n::NFS, n::READ) => Act::Hold,
        _ => Act::Serve,
    });
    let file = Arc::new(server.file("calls=3&nconnect=2"));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut queue = Queue::new(10);
            for at in 0..10 {
                queue.read(&file, AlignedBuf::zeroed(512), at * 512, at).unwrap();
            }
            assert!(queue.read(&file, AlignedBuf::zeroed(512), 0, 11).is_err(), "it is full");
            let mut done = Vec::new();
            queue.complete(10, &mut done);
            done
        });
        let mut most = 0;
        while !worker.is_finished() {
            let waiting = server.count(n::READ);
            // Two looks apart: what is allowed has come, and no more comes.
            std::thread::sleep(Duration::from_millis(30));
            if server.count(n::READ) == waiting {
                most = most.max(server.held());
                server.release();
            }
        }
        let done = worker.join().unwrap();
        assert_eq!((done.len(), most), (10, 3));
        for end in done {
            assert_eq!(end.result, Ok(512));
            assert_eq!(end.buf[..], content(end.token as usize * 512, 512));
        }
    });
}

#[test]
fn s_572_a_call_without_an_answer_is_made_again_with_its_number_on_another_connection() {
    let server = Server::start(first(n::READ, 2, || Act::Silent));
    let file = server.file("nconnect=1&timeo=2");
    let mut buf = [0; 100];
    assert_eq!(file.read_at(&mut buf, 0), Ok(100));
    let heard = server.heard();
    let reads: Vec<_> = heard.iter().filter(|heard| heard.procedure == n::READ).collect();
    assert_eq!(reads.len(), 3);
    assert!(reads.iter().all(|read| read.xid == reads[0].xid), "the number stays");
    assert!(reads.windows(2).all(|pair| pair[0].connection != pair[1].connection));
}

#[test]
fn s_572_a_reply_that_is_lost_with_its_connection_is_given_again() {
    let server = Server::start(first(n::WRITE, 3, || Act::Lose));
    let file = server.file("nconnect=1");
    let begun = Instant::now();
    file.write_at(b"again", 10).unwrap();
    file.sync().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "a break is not waited for");
    assert_eq!(server.durable()[10..15], *b"again");
    assert_eq!(server.count(n::WRITE), 4);
}

#[test]
fn s_572_a_second_answer_to_one_call_is_dropped() {
    let server = Server::start(|heard| match (heard.program, heard.procedure) {
        (n::NFS, n::READ) => Act::Twice,
        _ => Act::Serve,
    });
    let file = server.file("nconnect=1");
    let mut buf = [0; 64];
    for at in 0..50 {
        assert_eq!(file.read_at(&mut buf, at * 64), Ok(64));
        assert_eq!(buf[..], content(at as usize * 64, 64));
    }
    assert_eq!(server.count(n::READ), 50, "nothing was made again");
}

#[test]
fn s_572_a_soft_client_fails_in_its_time_with_a_sentence_and_a_hard_one_waits() {
    let server = Server::start(first(n::READ, 3, || Act::Silent));
    let soft = server.file("soft&retrans=1&nconnect=1&timeo=2");
    let begun = Instant::now();
    let error = soft.read_at(&mut [0; 10], 0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut, "{error}");
    assert!(error.message.contains("does not answer") && !error.message.contains('\n'), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(600), "200 ms, and 400 ms once more");
    assert_eq!(server.count(n::READ), 2);
    let hard = server.file("hard&retrans=1&nconnect=1&timeo=2");
    assert_eq!(hard.read_at(&mut [0; 10], 0), Ok(10));
    assert_eq!(server.count(n::READ), 4);
}

#[test]
fn s_572_calls_wait_for_a_server_that_starts_again_and_soft_ones_do_not() {
    let server = Server::start(|_| Act::Serve);
    let options = "retrans=0&nconnect=2&timeo=2";
    let (hard, soft) = (server.file(options), server.file(&format!("soft&{options}")));
    let address = server.address;
    drop(server);
    let error = soft.read_at(&mut [0; 10], 0).unwrap_err();
    assert!(error.kind == ErrorKind::TimedOut && error.message.contains("reached"), "{error}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| hard.read_at(&mut [0; 10], 0));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished());
        let server = Server::start_at(address, |_| Act::Serve);
        assert_eq!(waiting.join().unwrap(), Ok(10));
        drop(server);
    });
}

#[test]
fn s_576_a_list_moves_what_its_buffers_hold_and_ends_where_the_file_ends() {
    let server = Server::start(|_| Act::Serve);
    for mode in Mode::ALL {
        let client = server.client("rsize=4096&wsize=4096&calls=2");
        let file = Arc::new(client.open(b"file", &OpenOptions::create(mode)).unwrap());
        let mut queue = Queue::new(8);
        for token in 0..4 {
            let buf = AlignedBuf::zeroed(10_000);
            queue.read(&file, buf, token * 10_000, token).unwrap();
        }
        let mut written = AlignedBuf::zeroed(9000);
        written.fill(7);
        queue.write(&file, written, 500_000, 4).unwrap();
        queue.read(&file, AlignedBuf::zeroed(5000), FILE_BYTES as u64 - 4500, 5).unwrap();
        queue.read(&file, AlignedBuf::zeroed(16), u64::MAX - 3, 6).unwrap();
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.complete(1, &mut done);
        }
        done.sort_by_key(|end| end.token);
        let lens: Vec<_> = done.iter().map(|end| end.result.as_ref().ok().copied()).collect();
        let whole = Some(10_000);
        assert_eq!(lens, [whole, whole, whole, whole, Some(9000), Some(4500), None], "{mode}");
        for end in &done[..4] {
            assert_eq!(end.buf[..], content(end.token as usize * 10_000, 10_000));
        }
        file.sync().unwrap();
        assert_eq!(server.durable()[500_000..509_000], [7; 9000]);
    }
}

#[test]
fn s_576_a_server_that_asks_to_come_again_later_is_asked_again() {
    let jukebox = || Act::Body([10_008_u32.to_be_bytes(), [0; 4], [0; 4]].concat());
    let server = Server::start(move |heard: &Heard| {
        // Each procedure once.
        let is_first = matches!(heard.procedure, n::READ | n::WRITE | n::COMMIT);
        if heard.program == n::NFS && is_first && heard.xid.is_multiple_of(2) {
            jukebox()
        } else {
            Act::Serve
        }
    });
    let file = server.file("nconnect=1&timeo=2");
    for at in 0..4 {
        file.write_at(&[at; 9], 9 * u64::from(at)).unwrap();
        assert_eq!(file.read_at(&mut [0; 9], 0), Ok(9));
    }
    file.sync().unwrap();
    assert_eq!(server.durable()[27..36], [3; 9]);
    let soft = server.file("soft&retrans=0&nconnect=1&timeo=2");
    let error = (0..2).find_map(|_| soft.read_at(&mut [0; 9], 0).err());
    assert!(error.is_none_or(|error| error.kind == ErrorKind::TimedOut));
}

/// Parks the thread until the answer is here, as an executor of one task.
struct Parker(std::thread::Thread);

impl std::task::Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn s_576_an_answer_is_a_future_for_any_executor() {
    let server = Server::start(|heard| match (heard.program, heard.procedure) {
        (n::NFS, n::READ) => Act::Hold,
        _ => Act::Serve,
    });
    let file = server.file("nconnect=1");
    let waker = Arc::new(Parker(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut reads = [0, 1, 2].map(|at| Box::pin(file.read_later(at * 100, 100)));
    assert!(reads.iter_mut().all(|read| read.as_mut().poll(&mut context).is_pending()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while server.held() < 3 {
                std::thread::sleep(Duration::from_millis(5));
            }
            server.release();
        });
        for (at, read) in reads.iter_mut().enumerate() {
            let bytes = loop {
                match read.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(bytes) => break bytes.unwrap(),
                    std::task::Poll::Pending => std::thread::park(),
                }
            };
            assert_eq!(bytes, content(at * 100, 100));
        }
    });
}
