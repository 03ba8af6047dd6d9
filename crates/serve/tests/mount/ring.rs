//! The mount served over io_uring: every other test once more, in a process of its own.

use std::fs;
use std::process::{Command, Stdio};

use bedplate_fuse::{Refusal, offered};

use crate::harness::{Mounted, OVER_RING, available, needs_root};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch, turned on; back as it was when dropped. What it changes is what mounts may
/// ask for, so no other is disturbed.
struct TurnedOn {
    before: String,
}

impl TurnedOn {
    /// `None`, with the reason printed, where it is not to be had.
    fn new() -> Option<Self> {
        if !available() || !needs_root() {
            return None;
        }
        let Ok(before) = fs::read_to_string(SWITCH) else {
            println!("skipped: {}", Refusal::Kernel);
            return None;
        };
        fs::write(SWITCH, "Y").unwrap();
        let on = Self { before };
        if let Some(refusal) = offered() {
            println!("skipped: {refusal}");
            return None;
        }
        Some(on)
    }
}

impl Drop for TurnedOn {
    fn drop(&mut self) {
        fs::write(SWITCH, self.before.trim()).unwrap();
    }
}

#[test]
fn s_427_what_holds_through_the_device_holds_over_io_uring() {
    if std::env::var_os(OVER_RING).is_some() {
        return;
    }
    let Some(_on) = TurnedOn::new() else { return };
    let threads = || {
        let of_ring = |id: &fs::DirEntry| {
            fs::read_to_string(id.path().join("comm"))
                .is_ok_and(|name| name.starts_with("fuse-ring"))
        };
        fs::read_dir("/proc/self/task").unwrap().flatten().filter(of_ring).count()
    };
    let Some(m) = Mounted::new("transport=io_uring") else { return };
    assert!(threads() > 0, "it is served over io_uring");
    fs::write(m.path("f"), b"x").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
    m.finish();

    let told = run(&[]);
    let failed: Vec<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .collect();
    let passed = told.lines().filter(|line| line.ends_with(" ... ok")).count();
    assert!(passed > 100, "all of them ran: {told}");
    // Others fork beside it, and hold descriptors for a moment: alone it tells.
    for name in failed {
        let told = run(&["--exact", name]);
        assert!(told.contains("test result: ok. 1 passed"), "{name} over io_uring: {told}");
    }
}

/// Runs tests of this program over io_uring, and returns what they print.
fn run(which: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(which)
        .env(OVER_RING, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
