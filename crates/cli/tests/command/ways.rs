//! `bedplate bench ways`: every way has figures or a reason, all lead to the same bytes, and nothing
//! is left behind, however a run ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, run, text};
use crate::user::{as_user, scratch as scratch_of_user};

/// As little as has every part: two numbers of threads and a list, reading and writing.
const TINY: &str = "--size 1M --threads 1,2 --depth 2 --rounds 2 --time 20ms --warm-up 5ms";
/// The cases of it.
const CASES: usize = 6;
const WAYS: [&str; 11] = [
    "raw device",
    "kernel file system",
    "library",
    "lease",
    "mount, concurrent",
    "mount, cached",
    "NBD",
    "vhost-user-blk",
    "NFS, own client",
    "NFS, libnfs",
    "NFS, kernel client",
];

/// A volume, a raw device and a directory, and where sockets and mount points go.
struct Bed {
    scratch: Scratch,
    volume: PathBuf,
    raw: PathBuf,
    dir: PathBuf,
    temporary: PathBuf,
}

impl Bed {
    fn new() -> Self {
        Self::in_scratch(Scratch::new())
    }

    fn in_scratch(scratch: Scratch) -> Self {
        let source = scratch.file("source", b"precious");
        let volume = scratch.image("volume.img");
        bedplate(["put", text(&volume), text(&source), "/kept"]).succeeds();
        let raw = scratch.file("raw.img", &vec![7; 4 << 20]);
        let (dir, temporary) = (scratch.directory("dir"), scratch.directory("tmp"));
        Self { scratch, volume, raw, dir, temporary }
    }

    /// Returns the arguments of a run on it.
    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let (volume, raw) = (text(&self.volume), text(&self.raw));
        let places =
            [format!("volume:{volume}"), format!("raw:{raw}"), format!("path:{}", text(&self.dir))];
        let targets = places.into_iter().flat_map(|place| ["-t".to_owned(), place]);
        let head = ["--json", "bench", "ways"].map(ToOwned::to_owned);
        let destroy = format!("--destroy={raw}");
        let tail = more.iter().map(|&word| word.to_owned());
        head.into_iter().chain(targets).chain([destroy]).chain(tail).collect()
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = command(self.arguments(more));
        command.env("TMPDIR", &self.temporary);
        command
    }

    fn measure(&self, more: &[&str]) -> Value {
        run(self.command(&[&TINY.split(' ').collect::<Vec<_>>()[..], more].concat()))
            .succeeds()
            .json()
    }

    /// Asserts that the volume holds what it held, and that no process and no file is left.
    fn is_as_it_was(&self) {
        bedplate(["cat", text(&self.volume), "/kept"]).succeeds().says("precious");
        let names = bedplate(["ls", text(&self.volume)]).succeeds().stdout();
        assert!(!names.contains("bedplate-bench"), "{names}");
        bedplate(["check", text(&self.volume)]).succeeds();
        for dir in [&self.temporary, &self.dir] {
            assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "{}", dir.display());
        }
        assert_eq!(processes_of(&self.scratch), Vec::<String>::new());
    }
}

/// Returns the command lines of processes that name something in a scratch directory.
fn processes_of(scratch: &Scratch) -> Vec<String> {
    let base = scratch.path("");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(text(&base))).collect()
}

/// Returns the records of a way.
fn records<'a>(measured: &'a Value, label: &str) -> Vec<&'a Value> {
    let targets = measured["targets"].as_array().unwrap();
    let at = targets.iter().position(|target| target["label"] == label);
    let at = at.unwrap_or_else(|| panic!("there is no line of {label}"));
    let records = measured["records"].as_array().unwrap();
    records.iter().filter(|record| record["target"] == at).collect()
}

/// Returns why a way has no figures, of each case that has none.
fn reasons<'a>(measured: &'a Value, label: &str) -> Vec<&'a str> {
    let targets = measured["targets"].as_array().unwrap();
    let at = targets.iter().position(|target| target["label"] == label).unwrap();
    let skipped = measured["skipped"].as_array().unwrap();
    let of_way = skipped.iter().filter(|one| one["target"] == at);
    of_way.map(|one| one["reason"].as_str().unwrap()).collect()
}

/// S-582: in each case and round a way has figures, or a reason. S-583: all that can be gone have
/// read what each of them wrote.
#[test]
fn s_582_every_way_has_figures_or_a_reason_and_s_583_reads_what_the_others_wrote() {
    let bed = Bed::new();
    let document = bed.measure(&["--report", text(&bed.scratch.path("report"))]);
    let measured = &document["workloads"][0];
    for way in WAYS {
        let (records, reasons) = (records(measured, way), reasons(measured, way));
        assert_eq!(records.len(), 2 * (CASES - reasons.len()), "{way}: {reasons:?}");
        assert!(reasons.iter().all(|reason| reason.len() > 10), "{way}: {reasons:?}");
        // On a busy machine a window may pass without an operation; not all of them do.
        let is_whole = |record: &&&Value| {
            let m = &record["measurement"];
            let is_read = record["case"].as_u64().unwrap() < CASES as u64 / 2;
            let p99 = &m["latency"][if is_read { "read" } else { "write" }]["p99_us"];
            [&m["rate"], &m["cpu_us_per_op"], p99].iter().all(|v| v.as_f64() > Some(0.0))
        };
        let wholes = records.iter().filter(is_whole).count();
        assert!(wholes > 0 || reasons.len() == CASES, "{way}: {records:?}");
    }
    let compared = measured["options"]["read each other's writes"].as_str().unwrap();
    let compared: Vec<&str> = compared.split(',').collect();
    let mut expected = vec!["library", "nbd", "vhost-user"];
    if can_mount("ways by a mount") {
        expected.extend(["mount", "mount-cached"]);
        if rustix::process::geteuid().is_root() {
            expected.push("nfs");
        }
    }
    for way in expected {
        assert!(compared.contains(&way), "{way} is missing: {compared:?} {}", measured["skipped"]);
    }
    assert!(!compared.contains(&"raw"), "a reference has bytes of its own");
    let html = std::fs::read_to_string(bed.scratch.path("report").join("report.html")).unwrap();
    assert!(html.contains("CPU µs per operation") && html.contains("vhost-user-blk"));
    bed.is_as_it_was();
}

/// S-582: an ordinary user has the ways that need no root, and the reasons of the others.
#[test]
fn s_582_an_ordinary_user_has_figures_and_reasons() {
    let Some(scratch) = scratch_of_user("ways of an ordinary user") else { return };
    let bed = Bed::in_scratch(scratch);
    if rustix::process::geteuid().is_root() {
        for path in [&bed.volume, &bed.raw, &bed.dir, &bed.temporary] {
            std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
        }
    }
    let arguments = bed.arguments(&TINY.split(' ').collect::<Vec<_>>());
    let mut command = as_user(arguments.iter().map(String::as_str));
    command.env("TMPDIR", &bed.temporary);
    let document = run(command).succeeds().json();
    let measured = &document["workloads"][0];
    for way in ["raw device", "kernel file system", "library", "NBD", "vhost-user-blk"] {
        assert_eq!(records(measured, way).len(), 2 * CASES, "{way}: {:?}", reasons(measured, way));
    }
    let nfs = reasons(measured, "NFS, own client");
    assert_eq!(nfs.len(), CASES, "{nfs:?}");
    bed.is_as_it_was();
}

#[test]
fn s_582_a_way_that_is_not_named_has_no_line_and_a_missing_reference_has_one() {
    let scratch = Scratch::new();
    let target = format!("volume:{}", text(&scratch.image("volume.img")));
    let words = ["bench", "ways", "-t", &target, "--only", "raw,library,nbd"];
    let told = bedplate(words.into_iter().chain(TINY.split(' '))).succeeds();
    let told = told.says("not measured: raw device: no reference was named: add -t raw:DEVICE");
    let told = told.says("CPU per op").stdout();
    assert!(told.contains("NBD") && !told.contains("vhost"), "{told}");
}

/// Starts a run without an end, and waits until a server of it serves.
fn started(bed: &Bed) -> Child {
    let more = ["--size", "1M", "--rounds", "100000", "--time", "100ms", "--only", "nbd"];
    let mut child = bed.command(&more).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !is_serving(&bed.temporary) {
        assert!(begun.elapsed() < Duration::from_secs(120), "no server serves");
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn is_serving(temporary: &Path) -> bool {
    let dirs = std::fs::read_dir(temporary).unwrap().flatten();
    dirs.into_iter().any(|dir| dir.path().join("nbd.socket").exists())
}

/// S-584: Ctrl-C and SIGTERM end the run in order.
#[test]
fn s_584_a_signal_ends_the_run_and_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let bed = Bed::new();
        let child = started(&bed);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = child.wait_with_output().unwrap();
        let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let is_kept = told["interrupted"] == true;
        assert!(is_kept || told["error"]["kind"] == "interrupted", "{told}");
        bed.is_as_it_was();
    }
}

/// S-584: servers end with a run that is killed, and the next run finds its place clean.
#[test]
fn s_584_servers_end_with_a_run_that_is_killed() {
    let bed = Bed::new();
    let mut child = started(&bed);
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while !processes_of(&bed.scratch).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", processes_of(&bed.scratch));
        std::thread::sleep(Duration::from_millis(5));
    }
    bedplate(["check", text(&bed.volume)]).succeeds();
    bed.measure(&["--only", "library,nbd"]);
    // What it could not remove any more: sockets and messages.
    for left in std::fs::read_dir(&bed.temporary).unwrap().flatten() {
        std::fs::remove_dir_all(left.path()).unwrap();
    }
    bed.is_as_it_was();
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_touched() {
    let bed = Bed::new();
    let volume = format!("volume:{}", text(&bed.volume));
    let refused = |words: &[&str], code: i32, part: &str| {
        bedplate(["bench", "ways"].iter().chain(words)).fails(code, part);
    };
    refused(&["-t", &volume, "--only", "smb"], 2, "there is no way 'smb'");
    refused(&["-t", "volume:memory:64M"], 2, "without options");
    refused(&["-t", &format!("{volume},mode=cached")], 2, "each way has its own");
    refused(&["-t", &volume, "--block", "1000"], 2, "multiple of 4 KiB");
    refused(&["-t", &volume, "--threads", "0"], 2, "choose 1 to 256");
    refused(&["-t", &volume, "--size", "1G"], 1, "give a larger volume or a smaller --size");
    refused(&["-t", &format!("volume:{}", text(&bed.raw))], 1, "--destroy=");
    refused(&["-t", &volume, "-t", &format!("raw:{}", text(&bed.raw))], 1, "--destroy=");
    assert!(std::fs::read(&bed.raw).unwrap().iter().all(|byte| *byte == 7));
    bedplate(["bench", "program", "{}"]).fails(2, "no order of 'bedplate bench ways'");
    bed.is_as_it_was();
}
