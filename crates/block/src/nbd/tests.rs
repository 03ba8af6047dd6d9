use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fake::{ALL, Act, Fake, Rules, export_fact, greeting, option_answer, reply};
use super::wire::{command, errno, option_reply, transmission};
use crate::{
    AlignedBuf, BlockDevice, DeviceOptions, Error, ErrorKind, QueueOptions, Request, RequestKind,
    Segment, open,
};

const TO_LOOK: fn() -> DeviceOptions =
    || DeviceOptions { read_only: true, exclusive: false, ..DeviceOptions::default() };

fn opened(fake: &Fake) -> Arc<dyn BlockDevice> {
    open(fake.uri(), &DeviceOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(rules: Rules, options: &DeviceOptions) -> Error {
    let fake = Fake::start(rules);
    open(fake.impatient_uri(), options).expect_err("S-551: it is refused")
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> crate::Result<Vec<u8>> {
    let mut buf = AlignedBuf::zeroed(len);
    device.read_at(&mut buf, offset).map(|()| buf.to_vec())
}

/// Asserts that an error is one sentence of this device.
fn is_told(error: &Error, kind: ErrorKind, part: &str) {
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.device.starts_with("nbd+unix:///disk?socket="), "S-550: {error}");
    assert!(error.detail.contains(part), "'{part}' is missing: {error}");
    assert!(!error.to_string().contains(char::is_control), "S-551: {error:?}");
}

#[test]
fn s_549_the_geometry_is_what_the_server_tells() {
    let geometry = |rules: Rules| {
        let device = opened(&Fake::start(rules));
        let told = device.geometry();
        let sizes = [told.logical_block_size, told.physical_block_size, told.untorn_unit];
        (device.size_bytes(), sizes, told.volatile_cache, told.read_only)
    };
    let size = (8 << 20) + 4096 + 1024 + 100;
    let silent = geometry(Rules { size, ..Rules::default() });
    assert_eq!(silent, ((8 << 20) + 5120, [512, 4096, 512], true, false), "S-549");
    for (told, sizes) in [
        ([1, 4096, 32 << 20], [512, 4096, 512]),
        ([4096, 65536, 1 << 20], [4096, 65536, 4096]),
        ([4096, 1 << 20, 1 << 20], [4096, 4096, 4096]),
        ([512, 3000, 1 << 20], [512, 512, 512]),
    ] {
        let rules = Rules { size, block_bytes: Some(told), ..Rules::default() };
        let (bytes, has, ..) = geometry(rules);
        assert_eq!((bytes, has), (size - size % u64::from(sizes[0]), sizes), "S-549: {told:?}");
    }
}

#[test]
fn s_549_nothing_is_written_where_no_flush_says_when_it_is_durable() {
    let flags = ALL & !transmission::SEND_FLUSH;
    let error = refused(Rules { flags, ..Rules::default() }, &DeviceOptions::default());
    is_told(&error, ErrorKind::Unsupported, "takes no flush");
    let fake = Fake::start(Rules { flags, ..Rules::default() });
    let device = open(fake.uri(), &TO_LOOK()).unwrap();
    assert_eq!(read(&*device, 0, 512).unwrap(), [0; 512]);
    assert!(device.geometry().read_only && !device.geometry().volatile_cache, "S-549");
    let error = device.write_at(&AlignedBuf::zeroed(512), 0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly);
    let flags = ALL | transmission::READ_ONLY;
    let error = refused(Rules { flags, ..Rules::default() }, &DeviceOptions::default());
    is_told(&error, ErrorKind::ReadOnly, "read-only");
}

#[test]
fn s_549_several_connections_only_where_a_flush_on_one_covers_all() {
    for (more, expected) in [(0, 1), (transmission::CAN_MULTI_CONN, 4)] {
        let fake = Fake::start(Rules { flags: ALL | more, ..Rules::default() });
        let device = opened(&fake);
        for at in 0..16 {
            device.write_at(&AlignedBuf::zeroed(512), at * 512).unwrap();
        }
        device.flush().unwrap();
        let heard = fake.heard();
        let writers: BTreeSet<usize> = heard.iter().map(|heard| heard.connection).collect();
        assert_eq!((writers.len(), fake.connections()), (expected, expected), "I-NDV-2, S-549");
        assert_eq!(heard.iter().filter(|heard| heard.kind == command::FLUSH).count(), 1);
        assert_eq!(heard.last().unwrap().kind, command::FLUSH, "S-549: behind what was answered");
        drop(device);
    }
}

/// The bytes of the server are those that the threads wrote, whichever connection and way they took.
#[test]
fn s_549_many_threads_read_what_they_wrote() {
    const PART: u64 = 1 << 20;
    let flags = ALL | transmission::CAN_MULTI_CONN;
    let fake =
        Fake::start(Rules { flags, block_bytes: Some([1, 4096, 65536]), ..Rules::default() });
    let device = opened(&fake);
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || worked(&**device, thread * PART, PART))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    device.flush().unwrap();
    let bytes = fake.bytes();
    for (at, part) in parts.iter().enumerate() {
        let start = at * PART as usize;
        assert!(bytes[start..start + PART as usize] == **part, "S-549: part {at}");
    }
    assert!(fake.heard().iter().all(|heard| heard.len <= 65536), "S-549: what the server takes");
    let counters = device.counters();
    assert!(counters.reads > 0 && counters.writes > 0 && counters.errors == 0, "{counters:?}");
}

/// Writes to a part of a device at random, looks at what is there, and returns what should be.
fn worked(device: &dyn BlockDevice, start: u64, len: u64) -> Vec<u8> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(start);
    let mut model = vec![0; len as usize];
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    for round in 0..120_u64 {
        let blocks = random.random_range(1..=400_u64);
        let at = random.random_range(0..len / 512 - blocks) * 512;
        let range = at as usize..(at + blocks * 512) as usize;
        match random.random_range(0..6) {
            0 | 1 => {
                let byte = random.random();
                model[range.clone()].fill(byte);
                let buf = AlignedBuf::from_slice(&model[range]);
                device.write_at(&buf, start + at).unwrap();
            }
            2 => {
                model[range.clone()].fill(round as u8);
                let buf = Some(AlignedBuf::from_slice(&model[range.clone()]));
                let first = Segment { offset: start + at, len: range.len() as u32 };
                let (token, rest) = (round, Vec::new());
                queue.push(Request { token, kind: RequestKind::Write, buf, first, rest }).unwrap();
                let mut done = Vec::new();
                queue.complete(1, &mut done).unwrap();
                assert!(done[0].token == round && done[0].result.is_ok());
            }
            3 => {
                model[range.clone()].fill(0);
                device.write_zeroes(start + at, range.len() as u64).unwrap();
            }
            4 => {
                model[range.clone()].fill(0);
                assert!(device.discard_to_zeros(start + at, range.len() as u64).unwrap());
            }
            _ => {
                assert!(read(device, start + at, range.len()).unwrap() == model[range], "{round}");
            }
        }
    }
    model
}

#[test]
fn s_549_what_a_server_does_not_offer_is_done_otherwise_or_not_at_all() {
    let flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH;
    let fake = Fake::start(Rules { flags, ..Rules::default() });
    let device = opened(&fake);
    device.write_at(&AlignedBuf::from_slice(&[7; 4096]), 0).unwrap();
    assert!(!device.discard(0, 512).unwrap() && !device.discard_to_zeros(0, 512).unwrap());
    device.write_zeroes(512, 1024).unwrap();
    let bytes = fake.bytes();
    assert!(bytes[512..1536] == [0; 1024] && bytes[..512] == [7; 512] && bytes[1536] == 7);
    // One that says so and then does not serve it.
    let decide = |heard: &super::fake::Heard| match heard.kind {
        command::TRIM | command::WRITE_ZEROES => Act::Errno(errno::ENOTSUP),
        _ => Act::Serve,
    };
    let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
    let device = opened(&fake);
    device.write_at(&AlignedBuf::from_slice(&[7; 4096]), 0).unwrap();
    assert!(!device.discard(0, 512).unwrap() && !device.discard_to_zeros(0, 512).unwrap());
    device.write_zeroes(512, 1024).unwrap();
    assert!(fake.bytes()[512..1536] == [0; 1024] && fake.bytes()[1536] == 7);
}

#[test]
fn s_550_an_error_of_the_server_is_that_of_one_request() {
    let decide = |heard: &super::fake::Heard| match (heard.kind, heard.offset) {
        (command::FLUSH, _) => Act::Errno(errno::EIO),
        (command::WRITE, 0) => Act::Errno(errno::ENOSPC),
        (command::READ, 512) => Act::Errno(0x7fff_ffff),
        _ => Act::Serve,
    };
    let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
    let device = opened(&fake);
    let block = AlignedBuf::zeroed(512);
    is_told(&device.write_at(&block, 0).unwrap_err(), ErrorKind::NoSpace, "the server says");
    is_told(&read(&*device, 512, 512).unwrap_err(), ErrorKind::Io, "the server says");
    is_told(&device.flush().unwrap_err(), ErrorKind::Io, "the medium failed");
    device.write_at(&block, 512).unwrap();
    assert_eq!((fake.connections(), device.counters().errors), (1, 3));
}

/// Requests are in flight on every connection when one of them breaks.
#[test]
fn s_550_a_broken_connection_fails_all_that_is_in_flight_and_all_that_comes() {
    const THREADS: usize = 8;
    let waiting = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waiting);
    // The last of them is not answered, as the others are not, and ends its connection.
    let decide = move |heard: &super::fake::Heard| match heard.offset {
        0 => Act::Serve,
        _ if count.fetch_add(1, SeqCst) + 1 == THREADS => Act::Last(Vec::new()),
        _ => Act::Silent,
    };
    let flags = ALL | transmission::CAN_MULTI_CONN;
    let fake = Fake::start(Rules { flags, decide: Box::new(decide), ..Rules::default() });
    let device = opened(&fake);
    let block = AlignedBuf::from_slice(&[1; 512]);
    device.write_at(&block, 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=THREADS as u64 {
            let (device, block) = (&device, &block);
            scope.spawn(move || {
                let error = device.write_at(block, thread * 4096).unwrap_err();
                is_told(&error, ErrorKind::Io, "the server closed the connection");
                assert_eq!(error.offset, Some(thread * 4096));
            });
        }
    });
    assert_eq!(waiting.load(SeqCst), THREADS);
    // The server is there, and is not asked again: what it answered and has not flushed may be lost.
    for error in [
        device.flush().unwrap_err(),
        read(&*device, 0, 512).unwrap_err(),
        device.write_at(&block, 0).unwrap_err(),
        device.write_zeroes(0, 512).unwrap_err(),
        device.discard(0, 512).unwrap_err(),
    ] {
        is_told(&error, ErrorKind::Io, "not made again: the server closed the connection");
    }
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let (first, rest) = (Segment { offset: 0, len: 0 }, Vec::new());
    queue.push(Request { token: 9, kind: RequestKind::Flush, buf: None, first, rest }).unwrap();
    let mut done = Vec::new();
    queue.complete(1, &mut done).unwrap();
    assert!(done[0].result.is_err(), "S-550, I-NDV-1");
    assert_eq!(fake.connections(), 4, "S-550: no connection is made again");
    // Nor is it in the way of another device.
    let again = opened(&fake);
    assert_eq!(read(&*again, 0, 512).unwrap(), [1; 512]);
}

#[test]
fn s_550_a_server_that_does_not_answer_is_given_up() {
    let decide = |heard: &super::fake::Heard| match heard.kind {
        command::FLUSH => Act::Silent,
        _ => Act::Serve,
    };
    let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
    let device = open(fake.impatient_uri(), &DeviceOptions::default()).unwrap();
    let block = AlignedBuf::zeroed(512);
    device.write_at(&block, 0).unwrap();
    is_told(&device.flush().unwrap_err(), ErrorKind::Io, "did not answer within 1 s");
    is_told(&device.write_at(&block, 0).unwrap_err(), ErrorKind::Io, "did not answer within 1 s");
}

/// One that is stopped takes what its socket holds, and no more.
#[test]
fn s_550_a_server_that_takes_nothing_is_given_up() {
    let decide = |_: &super::fake::Heard| {
        std::thread::sleep(std::time::Duration::from_secs(3));
        Act::Serve
    };
    let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
    let device = open(fake.impatient_uri(), &DeviceOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let device = &device;
            scope.spawn(move || {
                let error =
                    device.write_at(&AlignedBuf::zeroed(2 << 20), thread << 21).unwrap_err();
                is_told(&error, ErrorKind::Io, "the server");
            });
        }
    });
}

#[test]
fn s_551_replies_that_are_none_break_the_connection_in_one_sentence() {
    let chunk = |cookie: u64| {
        let mut bytes = super::wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(u32::MAX.to_be_bytes());
        bytes
    };
    type Answer = Box<dyn Fn(u64) -> Act + Send + Sync>;
    let answers: Vec<(Answer, &str)> = vec![
        (Box::new(|_| Act::Raw(vec![0x55; 64])), "no reply"),
        (Box::new(move |cookie| Act::Raw(chunk(cookie))), "no reply"),
        (Box::new(|cookie| Act::Raw(reply(cookie + 77, 0))), "was not made"),
        (Box::new(|cookie| Act::Raw(reply(cookie + 77, 5))), "was not made"),
        (Box::new(|cookie| Act::Last(reply(cookie, 0))), "closed the connection"),
        (Box::new(|cookie| Act::Last(reply(cookie, 0)[..9].to_vec())), "closed the connection"),
        (Box::new(|cookie| Act::Last([reply(cookie, 0), vec![1; 511]].concat())), "closed the"),
        (Box::new(|cookie| Act::Raw([reply(cookie, 0), vec![1; 511]].concat())), "within 1 s"),
    ];
    for (answer, part) in answers {
        let decide = move |heard: &super::fake::Heard| answer(heard.cookie);
        let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
        let device = open(fake.impatient_uri(), &DeviceOptions::default()).unwrap();
        is_told(&read(&*device, 0, 512).unwrap_err(), ErrorKind::Io, part);
        is_told(&read(&*device, 0, 512).unwrap_err(), ErrorKind::Io, part);
    }
    // More than was asked for, and one answer twice: what is too much is no reply.
    for more in [vec![1; 600], [vec![0; 512], reply(1, 0)].concat()] {
        let decide = move |heard: &super::fake::Heard| {
            Act::Raw([reply(heard.cookie, 0), more.clone()].concat())
        };
        let fake = Fake::start(Rules { decide: Box::new(decide), ..Rules::default() });
        let device = open(fake.impatient_uri(), &DeviceOptions::default()).unwrap();
        // The first may be answered whole before the rest is heard.
        let _first = read(&*device, 0, 512);
        let second = std::iter::repeat_with(|| read(&*device, 0, 512)).find_map(Result::err);
        is_told(&second.unwrap(), ErrorKind::Io, "connection broke");
    }
}

#[test]
fn s_551_handshakes_that_are_none_are_refused_in_one_sentence() {
    let instead = |bytes: Vec<u8>| Rules { instead: Some(bytes), ..Rules::default() };
    let answer = |bytes: Vec<u8>| Rules {
        answer: Some(Box::new(move || bytes.clone())),
        ..Rules::default()
    };
    let ack = || option_answer(option_reply::ACK, &[]);
    let told = |size: u64, flags: u16| [export_fact(size, flags), ack()].concat();
    let blocks = |bytes: [u32; 3]| Rules { block_bytes: Some(bytes), ..Rules::default() };
    let mut long = option_answer(option_reply::INFO, &[]);
    long[16..].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut old = greeting();
    old[8..16].copy_from_slice(&0x0000_4202_8186_1253_u64.to_be_bytes());
    let error = |kind: u32, text: &str| answer(option_answer(1 << 31 | kind, text.as_bytes()));
    for (rules, kind, part) in [
        (instead(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), ErrorKind::Io, "no NBD server"),
        (instead(Vec::new()), ErrorKind::Io, "did not answer in time"),
        (instead(greeting()[..12].to_vec()), ErrorKind::Io, "did not answer in time"),
        (instead(old), ErrorKind::Unsupported, "an old NBD only"),
        (instead([greeting(), vec![9; 40]].concat()), ErrorKind::Io, "was not asked"),
        (answer(long), ErrorKind::Io, "an answer of 4294967295 bytes"),
        (answer(ack()), ErrorKind::Io, "without telling"),
        (answer(option_answer(option_reply::INFO, &[0])), ErrorKind::Io, "cut off"),
        (answer(option_answer(option_reply::INFO, &[0; 9])), ErrorKind::Io, "cut off"),
        (answer(export_fact(1, ALL).repeat(100)), ErrorKind::Io, "not come to an end"),
        (answer(told(u64::MAX, ALL)), ErrorKind::Io, "a size of"),
        (answer(told(1 << 20, 0)), ErrorKind::Io, "no flags"),
        (blocks([0, 4096, 4096]), ErrorKind::Io, "which cannot be"),
        (blocks([3, 4096, 4096]), ErrorKind::Io, "which cannot be"),
        (blocks([1 << 17, 1 << 17, 1 << 20]), ErrorKind::Io, "which cannot be"),
        (blocks([4096, 4096, 512]), ErrorKind::Io, "which cannot be"),
        (blocks([1, 1, 511]), ErrorKind::Unsupported, "no more than 511 bytes"),
        (error(6, "ask \x1b[31mme\n again"), ErrorKind::NotFound, "name (ask [31mme again)"),
        (error(5, ""), ErrorKind::Unsupported, "wants TLS"),
        (error(2, "no"), ErrorKind::Permission, "let this client in (no)"),
        (error(1, ""), ErrorKind::Unsupported, "an old NBD only"),
        (error(99, &"x".repeat(5000)), ErrorKind::Io, "refused the export (xxx"),
    ] {
        let error = refused(rules, &DeviceOptions::default());
        is_told(&error, kind, part);
        assert!(error.detail.len() < 500, "S-551: {}", error.detail.len());
    }
}

#[test]
fn s_551_a_server_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("nbd+unix:///disk?socket={}/none", dir.path().display());
    let error = open(&uri, &DeviceOptions::default()).unwrap_err();
    is_told(&error, ErrorKind::NotFound, "the server is not reached");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = open(format!("nbd://127.0.0.1:{port}/x"), &DeviceOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Io && error.detail.contains("refused"), "{error}");
    let error = open(Path::new("nbds://host/x"), &DeviceOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.detail.contains("TLS"), "{error}");
}

/// To look at an export takes one connection, and no claim.
#[test]
fn s_553_an_export_has_one_user_here_that_writes() {
    let flags = ALL | transmission::CAN_MULTI_CONN;
    let fake = Fake::start(Rules { flags, ..Rules::default() });
    let only_read = || DeviceOptions { read_only: true, ..DeviceOptions::default() };
    let one = opened(&fake);
    one.write_at(&AlignedBuf::from_slice(&[3; 512]), 0).unwrap();
    for options in [DeviceOptions::default(), only_read()] {
        // Whatever its server may take.
        for uri in [fake.uri(), fake.impatient_uri()] {
            is_told(&open(uri, &options).unwrap_err(), ErrorKind::Busy, "in use");
        }
    }
    let looked = open(fake.uri(), &TO_LOOK()).unwrap();
    assert_eq!(read(&*looked, 0, 512).unwrap(), [3; 512]);
    assert_eq!(fake.connections(), 5, "S-553");
    assert!(looked.lend(true).unwrap().is_none());
    drop((one, looked));
    let readers = [(); 2].map(|()| open(fake.uri(), &only_read()).unwrap());
    let other = opened(&fake);
    assert_eq!(read(&*other, 0, 512).unwrap(), [3; 512]);
    drop((readers, other));
    let farewells = || fake.heard().iter().filter(|heard| heard.kind == command::DISC).count();
    let started = std::time::Instant::now();
    while farewells() < 17 {
        assert!(started.elapsed().as_secs() < 60, "S-553: the server is told of the end");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
