//! Traces: recorded, shown, refused. The calls themselves are tested with the library.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::harness::{Scratch, bedplate, can_mount, text};

/// Tells whether the library lies beside the program.
pub fn has_library() -> bool {
    let beside = Path::new(env!("CARGO_BIN_EXE_bedplate")).with_file_name("libbedplate_lease.so");
    if !beside.exists() {
        println!("skipped: {} is built with the workspace", beside.display());
    }
    beside.exists()
}

/// A trace of a program that writes eight pages and syncs them.
pub fn recorded(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (trace, target) = (scratch.path("t.trace"), scratch.path("target"));
    let of = format!("of={}", text(&target));
    let dd = ["dd", "if=/dev/zero", &of, "bs=4k", "count=8", "conv=fdatasync"];
    bedplate([&["--json", "trace", "-o", text(&trace), "--"][..], &dd].concat()).succeeds();
    (trace, target)
}

#[test]
fn s_385_a_trace_is_recorded_and_shown() {
    if !has_library() {
        return;
    }
    let scratch = Scratch::new();
    let (trace, target) = recorded(&scratch);
    let told = bedplate(["--json", "trace", "show", text(&trace)]).succeeds().json();
    let files = told["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == text(&target)).unwrap();
    assert_eq!((&file["writes"]["calls"], &file["syncs"]["calls"]), (&8.into(), &1.into()));
    assert_eq!(file["syncs"]["waited_bytes"], 32768);
    assert_eq!(
        (&file["writes"]["sequential"], &told["about"]["exit_code"]),
        (&7.into(), &0.into())
    );
    let shown = bedplate(["trace", "show", text(&trace)]).succeeds().stdout();
    assert!(shown.contains("32 KiB in 8 writes") && shown.contains(text(&target)), "{shown}");
    let page = scratch.path("page.html");
    bedplate(["trace", "show", text(&trace), "--html", text(&page)]).succeeds();
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}

#[test]
fn s_385_what_goes_to_the_background_is_waited_for() {
    if !has_library() {
        return;
    }
    let scratch = Scratch::new();
    let (trace, late) = (scratch.path("t.trace"), scratch.path("late"));
    let script =
        format!("(sleep 0.5; dd if=/dev/zero of={} bs=512 count=3 2>&1) & exit 5", text(&late));
    let sh = ["--", "sh", "-c", &script];
    let arguments = ["trace", "-o", text(&trace), "--children=wait"];
    bedplate([&arguments[..], &sh].concat()).ends(5);
    let told = bedplate(["--json", "trace", "show", text(&trace)]).succeeds().json();
    let files = told["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == text(&late)).unwrap();
    assert_eq!((&file["writes"]["calls"], &told["about"]["exit_code"]), (&3.into(), &5.into()));
}

#[test]
fn s_387_a_trace_that_is_cut_short_is_shown_up_to_the_cut() {
    if !has_library() {
        return;
    }
    let scratch = Scratch::new();
    let (trace, _) = recorded(&scratch);
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 5]).unwrap();
    let shown = bedplate(["trace", "show", text(&trace)]).succeeds().stdout();
    assert!(shown.contains("not whole: it was cut short"), "{shown}");
    assert!(shown.contains("32 KiB in 8 writes"), "{shown}");
}

#[test]
fn what_cannot_be_traced_is_one_sentence() {
    let scratch = Scratch::new();
    bedplate(["trace"]).fails(2, "name a program");
    let text_file = scratch.file("text", b"anything");
    bedplate(["trace", "show", text(&text_file)]).fails(1, "is not a trace");
    bedplate(["trace", "show", text(&scratch.path("none"))]).fails(1, "No such file");
    bedplate(["trace", "--", "no-such-program"]).fails(1, "no program");
    // A program that names no loader.
    let mut head = [0_u8; 64];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let program = scratch.file("static", &head);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    bedplate(["trace", "--", text(&program)])
        .fails(1, "cannot be recorded: it is linked statically");
    if has_library() {
        let output = scratch.path("t.trace");
        let huge = ["trace", "-o", text(&output), "--limit", "1000T", "--", "true"];
        bedplate(huge).fails(1, "no room");
        let scratch_dir = scratch.path("none");
        let nowhere = ["trace", "--scratch", text(&scratch_dir), "--", "true"];
        bedplate(nowhere).fails(1, "No such file");
    }
}

/// S-389: the calls themselves are tested with the replay.
#[test]
fn s_389_a_trace_is_replayed_on_targets_in_turn() {
    let scratch = Scratch::new();
    let text_file = scratch.file("text", b"anything");
    bedplate(["replay", text(&text_file), "-t", "memory:64M"]).fails(1, "is not a trace");
    bedplate(["replay", text(&text_file)]).fails(2, "--target");
    if !has_library() {
        return;
    }
    let (trace, target) = recorded(&scratch);
    let replay = ["replay", text(&trace), "-t", "memory:64M"];
    let buffered = format!("dir=path:{},buffered", text(&scratch.directory("dir")));
    let arguments = [&["--json"][..], &replay, &["-t", &buffered, "--timed", "--speed", "2"]];
    let told = bedplate(arguments.concat()).succeeds().json();
    for at in 0..2 {
        let told = &told["targets"][at];
        let calls = (&told["writes"]["calls"], &told["syncs"]["calls"], &told["writes"]["bytes"]);
        assert_eq!(calls, (&8.into(), &1.into(), &32768.into()), "{told}");
        assert_eq!(told["writes"]["traced_calls"], 8);
    }
    let shown = bedplate(replay).succeeds().stdout();
    assert!(shown.contains("traced") && shown.contains("32 KiB"), "{shown}");
    // What would be overwritten has to be named.
    let raw = ["replay", text(&trace), "-t", text(&target)];
    bedplate(raw).fails(1, "--destroy");
    bedplate(["replay", text(&trace), "-t", "memory:64M", "--timed", "--speed", "0"])
        .fails(2, "greater than 0");
}

#[test]
fn s_391_files_of_a_directory_are_told_with_what_is_known_of_each() {
    let scratch = Scratch::new();
    let dir = scratch.directory("dir");
    std::fs::create_dir(dir.join("below")).unwrap();
    std::fs::write(dir.join("below/idle"), vec![1; 12345]).unwrap();
    std::os::unix::fs::symlink("/etc", dir.join("link")).unwrap();
    let told = bedplate(["--json", "files", text(&dir)]).succeeds().json();
    assert_eq!((&told["files"], &told["source"]), (&1.into(), &"none".into()), "{told}");
    let row = &told["rows"][0];
    assert_eq!((&row["size_bytes"], row.get("mode")), (&12345.into(), None));
    // What was just written is in the page cache, where the system tells.
    assert!(row["cached_bytes"].is_null() || row["cached_bytes"].as_u64() > Some(0), "{row}");
    let shown = bedplate(["files", text(&dir)]).succeeds().stdout();
    assert!(shown.contains("give a trace with --trace"), "{shown}");
    let held = std::fs::File::open(dir.join("below/idle")).unwrap();
    let told = bedplate(["--json", "files", text(&dir)]).succeeds().json();
    let users = told["users"].as_array().unwrap();
    assert!(users.iter().any(|user| user["pid"] == std::process::id()), "{told}");
    drop(held);
    bedplate(["files", text(&dir.join("below/idle"))]).fails(2, "is not a directory");
    bedplate(["files", text(&scratch.path("none"))]).fails(1, "No such file");
    if !has_library() {
        return;
    }
    let (trace, target) = recorded(&scratch);
    let directory = scratch.path("");
    let files = ["--json", "files", text(&directory), "--trace", text(&trace)];
    let told = bedplate(files).succeeds().json();
    let first = &told["rows"][0];
    assert_eq!((&first["path"], &first["mode"]), (&text(&target).into(), &"cached".into()));
    assert_eq!((&first["writes"], &first["written_bytes"]), (&8.into(), &32768.into()), "{first}");
    let idle = told["rows"].as_array().unwrap().iter().find(|row| row["size_bytes"] == 12345);
    assert_eq!(idle.unwrap()["mode"], "stay");
}

#[test]
fn s_391_on_a_mount_its_own_counts_are_told() {
    if !can_mount("s_391_on_a_mount_its_own_counts_are_told") {
        return;
    }
    let scratch = Scratch::new();
    let (_, mount) = scratch.mounted("mode=concurrent");
    std::fs::write(mount.join("file"), vec![1; 8192]).unwrap();
    let told = bedplate(["--json", "files", text(&mount)]).succeeds().json();
    let row = &told["rows"][0];
    assert_eq!((&told["source"], &row["mode"]), (&"mount".into(), &"cached".into()), "{told}");
    assert!(row["writes"].as_u64() > Some(0), "{row}");
    bedplate(["unmount", text(&mount)]).succeeds();
}

/// Tells whether the kernel's tracepoints may be used here.
fn has_tracepoints(scratch: &Scratch) -> bool {
    let (own, none) = (std::process::id().to_string(), scratch.path("none"));
    let tried = scratch.path("tried.trace");
    let words = ["trace", "--pid", &own, "--while", text(&none), "-o", text(&tried)];
    let output = crate::harness::command(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        assert!(said.contains("may not be used here"), "{said}");
        println!("skipped: {}", said.trim());
    }
    output.status.success()
}

#[test]
fn s_454_a_process_that_runs_is_recorded_until_a_file_is_gone() {
    use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new();
    if !has_tracepoints(&scratch) {
        return;
    }
    let (trace, flag, target) =
        (scratch.path("t.trace"), scratch.file("flag", b""), scratch.file("target", &[1; 8192]));
    let mut file = std::fs::File::options().read(true).write(true).open(&target).unwrap();
    file.seek(SeekFrom::Start(512)).unwrap();
    let own = std::process::id().to_string();
    let words = ["trace", "--pid", &own, "--while", text(&flag), "-o", text(&trace)];
    let mut recorder = crate::harness::command(words);
    let mut recorder = recorder.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut errors = BufReader::new(recorder.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("recording"), "{said}");
    file.read_exact(&mut [0; 100]).unwrap();
    file.write_all(&[2; 50]).unwrap();
    file.write_at(&[3; 64], 4096).unwrap();
    file.sync_data().unwrap();
    std::fs::remove_file(&flag).unwrap();
    assert!(recorder.wait().unwrap().success());
    let told = bedplate(["--json", "trace", "show", text(&trace)]).succeeds().json();
    let files = told["files"].as_array().unwrap();
    let told = files.iter().find(|file| file["path"] == text(&target)).unwrap();
    assert_eq!((&told["reads"]["bytes"], &told["writes"]["bytes"]), (&100.into(), &114.into()));
    assert_eq!((&told["writes"]["sequential"], &told["syncs"]["calls"]), (&0.into(), &1.into()));
    let trace = bedplate_trace::Trace::load(&trace).unwrap().trace;
    let number = trace.files.iter().position(|file| file.path == text(&target)).unwrap() as u32;
    let moves = trace.events.iter().filter(|event| event.file == Some(number));
    let places: Vec<u64> =
        moves.filter(|event| event.call.is_move()).map(|event| event.offset).collect();
    assert_eq!(places, [512, 612, 4096]);
    // The ring is gone.
    for place in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        let name = format!("{place}/instances/bedplate-trace-{}", recorder.id());
        assert!(!Path::new(&name).exists(), "{name}");
    }
    let left = std::env::temp_dir().join(format!("bedplate-trace-{}", recorder.id()));
    assert!(!left.exists(), "{}", left.display());
}

#[test]
fn what_cannot_be_joined_is_one_sentence() {
    bedplate(["trace", "--pid", "4000000000"]).fails(2, "there is no process");
    bedplate(["trace", "--pid", "1", "--", "true"]).fails(2, "cannot be used with");
    bedplate(["trace", "--while", "/none"]).fails(2, "name a p");
}
