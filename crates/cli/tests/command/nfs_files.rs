//! Files of a server by their URLs: `cp`, `cat`, `tee` and `bench`.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Scratch, bedplate, command, pattern, text};
use crate::nfs_server::Server;

/// More than a request, and no whole block.
const LEN: usize = (9 << 20) + 777;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root");
    }
    is_root
}

/// Returns the URL of what lies in the served directory.
fn url(server: &Server, path: &Path, options: &str) -> String {
    let port = server.address.port();
    format!("nfs://127.0.0.1{}?nfsport={port}&mountport={port}{options}", text(path))
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn s_580_files_go_to_a_server_and_come_back_as_they_were() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("served");
    let server = Server::start(&dir, &["--squash", "none"]);
    let source = scratch.file("a source", &pattern(LEN));
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o640)).unwrap();
    let there = dir.join("there");
    std::fs::write(&there, b"what was there before").unwrap();
    let to = url(&server, &there, "&nconnect=2");
    let copied = bedplate(["--json", "cp", "--verify", text(&source), &to]).succeeds().json();
    let copy = &copied["copies"][0];
    assert_eq!((&copy["size_bytes"], &copy["verified"]), (&LEN.into(), &true.into()), "{copied}");
    assert!(std::fs::read(&there).unwrap() == pattern(LEN));
    let (is, was) = (there.metadata().unwrap(), source.metadata().unwrap());
    assert_eq!((is.mode() & 0o777, is.mtime()), (0o640, was.mtime()));
    // Into a directory of the server, under its own name.
    bedplate(["cp", text(&source), &url(&server, &dir, "")]).succeeds().says("not copied over NFS");
    assert!(std::fs::read(dir.join("a source")).unwrap() == pattern(LEN));
    // Back, and from server to server.
    let back = scratch.path("back");
    bedplate(["cp", &to, text(&back)]).succeeds();
    assert!(std::fs::read(&back).unwrap() == pattern(LEN));
    assert_eq!(back.metadata().unwrap().mtime(), was.mtime());
    bedplate(["cp", "--verify", &to, &url(&server, &dir.join("third"), "")]).succeeds();
    assert!(std::fs::read(dir.join("third")).unwrap() == pattern(LEN));
    assert!(bedplate(["cat", &to]).succeeds().stdout_bytes() == pattern(LEN));
    // A file with holes keeps what it reads as.
    let holes = scratch.file("holes", b"");
    std::fs::File::options().write(true).open(&holes).unwrap().set_len(40 << 20).unwrap();
    bedplate(["cp", text(&holes), &url(&server, &dir.join("holes"), "")]).succeeds();
    let is = dir.join("holes").metadata().unwrap();
    assert!(is.len() == 40 << 20 && is.blocks() < 1000, "{} blocks", is.blocks());
    assert_eq!(names_in(&dir), ["a source", "holes", "there", "third"], "nothing is left");
}

#[test]
fn s_580_a_stream_goes_to_a_server_and_is_durable_when_the_command_ends() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("served");
    let server = Server::start(&dir, &["--squash", "none"]);
    let piped = url(&server, &dir.join("piped"), "");
    for len in [LEN, 0] {
        let mut tee = command(["tee", &piped]);
        let mut tee = tee.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = tee.stdin.take().unwrap();
        let writer = std::thread::spawn(move || input.write_all(&pattern(len)));
        let passed = tee.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(passed.status.success() && passed.stdout == pattern(len));
        assert!(std::fs::read(dir.join("piped")).unwrap() == pattern(len));
    }
}

#[test]
fn s_580_what_cannot_be_copied_is_told_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("served");
    let server = Server::start(&dir, &["--read-only"]);
    let source = scratch.file("source", &pattern(1000));
    let to = url(&server, &dir.join("file"), "");
    bedplate(["cp", text(&source), &to]).fails(1, "read-only");
    bedplate(["cp", &to, text(&scratch.path("x"))]).fails(1, "it is not there");
    bedplate(["cp", "-r", text(&source), &to]).fails(2, "directories are not copied");
    bedplate(["cp", "--resume", text(&source), &to]).fails(2, "gone on with");
    bedplate(["compress", &to]).fails(2, "bedplate cat URL");
    bedplate(["cat", "nfs://127.0.0.1/x?sec=krb5"]).fails(2, "'sec' is not known");
    let nothing = "nfs://127.0.0.1/x?nfsport=1&mountport=1";
    bedplate(["cat", nothing]).fails(1, "is not reached");
    assert!(names_in(&dir).is_empty() && !scratch.path("x").exists());
}

/// A copy goes on through a server that is killed and started again under it.
#[test]
fn s_573_a_copy_survives_kills_of_the_server() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("served");
    let mut server = Server::start(&dir, &["--squash", "none"]);
    let listen = server.address.to_string();
    let content = pattern(24 << 20);
    let source = scratch.file("source", &content);
    let to = url(&server, &dir.join("file"), "&nconnect=3&rsize=65536&wsize=65536");
    let mut copy = command(["cp", "--verify", "--rate", "12m", text(&source), &to]);
    let mut copy = copy.stdout(Stdio::null()).spawn().unwrap();
    let mut kills = 0;
    let begun = Instant::now();
    while copy.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(100), "the copy does not end");
        std::thread::sleep(Duration::from_millis(250));
        server.send(Signal::KILL);
        kills += 1;
        server = Server::start_at(&dir, &listen, &["--squash", "none"]);
    }
    assert!(copy.wait().unwrap().success() && kills > 2, "{kills} kills");
    assert!(std::fs::read(dir.join("file")).unwrap() == content);
}

#[test]
fn s_579_a_directory_of_a_server_is_a_target_with_locks_of_records() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("served");
    let server = Server::start(&dir, &["--squash", "none"]);
    let place = url(&server, &dir, "&nconnect=2");
    let (one, two) = (format!("one={place},mode=concurrent"), format!("two={place},mode=direct"));
    let common = ["--size", "1m", "--rounds", "1", "--time", "100ms", "-t", &one, "-t", &two];
    let sio = ["--json", "bench", "sio", "--block", "8k", "--threads", "4", "--reads", "50"];
    let told = bedplate(sio.iter().chain(&common)).succeeds().stdout();
    assert!(told.contains("locks per access"), "{told}");
    let mixed = ["--json", "bench", "mixed", "--block", "8k", "--depth", "4", "--reads", "50"];
    bedplate(mixed.iter().chain(&common)).succeeds();
    assert!(names_in(&dir).is_empty(), "the files of the runs are gone");
    let wrong = format!("nfs://127.0.0.1{}?nfsport=1&mountport=1", text(&dir));
    bedplate(["bench", "sio", "-t", &wrong]).fails(1, "is not reached");
}
