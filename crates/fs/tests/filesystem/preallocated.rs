//! Preallocated blocks and checkpoints: what a checkpoint shows as zeros may be written in place,
//! so preallocation keeps its promise on a full volume.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, QueueOptions};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, IoMode, OpenOptions, Queue,
    QueueCompletion, Reason, RollbackOptions,
};

use crate::support::{Random, device, format, mount_as};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;

struct Bed {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    file: Arc<File>,
}

impl Bed {
    /// A file of preallocated blocks, of which none is written.
    fn new() -> Self {
        let device = device(48 << 20, 512);
        format(&device, BLOCK as u32);
        let fs = mount_as(&device, IoMode::Concurrent);
        let file = Arc::new(fs.open("/file", &OpenOptions::create()).unwrap());
        file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, BLOCKS * BLOCK as u64)
            .unwrap();
        Self { device, fs, file }
    }

    fn checkpoint(&self, name: &str) {
        self.fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
    }

    fn remount(self) -> Self {
        let Self { device, fs, file } = self;
        drop(file);
        fs.unmount().unwrap();
        let found = FileSystem::check(&device, None, false).unwrap();
        assert!(found.findings.is_empty(), "{:?}", found.findings);
        let fs = mount_as(&device, IoMode::Concurrent);
        let file = Arc::new(fs.open("/file", &OpenOptions::read_write()).unwrap());
        Self { device, fs, file }
    }

    /// Leaves data not a single block.
    fn fill_up(&self) {
        let fill =
            self.fs.open("/fill", &OpenOptions { append: true, ..OpenOptions::create() }).unwrap();
        for bytes in [1 << 20, BLOCK] {
            let buf = AlignedBuf::zeroed(bytes);
            let error =
                std::iter::repeat_with(|| fill.write_at(&buf, 0)).find_map(Result::err).unwrap();
            assert_eq!(error.kind, ErrorKind::NoSpace);
        }
    }

    /// Writes blocks, by calls and by a queue.
    fn write(&self, blocks: &[u64], value: u8) {
        let mut queue = Queue::new(&self.fs, &QueueOptions::default()).unwrap();
        let (mut buf, mut done) = (AlignedBuf::zeroed(BLOCK), Vec::<QueueCompletion>::new());
        buf.fill(value);
        for (i, block) in blocks.iter().enumerate() {
            if i % 2 == 0 {
                self.file.write_at(&buf, block * BLOCK as u64).unwrap_or_else(|error| {
                    panic!("block {block}, {i} of {}: {error}", blocks.len())
                });
            } else {
                queue
                    .write(&self.file, AlignedBuf::from_slice(&buf), block * BLOCK as u64, *block)
                    .unwrap();
                queue.complete(1, &mut done).unwrap();
                done.drain(..).for_each(|done| {
                    assert!(done.result.is_ok(), "block {block}: {:?}", done.result);
                });
            }
        }
    }

    fn content(&self, path: &str) -> Vec<u8> {
        let file = self.fs.open(path, &OpenOptions::read_only()).unwrap();
        let mut all = AlignedBuf::zeroed(BLOCKS as usize * BLOCK);
        assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
        all.chunks(BLOCK)
            .map(|block| block.iter().copied().reduce(|a, b| if a == b { a } else { 255 }).unwrap())
            .collect()
    }

    fn redirected(&self) -> u64 {
        self.file.counters().reason(Reason::Shared)
    }
}

fn shuffled(random: &mut Random) -> Vec<u64> {
    let mut order: Vec<u64> = (0..BLOCKS).collect();
    (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
    order
}

/// S-12, S-55: only the first write into a preallocated extent went in place after a checkpoint; on
/// a full volume all further ones failed.
#[test]
fn s_55_all_preallocated_blocks_are_written_in_place_after_a_checkpoint() {
    let order = shuffled(&mut Random::new(1));
    let [first, second, third, fourth] = std::array::from_fn(|i| &order[i * 256..(i + 1) * 256]);
    let mut bed = Bed::new();
    bed.checkpoint("c1");
    bed.write(first, 1);
    bed.checkpoint("c2");
    bed.fill_up();
    bed.write(second, 2);
    bed = bed.remount();
    bed.write(third, 3);
    assert_eq!(bed.redirected(), 0);
    // A full volume refuses checkpoints.
    bed.fs.remove("/fill").unwrap();
    bed.checkpoint("c3");
    bed.fill_up();
    bed.write(fourth, 4);
    assert_eq!(bed.redirected(), 0);
    // What was written before the newest checkpoint that holds it needs new blocks.
    let error = bed.file.write_at(&AlignedBuf::zeroed(BLOCK), first[0] * BLOCK as u64).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    let shows = |path: &str, parts: &[&[u64]]| {
        let mut expected = vec![0; BLOCKS as usize];
        parts.iter().zip(1..).for_each(|(part, value)| {
            part.iter().for_each(|block| expected[*block as usize] = value);
        });
        assert_eq!(bed.content(path), expected, "{path}");
    };
    shows("/.checkpoints/c1/file", &[]);
    shows("/.checkpoints/c2/file", &[first]);
    shows("/.checkpoints/c3/file", &[first, second, third]);
    shows("/file", &[first, second, third, fourth]);
    bed.remount();
}

/// S-55: a rollback makes the blocks unwritten again. They are written in place as soon as no
/// checkpoint shows data in them, and not before.
#[test]
fn s_55_rolled_back_to_unwritten_they_are_written_in_place_again() {
    let order = shuffled(&mut Random::new(2));
    let bed = Bed::new();
    bed.checkpoint("empty");
    bed.write(&order, 1);
    let undo = bed.fs.rollback("empty", &RollbackOptions { path: None, force: true }).unwrap().undo;
    assert!(bed.content("/file").iter().all(|byte| *byte == 0));
    bed.write(&order[..8], 2);
    assert_eq!(bed.redirected(), 8, "the checkpoint of the moment before shows data there");
    assert!(bed.content(&format!("/.checkpoints/{undo}/file")).iter().all(|byte| *byte == 1));
    bed.fs.delete_checkpoint(&undo).unwrap();
    bed.fs.sync().unwrap();
    bed.fill_up();
    bed.write(&order[8..], 3);
    assert_eq!(bed.redirected(), 8);
    assert!(bed.content("/.checkpoints/empty/file").iter().all(|byte| *byte == 0));
    bed.remount();
}

/// S-76: of blocks that two clones share and both zeroed, each writes to blocks of its own.
#[test]
fn s_76_zeroed_blocks_of_clones_are_not_written_by_both() {
    let bed = Bed::new();
    bed.write(&(0..BLOCKS).collect::<Vec<_>>(), 9);
    bed.fs.clone_files(&bedplate_fs::CloneSource::Present("/file".into()), "/twin").unwrap();
    let twin = bed.fs.open("/twin", &OpenOptions::read_write()).unwrap();
    let zero = AllocateMode::ZeroRange { keep_size: true };
    for file in [&bed.file, &twin] {
        file.allocate(zero, 0, BLOCKS * BLOCK as u64).unwrap();
    }
    let mut buf = AlignedBuf::zeroed(BLOCK);
    for block in 0..BLOCKS {
        for (file, value) in [(&*bed.file, 1), (&twin, 2)] {
            buf.fill(value);
            file.write_at(&buf, block * BLOCK as u64).unwrap();
        }
    }
    drop(twin);
    assert!(bed.content("/file").iter().all(|byte| *byte == 1));
    assert!(bed.content("/twin").iter().all(|byte| *byte == 2));
    bed.remount();
}
