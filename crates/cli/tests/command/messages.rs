//! What a daemon says once its terminal is gone: to the system's log, and to a program.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, run, text};
use crate::volumes::{another, group};

const PATIENCE: Duration = Duration::from_secs(120);

/// A program that appends what it is told to a file, and the files it has open to another.
fn program(scratch: &Scratch, more: &str) -> (PathBuf, PathBuf) {
    let out = scratch.path("events");
    let lines =
        format!("#!/bin/sh\nls -l /proc/self/fd > {0}.fds\ncat >> {0}\n{more}\n", text(&out));
    let path = scratch.file("program, for events", lines.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (path, out)
}

/// Returns the events that were told so far.
fn events(out: &Path) -> Vec<Value> {
    let told = std::fs::read_to_string(out).unwrap_or_default();
    // The last line may be half written.
    told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn named<'a>(events: &'a [Value], name: &str) -> Option<&'a Value> {
    events.iter().find(|event| event["event"] == name)
}

/// Writes and syncs files until `done`.
fn write_until(dir: &Path, what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        let file = std::fs::File::create(dir.join("file")).unwrap();
        (&file).write_all(&[1; 100_000]).unwrap();
        file.sync_all().unwrap();
        assert!(began.elapsed() < PATIENCE, "{what}");
    }
}

/// Once a member of a mounted mirror failed and a spare took over, and no log of the machine said a
/// word: a daemon without `logfile=` wrote to nowhere.
#[test]
fn s_200_s_201_a_member_that_fails_is_told_to_the_system_log_and_to_a_program() {
    if !can_mount("messages of a daemon") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, spare) = (text(&members[0]), another(&scratch, "spare.img"));
    bedplate(["volume", "spare", first, text(&spare)]).succeeds();
    bedplate(["format", first]).succeeds();
    let socket = scratch.path("log.socket");
    let log = UnixDatagram::bind(&socket).unwrap();
    log.set_read_timeout(Some(PATIENCE)).unwrap();
    let dir = scratch.directory("mnt");
    let (program, out) = program(&scratch, "");
    let mut mount = command(["mount", first, text(&dir), "--on-event", text(&program)]);
    mount.env("BEDPLATE_SYSLOG", &socket);
    run(mount).succeeds();
    std::fs::File::options().write(true).open(&members[1]).unwrap().set_len(1 << 20).unwrap();
    write_until(&dir, "no event", || named(&events(&out), "member_rebuilt").is_some());
    bedplate(["unmount", text(&dir)]).succeeds();

    let told = events(&out);
    let failed = named(&told, "member_failed").unwrap();
    assert_eq!(failed["mount"], text(&dir), "S-201: {failed}");
    assert_eq!((&failed["group"], &failed["severity"]), (&"tank".into(), &"warning".into()));
    assert!(failed["member"].as_str().unwrap().contains("m1.img"), "S-201: {failed}");
    assert!(failed["time"].is_string() && failed["pid"].is_u64(), "S-201: {failed}");
    let spare = named(&told, "spare_takes_over").unwrap();
    assert!(spare["spare"].as_str().unwrap().contains("spare.img"), "S-201: {spare}");
    let inherited = std::fs::read_to_string(out.with_extension("fds")).unwrap();
    assert!(!inherited.contains("fuse") && !inherited.contains(".img"), "S-201: {inherited}");

    let (mut buffer, mut said) = (vec![0; 16 << 10], Vec::new());
    while !said.iter().any(|line: &String| line.contains("a spare takes over")) {
        let len = log.recv(&mut buffer).expect("S-200: the log hears of the spare");
        said.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
    }
    let failed = said.iter().find(|line| line.contains("the member failed")).unwrap();
    assert!(failed.starts_with("<28>bedplate[") && failed.contains(text(&dir)), "S-200: {failed}");
}

#[test]
fn s_201_a_program_that_hangs_holds_nothing_up_and_a_full_file_system_is_told() {
    if !can_mount("a program that hangs") {
        return;
    }
    let scratch = Scratch::new();
    let (program, out) =
        program(&scratch, &format!("echo $$ > {}.pid; sleep 1000", text(&scratch.path("events"))));
    let renamed = scratch.path("program");
    std::fs::rename(&program, &renamed).unwrap();
    let (_, dir) = scratch.mounted(&format!("on-event={}", text(&renamed)));
    let mut file = std::fs::File::create(dir.join("large")).unwrap();
    let written = file.write_all(&vec![1; 128 << 20]).and_then(|()| file.sync_all());
    assert!(written.is_err(), "S-201: 64 MiB hold 128");
    drop(file);
    let began = Instant::now();
    while named(&events(&out), "full").is_none() {
        assert!(began.elapsed() < PATIENCE, "S-201: a full file system is not told");
        std::thread::sleep(Duration::from_millis(20));
    }
    // It hangs now; the mount does not.
    std::fs::remove_file(dir.join("large")).unwrap();
    std::fs::write(dir.join("small"), b"content").unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    let sleeper = std::fs::read_to_string(out.with_extension("pid")).unwrap();
    let process = Path::new("/proc").join(sleeper.trim());
    let began = Instant::now();
    while process.exists() {
        assert!(began.elapsed() < PATIENCE, "S-201: the program outlives the mount");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// S-281: of a block that is not what was written the program hears, by file and byte.
#[test]
fn s_201_data_that_is_lost_is_told() {
    if !can_mount("messages of lost data") {
        return;
    }
    let scratch = Scratch::new();
    let (program, out) = program(&scratch, "");
    let renamed = scratch.path("program");
    std::fs::rename(&program, &renamed).unwrap();
    let (image, dir) = scratch.mounted(&format!("mode=concurrent,on-event={}", text(&renamed)));
    bedplate(["integrity", text(&dir), "on"]).succeeds();
    let file = dir.join("table");
    std::fs::write(&file, vec![7; 64 << 10]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    let stat = bedplate(["--json", "stat", text(&file)]).succeeds().json();
    let place = stat["extents"][0]["volume_offset"].as_u64().unwrap();
    let below = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&below, &[1; 5], place + 8192).unwrap();
    below.sync_all().unwrap();
    let read = std::fs::read(&file);
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5), "S-281: wrong bytes were returned");
    let began = Instant::now();
    while named(&events(&out), "data_lost").is_none() {
        assert!(began.elapsed() < PATIENCE, "S-201: lost data are not told");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = events(&out);
    let lost = named(&told, "data_lost").unwrap();
    assert!(lost["message"].as_str().unwrap().contains("at byte 8192"), "{lost}");
    assert_eq!(lost["severity"], "error", "{lost}");
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn a_program_for_events_that_cannot_be_run_is_refused_before_the_mount() {
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let missing = format!("on-event={}", text(&scratch.path("missing")));
    bedplate(["mount", text(&image), text(&dir), "-o", &missing]).fails(2, "does not exist");
    bedplate(["mount", text(&image), text(&dir), "--on-event", text(&image)])
        .fails(2, "cannot be run");
}
