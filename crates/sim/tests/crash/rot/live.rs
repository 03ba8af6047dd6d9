//! Files with checksums on a mounted volume, what befalls a member beneath them, and the ways in which
//! they are read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, QueueOptions, Snapshot};
use bedplate_fs::{
    CheckpointOptions, CloneSource, ExtentInfo, FileSystem, FormatOptions, InodeNo,
    IntegrityCounts, IoMode, MountOptions, OpenOptions, Queue,
};
use bedplate_volume::{
    Arrangement, Extent, Group, ImportOptions, Layout, NewGroup, PageArbiter, Role, Shape,
};

pub(super) const BLOCK: usize = 4096;
pub(super) const BLOCKS: usize = 24;
/// A file as a checkpoint has it.
pub(super) const PAST: &str = "/.checkpoints/c/f";
pub(super) const MEMBER_BYTES: u64 = 40 << 20;
pub(super) const QUIET: ImportOptions =
    ImportOptions { degraded: false, background: false, read_only: false };

/// What a volume lies on: a shape and how many members; one device where there is no shape.
pub(super) type Kind = (Option<Shape>, usize);
pub(super) const ONE: Kind = (None, 1);
pub(super) const MIRROR: Kind = (Some(Shape::Mirror), 2);
pub(super) const PARITY: Kind = (Some(Shape::Raid5), 3);

/// Content of which no two blocks are alike.
pub(super) fn content(seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCKS * BLOCK);
    let mut word = seed;
    for part in buf.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        part.copy_from_slice(&word.to_le_bytes());
    }
    buf
}

pub(super) fn block(content: &AlignedBuf, number: usize) -> &[u8] {
    &content[number * BLOCK..][..BLOCK]
}

/// A mounted volume with files whose blocks have checksums.
pub(super) struct Live {
    pub(super) devices: Vec<Arc<MemoryDevice>>,
    pub(super) group: Option<Group>,
    pub(super) fs: FileSystem,
    /// What each path shows.
    pub(super) files: BTreeMap<&'static str, AlignedBuf>,
    /// What the devices held before the last of it was written.
    before: Vec<Snapshot>,
    /// What they held then.
    pub(super) after: Vec<Snapshot>,
}

pub(super) fn mount(device: Arc<dyn BlockDevice>) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(device, None, options).unwrap()
}

pub(super) fn import(devices: &[Arc<MemoryDevice>]) -> Group {
    let members: Vec<_> = devices.iter().map(|device| Arc::clone(device) as _).collect();
    Group::import(&members, &QUIET).unwrap()
}

pub(super) fn live(kind: Kind) -> Live {
    live_with(kind, 0)
}

/// Makes one whose log lies on so many members of its own, behind the others.
pub(super) fn live_with((shape, members): Kind, log_members: usize) -> Live {
    let all = members + log_members;
    let devices: Vec<_> = (0..all).map(|_| MemoryDevice::new(MEMBER_BYTES)).collect();
    let arc = |device: &Arc<MemoryDevice>| Arc::clone(device) as Arc<dyn BlockDevice>;
    let group = shape.map(|shape| {
        let new = NewGroup {
            name: "rot".into(),
            data: Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 },
            members: devices[..members].iter().map(arc).collect(),
            log_members: devices[members..].iter().map(arc).collect(),
            spares: Vec::new(),
            region_bytes: Some(64 << 10),
            reserve_bytes: 0,
            force: false,
        };
        bedplate_volume::create(&new).unwrap();
        let group = import(&devices);
        group.sync().unwrap();
        group
    });
    let volume: Arc<dyn BlockDevice> = match &group {
        Some(group) => group.volume(Role::Data).unwrap(),
        None => Arc::clone(&devices[0]) as _,
    };
    let log = group.as_ref().filter(|_| log_members > 0);
    let log = log.map(|group| group.volume(Role::Log).unwrap());
    FileSystem::format(&volume, log.as_ref(), &FormatOptions::default()).unwrap();
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    let fs = FileSystem::mount(volume, log, options).unwrap();
    fs.set_integrity(InodeNo::ROOT, true).unwrap();
    // What lies beneath is other content, not zeros.
    for seed in 50..53 {
        fs.open("/gone", &OpenOptions::create()).unwrap().write_at(&content(seed), 0).unwrap();
        fs.remove("/gone").unwrap();
    }
    let write = |path: &str, content: &[u8], at: usize| {
        let file = fs.open(path, &OpenOptions::create()).unwrap();
        file.write_at(&AlignedBuf::from_slice(content), at as u64).unwrap();
        file.sync_all().unwrap();
    };
    let (old, other) = (content(1), content(2));
    write("/f", &old, 0);
    fs.sync().unwrap();
    let snapshots = || devices.iter().map(|device| device.snapshot()).collect::<Vec<_>>();
    let before = snapshots();
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    write("/g", &other, 0);
    let (mut new, changes) = (AlignedBuf::from_slice(&old), content(3));
    for number in (0..BLOCKS).step_by(2) {
        write("/f", block(&changes, number), number * BLOCK);
        new[number * BLOCK..(number + 1) * BLOCK].copy_from_slice(block(&changes, number));
    }
    fs.clone_files(&CloneSource::Present("/f".into()), "/clone").unwrap();
    fs.sync().unwrap();
    let clone = AlignedBuf::from_slice(&new);
    let files = BTreeMap::from([("/f", new), ("/g", other), ("/clone", clone), (PAST, old)]);
    let after = snapshots();
    Live { devices, group, fs, files, before, after }
}

/// A block of a file on one member.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) path: &'static str,
    pub(super) number: usize,
    pub(super) at: u64,
}

impl Live {
    /// Where a member has blocks of files, each once.
    pub(super) fn places(&self, member: usize) -> Vec<Place> {
        let layout = self.group.as_ref().map(|group| group.config().volumes[0].layout.clone());
        let place_of = |address: u64| match &layout {
            Some(layout) => {
                let run = layout.locate(address);
                let own = run.copies().iter().find(|copy| usize::from(copy.member) == member);
                own.map(|copy| copy.offset)
            }
            None => Some(address),
        };
        let mut found: Vec<Place> = Vec::new();
        // What several have counts as the live one's.
        for path in self.files.keys().rev() {
            let file = self.fs.open(path, &OpenOptions::read_only()).unwrap();
            for extent in file.extents().unwrap() {
                for skip in (0..extent.len).step_by(BLOCK) {
                    let number = (extent.file_offset + skip) as usize / BLOCK;
                    let Some(at) = place_of(extent.volume_offset + skip) else { continue };
                    if !found.iter().any(|place| place.at == at) {
                        found.push(Place { path, number, at });
                    }
                }
            }
        }
        found
    }

    /// Where the volume's data lies on a member.
    pub(super) fn data(&self, member: usize) -> Range<u64> {
        let Some(group) = &self.group else { return 0..MEMBER_BYTES };
        let config = group.config();
        let columns = match &config.volumes[0].layout {
            Layout::Mirror(mirror) => mirror.plexes(),
            Layout::Raid5(raid5) => raid5.columns(),
            other => panic!("no such layout was made: {other:?}"),
        };
        let extents: Vec<Extent> = columns
            .iter()
            .map(|column| match column {
                Layout::Extent(extent) => *extent,
                other => panic!("each column is one piece: {other:?}"),
            })
            .collect();
        let extent = extents.iter().find(|extent| usize::from(extent.member) == member).unwrap();
        extent.start..extent.start + extent.len
    }

    pub(super) fn put(&self, member: usize, at: u64, bytes: &[u8]) {
        self.devices[member].write_at(&AlignedBuf::from_slice(bytes), at).unwrap();
    }

    pub(super) fn get(&self, member: usize, at: u64) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        self.devices[member].read_at(&mut bytes, at).unwrap();
        bytes
    }

    pub(super) fn integrity(&self) -> IntegrityCounts {
        self.fs.info().integrity
    }

    /// Which blocks of files a member has wrong.
    pub(super) fn wrong(&self, member: usize, places: &[Place]) -> Vec<Place> {
        let is_wrong = |place: &&Place| self.get(member, place.at)[..] != *self.written(place);
        places.iter().filter(is_wrong).cloned().collect()
    }

    pub(super) fn written(&self, place: &Place) -> &[u8] {
        block(&self.files[place.path], place.number)
    }

    pub(super) fn end(self) {
        self.fs.unmount().unwrap();
        self.group.into_iter().for_each(|group| group.close().unwrap());
    }
}

/// What happens to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ill {
    /// A bit of a block turns.
    Bit,
    /// A block is lost as a whole.
    Whole,
    /// Two blocks of a file change places.
    Swapped,
    /// Blocks of two files change places.
    SwappedAcross,
    /// Writes of the last period were acknowledged and not made.
    Lost,
    /// The member is as it was before the last period, its label but no more.
    Stale,
}

pub(super) const ILLS: [Ill; 6] =
    [Ill::Bit, Ill::Whole, Ill::Swapped, Ill::SwappedAcross, Ill::Lost, Ill::Stale];

impl Ill {
    /// Befalls every third block that a member has, from a first one on, or all of it.
    pub(super) fn befall(self, live: &Live, member: usize, places: &[Place], first: usize) {
        let some: Vec<&Place> = places.iter().skip(first).step_by(3).collect();
        let swap = |one: &Place, two: &Place| {
            let (of_one, of_two) = (live.get(member, one.at), live.get(member, two.at));
            live.put(member, one.at, &of_two);
            live.put(member, two.at, &of_one);
        };
        match self {
            Self::Bit | Self::Whole => some.iter().for_each(|place| {
                let mut bytes = live.get(member, place.at);
                match self {
                    Self::Bit => bytes[place.at as usize / 7 % BLOCK] ^= 1 << (place.number % 8),
                    _ => bytes.fill(0xff),
                }
                live.put(member, place.at, &bytes);
            }),
            Self::Swapped | Self::SwappedAcross => {
                let fits = |one: &Place, two: &Place| {
                    (one.path == two.path) == (self == Self::Swapped) && one.at != two.at
                };
                let mut rest: Vec<&Place> = some;
                while let Some(one) = rest.pop() {
                    if let Some(two) = rest.iter().position(|two| fits(one, two)) {
                        swap(one, rest.swap_remove(two));
                    }
                }
            }
            Self::Lost => some.iter().for_each(|place| {
                let mut bytes = vec![0; BLOCK];
                live.before[member].read(&mut bytes, place.at);
                live.put(member, place.at, &bytes);
            }),
            Self::Stale => {
                let data = live.data(member);
                for page in live.after[member].pages_not_shared(&live.before[member]) {
                    let part = page.start.max(data.start)..page.end.min(data.end);
                    if part.is_empty() {
                        continue;
                    }
                    let mut bytes = vec![0; (part.end - part.start) as usize];
                    live.before[member].read(&mut bytes, part.start);
                    live.put(member, part.start, &bytes);
                }
            }
        }
    }
}

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Whole,
    Blocks,
    Parts,
    Cached,
    Queue,
}

pub(super) const WAYS: [Way; 5] = [Way::Whole, Way::Blocks, Way::Parts, Way::Cached, Way::Queue];

pub(super) type Read = Result<Vec<u8>, bedplate_fs::Error>;

impl Way {
    /// Reads a file; returns pieces of it with where each begins.
    pub(super) fn read(self, fs: &FileSystem, path: &str) -> Vec<(usize, usize, Read)> {
        let all = BLOCKS * BLOCK;
        let (mode, step) = match self {
            Self::Whole => (IoMode::Concurrent, all),
            Self::Blocks => (IoMode::Direct, BLOCK),
            Self::Parts => (IoMode::Concurrent, 1000),
            Self::Cached => (IoMode::Cached, 3 * BLOCK),
            Self::Queue => return Self::by_queue(fs, path),
        };
        let options = OpenOptions { mode: Some(mode), ..OpenOptions::read_only() };
        let file = fs.open(path, &options).unwrap();
        let piece = |from: usize| {
            let len = step.min(all - from);
            let mut buf = AlignedBuf::zeroed(len.next_multiple_of(512));
            let read = file.read_at(&mut buf[..len], from as u64);
            (from, len, read.map(|read| buf[..read].to_vec()))
        };
        (0..all).step_by(step).map(piece).collect()
    }

    pub(super) fn by_queue(fs: &FileSystem, path: &str) -> Vec<(usize, usize, Read)> {
        let file = Arc::new(fs.open(path, &OpenOptions::read_only()).unwrap());
        let mut queue =
            Queue::new(fs, &QueueOptions { depth_max: 16, ..Default::default() }).unwrap();
        let (mut done, mut read, len) = (Vec::new(), Vec::new(), 2 * BLOCK);
        let mut starts = (0..BLOCKS * BLOCK).step_by(len).peekable();
        while starts.peek().is_some() || queue.in_flight() > 0 {
            while let Some(from) = starts.next_if(|_| queue.in_flight() < queue.depth_max()) {
                let buf = AlignedBuf::zeroed(len);
                queue.read(&file, buf, from as u64, from as u64).unwrap();
            }
            queue.complete(1, &mut done).unwrap();
            for completion in done.drain(..) {
                let (buf, from) = (completion.buf.unwrap(), completion.token as usize);
                let bytes = completion.result.map(|read| buf[..read].to_vec());
                read.push((from, len, bytes));
            }
        }
        read
    }
}

/// Asks the file system which copy of a place is what was written, as a scrub of a mounted volume
/// does: of files as they are now, of what only checkpoints have, and of the volume's own.
///
/// Where files lie it knows beforehand, as a scrub does: to open one may have to wait for a reader,
/// which may be waiting for the row that the scrub keeps to itself.
#[derive(Clone)]
pub(super) struct Asks {
    fs: FileSystem,
    extents: Vec<(InodeNo, ExtentInfo)>,
}

type ReadCopy<'a> = dyn FnMut(usize, u64, &mut [u8]) -> bool + 'a;

impl Asks {
    pub(super) fn of(live: &Live) -> Self {
        let paths = live.files.keys().copied().filter(|path| *path != PAST);
        let extents = paths.flat_map(|path| {
            let file = live.fs.open(path, &OpenOptions::read_only()).unwrap();
            let (ino, extents) = (file.ino(), file.extents().unwrap());
            extents.into_iter().map(move |extent| (ino, extent))
        });
        Self { fs: live.fs.clone(), extents: extents.collect() }
    }

    /// Returns where what lies at a place ends, and which copy of it is right; none where all are the
    /// same.
    fn judge_at(
        &self,
        (role, place): (Role, u64),
        copies: usize,
        read: &mut ReadCopy<'_>,
    ) -> Option<(u64, Option<usize>)> {
        let fs = &self.fs;
        if let Some(own) = fs.own_at(role == Role::Log, place) {
            return own.right_copy(place, copies, read);
        }
        if role != Role::Data {
            return None;
        }
        let place = place - place % BLOCK as u64;
        let held: Vec<Option<Vec<u8>>> = (0..copies)
            .map(|copy| {
                let mut bytes = vec![0; BLOCK];
                read(copy, place, &mut bytes).then_some(bytes)
            })
            .collect();
        let right = |is_right: &dyn Fn(&[u8]) -> Option<bool>| {
            let right =
                held.iter().map(|one| one.as_ref().map_or(Some(false), |one| is_right(one)));
            let right: Vec<bool> = right.collect::<Option<_>>()?;
            Some((place + BLOCK as u64, bedplate_fs::right_of(&held, &right)?))
        };
        let holds = |volume: u64, len: u64| volume <= place && place < volume + len;
        let of_file = || {
            let here = |(_, it): &&(InodeNo, ExtentInfo)| holds(it.volume_offset, it.len);
            let (ino, extent) = self.extents.iter().find(here)?;
            let at = (extent.file_offset, place);
            right(&|bytes| fs.is_as_written(*ino, at, bytes).ok()?)
        };
        let of_kept = || {
            let kept = fs.kept_extents().ok()?;
            let mut there = kept.iter().filter(|kept| holds(kept.volume_offset, kept.len));
            there.find_map(|kept| right(&|bytes| fs.is_as_kept(kept, place, bytes).ok()?))
        };
        of_file().or_else(of_kept)
    }
}

impl PageArbiter for Asks {
    fn judge(
        &self,
        role: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let (mut at, mut right) = (range.start, None);
        while at < range.end {
            let (end, one) = self.judge_at((role, at), copies, read)?;
            match (one, right) {
                (Some(one), Some(before)) if one != before => return None,
                (one, before) => right = one.or(before),
            }
            at = end;
        }
        right.or(Some(0))
    }
}
