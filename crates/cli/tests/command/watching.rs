//! What files of a mount do, as iostat and top tell it.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// Writes blocks of 4 KiB to a new file, reads them again and syncs.
pub fn work(path: &Path, blocks: u64) {
    let file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
    for at in 0..blocks {
        file.write_all_at(&pattern(4096), at * 4096).unwrap();
        file.read_exact_at(&mut [0; 4096], at * 4096).unwrap();
    }
    file.sync_data().unwrap();
}

fn file<'a>(report: &'a Value, name: &str) -> &'a Value {
    let files = report["files"].as_array().unwrap();
    files
        .iter()
        .find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name)))
        .unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn iostat_tells_what_files_did_and_what_they_waited_for() {
    if !can_mount("iostat") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent,latency-sample=1");
    std::fs::create_dir(dir.join("sub")).unwrap();
    let (one, two) = (dir.join("one"), dir.join("sub/two"));
    work(&one, 20);
    work(&two, 5);
    let report = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    let (a, b) = (file(&report, "/one"), file(&report, "/sub/two"));
    assert_eq!(
        (a["reads"].as_u64(), a["writes"].as_u64(), a["syncs"].as_u64()),
        (Some(20), Some(20), Some(1)),
        "{a}"
    );
    assert_eq!(
        (b["reads"].as_u64(), b["written_bytes"].as_u64()),
        (Some(5), Some(5 * 4096)),
        "{b}"
    );
    assert_eq!(a["latency"]["write"]["timed"].as_u64(), Some(20));
    assert!(
        a["latency"]["read"]["p99_ns"].as_u64() > Some(0) && a["sync_wait_ns"].as_u64() > Some(0),
        "{a}"
    );
    assert!(
        a["path"] == text(&one)
            && a["effective_mode"] == "concurrent"
            && a["reasons"]["extend"].as_u64() > Some(0),
        "{a}"
    );
    let below = bedplate(["--json", "iostat", text(&dir.join("sub"))]).succeeds().json();
    assert_eq!(below["files"].as_array().unwrap().len(), 1);
    let named = bedplate(["iostat", "-l", text(&one), text(&two), "--sort", "name"])
        .succeeds()
        .says("not as its mode asks: extend");
    let lines: Vec<String> = named
        .stdout()
        .lines()
        .filter(|line| line.ends_with("/one") || line.ends_with("/two"))
        .map(str::to_owned)
        .collect();
    assert!(lines.len() == 2 && lines[0].ends_with("/one"), "{lines:?}");
    let top = bedplate(["--json", "iostat", text(&dir), "--sort", "reads", "--top", "1"])
        .succeeds()
        .json();
    assert!(top["files"].as_array().unwrap().len() == 1 && top["files"][0]["path"] == text(&one));
}

/// Writes and reads the same megabyte from several threads past the kernel's cache until it is told
/// to stop.
fn write_and_read_at_once(path: &Path, stop: &AtomicBool) {
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        options.open(path).unwrap()
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let (file, mut bytes) = (open(), bedplate::AlignedBuf::zeroed(1 << 20));
                while !stop.load(Ordering::Relaxed) {
                    // Where the whole file is locked, the kernel has its writes one after the other.
                    match thread {
                        0 => file.write_all_at(&bytes, 0).unwrap(),
                        _ => file.read_exact_at(&mut bytes, 0).unwrap(),
                    }
                }
            });
        }
    });
}

/// S-502, S-503: what writers of a file wait for is told of it by every command that tells of files,
/// and of no other file.
#[test]
fn s_502_a_mount_tells_what_writers_wait_for() {
    if !can_mount("waits") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=direct,inode-lock=whole,latency-sample=1");
    let (file, other) = (dir.join("file"), dir.join("other"));
    work(&other, 5);
    work(&file, 256);
    let waits = |path: &Path| {
        let report = bedplate(["--json", "iostat", text(path)]).succeeds().json();
        report["files"][0]["waits"].clone()
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_and_read_at_once(&file, &stop));
        let began = std::time::Instant::now();
        // A share of the time, and enough that were timed for it to be told.
        let told = || bedplate(["--json", "explain", text(&file)]).json();
        while told()["findings"]
            .as_array()
            .is_none_or(|all| all.iter().all(|finding| finding["kind"] != "lock_waits"))
        {
            if began.elapsed().as_secs() > 60 {
                stop.store(true, Ordering::Relaxed);
                panic!("S-502: no wait in 60 s: {}", told());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let told = waits(&file);
    assert!(
        told["inode_exclusive"]["count"].as_u64() > Some(0)
            && told["inode_exclusive"]["ns"].as_u64() >= told["inode_exclusive"]["ns_max"].as_u64(),
        "S-502: {told}"
    );
    assert!(
        told["device"]["count"].as_u64() > Some(0) && told["queue"].is_null(),
        "S-503: one device has no queue in front of it: {told}"
    );
    assert_eq!(waits(&other)["inode_exclusive"]["count"], 0, "S-502");
    let explained = bedplate(["explain", text(&file)]).succeeds().stdout();
    assert!(
        explained.contains("of their time for ")
            && explained.contains(&format!("bedplate mode {} concurrent", text(&file))),
        "S-502: {explained}"
    );
    for command in ["stat", "info", "explain"] {
        let place = if command == "info" { &dir } else { &file };
        bedplate([command, text(place)]).succeeds().says("inode lock, exclusive");
    }
    bedplate(["iostat", "-l", text(&file)])
        .succeeds()
        .says("waited: ")
        .says("inode lock, exclusive");
    let stat = bedplate(["--json", "stat", text(&file)]).succeeds().json();
    assert_eq!(stat["waits"]["inode_exclusive"], told["inode_exclusive"], "S-502");
}

#[test]
fn explain_names_what_went_another_way_and_who_did_it() {
    if !can_mount("explain") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let path = dir.join("f");
    work(&path, 4);
    let explained = |path: &Path| bedplate(["--json", "explain", text(path)]).succeeds().json();
    let kinds = |document: &Value| {
        document["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["kind"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = explained(&path);
    assert_eq!(
        (kinds(&first), first["effective_mode"].as_str()),
        (vec!["extend".to_owned()], Some("concurrent")),
        "{first}"
    );
    assert_eq!(first["mode_from"], "the mount (mode=concurrent)");
    let held = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (0..9).for_each(|_| held.write_all_at(b"odd", 1).unwrap());
    let second = explained(&path);
    let misaligned = &second["findings"][0];
    assert_eq!(
        (misaligned["kind"].as_str(), misaligned["count"].as_u64()),
        (Some("misaligned"), Some(9)),
        "{second}"
    );
    assert!(misaligned["who"][0].as_str().is_some_and(|who| who.contains("(pid ")), "{second}");
    drop(held);
    bedplate(["mode", text(&path), "direct"]).succeeds();
    assert_eq!(explained(&path)["mode_from"], "the file's own");
    bedplate(["explain", text(&path)])
        .succeeds()
        .says("change  let the program read and write in multiples of");
    bedplate(["explain", text(&dir)]).succeeds().says("misaligned: 9 of");
    bedplate(["iostat", "--reset", text(&path)]).succeeds();
    bedplate(["explain", text(&path)]).succeeds().says("Every I/O was served as its mode asks.");
    bedplate(["explain", "/no/such/file"]).fails(1, "cannot look at /no/such/file");
}

#[test]
fn explain_gives_databases_the_lines_that_hold() {
    if !can_mount("lines for databases") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let path = dir.join("f");
    work(&path, 4);
    for explained in [&path, &dir] {
        bedplate(["explain", text(explained)]).succeeds().says(
            "full_page_writes = on  -- no page size is kept from tearing here: bedplate untorn ",
        );
        bedplate(["untorn", text(explained), "16k"]).succeeds();
        bedplate(["explain", text(explained)])
            .succeeds()
            .says("full_page_writes = off")
            .says("innodb_doublewrite = OFF")
            .says("journal_mode = WAL");
    }
    bedplate(["mode", text(&path), "cached"]).succeeds();
    bedplate(["explain", text(&path)])
        .succeeds()
        .says("full_page_writes = on  -- it is served as cached");
}

/// S-114. A unit that was set on a directory with a cluster in it gave up full_page_writes, while
/// all its tables could still tear.
#[test]
fn s_114_no_guard_is_given_up_where_a_data_file_can_tear() {
    if !can_mount("lines for a whole directory") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let (base, wal) = (dir.join("pg/base/5"), dir.join("pg/pg_wal"));
    for dir in [&base, &wal, &dir.join("pg/pg_tblspc"), &dir.join("my")] {
        std::fs::create_dir_all(dir).unwrap();
    }
    for file in [
        base.join("16384"),
        base.join("16384_vm"),
        wal.join("000000010000000000000001"),
        dir.join("pg/postgresql.conf"),
        dir.join("my/t.ibd"),
    ] {
        std::fs::write(file, pattern(8192)).unwrap();
    }
    let (pg, my) = (dir.join("pg"), dir.join("my"));
    let [on, off] = ["full_page_writes = on  -- ", "full_page_writes = off"];
    bedplate(["untorn", text(&pg), "8k"]).succeeds();
    bedplate(["explain", text(&pg)])
        .succeeds()
        .says(on)
        .says(" and of 3 more files and directories can tear")
        .says("untorn -R ");
    bedplate(["untorn", "-R", text(&pg), "8k"]).succeeds();
    bedplate(["untorn", "-R", text(&wal), "none"]).succeeds();
    bedplate(["explain", text(&pg)]).succeeds().says(off);
    bedplate(["explain", text(&base.join("16384"))])
        .succeeds()
        .says(off)
        .says("of the server's directory tells of all");
    bedplate(["mode", text(&base.join("16384_vm")), "cached"]).succeeds();
    bedplate(["explain", text(&pg)])
        .succeeds()
        .says(on)
        .says("16384_vm can tear: some are served as cached");
    bedplate(["mode", text(&base.join("16384_vm")), "inherit"]).succeeds();
    bedplate(["untorn", text(&base), "none"]).succeeds();
    bedplate(["explain", text(&pg)]).succeeds().says(on).says("base/5 can tear");
    bedplate(["untorn", text(&base), "8k"]).succeeds();
    std::os::unix::fs::symlink("/usr", dir.join("pg/pg_tblspc/16400")).unwrap();
    bedplate(["explain", text(&pg)])
        .succeeds()
        .says(on)
        .says("pg_tblspc/16400: it lies on no Bedplate mount");
    bedplate(["untorn", text(&my), "16k"]).succeeds();
    bedplate(["explain", text(&my)])
        .succeeds()
        .says(off)
        .says("innodb_doublewrite = ON  -- the pages of ")
        .says("t.ibd can tear");
}

#[test]
fn iostat_counts_from_report_to_report_and_from_a_reset() {
    if !can_mount("intervals of iostat") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    work(&dir.join("f"), 8);
    let run = bedplate(["--json", "iostat", text(&dir), "-i", "20ms", "-c", "3"]).succeeds();
    let reports: Vec<Value> =
        run.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 3, "one line each");
    assert_eq!(file(&reports[0], "/f")["writes"], 8);
    assert!(
        reports[1]["files"].as_array().unwrap().is_empty()
            && reports[1]["seconds"].as_f64() >= Some(0.02),
        "nothing came since"
    );
    bedplate(["iostat", "--reset", text(&dir)]).succeeds().says("/f");
    let empty = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    assert!(empty["files"].as_array().unwrap().is_empty(), "{empty}");
    work(&dir.join("f"), 3);
    let anew = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    assert_eq!(file(&anew, "/f")["writes"], 3);
}

#[test]
fn many_files_are_told_page_by_page() {
    if !can_mount("pages of iostat") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent,latency-sample=1");
    let long = "n".repeat(200);
    (0..300).for_each(|n| work(&dir.join(format!("{long}{n}")), 1));
    let report = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    let files = report["files"].as_array().unwrap();
    assert_eq!(files.len(), 300);
    assert!(files.iter().all(|file| file["writes"] == 1
        && file["path"].as_str().is_some_and(|path| path.contains(&long))));
    std::fs::rename(dir.join(format!("{long}7")), dir.join("other")).unwrap();
    let report = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    assert_eq!(file(&report, "/other")["writes"], 1);
}

#[test]
fn top_without_a_terminal_prints_reports() {
    if !can_mount("top") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("");
    bedplate(["top", text(&dir), "-i", "20ms"]).succeeds().says("reads  writes");
    let run = bedplate(["--json", "top", text(&dir), "-i", "20ms", "-c", "2"]).succeeds();
    let reports: Vec<Value> =
        run.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
}

#[test]
fn wrong_words_to_iostat_and_top_are_refused_in_a_sentence() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"");
    for command in ["iostat", "top"] {
        bedplate([command, text(&file)]).fails(1, "does not lie on a Bedplate mount");
        bedplate([command, "/no/such/file"]).fails(1, "cannot look at /no/such/file");
        bedplate([command, text(&file), "-i", "1ms"]).fails(2, "would watch itself");
        bedplate([command, text(&file), "-i", "soon"]).fails(2, "soon");
        bedplate([command, text(&file), "-c", "0"]).fails(2, "0 is not in 1..");
        bedplate([command, text(&file), "--sort", "beauty"]).fails(2, "beauty");
    }
    bedplate(["iostat", text(&file), "-c", "2"]).fails(2, "give --interval too");
}
