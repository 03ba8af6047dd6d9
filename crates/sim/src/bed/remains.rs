//! What a power cut left, and how it is opened again.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceQueue, HookedDevice, MemoryDevice, QueueOptions, Snapshot,
};
use bedplate_fs::{FileSystem, Limits, MountOptions};
use bedplate_volume::{Group, ImportOptions, Label, MemberState, Undecided};

use super::ills::{AilingQueue, Ills, Unreadable};
use super::wire::{data_of, is_apart};
use super::{Snapshots, copies, rot};
use crate::workload::Backend;

/// How the names of members begin.
pub(super) const MEMBER: &str = "member";

/// What a power cut left on the devices of a volume.
#[derive(Debug, Clone)]
pub struct Remains {
    pub(super) backend: Backend,
    /// Those that hold data, then the log's own.
    pub(super) devices: Vec<Arc<MemoryDevice>>,
    pub(super) members: usize,
    /// What they held when the copies of a group agreed.
    pub(super) agreed: Arc<Snapshots>,
    pub(super) per_record: u16,
    pub(super) small_maps: bool,
    /// What of them cannot be read.
    pub(super) unreadable: Vec<Arc<Unreadable>>,
    /// Those whose label something damaged, or wrote over.
    pub(super) hurt: Vec<bool>,
    /// The member of which a block with a checksum has rotted.
    pub(super) decayed: Option<usize>,
}

/// Reads and writes pass, but for what cannot be read.
#[derive(Debug)]
struct Named {
    name: String,
    unreadable: Arc<Unreadable>,
}

impl bedplate_block::Hook for Named {
    fn call(
        &self,
        call: bedplate_block::DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        self.unreadable.meet(&self.name, &call, || 0)?;
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(AilingQueue::new(
            inner.queue(options)?,
            self.name.clone(),
            &self.unreadable,
            Box::new(|| 0),
        )))
    }
}

impl Remains {
    /// Whether something of a member cannot be read.
    pub(crate) fn are_unreadable(&self) -> bool {
        self.unreadable.iter().any(|unreadable| !unreadable.now().is_empty())
    }

    /// Makes others of the same content.
    pub(crate) fn copy(&self) -> Self {
        let copy = |device: &Arc<MemoryDevice>| {
            MemoryDevice::from_snapshot(&device.snapshot(), device.geometry())
        };
        let unreadable =
            self.unreadable.iter().map(|one| Arc::new(Unreadable::of(&one.now()))).collect();
        Self { devices: self.devices.iter().map(copy).collect(), unreadable, ..self.clone() }
    }

    /// What ails the devices.
    pub(super) fn ills(&self) -> Ills {
        let ills = Ills::new(&self.unreadable.iter().map(|one| one.now()).collect::<Vec<_>>());
        (0..self.hurt.len())
            .filter(|member| self.hurt[*member])
            .for_each(|member| ills.hurt(member));
        self.decayed.into_iter().for_each(|member| ills.decays(member, 0));
        ills
    }

    /// Writes the contents as images, `volume` or `member0` and so on, and, of a log's own device,
    /// `log`, into a directory.
    ///
    /// # Errors
    /// Those of the files.
    pub fn save(&self, dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        for (index, device) in self.devices.iter().enumerate() {
            let name = match index {
                _ if index == self.members => "log".to_owned(),
                _ if self.backend == Backend::One => "volume".to_owned(),
                _ => format!("{MEMBER}{index}"),
            };
            save(&device.snapshot(), &dir.join(name))?;
        }
        Ok(())
    }

    /// What the file system lies on; of a group, opened without writing to any member where that is
    /// asked for.
    pub(crate) fn volume(&self, read_only: bool) -> bedplate_fs::Result<Arc<dyn BlockDevice>> {
        if self.backend == Backend::One {
            return Ok(Arc::clone(&self.devices[0]) as _);
        }
        let options = ImportOptions { degraded: true, background: false, read_only };
        self.open(&options).map(|group| data_of(&group))
    }

    fn open(&self, options: &ImportOptions) -> bedplate_fs::Result<Group> {
        open_group(&self.named_members(), options, &|member| self.hurt[member])
    }

    fn named_members(&self) -> Vec<Arc<dyn BlockDevice>> {
        let named = |(index, device): (usize, &Arc<MemoryDevice>)| {
            let name = format!("{MEMBER}{index}");
            let hook =
                Named { name: name.clone(), unreadable: Arc::clone(&self.unreadable[index]) };
            HookedDevice::named(name, Arc::clone(device) as _, hook) as _
        };
        self.devices[..self.members].iter().enumerate().map(named).collect()
    }

    /// The log's own device, where the log is on it.
    pub(crate) fn log(&self) -> Option<Arc<dyn BlockDevice>> {
        let log = self.devices.get(self.members)?;
        let is_home =
            self.only_device().is_some_and(|device| !is_apart(&(Arc::clone(device) as _)));
        (!is_home).then(|| Arc::clone(log) as _)
    }

    /// The device that a superblock lies on; none of a group.
    pub(crate) fn only_device(&self) -> Option<&Arc<MemoryDevice>> {
        self.devices.first().filter(|_| self.backend == Backend::One)
    }

    pub(crate) fn mount(&self, options: MountOptions) -> bedplate_fs::Result<FileSystem> {
        FileSystem::mount(
            self.volume(options.read_only)?,
            self.log(),
            limited(options, self.per_record, self.small_maps),
        )
    }

    /// Brings the copies of a group up to date, and compares them: they hold the same. What changed
    /// since they agreed is looked at byte by byte; with `scrub` the group compares all of it, too.
    /// `rot` turns a bit of that page of a member, if all are up to date: the group finds it.
    pub(crate) fn copies_agree(&self, scrub: bool, rot: Option<usize>) -> Result<(), String> {
        if self.backend == Backend::One {
            return Ok(());
        }
        let options = ImportOptions { degraded: true, background: false, read_only: false };
        let group = self.open(&options).map_err(|e| format!("the group does not open: {e}"))?;
        group.sync().map_err(|e| format!("the group cannot be brought up to date: {e}"))?;
        // What no read met of a block that rotted is as it was.
        if self.decayed.is_some() {
            return Ok(());
        }
        let differ = |what: &dyn std::fmt::Debug| {
            Err(format!("I-VOL-1: copies differ after they were made to agree: {what:?}"))
        };
        if scrub {
            let report = group
                .scrub(false, &Undecided, &mut |_| ())
                .map_err(|e| format!("the group cannot be compared: {e}"))?;
            // What cannot be read of one member is told, with another one that is right.
            if let Some(difference) = report
                .differences
                .iter()
                .find(|difference| difference.unreadable.is_empty() || difference.right.is_none())
            {
                return differ(difference);
            }
        }
        let config = group.config();
        let whole = config.members.iter().all(|member| member.state == MemberState::Active)
            && group.statistics().iter().all(Option::is_some);
        if let Some(number) = rot.filter(|_| whole && !self.are_unreadable()) {
            self.rot(&group, number)?;
        }
        drop(group);
        if !whole {
            return Ok(());
        }
        copies::difference(&config, &self.agreed, &self.snapshots())
            .map_or(Ok(()), |difference| differ(&difference))
    }

    fn rot(&self, group: &Group, number: usize) -> Result<(), String> {
        let member = number % self.members;
        let decay = |offset: u64| {
            let device = &self.devices[member];
            let start = offset / 4096 * 4096;
            let mut page = AlignedBuf::zeroed(4096);
            device.read_at(&mut page, start).and_then(|()| {
                page[usize::try_from(offset - start).expect("within a page")] ^= 16;
                device.write_at(&page, start)
            })
        };
        rot::compare(group, member, number, &self.agreed, &|| self.snapshots(), &|offset| {
            decay(offset).expect("memory does not fail");
        })
    }

    /// The first byte that differs from other contents.
    pub(crate) fn first_difference(&self, then: &Snapshots) -> Option<u64> {
        self.devices.iter().zip(then).find_map(|(now, then)| now.snapshot().first_difference(then))
    }

    pub(crate) fn snapshots(&self) -> Snapshots {
        self.devices.iter().map(|device| device.snapshot()).collect()
    }
}

/// Opens a group. A member that was away when the power went may be newer than the others know: it
/// is refused, and left out. So is one without a whole label where something damaged that.
pub(super) fn open_group(
    members: &[Arc<dyn BlockDevice>],
    options: &ImportOptions,
    hurt: &dyn Fn(usize) -> bool,
) -> bedplate_fs::Result<Group> {
    // A device that something else wrote over is no member any more.
    let is_member = |device: &&Arc<dyn BlockDevice>| match Label::read(&***device) {
        Err(error) if error.kind == bedplate_volume::ErrorKind::NotAMember => false,
        Err(error) if error.kind == bedplate_volume::ErrorKind::Corrupt => {
            !number_of(&***device).is_some_and(hurt)
        }
        _ => true,
    };
    let members = &members.iter().filter(is_member).cloned().collect::<Vec<_>>()[..];
    let failed = |e: bedplate_volume::Error| {
        bedplate_fs::Error::new(bedplate_fs::ErrorKind::Io, format!("the group does not open: {e}"))
    };
    match Group::import(members, options) {
        Err(error) if error.kind == bedplate_volume::ErrorKind::Outdated => {
            let event = |device: &Arc<dyn BlockDevice>| {
                Label::read(&**device).map_or(0, |label| label.config.event)
            };
            let oldest =
                (0..members.len()).min_by_key(|index| event(&members[*index])).unwrap_or(0);
            let others: Vec<_> = members
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != oldest)
                .map(|(_, member)| Arc::clone(member))
                .collect();
            Group::import(&others, options).map_err(failed)
        }
        opened => opened.map_err(failed),
    }
}

/// The number of a member, as its name says.
fn number_of(device: &dyn BlockDevice) -> Option<usize> {
    device.name().strip_prefix(MEMBER)?.parse().ok()
}

/// Puts devices without a label into the places of members that are away: they are filled by the
/// next sync.
pub(super) fn fill_blank(
    group: &Group,
    members: &[Arc<dyn BlockDevice>],
) -> bedplate_fs::Result<()> {
    let blank = |device: &&Arc<dyn BlockDevice>| matches!(Label::read(&***device), Err(error) if error.kind == bedplate_volume::ErrorKind::NotAMember);
    for device in members.iter().filter(blank) {
        let Some(away) = group.statistics().iter().position(Option::is_none) else { continue };
        let failed = |e: bedplate_volume::Error| {
            bedplate_fs::Error::new(
                bedplate_fs::ErrorKind::Io,
                format!("a blank member is not taken: {e}"),
            )
        };
        group.replace(away, device).map_err(failed)?;
    }
    Ok(())
}

/// Extents of a pack: so few that the files of a workload have several, which are split and joined.
const EXTENTS_PER_PACK: usize = 3;
/// Free runs that are in memory at full length: so few that regions are packed and opened all the time.
const FREE_RUNS_OPEN: usize = 4;
/// Allocation groups, and the share of the free space that their lots take: so large that small
/// volumes have lots.
const LOTS: (usize, u64) = (4, 2);

/// So that files of some pages are several pieces of delayed writes.
const DELAYED_PIECE_BYTES: u64 = 32 << 10;

/// So that files of some pages are read ahead in several windows.
const READ_WINDOW_BYTES: u64 = 32 << 10;

/// So that I/O of a few blocks in order is followed.
const FOLLOW_STEP_BYTES: u64 = 4096;

/// Extents of a part of a map, where these are small.
const EXTENTS_PER_PART: usize = 2;

/// So that deletions of checkpoints take several records, or few of them one.
const IMAGES_PER_RECORD: [usize; 2] = [2, 6];

/// Options with the limits of a run. Small maps have parts of two extents, all of which may leave
/// memory when the next one is needed.
pub(super) fn limited(options: MountOptions, per_record: u16, small_maps: bool) -> MountOptions {
    let limits = limits(per_record);
    if !small_maps {
        return MountOptions { limits, ..options };
    }
    let limits = Limits { extents_per_part: Some(EXTENTS_PER_PART), ..limits };
    MountOptions { limits, map_bytes: 0, ..options }
}

/// As `options`, with pieces of delayed writes and of what is read ahead so short that files of some pages
/// have several, which threads of the file system write and read.
pub(crate) fn with_helpers(options: MountOptions) -> MountOptions {
    let limits = Limits {
        delayed_piece_bytes: DELAYED_PIECE_BYTES,
        read_window_bytes: READ_WINDOW_BYTES,
        follow_step_bytes: FOLLOW_STEP_BYTES,
        ..Limits::default()
    };
    MountOptions { limits, ..options }
}

/// The parts in which long changes are logged. Between two of them another thread may go on.
fn limits(per_record: u16) -> Limits {
    let small = Limits {
        images_per_record: IMAGES_PER_RECORD[usize::from(per_record % 2)],
        extents_per_pack: Some(EXTENTS_PER_PACK),
        free_runs_open: Some(FREE_RUNS_OPEN),
        lots: Some(LOTS),
        delayed_piece_bytes: DELAYED_PIECE_BYTES,
        read_window_bytes: READ_WINDOW_BYTES,
        // One after the other, in the order of the seed.
        delayed_piece_threads: 0,
        read_window_threads: 0,
        follow_step_bytes: FOLLOW_STEP_BYTES,
        deletes_behind: false,
        ..Limits::default()
    };
    match per_record.into() {
        0 => small,
        count => Limits {
            extents_per_record: count,
            names_per_record: count,
            between_records: Some(Arc::new(|_| crate::interleave::pause())),
            ..small
        },
    }
}

/// Writes a content as a file with holes where it is zeros.
fn save(content: &Snapshot, path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::create(path)?;
    file.set_len(content.size_bytes())?;
    let mut part = vec![0; 64 << 10];
    for offset in (0..content.size_bytes()).step_by(part.len()) {
        let len = usize::try_from(content.size_bytes() - offset)
            .map_or(part.len(), |left| left.min(part.len()));
        content.read(&mut part[..len], offset);
        if part[..len].iter().any(|byte| *byte != 0) {
            file.write_all_at(&part[..len], offset)?;
        }
    }
    Ok(())
}
