//! `bedplate export nfs`, of a directory of a mount.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};
use crate::nfs_client::{
    Args, CREATE, Client, FILE_SYNC, GETATTR, LOOKUP, MKDIR, OK, READ_ONLY, STALE, UNSTABLE, made,
    place,
};
use crate::nfs_server::Server;

/// "Ask again later".
const JUKEBOX: u32 = 10_008;

fn client_of(server: &Server) -> Client {
    Client::connect(server.address, 0)
}

fn can_export(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return false;
    }
    can_mount(test)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_directory_of_a_mount_is_served_with_all_that_it_holds() {
    if !can_export("a served mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("allow_other");
    std::fs::create_dir(dir.join("shared")).unwrap();
    std::fs::write(dir.join("beside"), b"not served").unwrap();
    let server = Server::start(&dir.join("shared"), &["--squash", "none"]);
    let mut client = client_of(&server);
    let root = client.mount(text(&dir.join("shared"))).unwrap();
    assert_eq!(client.lookup(&root, ".."), Ok(root.clone()), "nothing lies above");
    let file = client.create(&root, "file");
    let content = pattern(1 << 20);
    client.write(&file, 0, &content, UNSTABLE);
    client.commit(&file);
    assert!(std::fs::read(dir.join("shared/file")).unwrap() == content);
    let exclusive = place(&root, "lock").u32(2).u64(77);
    let lock = made(&mut client.done(CREATE, &exclusive));
    assert_eq!(made(&mut client.done(CREATE, &exclusive)), lock);
    for number in 0..1500 {
        std::fs::write(dir.join("shared").join(number.to_string()), b"").unwrap();
    }
    let (mut names, mut cookie, mut verifier) = (BTreeSet::new(), 0, 0);
    loop {
        let (more, told, is_end) = client.list(&root, cookie, verifier, 8192);
        verifier = told;
        cookie = more.last().map_or(cookie, |(_, cookie)| *cookie);
        for (name, _) in more {
            assert!(names.insert(name.clone()), "{name} twice");
        }
        if is_end {
            break;
        }
    }
    assert_eq!(names.len(), 1500 + 4);
    // Root of the client is anonymous unless told otherwise, and a user of its own right as ever.
    assert_eq!(server.send(Signal::TERM), Some(0));
    let server = Server::start(&dir.join("shared"), &[]);
    assert_eq!(client_of(&server).nfs(MKDIR, &place(&root, "dir").mode(None)).0, 13);
    assert_eq!(client_of(&server).attr(&file).size, 1 << 20, "handles outlive the server");
    assert_eq!(server.send(Signal::INT), Some(0));
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// What was committed, or written as stable, is there after the server and the mount were killed;
/// the verifier tells of what may not be.
#[test]
fn s_463_what_was_committed_is_there_after_kills_of_server_and_mount() {
    if !can_export("kills of a served mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("volume.img"), scratch.directory("mnt"));
    let mount = ["--json", "mount", text(&image), text(&dir), "-o", "allow_other"];
    let mut daemon = bedplate(mount).succeeds().json();
    let mut server = Server::start(&dir, &["--squash", "none"]);
    let root = client_of(&server).mount(text(&dir)).unwrap();
    let mut verifiers = BTreeSet::new();
    for round in 0..4_u8 {
        let mut client = client_of(&server);
        let names = ["committed", "stable"].map(|name| format!("{name}-{round}"));
        let [committed, stable] = [0, 1].map(|at| client.create(&root, &names[at]));
        let data = vec![round; 100_000];
        let (_, promised) = client.write(&committed, 0, &data, UNSTABLE);
        assert_eq!(client.commit(&committed), promised);
        client.write(&stable, 0, &data, FILE_SYNC);
        verifiers.insert(promised);
        client.create(&root, &format!("made-{round}"));
        let unstable = client.create(&root, &format!("unstable-{round}"));
        client.write(&unstable, 0, &data, UNSTABLE);
        // The mount dies, and in every other round the server too.
        let pid = Pid::from_raw(daemon["pid"].as_i64().unwrap() as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        if round % 2 == 1 {
            server.send(Signal::KILL);
            bedplate(["unmount", text(&dir), "--force"]);
            daemon = bedplate(mount).succeeds().json();
            server = Server::start(&dir, &["--squash", "none"]);
        } else {
            until("the loss of the mount", || {
                client.nfs(GETATTR, &Args::of(&unstable)).0 == JUKEBOX
            });
            bedplate(["unmount", text(&dir), "--force"]);
            daemon = bedplate(mount).succeeds().json();
            until("the mount's return", || client.nfs(GETATTR, &Args::of(&root)).0 == OK);
            assert!(!verifiers.contains(&client.commit(&committed)), "what may be lost is told");
        }
        let mut client = client_of(&server);
        for handle in [&committed, &stable] {
            assert!(client.read(handle, 0, 1 << 20).0 == data, "round {round}");
        }
        assert!(client.lookup(&root, &format!("made-{round}")).is_ok());
        // As a client does that sees another verifier: it writes again.
        client.write(&unstable, 0, &data, UNSTABLE);
        assert!(!verifiers.contains(&client.commit(&unstable)));
        assert!(std::fs::read(dir.join(format!("unstable-{round}"))).unwrap() == data);
    }
    assert_eq!(verifiers.len(), 4, "another one after each loss");
    assert_eq!(server.send(Signal::TERM), Some(0));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// The directory below a mount that is gone is not served in its place.
#[test]
fn s_464_nothing_is_served_of_a_directory_that_is_not_the_exported_one() {
    if !can_export("a mount point without its mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("allow_other");
    let server = Server::start(&dir, &["--squash", "none"]);
    let mut client = client_of(&server);
    let root = client.mount(text(&dir)).unwrap();
    let daemon = bedplate(["--json", "info", text(&dir)]).succeeds().json();
    let pid = Pid::from_raw(daemon["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    until("the loss of the mount", || client.nfs(GETATTR, &Args::of(&root)).0 == JUKEBOX);
    bedplate(["unmount", text(&dir), "--force"]);
    std::fs::write(dir.join("covered"), b"").unwrap();
    for _ in 0..3 {
        assert_eq!(client.nfs(GETATTR, &Args::of(&root)).0, JUKEBOX);
        assert_eq!(client.mount(text(&dir)), Err(10_006));
    }
    std::fs::remove_file(dir.join("covered")).unwrap();
    bedplate(["mount", text(&image), text(&dir), "-o", "allow_other"]).succeeds();
    until("the mount's return", || client.nfs(GETATTR, &Args::of(&root)).0 == OK);
    drop(server);
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn s_472_checkpoints_are_served_read_only() {
    if !can_export("a served checkpoint") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("allow_other");
    std::fs::write(dir.join("file"), b"then").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    std::fs::write(dir.join("file"), b"now").unwrap();
    let server = Server::start(&dir, &["--squash", "none"]);
    let mut client = client_of(&server);
    let root = client.mount(text(&dir)).unwrap();
    let checkpoints = client.lookup(&root, ".checkpoints").unwrap();
    let then = client.lookup(&checkpoints, "then").unwrap();
    let file = client.lookup(&then, "file").unwrap();
    assert_eq!(client.read(&file, 0, 100).0, b"then");
    let args = crate::nfs_client::write_args(&file, 0, b"x", UNSTABLE);
    assert_eq!(client.fails(crate::nfs_client::WRITE, &args), READ_ONLY);
    assert_eq!(client.fails(MKDIR, &place(&then, "new").mode(None)), READ_ONLY);
    let now = client.lookup(&root, "file").unwrap();
    assert_eq!(client.read(&now, 0, 100).0, b"now");
    drop(server);
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn s_468_other_machines_are_served_only_where_told_and_errors_say_what_to_do() {
    let scratch = Scratch::new();
    let dir = scratch.directory("exported");
    bedplate(["export", "nfs", text(&dir), "--listen", "0.0.0.0:0"]).fails(2, "--allow");
    bedplate(["export", "nfs", text(&dir), "--allow", "10.0.0.0/33"]).fails(2, "10.0.0.0/24");
    bedplate(["export", "nfs", text(&dir), "--anon-uid", "4294967295"]).fails(2, "another one");
    if !can_export("a server") {
        return;
    }
    bedplate(["export", "nfs", text(&scratch.path("none"))]).fails(1, "none");
    // Without --insecure a client from a port of any user is closed.
    let arguments = ["--json", "export", "nfs", text(&dir), "--listen", "0"];
    let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    while output.read_line(&mut told).unwrap() > 0 && !told.trim_end().ends_with('}') {}
    let told: Value = serde_json::from_str(&told).unwrap();
    let server = Server { child, address: told["address"].as_str().unwrap().parse().unwrap() };
    let mut client = client_of(&server);
    let record = client.record(crate::nfs_client::NFS, LOOKUP, &Args::default());
    // It may be closed already.
    let _sent = std::io::Write::write_all(&mut client.stream, &record);
    assert_eq!(std::io::Read::read(&mut client.stream, &mut [0; 4]).unwrap_or(0), 0);
}

#[test]
fn s_465_a_handle_of_a_checkpoint_ends_with_the_mount_and_others_do_not() {
    if !can_export("handles across a remount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("allow_other");
    std::fs::write(dir.join("file"), b"content").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    let server = Server::start(&dir, &["--squash", "none"]);
    let mut client = client_of(&server);
    let root = client.mount(text(&dir)).unwrap();
    let file = client.lookup(&root, "file").unwrap();
    let checkpoints = client.lookup(&root, ".checkpoints").unwrap();
    let then = client.lookup(&checkpoints, "then").unwrap();
    let old = client.lookup(&then, "file").unwrap();
    drop(server);
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "allow_other"]).succeeds();
    let server = Server::start(&dir, &["--squash", "none"]);
    let mut client = client_of(&server);
    assert_eq!(client.read(&file, 0, 100).0, b"content");
    assert_eq!(client.fails(GETATTR, &Args::of(&old)), STALE);
    drop(server);
    bedplate(["unmount", text(&dir)]).succeeds();
}
