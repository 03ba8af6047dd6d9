//! Names that several threads change at once (S-290).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bedplate_fs::{
    CloneSource, ErrorKind, FileKind, FileSystem, InodeNo, OpenOptions, RenameMode, Result,
};

use crate::common::{assert_sound, formatted, mount, new_file};

const THREADS: u64 = 8;
const ROUNDS: u64 = 200;

/// Ends the companions of a test's workers, also when a worker failed.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn directory(fs: &FileSystem, dir: InodeNo, name: &str) -> InodeNo {
    fs.make(dir, name.as_bytes(), FileKind::Directory, new_file(), 0).unwrap().ino
}

fn make_file(fs: &FileSystem, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
    Ok(fs.make(dir, name, FileKind::File, new_file(), 0)?.ino)
}

fn names(fs: &FileSystem, dir: InodeNo) -> Vec<Vec<u8>> {
    fs.read_dir(dir, None, usize::MAX).unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Each thread makes names in a directory of its own and moves every other one into a directory
/// that all share; it gives each file that it moves a second name, and removes it again.
#[test]
fn s_290_names_in_several_directories_change_at_once_and_none_is_lost() {
    let device = formatted();
    let fs = mount(&device);
    let shared = directory(&fs, InodeNo::ROOT, "shared");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let own = directory(fs, InodeNo::ROOT, &format!("own{thread}"));
                for round in 0..ROUNDS {
                    let name = format!("{thread}.{round}");
                    let name = name.as_bytes();
                    let file = make_file(fs, own, name).unwrap();
                    if round % 2 == 0 {
                        fs.link(file, own, b"second").unwrap();
                        fs.rename(own, name, shared, name, RenameMode::Replace).unwrap();
                        fs.unlink(own, b"second").unwrap();
                    }
                }
            });
        }
    });
    let verify = |fs: &FileSystem| {
        assert_eq!(names(fs, shared).len() as u64, THREADS * ROUNDS / 2);
        for thread in 0..THREADS {
            let own = fs.lookup(InodeNo::ROOT, format!("own{thread}").as_bytes()).unwrap().ino;
            assert_eq!(names(fs, own).len() as u64, ROUNDS / 2, "of thread {thread}");
        }
        let attr = fs.attr(shared).unwrap();
        assert_eq!(attr.nlink, 2, "no directory is in it");
        assert_eq!(u64::from(fs.attr(InodeNo::ROOT).unwrap().nlink), 3 + THREADS);
    };
    verify(&fs);
    fs.unmount().unwrap();
    assert_sound(&device);
    verify(&mount(&device));
}

/// I-NAM-1: a directory is removed as an empty one, or not at all.
#[test]
fn s_290_nothing_is_made_in_a_directory_that_goes() {
    let device = formatted();
    let fs = mount(&device);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (fs, over) = (&fs, &over);
            scope.spawn(move || {
                let name = format!("file{thread}");
                while !over.load(Ordering::Relaxed) {
                    let Ok(dir) = fs.lookup(InodeNo::ROOT, b"goes") else { continue };
                    match make_file(fs, dir.ino, name.as_bytes()) {
                        Ok(_) => fs.unlink(dir.ino, name.as_bytes()).unwrap(),
                        Err(e) => assert_eq!(e.kind, ErrorKind::NotFound, "{e}"),
                    }
                }
            });
        }
        let _finish = Finish(&over);
        let mut removed = 0;
        while removed < 20 * ROUNDS {
            directory(&fs, InodeNo::ROOT, "goes");
            loop {
                match fs.rmdir(InodeNo::ROOT, b"goes") {
                    Ok(()) => break,
                    Err(e) => assert_eq!(e.kind, ErrorKind::NotEmpty, "{e}"),
                }
            }
            removed += 1;
        }
    });
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Two files have names in two directories, and each thread replaces the one by the other in its
/// own: they lock the same two files.
#[test]
fn s_290_renames_of_the_same_files_in_two_directories_end() {
    let device = formatted();
    let fs = mount(&device);
    let files = [b"first".as_slice(), b"second"];
    let [first, second] = files.map(|name| make_file(&fs, InodeNo::ROOT, name).unwrap());
    thread::scope(|scope| {
        for thread in 0..2 {
            let fs = &fs;
            scope.spawn(move || {
                let dir = directory(fs, InodeNo::ROOT, &format!("dir{thread}"));
                let (from, to) = if thread == 0 { (first, second) } else { (second, first) };
                for round in 0..ROUNDS {
                    fs.link(from, dir, b"from").unwrap();
                    fs.link(to, dir, b"to").unwrap();
                    if round % 2 == 0 {
                        fs.rename(dir, b"from", dir, b"to", RenameMode::Exchange).unwrap();
                    }
                    fs.rename(dir, b"from", dir, b"to", RenameMode::Replace).unwrap();
                    fs.unlink(dir, b"to").unwrap();
                }
            });
        }
    });
    for ino in [first, second] {
        assert_eq!(fs.attr(ino).unwrap().nlink, 1);
    }
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Directories that move, into each other too, beside files that do.
#[test]
fn s_290_directories_move_beside_files_and_never_below_themselves() {
    let device = formatted();
    let fs = mount(&device);
    let [left, right] = ["left", "right"].map(|name| directory(&fs, InodeNo::ROOT, name));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (thread, (from, to)) in [(left, right), (right, left)].into_iter().enumerate() {
            let (fs, over) = (&fs, &over);
            scope.spawn(move || {
                let name = format!("moves{thread}");
                make_file(fs, from, name.as_bytes()).unwrap();
                while !over.load(Ordering::Relaxed) {
                    for (from, to) in [(from, to), (to, from)] {
                        fs.rename(from, name.as_bytes(), to, name.as_bytes(), RenameMode::Replace)
                            .unwrap();
                    }
                }
            });
        }
        let _finish = Finish(&over);
        thread::scope(|scope| {
            for (dir, name, into) in [(left, b"left".as_slice(), right), (right, b"right", left)] {
                let fs = &fs;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        // Refused where the other one is below this one just now.
                        let moved =
                            fs.rename(InodeNo::ROOT, name, into, b"below", RenameMode::NoReplace);
                        match moved {
                            Ok(()) => {
                                assert_eq!(fs.lookup(into, b"below").unwrap().ino, dir);
                                fs.rename(into, b"below", InodeNo::ROOT, name, RenameMode::Replace)
                                    .unwrap();
                            }
                            Err(e) => assert_eq!(e.kind, ErrorKind::Invalid, "{e}"),
                        }
                    }
                });
            }
        });
    });
    assert_eq!(fs.lookup(InodeNo::ROOT, b"left").unwrap().kind, FileKind::Directory);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-75: a clone of the present has what the path names at its moment, also where another file
/// takes that place meanwhile.
#[test]
fn s_75_a_file_that_is_replaced_all_the_time_can_be_cloned() {
    let device = formatted();
    let fs = mount(&device);
    let make = |name: &str, version: u8| {
        let file = fs.open(name, &OpenOptions::create()).unwrap();
        file.write_at(&[version; 5000], 0).unwrap();
    };
    make("/a", 0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 0_u8;
            while !over.load(Ordering::Relaxed) {
                version = version.wrapping_add(1);
                make("/new", version);
                fs.rename(InodeNo::ROOT, b"new", InodeNo::ROOT, b"a", RenameMode::Replace).unwrap();
            }
        });
        let _finish = Finish(&over);
        for number in 0..ROUNDS {
            let target = format!("/clone-{number}");
            fs.clone_files(&CloneSource::Present("/a".into()), &target).unwrap();
            let clone = fs.open(&target, &OpenOptions::read_only()).unwrap();
            let mut bytes = [0; 5001];
            assert_eq!(clone.read_at(&mut bytes, 0).unwrap(), 5000);
            assert!(bytes[..5000].iter().all(|byte| *byte == bytes[0]), "of one file");
        }
    });
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-14: a name that renames replace all the time leads to a file at every moment: by number, by
/// path, and through a symbolic link that is replaced as well. Before, the number that was read
/// could be of a file that was removed by then.
#[test]
fn s_14_a_name_that_is_replaced_all_the_time_leads_to_a_file() {
    let device = formatted();
    let fs = mount(&device);
    let root = InodeNo::ROOT;
    let replace = |from: &str, to: &str| {
        fs.rename(root, from.as_bytes(), root, to.as_bytes(), RenameMode::Replace).unwrap();
    };
    let make = || {
        make_file(&fs, root, b"new").unwrap();
        replace("new", "a");
        fs.symlink(root, b"new-way", b"a", new_file()).unwrap();
        replace("new-way", "way");
    };
    make();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                make();
            }
        });
        let _finish = Finish(&over);
        for _ in 0..20 * ROUNDS {
            assert_eq!(fs.lookup(root, b"a").unwrap().kind, FileKind::File);
            assert_eq!(fs.resolve("/a").unwrap().kind, FileKind::File);
            assert_eq!(fs.resolve("/way").unwrap().kind, FileKind::File);
            fs.open("/way", &OpenOptions::read_only()).unwrap();
        }
    });
    fs.unmount().unwrap();
    assert_sound(&device);
}
