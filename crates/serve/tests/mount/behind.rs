//! Release-behind, in the kernel's page cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{XattrFlags, setxattr};

use crate::harness::{Mounted, errno, has_program, pattern};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 48 * MIB;
/// What may be in memory while a reader goes on: twice the largest window, and what is under way.
const STREAM_BYTES_MAX: u64 = 16 * MIB;

/// Returns the bytes of a file that the kernel has in its page cache.
fn resident(path: &Path) -> u64 {
    let output =
        Command::new("fincore").args(["-b", "-n", "-r", "-o", "RES"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

/// Waits until the kernel has no more in its page cache: it is told a moment after a request.
fn falls_to(path: &Path, bytes_max: u64) -> bool {
    for _ in 0..500 {
        if resident(path) <= bytes_max {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn write(path: &Path) {
    let file = File::create(path).unwrap();
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        file.write_all_at(&pattern(3, at, MIB as usize), at).unwrap();
    }
    file.sync_data().unwrap();
}

fn read(file: &File, from: u64, to: u64) {
    let mut buf = vec![0; 64 << 10];
    for at in (from..to).step_by(buf.len()) {
        file.read_exact_at(&mut buf, at).unwrap();
        assert_eq!(buf, pattern(3, at, buf.len()), "{at}");
    }
}

#[test]
fn s_250_the_kernel_drops_pages_behind_a_sequential_reader_and_writer() {
    let options = "release-behind=both";
    let Some(m) = has_program("fincore").then(|| Mounted::new(options)).flatten() else { return };
    let (path, kept) = (m.path("f"), m.path("kept"));
    std::fs::write(&kept, b"").unwrap();
    setxattr(&kept, "user.bedplate.release_behind", b"off", XattrFlags::empty()).unwrap();
    write(&path);
    assert!(falls_to(&path, 0), "S-250: {} bytes stay after a load", resident(&path));
    let file = File::open(&path).unwrap();
    read(&file, 0, 32 * MIB);
    assert!(falls_to(&path, STREAM_BYTES_MAX), "S-250: {} bytes stay", resident(&path));
    read(&file, 32 * MIB, FILE_BYTES);
    drop(file);
    assert!(falls_to(&path, 0), "S-250: {} bytes stay after a scan", resident(&path));
    // Once more where something else on the machine has the kernel drop all pages.
    let stays = || {
        write(&kept);
        read(&File::open(&kept).unwrap(), 0, FILE_BYTES);
        resident(&kept) == FILE_BYTES
    };
    assert!((0..5).any(|_| stays()), "its own setting counts");
    m.finish();
}

#[test]
fn s_250_a_file_says_so_by_an_attribute_and_counts() {
    let Some(m) = has_program("fincore").then(|| Mounted::new("")).flatten() else { return };
    let path = m.path("f");
    write(&path);
    let set =
        |value: &[u8]| setxattr(&path, "user.bedplate.release_behind", value, XattrFlags::empty());
    assert_eq!(errno(set(b"rbr").map_err(Into::into)), libc::EINVAL);
    set(b"read\n").unwrap();
    let get = |name: &str| {
        let mut buf = vec![0; 4096];
        let len = rustix::fs::getxattr(&path, name, &mut buf[..]).map_err(std::io::Error::from)?;
        buf.truncate(len);
        std::io::Result::Ok(String::from_utf8(buf).unwrap())
    };
    assert_eq!(get("user.bedplate.release_behind").unwrap(), "read");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // What is in the page cache is read without a request.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    read(&file, 0, FILE_BYTES);
    assert!(falls_to(&path, STREAM_BYTES_MAX), "S-250: {} bytes stay", resident(&path));
    let counters: serde_json::Value =
        serde_json::from_str(&get("user.bedplate.counters").unwrap()).unwrap();
    assert!(counters["released_bytes"].as_u64().unwrap() >= 32 * MIB, "{counters}");
    rustix::fs::removexattr(&path, "user.bedplate.release_behind").unwrap();
    assert_eq!(errno(get("user.bedplate.release_behind")), libc::ENODATA);
    drop(file);
    m.finish();
}
