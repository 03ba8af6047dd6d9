//! Directories of a volume that are mounted beside it, in a mode of their own: what they show, that
//! nothing is old on either side, and how they end.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_block::MountEntry;
use bedplate_fs::IoMode;
use bedplate_serve::control::{Answer, Request};
use bedplate_serve::fuse::part_of;
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use crate::harness::{
    Mounted, ask, checkpoint, done, forced_rollback, has_program, needs_root, pattern,
};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory of a volume, mounted on a directory of its own.
pub struct Part {
    dir: TempDir,
}

impl Part {
    pub fn new(root: &Path, path: &str, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        match mount_part(root, path, dir.path(), options) {
            Answer::Done(_) => Self { dir },
            failed => panic!("{path} with '{options}': {failed:?}"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may be gone with its volume.
        let _gone = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

fn mount_part(root: &Path, path: &str, dir: &Path, options: &str) -> Answer {
    let (path, dir) = (path.into(), dir.to_owned());
    ask(root, &Request::MountPart { path, dir, options: options.to_owned() })
}

/// A volume with a directory, and this mounted beside it.
fn both(options: &str, mode: &str) -> Option<(Mounted, Part)> {
    if !needs_root() {
        return None;
    }
    let m = Mounted::new(options)?;
    std::fs::create_dir_all(m.path("data/inner")).unwrap();
    let part = Part::new(m.root(), "/data", mode);
    Some((m, part))
}

fn attribute(path: &Path, name: &str) -> String {
    let mut value = vec![0; 65536];
    let len = rustix::fs::getxattr(path, format!("user.bedplate.{name}"), &mut value[..]).unwrap();
    String::from_utf8_lossy(&value[..len]).into_owned()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// S-510: what is opened through the second directory is opened in its mode, what is opened through
/// the first as before; the list of mounts tells both; the mount ends with the last of them.
#[test]
fn s_510_a_directory_has_a_second_place_and_a_mode_of_its_own() {
    for mode in IoMode::ALL {
        let Some((m, part)) = both("mode=direct", &format!("mode={mode}")) else { return };
        let modes = |path: &Path| {
            let open = open(path);
            let modes = attribute(path, "opens");
            drop(open);
            modes
        };
        let through_part = modes(&part.path("inner/f"));
        assert!(through_part.contains(&format!("\"{mode}\"")), "S-510: {mode}: {through_part}");
        let through_first = modes(&m.path("data/inner/f"));
        assert!(through_first.contains("\"direct\""), "S-510: {through_first}");
        let entry = MountEntry::at(part.dir.path()).unwrap().expect("S-510: it is listed");
        assert_eq!(part_of(&entry.root), ("/data".into(), Some(mode)), "S-510");
        assert_eq!(attribute(part.dir.path(), "pid"), std::process::id().to_string());
        m.finish();
        assert!(MountEntry::at(part.dir.path()).unwrap().is_none(), "S-510: it ends with all");
    }
}

/// S-510: either may go first, and what is left goes on, with everything that it did.
#[test]
fn s_510_the_mount_ends_with_the_last_of_its_places() {
    let Some((m, part)) = both("", "mode=concurrent") else { return };
    let file = open(&part.path("f"));
    file.write_all_at(&pattern(1, 0, 8192), 0).unwrap();
    done(&m, &checkpoint("before"));
    file.write_all_at(&pattern(2, 0, 65536), 0).unwrap();
    rustix::mount::unmount(m.root(), UnmountFlags::empty()).unwrap();
    assert!(m.mount.is_live(), "S-510: the second place is left");
    assert_eq!(std::fs::read(part.path("f")).unwrap(), pattern(2, 0, 65536));
    // Requests, and the visits of the kernel that they need, find it there.
    let rolled = ask(part.dir.path(), &forced_rollback("before", Some("/data/f")));
    assert!(matches!(rolled, Answer::Done(_)), "{rolled:?}");
    assert_eq!(std::fs::read(part.path("f")).unwrap(), pattern(1, 0, 8192), "S-510");
    // Another place below it, and none outside of it.
    let third = Part::new(part.dir.path(), "/data/inner", "mode=concurrent,ro");
    assert_eq!(std::fs::write(third.path("x"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let aside = tempfile::tempdir().unwrap();
    let refused = mount_part(part.dir.path(), "/", aside.path(), "");
    assert!(
        matches!(&refused, Answer::Failed(kind, why) if kind == "part" && why.contains("below")),
        "S-512: {refused:?}"
    );
    drop(third);
    drop(file);
    m.finish();
}

/// What a program sees of one directory through two places. Everything is looked at through both
/// before it is changed, so that all that the kernel keeps is kept.
const SCRIPT: &str = r"
import fcntl, mmap, os, stat, sys
first, second, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
def block(n, size=16384): return bytes((n * 37 + i // 61) % 251 for i in range(size))
def look(d):
    for name in os.listdir(d):
        p = d + '/' + name
        os.stat(p)
        if os.path.isfile(p): open(p, 'rb').read()
def names(d): return sorted(os.listdir(d))
for n, (a, b) in enumerate([(first, second), (second, first)]):
    seed += 100
    f = 'f%d' % n
    open(a + '/' + f, 'wb').write(block(seed))
    look(a); look(b)
    held = open(b + '/' + f, 'r+b', buffering=0)
    assert held.read() == block(seed), 'a new file'
    w = open(a + '/' + f, 'r+b', buffering=0)
    # Overwritten, grown, cut off; open on the other side before and after.
    w.write(block(seed + 1))
    assert os.pread(held.fileno(), 16384, 0) == block(seed + 1), 'overwritten'
    assert open(b + '/' + f, 'rb').read() == block(seed + 1)
    os.pwrite(w.fileno(), b'tail', 16384)
    assert os.stat(b + '/' + f).st_size == 16388 and os.fstat(held.fileno()).st_size == 16388, 'grown'
    assert os.pread(held.fileno(), 100, 16380)[4:] == b'tail'
    os.lseek(held.fileno(), 0, os.SEEK_END); held.write(b'more')
    assert open(a + '/' + f, 'rb').read()[16384:] == b'tailmore', 'appended on the other side'
    os.truncate(b + '/' + f, 5000)
    assert os.fstat(w.fileno()).st_size == 5000 and len(open(a + '/' + f, 'rb').read()) == 5000, 'cut'
    os.ftruncate(w.fileno(), 16384)
    assert os.pread(held.fileno(), 16384, 0)[5000:] == bytes(11384), 'zeros'
    # Bytes side by side in one page, through both.
    for i in range(64):
        os.pwrite((w, held)[i % 2].fileno(), bytes([i + 1]), 8192 + i)
    assert os.pread(w.fileno(), 64, 8192) == bytes(range(1, 65)) == os.pread(held.fileno(), 64, 8192)
    # Mapped on one side, read and written on the other, and mapped on both.
    one = mmap.mmap(w.fileno(), 16384)
    one[100:104] = b'abcd'; one.flush()
    assert os.pread(held.fileno(), 4, 100) == b'abcd', 'stored through a mapping'
    two = mmap.mmap(held.fileno(), 16384)
    two[200:204] = b'efgh'
    assert one[200:204] == b'efgh', 'two mappings are one'
    two.flush()
    os.pwrite(held.fileno(), b'ijkl', 300)
    assert one[300:304] == b'ijkl', 'written below a mapping'
    one.close(); two.close()
    # One set of locks.
    fcntl.lockf(w, fcntl.LOCK_EX)
    if os.fork() == 0:
        try: fcntl.lockf(open(b + '/' + f, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: os._exit(0)
        os._exit(1)
    assert os.wait()[1] == 0, 'locked on the other side'
    w.close(); held.close()
    # Attributes, and names.
    os.chmod(a + '/' + f, 0o640); os.utime(a + '/' + f, (5, 7))
    s = os.stat(b + '/' + f); assert (stat.S_IMODE(s.st_mode), s.st_mtime) == (0o640, 7), s
    os.mkdir(a + '/d%d' % n); look(a); look(b)
    assert os.stat(a).st_nlink == os.stat(b).st_nlink, 'links of a directory'
    os.chmod(a + '/d%d' % n, 0o711); assert stat.S_IMODE(os.stat(b + '/d%d' % n).st_mode) == 0o711
    os.setxattr(a + '/d%d' % n, 'user.x', b'1'); assert os.getxattr(b + '/d%d' % n, 'user.x') == b'1'
    open(b + '/d%d/g' % n, 'w').write('g'); assert names(a + '/d%d' % n) == ['g']
    os.stat(a + '/d%d/g' % n)
    os.rename(b + '/d%d/g' % n, b + '/h%d' % n)
    assert names(a + '/d%d' % n) == [] and not os.path.exists(a + '/d%d/g' % n), 'moved away'
    assert open(a + '/h%d' % n).read() == 'g'
    os.rename(a + '/d%d' % n, a + '/e%d' % n)
    assert not os.path.exists(b + '/d%d' % n) and os.path.isdir(b + '/e%d' % n), 'a directory moved'
    os.rename(a + '/' + f, a + '/h%d' % n); assert open(b + '/h%d' % n, 'rb').read(1) == block(seed + 1)[:1]
    assert not os.path.exists(b + '/' + f), 'replaced'
    os.link(a + '/h%d' % n, a + '/l%d' % n); assert os.stat(b + '/h%d' % n).st_nlink == 2
    try: os.link(a + '/h%d' % n, b + '/m%d' % n); assert False, 'a link between two mounts'
    except OSError as e: assert e.errno == 18, e
    os.symlink('h%d' % n, b + '/s%d' % n); assert os.readlink(a + '/s%d' % n) == 'h%d' % n
    look(a); look(b)
    assert names(a) == names(b), 'listed'
    for gone in ['h%d', 'l%d', 's%d']:
        os.unlink(b + '/' + gone % n)
        assert not os.path.lexists(a + '/' + gone % n), gone
        try: open(a + '/' + gone % n); assert False
        except FileNotFoundError: pass
    os.rmdir(a + '/e%d' % n); assert not os.path.exists(b + '/e%d' % n)
    assert names(a) == names(b), 'listed at the end'
";

/// S-511: nothing that a program sees through one of them is old.
#[test]
fn s_511_what_is_changed_through_one_place_is_seen_through_the_other() {
    let modes = ["", "mode=cached", "mode=direct", "mode=concurrent", "mode=concurrent+cache"];
    for options in ["", "writeback=off", "mode=concurrent", "mode=direct,threads=1"] {
        if !has_program("python3") {
            return;
        }
        for (seed, mode) in modes.into_iter().enumerate() {
            let Some((m, part)) = both(options, mode) else { return };
            let mut command = Command::new("timeout");
            command.args(["120", "python3", "-c", SCRIPT]);
            command.arg(m.path("data")).arg(part.dir.path()).arg(seed.to_string());
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "S-511: '{options}', '{mode}': {said}");
            m.finish();
        }
    }
}

/// S-511: neither side waits for the other for ever, with one thread that serves too.
#[test]
fn s_511_names_that_change_on_both_sides_at_once_do_not_wait_for_each_other() {
    for options in ["threads=1", ""] {
        let Some((m, part)) = both(options, "mode=concurrent") else { return };
        let other = Part::new(m.root(), "/", "mode=direct");
        let places = [m.path("data"), part.dir.path().to_owned(), other.path("data")];
        let (over, began) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (place, over) = (&places[number % 3], &over);
                scope.spawn(move || {
                    for round in 0.. {
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        let name =
                            |part: &str| place.join(format!("{part}{}", (number + round) % 4));
                        // The kernel looks for a file twice before it gives up to open or make it.
                        let tolerated = |done: std::io::Result<()>| match done {
                            Err(error)
                                if error.kind() != IoErrorKind::NotFound
                                    && error.kind() != IoErrorKind::StaleNetworkFileHandle =>
                            {
                                panic!("S-511: {error}")
                            }
                            _ => {}
                        };
                        tolerated(std::fs::write(name("f"), [number as u8; 5000]));
                        tolerated(std::fs::rename(name("f"), name("inner/g")));
                        tolerated(std::fs::metadata(name("inner/g")).map(drop));
                        tolerated(std::fs::remove_file(name("inner/g")));
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(2));
            over.store(true, Ordering::SeqCst);
        });
        assert!(began.elapsed() < LIMIT, "S-511: {:?}", began.elapsed());
        let listed = |dir: &Path| {
            let mut names: Vec<_> =
                std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for inside in ["", "inner"] {
            let lists = places.each_ref().map(|place| listed(&place.join(inside)));
            assert!(lists[0] == lists[1] && lists[1] == lists[2], "S-511: {lists:?}");
        }
        m.finish();
    }
}

/// S-511: a removed file's space is free, although the kernel knew it by a name in a tree.
#[test]
fn s_511_a_file_that_was_seen_through_both_gives_its_space_back() {
    let Some((m, part)) = both("", "mode=concurrent") else { return };
    std::fs::write(m.path("data/f"), pattern(1, 0, 32 << 20)).unwrap();
    File::open(m.path("data/f")).unwrap().sync_all().unwrap();
    assert_eq!(std::fs::metadata(part.path("f")).unwrap().size(), 32 << 20);
    let free = || rustix::fs::statvfs(m.root()).unwrap().f_bfree * 4096;
    let before = free();
    std::fs::remove_file(m.path("data/f")).unwrap();
    let deadline = Instant::now() + LIMIT;
    while free() < before + (24 << 20) {
        assert!(Instant::now() < deadline, "S-511: the space of a removed file is not free");
        std::thread::sleep(Duration::from_millis(20));
    }
    m.finish();
}

/// S-512: what is no directory of the volume, and what is not a mount's alone, is refused in words.
#[test]
fn s_512_what_cannot_be_mounted_beside_is_refused_with_its_reason() {
    let Some((m, part)) = both("", "mode=concurrent") else { return };
    std::fs::write(m.path("data/file"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", m.path("data/away")).unwrap();
    std::fs::create_dir(m.path("full")).unwrap();
    std::fs::create_dir(m.path("::direct")).unwrap();
    let (aside, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(full.path().join("x"), "").unwrap();
    let inside = m.path("full");
    for (path, dir, options, said) in [
        ("/data/file", aside.path(), "", "no directory"),
        ("/data/none", aside.path(), "", "does not exist"),
        ("/data/../data", aside.path(), "", "without '..'"),
        ("/data/away", aside.path(), "", "symbolic link"),
        ("/.checkpoints", aside.path(), "", "checkpoint"),
        ("/::direct", aside.path(), "", "name of a mode"),
        ("/data", aside.path(), "mode=direct", "::direct lies on the way"),
        ("/data", full.path(), "", "not empty"),
        ("/data", &inside, "", "lies on the volume itself"),
        ("/data", part.dir.path(), "", "already has"),
        ("/data", aside.path(), "cache=1g", "one of the whole volume"),
        ("/data", aside.path(), "lease=owner", "one of the whole volume"),
        ("/data", aside.path(), "frobnicate", "unknown"),
    ] {
        match mount_part(m.root(), path, dir, options) {
            Answer::Failed(_, why) if why.contains(said) => {}
            other => panic!("S-512: {path} on {} with '{options}': {other:?}", dir.display()),
        }
    }
    assert!(MountEntry::at(aside.path()).unwrap().is_none(), "S-512: nothing is left");
    // By its name alone a tree is shown to no program.
    assert!(!m.path("::concurrent").exists() && !part.path("::cached").exists(), "S-512");
    let read_only = Part::new(m.root(), "/data", "ro");
    let refused = std::fs::write(read_only.path("y"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "S-512");
    assert_eq!(std::fs::read(read_only.path("file")).unwrap(), b"x");
    assert_eq!(std::fs::metadata(part.dir.path()).unwrap().permissions().mode() & 0o777, 0o755);
    drop(read_only);
    m.finish();
}
