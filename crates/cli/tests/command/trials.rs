//! Trials of another mode on a file that is in use.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};

/// Reads and writes a file until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn on(path: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let until = Arc::clone(&stop);
        let work = move || {
            let mut block = pattern(4096);
            while !until.load(Ordering::Relaxed) {
                for at in 0..16 {
                    file.write_all_at(&block, at * 4096).unwrap();
                    file.read_exact_at(&mut block, at * 4096).unwrap();
                }
            }
        };
        Self { stop, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn mounted(scratch: &Scratch) -> PathBuf {
    let (_, dir) = scratch.mounted("mode=direct,latency-sample=1");
    let file = dir.join("f");
    std::fs::write(&file, pattern(1 << 20)).unwrap();
    file
}

#[test]
fn a_trial_keeps_the_mode_that_was_worth_it_and_takes_others_back() {
    if !can_mount("trials") {
        return;
    }
    let scratch = Scratch::new();
    let file = mounted(&scratch);
    let once = |mode: &str, condition: &str, length: &str| {
        bedplate(["mode", "try", text(&file), mode, "--for", length, "--keep-if", condition])
    };
    // On a busy machine as long as it takes until enough was done to judge.
    let trial = |mode: &str, condition: &str| {
        let mut runs =
            ["200ms", "1s", "5s", "30s"].into_iter().map(|length| once(mode, condition, length));
        let too_few = |run: &crate::harness::Run| run.stdout().contains("is back: only ");
        runs.find(|run| !too_few(run))
            .expect("thirty seconds are enough for a hundred reads and writes")
    };
    let load = Load::on(&file);
    trial("concurrent", "p99 > 1h").succeeds().says("direct is back: not p99 > 1h (found");
    bedplate(["mode", text(&file)]).succeeds().says("not set, served as direct");
    trial("concurrent", "p99 < 1h").succeeds().says("concurrent is kept: p99 < 1h");
    bedplate(["mode", text(&file)]).succeeds().says("concurrent, served as concurrent");
    trial("concurrent+cache", "sync.p99 < -1%")
        .succeeds()
        .says("'sync.p99 < -1%' could not be judged");
    bedplate(["mode", text(&file)]).succeeds().says("concurrent, served as concurrent");
    trial("concurrent", "p99 < -1%").fails(2, "is served as concurrent already");
    drop(load);
    once("direct", "p99 < 1h", "50ms")
        .succeeds()
        .says("concurrent is back: only 0 reads and writes before the switch");
    for command in ["stat", "explain"] {
        bedplate([command, text(&file)])
            .succeeds()
            .says("last trial    direct instead of concurrent on ")
            .says("taken back: only 0 reads");
    }
    let stored = bedplate(["--json", "stat", text(&file)]).succeeds().json();
    assert_eq!(
        (stored["trial"]["verdict"].as_str(), stored["trial"]["after"]["operations"].as_u64()),
        (Some("reverted"), Some(0)),
        "{stored}"
    );
}

#[test]
fn an_interrupted_trial_puts_the_file_back() {
    if !can_mount("an interrupted trial") {
        return;
    }
    let scratch = Scratch::new();
    let file = mounted(&scratch);
    bedplate(["mode", text(&file), "concurrent"]).succeeds();
    let _load = Load::on(&file);
    let mut running =
        command(["mode", "try", text(&file), "direct", "--for", "1s"]).spawn().unwrap();
    let began = std::time::Instant::now();
    while !bedplate(["mode", text(&file)]).succeeds().stdout().contains("served as direct") {
        assert!(
            began.elapsed().as_secs() < 60 && running.try_wait().unwrap().is_none(),
            "it never switched"
        );
    }
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(1));
    bedplate(["mode", text(&file)]).succeeds().says("concurrent, served as concurrent");
    bedplate(["stat", text(&file)]).succeeds().says("taken back: the trial was interrupted");
}

fn pid_of(dir: &Path) -> Pid {
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(dir, "user.bedplate.pid", &mut value[..]).unwrap();
    Pid::from_raw(std::str::from_utf8(&value[..len]).unwrap().parse().unwrap()).unwrap()
}

/// Starts a trial of `direct` on a file that is served as `concurrent`, and returns when it is
/// measured in the new mode.
fn on_trial(file: &Path, length: &str, condition: &str) -> Child {
    let mut trial =
        command(["mode", "try", text(file), "direct", "--for", length, "--keep-if", condition]);
    let mut running = trial.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = std::time::Instant::now();
    while !bedplate(["mode", text(file)]).succeeds().stdout().contains("served as direct") {
        assert!(
            began.elapsed().as_secs() < 60 && running.try_wait().unwrap().is_none(),
            "it never switched"
        );
    }
    running
}

fn ended(running: Child) -> (Option<i32>, String) {
    let output = running.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    )
}

/// S-113. A trial whose command was killed left the file in the mode that was tried, for good; so
/// did one whose file was renamed meanwhile.
#[test]
fn s_113_whatever_ends_a_trial_the_file_is_served_as_before() {
    if !can_mount("trials that end early") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent,latency-sample=1,sync=1d");
    let file = dir.join("f");
    std::fs::write(&file, pattern(1 << 20)).unwrap();
    let load = Load::on(&file);

    let mut killed = on_trial(&file, "3s", "operations > 0");
    bedplate(["mode", "try", text(&file), "cached", "--for", "10ms"])
        .fails(1, "is on another trial already");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let began = std::time::Instant::now();
    while !bedplate(["mode", text(&file)])
        .succeeds()
        .stdout()
        .contains("not set, served as concurrent")
    {
        assert!(began.elapsed().as_secs() < 60, "it stayed in the mode that was tried");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    bedplate(["explain", text(&file)])
        .succeeds()
        .says("taken back: its command or the mount was killed");

    let (renamed, running) = (dir.join("renamed"), on_trial(&file, "1s", "operations > 0"));
    std::fs::rename(&file, &renamed).unwrap();
    let (code, told) = ended(running);
    assert!(code == Some(0) && told.contains("direct is kept"), "{code:?} {told}");
    bedplate(["mode", text(&renamed)]).succeeds().says("direct, served as direct");
    bedplate(["mode", text(&renamed), "inherit"]).succeeds();

    let running = on_trial(&renamed, "1s", "operations > 0");
    bedplate(["mode", text(&renamed), "concurrent+cache"]).succeeds();
    let (code, told) = ended(running);
    assert!(
        code == Some(0)
            && told.contains("the file's mode was set to concurrent+cache meanwhile, and stays so"),
        "{code:?} {told}"
    );
    bedplate(["mode", text(&renamed)])
        .succeeds()
        .says("concurrent+cache, served as concurrent+cache");
    bedplate(["mode", text(&renamed), "inherit"]).succeeds();

    let running = on_trial(&renamed, "3s", "operations > 0");
    drop(load);
    std::fs::rename(&renamed, dir.join("gone")).unwrap();
    std::fs::remove_file(dir.join("gone")).unwrap();
    let (code, told) = ended(running);
    assert!(
        code == Some(1) && told.contains("renamed was removed or replaced meanwhile"),
        "{code:?} {told}"
    );

    std::fs::write(&file, pattern(1 << 20)).unwrap();
    let load = Load::on(&file);
    let running = on_trial(&file, "3s", "operations > 0");
    drop(load);
    kill_process(pid_of(&dir), Signal::KILL).unwrap();
    let (code, told) = ended(running);
    assert!(
        code == Some(1) && told.contains(&format!("run 'bedplate unmount {}'", text(&dir))),
        "{code:?} {told}"
    );
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=concurrent"]).succeeds();
    // Whether it still tells of the trial depends on what of the log was durable: the file was not
    // synced.
    bedplate(["mode", text(&file)]).succeeds().says("not set, served as concurrent");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "ro"]).succeeds();
    bedplate(["mode", "try", text(&file), "direct"]).fails(1, "is read-only");
}

#[test]
fn a_trial_that_cannot_be_is_refused_in_a_sentence() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"");
    let trial =
        |words: &[&str]| bedplate(["mode", "try"].iter().chain(words).copied().collect::<Vec<_>>());
    trial(&[text(&file), "direct"]).fails(1, "does not lie on a Bedplate mount");
    trial(&[text(&file), "fast"]).fails(2, "fast");
    trial(&[text(&file), "direct", "--keep-if", "p98 < 1%"]).fails(2, "'p98' is not measured");
    trial(&[text(&file), "direct", "--for", "soon"]).fails(2, "soon");
    trial(&[&format!("{}:/x", text(&file)), "direct"]).fails(2, "is not mounted");
    if !can_mount("a trial of a directory") {
        return;
    }
    let dir = scratch.mounted("").1;
    trial(&[text(&dir), "direct"]).fails(2, "is not a file");
}
