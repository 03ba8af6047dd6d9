//! Copies of ranges: files that share blocks and know nothing of each other.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::{
    AllocateMode, CloneSource, ErrorKind, File, FileSystem, InodeNo, IoMode, OpenOptions,
};

use crate::checkpoints::{everything, sound};
use crate::support::{Random, device, format, mount_as};

const BLOCK: u64 = 4096;

fn volume(mode: IoMode) -> (Arc<dyn BlockDevice>, FileSystem) {
    let device = device(96 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, mode);
    (device, fs)
}

fn random(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Random::new(seed).fill(&mut bytes);
    bytes
}

fn created(fs: &FileSystem, path: &str) -> File {
    fs.open(path, &OpenOptions::create()).unwrap()
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Bytes in use on the volume, without what is on its way to be free: a trim waits for that.
fn used(fs: &FileSystem) -> u64 {
    fs.trim(0, u64::MAX).unwrap();
    let all = fs.statfs();
    all.total_bytes - all.free_bytes
}

/// Where the blocks lie, one by one.
fn places(file: &File) -> Vec<(u64, u64)> {
    let extents = file.extents().unwrap();
    let blocks = |extent: &bedplate_fs::ExtentInfo| {
        let (at, on) = (extent.file_offset / BLOCK, extent.volume_offset / BLOCK);
        (0..extent.len / BLOCK).map(move |block| (at + block, on + block)).collect::<Vec<_>>()
    };
    extents.iter().flat_map(blocks).collect()
}

/// S-531: the copy of a file takes no blocks, has its holes and its end, and its bytes, in every
/// mode, also of what is still in memory.
#[test]
fn s_531_whole_blocks_are_shared_and_holes_stay() {
    for mode in IoMode::ALL {
        let (device, fs) = volume(mode);
        let source = created(&fs, "/f");
        source.write_at(&random(1, 4 << 20), 0).unwrap();
        source.write_at(&random(2, 100_001), 6 << 20).unwrap();
        source.allocate(AllocateMode::Preallocate { keep_size: true }, 5 << 20, 1 << 16).unwrap();
        let all = content(&source);
        let before = used(&fs);
        let target = created(&fs, "/g");
        assert_eq!(source.copy_range(0, &target, 0, u64::MAX >> 1).unwrap(), all.len() as u64);
        assert!(content(&target) == all, "{mode}");
        assert!(used(&fs) - before < 64 << 10, "{mode}: {} more", used(&fs) - before);
        let data: Vec<_> =
            source.extents().unwrap().into_iter().filter(|extent| !extent.unwritten).collect();
        let theirs = target.extents().unwrap();
        let of = |extents: &[bedplate_fs::ExtentInfo]| {
            extents.iter().map(|it| (it.file_offset, it.volume_offset, it.len)).collect::<Vec<_>>()
        };
        assert_eq!(of(&data), of(&theirs), "{mode}");
        assert_eq!(target.seek_hole(0).unwrap(), Some(4 << 20), "{mode}");
        // A part, to another place, over what is there.
        let step = source.copy_step(8 * BLOCK, &target, 6 << 20, 4 * BLOCK).unwrap();
        assert!(step.bytes == 4 * BLOCK, "{mode}");
        let mut expected = all;
        expected.copy_within(8 * BLOCK as usize..12 * BLOCK as usize, 6 << 20);
        assert!(content(&target) == expected, "{mode}");
        drop((source, target));
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, mode);
        assert!(content(&fs.open("/g", &OpenOptions::read_only()).unwrap()) == expected);
    }
}

/// S-533: what cannot be shared is copied: to another place in a block, within one file, to a file
/// that a checkpoint has or that shares blocks with others, and what has no checksums to a file
/// whose blocks have them.
#[test]
fn s_533_what_cannot_be_shared_is_copied() {
    let (device, fs) = volume(IoMode::Concurrent);
    let source = created(&fs, "/f");
    let all = random(3, 64 * BLOCK + 100);
    source.write_at(&all, 0).unwrap();
    let moved = |target: &File, from: u64, to: u64, len: u64| {
        let step = source.copy_step(from, target, to, len).unwrap();
        assert!(step.bytes > 0 && !step.shared, "{step:?}");
        assert_eq!(source.copy_range(from, target, to, len).unwrap(), len);
        let found = content(target);
        assert!(
            found[to as usize..(to + len) as usize] == all[from as usize..(from + len) as usize]
        );
    };
    let odd = created(&fs, "/odd");
    moved(&odd, 0, 100, 8 * BLOCK);
    moved(&odd, 100, 0, 8 * BLOCK);
    moved(&odd, 100, 100, 200);
    moved(&source, 0, 100 * BLOCK, 4 * BLOCK);
    source.set_size(all.len() as u64).unwrap();

    let held = created(&fs, "/held");
    held.write_at(&[1; 5000], 0).unwrap();
    fs.create_checkpoint("c", &everything()).unwrap();
    moved(&held, 0, 0, 8 * BLOCK);
    fs.delete_checkpoint("c").unwrap();

    let cloned = created(&fs, "/cloned");
    cloned.write_at(&random(4, 8 * BLOCK), 0).unwrap();
    fs.clone_files(&CloneSource::Present("/cloned".into()), "/clone").unwrap();
    moved(&cloned, 0, 0, 4 * BLOCK);

    let summed = created(&fs, "/summed");
    fs.set_integrity(summed.ino(), true).unwrap();
    moved(&summed, 0, 0, 8 * BLOCK);
    assert_eq!(fs.summed_bytes(summed.ino()).unwrap(), 8 * BLOCK);

    // The same blocks once more, to another place.
    let twice = created(&fs, "/twice");
    assert!(source.copy_step(0, &twice, 0, 8 * BLOCK).unwrap().shared);
    assert!(source.copy_step(0, &twice, 0, 8 * BLOCK).unwrap().shared, "over themselves");
    moved(&twice, 0, 32 * BLOCK, 8 * BLOCK);
    let step = source.copy_step(4 * BLOCK, &twice, 0, 8 * BLOCK).unwrap();
    assert!(step.shared, "in the range itself they are replaced: {step:?}");

    let kind = |from, target: &File, to, len| {
        source.copy_range(from, target, to, len).map_err(|error| error.kind)
    };
    assert_eq!(kind(0, &source, BLOCK, 2 * BLOCK), Err(ErrorKind::Invalid));
    let append = OpenOptions { append: true, ..OpenOptions::create() };
    let appends = fs.open("/append", &append).unwrap();
    assert_eq!(kind(0, &appends, 0, BLOCK), Err(ErrorKind::Invalid));
    let read_only = fs.open("/odd", &OpenOptions::read_only()).unwrap();
    assert_eq!(kind(0, &read_only, 0, BLOCK), Err(ErrorKind::NotPermitted));
    assert_eq!(kind(all.len() as u64, &odd, 0, BLOCK), Ok(0));
    assert_eq!(kind(all.len() as u64 - 30, &odd, 0, BLOCK), Ok(30));
    drop((source, odd, held, cloned, summed, twice, appends, read_only));
    fs.unmount().unwrap();
    sound(&device);
}

/// Three files against a model of bytes.
struct Bench {
    fs: FileSystem,
    files: Vec<File>,
    models: Vec<Vec<u8>>,
    dice: Random,
}

impl Bench {
    fn open(fs: FileSystem, models: Vec<Vec<u8>>, dice: Random) -> Self {
        let files = (0..models.len()).map(|n| created(&fs, &format!("/f{n}"))).collect();
        Self { fs, files, models, dice }
    }

    fn compare(&self, what: &str) {
        for (n, (file, model)) in self.files.iter().zip(&self.models).enumerate() {
            let found = content(file);
            assert_eq!(found.len(), model.len(), "{what}: the size of {n}");
            let wrong = found.iter().zip(model).position(|(is, was)| is != was);
            assert_eq!(wrong, None, "{what}: the first wrong byte of {n}");
        }
    }

    /// An offset below 40 blocks, mostly on a block.
    fn offset(&mut self) -> u64 {
        let at = self.dice.below(40 * BLOCK);
        if self.dice.chance(3) { at } else { at - at % BLOCK }
    }

    fn change(&mut self) {
        let n = self.dice.below(3) as usize;
        let at = self.offset();
        match self.dice.below(12) {
            0..4 => {
                let mut bytes = vec![0; 1 + self.offset() as usize / 4];
                self.dice.fill(&mut bytes);
                self.files[n].write_at(&bytes, at).unwrap();
                put(&mut self.models[n], at, &bytes);
            }
            4..8 => self.copy(n, at),
            8 => {
                self.files[n].set_size(at).unwrap();
                self.models[n].resize(at as usize, 0);
            }
            9 => {
                let len = 1 + self.offset() / 3;
                self.files[n].allocate(AllocateMode::PunchHole, at, len).unwrap();
                let size = self.models[n].len();
                self.models[n][size.min(at as usize)..size.min((at + len) as usize)].fill(0);
            }
            10 => self.files[n].sync_data().unwrap(),
            _ => self.fs.sync().unwrap(),
        }
    }

    fn copy(&mut self, from: usize, at: u64) {
        let to = self.dice.below(3) as usize;
        let into = if self.dice.chance(2) {
            at
        } else {
            let other = self.offset();
            if self.dice.chance(3) { other } else { other - other % BLOCK + at % BLOCK }
        };
        let len = if self.dice.chance(3) { 1 << 30 } else { 1 + self.offset() / 2 };
        let size = self.models[from].len() as u64;
        let clipped = len.min(size.saturating_sub(at));
        if from == to && at < into + clipped && into < at + clipped {
            return;
        }
        let copied = self.files[from].copy_range(at, &self.files[to], into, len).unwrap();
        assert_eq!(copied, clipped);
        if clipped > 0 {
            let bytes = self.models[from][at as usize..(at + clipped) as usize].to_vec();
            put(&mut self.models[to], into, &bytes);
        }
    }
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let end = at as usize + bytes.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..end].copy_from_slice(bytes);
}

/// S-532, S-533, I-CPY-1: random copies between three files, and random changes of each, in all
/// modes, with and without checksums, with checkpoints and clones in between: each file has what it
/// was given, the volume is sound, and a mount finds the same free space.
#[test]
fn s_532_no_file_sees_what_happens_to_a_copy() {
    for (seed, mode) in (0..40).zip(IoMode::ALL.into_iter().cycle()) {
        let device = device(96 << 20, 512);
        format(&device, if seed % 3 == 2 { 1024 } else { BLOCK as u32 });
        let fs = mount_as(&device, mode);
        fs.set_integrity(InodeNo::ROOT, seed % 4 == 3).unwrap();
        let mut bench = Bench::open(fs, vec![Vec::new(); 3], Random::new(seed + 400));
        for round in 0..12 {
            let what = format!("{mode}, seed {seed}, round {round}");
            for _ in 0..20 {
                bench.change();
            }
            bench.compare(&what);
            match round {
                3 => drop(bench.fs.create_checkpoint("c", &everything()).unwrap()),
                5 => bench.fs.delete_checkpoint("c").unwrap(),
                7 => {
                    let of = CloneSource::Present("/f0".into());
                    bench.fs.clone_files(&of, "/clone").unwrap();
                }
                _ => {}
            }
            if round % 3 == 2 {
                let Bench { fs, files, models, dice } = bench;
                drop(files);
                let left = used(&fs);
                fs.unmount().unwrap();
                sound(&device);
                let fs = mount_as(&device, mode);
                assert_eq!(used(&fs), left, "{what}: a mount finds the same free space");
                bench = Bench::open(fs, models, dice);
                bench.compare(&what);
            }
        }
    }
}

/// S-534: the blocks become free with the last file that has them, in whatever order they go.
#[test]
fn s_534_blocks_become_free_with_the_last_file_that_has_them() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let (device, fs) = volume(IoMode::Concurrent);
        let before = used(&fs);
        let source = created(&fs, "/f0");
        source.write_at(&random(5, 4 << 20), 0).unwrap();
        for n in [1, 2] {
            let target = created(&fs, &format!("/f{n}"));
            source.copy_range(0, &target, 0, 4 << 20).unwrap();
        }
        // One block is another's own.
        created(&fs, "/f1").write_at(&random(6, BLOCK), BLOCK).unwrap();
        drop(source);
        for (gone, n) in order.into_iter().enumerate() {
            assert!(used(&fs) - before >= 4 << 20, "{gone} are gone");
            fs.remove(format!("/f{n}")).unwrap();
        }
        assert!(used(&fs).saturating_sub(before) < 256 << 10, "{} are left", used(&fs) - before);
        fs.unmount().unwrap();
        sound(&device);
    }
}

/// S-532: what is written to either file goes to new blocks once, and in place from then on.
#[test]
fn s_532_what_is_written_after_a_copy_is_the_files_own() {
    let (_device, fs) = volume(IoMode::Concurrent);
    let (source, target) = (created(&fs, "/f"), created(&fs, "/g"));
    source.write_at(&random(7, 16 * BLOCK), 0).unwrap();
    source.copy_range(0, &target, 0, 16 * BLOCK).unwrap();
    assert_eq!(places(&source), places(&target));
    for file in [&source, &target] {
        file.write_at(&random(8, 4 * BLOCK), 0).unwrap();
        let own = places(file);
        file.sync_data().unwrap();
        file.write_at(&random(9, 4 * BLOCK), 0).unwrap();
        assert_eq!(places(file), own, "in place");
    }
    let (ours, theirs) = (places(&source), places(&target));
    assert!(ours[..4].iter().zip(&theirs).all(|(one, other)| one != other));
    assert_eq!(ours[4..], theirs[4..]);
}
