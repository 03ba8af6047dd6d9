//! Peers that lie, stall, go away, ask twice and do not read.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::bed::{Bed, trusting};
use crate::client::{
    Args, BAD_HANDLE, Client, GETATTR, NFS, NOT_FOUND, READ, REMOVE, STALE, UNSTABLE, place,
};

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
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    said.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    false
}

/// Another client is served as before.
fn serves(bed: &Bed) {
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    assert_eq!(client.attr(&root).kind, 2);
}

#[test]
fn s_467_peers_that_lie_are_let_go_and_others_are_served() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let lies: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        &[0; 4096],
        b"\x80\0\0\x04\0\0\0\x01",
        b"\x80\0\0\x08\0\0\0\x01\0\0\0\x01",
    ];
    for lie in lies {
        let mut client = bed.client();
        // The server may be gone before it has all.
        let _sent = client.stream.write_all(lie);
        let _ended = client.stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _end = client.stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{lie:?}");
        serves(&bed);
    }
}

#[test]
fn s_467_calls_that_are_not_understood_are_told_so() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    // Accepted, with an empty verifier: no such program, another version, no such procedure,
    // arguments that cannot be read.
    for (program, version, procedure, expected) in
        [(100_020, 4, 1, 1), (NFS, 4, 1, 2), (NFS, 3, 22, 3), (NFS, 3, 1, 4), (100_005, 1, 1, 2)]
    {
        let mut record = client.record(program, procedure, &Args::default());
        record[4 + 16..][..4].copy_from_slice(&u32::to_be_bytes(version));
        client.stream.write_all(&record).unwrap();
        let (_, mut result) = client.reply();
        assert_eq!([0; 4].map(|_| result.u32()), [0, 0, 0, expected], "{program} {version}");
        if expected == 2 {
            assert_eq!((result.u32(), result.u32()), (3, 3));
        }
    }
    // A credential of a kind that is not known is refused.
    let mut record = client.record(NFS, GETATTR, &Args::default());
    record[4 + 24..][..4].copy_from_slice(&6_u32.to_be_bytes());
    client.stream.write_all(&record).unwrap();
    let (_, mut result) = client.reply();
    assert_eq!([0; 3].map(|_| result.u32()), [1, 1, 5]);
}

#[test]
fn s_465_forged_handles_lead_nowhere() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    for at in 0..root.len() {
        let mut forged = root.clone();
        forged[at] ^= 0x10;
        let status = client.fails(GETATTR, &Args::of(&forged));
        assert!([STALE, BAD_HANDLE].contains(&status), "byte {at}");
        client.fails(GETATTR, &Args::of(&root[..at]));
    }
    client.fails(GETATTR, &Args::of(&[0xff; 64]));
    // One of another export of the same file system, which is right there.
    let Some(other) = Bed::new(trusting()) else { return };
    let foreign = other.client().mount(other.root.to_str().unwrap()).unwrap();
    assert_eq!(client.fails(GETATTR, &Args::of(&foreign)), STALE);
}

#[test]
fn s_470_a_removal_that_is_asked_for_twice_succeeds_twice() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    client.create(&root, "file");
    let args = place(&root, "file");
    let number = client.send(NFS, REMOVE, &args);
    let first = client.reply();
    assert_eq!(first.1.clone().0[16..20], [0; 4], "removed");
    // As a client does that has lost the answer with its connection.
    let mut again = bed.client();
    again.xid = number - 1;
    again.send(NFS, REMOVE, &args);
    let second = again.reply();
    assert_eq!((first.0, first.1.0), (second.0, second.1.0));
    assert_eq!(again.fails(REMOVE, &args), NOT_FOUND, "another request is carried out");
}

/// Requests of one connection are carried out side by side, and all are answered.
#[test]
fn s_467_a_flood_of_requests_is_answered_to_the_last() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.write(&file, 0, &[7; 8192], UNSTABLE);
    let mut sender =
        Client { stream: client.stream.try_clone().unwrap(), groups: vec![], ..bed.client() };
    let args = Args::of(&file).u64(0).u32(8192);
    let sending = std::thread::spawn(move || {
        (0..3000).map(|_| sender.send(NFS, READ, &args)).collect::<Vec<_>>()
    });
    let mut answered: Vec<u32> = (0..3000)
        .map(|_| {
            let (xid, result) = client.reply();
            assert!(result.0.ends_with(&[7; 8192]));
            xid
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, sending.join().unwrap());
}

#[test]
fn s_467_a_client_that_does_not_read_holds_bounded_memory_and_stops_no_other() {
    if !is_alone(
        "hostile::s_467_a_client_that_does_not_read_holds_bounded_memory_and_stops_no_other",
    ) {
        return;
    }
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.write(&file, 0, &vec![1; 1 << 20], UNSTABLE);
    let before = resident_bytes();
    let mut deaf: Vec<Client> = (0..40).map(|_| bed.client()).collect();
    for client in &mut deaf {
        client.stream.set_nonblocking(true).unwrap();
        let record = client.record(NFS, READ, &Args::of(&file).u64(0).u32(1 << 20));
        for _ in 0..10_000 {
            if client.stream.write_all(&record).is_err() {
                break;
            }
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 450 << 20, "{} MiB for forty clients", grown >> 20);
    serves(&bed);
    assert!(bed.client().read(&file, 0, 1 << 20).0 == vec![1; 1 << 20]);
}

#[test]
fn s_467_a_thousand_idle_connections_and_half_requests_cost_little_and_stop_no_other() {
    if !is_alone(
        "hostile::s_467_a_thousand_idle_connections_and_half_requests_cost_little_and_stop_no_other",
    ) {
        return;
    }
    let Some(bed) = Bed::new(trusting()) else { return };
    let before = resident_bytes();
    let mut idle: Vec<Client> = (0..1000).map(|_| bed.client()).collect();
    for client in idle.iter_mut().take(100) {
        client.stream.write_all(b"\x80\x10\0\0half a request").unwrap();
    }
    serves(&bed);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{} MiB for a thousand", grown >> 20);
    drop(idle);
    serves(&bed);
}

#[test]
fn s_473_the_end_of_the_server_answers_what_is_under_way_and_waits_for_no_client() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let _idle = bed.client();
    let mut half = bed.client();
    half.stream.write_all(b"\x80\0\0\xff").unwrap();
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.write(&file, 0, b"content", UNSTABLE);
    let began = Instant::now();
    bed.end();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(std::fs::read(bed.path("file")).unwrap(), b"content");
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap_or(0), 0, "the connection is closed");
}
