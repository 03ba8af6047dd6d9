//! Mounts: daemon and foreground, signals, busy and stale, and what is told of live files.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, run, text};

fn is_mounted(dir: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .any(|line| line.split(' ').nth(4) == dir.to_str())
}

fn pid_of(document: &Value) -> Pid {
    Pid::from_raw(i32::try_from(document["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// Waits for what a signal brings about; the limit only ends a test that has failed.
fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_mount_returns_once_it_can_be_used_and_unmount_once_the_volume_is_free() {
    if !can_mount("mount and unmount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    assert!(is_mounted(&dir));
    let content = pattern(1 << 20);
    std::fs::write(dir.join("pages"), &content).unwrap();
    bedplate(["unmount", text(&dir)]).succeeds().says("unmounted");
    assert!(!is_mounted(&dir));
    assert_eq!(
        bedplate(["cat", text(&image), "/pages"]).succeeds().stdout_bytes(),
        content,
        "the volume is free at once"
    );
    let mounted = bedplate(["--json", "mount", text(&image), text(&dir), "-o", "mode=direct"])
        .succeeds()
        .json();
    assert_eq!(
        (mounted["mode"].as_str(), mounted["recovery"]["needed"].as_bool()),
        (Some("direct"), Some(false)),
        "{mounted}"
    );
    assert_eq!(std::fs::read(dir.join("pages")).unwrap(), content);
    bedplate(["unmount", text(&image)]).succeeds();
}

/// The process of the daemon was an extended attribute of the root alone: `info` was refused, and
/// `unmount --force` could not end the daemon.
#[test]
fn s_291_a_mount_without_extended_attributes_is_told_of_and_ended_as_any_other() {
    if !can_mount("a mount without extended attributes") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mount = ["--json", "mount", text(&image), text(&dir), "-o", "xattr=off"];
    let mounted = bedplate(mount).succeeds().json();
    let info = bedplate(["--json", "info", text(&dir)]).succeeds().json();
    assert_eq!(info["pid"], mounted["pid"]);
    bedplate(["checkpoint", "create", text(&dir), "c"]).succeeds();
    bedplate(["stat", text(&dir)]).fails(1, "not supported");
    let busy = File::create(dir.join("busy")).unwrap();
    bedplate(["unmount", text(&dir), "--force"]).succeeds();
    drop(busy);
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn the_daemon_keeps_neither_the_terminal_nor_the_directory_it_was_started_in() {
    if !can_mount("the daemon lets go") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir, start) =
        (scratch.image("v.img"), scratch.directory("mnt"), scratch.directory("start"));
    let mut mount = command(["mount", "../v.img", "../mnt", "--json"]);
    // A pipe that the daemon kept open would never end.
    let mut child =
        mount.current_dir(&start).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{out}{err}");
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (document["volume"].as_str(), document["dir"].as_str()),
        (image.to_str(), dir.to_str())
    );
    let daemon = format!("/proc/{}", pid_of(&document).as_raw_nonzero());
    assert_eq!(std::fs::read_link(format!("{daemon}/cwd")).unwrap(), Path::new("/"));
    for fd in ["0", "1", "2"] {
        assert_eq!(
            std::fs::read_link(format!("{daemon}/fd/{fd}")).unwrap(),
            Path::new("/dev/null")
        );
    }
    std::fs::remove_dir(&start).unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    // Its parent may not have taken notice yet, but there is nothing left of it that runs.
    assert!(
        std::fs::read_link(format!("{daemon}/exe")).is_err(),
        "unmount returns when the daemon is gone"
    );
}

#[test]
fn a_signal_unmounts_cleanly() {
    if !can_mount("signals") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    for signal in [Signal::TERM, Signal::INT] {
        let mounted = bedplate(["--json", "mount", text(&image), text(&dir)]).succeeds().json();
        std::fs::write(dir.join("file"), b"content").unwrap();
        kill_process(pid_of(&mounted), signal).unwrap();
        until("the end of the mount", || {
            !Path::new(&format!("/proc/{}", pid_of(&mounted).as_raw_nonzero())).exists()
        });
        assert!(!is_mounted(&dir));
        let checked = bedplate(["--json", "check", text(&image)]).succeeds().json();
        assert_eq!(checked["clean_unmount"], true, "{checked}");
        assert_eq!(bedplate(["cat", text(&image), "/file"]).succeeds().stdout(), "content");
    }
}

#[test]
fn the_daemon_inherits_no_descriptor_of_the_script_that_starts_it() {
    if !can_mount("descriptors of a script") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir, lock) =
        (scratch.image("v.img"), scratch.directory("mnt"), scratch.path("lock"));
    let mut script = std::process::Command::new("sh");
    let line = r#"exec 9>"$1"; exec "$2" mount --json "$3" "$4""#;
    script
        .args(["-c", line, "sh"])
        .arg(&lock)
        .arg(env!("CARGO_BIN_EXE_bedplate"))
        .arg(&image)
        .arg(&dir);
    let mounted = run(script).succeeds().json();
    let open =
        std::fs::read_dir(format!("/proc/{}/fd", pid_of(&mounted).as_raw_nonzero())).unwrap();
    let targets: Vec<_> =
        open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    assert!(targets.contains(&image) && !targets.contains(&lock), "{targets:?}");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// A mount in the foreground, ended with the test.
struct Foreground(Child);

impl Foreground {
    fn start(image: &Path, dir: &Path) -> Self {
        let mut mount = command(["mount", "--foreground", text(image), text(dir)]);
        let mut child = mount.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("mounted on"), "{line}");
        Self(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // A test that went well has waited for it already; both then fail and nothing is left to
        // do.
        let (_killed, _waited) = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn a_mount_in_the_foreground_ends_with_a_signal_or_an_unmount() {
    if !can_mount("a mount in the foreground") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mut first = Foreground::start(&image, &dir);
    kill_process(first.pid(), Signal::INT).unwrap();
    assert!(first.0.wait().unwrap().success());
    let mut second = Foreground::start(&image, &dir);
    std::fs::write(dir.join("file"), b"content").unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    assert!(second.0.wait().unwrap().success());
    assert_eq!(
        bedplate(["--json", "check", text(&image)]).succeeds().json()["clean_unmount"],
        true
    );
}

/// SIGTERM took the mount away from a running PostgreSQL, which panicked; so did SIGHUP, which asks
/// daemons to open their logs again.
#[test]
fn s_193_a_signal_leaves_a_busy_mount_alone_until_a_second_one_comes() {
    if !can_mount("a signal to a busy mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mut mount = Foreground::start(&image, &dir);
    let mut told = BufReader::new(mount.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let held = File::create(dir.join("held")).unwrap();
    kill_process(mount.pid(), Signal::HUP).unwrap();
    kill_process(mount.pid(), Signal::TERM).unwrap();
    assert!(
        told.any(
            |line| line.contains("in use by") && line.contains(&std::process::id().to_string())
        ),
        "who is waited for is named"
    );
    held.write_all_at(b"written", 0).unwrap();
    held.sync_all().unwrap();
    assert!(is_mounted(&dir));
    kill_process(mount.pid(), Signal::TERM).unwrap();
    assert!(told.any(|line| line.contains("although it is in use")));
    assert!(mount.0.wait().unwrap().success());
    assert!(held.write_all_at(b"too late", 0).is_err() || held.sync_all().is_err());
    drop(held);
    assert_eq!(
        bedplate(["--json", "check", text(&image)]).succeeds().json()["clean_unmount"],
        true
    );
    assert_eq!(bedplate(["cat", text(&image), "/held"]).succeeds().stdout(), "written");
}

#[test]
fn s_193_a_mount_that_was_asked_to_end_ends_with_its_last_user() {
    if !can_mount("a signal to a mount that becomes free") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mut mount = Foreground::start(&image, &dir);
    let mut told = BufReader::new(mount.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let held = File::create(dir.join("held")).unwrap();
    kill_process(mount.pid(), Signal::INT).unwrap();
    assert!(told.any(|line| line.contains("in use by")));
    drop(held);
    assert!(mount.0.wait().unwrap().success());
    assert_eq!(
        bedplate(["--json", "check", text(&image)]).succeeds().json()["clean_unmount"],
        true
    );
}

#[test]
fn s_193_an_end_has_a_time_and_an_unmount_has_force() {
    if !can_mount("a forced unmount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    bedplate(["mount", text(&image), text(&dir), "-o", "stop-timeout=soon"])
        .fails(2, "stop-timeout");
    let log = scratch.path("log");
    let options = format!("stop-timeout=100ms,logfile={}", text(&log));
    let mounted =
        bedplate(["--json", "mount", text(&image), text(&dir), "-o", &options]).succeeds().json();
    let held = File::create(dir.join("held")).unwrap();
    std::fs::rename(&log, scratch.path("log.1")).unwrap();
    kill_process(pid_of(&mounted), Signal::HUP).unwrap();
    kill_process(pid_of(&mounted), Signal::TERM).unwrap();
    let cut_off =
        || std::fs::read_to_string(&log).is_ok_and(|said| said.contains("although it is in use"));
    until("an end after its time, in a log that was opened again", || {
        cut_off() && !is_mounted(&dir)
    });
    drop(held);
    until("the volume becomes free", || bedplate(["check", text(&image)]).code() == 0);

    bedplate(["mount", text(&image), text(&dir)]).succeeds();
    let held = File::create(dir.join("held")).unwrap();
    held.write_all_at(b"written", 0).unwrap();
    bedplate(["unmount", text(&dir)]).fails(1, "in use by");
    bedplate(["unmount", "--force", text(&dir)]).succeeds().says("is free");
    drop(held);
    assert_eq!(bedplate(["cat", text(&image), "/held"]).succeeds().stdout(), "written");
}

#[test]
fn a_busy_mount_says_who_keeps_it_busy() {
    if !can_mount("a busy mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("");
    let held = File::create(dir.join("held")).unwrap();
    let mut sleep = std::process::Command::new("sleep").arg("600").stdin(held).spawn().unwrap();
    let failed = bedplate(["unmount", text(&dir)]);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    failed.fails(1, &format!("sleep ({})", sleep.id()));
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn a_copy_of_the_mount_in_a_container_is_named() {
    if !can_mount("a copy of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("");
    // A container started while the volume is mounted keeps a copy, and the daemon lives on in it:
    // an unmount would wait without a word. The copies it gets of other tests' mounts are none of
    // its business.
    let script = "while read -r source dir rest; do test \"$dir\" = \"$M\" || case $rest in \
                  fuse.bedplate*) umount -l \"$dir\";; esac; done < /proc/self/mounts; echo ready; \
                  read -r line";
    let mut container = std::process::Command::new("unshare");
    container
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .env("M", &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut container) = container.spawn() else {
        eprintln!("skipped: a copy of a mount: there is no unshare(1)");
        return;
    };
    let mut ready = String::new();
    BufReader::new(container.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    if ready.is_empty() {
        eprintln!("skipped: a copy of a mount: unshare(1) is not allowed here");
        return;
    }
    let failed = bedplate(["unmount", text(&dir)]);
    drop(container.stdin.take());
    container.wait().unwrap();
    failed.fails(1, &format!("({})", container.id()));
    assert!(!is_mounted(&dir));
}

#[test]
fn a_dead_mount_is_known_although_the_kernel_still_answers_for_it() {
    if !can_mount("a dead mount with attributes that are known") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mount_and_kill = || {
        let mounted = bedplate(["--json", "mount", text(&image), text(&dir)]).succeeds().json();
        let pid = pid_of(&mounted);
        // From now on the kernel knows the attributes of the root for a day.
        std::fs::metadata(&dir).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        until("the end of the daemon", || {
            !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
        });
    };
    mount_and_kill();
    bedplate(["unmount", text(&dir)]).succeeds().says("a daemon that died");
    assert!(!is_mounted(&dir));
    mount_and_kill();
    bedplate(["mount", text(&image), text(&dir)]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn a_killed_daemon_leaves_a_stale_mount_that_is_explained_and_a_volume_that_recovers() {
    if !can_mount("a killed daemon") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mounted = bedplate(["--json", "mount", text(&image), text(&dir)]).succeeds().json();
    let file = File::create(dir.join("synced")).unwrap();
    file.write_all_at(b"acknowledged", 0).unwrap();
    file.sync_all().unwrap();
    kill_process(pid_of(&mounted), Signal::KILL).unwrap();
    until("the end of the daemon", || {
        !Path::new(&format!("/proc/{}", pid_of(&mounted).as_raw_nonzero())).exists()
    });
    drop(file);
    bedplate(["info", text(&dir)]).fails(4, "daemon died");
    bedplate(["stat", text(&dir.join("synced"))]).fails(1, "daemon died");
    bedplate(["unmount", text(&dir)]).succeeds().says("the next mount").says("recovers");
    let again = bedplate(["--json", "mount", text(&image), text(&dir)]).succeeds().json();
    assert_eq!(again["recovery"]["needed"], true, "{again}");
    assert_eq!(std::fs::read(dir.join("synced")).unwrap(), b"acknowledged");
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn an_unmount_that_could_not_make_everything_durable_is_no_success() {
    if !can_mount("a volume whose host is full") {
        return;
    }
    let scratch = Scratch::new();
    let (host, dir) = (scratch.directory("host"), scratch.directory("mnt"));
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("bedplate-test", &host, "tmpfs", flags, Some(c"size=40m")).is_err() {
        eprintln!("skipped: a volume whose host is full: only root can mount a small host");
        return;
    }
    let image = host.join("v.img");
    bedplate(["format", text(&image), "--size", "64M"]).succeeds();
    let log = scratch.path("daemon.log");
    bedplate(["mount", text(&image), text(&dir), "-o", &format!("logfile={}", text(&log))])
        .succeeds();
    // Fills the host behind the volume's back, so that not even the log finds a place.
    let filler = File::create(host.join("filler")).unwrap();
    let mut at = 0;
    while filler.write_all_at(&[1; 4096], at).is_ok() {
        at += 4096;
    }
    for number in 0..50 {
        // Refused or not: what counts is what the unmount says in the end.
        let _refused = std::fs::write(dir.join(format!("file-{number}")), pattern(100_000));
    }
    bedplate(["unmount", text(&dir)]).fails(1, "could not make everything durable");
    assert!(!is_mounted(&dir));
    std::fs::remove_file(host.join("filler")).unwrap();
    assert_eq!(
        bedplate(["--json", "mount", text(&image), text(&dir)]).succeeds().json()["recovery"]["needed"],
        true
    );
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_mount_that_cannot_be_is_explained() {
    if !can_mount("mounts that cannot be") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let file = scratch.file("file", b"");
    bedplate(["mount", "/mnt/no-such.img", text(&dir)]).fails(1, "/mnt/no-such.img");
    bedplate(["mount", text(&image), "/mnt/no-such/dir"]).fails(1, "/mnt/no-such/dir");
    bedplate(["mount", text(&image), text(&file)]).fails(1, "not a directory");
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=fast"]).fails(2, "fast");
    bedplate(["mount", text(&image), text(&dir), "-o", "nonsense"]).fails(2, "nonsense");
    bedplate(["unmount", text(&dir)]).fails(1, "nothing is mounted at");
    bedplate(["unmount", "/proc"]).fails(1, "another file system");
    assert!(!is_mounted(&dir));
    bedplate(["check", text(&image)]).succeeds();
}

/// One extended attribute holds 64 KiB at most.
#[test]
fn a_live_file_of_very_many_extents_tells_of_them_all() {
    if !can_mount("a file of many extents") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let path = dir.join("sparse");
    let file = std::fs::File::create(&path).unwrap();
    for at in 0..1500 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], at * 8192).unwrap();
    }
    file.sync_all().unwrap();
    let stat = bedplate(["--json", "stat", text(&path)]).succeeds().json();
    let offsets: Vec<_> = stat["extents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|extent| extent["file_offset"].as_u64().unwrap())
        .collect();
    assert!(offsets == (0..1500).map(|at| at * 8192).collect::<Vec<u64>>(), "{offsets:?}");
    bedplate(["stat", text(&path)]).succeeds().says("extents       1500");
    bedplate(["explain", text(&path)]).succeeds().says("1500 extents, 4 KiB on average");
    drop(file);
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_live_file_tells_its_mode_its_extents_and_why_an_io_was_not_direct() {
    if !can_mount("live files") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let path = dir.join("pages");
    let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&pattern(64 << 10), 0).unwrap();
    file.write_all_at(b"odd", 4099).unwrap();
    let stat = bedplate(["--json", "stat", text(&path)]).succeeds().json();
    assert_eq!(
        (stat["size_bytes"].as_u64(), stat["effective_mode"].as_str()),
        (Some(64 << 10), Some("concurrent")),
        "{stat}"
    );
    assert_eq!(stat["extents"].as_array().map(Vec::len), Some(1), "{stat}");
    assert!(stat["counters"]["reasons"]["unaligned_offset"].as_u64() > Some(0), "{stat}");
    bedplate(["stat", "-e", text(&path)])
        .succeeds()
        .says("reasons")
        .says("unaligned_offset")
        .says("file offset");
    bedplate(["mode", text(&path), "direct"]).succeeds().says("direct");
    assert_eq!(bedplate(["--json", "stat", text(&path)]).succeeds().json()["mode"], "direct");
    bedplate(["mode", text(&path), "inherit"]).succeeds().says("not set");
    bedplate(["preallocate", text(&dir.join("log")), "4M"])
        .succeeds()
        .says("4 MiB allocated in 1 extent");
    let info = bedplate(["--json", "info", text(&dir)]).succeeds().json();
    assert_eq!(
        (info["volume"].as_str(), info["mounted_at"].as_str()),
        (image.to_str(), dir.to_str()),
        "{info}"
    );
    assert_eq!(bedplate(["--json", "info", text(&image)]).succeeds().json()["uuid"], info["uuid"]);
    bedplate(["info", text(&path)]).succeeds().says("mode concurrent").says("syncs");
    drop(file);
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn a_mounted_volume_grows_under_its_files() {
    if !can_mount("growing a mounted volume") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    let grown = bedplate(["--json", "grow", text(&dir), "128M"]).succeeds().json();
    assert!(grown["size_bytes"].as_u64() > grown["before_bytes"].as_u64(), "{grown}");
    std::fs::write(dir.join("large"), pattern(80 << 20)).unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn the_daemon_says_what_happens_later_in_its_log_file() {
    if !can_mount("the log file") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let mut mount = command(["mount", text(&image), text(&dir), "-o", "logfile=daemon.log", "-v"]);
    mount.current_dir(scratch.path(""));
    run(mount).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
    let log = std::fs::read_to_string(scratch.path("daemon.log")).unwrap();
    assert!(log.lines().any(|line| line.contains("bedplate: info: ")), "{log}");
    bedplate(["mount", text(&image), text(&dir), "-o", "logfile=/mnt/no-such/log"])
        .fails(1, "/mnt/no-such/log");
}

#[test]
fn called_as_the_helper_of_mount_it_mounts() {
    if !can_mount("the helper of mount(8)") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir, helper) =
        (scratch.image("v.img"), scratch.directory("mnt"), scratch.path("mount.bedplate"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bedplate"), &helper).unwrap();
    let mut mount = std::process::Command::new(helper);
    mount.arg(&image).arg(&dir).args(["-n", "-o", "rw,mode=concurrent"]);
    run(mount).succeeds().says("mode concurrent");
    assert!(is_mounted(&dir));
    bedplate(["unmount", text(&dir)]).succeeds();
}
