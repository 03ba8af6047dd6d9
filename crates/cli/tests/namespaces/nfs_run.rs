//! `bedplate run --nfs`: programs on a directory of a server.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Run, Scratch, bedplate, can_mount, command, pattern, run, text};
use crate::nfs_server::Server;

/// A directory that is served, and one of this machine for it.
pub struct Bed {
    server: Server,
    dir: PathBuf,
    pub served: PathBuf,
    pub scratch: Scratch,
}

/// How directories are served: clients with locks have little time to take them back.
const SERVED: [&str; 4] = ["--squash", "none", "--grace", "3"];

impl Bed {
    /// `None` where there can be none.
    pub fn new(test: &str) -> Option<Self> {
        Self::of(test, |scratch| scratch.directory("served"))
    }

    /// The same, on a volume.
    pub fn on_volume(test: &str) -> Option<Self> {
        Self::of(test, |scratch| scratch.mounted("").1)
    }

    fn of(test: &str, make: impl FnOnce(&Scratch) -> PathBuf) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {test}: needs root");
            return None;
        }
        if !can_mount(test) {
            return None;
        }
        let scratch = Scratch::new();
        let (served, dir) = (make(&scratch), scratch.directory("dir"));
        let server = Server::start(&served, &SERVED);
        Some(Self { scratch, served, dir, server })
    }

    /// Returns what `--nfs` is told.
    fn place(&self, options: &str) -> String {
        let port = self.server.address.port();
        let (served, dir) = (text(&self.served), text(&self.dir));
        format!("127.0.0.1:{served}?nfsport={port}&mountport={port}{options}={dir}")
    }

    /// Returns a run of a shell's script that stands in the directory.
    pub fn script(&self, options: &str, script: &str) -> Command {
        let place = self.place(options);
        let script = format!("cd {} && {script}", text(&self.dir));
        command(["run", "--nfs", &place, "--", "sh", "-ec", &script])
    }

    fn runs(&self, script: &str) -> Run {
        run(self.script("", script)).succeeds()
    }

    /// Kills the server, and starts another one at its place.
    pub fn restart(self) -> Self {
        let listen = self.server.address.to_string();
        self.server.send(Signal::KILL);
        let server = Server::start_at(&self.served, &listen, &SERVED);
        Self { server, ..self }
    }
}

/// A run in the background, killed when a test fails.
pub struct Background(Child);

impl Background {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Sends a signal to a process of it.
    pub fn send_to(&self, pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub fn code(mut self) -> Option<i32> {
        until("the end of a run", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

pub fn until(what: &str, mut is_done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn number_in(path: &Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()
}

#[test]
fn s_525_a_program_finds_a_directory_of_a_server_and_no_other_program_does() {
    let Some(bed) = Bed::new("programs on a server") else { return };
    std::fs::write(bed.served.join("there"), pattern(300_000)).unwrap();
    std::fs::write(bed.dir.join("below"), b"hidden").unwrap();
    let copy = bed.scratch.path("copy");
    let shown = bed.runs(&format!(
        "test ! -e below; cp there {}; echo made > made; mkdir -p a/b; mv made a/b/moved; \
         ln -s a/b/moved link; ln there twice; chmod 640 there; touch -d @1000000000 twice; \
         cat link; stat -f -c %T . > /dev/null; mkfifo pipe; truncate -s 1000000 a/holes; \
         grep ' {} ' /proc/mounts",
        text(&copy),
        text(&bed.dir),
    ));
    let shown = shown.says("made").says("fuse.bedplate-nfs").stdout();
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(std::fs::read(&copy).unwrap() == pattern(300_000));
    assert_eq!(names_in(&bed.served), ["a", "link", "pipe", "there", "twice"]);
    assert_eq!(std::fs::read(bed.served.join("a/b/moved")).unwrap(), b"made\n");
    let there = bed.served.join("there").metadata().unwrap();
    assert_eq!((there.mode() & 0o777, there.nlink(), there.mtime()), (0o640, 2, 1_000_000_000));
    let holes = bed.served.join("a/holes").metadata().unwrap();
    assert_eq!((holes.len(), holes.blocks()), (1_000_000, 0));
    // Here it was never seen, and is not afterwards.
    assert_eq!(names_in(&bed.dir), ["below"]);
    let other = bed.script("", "touch begun; while test ! -e go; do sleep 0.02; done");
    let other = Background::start(other);
    until("the program", || bed.served.join("begun").exists());
    assert_eq!(names_in(&bed.dir), ["below"], "while it runs");
    std::fs::write(bed.served.join("go"), b"").unwrap();
    assert_eq!(other.code(), Some(0), "what others make there is seen soon");
}

#[test]
fn s_526_what_was_synced_and_what_was_only_written_survive_kills_of_the_server() {
    for options in ["", "&mode=cached", "&mode=direct&nconnect=2"] {
        let Some(mut bed) = Bed::new("kills of a server") else { return };
        // The one that syncs the file is another process than those that write it.
        let script = "for i in $(seq 40); do \
             dd if=/dev/zero bs=1000 count=20 2>/dev/null | tr '\\0' x >> file; \
             echo $i >> log; sync file log; echo $i; done; cat log | tail -1";
        let running = Background::start(bed.script(options, script));
        for least in ["10", "20", "30"] {
            let reached = least.parse::<usize>().unwrap();
            let lines = |path: &Path| std::fs::read(path).map_or(0, |all| all.len());
            until("progress", || lines(&bed.served.join("file")) >= reached * 20_000);
            bed = bed.restart();
        }
        assert_eq!(running.code(), Some(0), "{options}");
        assert!(std::fs::read(bed.served.join("file")).unwrap() == vec![b'x'; 800_000]);
        let expected: String = (1..=40).map(|i| format!("{i}\n")).collect();
        assert_eq!(std::fs::read_to_string(bed.served.join("log")).unwrap(), expected);
    }
}

#[test]
fn s_527_every_user_asks_as_itself_unless_one_is_named() {
    let Some(bed) = Bed::new("users") else { return };
    chown(&bed.served, Some(4711), Some(4711)).unwrap();
    std::fs::set_permissions(&bed.served, PermissionsExt::from_mode(0o770)).unwrap();
    let as_user = |user: &str, groups: &str| {
        format!("setpriv --reuid={user} --regid={user} --groups={groups} sh -ec")
    };
    bed.runs(&format!(
        "{} 'echo own > own; chmod 600 own'; {} 'echo group > group'; \
         {} 'ls .' && exit 1; {} 'cat own' && exit 1; echo root > root",
        as_user("4711", "4711"),
        as_user("4712", "4711"),
        as_user("4713", "4713"),
        as_user("4712", "4711"),
    ));
    let owner = |name: &str| bed.served.join(name).metadata().unwrap().uid();
    assert_eq!((owner("own"), owner("group"), owner("root")), (4711, 4712, 0));
    run(bed.script("&uid=4711&gid=4711", "echo one > one; cat own")).succeeds().says("own");
    assert_eq!(owner("one"), 4711);
}

#[test]
fn s_528_a_file_that_is_open_outlives_its_name() {
    let Some(bed) = Bed::new("open files") else { return };
    let shown = bed.runs(
        "echo first > a; exec 5<>a; rm a; test ! -e a; echo more >&5; cat /proc/self/fd/5 > seen; \
         echo old > b; exec 6<b; echo new > c; mv c b; cat b; cat <&6; ls -A | grep -c nfs; \
         stat -L -c %h /proc/self/fd/6",
    );
    assert_eq!(shown.stdout(), "new\nold\n2\n0\n");
    assert_eq!(std::fs::read(bed.served.join("seen")).unwrap(), b"more\n\n");
    assert_eq!(names_in(&bed.served), ["b", "seen"], "with the last close it is gone");
}

#[test]
fn s_529_a_killed_program_ends_though_the_server_is_silent() {
    let Some(bed) = Bed::new("a silent server") else { return };
    std::fs::write(bed.served.join("file"), pattern(100_000)).unwrap();
    let (pid, status) = (bed.scratch.path("pid"), bed.scratch.path("status"));
    // Not on the server, which is to have no call under way when it falls silent.
    let (begun, go) = (bed.scratch.path("begun"), bed.scratch.path("go"));
    let script = format!(
        "cat file > /dev/null; : > {begun}; while test ! -e {go}; do sleep 0.02; done; \
         cat file > /dev/null & echo $! > {pid}; set +e; wait $!; echo $? > {status}; cat file | wc -c",
        begun = text(&begun),
        go = text(&go),
        pid = text(&pid),
        status = text(&status)
    );
    let running = Background::start(bed.script("", &script));
    until("the program", || begun.exists());
    bed.server.pause(Signal::STOP);
    std::fs::write(&go, b"").unwrap();
    until("the reader", || number_in(&pid).is_some());
    let reader = number_in(&pid).unwrap();
    let waits = || {
        let place = std::fs::read_to_string(format!("/proc/{reader}/wchan")).unwrap_or_default();
        place.contains("request_wait")
    };
    until("a call that waits", || waits() || number_in(&status).is_some());
    assert!(number_in(&status).is_none(), "it waits for the server");
    kill_process(Pid::from_raw(reader).unwrap(), Signal::TERM).unwrap();
    until("the end of the killed reader", || number_in(&status).is_some());
    assert_eq!(number_in(&status), Some(128 + 15));
    bed.server.pause(Signal::CONT);
    assert_eq!(running.code(), Some(0), "all else goes on");
    // One with less patience is told.
    let soft = "&soft&timeo=3&retrans=1";
    let script = format!(": > {}; while test -e file; do sleep 0.02; done", text(&begun));
    std::fs::remove_file(&begun).unwrap();
    let running = Background::start(bed.script(soft, &script));
    until("the program", || begun.exists());
    bed.server.pause(Signal::STOP);
    let ended = running.code();
    bed.server.pause(Signal::CONT);
    assert_eq!(ended, Some(0), "a name that cannot be asked for ends the loop");
}

#[test]
fn s_530_programs_append_lock_and_make_files_as_on_a_disk() {
    let Some(bed) = Bed::new("several processes") else { return };
    bed.runs(
        "set -C; for p in 1 2 3 4; do (for i in $(seq 50); do echo $p-$i >> all; \
         flock lock sh -c 'n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) >| n'; \
         (echo $p > only) 2>/dev/null && echo won >> wins || true; done) & done; wait",
    );
    let all = std::fs::read_to_string(bed.served.join("all")).unwrap();
    assert_eq!((all.lines().count(), all.lines().all(|line| line.contains('-'))), (200, true));
    assert_eq!(std::fs::read(bed.served.join("n")).unwrap(), b"200\n");
    assert_eq!(std::fs::read(bed.served.join("wins")).unwrap(), b"won\n");
}

#[test]
fn s_535_the_command_stays_with_all_that_the_program_left_and_ends_as_it_did() {
    let Some(bed) = Bed::new("what a program leaves") else { return };
    let script = "(while test ! -e go; do sleep 0.02; done; echo late > late) & exit 7";
    let mut running = Background::start(bed.script("", &format!("touch begun; {script}")));
    until("the program", || bed.served.join("begun").exists());
    assert!(running.0.try_wait().unwrap().is_none());
    std::fs::write(bed.served.join("go"), b"").unwrap();
    assert_eq!(running.code(), Some(7));
    assert_eq!(std::fs::read(bed.served.join("late")).unwrap(), b"late\n");
    // A signal is the program's.
    let trap = "trap 'echo told > told; exit 3' TERM; touch begun2; while :; do sleep 0.02; done";
    let running = Background::start(bed.script("", trap));
    until("the program", || bed.served.join("begun2").exists());
    running.send(Signal::TERM);
    assert_eq!(running.code(), Some(3));
    assert_eq!(std::fs::read(bed.served.join("told")).unwrap(), b"told\n");
    // The program is killed, and so is the command: nothing stays mounted.
    run(bed.script("", "kill -KILL $$")).ends(128 + 9);
    let running = Background::start(bed.script("", "echo $$ > pid; exec sleep 100"));
    let pid = bed.served.join("pid");
    until("the program", || number_in(&pid).is_some());
    drop(running);
    let stat = format!("/proc/{}/stat", number_in(&pid).unwrap());
    until("the end of the program", || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(text(&bed.dir)), "{mounts}");
}

#[test]
fn s_536_a_large_directory_is_listed_name_by_name() {
    let Some(bed) = Bed::new("a large directory") else { return };
    std::fs::create_dir(bed.served.join("many")).unwrap();
    for number in 0..10_000 {
        std::fs::write(bed.served.join(format!("many/a name that is {number}")), b"").unwrap();
    }
    let shown = bed.runs(
        "ls -f many | sort -u | wc -l; ls -l many | grep -c ' 0 '; ls -U many | head -1 | wc -l; \
         rm -r many; ls | wc -l",
    );
    assert_eq!(shown.stdout(), "10002\n10000\n1\n0\n");
}

#[test]
fn s_537_programs_on_the_server_run_and_see_what_was_written() {
    let Some(bed) = Bed::new("programs to run") else { return };
    let shown = bed.runs(
        "cp /bin/echo said; ./said one; cp $(command -v expr) new; mv new said; ./said 1 + 1; \
         printf '#!/bin/sh\\necho script\\n' > s; chmod 755 s; ./s; chmod 644 s; ./s || echo refused",
    );
    assert_eq!(shown.stdout(), "one\n2\nscript\nrefused\n");
}

#[test]
fn s_538_what_cannot_be_is_refused_before_the_program_runs() {
    let Some(bed) = Bed::new("refusals") else { return };
    let (place, file) = (bed.place(""), bed.scratch.path("ran"));
    let refused = |place: &str| bedplate(["run", "--nfs", place, "--", "touch", text(&file)]);
    refused("host:/export").fails(2, "HOST:/EXPORT=/DIR");
    refused(&bed.place("&sec=krb5")).fails(2, "'sec' is not known");
    refused(&bed.place("&mode=fast")).fails(2, "is no mode");
    refused(&place.replace(text(&bed.dir), "/nowhere/at/all")).fails(1, "does not exist");
    refused(&place.replacen("/served", "/nothing", 1)).fails(1, "it is not there");
    let unreached = format!("127.0.0.1:/x?nfsport=1&mountport=1={}", text(&bed.dir));
    refused(&unreached).fails(1, "is not reached");
    assert!(!file.exists());
    bedplate(["run", "--nfs", &place, "--", "no-such-program"]).fails(1, "no program");
    bedplate(["run", "--nfs", &place, "--report", "--", "true"]).ends(2);
}
