//! Data of files, in every mode a mount can have.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, SeekFrom as Whence, fallocate, seek};
use rustix::io::Errno;

use crate::harness::{Mounted, Random, errno, pattern};

/// Every way a mount can serve data.
pub const ALL: [&str; 6] = [
    "",
    "writeback=off",
    "mode=direct",
    "mode=direct,inode-lock=whole",
    "mode=concurrent",
    "mode=concurrent+cache",
];

/// Opens a file for reading and writing; makes it where it is not there.
pub fn open(m: &Mounted, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(m.path(name))
        .unwrap()
}

#[test]
fn what_is_written_is_read_whatever_its_alignment() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let file = open(&m, "f");
        let mut model = Vec::new();
        for (seed, (offset, len)) in [
            (0, 4096),
            (4096, 100),
            (5000, 9000),
            (1, 3),
            (100_000, 512),
            (1 << 20, 3 << 20),
            (4095, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let data = pattern(seed as u64, offset, len);
            file.write_all_at(&data, offset).unwrap();
            model.resize(model.len().max(offset as usize + len), 0);
            model[offset as usize..][..len].copy_from_slice(&data);
        }
        assert!(fs::read(m.path("f")).unwrap() == model, "{options}");
        file.sync_all().unwrap();
        drop(file);
        let m = m.again(options);
        assert!(fs::read(m.path("f")).unwrap() == model, "{options}, after a remount");
        m.finish();
    }
}

/// A run of random operations against a model in memory, as fsx does it.
#[test]
fn random_operations_agree_with_a_model() {
    for (seed, options) in ALL.into_iter().enumerate() {
        let Some(m) = Mounted::new(options) else { return };
        let exercise = Exercise::new(vec![open(&m, "f")], seed as u64 + 1);
        exercise.run(m, options, 1500);
    }
}

/// The same, with the operations spread over opens in all modes at once.
#[test]
fn s_20_random_operations_through_opens_of_all_modes_agree_with_a_model() {
    for (seed, options) in ALL.into_iter().enumerate() {
        let Some(m) = Mounted::new(options) else { return };
        let names = ["f", "f::cached", "f::direct", "f::concurrent", "f::concurrent+cache"];
        let exercise = Exercise::new(names.map(|name| open(&m, name)).into(), seed as u64 + 101);
        exercise.run(m, options, 1500);
    }
}

struct Exercise {
    files: Vec<File>,
    model: Vec<u8>,
    random: Random,
}

impl Exercise {
    const SIZE_MAX: u64 = 300_000;

    fn new(files: Vec<File>, seed: u64) -> Self {
        Self { files, model: Vec::new(), random: Random::new(seed) }
    }

    fn run(mut self, m: Mounted, options: &str, steps: usize) {
        for step in 0..steps {
            self.step(&format!("{options}, step {step}"));
        }
        self.files[0].sync_all().unwrap();
        let Self { files, model, .. } = self;
        drop(files);
        let m = m.again(options);
        assert!(fs::read(m.path("f")).unwrap() == model, "{options}, after a remount");
        m.finish();
    }

    fn file(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = self.random.below(Self::SIZE_MAX);
        let len = 1 + self.random.below((Self::SIZE_MAX - offset).min(40_000));
        // Half of all ranges are aligned.
        if self.random.below(2) == 0 {
            (offset & !4095, (len + 4095) & !4095)
        } else {
            (offset, len)
        }
    }

    fn grow(&mut self, end: u64) {
        self.model.resize(self.model.len().max(end as usize), 0);
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let end = self.model.len().min((offset + len) as usize);
        if (offset as usize) < end {
            self.model[offset as usize..end].fill(0);
        }
    }

    fn step(&mut self, what: &str) {
        let (offset, len) = self.range();
        let file = self.file();
        match self.random.below(10) {
            0..=3 => {
                let data = pattern(self.random.below(u64::MAX), offset, len as usize);
                self.files[file].write_all_at(&data, offset).unwrap();
                self.grow(offset + len);
                self.model[offset as usize..][..len as usize].copy_from_slice(&data);
            }
            4 => {
                self.files[file].set_len(offset).unwrap();
                self.model.resize(offset as usize, 0);
            }
            5 => {
                fallocate(
                    &self.files[file],
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    offset,
                    len,
                )
                .unwrap();
                self.zero(offset, len);
            }
            6 => {
                let keep_size = self.random.below(2) == 0;
                let flags =
                    if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                fallocate(&self.files[file], FallocateFlags::ZERO_RANGE | flags, offset, len)
                    .unwrap();
                self.zero(offset, len);
                if !keep_size {
                    self.grow(offset + len);
                }
            }
            7 => {
                fallocate(&self.files[file], FallocateFlags::empty(), offset, len).unwrap();
                self.grow(offset + len);
            }
            8 => self.files[file].sync_data().unwrap(),
            _ => {}
        }
        self.compare(what);
    }

    fn compare(&mut self, what: &str) {
        let file = self.file();
        assert_eq!(self.files[file].metadata().unwrap().len(), self.model.len() as u64, "{what}");
        let (offset, len) = self.range();
        let mut buf = vec![0xee; len as usize];
        let n = self.files[file].read_at(&mut buf, offset).unwrap();
        let expected = self.model.get(offset as usize..).unwrap_or_default();
        let expected = &expected[..expected.len().min(len as usize)];
        assert!(
            buf[..n] == *expected,
            "{what}: {n} bytes read at {offset}, {} expected",
            expected.len()
        );
    }
}

#[test]
fn s_32_appends_of_several_opens_follow_each_other() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let path = m.path("f");
                scope.spawn(move || {
                    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                    for _ in 0..50 {
                        file.write_all(&[thread; 100]).unwrap();
                    }
                });
            }
        });
        let content = fs::read(m.path("f")).unwrap();
        assert_eq!(content.len(), 4 * 50 * 100, "{options}");
        for piece in content.chunks(100) {
            assert!(piece.iter().all(|byte| *byte == piece[0]), "{options}");
        }
        m.finish();
    }
}

/// Several programs create one file at once and append to it. The kernel lets a look-up of one pass
/// the writes and the close of another, and would load the file with the size from before.
#[test]
fn s_32_a_file_that_several_create_and_append_to_keeps_all_of_it() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        for round in 0..300 {
            let path = m.path(&format!("f{round}"));
            std::thread::scope(|scope| {
                for thread in 0..16_u8 {
                    let path = &path;
                    scope.spawn(move || {
                        let mut file =
                            OpenOptions::new().append(true).create(true).open(path).unwrap();
                        file.write_all(&[thread; 100]).unwrap();
                    });
                }
            });
            assert_eq!(fs::metadata(&path).unwrap().len(), 16 * 100, "{options}, round {round}");
        }
        m.finish();
    }
}

#[test]
fn many_threads_write_one_file_at_once() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let file = open(&m, "f");
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let file = &file;
                scope.spawn(move || {
                    for i in 0..100 {
                        let offset = (i * 8 + thread) * 8192;
                        file.write_all_at(&pattern(7, offset, 8192), offset).unwrap();
                    }
                });
            }
        });
        assert!(fs::read(m.path("f")).unwrap() == pattern(7, 0, 800 * 8192), "{options}");
        drop(file);
        m.finish();
    }
}

#[test]
fn syncs_reach_the_device() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let mut file = open(&m, "f");
        file.write_all(b"durable").unwrap();
        for sync in [File::sync_data, File::sync_all] {
            let before = m.device.counters().flushes;
            file.write_all(b"more").unwrap();
            sync(&file).unwrap();
            assert!(m.device.counters().flushes > before, "{options}");
        }
        drop(file);
        let mut file =
            OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(m.path("f")).unwrap();
        let before = m.device.counters().flushes;
        file.write_all(b"durable at once").unwrap();
        assert!(m.device.counters().flushes > before, "{options}: O_DSYNC");
        drop(file);
        m.finish();
    }
}

/// More syncs at once than there are event threads must not keep anything else waiting.
#[test]
fn many_syncs_at_once_all_end() {
    let Some(m) = Mounted::new("mode=concurrent,threads=2") else { return };
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let path = m.path(&format!("f{thread}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                for _ in 0..10 {
                    file.write_all(&[1; 4096]).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    m.finish();
}

#[test]
fn s_13_data_and_holes_are_found_also_before_they_are_written_back() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let file = open(&m, "f");
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 5 << 20).unwrap();
        let find = |whence| seek(&file, whence);
        assert_eq!(find(Whence::Data(0)), Ok(1 << 20), "{options}");
        assert_eq!(find(Whence::Hole(1 << 20)), Ok((1 << 20) + 4096), "{options}");
        assert_eq!(find(Whence::Data((1 << 20) + 4096)), Ok(5 << 20), "{options}");
        assert_eq!(find(Whence::Data(6 << 20)), Err(Errno::NXIO), "{options}");
        assert_eq!(find(Whence::Hole(6 << 20)), Ok(6 << 20), "{options}");
        assert_eq!(find(Whence::Hole(11 << 20)), Err(Errno::NXIO), "{options}");
        drop(file);
        m.finish();
    }
}

#[test]
fn s_12_preallocated_space_reads_as_zeros() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let file = open(&m, "f");
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        assert_eq!(
            (file.metadata().unwrap().len(), file.metadata().unwrap().blocks()),
            (0, (1 << 20) / 512),
            "{options}"
        );
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert!(fs::read(m.path("f")).unwrap() == vec![0; 1 << 20]);
        // The kernel's FUSE knows neither; what it refuses never reaches us.
        assert_eq!(
            fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096),
            Err(Errno::OPNOTSUPP)
        );
        assert_eq!(fallocate(&file, FallocateFlags::INSERT_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        drop(file);
        m.finish();
    }
}

#[test]
fn ranges_are_copied_within_the_mount() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let content = pattern(3, 0, 20 << 20);
        let (source, target) = (open(&m, "source"), open(&m, "target"));
        source.write_all_at(&content, 0).unwrap();
        let (mut from, mut to) = (1000, 5);
        while from < content.len() as u64 {
            let copied = rustix::fs::copy_file_range(
                &source,
                Some(&mut from),
                &target,
                Some(&mut to),
                usize::MAX >> 1,
            )
            .unwrap();
            assert!(copied > 0, "{options}");
        }
        assert!(fs::read(m.path("target")).unwrap()[5..] == content[1000..], "{options}");
        fs::copy(m.path("source"), m.path("copy")).unwrap();
        assert!(fs::read(m.path("copy")).unwrap() == content, "{options}");
        drop((source, target));
        m.finish();
    }
}

#[test]
fn a_write_only_open_that_covers_pages_in_part_keeps_the_rest() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        fs::write(m.path("f"), pattern(1, 0, 20_000)).unwrap();
        let m = m.again(options);
        let mut file = OpenOptions::new().write(true).open(m.path("f")).unwrap();
        file.seek(SeekFrom::Start(5000)).unwrap();
        file.write_all(b"middle").unwrap();
        assert_eq!(errno(file.read(&mut [0; 1])), libc::EBADF);
        drop(file);
        let mut expected = pattern(1, 0, 20_000);
        expected[5000..5006].copy_from_slice(b"middle");
        assert!(fs::read(m.path("f")).unwrap() == expected, "{options}");
        m.finish();
    }
}

#[test]
fn a_full_volume_says_so_and_is_usable_again() {
    for options in ["mode=direct", "writeback=off"] {
        let Some(m) = Mounted::new(options) else { return };
        let mut file = File::create(m.path("f")).unwrap();
        let chunk = vec![1; 4 << 20];
        let full = loop {
            if let Err(error) = file.write_all(&chunk).and_then(|()| file.sync_data()) {
                break error;
            }
        };
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{options}");
        drop(file);
        fs::remove_file(m.path("f")).unwrap();
        // The kernel tells us of the close after it returned, and only then the blocks are free.
        let m = m.again(options);
        fs::write(m.path("g"), &chunk).unwrap();
        assert!(fs::read(m.path("g")).unwrap() == chunk);
        m.finish();
    }
}

/// S-141: the kernel hands over what is dirty before a close returns, and each close waited for a
/// write of the device.
#[test]
fn s_141_the_close_of_a_small_file_waits_for_no_device() {
    let Some(m) = Mounted::new("sync=1h") else { return };
    let before = m.device.counters();
    for number in 0..50 {
        fs::write(m.path(&format!("f{number}")), pattern(number, 0, 9000)).unwrap();
    }
    let after = m.device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (0, 0), "S-141");
    assert!(
        m.path("f7").metadata().unwrap().blocks() * 512 >= 9000,
        "the blocks that it will have are told"
    );
    // What a program appends, and another reads, while nothing has reached the device.
    let mut file = fs::OpenOptions::new().append(true).open(m.path("f7")).unwrap();
    file.write_all(&pattern(7, 9000, 100)).unwrap();
    drop(file);
    assert_eq!(fs::read(m.path("f7")).unwrap(), pattern(7, 0, 9100));
    fs::remove_file(m.path("f8")).unwrap();
    let durable = File::open(m.path("f9")).unwrap();
    durable.sync_all().unwrap();
    assert!(m.device.counters().writes > after.writes, "a sync writes");
    drop(durable);
    let m = m.again("sync=1h");
    for number in (0..50).filter(|number| ![7, 8].contains(number)) {
        assert_eq!(
            fs::read(m.path(&format!("f{number}"))).unwrap(),
            pattern(number, 0, 9000),
            "{number}"
        );
    }
    assert_eq!(fs::read(m.path("f7")).unwrap(), pattern(7, 0, 9100));
    m.finish();
}
