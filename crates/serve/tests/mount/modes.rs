//! Which mode an open gets, and how one asks for it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use bedplate_serve::control::{Answer, Request};
use rustix::fs::{XattrFlags, setxattr};

use crate::harness::{Mounted, ask, errno, pattern, shell};

fn mode_of(path: &Path) -> String {
    let mut buf = [0; 64];
    let len = rustix::fs::getxattr(path, "user.bedplate.effective_mode", &mut buf).unwrap();
    String::from_utf8_lossy(&buf[..len]).into_owned()
}

fn set_mode(path: &Path, mode: &str) {
    setxattr(path, "user.bedplate.mode", mode.as_bytes(), XattrFlags::empty()).unwrap();
}

#[test]
fn s_26_the_open_goes_before_the_file_the_directory_and_the_mount() {
    for (options, mode) in [
        ("", "cached"),
        ("mode=direct", "direct"),
        ("mode=concurrent", "concurrent"),
        ("mode=concurrent+cache", "concurrent+cache"),
    ] {
        let Some(m) = Mounted::new(options) else { return };
        let plain = File::create(m.path("plain")).unwrap();
        assert_eq!(mode_of(&m.path("plain")), mode);
        fs::create_dir(m.path("d")).unwrap();
        set_mode(&m.path("d"), "concurrent+cache");
        let inherited = File::create(m.path("d/f")).unwrap();
        assert_eq!(mode_of(&m.path("d/f")), "concurrent+cache");
        drop((plain, inherited));
        set_mode(&m.path("d/f"), "direct");
        let set = File::open(m.path("d/f")).unwrap();
        assert_eq!(mode_of(&m.path("d/f")), "direct");
        drop(set);
        let asked = File::open(m.path("plain::concurrent")).unwrap();
        assert_eq!(wait_for_mode(&m.path("plain"), "concurrent"), "concurrent", "{options}");
        drop(asked);
        // The directory says nothing any more to a file that was made before.
        set_mode(&m.path("d"), "concurrent");
        let set = File::open(m.path("d/f")).unwrap();
        assert_eq!(wait_for_mode(&m.path("d/f"), "direct"), "direct", "{options}");
        drop(set);
        m.finish();
    }
}

/// A close reaches us after it returned, so an open before it may count for a moment more.
fn wait_for_mode(path: &Path, mode: &str) -> String {
    for _ in 0..1000 {
        if mode_of(path) == mode {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    mode_of(path)
}

#[test]
fn s_27_an_open_with_o_direct_never_gets_less_than_direct() {
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("f"), vec![1; 8192]).unwrap();
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    assert_eq!(wait_for_mode(&m.path("f"), "direct"), "direct");
    let mut buf = vec![0; 8192];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8192);
    assert!(buf == vec![1; 8192]);
    drop(file);
    // Whatever the file, or a suffix, says.
    for (name, mode, expected) in [
        ("f", "cached", "direct"),
        ("f", "concurrent", "concurrent"),
        ("f::cached", "concurrent", "direct"),
    ] {
        set_mode(&m.path("f"), mode);
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.path(name)).unwrap();
        assert_eq!(wait_for_mode(&m.path("f"), expected), expected, "S-27: {name} of mode {mode}");
        drop(file);
    }
    m.finish();
}

#[test]
fn s_28_a_suffix_opens_the_file_itself_in_that_mode() {
    let Some(m) = Mounted::new("") else { return };
    let made = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.path("db::concurrent"))
        .unwrap();
    made.write_all_at(b"page", 0).unwrap();
    assert_eq!(mode_of(&m.path("db")), "concurrent");
    let names: Vec<_> =
        fs::read_dir(m.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["db"]);
    assert_eq!(fs::read(m.path("db")).unwrap(), b"page");
    assert_eq!(
        m.path("db::direct").metadata().unwrap().ino(),
        m.path("db").metadata().unwrap().ino()
    );
    drop(made);
    for mode in ["cached", "direct", "concurrent", "concurrent+cache"] {
        // Twice, because the second lookup finds the kernel knowing the name.
        for _ in 0..2 {
            let opened = File::open(m.path(&format!("db::{mode}"))).unwrap();
            assert_eq!(wait_for_mode(&m.path("db"), mode), mode);
            drop(opened);
        }
    }
    assert_eq!(errno(File::open(m.path("none::concurrent"))), libc::ENOENT);
    assert_eq!(errno(File::open(m.path("db::fast"))), libc::ENOENT);
    fs::create_dir(m.path("d")).unwrap();
    assert_eq!(errno(fs::read_dir(m.path("d::direct")).map(|_| ())), libc::ENOENT);
    m.finish();
}

#[test]
fn s_28_a_name_that_really_ends_so_wins() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir(m.path("d::direct")).unwrap();
    fs::write(m.path("d::direct/f"), b"x").unwrap();
    assert_eq!(fs::read(m.path("d::direct/f::cached")).unwrap(), b"x");
    assert!(m.path("d::direct").is_dir());
    fs::remove_file(m.path("d::direct/f")).unwrap();
    fs::remove_dir(m.path("d::direct")).unwrap();
    m.finish();
}

/// A program that knows its file by a suffixed name only: makes it, renames onto it, links it,
/// removes it.
#[test]
fn names_with_a_suffix_are_moved_and_removed_like_the_file() {
    let Some(m) = Mounted::new("") else { return };
    shell(
        &m,
        "echo 1 > $M/a::direct && echo 2 > $M/b && mv $M/b $M/a::direct && test $(cat $M/a) = 2 && \
         test ! -e $M/b",
    );
    shell(
        &m,
        "ln $M/a $M/c::concurrent && test $(cat $M/c) = 2 && mv $M/c::direct $M/e && test $(cat \
         $M/e) = 2",
    );
    shell(&m, "rm $M/a::concurrent");
    // The kernel is told to forget the plain name after the answer.
    for _ in 0..1000 {
        if !m.path("a").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let names: Vec<_> =
        fs::read_dir(m.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["e"]);
    assert!(!m.path("a").exists());
    m.finish();
}

#[test]
fn s_29_the_mode_of_an_open_file_is_changed() {
    let Some(m) = Mounted::new("mode=direct") else { return };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(m.path("f"))
        .unwrap();
    for (round, mode) in
        ["concurrent", "cached", "direct", "concurrent+cache", "cached"].into_iter().enumerate()
    {
        file.write_all_at(&[round as u8; 5000], 100).unwrap();
        set_mode(&m.path("f"), mode);
        let mut buf = [0; 5000];
        file.read_exact_at(&mut buf, 100).unwrap();
        assert!(buf == [round as u8; 5000], "{mode}");
        assert_eq!(mode_of(&m.path("f")), mode);
        let mut file = File::open(m.path("f")).unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut content).unwrap();
        assert!(content[100..] == [round as u8; 5000], "{mode}");
    }
    drop(file);
    m.finish();
}

/// S-519: on a mount reads in `concurrent+cache` pass the library's cache, and nothing else does.
#[test]
fn s_519_large_reads_pass_the_cache_where_the_mount_sees_them() {
    let Some(m) = Mounted::new("direct-above=64k") else { return };
    let large = || match ask(m.root(), &Request::Info) {
        Answer::Done(told) => {
            let at = |list: &str, name: &str| told[list][name].as_u64().unwrap();
            (at("counters", "large"), at("cache", "resident_bytes"))
        }
        failed => panic!("{failed:?}"),
    };
    let content = pattern(1, 0, 1 << 20);
    for (mode, passed) in [("cached", 0), ("concurrent", 0), ("concurrent+cache", 16)] {
        let name = m.path(mode);
        fs::write(&name, b"").unwrap();
        set_mode(&name, mode);
        let file = OpenOptions::new().read(true).write(true).open(&name).unwrap();
        file.write_all_at(&content, 0).unwrap();
        file.sync_all().unwrap();
        let before = large();
        let mut buf = vec![0; 64 << 10];
        for (at, expected) in (0..).step_by(buf.len()).zip(content.chunks(64 << 10)) {
            file.read_exact_at(&mut buf, at).unwrap();
            assert!(buf == expected, "{mode}");
        }
        let after = large();
        assert_eq!(after, (before.0 + passed, before.1), "{mode}");
        // Short ones stay there.
        file.read_exact_at(&mut buf[..4096], 0).unwrap();
        assert_eq!(large().1 - after.1 > 0, passed > 0, "{mode}");
    }
    m.finish();
}
