//! Exports of NBD servers as devices: a volume, its log, the halves of a mirror.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};

/// How long anything may take in the background.
const LIMIT: Duration = Duration::from_secs(120);

/// A server of one image, which is killed when it is dropped.
struct Server {
    child: Child,
    image: PathBuf,
    socket: PathBuf,
    uri: String,
}

impl Server {
    /// Makes an image file and serves it.
    fn of_new(scratch: &Scratch, name: &str) -> Self {
        let image = scratch.path(&format!("{name}.img"));
        std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        Self::of(image, &scratch.path(&format!("{name}.socket")))
    }

    fn of(image: PathBuf, socket: &Path) -> Self {
        let server = Self::start(image, socket.to_owned(), &["--unix", text(socket)]);
        let uri = format!("nbd+unix:///disk?socket={}", text(socket));
        assert_eq!(server.uri, uri, "what the server tells names the device");
        server
    }

    /// Serves an image on a port of this machine.
    fn on_a_port(image: PathBuf) -> Self {
        std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        Self::start(image, PathBuf::new(), &["--listen", "127.0.0.1:0"])
    }

    fn start(image: PathBuf, socket: PathBuf, place: &[&str]) -> Self {
        let file = format!("disk={}", text(&image));
        let mut child = command(["export", "nbd", &file].iter().chain(place))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        Self { child, image, socket, uri: told.trim().to_owned() }
    }

    fn uri(&self) -> String {
        self.uri.clone()
    }

    /// Ends it as a power cut of its machine would end it, and returns how to start it again.
    fn kill(mut self) -> (PathBuf, PathBuf) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.image.clone(), self.socket.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn put(volume: &[&str], scratch: &Scratch, content: &[u8]) {
    let source = scratch.file("source", content);
    let arguments = [&["put"], &volume[..1], &[text(&source), "/file"], &volume[1..]].concat();
    bedplate(arguments).succeeds();
}

#[test]
fn s_548_a_volume_lies_on_an_export_and_is_named_by_its_uri() {
    let scratch = Scratch::new();
    let server = Server::of_new(&scratch, "disk");
    let (uri, content) = (server.uri(), pattern(3 << 20));
    bedplate(["format", &uri, "--size", "64M"]).fails(2, "is used whole");
    bedplate(["format", &uri]).succeeds().says(&uri);
    put(&[&uri], &scratch, &content);
    assert!(bedplate(["cat", &uri, "/file"]).succeeds().stdout_bytes() == content);
    bedplate(["check", &uri]).succeeds();
    // It holds a volume now, which is not destroyed by mistake.
    bedplate(["volume", "create", "tank", &uri]).fails(1, "add --force");
    bedplate(["grow", &uri, "1G"]).fails(2, "make it larger there");
    assert_eq!(bedplate(["--json", "info", &uri]).succeeds().json()["engine"], "nbd");
    if can_mount("a volume on an export") {
        let dir = scratch.directory("mnt");
        bedplate(["mount", &uri, text(&dir)]).succeeds();
        assert!(std::fs::read(dir.join("file")).unwrap() == content);
        std::fs::write(dir.join("second"), &content).unwrap();
        bedplate(["check", &uri]).fails(8, "is mounted at");
        assert_eq!(bedplate(["--json", "info", text(&dir)]).succeeds().json()["volume"], *uri);
        bedplate(["unmount", &uri]).succeeds();
    } else {
        put(&[&uri], &scratch, &content);
    }
    // The bytes are those of the image that the server has.
    let (image, _socket) = server.kill();
    assert!(bedplate(["cat", text(&image), "/file"]).succeeds().stdout_bytes() == content);
    bedplate(["check", text(&image)]).succeeds();
    bedplate(["check", &uri]).fails(8, "the server is not reached");
    bedplate(["check", "nbds://localhost/disk"]).fails(8, "TLS");
    bedplate(["mount", "nbd://localhost:x/disk", text(scratch.path("").as_path())])
        .fails(1, "is no port");
}

#[test]
fn s_548_the_intent_log_lies_on_an_export() {
    let scratch = Scratch::new();
    let server = Server::on_a_port(scratch.path("log.img"));
    let (uri, image) = (server.uri(), scratch.path("volume.img"));
    bedplate(["format", text(&image), "--size", "64M", "--log", &uri]).succeeds().says(&uri);
    let content = pattern(2 << 20);
    put(&[text(&image), "--log", &uri], &scratch, &content);
    if can_mount("a log on an export") {
        let dir = scratch.directory("mnt");
        bedplate(["mount", text(&image), text(&dir), "-o", &format!("log={uri}")]).succeeds();
        assert!(std::fs::read(dir.join("file")).unwrap() == content);
        let file = std::fs::File::create(dir.join("second")).unwrap();
        file.write_all_at(&content, 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        bedplate(["unmount", text(&dir)]).succeeds();
        let second = bedplate(["cat", text(&image), "/second", "--log", &uri]).succeeds();
        assert!(second.stdout_bytes() == content);
    }
    bedplate(["check", text(&image), "--log", &uri]).succeeds();
}

fn show(volume: &str) -> Value {
    bedplate(["volume", "show", volume, "--json"]).json()
}

fn states(told: &Value) -> Vec<&str> {
    let members = told["members"].as_array().unwrap();
    members.iter().map(|member| member["state"].as_str().unwrap()).collect()
}

/// Asks until what is shown of a group passes.
fn until(volume: &str, what: &str, passes: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let told = show(volume);
        if passes(&told) {
            return told;
        }
        assert!(start.elapsed() < LIMIT, "not {what}: {told}");
    }
}

/// Writes files, each durable, and looks at each again; meanwhile `happens` does what it does once
/// some are written, and is given what tells how many there are.
fn while_written(dir: &Path, happens: impl FnOnce(&dyn Fn() -> usize)) {
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (stopped, counted, dir) = (Arc::clone(&stop), Arc::clone(&rounds), dir.to_owned());
    let writer = std::thread::spawn(move || {
        while !stopped.load(SeqCst) {
            let round = counted.load(SeqCst);
            let path = dir.join(format!("writer{}", round % 4));
            let content = pattern(256 << 10 | (round % 7) << 9);
            let file = std::fs::File::create(&path).unwrap();
            file.write_all_at(&content, 0).unwrap();
            file.sync_all().unwrap();
            assert!(std::fs::read(&path).unwrap() == content, "round {round}");
            counted.store(round + 1, SeqCst);
        }
    });
    let count = || {
        assert!(!writer.is_finished(), "the writer failed");
        rounds.load(SeqCst)
    };
    let more = |than: usize| {
        while count() < than {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    more(3);
    happens(&count);
    more(count() + 3);
    stop.store(true, SeqCst);
    writer.join().unwrap();
}

/// S-552: a server dies in the middle of writing, and the mirror goes on with the other. The member on
/// the dead one gets what it missed by an import, or all of it by a replacement under the live mount.
#[test]
fn s_552_a_mirror_of_two_servers_goes_on_without_one_and_takes_it_back() {
    if !can_mount("a mirror of exports") {
        return;
    }
    let scratch = Scratch::new();
    let (first, second) = (Server::of_new(&scratch, "a"), Server::of_new(&scratch, "b"));
    let (one, other) = (first.uri(), second.uri());
    bedplate(["volume", "create", "tank", &one, &one]).fails(1, "are the same device");
    bedplate(["volume", "create", "tank", &one, &other]).succeeds();
    bedplate(["format", &other]).succeeds();
    let (dir, content) = (scratch.directory("mnt"), pattern(4 << 20));
    bedplate(["mount", &one, text(&dir)]).succeeds();
    std::fs::write(dir.join("still"), &content).unwrap();
    let file = scratch.file("other", b"other");
    bedplate(["put", &other, text(&file), "/other"]).fails(1, "is mounted at");
    let mut left = None;
    while_written(&dir, |_| {
        left = Some(second.kill());
        until(text(&dir), "degraded", |told| states(told) == ["active", "failed"]);
    });
    let told = bedplate(["volume", "show", text(&dir)]).stdout();
    assert!(told.contains("degraded") && told.contains("connection broke"), "{told}");
    bedplate(["unmount", text(&dir)]).succeeds();
    // It is there again, and what it missed is known.
    let (image, socket) = left.take().unwrap();
    let second = Server::of(image, &socket);
    let told = bedplate(["volume", "import", &one, "--json"]).succeeds().json();
    assert_eq!(states(&told), ["active", "active"]);
    bedplate(["volume", "scrub", &other]).succeeds().says(" 0 differences");
    // Once more, and back without an unmount.
    bedplate(["mount", &other, text(&dir)]).succeeds();
    assert!(std::fs::read(dir.join("still")).unwrap() == content);
    let mut again = None;
    while_written(&dir, |_| {
        let (image, socket) = first.kill();
        until(text(&dir), "degraded", |told| states(told) == ["failed", "active"]);
        again = Some(Server::of(image, &socket));
        bedplate(["volume", "replace", text(&dir), &one, &one, "--force"]).succeeds();
        until(text(&dir), "whole", |told| {
            let (states, pending) = (states(told), &told["pending_bytes"]);
            states.iter().filter(|state| **state == "active").count() == 2 && *pending == 0
        });
    });
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["volume", "scrub", &one]).succeeds().says(" 0 differences");
    bedplate(["check", &one]).succeeds();
    for server in [&again.unwrap(), &second] {
        let uri = server.uri();
        assert!(bedplate(["cat", &uri, "/still"]).succeeds().stdout_bytes() == content);
    }
}

/// S-553: a URI is how a member is found; nothing that is scanned leads to it.
#[test]
fn s_553_members_on_exports_are_found_by_uri_and_by_no_scan() {
    let scratch = Scratch::new();
    // The server's image lies beside no member of this side.
    let (server, image) =
        (Server::of_new(&scratch, "a"), scratch.directory("here").join("local.img"));
    std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
    let uri = server.uri();
    bedplate(["volume", "create", "far", &uri, text(&image)]).succeeds();
    // The member that is found leads to the other.
    let told = show(text(&image));
    let paths: Vec<&str> = told["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, [&uri, text(&image)], "S-553");
    assert_eq!(states(&show(&uri)), ["active", "active"], "S-553");
    // The server moves: the URI that is named leads to the group, and is kept.
    let (moved, _socket) = server.kill();
    let server = Server::of(moved, &scratch.path("elsewhere.socket"));
    let refused = bedplate(["volume", "import", text(&image)]);
    refused.fails(1, &uri);
    let told = bedplate(["volume", "import", &server.uri(), "--json"]).succeeds().json();
    assert_eq!(states(&told), ["active", "active"]);
    assert_eq!(show(text(&image))["members"][0]["path"], *server.uri(), "S-553");
}
