//! The metrics of a mount, as Prometheus asks for them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::harness::{Scratch, bedplate, can_mount, text};

/// Asks once; returns the head and the body.
pub fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    write!(stream, "{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_served_to_who_mounted_and_end_with_the_mount() {
    if !can_mount("metrics") {
        return;
    }
    let scratch = Scratch::new();
    let socket = scratch.path("metrics.sock");
    // What a daemon that was killed left behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let (image, dir) =
        scratch.mounted(&format!("mode=concurrent,metrics=unix:{},metrics-files=3", text(&socket)));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    super::watching::work(&dir.join("busy"), 7);
    let (head, body) = ask(UnixStream::connect(&socket).unwrap(), "GET /metrics");
    assert!(
        head.starts_with("HTTP/1.1 200")
            && head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(
        body.contains(&format!("bedplate_writes_total{{mount=\"{}\"}} 7\n", text(&dir)))
            && body.contains(&format!(
                "bedplate_file_writes_total{{mount=\"{}\",file=\"/busy\"}} 7\n",
                text(&dir)
            )),
        "{body}"
    );
    // S-502, S-503: every class that this mount has, and of each of the busiest files too.
    for class in ["inode_shared", "inode_exclusive", "byte_range", "device"] {
        let labels = format!("{{mount=\"{}\",class=\"{class}\"}} ", text(&dir));
        let of_file = format!("{{mount=\"{}\",file=\"/busy\",class=\"{class}\"}} ", text(&dir));
        for sample in [
            format!("bedplate_waits_total{labels}"),
            format!("bedplate_wait_seconds_total{labels}"),
            format!("bedplate_file_wait_seconds_total{of_file}"),
        ] {
            assert!(body.contains(&sample), "S-502: no {sample}\n{body}");
        }
    }
    assert!(
        ask(UnixStream::connect(&socket).unwrap(), "GET /etc/passwd").0.starts_with("HTTP/1.1 404")
    );
    assert!(
        ask(UnixStream::connect(&socket).unwrap(), "POST /metrics").0.starts_with("HTTP/1.1 405")
    );
    bedplate(["unmount", text(&dir)]).succeeds();
    assert!(!socket.exists(), "the socket went with the mount");
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn metrics_on_a_port_are_for_this_machine_only() {
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("volume.img"), scratch.directory("mnt"));
    let mount = |option: &str| bedplate(["mount", text(&image), text(&dir), "-o", option]);
    mount("metrics=0.0.0.0:9180").fails(2, "others could reach that address");
    mount("metrics=9180").fails(2, "write unix:PATH or an address of this machine");
    mount("metrics-files=lots").fails(2, "write a number from 0 to 1000");
    if !can_mount("metrics on a port") {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    mount(&format!("metrics={address}")).fails(1, "cannot listen for metrics");
    drop(taken);
    mount(&format!("metrics={address}")).succeeds();
    let (_, body) = ask(TcpStream::connect(address).unwrap(), "GET /metrics");
    assert!(body.ends_with("# EOF\n") && !body.contains("bedplate_file_"), "{body}");
    bedplate(["unmount", text(&dir)]).succeeds();
    assert!(TcpStream::connect(address).is_err());
}

/// A member that failed, a checkpoint by schedule and a scrub are told with the names of mount and
/// group: what alerts ask for.
#[test]
fn a_group_tells_its_health_its_schedules_and_its_scrubs() {
    if !can_mount("metrics of a group") {
        return;
    }
    let scratch = Scratch::new();
    let members = super::volumes::group(&scratch, "mirror", 2, &[]);
    let (first, socket) = (text(&members[0]), scratch.path("metrics.sock"));
    bedplate(["format", first]).succeeds();
    let dir = scratch.directory("mnt");
    let option = format!("metrics=unix:{}", text(&socket));
    bedplate(["mount", first, text(&dir), "-o", &option]).succeeds();
    bedplate([
        "checkpoint",
        "schedule",
        "add",
        text(&dir),
        "hourly",
        "--every",
        "1h",
        "--keep",
        "3",
    ])
    .succeeds();
    bedplate(["volume", "scrub", text(&dir), "--every", "1d"]).succeeds();
    let told = || ask(UnixStream::connect(&socket).unwrap(), "GET /metrics").1;
    let until = |sample: &str, labels: &str| {
        let began = std::time::Instant::now();
        let beginning =
            format!("bedplate_{sample}{{mount=\"{}\",group=\"tank\"{labels}}} ", text(&dir));
        loop {
            let body = told();
            if let Some(line) = body.lines().find(|line| line.starts_with(&beginning)) {
                return line[beginning.len()..].parse::<f64>().unwrap();
            }
            assert!(began.elapsed().as_secs() < 120, "no {beginning}\n{body}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let recent = |time: f64| (time - now.as_secs_f64()).abs() < 600.0;
    assert!(recent(until("schedule_last_timestamp_seconds", ",schedule=\"hourly\"")));
    assert!(recent(until("scrub_last_timestamp_seconds", "")));
    assert!(until("scrub_period_seconds", "") > 86_399.0);
    assert!(until("group_whole", "") > 0.5);
    // S-504: the label was written and read.
    let member = format!(",member=\"{first}\"");
    assert!(until("member_busy_seconds_total", &member) > 0.0, "S-504");
    assert!(until("member_queued_seconds_total", &member) > 0.0, "S-504");
    std::fs::File::options().write(true).open(&members[1]).unwrap().set_len(1 << 20).unwrap();
    let file = std::fs::File::create(dir.join("file")).unwrap();
    (&file).write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(until("group_health", ",health=\"degraded\"") > 0.5);
    assert!(until("group_whole", "") < 0.5);
    bedplate(["unmount", text(&dir)]).succeeds();
}
