//! Backups in a bucket, over the real protocol: an S3 server of another make on this machine, and a
//! network between that fails.

mod network;

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use network::{Network, Weather};

use crate::harness::{Run, Scratch, bedplate, can_mount, command, pattern, run, text};

/// A server on an address of its own. Dropped, it ends.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Server {
    /// Starts moto, where it is installed (`pip install 'moto[server]'`).
    fn start(test: &str) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut server = Command::new("moto_server");
        server
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let known = Command::new("moto_server")
            .arg("--help")
            .output()
            .is_ok_and(|told| told.status.success());
        if !known {
            eprintln!("skipped: {test}: there is no moto_server here (pip install 'moto[server]')");
            return None;
        }
        let child = server.spawn().unwrap();
        let server = Self { child, address };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < Duration::from_secs(120), "moto_server does not listen");
            std::thread::sleep(Duration::from_millis(100));
        }
        server.put("bucket");
        Some(server)
    }

    /// Makes a bucket.
    fn put(&self, bucket: &str) {
        use std::io::Write;
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(
            stream,
            "PUT /{bucket} HTTP/1.0\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.lines().next().is_some_and(|line| line.contains("200")), "{answer}");
    }
}

/// The binary, with credentials and an endpoint.
fn to(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("AWS_")));
    command
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    command
}

fn at(address: SocketAddr, arguments: &[&str]) -> Run {
    run(to(address, arguments))
}

/// A mount with a checkpoint `one`.
fn source(scratch: &Scratch) -> std::path::PathBuf {
    let (_, dir) = scratch.mounted("mode=concurrent");
    fs::write(dir.join("table"), pattern(9_500_000)).unwrap();
    fs::write(dir.join("small \u{e9}"), b"small").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    dir
}

fn same(dir: &Path, restored: &Path, names: &[&str]) -> bool {
    names
        .iter()
        .all(|name| fs::read(dir.join(name)).unwrap() == fs::read(restored.join(name)).unwrap())
}

/// S-100: a bucket is a place for backups like a directory: full, incremental, listed, verified,
/// restored, deleted; what cannot be is one sentence.
#[test]
fn s_100_backups_in_a_bucket() {
    let Some(server) =
        Server::start("backups in a bucket").filter(|_| can_mount("backups in a bucket"))
    else {
        return;
    };
    let scratch = Scratch::new();
    let dir = source(&scratch);
    let (bucket, to) = ("s3://bucket/deep/pg", |arguments: &[&str]| at(server.address, arguments));
    to(&["backup", "list", bucket]).fails(1, "holds no backups");
    let made = to(&["--json", "backup", "create", text(&dir), "one", bucket]).succeeds().json();
    assert_eq!(made["stored_bytes"].as_u64(), Some(9_500_005), "{made}");
    to(&["backup", "create", text(&dir), "one", bucket]).fails(1, "exists in s3://bucket/deep/pg");
    let table = fs::File::options().write(true).open(dir.join("table")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&table, &[7; 4096], 2 << 20).unwrap();
    drop(table);
    bedplate(["checkpoint", "create", text(&dir), "two"]).succeeds();
    let made = to(&["--json", "backup", "create", text(&dir), "two", bucket]).succeeds().json();
    assert_eq!(
        (made["base"].as_str(), made["read_bytes"].as_u64(), made["stored_bytes"].as_u64()),
        (Some("one"), Some(4096), Some(4096)),
        "{made}"
    );
    to(&["backup", "list", bucket]).succeeds().says("two: ");
    to(&["backup", "verify", bucket]).succeeds().says("2 backups, 12 chunks");
    for name in ["one", "two"] {
        let back = scratch.path(name);
        to(&["restore", bucket, name, text(&back)]).succeeds();
        assert!(
            same(&dir.join(".checkpoints").join(name), &back, &["table", "small \u{e9}"]),
            "{name}"
        );
    }
    let pruned = to(&["--json", "backup", "delete", bucket, "one"]).succeeds().json();
    assert_eq!(
        (pruned["chunks"].as_u64(), pruned["bytes"].as_u64()),
        (Some(0), Some(0)),
        "all but one page of what it had is needed by the other: {pruned}"
    );
    to(&["backup", "delete", bucket, "one"]).fails(1, "no backup 'one'");
    to(&["backup", "verify", bucket]).succeeds().says("1 backup, 12 chunks");
    to(&["backup", "create", text(&dir), "one", "s3://none/x"]).fails(1, "there is no such bucket");
    to(&["backup", "create", text(&dir), "one", "s3://bucket/deep"])
        .fails(1, "something else than backups");
    to(&["backup", "create", text(&dir), "one", bucket, "--name", "a\nb"])
        .fails(2, "cannot be the name");
    to(&["backup", "list", "s3://"]).fails(2, "names no bucket");
    at(
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
        &["backup", "list", "gs:///x"],
    )
    .fails(2, "names no bucket");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-100: requests that fail, and connections that are cut in the middle, are made again; where
/// that does not help, one sentence says why.
#[test]
fn s_100_a_network_that_fails() {
    let Some(server) = Server::start("buckets behind a bad network")
        .filter(|_| can_mount("buckets behind a bad network"))
    else {
        return;
    };
    let scratch = Scratch::new();
    let dir = source(&scratch);
    let network = Network::to(server.address);
    let bucket = "s3://bucket/pg";
    let to = |arguments: &[&str]| at(network.address(), arguments);
    network.set(Weather::Bad);
    to(&["backup", "create", text(&dir), "one", bucket, "--compress", "none"]).succeeds();
    to(&["backup", "verify", bucket]).succeeds().says("1 backup, 11 chunks");
    to(&["restore", bucket, "one", text(&scratch.path("back"))]).succeeds();
    assert!(same(&dir.join(".checkpoints/one"), &scratch.path("back"), &["table", "small \u{e9}"]));
    assert!(network.failed() > 5, "{} failures", network.failed());
    for (code, says) in [
        ("AccessDenied", "denies access"),
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", "does not take the credentials"),
    ] {
        network.set(Weather::Refusing(code));
        to(&["backup", "create", text(&dir), "one", bucket, "--name", "again"]).fails(1, says);
    }
    drop(network);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut lonely = crate::buckets::to(closed, &["backup", "list", bucket]);
    lonely
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("AWS_METADATA_ENDPOINT", format!("http://{closed}/169.254."));
    run(lonely).fails(1, "there are no credentials");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-100, S-102: killed in the middle, a backup is not listed, its chunks are used, and a deletion
/// waits until its claim is dead.
#[test]
fn s_102_a_killed_backup_to_a_bucket() {
    let Some(server) = Server::start("killed backups to a bucket")
        .filter(|_| can_mount("killed backups to a bucket"))
    else {
        return;
    };
    let scratch = Scratch::new();
    let dir = source(&scratch);
    let network = Network::to(server.address);
    let bucket = "s3://bucket/pg";
    network.set(Weather::StopsAfter(4 << 20));
    let arguments = ["backup", "create", text(&dir), "one", bucket, "--compress", "none"];
    let mut child = to(network.address(), &arguments).stderr(Stdio::null()).spawn().unwrap();
    network.wait_until_stopped();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(network);
    let to = |arguments: &[&str]| at(server.address, arguments);
    to(&["backup", "list", bucket]).succeeds().says("no backups");
    to(&["backup", "delete", bucket]).fails(1, "if it was killed, 10 minutes");
    let made = to(&["--json", "backup", "create", text(&dir), "one", bucket]).succeeds().json();
    assert!((1..9_500_005).contains(&made["stored_bytes"].as_u64().unwrap()), "{made}");
    to(&["backup", "verify", bucket]).succeeds().says("1 backup, 11 chunks");
    bedplate(["unmount", text(&dir)]).succeeds();
}
