//! Names that are absent: the kernel asks once, and sees each of them as soon as it is made.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;

use bedplate_serve::control::Request;

use crate::harness::{Mounted, checkpoint, done, forced_rollback};
use crate::parts::Part;
use crate::saturation::report;

/// Looks a name up that is absent, so that the kernel remembers that.
fn is_absent(m: &Mounted, name: &str) {
    for _ in 0..2 {
        assert!(!m.path(name).exists(), "S-540: {name} is absent");
    }
}

/// Tells whether the kernel can be told at any time to ask again (Linux 6.16).
fn kernel_has_epochs() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let has = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    if !has {
        println!("skipped: Linux {release} cannot be told that all names are old");
    }
    has
}

#[test]
fn s_540_what_is_absent_is_asked_for_once() {
    let Some(m) = Mounted::new("").filter(|_| kernel_has_epochs()) else { return };
    fs::create_dir(m.path("d")).unwrap();
    is_absent(&m, "d/none");
    let before = report(&m).total.requests;
    (0..1000).for_each(|_| is_absent(&m, "d/none"));
    let asked = report(&m).total.requests - before;
    assert!(asked < 100, "S-540: {asked} requests for 2,000 looks");
    m.finish();
}

/// S-540: whatever makes a name, the next look finds it.
#[test]
fn s_540_what_was_absent_is_found_when_it_is_made() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("file"), b"content").unwrap();
    done(&m, &checkpoint("c"));
    let made = |name: &str, make: &dyn Fn(&str)| {
        is_absent(&m, name);
        make(name);
        assert!(m.path(name).exists(), "S-540: {name} was made");
    };
    made("d/new", &|name| _ = File::create_new(m.path(name)).unwrap());
    made("d/opened", &|name| {
        _ = OpenOptions::new().write(true).create(true).truncate(false).open(m.path(name)).unwrap();
    });
    made("d/made", &|name| fs::create_dir(m.path(name)).unwrap());
    made("d/soft", &|name| symlink("new", m.path(name)).unwrap());
    made("d/hard", &|name| fs::hard_link(m.path("d/new"), m.path(name)).unwrap());
    made("d/moved", &|name| fs::rename(m.path("d/opened"), m.path(name)).unwrap());
    is_absent(&m, "d/opened");
    made("d/opened", &|name| fs::write(m.path(name), b"again").unwrap());
    // By names that ask for a mode.
    let with_mode = |name: &str| m.path(&format!("{name}::concurrent"));
    made("d/asked", &|name| fs::write(with_mode(name), b"").unwrap());
    made("d/linked", &|name| fs::hard_link(m.path("d/new"), with_mode(name)).unwrap());
    made("d/renamed", &|name| fs::rename(m.path("d/asked"), with_mode(name)).unwrap());
    is_absent(&m, "d/asked");
    // By the daemon.
    made("d/clone", &|name| {
        let (path, target) = ("/file".into(), format!("/{name}").into());
        done(&m, &Request::Clone { checkpoint: Some(b"c".to_vec()), path, target });
    });
    fs::remove_file(m.path("file")).unwrap();
    made("file", &|_| done(&m, &forced_rollback("c", Some("/file"))));
    m.finish();
}

/// S-540: rollbacks of a whole volume bring names back, also below directories.
#[test]
fn s_540_what_was_absent_comes_back_with_a_rollback() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir_all(m.path("a/b")).unwrap();
    fs::write(m.path("a/b/file"), b"content").unwrap();
    done(&m, &checkpoint("c"));
    fs::remove_file(m.path("a/b/file")).unwrap();
    is_absent(&m, "a/b/file");
    done(&m, &forced_rollback("c", None));
    assert_eq!(fs::read(m.path("a/b/file")).unwrap(), b"content", "S-540");
    m.finish();
}

/// S-540: what was absent before a directory had a second place is found when it is made there.
#[test]
fn s_540_what_is_made_in_another_place_of_a_directory_is_found() {
    if !crate::harness::needs_root() {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir_all(m.path("data/inner")).unwrap();
    is_absent(&m, "data/inner/one");
    let part = Part::new(m.root(), "/data", "mode=concurrent");
    for name in ["inner/one", "inner/two"] {
        is_absent(&m, "data/inner/two");
        fs::write(part.path(name), b"").unwrap();
        assert!(m.path("data").join(OsStr::new(name)).exists(), "S-540: {name}");
        is_absent(&m, "data/inner/three");
    }
    m.finish();
}
