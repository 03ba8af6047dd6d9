//! The data path against a model: a file is a vector of bytes, whatever mode, block size and sector
//! size it is served with.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, IoMode, OpenOptions,
};

use crate::common::assert_sound;
use crate::support::{Random, Skewed, device, format, mount_as};

const VOLUME_BYTES: u64 = 48 << 20;

struct Run {
    device: Arc<dyn BlockDevice>,
    fs: Option<FileSystem>,
    file: Option<Arc<File>>,
    /// A second open, in a mode of its own.
    other: Option<File>,
    model: Vec<u8>,
    random: Random,
    mode: IoMode,
    block: u64,
    sector: u64,
    /// Offsets stay below.
    span: u64,
    /// Whether extents are long enough to be remembered past the extent map.
    long: bool,
    /// Whether its blocks have checksums.
    summed: bool,
    trace: Vec<String>,
}

impl Run {
    fn new(mode: IoMode, block: u32, sector: u32, seed: u64) -> Self {
        let device = device(VOLUME_BYTES, sector);
        format(&device, block);
        let mut run = Self {
            device,
            fs: None,
            file: None,
            other: None,
            model: Vec::new(),
            random: Random::new(seed),
            mode,
            block: block.into(),
            sector: sector.into(),
            span: (u64::from(block) * 40).min(2 << 20),
            long: false,
            summed: false,
            trace: Vec::new(),
        };
        run.open();
        run
    }

    fn open(&mut self) {
        let fs = mount_as(&self.device, self.mode);
        self.file =
            Some(Arc::new(fs.open("/file", &OpenOptions::create()).expect("the file opens")));
        self.fs = Some(fs);
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().expect("mounted")
    }

    fn file(&self) -> &Arc<File> {
        self.file.as_ref().expect("open between operations")
    }

    /// An offset: anywhere, on a sector, on a block, or near the end of the file.
    fn offset(&mut self) -> u64 {
        let (random, size) = (&mut self.random, self.model.len() as u64);
        let at = random.below(self.span);
        match random.below(5) {
            0 => at,
            1 => at / self.sector * self.sector,
            2 | 3 => at / self.block * self.block,
            _ => (size + random.below(3 * self.sector)).saturating_sub(self.sector).min(self.span),
        }
    }

    fn len(&mut self) -> u64 {
        let random = &mut self.random;
        if self.long && random.chance(3) {
            return (64 + random.below(300)) * self.block;
        }
        match random.below(5) {
            0 => 1 + random.below(3 * self.block),
            1 => (1 + random.below(8)) * self.sector,
            2 | 3 => (1 + random.below(6)) * self.block,
            _ => 1 + random.below(700),
        }
    }

    fn skew(&mut self) -> usize {
        if self.random.chance(4) { 1 + self.random.below(600) as usize } else { 0 }
    }

    fn step(&mut self) {
        match self.random.below(25) {
            0..=8 => self.write(),
            9..=13 => self.read(),
            14 => self.set_size(),
            15 => self.allocate(AllocateMode::Preallocate {
                keep_size: self.model.len().is_multiple_of(2),
            }),
            16 => self.allocate(AllocateMode::PunchHole),
            17 => self.allocate(AllocateMode::ZeroRange {
                keep_size: self.model.len().is_multiple_of(2),
            }),
            18 => self.allocate(AllocateMode::CollapseRange),
            19 => self.allocate(AllocateMode::InsertRange),
            20 => self.append(),
            21 => self.file().sync_data().expect("a sync succeeds"),
            22 => self.seek(),
            23 => self.reopen(),
            _ => self.remount(),
        }
        assert_eq!(self.file().size(), self.model.len() as u64);
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(bytes);
    }

    fn write(&mut self) {
        let (offset, len, skew) = (self.offset(), self.len() as usize, self.skew());
        let mut data = Skewed::new(len, skew);
        self.random.fill(data.bytes());
        self.trace.push(format!("write {offset}+{len} skew {skew} size {}", self.model.len()));
        assert_eq!(self.file().write_at(data.bytes(), offset).expect("there is room"), offset);
        self.put(offset, data.bytes());
    }

    fn append(&mut self) {
        let len = self.len().min(4000) as usize;
        let mut data = Skewed::new(len, 0);
        self.random.fill(data.bytes());
        let file = self
            .fs()
            .open(
                "/file",
                &OpenOptions {
                    append: true,
                    data_sync: len.is_multiple_of(2),
                    ..OpenOptions::read_write()
                },
            )
            .expect("it opens twice");
        self.trace.push(format!("append {len} size {}", self.model.len()));
        assert_eq!(file.write_at(data.bytes(), 0).expect("there is room"), self.model.len() as u64);
        drop(file);
        self.put(self.model.len() as u64, data.bytes());
    }

    fn read(&mut self) {
        let (offset, len, skew) = (self.offset(), self.len() as usize, self.skew());
        let mut data = Skewed::new(len, skew);
        data.bytes().fill(0xaa);
        self.trace.push(format!("read {offset}+{len} skew {skew}"));
        let read = self.file().read_at(data.bytes(), offset).expect("it reads");
        let start = (offset as usize).min(self.model.len());
        let expected = &self.model[start..(start + len).min(self.model.len())];
        self.compare(&data.bytes()[..read], expected, offset);
    }

    fn compare(&self, found: &[u8], expected: &[u8], offset: u64) {
        if found != expected {
            let at = found
                .iter()
                .zip(expected)
                .position(|(a, b)| a != b)
                .unwrap_or(found.len().min(expected.len()));
            let trace = self.trace[self.trace.len().saturating_sub(30)..].join("\n");
            panic!(
                "byte {} differs ({} bytes found, {} expected); block {} sector {}\n{:?}\n{trace}",
                offset + at as u64,
                found.len(),
                expected.len(),
                self.block,
                self.sector,
                self.file().extents()
            );
        }
    }

    fn compare_all(&mut self) {
        let mut data = Skewed::new(self.model.len() + 100, 0);
        let read = self.file().read_at(data.bytes(), 0).expect("it reads");
        self.compare(&data.bytes()[..read], &self.model, 0);
    }

    fn set_size(&mut self) {
        let size = self.offset();
        self.trace.push(format!("set_size {size} from {}", self.model.len()));
        self.file().set_size(size).expect("it fits");
        self.model.resize(size as usize, 0);
    }

    fn allocate(&mut self, mode: AllocateMode) {
        let (mut offset, mut len) = (self.offset(), self.len());
        let size = self.model.len() as u64;
        let moves = matches!(mode, AllocateMode::CollapseRange | AllocateMode::InsertRange);
        if moves {
            (offset, len) = (offset / self.block * self.block, len.next_multiple_of(self.block));
        }
        self.trace.push(format!("{mode:?} {offset}+{len} size {size}"));
        let result = self.file().allocate(mode, offset, len);
        let end = offset + len;
        if (mode == AllocateMode::CollapseRange && end >= size)
            || (mode == AllocateMode::InsertRange && offset >= size)
        {
            assert_eq!(result.expect_err("there is nothing to move").kind, ErrorKind::Invalid);
            return;
        }
        result.expect("there is room");
        let inside = offset.min(size) as usize..end.min(size) as usize;
        match mode {
            AllocateMode::Preallocate { keep_size } if !keep_size => {
                self.model.resize(size.max(end) as usize, 0);
            }
            AllocateMode::Preallocate { .. } => {}
            AllocateMode::PunchHole => self.model[inside].fill(0),
            AllocateMode::ZeroRange { keep_size } => {
                self.model[inside].fill(0);
                if !keep_size {
                    self.model.resize(size.max(end) as usize, 0);
                }
            }
            AllocateMode::CollapseRange => drop(self.model.drain(inside)),
            AllocateMode::InsertRange => {
                drop(self.model.splice(offset as usize..offset as usize, vec![0; len as usize]));
            }
        }
    }

    /// SEEK_DATA never passes over a byte that is not zero (S-13), and every hole is zeros.
    fn seek(&mut self) {
        let offset = self.offset();
        let size = self.model.len() as u64;
        let next_data = self.file().seek_data(offset).expect("it seeks");
        let skipped =
            offset.min(size) as usize..next_data.unwrap_or(size).max(offset.min(size)) as usize;
        assert!(self.model[skipped].iter().all(|byte| *byte == 0), "S-13");
        let hole = self.file().seek_hole(offset).expect("it seeks");
        assert_eq!(hole.is_none(), offset >= size);
        if let Some(hole) = hole.filter(|hole| *hole < size) {
            let end = self.file().seek_data(hole).expect("it seeks").unwrap_or(size);
            assert!(
                hole >= offset
                    && self.model[hole as usize..end as usize].iter().all(|byte| *byte == 0),
                "S-13"
            );
        }
    }

    /// Opens the file once more in another mode, or closes that open: from here on the data path is
    /// another one.
    fn reopen(&mut self) {
        let mode = IoMode::ALL[self.random.below(4) as usize];
        self.trace.push(format!("reopen {mode}, was open twice: {}", self.other.is_some()));
        self.other = match self.other.take() {
            Some(_) => None,
            None => Some(
                self.fs()
                    .open("/file", &OpenOptions { mode: Some(mode), ..OpenOptions::read_write() })
                    .expect("it opens twice"),
            ),
        };
        if self.summed {
            let on = self.random.chance(2);
            self.fs().set_integrity(self.file().ino(), on).expect("a live change");
        }
        if self.random.chance(3) {
            let ino = self.file().ino();
            self.fs().set_io_mode(ino, Some(mode)).expect("a live change");
        }
    }

    /// Unmounts, or syncs and vanishes as a crash would.
    fn remount(&mut self) {
        let clean = self.random.chance(2);
        self.trace.push(format!("remount clean {clean}"));
        self.file().sync_data().expect("a sync succeeds");
        self.other = None;
        self.file = None;
        let fs = self.fs.take().expect("mounted");
        if clean {
            fs.unmount().expect("it unmounts");
            assert_sound(&self.device);
        } else {
            drop(fs);
        }
        self.open();
        assert_eq!(self.file().size(), self.model.len() as u64, "S-1");
        self.compare_all();
    }

    fn finish(mut self) {
        self.compare_all();
        self.other = None;
        self.file = None;
        let fs = self.fs.take().expect("mounted");
        fs.unmount().expect("it unmounts");
        let report = FileSystem::check_data(&self.device, None).expect("it is looked at");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let fs = mount_as(&self.device, self.mode);
        fs.remove("/file").expect("it is removed");
        fs.unmount().expect("it unmounts");
        assert_sound(&self.device);
    }
}

fn model_check(mode: IoMode, summed: bool) {
    let short = [(512, 512), (4096, 512), (4096, 4096), (16_384, 512), (65_536, 4096)];
    let all = short
        .map(|sizes| (sizes, false))
        .into_iter()
        .chain([((512, 512), true), ((4096, 512), true)]);
    for (seed, ((block, sector), long)) in (1..).zip(all) {
        let mut run = Run::new(mode, block, sector, seed);
        run.summed = summed;
        if summed {
            run.fs().set_integrity(run.file().ino(), true).expect("the format has checksums");
        }
        if long {
            (run.long, run.span) = (true, 600 * run.block);
        }
        for step in 0..350 {
            run.step();
            if step % 50 == 0 {
                run.compare_all();
            }
        }
        run.finish();
    }
}

#[test]
fn a_concurrent_file_is_a_vector_of_bytes() {
    model_check(IoMode::Concurrent, false);
}

#[test]
fn a_direct_file_is_a_vector_of_bytes() {
    model_check(IoMode::Direct, false);
}

#[test]
fn a_cached_file_is_a_vector_of_bytes() {
    model_check(IoMode::Cached, false);
}

#[test]
fn a_concurrent_file_with_cached_reads_is_a_vector_of_bytes() {
    model_check(IoMode::ConcurrentCache, false);
}

/// S-281, S-282: with checksums too, of all blocks or of some, whatever changes them in part.
#[test]
fn s_281_s_282_a_file_with_checksums_is_a_vector_of_bytes() {
    IoMode::ALL.into_iter().for_each(|mode| model_check(mode, true));
}

/// Where a long extent lies is remembered past the extent map: every change that takes its blocks
/// away is seen by the next read, which would else find what was there.
#[test]
fn what_a_file_remembers_of_its_map_ends_with_a_change() {
    const LEN: usize = 1 << 20;
    let device = device(VOLUME_BYTES, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let mut old = AlignedBuf::zeroed(LEN);
    old.fill(1);
    let changed = |name: &str, change: &dyn Fn(&File)| {
        let file = fs.open(name, &OpenOptions::create()).unwrap();
        file.write_at(&old, 0).unwrap();
        let mut page = AlignedBuf::zeroed(4096);
        file.read_at(&mut page, 0).unwrap();
        assert_eq!(page[0], 1, "{name}");
        change(&file);
        file.read_at(&mut page, 0).unwrap();
        page[0]
    };
    let punched = changed("/punched", &|file| {
        file.allocate(AllocateMode::PunchHole, 0, LEN as u64 / 2).unwrap();
    });
    let cut = changed("/cut", &|file| {
        file.set_size(0).unwrap();
        file.set_size(LEN as u64).unwrap();
    });
    let redirected = changed("/redirected", &|file| {
        fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
        let mut new = AlignedBuf::zeroed(4096);
        new.fill(2);
        file.write_at(&new, 0).unwrap();
    });
    assert_eq!((punched, cut, redirected), (0, 0, 2));
}
