//! `bedplate export nbd`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Scratch, bedplate, command, pattern, text};
use crate::nbd_client::{Client, FLUSH, FUA, WRITE};

/// A server that is killed when a test fails.
struct Server(Child);

impl Server {
    /// Starts one, and waits until it serves.
    fn start(arguments: &[&str]) -> (Self, String) {
        let mut child = command(["export", "nbd"].iter().chain(arguments))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        (Self(child), told)
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
fn a_file_of_a_volume_is_served_and_whole_when_the_server_ends() {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    let socket = scratch.path("socket");
    let (mut server, told) = Server::start(&[&address, "--unix", text(&socket)]);
    assert_eq!(told.trim(), format!("nbd+unix:///disk?socket={}", text(&socket)));
    let mut client = Client::open(&socket, "disk", true);
    assert!(client.read(0, 1 << 20) == pattern(8 << 20)[..1 << 20]);
    assert_eq!(client.write(0, 12_345, b"by a disk"), 0);
    assert_eq!(server.send(Signal::TERM), Some(0));
    assert!(!socket.exists());
    let mut expected = pattern(8 << 20);
    expected[12_345..12_354].copy_from_slice(b"by a disk");
    assert!(content(&image) == expected);
    bedplate(["check", &image]).succeeds();
}

/// Every write that was answered before a flush was, and every one with FUA, is there after a kill.
#[test]
fn s_340_what_was_flushed_is_there_after_a_kill() {
    for mode in ["concurrent", "concurrent+cache", "cached"] {
        loses_nothing_that_was_flushed(mode);
    }
}

fn loses_nothing_that_was_flushed(mode: &str) {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    let socket = scratch.path("socket");
    let (mut server, _) = Server::start(&[&address, "--unix", text(&socket), "--mode", mode]);
    let mut clients: Vec<Client> = (0..2).map(|_| Client::open(&socket, "disk", false)).collect();
    let mut expected = pattern(8 << 20);
    for number in 0..200_u64 {
        let (offset, data) = (number * 40_000 + number % 3 * 512, vec![number as u8; 4096]);
        let client = &mut clients[number as usize % 2];
        let flags = if number >= 100 { FUA } else { 0 };
        assert_eq!(client.write(flags, offset, &data), 0);
        expected[offset as usize..][..4096].copy_from_slice(&data);
        if number == 99 {
            // On one of the two connections: it covers both.
            assert_eq!(clients[0].ask(FLUSH, 0, 0, 0).0, 0);
        }
    }
    // Under way when the server dies: it may be there or not, whole blocks of it.
    for number in 0..32 {
        clients[0].send(WRITE, 0, number * 4096, 4096, &[0xee; 4096]);
    }
    assert_eq!(server.send(Signal::KILL), None);
    let found = content(&image);
    for (block, (found, expected)) in found.chunks(512).zip(expected.chunks(512)).enumerate() {
        let late = block < 32 * 8 && found.iter().all(|byte| *byte == 0xee);
        assert!(late || found == expected, "{mode}: sector {block}");
    }
    assert_eq!(found.len(), expected.len());
    bedplate(["check", &image]).succeeds();
    // The socket that it left behind is in no way.
    let (mut server, _) = Server::start(&[&address, "--unix", text(&socket), "--read-only"]);
    assert_eq!(Client::open(&socket, "", true).write(0, 0, &[1; 512]), 1);
    assert_eq!(server.send(Signal::INT), Some(0));
}

/// A file of a volume that is not mounted is served through a cache where that is asked for; what another
/// file system has is not.
#[test]
fn s_563_a_mode_is_for_files_of_volumes() {
    let scratch = Scratch::new();
    let (_, address) = volume(&scratch);
    let socket = scratch.path("socket");
    let (mut server, _) = Server::start(&[&address, "--unix", text(&socket), "--mode", "cached"]);
    let mut client = Client::open(&socket, "disk", true);
    assert_eq!(client.write(0, 4096, &[7; 4096]), 0);
    assert!(client.read(4096, 4096) == [7; 4096]);
    // What a killed server did not flush was only in its cache.
    assert_eq!(server.send(Signal::KILL), None);
    let (mut server, _) = Server::start(&[&address, "--unix", text(&socket)]);
    let mut client = Client::open(&socket, "disk", true);
    assert!(client.read(4096, 4096) == pattern(8 << 20)[4096..8192]);
    assert_eq!(client.write(0, 4096, &[9; 4096]), 0);
    assert_eq!(server.send(Signal::KILL), None);
    let (mut server, _) = Server::start(&[&address, "--unix", text(&socket)]);
    assert!(Client::open(&socket, "disk", true).read(4096, 4096) == [9; 4096]);
    assert_eq!(server.send(Signal::TERM), Some(0));
    let plain = scratch.file("plain", b"of the system");
    let arguments = ["export", "nbd", text(&plain), "--unix", text(&socket), "--mode", "cached"];
    bedplate(arguments).fails(2, "--mode is for files of volumes that are not mounted");
}

#[test]
fn s_344_several_files_and_a_checkpoint_are_served_under_their_names() {
    let scratch = Scratch::new();
    let (image, address) = volume(&scratch);
    bedplate(["checkpoint", "create", &image, "then"]).succeeds();
    let other = scratch.file("other", b"new");
    bedplate(["put", &image, text(&other), "/disk"]).succeeds();
    let socket = scratch.path("socket");
    let arguments = ["--unix", text(&socket), "--checkpoint", "then"];
    let (mut server, _) = Server::start(&[&[address.as_str()], &arguments[..]].concat());
    let mut client = Client::open(&socket, "disk", true);
    assert!(client.read(0, 8 << 20) == pattern(8 << 20));
    assert_eq!(server.send(Signal::TERM), Some(0));
    let plain = scratch.file("plain", b"of the system");
    let named = format!("second={}", text(&plain));
    let dir = text(socket.parent().unwrap()).to_owned();
    let again = format!("third={dir}/../{}/volume.img:/disk", dir.rsplit_once('/').unwrap().1);
    let (mut server, _) = Server::start(&[&address, &named, &again, "--unix", text(&socket)]);
    assert_eq!(Client::open(&socket, "third", true).read(0, 3), b"new", "one volume, spelled anew");
    assert_eq!(Client::open(&socket, "disk", true).read(0, 3), b"new");
    let mut client = Client::open(&socket, "second", true);
    assert_eq!(client.read(0, 13), b"of the system");
    assert_eq!(client.write(FUA, 7, b"THIS"), 0);
    assert_eq!(std::fs::read(&plain).unwrap(), b"of the THISem");
    assert_eq!(server.send(Signal::TERM), Some(0));
}

#[test]
fn s_346_nothing_listens_beyond_this_machine_without_being_told() {
    let scratch = Scratch::new();
    let (_, address) = volume(&scratch);
    bedplate(["export", "nbd", &address]).fails(2, "--unix");
    bedplate(["export", "nbd", &address, "--listen", "0.0.0.0:0"]).fails(2, "--insecure");
    let tls = ["export", "nbd", &address, "--listen", "0.0.0.0:0", "--tls", "/nowhere"];
    bedplate(tls).fails(2, "/nowhere/ca-cert.pem");
    let same = format!("disk={address}");
    let socket = scratch.path("socket");
    bedplate(["export", "nbd", &address, &same, "--unix", text(&socket)])
        .fails(2, "two exports are called 'disk'");
    let (mut server, told) = Server::start(&[&address, "--listen", "0"]);
    let port = told.trim().strip_prefix("nbd://127.0.0.1:").unwrap().strip_suffix("/disk").unwrap();
    let stream = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    let mut client = Client::greet(stream);
    client.go("", true);
    assert_eq!(client.read(0, 512), pattern(8 << 20)[..512]);
    assert_eq!(server.send(Signal::TERM), Some(0));
    assert!(!Path::new(&socket).exists());
}
