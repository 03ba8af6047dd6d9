//! `doctor` on this machine and on copies of others.

use std::path::Path;

use crate::harness::{Scratch, bedplate, can_mount, text};

/// Makes a copy of a machine whose disk reads so many KiB ahead.
fn copy(scratch: &Scratch, read_ahead_kb: u32) -> std::path::PathBuf {
    let root = scratch.directory("machine");
    let write = |path: &str, content: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("proc/self/mountinfo", "20 1 8:0 / / rw - ext4 /dev/sda rw\n");
    write("sys/dev/block/8:0/alignment_offset", "0\n");
    write("sys/dev/block/8:0/queue/physical_block_size", "4096\n");
    write("sys/dev/block/8:0/queue/read_ahead_kb", &format!("{read_ahead_kb}\n"));
    root
}

#[test]
fn a_copy_of_a_machine_is_judged_with_findings_and_what_was_not_seen() {
    let scratch = Scratch::new();
    let root = copy(&scratch, 4096);
    let told = bedplate(["--json", "doctor", "--root", text(&root), "/var/lib/db"]).ends(1).json();
    assert_eq!(told["findings"].as_array().unwrap().len(), 1, "{told}");
    let finding = &told["findings"][0];
    assert_eq!((&finding["check"], &finding["sure"]), (&"read-ahead".into(), &"possible".into()));
    assert_eq!(finding["mend"][0], "echo 128 > /sys/dev/block/8:0/queue/read_ahead_kb");
    assert!(told["unseen"].as_array().unwrap().len() > 5 && told["fine"].is_null(), "{told}");
    let one = ["doctor", "--check", "alignment", "--root", text(&root), "/var/lib/db"];
    bedplate(one).ends(0).says("0 findings, 1 as they should be, 0 not seen");
    copy(&scratch, 128);
    let shown =
        bedplate(["doctor", "--all", "--root", text(&root), "/var/lib/db"]).ends(0).stdout();
    assert!(shown.contains("0 findings") && shown.contains("not seen  dirty-ratio"));
    assert!(shown.contains("fine      alignment: 8:0 (disk) begins"), "{shown}");
}

/// S-353
#[test]
fn s_353_this_machine_is_looked_at_and_nothing_is_left_or_changed() {
    let scratch = Scratch::new();
    let dir = scratch.directory("db");
    let run = bedplate(["--json", "doctor", "--all", text(&dir), "--fix", "--dry-run"]);
    assert!([0, 1].contains(&run.code()), "{}", run.stderr());
    let told = run.json();
    let findings = told["findings"].as_array().unwrap().len();
    assert_eq!(findings > 0, run.code() == 1, "{told}");
    let fixes = told["fix"].as_array().unwrap();
    assert!(fixes.len() == findings && fixes.iter().all(|fix| fix["done"] == false), "{told}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_looked_at_is_one_sentence() {
    let scratch = Scratch::new();
    let missing = scratch.path("missing");
    bedplate(["doctor", text(&missing)]).fails(8, "No such file");
    bedplate(["doctor", "/dev/null"]).fails(8, "neither a directory, a file nor a block device");
    bedplate(["doctor", "--dry-run"]).fails(2, "--fix");
    bedplate(["doctor", "--check", "read-ahed"]).fails(2, "is 'read-ahead' meant?");
    bedplate(["doctor", "--page", "3000"]).fails(2, "a power of two");
    bedplate(["doctor", "--root", text(&scratch.path("")), "/srv"])
        .fails(2, "no copy of a machine");
    let root = copy(&scratch, 128);
    bedplate(["doctor", "--root", text(&root), "srv"]).fails(2, "by its whole path");
    bedplate(["doctor", "--root", text(&root), "/srv", "--fix"]).fails(2, "--root");
}

#[test]
fn a_database_is_named_and_told_what_is_wrong_with_its_name() {
    let scratch = Scratch::new();
    let missing = scratch.path("missing.db");
    bedplate(["doctor", "--sqlite", text(&missing)]).fails(8, "cannot find the database");
    let other = scratch.file("other.db", b"something else");
    bedplate(["doctor", "--sqlite", text(&other)]).fails(8, "is no database of SQLite");
    let wrong = bedplate(["doctor", "--postgres", "mysql://me:secret@host"]).fails(2, "postgresql");
    assert!(!wrong.stderr().contains("secret"));
    let wrong = bedplate(["doctor", "--postgres", "postgresql://me:se%zz@host"]).fails(2, "%25");
    assert!(!wrong.stderr().contains("zz"));
    let nothing = "postgresql://me@127.0.0.1:1/app";
    bedplate(["doctor", "--postgres", nothing]).fails(8, "PostgreSQL: psql");
    let wrong = bedplate(["doctor", "--mysql", "mysql://me:secret@host"]).fails(2, "MYSQL_PWD");
    assert!(!wrong.stderr().contains("secret"));
    let nowhere = format!("mysql://me@?socket={}", text(&missing));
    bedplate(["doctor", "--mysql", &nowhere]).fails(8, "MariaDB or MySQL: ");

    let mut header = vec![0; 4096];
    header[..16].copy_from_slice(b"SQLite format 3\0");
    header[16..18].copy_from_slice(&4096_u16.to_be_bytes());
    header[18] = 1;
    let file = scratch.file("a.db", &header);
    let told = bedplate(["--json", "doctor", "--sqlite", text(&file)]).ends(1).json();
    let findings = told["findings"].as_array().unwrap();
    let journal = findings.iter().find(|found| found["check"] == "sqlite-journal").unwrap();
    assert_eq!(journal["mend"][0], format!("sqlite3 {} 'PRAGMA journal_mode = WAL'", text(&file)));
}

#[test]
fn a_mount_tells_what_it_promises() {
    if !can_mount("what a mount promises") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    bedplate(["untorn", text(&dir), "8k"]).succeeds();
    let promised = |dir: &Path| {
        let told = bedplate(["--json", "doctor", "--all", text(dir)]).json();
        let fine = told["fine"].as_array().unwrap().clone();
        let row = fine.into_iter().find(|row| row["check"] == "bedplate");
        row.unwrap_or_else(|| panic!("{told}"))["told"].as_str().unwrap().to_owned()
    };
    assert_eq!(promised(&dir), "mode concurrent, 8 KiB are written untorn, without checksums");
    bedplate(["mode", text(&dir), "cached"]).succeeds();
    assert!(promised(&dir).contains("wait in a cache and can tear"), "{}", promised(&dir));
}
