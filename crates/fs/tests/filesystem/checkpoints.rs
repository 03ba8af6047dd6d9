//! Checkpoints: what they show stays, whatever happens to the files; and they give back what they
//! hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CheckpointScope, ErrorKind, FileKind, FileSystem, InodeNo,
    IoMode, MountOptions, OpenOptions,
};

use crate::rollbacks::all_back;
use crate::support::{Random, device, format, mount_as};

pub(super) const MODES: [IoMode; 4] =
    [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache];

/// Everything below a directory: path, and content of files.
pub fn tree(fs: &FileSystem, dir: InodeNo, path: &str, into: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs.read_dir(dir, None, usize::MAX).unwrap() {
        let attr = fs.attr(entry.ino).unwrap();
        let path = format!("{path}/{}", entry.name.escape_ascii());
        let attributes: Vec<_> = fs
            .list_xattr(entry.ino)
            .unwrap()
            .into_iter()
            .map(|name| (fs.get_xattr(entry.ino, &name).unwrap(), name))
            .collect();
        let head = format!("{:?} {:o} {} {attributes:?}", attr.kind, attr.mode, attr.nlink);
        let mut content = head.into_bytes();
        match attr.kind {
            FileKind::Directory => tree(fs, entry.ino, &path, into),
            FileKind::File => {
                let file = fs.open_inode(entry.ino, &OpenOptions::read_only()).unwrap();
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
                content.extend(bytes);
            }
            _ => {}
        }
        into.insert(path, content);
    }
}

pub fn whole(fs: &FileSystem) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    tree(fs, InodeNo::ROOT, "", &mut all);
    all
}

pub fn of_checkpoint(fs: &FileSystem, name: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    tree(fs, fs.resolve(format!("/.checkpoints/{name}")).unwrap().ino, "", &mut all);
    all
}

pub fn write(fs: &FileSystem, path: &str, offset: u64, bytes: &[u8], mode: IoMode) {
    let file = fs.open(path, &OpenOptions { mode: Some(mode), ..OpenOptions::create() }).unwrap();
    if mode == IoMode::Concurrent
        && offset.is_multiple_of(4096)
        && bytes.len().is_multiple_of(4096)
        && !bytes.is_empty()
    {
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        file.write_at(&buf, offset).unwrap();
    } else {
        file.write_at(bytes, offset).unwrap();
    }
}

pub fn sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

pub fn everything() -> CheckpointOptions {
    CheckpointOptions::default()
}

pub fn of(paths: &[&str]) -> CheckpointOptions {
    CheckpointOptions {
        scope: CheckpointScope::Paths(paths.iter().map(Into::into).collect()),
        ..CheckpointOptions::default()
    }
}

/// Something happens to some file.
pub(super) fn change(fs: &FileSystem, random: &mut Random) {
    change_in(fs, random, &["/d0", "/d1"]);
}

/// Something happens to some file in one of these directories.
pub fn change_in(fs: &FileSystem, random: &mut Random, dirs: &[&str]) {
    let path = |random: &mut Random| {
        format!("{}/f{}", dirs[random.below(dirs.len() as u64) as usize], random.below(4))
    };
    let (at, to) = (path(random), path(random));
    let offset = if random.chance(2) { random.below(40) * 4096 } else { random.below(160_000) };
    let len = if random.chance(2) { 4096 * (1 + random.below(4)) } else { 1 + random.below(9000) };
    match random.below(16) {
        0..9 => {
            let mut bytes = vec![0; len as usize];
            random.fill(&mut bytes);
            write(fs, &at, offset, &bytes, MODES[random.below(4) as usize]);
        }
        9 => drop(fs.remove(&at)),
        10 => drop(fs.rename_path(&at, &to)),
        11 => drop(fs.open(&at, &OpenOptions::read_write()).and_then(|file| file.set_size(offset))),
        12 => {
            let mode = [
                AllocateMode::PunchHole,
                AllocateMode::ZeroRange { keep_size: false },
                AllocateMode::Preallocate { keep_size: false },
            ];
            drop(
                fs.open(&at, &OpenOptions::read_write())
                    .and_then(|file| file.allocate(mode[random.below(3) as usize], offset, len)),
            );
        }
        13 => {
            let mode = if random.chance(2) {
                AllocateMode::CollapseRange
            } else {
                AllocateMode::InsertRange
            };
            drop(
                fs.open(&at, &OpenOptions::read_write())
                    .and_then(|file| file.allocate(mode, offset / 4096 * 4096, 8192)),
            );
        }
        14 => drop(fs.resolve(&at).and_then(|attr| {
            fs.set_xattr(attr.ino, b"user.x", &[random.below(9) as u8; 40], false, false)
        })),
        _ => drop(
            fs.resolve(&at)
                .and_then(|attr| fs.link(attr.ino, fs.resolve(dirs[0]).unwrap().ino, b"linked")),
        ),
    }
}

/// S-50, I-CKP-1, I-CKP-5, I-IO-6, I-IO-7: whatever is done to the files, and across mounts, every
/// checkpoint shows what was there; deleting any of them in any order harms no other, and in the
/// end every block is free again (S-52).
#[test]
fn s_50_s_52_checkpoints_show_what_was_and_give_everything_back() {
    for seed in 0..4 {
        let device = device(96 << 20, 512);
        format(&device, if seed % 2 == 0 { 4096 } else { 1024 });
        let mut random = Random::new(seed);
        let mut fs = mount_as(&device, IoMode::Cached);
        fs.create_dir_all("/d0").unwrap();
        fs.create_dir_all("/d1").unwrap();
        let mut expected: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for round in 0..40 {
            for _ in 0..random.below(12) {
                change(&fs, &mut random);
            }
            match random.below(4) {
                0 | 1 => {
                    let now = whole(&fs);
                    fs.create_checkpoint(format!("c{round}"), &everything()).unwrap();
                    expected.insert(format!("c{round}"), now);
                }
                2 if !expected.is_empty() => {
                    let name = expected
                        .keys()
                        .nth(random.below(expected.len() as u64) as usize)
                        .unwrap()
                        .clone();
                    fs.sync().unwrap();
                    let (space, free) =
                        (fs.checkpoint_space(&name).unwrap(), fs.statfs().free_bytes);
                    fs.delete_checkpoint(&name).unwrap();
                    assert_eq!(
                        fs.statfs().free_bytes,
                        free + space.alone_bytes,
                        "what was foretold becomes free"
                    );
                    expected.remove(&name);
                }
                _ => {
                    fs.unmount().unwrap();
                    sound(&device);
                    fs = mount_as(&device, MODES[random.below(4) as usize]);
                }
            }
            for (name, was) in &expected {
                let shown = of_checkpoint(&fs, name);
                assert!(
                    shown == *was,
                    "seed {seed}, round {round}: checkpoint {name} changed: {:?}",
                    differing(was, &shown)
                );
            }
        }
        for name in expected.keys() {
            fs.delete_checkpoint(name).unwrap();
        }
        let (now, free) = (whole(&fs), fs.statfs().free_bytes);
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, IoMode::Cached);
        assert_eq!(fs.statfs().free_bytes, free, "a rebuild finds the same free space");
        assert_eq!(whole(&fs), now);
    }
}

pub fn differing<'a>(
    a: &'a BTreeMap<String, Vec<u8>>,
    b: &'a BTreeMap<String, Vec<u8>>,
) -> Vec<(&'a String, Option<usize>)> {
    let place = |a: &Vec<u8>, b: &Vec<u8>| {
        a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()))
    };
    a.keys()
        .chain(b.keys())
        .filter(|key| a.get(*key) != b.get(*key))
        .map(|key| (key, a.get(key).zip(b.get(key)).map(|(a, b)| place(a, b))))
        .collect()
}

/// I-CKP-4, S-50: a writer that writes one file and then another never finds, in any checkpoint,
/// the second without the first, nor half a write.
#[test]
fn i_ckp_4_a_checkpoint_cuts_through_no_write() {
    let device = device(96 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    for mode in MODES {
        let open = |name: &str| {
            fs.open(
                format!("/{name} {mode}"),
                &OpenOptions { mode: Some(mode), ..OpenOptions::create() },
            )
            .unwrap()
        };
        let (first, second) = (open("first"), open("second"));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut buf = AlignedBuf::zeroed(16384);
                for round in 1..=120u8 {
                    buf.fill(round);
                    first.write_at(&buf, 0).unwrap();
                    second.write_at(&buf, 0).unwrap();
                }
            });
            for round in 0..8 {
                fs.create_checkpoint(format!("{mode} {round}"), &everything()).unwrap();
            }
            writer.join().unwrap();
        });
        for round in 0..8 {
            let read = |name: &str| {
                let mut buf = vec![0; 16384];
                let file = fs
                    .open(
                        format!("/.checkpoints/{mode} {round}/{name} {mode}"),
                        &OpenOptions::read_only(),
                    )
                    .unwrap();
                let len = file.read_at(&mut buf, 0).unwrap();
                assert!(
                    buf[..len].iter().all(|byte| *byte == buf[0]),
                    "{mode} {round}: half a write in {name}"
                );
                if len == 0 { 0 } else { buf[0] }
            };
            let (first, second) = (read("first"), read("second"));
            assert!(first == second || first == second + 1, "{mode} {round}: {first} and {second}");
        }
    }
    let names: Vec<_> = fs.checkpoints().into_iter().map(|checkpoint| checkpoint.name).collect();
    names.iter().for_each(|name| fs.delete_checkpoint(name).unwrap());
    fs.unmount().unwrap();
    sound(&device);
}

/// S-50, I-CKP-4: cached writes that are carried out for a long time, and pages that are dirty all
/// the time, cut no checkpoint: it shows each file as after one whole write, and what had returned
/// before it was begun.
#[test]
fn s_50_a_checkpoint_cuts_through_no_cached_write() {
    const LEN: usize = 2 << 20;
    let device = device(96 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    let open = |name: &str| {
        fs.open(
            format!("/{name}"),
            &OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::create() },
        )
        .unwrap()
    };
    let (first, second) = (open("first"), open("second"));
    let (returned, over) = (AtomicU8::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in (1..=250u8).take_while(|_| !over.load(SeqCst)) {
                first.write_at(&vec![round; LEN], 0).unwrap();
                second.write_at(&vec![round; LEN], 0).unwrap();
                returned.store(round, SeqCst);
            }
        });
        for name in 0..12 {
            let (name, before) = (format!("c{name}"), returned.load(SeqCst));
            fs.create_checkpoint(&name, &everything()).unwrap();
            let read = |file: &str| {
                let file = fs
                    .open(format!("/.checkpoints/{name}/{file}"), &OpenOptions::read_only())
                    .unwrap();
                let mut buf = vec![0; LEN];
                let len = file.read_at(&mut buf, 0).unwrap();
                assert!(
                    len == 0 || len == LEN && buf.iter().all(|byte| *byte == buf[0]),
                    "{name}: half a write"
                );
                if len == 0 { 0 } else { buf[0] }
            };
            let (first, second) = (read("first"), read("second"));
            assert!(
                (first == second || first == second + 1) && second >= before,
                "{name}: {first} and {second} after {before}"
            );
            fs.delete_checkpoint(&name).unwrap();
        }
        over.store(true, SeqCst);
        writer.join().unwrap();
    });
    drop((first, second));
    fs.unmount().unwrap();
    sound(&device);
}

/// S-51: nothing of a checkpoint can be changed, and no listing shows where they are.
#[test]
fn s_51_a_checkpoint_is_read_only_and_hidden() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    write(&fs, "/a", 0, b"one", IoMode::Cached);
    fs.create_dir_all("/d").unwrap();
    fs.create_checkpoint("now", &everything()).unwrap();
    assert!(!whole(&fs).keys().any(|path| path.contains(".checkpoints")));
    let (dir, root) =
        (fs.resolve("/.checkpoints").unwrap(), fs.resolve("/.checkpoints/now").unwrap());
    assert_eq!(fs.read_dir(dir.ino, None, 9).unwrap().len(), 1);
    assert!(
        fs.list_xattr(dir.ino).unwrap().is_empty() && fs.list_xattr(root.ino).unwrap().is_empty()
    );
    assert_eq!(
        (fs.parent(root.ino).unwrap(), fs.parent(dir.ino).unwrap()),
        (dir.ino, InodeNo::ROOT)
    );
    assert_eq!(fs.resolve("/.checkpoints/now/d/../a").unwrap().size, 3);
    let read_only =
        |result: bedplate_fs::Result<()>| assert_eq!(result.unwrap_err().kind, ErrorKind::ReadOnly);
    let a = fs.resolve("/.checkpoints/now/a").unwrap().ino;
    read_only(fs.open("/.checkpoints/now/a", &OpenOptions::read_write()).map(drop));
    read_only(fs.open("/.checkpoints/now/new", &OpenOptions::create()).map(drop));
    read_only(fs.remove("/.checkpoints/now/a"));
    read_only(fs.remove("/.checkpoints/now"));
    read_only(fs.rename_path("/.checkpoints/now/a", "/b"));
    read_only(fs.rename_path("/a", "/.checkpoints/now/b"));
    read_only(fs.set_xattr(a, b"user.x", b"", false, false));
    read_only(
        fs.set_attr(a, &bedplate_fs::SetAttr { size: Some(0), ..bedplate_fs::SetAttr::default() })
            .map(drop),
    );
    read_only(fs.link(a, InodeNo::ROOT, b"c").map(drop));
    assert_eq!(fs.create_dir_all("/.checkpoints").unwrap().ino, dir.ino);
    assert!(fs.remove("/.checkpoints").is_err() && fs.rename_path("/.checkpoints", "/x").is_err());
    // A file of it that is open keeps it.
    let open = fs.open("/.checkpoints/now/a", &OpenOptions::read_only()).unwrap();
    assert_eq!(fs.delete_checkpoint("now").unwrap_err().kind, ErrorKind::Busy);
    drop(open);
    fs.delete_checkpoint("now").unwrap();
    assert_eq!(fs.attr(a).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(fs.delete_checkpoint("now").unwrap_err().kind, ErrorKind::NotFound);
}

/// S-53: one of named files shows these, with what leads there, and holds nothing for others.
#[test]
fn s_53_a_checkpoint_of_named_files_is_of_these() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.create_dir_all("/db/one").unwrap();
    for path in ["/db/one/table", "/db/one/wal", "/db/other", "/log"] {
        write(&fs, path, 0, &[1; 65536], IoMode::Concurrent);
    }
    fs.create_checkpoint("set", &of(&["/db/one", "/log"])).unwrap();
    let shown: Vec<String> = of_checkpoint(&fs, "set").into_keys().collect();
    assert_eq!(shown, ["/db", "/db/one", "/db/one/table", "/db/one/wal", "/log"]);
    let (was, free) = (of_checkpoint(&fs, "set"), fs.statfs().free_bytes);
    write(&fs, "/db/other", 0, &[2; 65536], IoMode::Concurrent);
    assert_eq!(fs.checkpoint_space("set").unwrap().alone_bytes, 0);
    assert_eq!(fs.statfs().free_bytes, free, "it is written in place");
    write(&fs, "/db/one/table", 0, &[2; 65536], IoMode::Concurrent);
    write(&fs, "/db/one/new", 0, &[2; 65536], IoMode::Concurrent);
    fs.remove("/log").unwrap();
    assert_eq!(of_checkpoint(&fs, "set"), was);
    assert_eq!(fs.checkpoint_space("set").unwrap().alone_bytes, 2 * 65536);
    fs.create_checkpoint("all", &everything()).unwrap();
    fs.delete_checkpoint("set").unwrap();
    assert_eq!(fs.checkpoint_space("all").unwrap().alone_bytes, 0);
    assert_eq!(
        fs.create_checkpoint("none", &of(&["/missing"])).unwrap_err().kind,
        ErrorKind::NotFound
    );
    assert_eq!(fs.create_checkpoint("none", &of(&[])).unwrap_err().kind, ErrorKind::Invalid);
    fs.unmount().unwrap();
    sound(&device);
}

#[test]
fn names_are_what_file_names_may_be() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(matches!(
            fs.create_checkpoint(bad, &everything()).unwrap_err().kind,
            ErrorKind::Invalid | ErrorKind::NameTooLong
        ));
    }
    for odd in
        [&b" "[..], b"-rf", b"\xff\n\t", b"a::concurrent", "späte Nächte".as_bytes(), &[b'x'; 255]]
    {
        fs.create_checkpoint(odd, &everything()).unwrap();
        assert_eq!(fs.create_checkpoint(odd, &everything()).unwrap_err().kind, ErrorKind::Exists);
    }
    assert_eq!(fs.checkpoints().len(), 6);
    assert!(fs.keep_checkpoint("-rf", true).unwrap().kept);
    fs.unmount().unwrap();
    let fs = mount_as(&device, IoMode::Cached);
    assert_eq!(fs.checkpoints().iter().filter(|checkpoint| checkpoint.kept).count(), 1);
    assert!(
        fs.checkpoints().windows(2).all(|pair| pair[0].epoch < pair[1].epoch),
        "in the order they were made, whatever the clock says"
    );
}

#[test]
fn a_thousand_checkpoints_are_kept_and_the_middle_one_deleted() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    write(&fs, "/a", 0, &[0; 40960], IoMode::Concurrent);
    for i in 0..1000u32 {
        write(
            &fs,
            "/a",
            u64::from(i % 10) * 4096,
            &i.to_le_bytes().repeat(1024),
            IoMode::Concurrent,
        );
        fs.create_checkpoint(format!("c{i}"), &everything()).unwrap();
    }
    let shows = |fs: &FileSystem, i: u32| {
        let mut buf = vec![0; 4096];
        let file = fs.open(format!("/.checkpoints/c{i}/a"), &OpenOptions::read_only()).unwrap();
        file.read_at(&mut buf, u64::from(i % 10) * 4096).unwrap();
        assert_eq!(buf, i.to_le_bytes().repeat(1024));
    };
    for i in [0, 1, 499, 500, 501, 998, 999] {
        shows(&fs, i);
    }
    fs.delete_checkpoint("c500").unwrap();
    for i in [0, 499, 501, 999] {
        shows(&fs, i);
    }
    fs.unmount().unwrap();
    sound(&device);
    let fs = mount_as(&device, IoMode::Concurrent);
    assert_eq!(fs.checkpoints().len(), 999);
    shows(&fs, 499);
    fs.rollback("c250", &all_back()).unwrap();
    let file = fs.open("/a", &OpenOptions::read_only()).unwrap();
    let mut now = vec![0; 40960];
    file.read_at(&mut now, 0).unwrap();
    let expected: Vec<u8> = [250u32, 241, 242, 243, 244, 245, 246, 247, 248, 249]
        .iter()
        .flat_map(|i| i.to_le_bytes().repeat(1024))
        .collect();
    assert!(now == expected, "what the middle one showed, through the images of 748 newer ones");
    for i in [0, 249, 250, 499, 501, 999] {
        shows(&fs, i);
    }
    drop(file);
    fs.unmount().unwrap();
    sound(&device);
}

#[test]
fn a_checkpoint_is_mounted_alone() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    write(&fs, "/a", 0, &[7; 8192], IoMode::Concurrent);
    fs.create_checkpoint("then", &everything()).unwrap();
    let was = whole(&fs);
    write(&fs, "/a", 0, &[8; 8192], IoMode::Concurrent);
    write(&fs, "/b", 0, &[8; 8192], IoMode::Concurrent);
    fs.unmount().unwrap();
    let options = MountOptions { checkpoint: Some(b"then".to_vec()), ..MountOptions::default() };
    let alone = FileSystem::mount(Arc::clone(&device), None, options.clone()).unwrap();
    assert_eq!(whole(&alone), was);
    assert_eq!(alone.open("/a", &OpenOptions::read_write()).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(alone.resolve("/.checkpoints").unwrap_err().kind, ErrorKind::NotFound);
    alone.unmount().unwrap();
    let missing = MountOptions { checkpoint: Some(b"never".to_vec()), ..options };
    assert_eq!(
        FileSystem::mount(device, None, missing).map(drop).unwrap_err().kind,
        ErrorKind::NotFound
    );
}

/// S-55: on a full volume a checkpoint is refused or made; files are still removed, and deleting
/// checkpoints makes room.
#[test]
fn s_55_a_full_volume_keeps_its_checkpoints_sound() {
    let device = device(48 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    write(&fs, "/a", 0, &[1; 1 << 20], IoMode::Concurrent);
    fs.create_checkpoint("before", &everything()).unwrap();
    let was = whole(&fs);
    let fill = fs.open("/fill", &OpenOptions::create()).unwrap();
    let buf = AlignedBuf::zeroed(1 << 20);
    let mut at = 0;
    let error = loop {
        match fill.write_at(&buf, at) {
            Ok(_) => at += 1 << 20,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, ErrorKind::NoSpace);
    let file = fs.open("/a", &OpenOptions::read_write()).unwrap();
    let redirected = file.write_at(&buf, 0);
    assert_eq!(
        redirected.unwrap_err().kind,
        ErrorKind::NoSpace,
        "it needs new blocks while the checkpoint holds the old ones"
    );
    assert_eq!(of_checkpoint(&fs, "before"), was);
    drop(fill);
    fs.remove("/fill").unwrap();
    file.write_at(&buf, 0).unwrap();
    assert_eq!(of_checkpoint(&fs, "before"), was);
    drop(file);
    fs.unmount().unwrap();
    sound(&device);
}
