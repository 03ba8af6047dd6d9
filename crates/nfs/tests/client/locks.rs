//! Locks of servers that have none, or whose answers make no sense.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bedplate_nfs::wire::locks::{LOCK, MON, NLM, NSM, TEST, UNLOCK};
use bedplate_nfs::wire::rpc;
use bedplate_nfs::{Client, ErrorKind, LockOwner, Mode, OpenOptions};

use crate::server::{Act, Heard, Server, accepted, record};

const ONE: LockOwner = LockOwner { number: 1, process: 1 };
const TWO: LockOwner = LockOwner { number: 2, process: 2 };
const ONCE: (bool, &dyn Fn() -> bool) = (false, &|| false);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn s_614_where_a_server_has_no_locks_they_are_the_clients_or_it_is_refused() {
    for absent in [NLM, NSM] {
        let server = Server::start(move |heard| match heard.program {
            program if program == absent => Act::Raw(record(&rpc::no_program(heard.xid).0)),
            NLM | NSM => Act::Body(Vec::new()),
            _ => Act::Serve,
        });
        let error = Client::connect(&server.url("locks=server")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        assert!(error.message.contains("locks=local"), "{error}");
        for options in ["locks=auto", "locks=local", ""] {
            let client = server.client(options);
            assert!(!client.locks_on_server());
            let file = client.open(b"file", &OpenOptions::create(Mode::Concurrent)).unwrap();
            assert_eq!(file.lock(ONE, 5..10, true, ONCE), Ok(true));
            assert_eq!(file.lock(TWO, 9..20, false, ONCE), Ok(false));
            let found = file.test_lock(TWO, &(0..20), false).unwrap().unwrap();
            assert_eq!((found.range, found.process), (5..10, 1));
            file.unlock(ONE, &(9..10)).unwrap();
            assert_eq!(file.lock(TWO, 9..20, false, ONCE), Ok(true));
        }
    }
    let error = "nfs://host/x?locks=maybe".parse::<bedplate_nfs::Url>().unwrap_err();
    assert!(error.message.contains("local, server or auto"), "{error}");
}

/// Serves what is asked, with these answers to MON first.
fn serve_after(
    first: impl Fn(usize, &Heard) -> Act + Send + Sync + 'static,
    locks: impl Fn(&Heard) -> Act + Send + Sync + 'static,
) -> Server {
    let asked = AtomicUsize::new(0);
    Server::start(move |heard| match (heard.program, heard.procedure) {
        (NLM | NSM, 0) => Act::Body(Vec::new()),
        (NSM, MON) => first(asked.fetch_add(1, SeqCst), heard),
        (NLM, _) => locks(heard),
        _ => Act::Serve,
    })
}

#[test]
fn s_612_no_call_is_made_before_the_server_has_said_whose_the_connection_is() {
    let server = serve_after(
        |at, heard| match at {
            0 => Act::Body(words(&[1, 0])),
            1 => Act::Body(words(&[0])),
            2 => Act::Last(words(&[u32::MAX, 0, 0])),
            3 => Act::Raw(record(&accepted(heard.xid ^ 1, &words(&[0, 7])))),
            4 => Act::Raw(record(&[0; 8192])),
            5 => Act::Raw([0; 8].repeat(2000)),
            6 => Act::Raw(record(&rpc::no_procedure(heard.xid).0)),
            7 => Act::Raw([0, 1].map(|_| record(&accepted(heard.xid, &words(&[0, 7])))).concat()),
            8 => Act::Lose,
            _ => Act::Body(words(&[0, 7])),
        },
        |_| Act::Silent,
    );
    let client = server.client("locks=server&nconnect=1");
    let file = client.open(b"file", &OpenOptions::create(Mode::Concurrent)).unwrap();
    let mut buf = [0; 16];
    assert_eq!(file.read_at(&mut buf, 0), Ok(16));
    let heard = server.heard();
    let calls: Vec<_> = heard.iter().map(|heard| (heard.program, heard.connection)).collect();
    let ready = calls.iter().rposition(|(program, _)| *program == NSM).unwrap();
    assert!(calls[ready + 1..].iter().all(|(_, connection)| *connection == calls[ready].1));
    let nfs = bedplate_nfs::wire::numbers::NFS;
    assert!(calls[..ready].iter().all(|(program, _)| *program != nfs), "{calls:?}");
}

#[test]
fn s_612_an_answer_about_locks_that_makes_no_sense_is_an_error() {
    // Of LOCK, and of TEST.
    let bad = [
        words(&[]),
        words(&[0]),
        words(&[0, 10]),
        words(&[0, u32::MAX]),
        words(&[100, 0]),
        words(&[u32::MAX, 0]),
    ];
    let holders = [
        words(&[0, 1]),
        words(&[0, 1, 2, 0, 0, 0, 0, 0, 0]),
        words(&[0, 1, 1, 7, 100, 0, 0, 0, 0]),
        words(&[0, 1, 1, 7, 0, u32::MAX, 0, 0, 0]),
        words(&[0, 3]),
    ];
    let at = AtomicUsize::new(0);
    let all: Vec<(u32, Vec<u8>)> = bad
        .iter()
        .flat_map(|body| [(LOCK, body.clone()), (TEST, body.clone())])
        .chain(holders.iter().map(|body| (TEST, body.clone())))
        .collect();
    let answers = all.clone();
    let server = serve_after(
        |_, _| Act::Body(words(&[0, 7])),
        move |heard| match heard.procedure {
            UNLOCK => Act::Body(words(&[0, 0])),
            _ => Act::Body(answers[at.fetch_add(1, SeqCst)].1.clone()),
        },
    );
    let client = server.client("locks=server");
    let file = client.open(b"file", &OpenOptions::create(Mode::Concurrent)).unwrap();
    for (procedure, body) in &all {
        let error = match *procedure {
            LOCK => file.lock(ONE, 0..10, true, ONCE).map(drop),
            _ => file.test_lock(ONE, &(0..10), true).map(drop),
        };
        let error = error.expect_err(&format!("{body:?}"));
        assert_eq!(error.kind, ErrorKind::Protocol, "{body:?}: {error}");
    }
    assert_eq!(file.read_at(&mut [0; 16], 0), Ok(16), "all else goes on");
}
