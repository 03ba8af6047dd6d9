//! One file open in different modes by different processes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::{Mounted, pattern};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Runs `dd` as the second process.
fn dd(arguments: &[String]) {
    let output = Command::new("dd").args(arguments).args(["bs=4096", "status=none", "conv=notrunc"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn open_cached(m: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.path("f::cached")).unwrap()
}

/// Opens of the second process: by `O_DIRECT`, and by suffix.
const DIRECT_WAYS: [(&str, &str); 3] = [("f", "direct"), ("f::concurrent", ""), ("f::direct", "direct")];

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
                let mut arguments =
                    vec![format!("if={}", source.path().display()), format!("of={}", m.path(name).display()), format!("seek={block}")];
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
                assert!(std::fs::read(target.path()).unwrap() == expected, "{options}: {name}, block {block}");
            }
        }
        drop(file);
        m.finish();
    }
}

/// A page that the kernel reads in while a direct write runs must not keep the old bytes: once a write has returned, no read that begins
/// later may see anything older.
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
                        // Drops the page, so that the next read has to bring it in again while a write runs.
                        rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed).unwrap();
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

/// Writers of both kinds on their own blocks of one file lose nothing, and sizes agree while both extend it.
#[test]
fn s_29_cached_and_direct_writers_share_a_file() {
    for options in ["", "writeback=off", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        open_cached(&m);
        std::thread::scope(|scope| {
            for (part, name, flags) in [(0_u64, "f::cached", 0), (1, "f::concurrent", 0), (2, "f", libc::O_DIRECT), (3, "f::concurrent+cache", 0)] {
                let path = m.path(name);
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
                    let mut buffer = block::AlignedBuf::zeroed(BLOCK);
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
            assert!(*piece == pattern(at as u64 % 4, (at * BLOCK) as u64, BLOCK), "{options}: block {at}");
        }
        m.finish();
    }
}
