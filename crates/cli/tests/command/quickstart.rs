//! The tour: it measures, it tells, and it leaves nothing behind.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Scratch, bedplate, can_mount, command, text};

/// A tour so short that its figures mean nothing.
const SHORT: [&str; 9] =
    ["quickstart", "--size", "8M", "--time", "20ms", "--rounds", "1", "--threads", "2"];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], more].concat()
}

fn entries(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_mode_is_measured_beside_the_raw_device_and_nothing_stays() {
    let scratch = Scratch::new();
    let base = scratch.directory("base");
    let report = bedplate(short(&["--dir", text(&base), "--json"])).succeeds().json();
    let rows = report["rows"].as_array().unwrap();
    let targets: Vec<&str> = rows.iter().map(|row| row["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["raw", "cached", "direct", "concurrent", "concurrent+cache"]);
    for row in rows {
        assert!(row["library"]["iops"].is_f64(), "{row}");
        assert!(row["mount"]["iops"].is_f64() || !can_mount("the tour on a mount"), "{report}");
    }
    assert_eq!(report["no_mount"].is_null(), can_mount("the tour on a mount"), "{report}");
    assert_eq!(entries(&base), [""; 0]);
}

#[test]
fn a_kept_image_is_a_volume_to_go_on_with() {
    let scratch = Scratch::new();
    let base = scratch.directory("base");
    bedplate(short(&["--dir", text(&base), "--keep"]))
        .succeeds()
        .says("kept: ")
        .says("raw device")
        .says("next:");
    let kept = base.join(&entries(&base)[0]);
    assert_eq!(entries(&kept), ["volume.img"]);
    bedplate(["check", text(&kept.join("volume.img"))]).succeeds();
}

#[test]
fn a_tour_that_is_ended_early_cleans_up() {
    let scratch = Scratch::new();
    let base = scratch.directory("base");
    let mut tour = command(["quickstart", "--size", "8M", "--time", "1h", "--dir", text(&base)]);
    let child = tour.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !base.read_dir().unwrap().flatten().any(|entry| entry.path().join("volume.img").exists())
    {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("ended early"),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(entries(&base), [""; 0]);
}

#[test]
fn a_tour_that_has_no_room_says_how_much_it_needs() {
    let scratch = Scratch::new();
    let base = scratch.directory("base");
    bedplate(["quickstart", "--size", "1P", "--dir", text(&base)]).fails(1, "are needed");
    bedplate(["quickstart", "--dir", "/mnt/no-such-dir"]).fails(1, "/mnt/no-such-dir");
    assert_eq!(entries(&base), [""; 0]);
}
