//! Peers that lie, stall, go away and do not read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::bed::{Bed, Place};
use crate::client::{Client, FLUSH, READ, WRITE};
use crate::data::pattern;

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Runs a test once more, in a process of its own, where nothing of the others counts; returns
/// whether this is that process.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BEDPLATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// A server that serves another client as before.
fn serves(bed: &Bed) {
    let mut client = Client::open(&bed.socket, "disk", true);
    let data = pattern(9, 8192);
    assert_eq!(client.write(0, 4096, &data), 0);
    assert!(client.read(4096, 8192) == data);
}

#[test]
fn s_345_peers_that_lie_are_let_go_and_others_are_served() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let first_lies: [&[u8]; 5] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04none",
    ];
    for lie in first_lies {
        let mut stream = UnixStream::connect(&bed.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(lie).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        serves(&bed);
    }
    // What is no request ends the connection, and nothing behind it is carried out.
    let mut client = Client::open(&bed.socket, "disk", true);
    let lie = [vec![0xaa; 28], client.request(WRITE, 0, 0, 4, b"evil")].concat();
    client.stream.write_all(&lie).unwrap();
    let mut answer = Vec::new();
    // The server may be gone before it has read all.
    let _end = client.stream.read_to_end(&mut answer);
    assert!(answer.is_empty());
    serves(&bed);
    assert_eq!(Client::open(&bed.socket, "disk", true).read(0, 4), [0; 4]);
}

#[test]
fn s_345_a_write_that_is_cut_off_writes_nothing() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut client = Client::open(&bed.socket, "disk", true);
    client.send(WRITE, 0, 0, 8192, &[1; 8191]);
    drop(client);
    serves(&bed);
    assert_eq!(Client::open(&bed.socket, "disk", true).read(0, 4096), [0; 4096]);
}

/// Clients that do not read what they asked for hold the memory of their requests, and no more.
#[test]
fn s_345_who_does_not_read_holds_bounded_memory_and_stops_nobody() {
    if !is_alone("hostile::s_345_who_does_not_read_holds_bounded_memory_and_stops_nobody") {
        return;
    }
    let bed = Bed::new(Place::Volume, 48 << 20);
    let before = resident_bytes();
    let mut deaf: Vec<Client> = (0..4).map(|_| Client::open(&bed.socket, "disk", true)).collect();
    for client in &mut deaf {
        client.stream.set_nonblocking(true).unwrap();
        // 128 GiB of answers in all; the socket is full of requests before that.
        for _ in 0..1024 {
            let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
            request.extend([0; 4 + 8 + 8]);
            request.extend((32_u32 << 20).to_be_bytes());
            if client.stream.write_all(&request).is_err() {
                break;
            }
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 4 * (64 << 20) + (64 << 20), "{grown} bytes for four clients");
    serves(&bed);
}

/// The data of large writes that does not come holds no other client up, although together they
/// take all the memory that connections share.
#[test]
fn s_345_half_a_request_stops_nobody() {
    let bed = Bed::new(Place::Volume, 48 << 20);
    let mut halves: Vec<Client> =
        (0..40).map(|_| Client::open(&bed.socket, "disk", true)).collect();
    for client in &mut halves {
        client.send(WRITE, 0, 0, 32 << 20, &[1; 100]);
    }
    std::thread::sleep(Duration::from_millis(200));
    serves(&bed);
}

#[test]
fn s_345_a_thousand_idle_connections_cost_little_and_stop_nobody() {
    if !is_alone("hostile::s_345_a_thousand_idle_connections_cost_little_and_stop_nobody") {
        return;
    }
    let bed = Bed::new(Place::Volume, 1 << 20);
    let before = resident_bytes();
    let idle: Vec<Client> = (0..1000).map(|_| Client::open(&bed.socket, "disk", true)).collect();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes for a thousand");
    serves(&bed);
    drop(idle);
}

/// More flushes than requests may wait: each is answered, in the end.
#[test]
fn s_345_a_flood_of_requests_is_answered_to_the_last() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut client = Client::open(&bed.socket, "disk", true);
    let writer = client.stream.try_clone().unwrap();
    let mut sender = Client { stream: writer, ..Client::open(&bed.socket, "disk", true) };
    let sending = std::thread::spawn(move || {
        for number in 0..3000_u32 {
            let kind = if number % 2 == 0 { FLUSH } else { READ };
            sender.send(kind, 0, 0, if kind == READ { 4096 } else { 0 }, &[]);
        }
    });
    let mut cookies: Vec<u64> = (0..3000).map(|_| client.answer().cookie).collect();
    sending.join().unwrap();
    cookies.sort_unstable();
    cookies.dedup();
    assert_eq!(cookies.len(), 3000, "I-NBD-1: each request gets one reply");
}

#[test]
fn s_348_the_end_of_the_server_answers_what_is_under_way_and_waits_for_no_client() {
    let mut bed = Bed::new(Place::Image, 8 << 20);
    let _idle = Client::open(&bed.socket, "disk", true);
    let _silent = UnixStream::connect(&bed.socket).unwrap();
    let mut client = Client::open(&bed.socket, "disk", true);
    let data = pattern(5, 65_536);
    assert_eq!(client.write(0, 0, &data), 0);
    let began = Instant::now();
    bed.end();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let mut read = vec![0; data.len()];
    bed.disk.read_at(&mut read, 0).unwrap();
    assert!(read == data);
}
