//! Measuring: tiny runs on memory and images, refusals, and an interrupt.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, text};

/// A run of half a second on memory.
const TINY: &str = "bench mixed -t raw=memory:40M -t volume:memory:64M --size 8M --threads 4 \
                    --reads 50 --time 50ms";

fn tiny(more: &[&str]) -> Vec<String> {
    TINY.split(' ').chain(more.iter().copied()).map(ToOwned::to_owned).collect()
}

#[test]
fn a_run_tells_ratios_and_leaves_a_report() {
    let scratch = Scratch::new();
    let report = scratch.path("report");
    bedplate(tiny(&["--rounds", "2", "--report", text(&report)]))
        .succeeds()
        .says("8 KiB random 50% reads, 4 thr")
        .says("1.000");
    let html = std::fs::read_to_string(report.join("report.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("concurrent"));
    assert!(report.join("results.csv").exists());
    bedplate(["bench", "compare", text(&report), text(&report)]).succeeds().says("too few rounds");
    bedplate(["bench", "tables", text(&report)]).succeeds().says("| --- |");
}

/// S-541, S-544: series of pages, layouts and checkpoints, records under locks, and what the papers
/// say beside both.
#[test]
fn the_papers_stand_beside_what_was_measured() {
    let scratch = Scratch::new();
    let (pages, records) = (scratch.path("pages"), scratch.path("records"));
    let oltp = "bench oltp -t memory:96M -t volume:memory:160M --size 8M --log-size 4M --tables 4 \
                --page 2K,8K --layout contiguous,scattered --checkpoints=0,1 --clients 2 --time \
                60ms --ramp 5ms --rounds 1 --report";
    bedplate(oltp.split_whitespace().chain([text(&pages)]))
        .succeeds()
        .says("2 KiB pages, scattered, 1 checkpoint, 2 clients")
        .says("a raw device keeps no image");
    let dir = format!("path:{},buffered", text(&scratch.directory("dir")));
    let sio = "bench sio -t memory:16M --size 4M --block 4K --reads 0 --threads 2 --time 40ms \
               --rounds 1 -t";
    bedplate(sio.split_whitespace().chain([dir.as_str(), "--report", text(&records)]))
        .succeeds()
        .says("4 KiB 50% random writes, 2 thr")
        .says("locks per access 1");
    let html = std::fs::read_to_string(records.join("report.html")).unwrap();
    assert!(html.contains("<th>waiting</th>") && html.contains("CPU, raw memory"));
    let page = bedplate(["bench", "papers", text(&pages), text(&records)]).succeeds().stdout();
    let row = |item: &str| page.lines().find(|line| line.contains(item)).unwrap().to_owned();
    assert!(row("| size of a page |").contains("concurrent: 2 KiB pages"), "{page}");
    assert!(row("| indirect extents |").contains("concurrent "), "{page}");
    assert!(row("| figure 10").contains("4 KiB 50% random writes, 2 thr: raw memory "), "{page}");
    assert!(row("| table 2 |").contains("| not measured |"), "{page}");
}

#[test]
fn json_is_one_document_with_every_round() {
    let document = bedplate(tiny(&["--rounds", "2", "--json"])).succeeds().json();
    let workload = &document["workloads"][0];
    assert_eq!(workload["records"].as_array().unwrap().len(), 4);
    assert_eq!(workload["targets"][1]["role"], "concurrent");
    assert!(document["machine"]["kernel"].as_str().unwrap().len() > 2);
}

#[test]
fn nothing_is_overwritten_before_its_name_was_typed_back() {
    let scratch = Scratch::new();
    let image = scratch.file("precious", &[7; 40 << 20]);
    let target = format!("raw:{}", text(&image));
    let measure = |more: &[&str]| {
        let mut arguments = vec![
            "bench",
            "mixed",
            "-t",
            &target,
            "--size",
            "8M",
            "--threads",
            "1",
            "--reads",
            "0",
            "--time",
            "20ms",
            "--rounds",
            "1",
        ];
        arguments.extend(more);
        bedplate(arguments)
    };
    measure(&[]).fails(1, "--destroy=");
    measure(&["--destroy"]).fails(1, "--destroy=");
    measure(&["--destroy=/another"]).fails(1, "--destroy=");
    assert_eq!(std::fs::read(&image).unwrap(), [7; 40 << 20]);
    measure(&[&format!("--destroy={}", text(&image))]).succeeds();
    assert_ne!(std::fs::read(&image).unwrap(), [7; 40 << 20]);
}

#[test]
fn a_volume_keeps_what_it_holds() {
    let scratch = Scratch::new();
    let (image, source) = (scratch.image("volume.img"), scratch.file("source", b"precious"));
    bedplate(["put", text(&image), text(&source), "/kept"]).succeeds();
    let target = format!("volume:{}", text(&image));
    bedplate([
        "bench",
        "writers",
        "-t",
        &target,
        "--size",
        "4M",
        "--threads",
        "1",
        "--rounds",
        "1",
    ])
    .succeeds();
    bedplate(["cat", text(&image), "/kept"]).succeeds().says("precious");
    let names = bedplate(["ls", text(&image)]).succeeds().stdout();
    assert!(!names.contains("bedplate-bench"), "{names}");
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_directory_is_left_as_it_was() {
    let scratch = Scratch::new();
    let dir = scratch.directory("dir");
    let target = format!("path:{},buffered", text(&dir));
    bedplate([
        "bench",
        "redo",
        "-t",
        &target,
        "--size",
        "1M",
        "--append",
        "4K",
        "--committers",
        "1",
        "--time",
        "20ms",
        "--rounds",
        "1",
    ])
    .succeeds();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_sentence() {
    let scratch = Scratch::new();
    let small = scratch.file("small", &[1; 1 << 20]);
    let (small, destroy) = (format!("raw:{}", text(&small)), format!("--destroy={}", text(&small)));
    bedplate(["bench", "mixed", "-t", &small, &destroy]).fails(1, "needs 1 GiB");
    bedplate(["bench", "mixed", "-t", "memory:64M", "--size", "8M", "--block", "1000"])
        .fails(2, "multiple of 512");
    bedplate(["bench", "mixed", "-t", "memory:64M", "--size", "8M", "--threads", "0"])
        .fails(2, "number of threads");
    bedplate(["bench", "mixed", "-t", "memory:64M", "--size", "8M", "--locking", "--threads", "1"])
        .fails(1, "advisory locks");
    bedplate(["bench", "mixed", "-t", "memory:64M,speed=fast"]).fails(2, "no option 'speed=fast'");
    bedplate(["bench", "mixed", "-t", "volume:memory:64M,inode-lock=whole"])
        .fails(2, "mode=direct");
    bedplate(["bench", "mixed", "-t", "path:/nonexistent"]).fails(1, "directory");
    bedplate(["bench", "mixed", "-t", "memory:64M", "-t", "memory:64M"]).fails(2, "label");
    bedplate(["bench", "mixed"]).fails(2, "--target");
    bedplate(["bench", "all", "--only", "everything"]).fails(2, "increments");
    bedplate(["bench", "compare", "/nonexistent", "/nonexistent"]).fails(1, "cannot read");
}

/// Runs until interrupted after `delay`; returns the document, or `None` when no round was finished
/// by then.
fn interrupted_after(delay: Duration) -> Option<Value> {
    let mut command: Command = command(tiny(&["--json", "--rounds", "100000"]));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(delay);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn an_interrupt_keeps_the_rounds_that_were_finished() {
    // How soon the first round is finished is the machine's business, so longer and longer waits
    // are tried.
    let document = (0..6)
        .find_map(|doubling| interrupted_after(Duration::from_millis(700 << doubling)))
        .unwrap();
    assert_eq!(document["interrupted"], true);
    let records = document["workloads"][0]["records"].as_array().unwrap();
    assert!(!records.is_empty() && records.len().is_multiple_of(2), "{}", records.len());
}

#[test]
fn a_real_database_runs_on_a_mount_in_the_mode_asked_for() {
    if !can_mount("a_real_database_runs_on_a_mount_in_the_mode_asked_for") {
        return;
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        println!("skipped: sqlite3 is not installed");
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("large.img");
    bedplate(["format", text(&image), "--size", "2G"]).succeeds();
    let directory = scratch.directory("mount");
    bedplate(["mount", text(&image), text(&directory)]).succeeds();
    let target = format!("path:{},mode=concurrent", directory.display());
    let options =
        "--database sqlite --scale 1 --clients 1 --time 100ms --ramp 10ms --rounds 1 --json";
    let run = bedplate(["bench", "oltp", "-t", &target].into_iter().chain(options.split(' ')));
    let left = std::fs::read_dir(&directory).unwrap().count();
    bedplate(["unmount", text(&directory)]).succeeds();
    let document = run.succeeds().json();
    assert_eq!(document["workloads"][0]["options"]["journal_mode"], "WAL");
    assert_eq!(left, 0, "nothing is left behind");
}
