//! What increments of backups read and store, how they are compressed, which of them are kept, and
//! parts of them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// Numbers that look random and are the same each time.
fn dice(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |sides| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % sides
    }
}

/// Bytes that no compression makes smaller.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut next = dice(seed);
    (0..len.div_ceil(8)).flat_map(|_| next(u64::MAX).to_le_bytes()).take(len).collect()
}

fn checkpoint(dir: &Path, name: &str) {
    bedplate(["checkpoint", "create", text(dir), name]).succeeds();
}

fn backup(dir: &Path, name: &str, repository: &Path, more: &[&str]) -> Value {
    let arguments = ["--json", "backup", "create", text(dir), name, text(repository)];
    bedplate(arguments.into_iter().chain(more.iter().copied())).succeeds().json()
}

fn number(told: &Value, field: &str) -> u64 {
    told[field].as_u64().unwrap_or_else(|| panic!("{field} of {told}"))
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let is_dir = entry.file_type().unwrap().is_dir();
            if is_dir { todo.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn bytes_below(dir: &Path) -> u64 {
    files_below(dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// Writes 8 KiB of noise at places of a file that have nothing to do with each other; returns the
/// bytes that changed.
fn change_pages(file: &fs::File, pages: u64, count: u64, seed: u64) -> u64 {
    let mut next = dice(seed);
    let changed: std::collections::BTreeSet<u64> = (0..count).map(|_| next(pages)).collect();
    for page in &changed {
        file.write_all_at(&noise(8192, seed + page + 1), page * 8192).unwrap();
    }
    changed.len() as u64 * 8192
}

/// S-230: an increment of random changes of 8 KiB reads and stores at most 1.3 times what changed,
/// again and again, manifests included; it restores to the byte, and deleting all before it leaves
/// no more than 1.3 times what it needs. With chunks of 1 MiB it was 8.4 times.
#[test]
fn s_230_an_increment_stores_what_changed() {
    if !can_mount("increments of backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    let pages = 2048;
    fs::write(dir.join("table"), noise(pages as usize * 8192, 1)).unwrap();
    checkpoint(&dir, "c0");
    backup(&dir, "c0", &repository, &[]);
    let table = fs::File::options().write(true).open(dir.join("table")).unwrap();
    let mut stored_before = bytes_below(&repository);
    for round in 1..=4 {
        let changed = change_pages(&table, pages, 120, round * 1000);
        table.sync_all().unwrap();
        let name = format!("c{round}");
        checkpoint(&dir, &name);
        let made = backup(&dir, &name, &repository, &[]);
        let stored = bytes_below(&repository);
        let limit = changed * 13 / 10;
        assert!(number(&made, "read_bytes") <= limit, "S-230: {changed} changed: {made}");
        assert!(stored - stored_before <= limit, "S-230: {changed} changed: {made}");
        let told = number(&made, "written_bytes") + number(&made, "manifest_bytes");
        assert_eq!(stored - stored_before, told, "S-230: what is told is what is there: {made}");
        stored_before = stored;
    }
    let back = scratch.path("back");
    bedplate(["restore", text(&repository), "c4", text(&back)]).succeeds();
    let same = fs::read(back.join("table")).unwrap() == fs::read(dir.join("table")).unwrap();
    assert!(same, "S-230: it restores to the byte");
    bedplate(["backup", "prune", text(&repository), "--keep-last", "1"]).succeeds();
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("1 backup");
    // Nearly all of the table changed: of no chunk is only a sliver needed any more.
    let changed = change_pages(&table, pages, 6000, 77);
    assert!(changed > 15 << 20, "{changed}");
    drop(table);
    checkpoint(&dir, "c5");
    backup(&dir, "c5", &repository, &[]);
    bedplate(["backup", "prune", text(&repository), "--keep-last", "1"]).succeeds();
    let left = bytes_below(&repository.join("chunks"));
    assert!(left <= (16 << 20) * 13 / 10, "S-230: {left} bytes for 16 MiB");
    bedplate(["backup", "verify", text(&repository)]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-231: data is compressed unless that was turned off or does not help, and each of it restores;
/// chunks that were cut, changed or swapped are named and not restored.
#[test]
fn s_231_data_is_compressed_where_it_helps() {
    if !can_mount("compressed backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let (packed, raw) = (scratch.path("packed"), scratch.path("raw"));
    fs::write(dir.join("text"), pattern(3 << 20)).unwrap();
    fs::write(dir.join("noise"), noise(2 << 20, 5)).unwrap();
    checkpoint(&dir, "one");
    let made = backup(&dir, "one", &packed, &["--compress", "7"]);
    assert_eq!(number(&made, "stored_bytes"), 5 << 20, "{made}");
    let written = number(&made, "written_bytes");
    assert!((2 << 20..(2 << 20) + (1 << 19)).contains(&written), "S-231: {made}");
    assert_eq!(bytes_below(&packed.join("chunks")), written, "S-231: {made}");
    let made = backup(&dir, "one", &raw, &["--compress", "none"]);
    assert_eq!(number(&made, "written_bytes"), 5 << 20, "S-231: {made}");
    for repository in [&packed, &raw] {
        let back = scratch.path("back");
        bedplate(["restore", text(repository), "one", text(&back)]).succeeds();
        for name in ["text", "noise"] {
            let same = fs::read(back.join(name)).unwrap() == fs::read(dir.join(name)).unwrap();
            assert!(same, "S-231: {name} of {}", repository.display());
        }
        fs::remove_dir_all(back).unwrap();
    }
    // What is there in one form is not stored in another.
    let again = backup(&dir, "one", &raw, &["--name", "again", "--full"]);
    assert_eq!(number(&again, "written_bytes"), 0, "S-231: {again}");
    let compressed: Vec<PathBuf> = files_below(&packed.join("chunks"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "zst"))
        .collect();
    assert!(compressed.len() >= 2, "S-231: {compressed:?}");
    let (first, other) = (&compressed[0], &compressed[1]);
    let whole = fs::read(first).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 0x10;
    let swapped = fs::read(other).unwrap();
    for wrong in [&whole[..whole.len() - 1], &whole[..3], b"", &changed, &swapped, b"no frame"] {
        fs::write(first, wrong).unwrap();
        bedplate(["backup", "verify", text(&packed)]).fails(4, "text, byte ");
        let back = scratch.path("never");
        bedplate(["restore", text(&packed), "one", text(&back)])
            .fails(1, "does not hold what its name says");
        fs::remove_dir_all(back).unwrap();
    }
    fs::write(first, whole).unwrap();
    bedplate(["backup", "verify", text(&packed)]).succeeds();
    for wrong in ["0", "20", "fast", ""] {
        bedplate(["backup", "create", text(&dir), "one", text(&raw), "--compress", wrong])
            .fails(2, "a level from 1 to 19, or none");
    }
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-232: pruning keeps what the rules keep and all that it needs; a dry run says the same and
/// deletes nothing; the newest backup always stays, and nothing goes while one cannot be read.
#[test]
fn s_232_pruning_keeps_what_the_rules_keep() {
    if !can_mount("retention of backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    for n in 0..4 {
        fs::write(dir.join("table"), noise(300_000, n + 1)).unwrap();
        checkpoint(&dir, &format!("c{n}"));
        backup(&dir, &format!("c{n}"), &repository, &[]);
    }
    let refused = |rules: &[&str]| {
        let arguments = ["backup", "prune", text(&repository)];
        bedplate(arguments.into_iter().chain(rules.iter().copied()))
    };
    let prune = |rules: &[&str]| {
        let arguments = ["--json", "backup", "prune", text(&repository)];
        bedplate(arguments.into_iter().chain(rules.iter().copied()))
    };
    let before = files_below(&repository);
    let dry = prune(&["--keep-last", "2", "--dry-run"]).succeeds().json();
    assert_eq!(files_below(&repository), before, "S-232: a dry run deletes nothing");
    let manifest = repository.join("manifests/c3");
    let good = fs::read(&manifest).unwrap();
    fs::write(&manifest, &good[..good.len() / 2]).unwrap();
    refused(&["--keep-last", "2"]).fails(1, "cannot be read");
    fs::write(&manifest, good).unwrap();
    assert_eq!(files_below(&repository), before, "S-232: a damaged one may need any chunk");
    bedplate(["backup", "show", text(&repository), "c0"])
        .succeeds()
        .says("deleting it would free 29");
    let done = prune(&["--keep-last", "2"]).succeeds().json();
    assert_eq!(done["backups"], serde_json::json!(["c0", "c1"]), "S-232: {done}");
    for field in ["backups", "chunks", "bytes", "kept"] {
        assert_eq!(dry[field], done[field], "S-232: a dry run tells what is done: {dry}, {done}");
    }
    assert!(number(&done, "bytes") >= 590_000, "S-232: {done}");
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("2 backups");
    // Whatever the month, the newest of it is the newest of all.
    let done = prune(&["--keep-monthly", "1"]).succeeds().json();
    assert_eq!(done["backups"], serde_json::json!(["c2"]), "S-232: {done}");
    bedplate(["backup", "list", text(&repository)]).succeeds().says("c3: ");
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("1 backup");
    refused(&["--keep-last", "0"]).fails(2, "0");
    refused(&[]).fails(2, "--keep-last");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-233: one path is restored: of a directory what is in it, of a file the file, and nothing else.
#[test]
fn s_233_one_path_is_restored() {
    if !can_mount("parts of backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    fs::create_dir_all(dir.join("db/deep")).unwrap();
    fs::write(dir.join("db/deep/table"), pattern(2_000_000)).unwrap();
    fs::write(dir.join("db/other"), b"other").unwrap();
    checkpoint(&dir, "one");
    backup(&dir, "one", &repository, &[]);
    let restore = |path: &str, to: &Path| {
        bedplate(["restore", text(&repository), "one", text(to), "--path", path])
    };
    for (path, names) in
        [("/db/deep", ["table"]), ("db/other", ["other"]), ("db/deep/table", ["table"])]
    {
        let back = scratch.path("back");
        restore(path, &back).succeeds();
        assert_eq!(files_below(&back), names.map(|name| back.join(name)), "S-233: {path}");
        fs::remove_dir_all(back).unwrap();
    }
    let back = scratch.path("table");
    restore("db/deep/table", &back).succeeds();
    assert!(fs::read(back.join("table")).unwrap() == pattern(2_000_000), "S-233");
    restore("db/none", &scratch.path("none")).fails(1, "holds no db/none");
    assert!(!scratch.path("none").exists(), "S-233: what cannot be restored makes no directory");
    bedplate(["unmount", text(&dir)]).succeeds();
}
