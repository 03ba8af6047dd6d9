//! The crash lab: programs that sync what they acknowledge pass, programs that do not are found
//! out.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, text};

/// Writes numbered files and acknowledges each; `sync(1)` of a file is fsync(2).
const SYNCED: &str = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $n > $BEDPLATE_DIR/f.$n; sync \
                      $BEDPLATE_DIR/f.$n; echo $n; done";
/// The same without the sync: the planted bug.
const CARELESS: &str =
    "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $n > $BEDPLATE_DIR/f.$n; echo $n; done";
const CHECK: &str = "while read -r n; do test \"$(cat $BEDPLATE_DIR/f.$n 2> /dev/null)\" = $n || { \
                     echo \"file $n is gone\"; exit 7; }; done < $BEDPLATE_ACKNOWLEDGED";

/// The arguments of a lab that works in `dir`.
fn lab<'a>(dir: &'a Path, more: &[&'a str], program: &'a str) -> Vec<&'a str> {
    let mut arguments = vec![
        "crashlab",
        "--size",
        "64M",
        "--states",
        "24",
        "--jobs",
        "3",
        "--seed",
        "11",
        "--dir",
        text(dir),
    ];
    arguments.extend(more);
    arguments.extend(["--", "sh", "-c", program]);
    arguments
}

fn is_empty(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    std::fs::read_dir(dir).unwrap().next().is_none() && !mounts.contains(text(dir))
}

#[test]
fn a_program_that_syncs_what_it_acknowledges_passes_in_every_state() {
    if !can_mount("the crash lab") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("work");
    let report = bedplate(lab(&dir, &["--check", CHECK, "--json"], SYNCED)).succeeds().json();
    assert_eq!(
        (&report["states"], &report["failed"], &report["seed"]),
        (&Value::from(24), &Value::from(0), &Value::from(11))
    );
    assert_eq!(report["recorded"]["acknowledgements"], 12);
    assert!(report["recorded"]["flushes"].as_u64().unwrap() >= 12, "{report}");
    let results = report["results"].as_array().unwrap();
    assert!(results.iter().any(|result| result["acknowledged"].as_u64() > Some(0)
        && result["unflushed"].as_u64() > Some(0)));
    assert!(is_empty(&dir), "nothing is left behind");
}

#[test]
fn a_program_that_does_not_sync_is_found_out_and_a_failing_state_can_be_looked_at_again() {
    if !can_mount("the crash lab") {
        return;
    }
    let scratch = Scratch::new();
    let (dir, record, kept, page) = (
        scratch.directory("work"),
        scratch.path("record"),
        scratch.path("kept"),
        scratch.path("report"),
    );
    let more = [
        "--check",
        CHECK,
        "--recording",
        text(&record),
        "--keep-failing",
        text(&kept),
        "--report",
        text(&page),
    ];
    let told = bedplate(lab(&dir, &more, CARELESS));
    assert_eq!(told.code(), 4, "{}{}", told.stdout(), told.stderr());
    let told = told.says("file 1 is gone").says("--seed 11 --state STATE");
    assert!(told.stderr().is_empty(), "{}", told.stderr());

    let report: Value =
        serde_json::from_slice(&std::fs::read(page.join("crashlab.json")).unwrap()).unwrap();
    let failing = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|result| result["verdict"] == "failed")
        .unwrap();
    assert_eq!(
        (&failing["ended"], &failing["said"]),
        (&"exit code 7".into(), &"file 1 is gone".into())
    );
    let html = std::fs::read_to_string(page.join("crashlab.html")).unwrap();
    assert!(
        html.contains("file 1 is gone") && html.contains("<svg") && !html.contains("://"),
        "it fetches nothing"
    );

    // The same state of the recording that was kept, alone, fails in the same way.
    let number = failing["state"].to_string();
    let again = [
        "crashlab",
        "--replay",
        text(&record),
        "--seed",
        "11",
        "--state",
        &number,
        "--check",
        CHECK,
        "--json",
        "--dir",
        text(&dir),
    ];
    let again = bedplate(again);
    assert_eq!(again.code(), 4);
    let again = again.json();
    for key in ["state", "after", "unflushed", "arrived", "torn", "acknowledged", "said"] {
        assert_eq!(again["results"][0][key], failing[key], "{key}");
    }
    // The image that was kept is the state itself: it recovers.
    let image = kept.join(format!("state-{number}.img"));
    bedplate(["ls", text(&image)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
    assert!(is_empty(&dir), "nothing is left behind");
}

#[test]
fn a_program_may_acknowledge_through_the_pipe_and_start_with_a_volume_that_stays_as_it_is() {
    if !can_mount("the crash lab") {
        return;
    }
    let scratch = Scratch::new();
    let (dir, image, source) =
        (scratch.directory("work"), scratch.image("volume.img"), scratch.file("old", b"old\n"));
    bedplate(["put", text(&image), text(&source), "/old"]).succeeds();
    let before = std::fs::read(&image).unwrap();
    let program = "echo new > $BEDPLATE_DIR/new; echo said by the way >&2; sync $BEDPLATE_DIR/new; \
                   echo new > $BEDPLATE_ACKNOWLEDGE";
    let check = "set -e; test \"$(cat $BEDPLATE_DIR/old)\" = old; test \"$(cat \
                 $BEDPLATE_DIR/made)\" = made; while read -r name; do test \"$(cat \
                 $BEDPLATE_DIR/$name)\" = new; done < $BEDPLATE_ACKNOWLEDGED";
    let more = [
        "--image",
        text(&image),
        "--setup",
        "echo made > $BEDPLATE_DIR/made",
        "--check",
        check,
        "--json",
        "-o",
        "mode=concurrent",
    ];
    let mut arguments = lab(&dir, &more, program);
    arguments.drain(1..3);
    let report = bedplate(arguments).succeeds().json();
    assert_eq!(report["recorded"]["acknowledgements"], 1);
    assert!(report["results"].as_array().unwrap().iter().any(|result| result["acknowledged"] == 1));
    assert!(std::fs::read(&image).unwrap() == before, "the volume is only read");
}

#[test]
fn what_cannot_be_tested_is_refused_in_one_sentence() {
    if !can_mount("the crash lab") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("work");
    let refused = |more: &[&str], program: &str, code: i32, part: &str| {
        bedplate(lab(&dir, more, program)).fails(code, part);
        assert!(is_empty(&dir), "nothing is left behind");
    };
    refused(
        &["--check", "false"],
        SYNCED,
        1,
        "the checker fails even where nothing was lost (exit code 1)",
    );
    refused(&["--check", "true"], "exit 3", 1, "the command ended with exit code 3");
    refused(
        &["--check", "true", "--setup", "exit 5"],
        SYNCED,
        1,
        "the setup ended with exit code 5",
    );
    refused(&["--check", "true", "-o", "ro"], SYNCED, 2, "read-only");
    refused(&["--check", "true", "--sector", "1000"], SYNCED, 2, "1000");
    refused(&["--check", "true", "--image", "/no/such.img"], SYNCED, 2, "cannot be used with");
    bedplate(["crashlab", "--check", "true"]).fails(2, "COMMAND");
    bedplate(["crashlab", "--check", "true", "--dir", text(&dir), "--", "/no/such/program"])
        .fails(1, "/no/such/program");
    bedplate(["crashlab", "--check", "true", "--dir", text(&dir), "--replay", text(&dir)])
        .fails(1, "recording.json");
    scratch.file("work/recording.json", b"{}");
    bedplate(["crashlab", "--check", "true", "--replay", text(&dir)])
        .fails(1, "is no recording that can be replayed");
}

#[test]
fn without_fuse_the_lab_says_so() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a machine without FUSE: only root can make one");
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("work");
    let mut container = std::process::Command::new("unshare");
    let script = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec \"$0\" crashlab \
                  --check true --dir \"$1\" -- true";
    container.args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_bedplate"),
        text(&dir),
    ]);
    let Ok(ended) = container.output() else {
        println!("skipped: a machine without FUSE: there is no unshare(1)");
        return;
    };
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    if !said.starts_with("bedplate: ") {
        println!("skipped: a machine without FUSE: unshare(1) is not allowed here");
        return;
    }
    assert_eq!(ended.status.code(), Some(1));
    assert!(said.contains("there is no /dev/fuse here") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_signal_ends_the_lab_and_nothing_is_left_behind() {
    if !can_mount("the crash lab") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.directory("work");
    let mut lab = command(lab(&dir, &["--check", "true"], "echo begun >&2; sleep 600"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(lab.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().unwrap(), "begun");
    let pid = rustix::process::Pid::from_child(&lab);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(1));
    assert!(said.next().unwrap().contains("ended early"));
    assert!(is_empty(&dir), "nothing is left behind");
}
