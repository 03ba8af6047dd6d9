//! Backups of checkpoints of a mount, and what they restore to.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

use crate::harness::{Scratch, bedplate, can_mount, pattern, run, text};
use crate::user;

/// All that a restored tree must have in common with what it is of: by path, what `stat` tells and
/// what is in it.
fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        let meta = fs::symlink_metadata(&at).unwrap();
        let content = if meta.is_dir() {
            todo.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        } else if meta.is_symlink() {
            format!("to {:?}", fs::read_link(&at).unwrap())
        } else if meta.is_file() {
            format!("{} {:?}", meta.nlink(), fs::read(&at).unwrap())
        } else {
            String::from("neither")
        };
        let mut note = [0; 64];
        let note =
            rustix::fs::lgetxattr(&at, "user.note", &mut note[..]).map(|len| note[..len].to_vec());
        let told = format!(
            "{:o} {}:{} {}.{} {note:?} {content}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        found.insert(at.strip_prefix(dir).unwrap().to_owned(), told);
    }
    found
}

fn chunks(repository: &Path) -> Vec<PathBuf> {
    let parts = fs::read_dir(repository.join("chunks")).unwrap().map(|part| part.unwrap().path());
    let mut chunks: Vec<_> = parts
        .flat_map(|part| fs::read_dir(part).unwrap().map(|chunk| chunk.unwrap().path()))
        .collect();
    chunks.sort();
    chunks
}

/// S-78, S-79: full, incremental, resumed, verified, deleted; restored to a plain directory and to
/// a mount, to the byte.
#[test]
fn s_78_backups_restore_what_checkpoints_show() {
    if !can_mount("backups of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let (repository, plain) = (scratch.path("backups"), scratch.path("plain"));
    let content = pattern(5_000_000);
    fs::create_dir_all(dir.join("db/deep")).unwrap();
    fs::write(dir.join("db/table"), &content).unwrap();
    fs::write(dir.join("db/empty"), b"").unwrap();
    fs::write(dir.join("db/deep/small \u{e9}"), b"small").unwrap();
    fs::hard_link(dir.join("db/table"), dir.join("db/deep/again")).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.join("link")).unwrap();
    fs::write(dir.join("db/deep").join(OsStr::from_bytes(b"no text \xff\n")), b"odd").unwrap();
    fs::write(dir.join("db/owned"), b"private").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.join("db/owned"), Some(1234), Some(4321)).unwrap();
    }
    fs::set_permissions(dir.join("db/owned"), fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("pipe"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    for (path, note) in
        [("db/table", &b"of the \x00 table"[..]), ("db/deep", b"of a directory"), ("db/empty", b"")]
    {
        rustix::fs::setxattr(dir.join(path), "user.note", note, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(dir.join("db/deep"), fs::Permissions::from_mode(0o500)).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 9_000_000).unwrap();
    drop(sparse);
    bedplate(["mode", text(&dir.join("db/table")), "direct"]).succeeds();
    bedplate(["untorn", text(&dir.join("db/table")), "8k"]).succeeds();
    bedplate(["integrity", text(&dir.join("db/table")), "on"]).succeeds();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    let one = tree(&dir.join(".checkpoints/one"));
    let full = bedplate(["--json", "backup", "create", text(&dir), "one", text(&repository)])
        .succeeds()
        .json();
    assert!(full["base"].is_null() && full["stored_bytes"].as_u64().unwrap() > 5_000_000, "{full}");
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).fails(1, "exists");
    bedplate(["restore", text(&repository), "one", text(&plain)])
        .succeeds()
        .says("user.bedplate.mode = direct: this is no Bedplate mount");
    assert!(tree(&plain) == one);
    assert!(
        fs::metadata(plain.join("sparse")).unwrap().blocks() * 512 < 1_000_000,
        "holes stay holes"
    );
    bedplate(["restore", text(&repository), "one", text(&plain)]).fails(1, "not empty");

    // One page of the table changes, a file goes, one comes: that is what the next one reads.
    let table = fs::File::options().write(true).open(dir.join("db/table")).unwrap();
    table.write_all_at(&[7; 4096], 2 << 20).unwrap();
    drop(table);
    fs::remove_file(dir.join("db/empty")).unwrap();
    fs::write(dir.join("new"), b"new").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "two"]).succeeds();
    let two = tree(&dir.join(".checkpoints/two"));
    assert!(two.len() == one.len() && two != one);
    let changed = bedplate(["--json", "backup", "create", text(&dir), "two", text(&repository)])
        .succeeds()
        .json();
    assert_eq!(
        (changed["base"].as_str(), changed["read_bytes"].as_u64()),
        (Some("one"), Some(4096 + 3)),
        "{changed}"
    );
    // As if it had been interrupted before its end: the data is there already.
    fs::remove_file(repository.join("manifests/two")).unwrap();
    let again =
        bedplate(["--json", "backup", "create", text(&dir), "two", text(&repository), "--full"])
            .succeeds()
            .json();
    assert_eq!(
        (again["base"].as_str(), again["stored_bytes"].as_u64()),
        (None, Some(1 << 20)),
        "the chunk with the change, which was packed before: {again}"
    );
    bedplate(["backup", "list", text(&repository)]).succeeds().says("two: ");
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("2 backups");
    bedplate(["backup", "delete", text(&repository), "one"]).succeeds();
    bedplate(["backup", "delete", text(&repository), "one"]).fails(1, "no backup 'one'");
    let back = dir.join("back");
    bedplate(["restore", text(&repository), "two", text(&back)]).succeeds();
    assert!(tree(&back) == two);
    let told = bedplate(["--json", "stat", text(&back.join("db/table"))]).succeeds().json();
    assert_eq!(
        (told["untorn"]["bytes"].as_u64(), told["mode"].as_str()),
        (Some(8192), Some("direct")),
        "{told}"
    );
    assert!(told["integrity"] == true && told["summed_bytes"].as_u64() > Some(0), "{told}");
    let first = |path: &str| fs::metadata(back.join(path)).unwrap().ino();
    assert_eq!(first("db/table"), first("db/deep/again"));
    fs::set_permissions(plain.join("db/deep"), fs::Permissions::from_mode(0o700)).unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// Once a restore to another file system printed 1,340 lines of settings that are not there, and no
/// word on a cluster that relies on whole pages.
#[test]
fn s_205_a_restore_elsewhere_sums_up_and_names_a_cluster_that_is_not_safe() {
    if !can_mount("a cluster restored elsewhere") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    for (cluster, setting) in
        [("torn", "full_page_writes = off"), ("safe", "full_page_writes = on")]
    {
        let cluster = dir.join(cluster);
        fs::create_dir_all(cluster.join("global")).unwrap();
        bedplate(["untorn", text(&cluster), "8k"]).succeeds();
        fs::write(cluster.join("global/pg_control"), b"control").unwrap();
        fs::write(cluster.join("postgresql.conf"), setting).unwrap();
        (0..5).for_each(|n| fs::write(cluster.join(n.to_string()), b"page").unwrap());
    }
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    let (repository, plain) = (scratch.path("backups"), scratch.path("plain"));
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).succeeds();
    let told = bedplate(["restore", text(&repository), "one", text(&plain)]).succeeds().stdout();
    let lines = |word: &str| told.lines().filter(|line| line.contains(word)).count();
    assert_eq!(lines("user.bedplate.untorn"), 1, "S-205: {told}");
    assert!(told.contains(" more like it"), "S-205: {told}");
    assert_eq!(lines("has full_page_writes = off and is not safe here"), 1, "S-205: {told}");
    assert!(told.contains(&format!("cluster in {}", text(&plain.join("torn")))), "S-205: {told}");
    let back = dir.join("back");
    let told = bedplate(["restore", text(&repository), "one", text(&back)]).succeeds().stdout();
    assert!(!told.contains("NOT SAFE") && !told.contains("not restored"), "S-205: {told}");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-78: an ordinary user cannot give files away and is told so, and no program comes to act for
/// another owner than it was given to.
#[test]
fn s_78_owners_that_cannot_be_set_are_told() {
    let Some(scratch) = user::scratch("backups as an ordinary user")
        .filter(|_| rustix::process::geteuid().is_root() && can_mount("backups for users"))
    else {
        return;
    };
    let (_, dir) = scratch.mounted("mode=concurrent");
    let (repository, back) = (scratch.path("backups"), scratch.path("back"));
    fs::write(dir.join("tool"), b"#!/bin/sh").unwrap();
    std::os::unix::fs::chown(dir.join("tool"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).succeeds();
    run(user::as_user(["restore", text(&repository), "one", text(&back)]))
        .fails(1, "Permission denied");
    let given = std::process::Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(&repository)
        .status()
        .unwrap();
    assert!(given.success());
    run(user::as_user(["restore", text(&repository), "one", text(&back)]))
        .succeeds()
        .says("set the owner of");
    let meta = fs::metadata(back.join("tool")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (65534, 0o755));
    fs::remove_dir_all(&back).unwrap();
    bedplate(["restore", text(&repository), "one", text(&back)]).succeeds();
    let meta = fs::metadata(back.join("tool")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 4321, 0o6755));
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-79: what is missing or damaged is named; a restore that meets it, or a full target, fails.
#[test]
fn s_79_damage_of_a_backup_is_named() {
    if !can_mount("damaged backups of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    let content = pattern(3_000_000);
    fs::write(dir.join("table"), &content).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    bedplate(["backup", "create", text(&dir), "never", text(&repository)])
        .fails(1, "no checkpoint 'never'");
    bedplate(["backup", "create", text(&dir), "one", text(&scratch.path(""))])
        .fails(1, "something else than backups");
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).succeeds();
    let stored = chunks(&repository);
    assert_eq!(stored.len(), 3);
    let whole = fs::read(&stored[0]).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&stored[0], &damaged).unwrap();
    bedplate(["backup", "verify", text(&repository)]).fails(4, "table, byte ");
    bedplate(["restore", text(&repository), "one", text(&scratch.path("a"))])
        .fails(1, "table, byte ");
    fs::remove_file(&stored[0]).unwrap();
    bedplate(["backup", "verify", text(&repository), "one"]).fails(4, "is missing");
    bedplate(["restore", text(&repository), "one", text(&scratch.path("b"))])
        .fails(1, "is missing");
    // A backup in full puts it back.
    bedplate([
        "backup",
        "create",
        text(&dir),
        "one",
        text(&repository),
        "--name",
        "again",
        "--full",
    ])
    .succeeds();
    assert_eq!(fs::read(&stored[0]).unwrap(), whole);
    bedplate(["backup", "verify", text(&repository)]).succeeds();
    let fill = fs::File::create(dir.join("fill")).unwrap();
    let piece = vec![1; 1 << 20];
    let mut at = 0;
    while fill.write_all_at(&piece, at).is_ok() {
        at += 1 << 20;
    }
    bedplate(["restore", text(&repository), "again", text(&dir.join("c"))])
        .fails(1, "No space left");
    drop(fill);
    let manifest = repository.join("manifests/again");
    let text_of = fs::read_to_string(&manifest).unwrap().replace("\"table\"", "\"../table\"");
    fs::write(&manifest, text_of).unwrap();
    bedplate(["restore", text(&repository), "again", text(&scratch.path("d"))])
        .fails(1, "does not have its hash");
    bedplate(["backup", "list", text(&scratch.path("none"))]).fails(1, "holds no backups");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-115: a backup read through the library cache where the mount's mode is `concurrent+cache`, and
/// took the place of what was hot there.
#[test]
fn s_115_a_backup_leaves_the_cache_as_it_was() {
    if !can_mount("the cache during a backup") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent+cache,cache=4M,read-ahead-max=0");
    for (name, len) in [("hot", 1 << 20), ("cold", 24 << 20)] {
        fs::write(dir.join(name), pattern(len)).unwrap();
    }
    for _ in 0..2 {
        assert!(fs::read(dir.join("hot")).unwrap() == pattern(1 << 20));
    }
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    let cache = || bedplate(["--json", "info", text(&dir)]).succeeds().json()["cache"].clone();
    let (before, repository) = (cache(), scratch.path("backups"));
    assert!(before["resident_bytes"].as_u64().unwrap() >= 1 << 20, "{before}");
    bedplate(["backup", "create", text(&dir), "then", text(&repository)]).succeeds();
    assert_eq!(cache(), before);
    let restored = scratch.path("restored");
    bedplate(["restore", text(&repository), "then", text(&restored)]).succeeds();
    for name in ["hot", "cold"] {
        assert!(
            fs::read(restored.join(name)).unwrap() == fs::read(dir.join(name)).unwrap(),
            "{name}"
        );
    }
}

/// S-115: a file beside which another has the name with which it would be read past the caches, and
/// one whose name has no room for that: the backup reads them, and not the other, and the rest past
/// the caches all the same.
#[test]
fn s_115_a_file_that_cannot_be_read_past_the_caches_is_backed_up_as_it_is() {
    if !can_mount("odd names in a backup") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("volume.img"), scratch.directory("mnt"));
    let long = "n".repeat(252);
    let content = |seed: usize, len: usize| pattern(len + seed)[seed..].to_vec();
    let files = [
        ("taken", content(1, 300_000)),
        (long.as_str(), content(3, 200_000)),
        ("hot", content(4, 1 << 20)),
    ];
    // On a mount that name would lead to the file itself.
    let library = super::damage::mounted(&image);
    library
        .open("/other", &bedplate::OpenOptions::create())
        .unwrap()
        .write_at(&content(2, 300_000), 0)
        .unwrap();
    library.rename_path("/other", "/taken::direct").unwrap();
    library.unmount().unwrap();
    bedplate([
        "mount",
        text(&image),
        text(&dir),
        "-o",
        "mode=concurrent+cache,cache=4M,read-ahead-max=0",
    ])
    .succeeds();
    for (name, bytes) in &files {
        fs::write(dir.join(name), bytes).unwrap();
    }
    assert!(
        fs::read(dir.join("taken::direct")).unwrap() == content(2, 300_000),
        "it is a file of its own"
    );
    for _ in 0..2 {
        fs::read(dir.join("hot")).unwrap();
    }
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    let resident = || {
        bedplate(["--json", "info", text(&dir)]).succeeds().json()["cache"]["resident_bytes"]
            .as_u64()
            .unwrap()
    };
    let (before, repository, restored) =
        (resident(), scratch.path("backups"), scratch.path("restored"));
    bedplate(["backup", "create", text(&dir), "then", text(&repository)]).succeeds();
    assert!(resident() <= before + 600_000, "nothing but these two came into the cache");
    bedplate(["restore", text(&repository), "then", text(&restored)]).succeeds();
    for (name, bytes) in files.iter().chain(&[("taken::direct", content(2, 300_000))]) {
        assert!(fs::read(restored.join(name)).unwrap() == *bytes, "{name}");
    }
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-78: however files change between them, incremental backups restore to the byte what their
/// checkpoints show.
#[test]
fn s_78_incremental_backups_are_exact() {
    if !can_mount("incremental backups of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |sides: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % sides
    };
    let noise = pattern(300_000);
    let mut shown = Vec::new();
    // Loses whole blocks at its end and is not written: nothing but the size tells.
    let shrinking = fs::File::create(dir.join("shrinking")).unwrap();
    shrinking.write_all_at(&pattern(3 << 20), 0).unwrap();
    for round in 0..6 {
        shrinking.set_len((3 << 20) - round * 75 * 4096).unwrap();
        for _ in 0..25 {
            change(&dir, &mut dice, &noise);
        }
        let name = format!("round{round}");
        bedplate(["checkpoint", "create", text(&dir), &name]).succeeds();
        let made = bedplate(["--json", "backup", "create", text(&dir), &name, text(&repository)])
            .succeeds()
            .json();
        assert_eq!(made["base"].is_null(), round == 0, "{made}");
        assert!(round == 0 || made["read_bytes"].as_u64() <= made["bytes"].as_u64(), "{made}");
        shown.push((name.clone(), tree(&dir.join(".checkpoints").join(&name))));
        if round > 0 {
            // The next one is made against what stands on this one alone.
            bedplate(["checkpoint", "delete", text(&dir), &format!("round{}", round - 1)])
                .succeeds();
        }
    }
    bedplate(["backup", "delete", text(&repository), "round0", "round3"]).succeeds();
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("4 backups");
    for (name, shown) in
        shown.into_iter().filter(|(name, _)| !["round0", "round3"].contains(&name.as_str()))
    {
        let back = scratch.path(&name);
        bedplate(["restore", text(&repository), &name, text(&back)]).succeeds();
        let restored = tree(&back);
        for (path, told) in &shown {
            assert!(restored.get(path) == Some(told), "{name}: {} differs", path.display());
        }
        assert_eq!(restored.len(), shown.len(), "{name}");
        fs::remove_dir_all(&back).unwrap();
    }
    drop(shrinking);
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// Changes one of a few files in one of the ways in which files change.
fn change(dir: &Path, dice: &mut impl FnMut(u64) -> u64, noise: &[u8]) {
    let path = dir.join(format!("file{}", dice(6)));
    let other = dir.join(format!("file{}", dice(6)));
    let Ok(file) =
        fs::File::options().read(true).write(true).create(true).truncate(false).open(&path)
    else {
        panic!("{}", path.display())
    };
    let (at, len) = (dice(3 << 20), 1 + dice(noise.len() as u64));
    match dice(10) {
        0..=3 => {
            let from = dice(noise.len() as u64 - len + 1) as usize;
            file.write_all_at(&noise[from..from + len as usize], at).unwrap();
        }
        4 => file.set_len(at).unwrap(),
        5 => rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            at,
            len,
        )
        .unwrap(),
        6 => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, len).unwrap(),
        7 => fs::rename(&path, &other).unwrap(),
        8 => fs::remove_file(&path).unwrap(),
        _ => {
            let _there_already = fs::hard_link(&path, &other);
        }
    }
}

/// S-78: a backup that finds no room leaves none, says so in one sentence, and stores only what is
/// missing when it is repeated.
#[test]
fn s_78_an_interrupted_backup_goes_on() {
    if !can_mount("interrupted backups of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let (repository, fill) = (dir.join("backups"), dir.join("fill"));
    fs::create_dir(dir.join("db")).unwrap();
    fs::write(dir.join("db/table"), pattern(12 << 20)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    let one = tree(&dir.join(".checkpoints/one/db"));
    let free = rustix::fs::statvfs(&dir).unwrap();
    let room = free.f_bavail * free.f_frsize - (6 << 20);
    let file = fs::File::create(&fill).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, room).unwrap();
    drop(file);
    bedplate(["backup", "create", text(&dir), "one", text(&repository), "--compress", "none"])
        .fails(1, "No space left");
    bedplate(["backup", "list", text(&repository)]).succeeds().says("no backups");
    let stored = chunks(&repository).len() as u64;
    assert!(stored > 0 && stored < 12, "{stored} chunks");
    fs::create_dir_all(repository.join("manifests")).unwrap();
    fs::write(repository.join("manifests/one.1.partial"), b"left by a crash").unwrap();
    fs::remove_file(&fill).unwrap();
    let made = bedplate(["--json", "backup", "create", text(&dir), "one", text(&repository)])
        .succeeds()
        .json();
    assert_eq!(made["stored_bytes"].as_u64(), Some((12 - stored) << 20), "{made}");
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("1 backup, 12 chunks");
    bedplate(["restore", text(&repository), "one", text(&scratch.path("back"))]).succeeds();
    assert!(tree(&scratch.path("back/db")) == one);
    bedplate(["backup", "delete", text(&repository)]).succeeds();
    assert_eq!(
        (chunks(&repository).len(), fs::read_dir(repository.join("manifests")).unwrap().count()),
        (12, 1)
    );
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-78: a piece that got lost is stored anew also by a backup that would have taken it over
/// unread.
#[test]
fn s_78_what_got_lost_is_stored_anew() {
    if !can_mount("backups against damaged ones") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    fs::write(dir.join("table"), pattern(3_000_000)).unwrap();
    for name in ["one", "two"] {
        bedplate(["checkpoint", "create", text(&dir), name]).succeeds();
    }
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).succeeds();
    fs::remove_file(&chunks(&repository)[1]).unwrap();
    let made = bedplate(["--json", "backup", "create", text(&dir), "two", text(&repository)])
        .succeeds()
        .json();
    assert_eq!(made["base"].as_str(), Some("one"), "{made}");
    assert!((1..=1 << 20).contains(&made["read_bytes"].as_u64().unwrap()), "{made}");
    bedplate(["backup", "verify", text(&repository)]).succeeds();
    // A damaged manifest is reported, hinders nothing else and can be deleted.
    let (one, manifest) = (repository.join("manifests/one"), "manifests/one");
    fs::write(&one, &fs::read(&one).unwrap()[1..]).unwrap();
    bedplate(["backup", "list", text(&repository)]).succeeds().says(manifest);
    bedplate(["backup", "verify", text(&repository)]).fails(4, manifest);
    bedplate(["backup", "create", text(&dir), "two", text(&repository), "--name", "three"])
        .succeeds();
    bedplate(["backup", "delete", text(&repository), "two"]).fails(1, manifest);
    bedplate(["backup", "delete", text(&repository), "one"]).succeeds();
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("2 backups");
    // A name that is no text is told in a line, and hides nothing.
    let odd = repository.join("manifests").join(OsStr::from_bytes(b"odd\xff"));
    fs::rename(repository.join("manifests/two"), &odd).unwrap();
    let listed = bedplate(["backup", "list", text(&repository)])
        .succeeds()
        .says("three: ")
        .says("damaged: ")
        .says("odd\\xff': the name is no text");
    assert_eq!(listed.stdout().lines().count(), 2, "{}", listed.stdout());
    bedplate(["backup", "verify", text(&repository)]).fails(4, "odd\\xff");
    bedplate(["backup", "verify", text(&repository), "three"]).succeeds();
    bedplate(["backup", "delete", text(&repository)]).fails(1, "odd\\xff");
    fs::rename(&odd, repository.join("manifests/two")).unwrap();
    bedplate(["backup", "verify", text(&repository)]).succeeds().says("2 backups");
    // The root of a new volume is an empty directory as well.
    let (image, other) = (scratch.image("other.img"), scratch.directory("other"));
    bedplate(["mount", text(&image), text(&other)]).succeeds();
    bedplate(["restore", text(&repository), "three", text(&other)]).succeeds();
    assert!(tree(&other) == tree(&dir.join(".checkpoints/two")));
    bedplate(["unmount", text(&other)]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}
