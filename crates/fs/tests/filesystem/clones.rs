//! Clones: files that share blocks and know nothing of each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_fs::{
    AllocateMode, CloneSource, ErrorKind, FileSystem, InodeNo, IoMode, NewFile, OpenOptions,
    RollbackOptions,
};

use crate::checkpoints::{
    change_in, differing, everything, of, of_checkpoint, sound, tree, whole, write,
};
use crate::support::{Random, device, format, mount_as};

fn below(fs: &FileSystem, path: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    tree(fs, fs.resolve(path).unwrap().ino, "", &mut all);
    all
}

pub fn present(path: &str) -> CloneSource {
    CloneSource::Present(path.into())
}

fn past(name: &str, path: &str) -> CloneSource {
    CloneSource::Checkpoint { name: name.into(), path: path.into() }
}

/// Free space, with all that is on its way to it.
fn free(fs: &FileSystem) -> u64 {
    fs.sync().unwrap();
    fs.statfs().free_bytes
}

/// S-75, S-76, I-CKP-2, I-CKP-6, I-IO-6: clones of the present and of checkpoints show what these
/// show; what is done to one of them no other shows, in whatever order they, their sources and the
/// checkpoints go; and a mount finds the same free space again.
#[test]
fn s_76_nobody_sees_what_happens_to_a_clone() {
    for seed in 0..6 {
        let device = device(96 << 20, 512);
        format(&device, if seed % 2 == 0 { 4096 } else { 1024 });
        let mut random = Random::new(seed + 70);
        let mut fs = mount_as(&device, IoMode::Cached);
        fs.create_dir_all("/d0").unwrap();
        let mut roots = vec!["/d0".to_owned()];
        let mut checkpoints: Vec<String> = Vec::new();
        for round in 0..40 {
            let root = roots[random.below(roots.len() as u64) as usize].clone();
            let others = |fs: &FileSystem| {
                let trees = roots
                    .iter()
                    .filter(|other| **other != root)
                    .map(|other| (other.clone(), below(fs, other)));
                let views = checkpoints.iter().map(|name| (name.clone(), of_checkpoint(fs, name)));
                trees.chain(views).collect::<BTreeMap<_, _>>()
            };
            let before = others(&fs);
            (0..1 + random.below(8)).for_each(|_| change_in(&fs, &mut random, &[&root]));
            let after = others(&fs);
            for (name, was) in &before {
                assert!(
                    after[name] == *was,
                    "seed {seed}, round {round}: a change in {root} shows in {name}: {:?}",
                    differing(was, &after[name])
                );
            }
            match random.below(8) {
                0 | 1 => {
                    let name = format!("/c{round}");
                    fs.clone_files(&present(&root), &name).unwrap();
                    assert!(
                        below(&fs, &root) == below(&fs, &name),
                        "seed {seed}, round {round}: {name} of {root}"
                    );
                    assert!(
                        !fs.checkpoints().iter().any(|checkpoint| checkpoint.automatic),
                        "nothing is left of how it was made"
                    );
                    roots.push(name);
                }
                2 => {
                    fs.create_checkpoint(format!("p{round}"), &everything()).unwrap();
                    checkpoints.push(format!("p{round}"));
                }
                3 if !checkpoints.is_empty() => {
                    let from = &checkpoints[random.below(checkpoints.len() as u64) as usize];
                    let name = format!("/c{round}");
                    if let Ok(attr) = fs.resolve(format!("/.checkpoints/{from}{root}")) {
                        let mut then = BTreeMap::new();
                        tree(&fs, attr.ino, "", &mut then);
                        fs.clone_files(&past(from, &root), &name).unwrap();
                        assert!(
                            then == below(&fs, &name),
                            "seed {seed}, round {round}: {name} of {root} in {from}"
                        );
                        roots.push(name);
                    }
                }
                4 if !checkpoints.is_empty() => {
                    let at = random.below(checkpoints.len() as u64) as usize;
                    fs.delete_checkpoint(checkpoints.remove(at)).unwrap();
                }
                5 if roots.len() > 1 => {
                    let gone = roots.remove(random.below(roots.len() as u64) as usize);
                    let dir = fs.resolve(&gone).unwrap().ino;
                    for entry in fs.read_dir(dir, None, usize::MAX).unwrap() {
                        fs.unlink(dir, &entry.name).unwrap();
                    }
                    fs.remove(&gone).unwrap();
                }
                _ => {
                    let (now, left) = (whole(&fs), free(&fs));
                    fs.unmount().unwrap();
                    sound(&device);
                    fs = mount_as(&device, IoMode::ALL[random.below(4) as usize]);
                    assert!(whole(&fs) == now, "seed {seed}, round {round}");
                    assert_eq!(
                        free(&fs),
                        left,
                        "seed {seed}, round {round}: a rebuild finds the same free space"
                    );
                }
            }
        }
        checkpoints.iter().for_each(|name| fs.delete_checkpoint(name).unwrap());
        fs.unmount().unwrap();
        sound(&device);
    }
}

/// S-76: a clone costs no space for data until it is written to; whatever order they go in, the
/// blocks become free with the last.
#[test]
fn s_76_blocks_become_free_with_the_last_who_has_them() {
    const BYTES: u64 = 4 << 20;
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let device = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, IoMode::Concurrent);
        write(&fs, "/f0", 0, &vec![1; BYTES as usize], IoMode::Concurrent);
        let before = free(&fs);
        for name in ["/f1", "/f2"] {
            let report = fs.clone_files(&present("/f0"), name).unwrap();
            assert_eq!((report.inodes, report.shared_bytes), (1, BYTES));
        }
        assert_eq!(free(&fs), before, "nothing is copied");
        write(&fs, "/f1", 8192, &[2; 4096], IoMode::Concurrent);
        assert_eq!(free(&fs), before - 4096);
        write(&fs, "/f1", 8192, &[3; 4096], IoMode::Concurrent);
        assert_eq!(free(&fs), before - 4096, "its own block is written in place");
        for (at, which) in order.into_iter().enumerate() {
            fs.remove(format!("/f{which}")).unwrap();
            let left = free(&fs);
            assert!(
                if at == 2 { left == before + BYTES } else { left <= before },
                "{order:?}: {left} after {before}"
            );
        }
        fs.unmount().unwrap();
        sound(&device);
    }
}

/// S-75: names, links, attributes, modes, owners, kinds, holes; and not what is preallocated, nor
/// what lies behind the end.
#[test]
fn s_75_a_clone_is_all_that_it_is_of() {
    let device = device(96 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let dir = fs.create_dir_all("/db/deep/er").unwrap().ino;
    let db = fs.resolve("/db").unwrap().ino;
    for i in 0..700 {
        write(&fs, &format!("/db/deep/f{i}"), 0, &[i as u8; 100], IoMode::Cached);
    }
    write(&fs, "/db/data", 3 << 20, &[7; 8192], IoMode::Concurrent);
    let file = fs.open("/db/data", &OpenOptions::read_write()).unwrap();
    file.allocate(AllocateMode::Preallocate { keep_size: true }, 8 << 20, 1 << 20).unwrap();
    fs.set_attr(
        file.ino(),
        &bedplate_fs::SetAttr {
            mode: Some(0o640),
            uid: Some(7),
            gid: Some(8),
            ..bedplate_fs::SetAttr::default()
        },
    )
    .unwrap();
    fs.set_untorn(file.ino(), Some(8192)).unwrap();
    fs.set_io_mode(file.ino(), Some(IoMode::Direct)).unwrap();
    fs.set_xattr(file.ino(), b"user.note", &[9; 3000], false, false).unwrap();
    fs.link(file.ino(), dir, b"again").unwrap();
    fs.link(fs.resolve("/db/deep/f3").unwrap().ino, db, b"zz").unwrap();
    fs.symlink(db, b"link", b"/nowhere", NewFile::default()).unwrap();
    fs.make(db, b"pipe", bedplate_fs::FileKind::Fifo, NewFile::default(), 0).unwrap();
    fs.create_checkpoint("then", &of(&["/db"])).unwrap();
    let (was, in_use) = (below(&fs, "/db"), fs.statfs().inodes);
    write(&fs, "/db/data", 0, &[1; 8192], IoMode::Concurrent);
    fs.remove("/db/deep/f5").unwrap();
    let report = fs.clone_files(&past("then", "/db"), "/copy").unwrap();
    assert!(below(&fs, "/copy") == was, "{:?}", differing(&was, &below(&fs, "/copy")));
    // Three directories, 700 files, one with data, a link and a pipe.
    assert_eq!((report.inodes, fs.statfs().inodes), (706, in_use - 1 + 706));
    let copy = fs.resolve("/copy/data").unwrap();
    assert_eq!(
        (copy.mode, copy.uid, copy.gid, copy.nlink, copy.io_mode),
        (0o640, 7, 8, 2, Some(IoMode::Direct))
    );
    assert_eq!(
        (copy.allocated_bytes, copy.size),
        (8192, (3 << 20) + 8192),
        "neither the preallocation nor a block more"
    );
    assert_eq!(copy.ino, fs.resolve("/copy/deep/er/again").unwrap().ino);
    assert_eq!(fs.resolve("/copy/zz").unwrap().ino, fs.resolve("/copy/deep/f3").unwrap().ino);
    assert_eq!(fs.untorn(copy.ino).unwrap().unwrap().bytes, 8192);
    assert_eq!(
        fs.read_link(fs.lookup(fs.resolve("/copy").unwrap().ino, b"link").unwrap().ino).unwrap(),
        b"/nowhere"
    );
    assert_eq!(
        fs.parent(fs.resolve("/copy/deep").unwrap().ino).unwrap(),
        fs.resolve("/copy").unwrap().ino
    );
    // Of the whole file system, into a directory of itself; and of a clone.
    fs.clone_files(&present("/"), "/db/all").unwrap();
    assert!(below(&fs, "/db/all/copy") == was);
    fs.clone_files(&present("/copy/data"), "/db/data2").unwrap();
    assert_eq!(fs.resolve("/db/data2").unwrap().nlink, 1);
    let names = |error: bedplate_fs::Result<bedplate_fs::CloneReport>| error.unwrap_err().kind;
    assert_eq!(names(fs.clone_files(&present("/db"), "/copy")), ErrorKind::Exists);
    assert_eq!(names(fs.clone_files(&present("/db"), "/")), ErrorKind::Exists);
    assert_eq!(names(fs.clone_files(&present("/none"), "/new")), ErrorKind::NotFound);
    assert_eq!(names(fs.clone_files(&present("/db"), "/none/new")), ErrorKind::NotFound);
    assert_eq!(names(fs.clone_files(&past("never", "/db"), "/new")), ErrorKind::NotFound);
    assert_eq!(names(fs.clone_files(&past("then", "/none"), "/new")), ErrorKind::NotFound);
    assert_eq!(
        names(fs.clone_files(&present("/db"), "/.checkpoints/then/new")),
        ErrorKind::ReadOnly
    );
    drop(file);
    let now = whole(&fs);
    fs.unmount().unwrap();
    sound(&device);
    let fs = mount_as(&device, IoMode::Concurrent);
    assert!(whole(&fs) == now);
    fs.rollback("then", &RollbackOptions { path: Some("/db".into()), force: false }).unwrap();
    assert!(below(&fs, "/db") == was && below(&fs, "/copy") == was);
    fs.unmount().unwrap();
    sound(&device);
}

/// S-76: preallocated blocks of the source stay its own: writing into them needs no space, also on
/// a volume that its clone has filled.
#[test]
fn s_76_a_clone_takes_no_preallocation_away() {
    let device = device(48 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/wal", &OpenOptions::create()).unwrap();
    file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, 1 << 20).unwrap();
    fs.clone_files(&present("/wal"), "/copy").unwrap();
    let fill = fs.open("/fill", &OpenOptions::create()).unwrap();
    let buf = AlignedBuf::zeroed(1 << 20);
    let mut at = 0;
    while fill.write_at(&buf, at).is_ok() {
        at += 1 << 20;
    }
    let copy = fs.open("/copy", &OpenOptions::read_write()).unwrap();
    assert_eq!(copy.write_at(&buf, 0).unwrap_err().kind, ErrorKind::NoSpace);
    file.write_at(&buf, 0).unwrap();
}

/// S-75: power cuts while a large clone is made and others sync: it is there whole or not at all,
/// nothing of it is left, and the volume is sound.
#[test]
fn s_75_a_crash_leaves_a_clone_whole_or_absent() {
    let simulated = SimulatedDevice::over(
        &Snapshot::empty(64 << 20),
        &SimulatedOptions { seed: 5, ..SimulatedOptions::default() },
    );
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    for i in 0..600 {
        fs.create_dir_all(format!("/db/{}", i % 7)).unwrap();
        write(
            &fs,
            &format!("/db/{}/f{i}", i % 7),
            0,
            &vec![i as u8; 4096 * (1 + i % 3)],
            IoMode::Concurrent,
        );
    }
    fs.sync().unwrap();
    let (was, inodes) = (below(&fs, "/db"), fs.statfs().inodes);
    let began = simulated.operation_count();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What is on its way becomes durable again and again.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                write(&fs, "/beside", 0, &[1; 4096], IoMode::Concurrent);
                fs.sync().unwrap();
            }
        });
        fs.clone_files(&present("/db"), "/copy").unwrap();
        ended.store(true, Ordering::Relaxed);
    });
    let returned = simulated.operation_count();
    let mut random = Random::new(9);
    for round in 0..60 {
        let after = if round == 0 {
            returned
        } else {
            began + random.below((returned - began + 1) as u64) as usize
        };
        let image: Arc<dyn BlockDevice> =
            simulated.crash_image(after, &CrashChoice::Seeded(random.next())) as _;
        sound(&image);
        let fs = mount_as(&image, IoMode::Concurrent);
        assert!(fs.checkpoints().is_empty(), "how it was made is cleaned up");
        assert!(below(&fs, "/db") == was);
        let beside = u64::from(fs.resolve("/beside").is_ok());
        match fs.resolve("/copy") {
            Ok(_) => assert!(below(&fs, "/copy") == was, "cut after {after}"),
            Err(_) => {
                assert!(after < returned, "it was durable when it had returned");
                assert_eq!(
                    fs.statfs().inodes,
                    inodes + beside,
                    "cut after {after}: nothing of it is left"
                );
            }
        }
        fs.unmount().unwrap();
        sound(&image);
    }
    assert_eq!(fs.parent(fs.resolve("/copy").unwrap().ino).unwrap(), InodeNo::ROOT);
}

/// Applies what is told to have changed to what was there.
fn brought_up(
    fs: &FileSystem,
    was: &[u8],
    path: &str,
    changes: bedplate_fs::ChangedBlocks,
    now: &[u8],
) -> Vec<u8> {
    let mut bytes = was.to_vec();
    bytes.truncate(changes.size as usize);
    bytes.resize(changes.size as usize, 0);
    assert_eq!(fs.resolve(path).unwrap().size, changes.size);
    for range in changes {
        let (from, to) = (range.offset as usize, (range.offset + range.len) as usize);
        match range.kind {
            bedplate_fs::ChangedKind::Data => bytes[from..to].copy_from_slice(&now[from..to]),
            bedplate_fs::ChangedKind::Hole => bytes[from..to].fill(0),
        }
    }
    bytes
}

pub fn content(fs: &FileSystem, path: &str) -> Vec<u8> {
    let file = fs.open(path, &OpenOptions::read_only()).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// S-77: what changed between any two moments, put over the older one, is the newer one, to the
/// byte; over random changes of all kinds, also where checkpoints in between were deleted, and
/// after a rollback.
#[test]
fn s_77_changed_blocks_make_the_one_moment_of_the_other() {
    for seed in 0..3 {
        let device = device(96 << 20, 512);
        format(&device, if seed % 2 == 0 { 4096 } else { 1024 });
        let mut random = Random::new(seed + 700);
        let mut fs = mount_as(&device, IoMode::Cached);
        fs.create_dir_all("/d").unwrap();
        let mut names: Vec<String> = Vec::new();
        for round in 0..20 {
            (0..random.below(10)).for_each(|_| change_in(&fs, &mut random, &["/d"]));
            match random.below(8) {
                0..4 => {
                    fs.create_checkpoint(format!("c{round}"), &everything()).unwrap();
                    names.push(format!("c{round}"));
                }
                4 if names.len() > 2 => fs
                    .delete_checkpoint(names.remove(random.below(names.len() as u64) as usize))
                    .unwrap(),
                5 if !names.is_empty() => {
                    names.push(
                        fs.rollback(
                            &names[random.below(names.len() as u64) as usize],
                            &RollbackOptions::default(),
                        )
                        .unwrap()
                        .undo,
                    );
                }
                6 => {
                    fs.unmount().unwrap();
                    fs = mount_as(&device, IoMode::ALL[random.below(4) as usize]);
                }
                _ => {}
            }
            for at in 0..names.len() {
                let from = &names[at];
                let to = names.get(at + 1 + random.below(3) as usize);
                let root = to.map_or("/d".to_owned(), |to| format!("/.checkpoints/{to}/d"));
                for entry in fs.read_dir(fs.resolve(&root).unwrap().ino, None, usize::MAX).unwrap()
                {
                    let path = format!("{root}/{}", entry.name.escape_ascii());
                    let changes =
                        fs.changed_blocks(entry.ino, from, to.map(String::as_bytes)).unwrap();
                    let old = fs
                        .read_dir(
                            fs.resolve(format!("/.checkpoints/{from}/d")).unwrap().ino,
                            None,
                            usize::MAX,
                        )
                        .unwrap();
                    let row = |ino: InodeNo| ino.0 & 0xffff_ffff_ffff;
                    let old = old.into_iter().find(|old| row(old.ino) == row(entry.ino));
                    assert!(changes.size_before.is_some() || old.is_none());
                    let was = match old {
                        Some(old) => content(
                            &fs,
                            &format!("/.checkpoints/{from}/d/{}", old.name.escape_ascii()),
                        ),
                        // It had no name then, but was there all the same.
                        None if changes.size_before.is_some() => continue,
                        None => Vec::new(),
                    };
                    let now = content(&fs, &path);
                    let made = brought_up(&fs, &was, &path, changes, &now);
                    assert!(
                        made == now,
                        "seed {seed}, round {round}: {path} since {from}: byte {:?}",
                        made.iter().zip(&now).position(|(a, b)| a != b)
                    );
                }
            }
        }
    }
}

/// S-77: no more is told than what was written, whatever the size of the file.
#[test]
fn s_77_only_what_was_written_is_told() {
    let device = device(96 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    write(&fs, "/f", 0, &vec![1; 16 << 20], IoMode::Concurrent);
    write(&fs, "/other", 0, &[1; 8192], IoMode::Concurrent);
    fs.create_checkpoint("a", &everything()).unwrap();
    let ino = fs.resolve("/f").unwrap().ino;
    assert_eq!(fs.changed_blocks(ino, "a", None).unwrap().count(), 0);
    for block in [3, 4, 900] {
        write(&fs, "/f", block * 4096, &[2; 4096], IoMode::Concurrent);
    }
    fs.create_checkpoint("b", &everything()).unwrap();
    let file = fs.open("/f", &OpenOptions::read_write()).unwrap();
    file.allocate(AllocateMode::PunchHole, 8192, 4096).unwrap();
    file.set_size((16 << 20) - 5000).unwrap();
    drop(file);
    let told = |from: &str, to: Option<&str>| -> Vec<_> {
        let changes = fs.changed_blocks(ino, from, to.map(str::as_bytes)).unwrap();
        changes.map(|range| (range.offset / 4096, range.len / 4096, range.kind)).collect()
    };
    use bedplate_fs::ChangedKind::{Data, Hole};
    assert_eq!(told("a", Some("b")), [(3, 2, Data), (900, 1, Data)]);
    assert_eq!(told("b", None), [(2, 1, Hole)]);
    assert_eq!(told("a", None), [(2, 1, Hole), (3, 2, Data), (900, 1, Data)]);
    assert_eq!(told("b", Some("a")), [(3, 2, Data), (900, 1, Data)], "backwards too");
    assert_eq!(fs.changed_blocks(ino, "never", None).unwrap_err().kind, ErrorKind::NotFound);
    fs.create_checkpoint("named", &of(&["/other"])).unwrap();
    assert_eq!(fs.changed_blocks(ino, "named", None).unwrap_err().kind, ErrorKind::Invalid);
}

/// S-77: names that came, went, moved, and what changed under them.
#[test]
fn s_77_a_diff_names_what_came_went_moved_and_changed() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    fs.create_dir_all("/d/e").unwrap();
    for name in [
        "/d/same",
        "/d/written",
        "/d/gone",
        "/d/e/moved",
        "/d/mode",
        "/d/replaced",
        "/d/linked",
        "/d/longer",
    ] {
        write(&fs, name, 0, &[1; 9000], IoMode::Cached);
    }
    fs.create_checkpoint("a", &everything()).unwrap();
    assert_eq!(fs.checkpoint_diff("a", None).unwrap(), []);
    write(&fs, "/d/written", 4096, &[2; 10], IoMode::Cached);
    write(&fs, "/d/longer", 9000, &[3; 1], IoMode::Cached);
    fs.remove("/d/gone").unwrap();
    fs.rename_path("/d/e", "/d/x").unwrap();
    fs.rename_path("/d/x/moved", "/moved").unwrap();
    fs.set_attr(
        fs.resolve("/d/mode").unwrap().ino,
        &bedplate_fs::SetAttr { mode: Some(0o600), ..bedplate_fs::SetAttr::default() },
    )
    .unwrap();
    fs.remove("/d/replaced").unwrap();
    write(&fs, "/d/replaced", 0, &[4; 10], IoMode::Cached);
    fs.link(fs.resolve("/d/linked").unwrap().ino, InodeNo::ROOT, b"again").unwrap();
    fs.create_dir_all("/new/deep").unwrap();
    write(&fs, "/new/deep/file", 0, &[5; 5000], IoMode::Cached);
    fs.create_checkpoint("b", &everything()).unwrap();
    fs.remove("/d/same").unwrap();
    let told: Vec<String> = fs
        .checkpoint_diff("a", Some(b"b"))
        .unwrap()
        .iter()
        .map(|difference| {
            let from = difference
                .from
                .as_ref()
                .map(|from| format!(" from {}", from.escape_ascii()))
                .unwrap_or_default();
            let marks = if difference.attributes { " attributes" } else { "" };
            format!(
                "{:?} {}{from} {}{marks}",
                difference.kind,
                difference.path.escape_ascii(),
                difference.changed_bytes
            )
        })
        .collect();
    let expected = [
        "Added /again 9000",
        "Removed /d/gone 0",
        "Changed /d/longer 4096",
        "Changed /d/mode 0 attributes",
        "Removed /d/replaced 0",
        "Added /d/replaced 10",
        "Changed /d/written 4096",
        "Renamed /d/x from /d/e 0",
        "Renamed /moved from /d/e/moved 0",
        "Added /new 0",
        "Added /new/deep 0",
        "Added /new/deep/file 5000",
    ];
    assert_eq!(told, expected);
    assert_eq!(fs.checkpoint_diff("b", None).unwrap().len(), 1);
    assert_eq!(fs.checkpoint_diff("b", Some(b"a")).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(fs.checkpoint_diff("never", None).unwrap_err().kind, ErrorKind::NotFound);
}
