//! Servers that lie, stall and go away.

use std::time::{Duration, Instant};

use bedplate_nfs::wire::attr::Kind;
use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::wire::rpc;
use bedplate_nfs::wire::xdr::Writer;
use bedplate_nfs::{Client, ErrorKind};

use crate::server::{Act, Heard, Server, accepted, attr, record};

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn is_read(heard: &Heard) -> bool {
    heard.program == n::NFS && heard.procedure == n::READ
}

/// A result of READ: what is said of the number of bytes, and the bytes.
fn read_body(count: u32, is_end: bool, len: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    for word in [0, 0, count, u32::from(is_end), len] {
        out.u32(word);
    }
    out.0.extend(bytes);
    out.0
}

#[test]
fn s_577_answers_that_no_server_gives_fail_the_call_and_nothing_else() {
    let lies: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("half a status", vec![0, 0]),
        ("no attributes", vec![0; 4]),
        ("attributes that are neither there nor not", [[0; 4], [0, 0, 0, 9]].concat()),
        ("more than was asked for", read_body(200, false, 200, &[1; 200])),
        ("a length without bytes", read_body(100, false, 100, &[1; 8])),
        ("a length of 4 GiB", read_body(u32::MAX, false, u32::MAX, &[1; 8])),
        ("two lengths", read_body(4, true, 8, &[1; 8])),
        ("no bytes and no end", read_body(0, false, 0, &[])),
        ("an unknown status", vec![0, 0, 99, 99]),
    ];
    for (name, body) in lies {
        let told = body.clone();
        let server = Server::start(move |heard| {
            if is_read(heard) && heard.offset == 0 { Act::Body(told.clone()) } else { Act::Serve }
        });
        let file = server.file("nconnect=1&soft&retrans=0");
        let error = file.read_at(&mut [0; 100], 0).expect_err(name);
        assert!(matches!(error.kind, ErrorKind::Protocol | ErrorKind::Io), "{name}: {error}");
        assert!(!error.message.contains('\n'), "{name}: {error}");
        assert_eq!(file.read_at(&mut [0; 100], 512), Ok(100), "{name}: another call");
    }
}

#[test]
fn s_577_what_is_no_reply_ends_the_connection_and_the_call_is_made_again() {
    type Lie = fn(u32) -> Act;
    let lies: [(&str, Lie); 9] = [
        ("garbage", |_| Act::Raw(b"GET / HTTP/1.1\r\n\r\n".to_vec())),
        ("a length of 2 GiB", |_| Act::Raw(vec![0xff; 4])),
        ("a length just above what is asked for", |_| {
            Act::Raw((0x8000_0000_u32 | (2 << 20)).to_be_bytes().to_vec())
        }),
        ("a call", |xid| Act::Raw(record(&[xid.to_be_bytes(), [0; 4]].concat()))),
        ("an empty message", |_| Act::Raw(record(b""))),
        ("fragments without end", |_| Act::Raw(vec![0; 4 * 65])),
        ("an end within a mark", |_| Act::Last(vec![0x80, 0])),
        ("an end within a message", |xid| {
            let whole = record(&accepted(xid, &[0; 100]));
            Act::Last(whole[..whole.len() - 50].to_vec())
        }),
        ("an end at once", |_| Act::Last(vec![])),
    ];
    for (name, lie) in lies {
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let server = Server::start(move |heard| {
            let lies = is_read(heard) && seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2;
            if lies { lie(heard.xid) } else { Act::Serve }
        });
        let file = server.file("nconnect=1");
        let begun = Instant::now();
        assert_eq!(file.read_at(&mut [0; 100], 0), Ok(100), "{name}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: nothing is waited for");
        assert_eq!(server.count(n::READ), 3, "{name}");
    }
}

#[test]
fn s_577_an_answer_to_another_call_is_none() {
    let server = Server::start(|heard| {
        if is_read(heard) && heard.connection < 3 {
            Act::Raw(record(&accepted(heard.xid ^ 1, &read_body(4, true, 4, b"evil"))))
        } else {
            Act::Serve
        }
    });
    let file = server.file("nconnect=1&timeo=2");
    let mut buf = [0; 4];
    assert_eq!(file.read_at(&mut buf, 0), Ok(4));
    assert_ne!(&buf, b"evil");
}

#[test]
fn s_577_refusals_of_calls_are_told_in_a_sentence() {
    type Refusal = fn(u32) -> Writer;
    let refusals: [(Refusal, &str); 6] = [
        (rpc::no_program, "no NFS"),
        (|xid| rpc::other_version(xid, 4), "version 3"),
        (rpc::no_procedure, "no such procedure"),
        (rpc::garbage, "cannot read"),
        (|xid| rpc::denied(xid, rpc::AuthStatus::TooWeak), "AUTH_SYS"),
        (rpc::other_rpc, "refuses"),
    ];
    for (refusal, words) in refusals {
        let server = Server::start(move |heard| match (heard.program, heard.procedure) {
            (n::NFS, n::READ) => Act::Raw(record(&refusal(heard.xid).0)),
            _ => Act::Serve,
        });
        let file = server.file("nconnect=1");
        let error = file.read_at(&mut [0; 9], 0).unwrap_err();
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn s_577_a_server_that_floods_costs_no_memory_and_stops_no_call() {
    let server = Server::start(|heard| {
        if is_read(heard) && heard.offset == 0 {
            // Answers to calls that were never made, each of nearly a read's length.
            let answer = record(&accepted(heard.xid ^ 0x8000_0000, &vec![7; 1 << 20]));
            Act::Raw(answer.repeat(64))
        } else {
            Act::Serve
        }
    });
    let file = server.file("nconnect=1&soft&retrans=2&timeo=2");
    assert_eq!(file.read_at(&mut [0; 9], 512), Ok(9));
    let before = resident_bytes();
    let error = file.read_at(&mut [0; 9], 0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut, "{error}");
    // The server's own buffers are in this process, too: 64 MiB for each connection at most.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 300 << 20, "{grown}");
    assert_eq!(file.read_at(&mut [0; 9], 512), Ok(9));
}

#[test]
fn s_577_a_mount_that_is_answered_wrongly_is_refused() {
    let mount = |status: u32, handle: &[u8], flavors: &[u32]| {
        let mut out = Writer::default();
        out.u32(status);
        out.opaque(handle);
        out.u32(flavors.len() as u32);
        flavors.iter().for_each(|flavor| out.u32(*flavor));
        out.0
    };
    let limits = |read: u32| {
        let mut out = Writer::default();
        [0, 0, read, read, 1, 4096, 4096, 1, 4096].iter().for_each(|word| out.u32(*word));
        out.0
    };
    let cases: Vec<(u32, Vec<u8>, &str)> = vec![
        (n::MOUNT, mount(13, b"", &[]), "does not let this user"),
        (n::MOUNT, mount(0, &[1; 65], &[1]), "cannot be read"),
        (n::MOUNT, mount(0, b"root", &[390_003]), "Kerberos"),
        (n::MOUNT, vec![0, 0, 0, 0, 0, 0, 0, 4], "cannot be read"),
        (n::NFS, limits(0), "reads of 0"),
        (n::NFS, vec![], "cannot be read"),
    ];
    for (program, body, words) in cases {
        let told = body.clone();
        let server = Server::start(move |heard| {
            if heard.program == program { Act::Body(told.clone()) } else { Act::Serve }
        });
        let error = Client::connect(&server.url("soft&retrans=0")).unwrap_err();
        assert!(error.message.contains(words), "{words}: {error}");
        assert!(error.message.contains("mount nfs://127.0.0.1/x"), "{error}");
    }
}

#[test]
fn s_577_listings_and_links_that_never_end_are_ended() {
    let entry = |name: &[u8], cookie: u64| {
        let mut out = Writer::default();
        out.bool(true);
        out.u64(1);
        out.opaque(name);
        out.u64(cookie);
        out.bool(false);
        out.bool(false);
        out.0
    };
    let listing = |entries: &[u8], is_end: bool| {
        let mut out = Writer::default();
        [0, 0, 0, 0].iter().for_each(|word| out.u32(*word));
        out.0.extend(entries);
        out.bool(false);
        out.bool(is_end);
        out.0
    };
    for body in [
        listing(&entry(b"same", 0), false),
        listing(b"", false),
        listing(&entry(b"a/b", 5), true),
        listing(&entry(b"", 5), true),
        listing(&entry(&[b'x'; 256], 5), true),
    ] {
        let told = body.clone();
        let server = Server::start(move |heard| match (heard.program, heard.procedure) {
            (n::NFS, n::READDIRPLUS) => Act::Body(told.clone()),
            _ => Act::Serve,
        });
        let client = server.client("nconnect=1");
        let error = client.list(client.root(), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
    }
    // A link that leads to itself.
    let server = Server::start(|heard| match (heard.program, heard.procedure) {
        (n::NFS, n::LOOKUP) => {
            let mut out = Writer::default();
            out.u32(0);
            out.opaque(b"link");
            out.bool(true);
            attr(Kind::Symlink, 4).write(&mut out);
            out.bool(false);
            Act::Body(out.0)
        }
        (n::NFS, n::READLINK) => {
            let mut out = Writer::default();
            out.u32(0);
            out.bool(false);
            out.opaque(b"link");
            Act::Body(out.0)
        }
        _ => Act::Serve,
    });
    let error = server.client("nconnect=1").find(b"link").unwrap_err();
    assert!(error.message.contains("symbolic link"), "{error}");
}

#[test]
fn s_577_a_client_ends_while_its_server_is_silent() {
    let server = Server::start(|heard| if is_read(heard) { Act::Silent } else { Act::Serve });
    let file = server.file("nconnect=2");
    let answers: Vec<_> = (0..4).map(|at| file.read_later(at, 10)).collect();
    let begun = Instant::now();
    drop(file);
    for answer in answers {
        assert_eq!(answer.wait().unwrap_err().kind, ErrorKind::Closed);
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
}
