//! `bedplate export vhost-user`.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::guest::{FLUSH, GET_ID, Guest, IOERR, OK, OUT};
use crate::harness::{Scratch, bedplate, command, pattern, text};

/// A server that is killed when a test fails.
struct Server(Child);

impl Server {
    /// Starts one, and waits until it serves.
    fn start(arguments: &[&str]) -> (Self, String) {
        let (server, mut output) = Self::spawn(arguments);
        let mut told = String::new();
        output.read_line(&mut told).unwrap();
        (server, told)
    }

    /// As [`start`](Self::start), of one that tells a document.
    fn start_json(arguments: &[&str]) -> (Self, Value) {
        let (server, output) = Self::spawn(arguments);
        let told = serde_json::Deserializer::from_reader(output).into_iter().next();
        (server, told.unwrap().unwrap())
    }

    fn spawn(arguments: &[&str]) -> (Self, BufReader<ChildStdout>) {
        let mut child = command(["export", "vhost-user"].iter().chain(arguments))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (Self(child), output)
    }

    fn send(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Makes a volume with a file of 8 MiB, and returns it with the file's address.
fn volume(scratch: &Scratch) -> (String, String) {
    let image = scratch.image("volume.img");
    let source = scratch.file("source", &pattern(8 << 20));
    bedplate(["put", text(&image), text(&source), "/disk"]).succeeds();
    let address = format!("{}:/disk", text(&image));
    (text(&image).to_owned(), address)
}

fn content(image: &str) -> Vec<u8> {
    bedplate(["cat", image, "/disk"]).succeeds().stdout_bytes().to_vec()
}

#[test]
fn s_560_a_file_of_a_volume_is_served_and_whole_when_the_server_ends() {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    let socket = scratch.path("socket");
    let (mut server, told) = Server::start(&[&address, "--socket", text(&socket)]);
    let expected = format!(
        "-chardev socket,id=bedplate,path={} -device vhost-user-blk-pci,chardev=bedplate",
        text(&socket)
    );
    assert_eq!(told.trim(), expected);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut guest = Guest::new(&socket, 2);
    assert!(guest.queues[0].read(0, 65_536) == pattern(8 << 20)[..65_536]);
    guest.queues[1].write(24, b"by a guest".repeat(512).as_slice());
    assert_eq!(server.send(Signal::TERM), Some(0));
    assert!(!socket.exists());
    let mut expected = pattern(8 << 20);
    expected[24 * 512..34 * 512].copy_from_slice(&b"by a guest".repeat(512));
    assert!(content(&image) == expected);
    bedplate(["check", &image]).succeeds();
}

/// What was answered before a flush was is there after a kill; the guest of a server that comes again
/// is served.
#[test]
fn s_555_what_was_flushed_is_there_after_a_kill() {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    let socket = scratch.path("socket");
    let (mut server, _) = Server::start(&[&address, "--socket", text(&socket)]);
    let mut guest = Guest::new(&socket, 2);
    let mut expected = pattern(8 << 20);
    for number in 0..100_u64 {
        let (sector, data) = (number * 150, vec![number as u8; 4096]);
        guest.queues[number as usize % 2].write(sector, &data);
        expected[sector as usize * 512..][..4096].copy_from_slice(&data);
    }
    assert_eq!(guest.queues[0].ask(FLUSH, 0, &[], 0), (OK, 1));
    // Under way when the server dies: it may be there or not, whole sectors of it.
    for slot in 0..20 {
        guest.queues[1].send(slot, OUT, u64::from(slot) * 8, &[0xee; 4096], 0);
    }
    guest.queues[1].kick();
    assert_eq!(server.send(Signal::KILL), None);
    let found = content(&image);
    for (sector, (found, expected)) in found.chunks(512).zip(expected.chunks(512)).enumerate() {
        let late = sector < 20 * 8 && found.iter().all(|byte| *byte == 0xee);
        assert!(late || found == expected, "sector {sector}");
    }
    bedplate(["check", &image]).succeeds();
    // The socket that it left behind is in no way.
    let (mut server, _) = Server::start(&[&address, "--socket", text(&socket), "--read-only"]);
    let mut guest = Guest::new(&socket, 1);
    assert_eq!(guest.queues[0].ask(OUT, 0, &[1; 512], 0).0, IOERR);
    assert_eq!(server.send(Signal::INT), Some(0));
}

#[test]
fn s_557_a_checkpoint_is_served_as_it_was() {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    bedplate(["checkpoint", "create", &image, "then"]).succeeds();
    let other = scratch.file("other", b"new");
    bedplate(["put", &image, text(&other), "/disk"]).succeeds();
    let socket = scratch.path("socket");
    let (mut server, _) =
        Server::start(&[&address, "--socket", text(&socket), "--checkpoint", "then"]);
    let mut guest = Guest::new(&socket, 1);
    assert!(guest.queues[0].read(8, 65_536) == pattern(8 << 20)[4096..4096 + 65_536]);
    assert_eq!(guest.queues[0].ask(OUT, 0, &[1; 512], 0).0, IOERR);
    assert_eq!(server.send(Signal::TERM), Some(0));
}

#[test]
fn s_561_a_plain_file_is_served_and_json_tells_how() {
    let scratch = Scratch::new();
    let plain = scratch.file("plain.raw", &pattern(65_536));
    let socket = scratch.path("socket");
    let place = text(&socket);
    let options = ["--socket", place, "--queues", "2", "--queue-size", "128", "--json"];
    let (mut server, told) = Server::start_json(&[&[text(&plain)], &options[..]].concat());
    let expected = serde_json::json!({
        "file": text(&plain), "socket": place, "size_bytes": 65_536, "read_only": false,
        "queues": 2, "queue_size": 128, "serial": "plain.raw",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&told[field], value, "{told}");
    }
    let mut guest = Guest::new(&socket, 2);
    assert_eq!(guest.frontend_queues(), 2);
    assert_eq!(guest.queues[1].ask(GET_ID, 0, &[], 20), (OK, 21));
    assert_eq!(guest.queues[1].data(0, 20), b"plain.raw\0\0\0\0\0\0\0\0\0\0\0");
    guest.queues[0].write(3, &[7; 512]);
    assert_eq!(server.send(Signal::TERM), Some(0));
    let mut expected = pattern(65_536);
    expected[3 * 512..4 * 512].fill(7);
    assert!(std::fs::read(&plain).unwrap() == expected);
}

#[test]
fn s_561_options_that_cannot_be_are_refused_with_one_sentence() {
    let scratch = Scratch::new();
    let plain = scratch.file("plain", &[0; 4096]);
    let socket = scratch.path("socket");
    let refused = |more: &[&str], part: &str| {
        let base = ["export", "vhost-user", text(&plain), "--socket", text(&socket)];
        bedplate([&base[..], more].concat()).fails(2, part);
        assert!(!socket.exists());
    };
    bedplate(["export", "vhost-user", text(&plain)]).fails(2, "--socket");
    refused(&["--queues", "0"], "0 queues: choose 1 to 256");
    refused(&["--queue-size", "100"], "a queue of 100 entries: choose a power of two");
    refused(&["--serial", "longer than twenty letters"], "at most 20 printable ASCII");
    refused(&["--checkpoint", "then"], "--checkpoint is for files of volumes");
    let nowhere = Path::new("/nowhere/socket");
    bedplate(["export", "vhost-user", text(&plain), "--socket", text(nowhere)])
        .fails(1, "cannot listen on /nowhere/socket");
}
