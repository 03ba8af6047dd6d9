//! Advice on a trace: tried on both file systems, and sizes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use bedplate_trace::{Call, Event, Process, Trace, TracedFile};

use crate::harness::{Scratch, bedplate, can_mount, text};

/// A trace of a program that reads pages of one file again and again, and writes a log that it syncs.
fn saved(scratch: &Scratch) -> PathBuf {
    let (data, log) = (scratch.file("data", &[1; 4096]), scratch.file("log", b""));
    let device = std::fs::metadata(&data).unwrap().dev();
    let file = |path: &PathBuf, inode, size_bytes| TracedFile {
        path: text(path).to_owned(),
        device,
        inode,
        size_bytes,
        is_device: false,
    };
    let event = |call: Call, at: u64, file: u32, offset: u64, len: u64| Event {
        process: 0,
        thread: 7,
        call,
        how: 1,
        errno: 0,
        file: Some(file),
        flags: 0,
        begin_ns: at * 20_000,
        took_ns: 10_000,
        offset,
        asked: len,
        moved: len,
        memory_align: 4096,
    };
    let mut events = Vec::new();
    for i in 0..120 {
        events.push(event(Call::Read, i * 3, 0, i % 30 * 4096, 4096));
        events.push(event(Call::Write, i * 3 + 1, 1, i * 512, 512));
        events.push(event(Call::DataSync, i * 3 + 2, 1, 0, 0));
    }
    let trace = Trace {
        processes: vec![Process::default()],
        files: vec![file(&data, 1, 1 << 20), file(&log, 2, 0)],
        events,
        ..Trace::default()
    };
    let path = scratch.path("t.trace");
    trace.save(&path).unwrap();
    path
}

#[test]
fn s_448_advice_is_measured_in_turns_and_leaves_nothing_behind() {
    if !can_mount("s_448_advice_is_measured_in_turns_and_leaves_nothing_behind") {
        return;
    }
    let scratch = Scratch::new();
    let (trace, place) = (saved(&scratch), scratch.directory("place"));
    let advise = ["advise", text(&trace), "--on", text(&place), "--rounds", "2", "--fast"];
    let told = bedplate([&["--json"][..], &advise].concat()).succeeds().json();
    let standings = told["standings"].as_array().unwrap();
    let labels: Vec<_> = standings.iter().map(|one| one["label"].as_str().unwrap()).collect();
    assert_eq!(labels[0], told["kernel"].as_str().unwrap());
    for wanted in ["cached", "direct", "concurrent", "cached, log concurrent"] {
        assert!(labels.contains(&wanted), "{labels:?}");
    }
    for standing in standings {
        assert_eq!(standing["run"]["n"], 2, "{standing}");
        assert!(standing["waited_s"]["min"].as_f64() > Some(0.0), "{standing}");
    }
    let classes: Vec<_> = told["files"].as_array().unwrap().iter().map(|f| &f["class"]).collect();
    assert!(classes.contains(&&"log".into()) && classes.contains(&&"data".into()), "{told}");
    let sentence = told["advice"]["sentence"].as_str().unwrap();
    let is_move = told["ruling"] == "move";
    let is_unclear = sentence.starts_with("unclear: ");
    assert_eq!(is_unclear, told["ruling"] == "unclear", "{sentence}");
    assert_eq!(is_move, sentence.contains("times as fast as") && !is_unclear, "{sentence}");
    assert_eq!(is_move, !told["advice"]["commands"].as_array().unwrap().is_empty(), "{told}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(text(&place)), "{mounts}");
}

#[test]
fn what_cannot_be_tried_is_one_sentence() {
    let scratch = Scratch::new();
    let trace = saved(&scratch);
    bedplate(["advise"]).fails(2, "name a trace and a place");
    bedplate(["advise", text(&trace)]).fails(2, "--on PLACE");
    let nowhere = scratch.path("none");
    bedplate(["advise", text(&trace), "--on", text(&nowhere)]).fails(1, "No such file");
    let place = scratch.directory("place");
    let none = ["advise", text(&trace), "--on", text(&place), "--rounds", "0"];
    bedplate(none).fails(2, "at least one round");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    let no_trace = scratch.file("text", b"anything");
    bedplate(["advise", text(&no_trace), "--on", text(&place)]).fails(1, "is not a trace");
    bedplate(["advise", "size", text(&no_trace)]).fails(1, "is not a trace");
}

#[test]
fn s_452_sizes_are_told_with_their_hits_and_the_layout_with_its_reasons() {
    let scratch = Scratch::new();
    let (trace, page) = (saved(&scratch), scratch.path("sizes.html"));
    let size = ["advise", "size", text(&trace)];
    let told = bedplate([&["--json"][..], &size].concat()).succeeds().json();
    let curve = &told["curve"];
    assert_eq!((&curve["read_pages"], &curve["sampled"]), (&120.into(), &1.0.into()));
    let points = curve["points"].as_array().unwrap();
    // 30 pages are read four times; the log's pages lie between them.
    assert_eq!(points.last().unwrap()["hit_rate"], 0.75, "{curve}");
    assert_eq!(points[0]["hit_rate"], 0.0, "{curve}");
    let layout = told["layout"].as_array().unwrap();
    assert!(layout.iter().any(|hint| hint["about"] == "log"), "{told}");
    let shown = bedplate([&size[..], &["--html", text(&page)]].concat()).succeeds().stdout();
    assert!(shown.contains("the knee") && shown.contains("because"), "{shown}");
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}
