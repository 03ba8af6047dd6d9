//! One file open in different modes by different processes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::{Mounted, has_program, pattern};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Runs `dd` as the second process.
fn dd(arguments: &[String]) {
    let output = Command::new("dd")
        .args(arguments)
        .args(["bs=4096", "status=none", "conv=notrunc"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn open_cached(m: &Mounted) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(m.path("f::cached"))
        .unwrap()
}

/// Opens of the second process: by `O_DIRECT`, and by suffix.
const DIRECT_WAYS: [(&str, &str); 3] =
    [("f", "direct"), ("f::concurrent", ""), ("f::direct", "direct")];

#[test]
fn s_20_a_cached_open_sees_what_another_process_writes_directly() {
    for options in ["", "writeback=off", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        let file = open_cached(&m);
        file.write_all_at(&pattern(0, 0, BLOCK * BLOCKS as usize), 0).unwrap();
        let source = tempfile::NamedTempFile::new().unwrap();
        for (round, (name, flag)) in DIRECT_WAYS.into_iter().enumerate() {
            for block in [0, 7, BLOCKS - 1] {
                let (offset, mut seen) = (block * BLOCK as u64, vec![0; BLOCK]);
                file.read_exact_at(&mut seen, offset).unwrap();
                let expected = pattern(100 + round as u64, offset, BLOCK);
                std::fs::write(source.path(), &expected).unwrap();
                let mut arguments = vec![
                    format!("if={}", source.path().display()),
                    format!("of={}", m.path(name).display()),
                    format!("seek={block}"),
                ];
                arguments.extend((!flag.is_empty()).then(|| format!("oflag={flag}")));
                dd(&arguments);
                file.read_exact_at(&mut seen, offset).unwrap();
                assert!(seen == expected, "{options}: {name}, block {block}");
            }
        }
        drop(file);
        m.finish();
    }
}

#[test]
fn s_20_another_process_reads_directly_what_a_cached_open_just_wrote() {
    for options in ["", "writeback=off", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        let file = open_cached(&m);
        file.set_len(BLOCK as u64 * BLOCKS).unwrap();
        let target = tempfile::NamedTempFile::new().unwrap();
        for (round, (name, flag)) in DIRECT_WAYS.into_iter().enumerate() {
            for block in [0, 7, BLOCKS - 1] {
                let expected = pattern(round as u64, block, BLOCK);
                file.write_all_at(&expected, block * BLOCK as u64).unwrap();
                let mut arguments = vec![
                    format!("if={}", m.path(name).display()),
                    format!("of={}", target.path().display()),
                    format!("skip={block}"),
                    "count=1".to_string(),
                ];
                arguments.extend((!flag.is_empty()).then(|| format!("iflag={flag}")));
                dd(&arguments);
                assert!(
                    std::fs::read(target.path()).unwrap() == expected,
                    "{options}: {name}, block {block}"
                );
            }
        }
        drop(file);
        m.finish();
    }
}

/// A page that the kernel reads in while a direct write runs must not keep the old bytes: once a
/// write has returned, no read that begins later may see anything older.
#[test]
fn s_30_no_cached_read_goes_back_behind_a_direct_write() {
    for options in ["", "writeback=off"] {
        let Some(m) = Mounted::new(options) else { return };
        let cached = open_cached(&m);
        cached.write_all_at(&[0; BLOCK], 0).unwrap();
        let direct = OpenOptions::new().write(true).open(m.path("f::concurrent")).unwrap();
        let (written, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        let least = written.load(Ordering::Acquire);
                        let mut page = [0; BLOCK];
                        cached.read_exact_at(&mut page, 0).unwrap();
                        let seen = u64::from_le_bytes(page[..8].try_into().unwrap());
                        if seen < least {
                            done.store(true, Ordering::Release);
                            panic!("{options}: {seen} was read after {least} had been written");
                        }
                        // Drops the page, so that the next read has to bring it in again while a
                        // write runs.
                        rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed)
                            .unwrap();
                    }
                });
            }
            for number in 1..2000_u64 {
                if done.load(Ordering::Acquire) {
                    break;
                }
                let mut page = [0; BLOCK];
                page[..8].copy_from_slice(&number.to_le_bytes());
                direct.write_all_at(&page, 0).unwrap();
                written.store(number, Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        drop((cached, direct));
        m.finish();
    }
}

/// Writes a number into a file by asynchronous direct I/O, again and again, and reads it through a
/// new open once it is written.
const ASYNCHRONOUS: &str = r#"
import ctypes, mmap, os, platform, struct, sys
io_setup, io_destroy, io_submit, io_getevents = {"x86_64": (206, 207, 209, 208)}.get(platform.machine(), (0, 1, 2, 4))
libc = ctypes.CDLL(None, use_errno=True)
path, rounds = sys.argv[1], int(sys.argv[2])
def call(*arguments):
    done = libc.syscall(*arguments)
    if done < 0:
        sys.exit("system call %d: %s" % (arguments[0], os.strerror(ctypes.get_errno())))
    return done
def read():
    fd = os.open(path, os.O_RDONLY)
    page = os.pread(fd, 4096, 0)
    os.close(fd)
    return struct.unpack_from("<Q", page)[0]
context = ctypes.c_ulong(0)
call(io_setup, 8, ctypes.byref(context))
page = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
events = ctypes.create_string_buffer(32)
for number in range(1, rounds):
    struct.pack_into("<Q", page, 0, number)
    block = ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", 0, 0, 0, 1, 0, fd, address, 4096, 0, 0, 0, 0), 64)
    call(io_submit, context, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(block))))
    call(io_getevents, context, 1, 1, events, None)
    if struct.unpack_from("<q", events, 16)[0] != 4096:
        sys.exit("the write failed")
    seen = read()
    if seen != number:
        sys.exit("%d was read after %d had been written" % (seen, number))
# The end of a process does not wait for the system to let go of the file.
call(io_destroy, context)
os.close(fd)
"#;

/// A reader opened a file, read a page of it and closed it between the moment in which the kernel
/// dropped the pages of an asynchronous direct write's range and the end of that write: the page it
/// left kept the old bytes, for every open after it.
#[test]
fn s_20_an_open_after_an_asynchronous_direct_write_sees_it() {
    for options in ["", "writeback=off"] {
        let Some(m) = Mounted::new(options).filter(|_| has_program("python3")) else { return };
        std::fs::write(m.path("f"), [0; BLOCK]).unwrap();
        let done = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        File::open(m.path("f")).unwrap().read_exact_at(&mut [0; BLOCK], 0).unwrap();
                    }
                });
            }
            let path = m.path("f");
            let output =
                Command::new("python3").args(["-c", ASYNCHRONOUS]).arg(path).arg("1000").output();
            done.store(true, Ordering::Release);
            output.unwrap()
        });
        assert!(
            output.status.success(),
            "S-20: {options}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        m.finish();
    }
}

/// Writers of both kinds on their own blocks of one file lose nothing, and sizes agree while both
/// extend it.
#[test]
fn s_29_cached_and_direct_writers_share_a_file() {
    for options in ["", "writeback=off", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        open_cached(&m);
        std::thread::scope(|scope| {
            for (part, name, flags) in [
                (0_u64, "f::cached", 0),
                (1, "f::concurrent", 0),
                (2, "f", libc::O_DIRECT),
                (3, "f::concurrent+cache", 0),
            ] {
                let path = m.path(name);
                scope.spawn(move || {
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .custom_flags(flags)
                        .open(path)
                        .unwrap();
                    let mut buffer = bedplate_block::AlignedBuf::zeroed(BLOCK);
                    for i in 0..BLOCKS {
                        let offset = (i * 4 + part) * BLOCK as u64;
                        buffer.copy_from_slice(&pattern(part, offset, BLOCK));
                        file.write_all_at(&buffer, offset).unwrap();
                    }
                });
            }
        });
        let content = std::fs::read(m.path("f")).unwrap();
        assert_eq!(content.len(), 4 * BLOCK * BLOCKS as usize, "{options}");
        for (at, piece) in content.chunks(BLOCK).enumerate() {
            assert!(
                *piece == pattern(at as u64 % 4, (at * BLOCK) as u64, BLOCK),
                "{options}: block {at}"
            );
        }
        m.finish();
    }
}
