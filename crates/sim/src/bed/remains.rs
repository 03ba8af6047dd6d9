//! What a power cut left, and how it is opened again.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bedplate_block::{BlockDevice, HookedDevice, MemoryDevice, Snapshot};
use bedplate_fs::{FileSystem, Limits, MountOptions};
use bedplate_volume::{Group, ImportOptions, Label, MemberState, Undecided};

use super::wire::data_of;
use super::{Snapshots, copies};
use crate::workload::Ground;

/// What a power cut left on the devices of a volume.
#[derive(Debug, Clone)]
pub struct Remains {
    pub(super) ground: Ground,
    /// Those that hold data, then the log's own.
    pub(super) devices: Vec<Arc<MemoryDevice>>,
    pub(super) members: usize,
    /// What they held when the copies of a group agreed.
    pub(super) agreed: Arc<Snapshots>,
    pub(super) per_record: u16,
}

/// Reads and writes pass: only the name is another.
#[derive(Debug)]
struct Named;

impl bedplate_block::Hook for Named {
    fn call(
        &self,
        _: bedplate_block::DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        pass()
    }
}

impl Remains {
    /// Makes others of the same content.
    pub(crate) fn copy(&self) -> Self {
        let copy = |device: &Arc<MemoryDevice>| {
            MemoryDevice::from_snapshot(&device.snapshot(), device.geometry())
        };
        Self { devices: self.devices.iter().map(copy).collect(), ..self.clone() }
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
                _ if self.ground == Ground::One => "volume".to_owned(),
                _ => format!("member{index}"),
            };
            save(&device.snapshot(), &dir.join(name))?;
        }
        Ok(())
    }

    /// What the file system lies on; of a group, opened without writing to any member where that is
    /// asked for.
    pub(crate) fn volume(&self, read_only: bool) -> bedplate_fs::Result<Arc<dyn BlockDevice>> {
        if self.ground == Ground::One {
            return Ok(Arc::clone(&self.devices[0]) as _);
        }
        let options = ImportOptions { degraded: true, background: false, read_only };
        open_group(&self.named_members(), &options).map(|group| data_of(&group))
    }

    fn named_members(&self) -> Vec<Arc<dyn BlockDevice>> {
        let named = |(index, device): (usize, &Arc<MemoryDevice>)| {
            HookedDevice::named(format!("member{index}"), Arc::clone(device) as _, Named) as _
        };
        self.devices[..self.members].iter().enumerate().map(named).collect()
    }

    /// The log's own device.
    pub(crate) fn log(&self) -> Option<Arc<dyn BlockDevice>> {
        self.devices.get(self.members).map(|log| Arc::clone(log) as _)
    }

    /// The device that a superblock lies on; none of a group.
    pub(crate) fn only_device(&self) -> Option<&Arc<MemoryDevice>> {
        self.devices.first().filter(|_| self.ground == Ground::One)
    }

    pub(crate) fn mount(&self, options: MountOptions) -> bedplate_fs::Result<FileSystem> {
        FileSystem::mount(
            self.volume(options.read_only)?,
            self.log(),
            MountOptions { limits: limits(self.per_record), ..options },
        )
    }

    /// Brings the copies of a group up to date, and compares them: they hold the same. What changed since they agreed is looked at byte by byte; with
    /// `scrub` the group compares all of it, too.
    pub(crate) fn copies_agree(&self, scrub: bool) -> Result<(), String> {
        if self.ground == Ground::One {
            return Ok(());
        }
        let options = ImportOptions { degraded: true, background: false, read_only: false };
        let group = open_group(&self.named_members(), &options)
            .map_err(|e| format!("the group does not open: {e}"))?;
        group.sync().map_err(|e| format!("the group cannot be brought up to date: {e}"))?;
        let differ = |what: &dyn std::fmt::Debug| {
            Err(format!("I-VOL-1: copies differ after they were made to agree: {what:?}"))
        };
        if scrub {
            let report = group
                .scrub(false, &Undecided, &mut |_| ())
                .map_err(|e| format!("the group cannot be compared: {e}"))?;
            if let Some(difference) = report.differences.first() {
                return differ(difference);
            }
        }
        let config = group.config();
        let whole = config.members.iter().all(|member| member.state == MemberState::Active)
            && group.statistics().iter().all(Option::is_some);
        drop(group);
        if !whole {
            return Ok(());
        }
        copies::difference(&config, &self.agreed, &self.snapshots())
            .map_or(Ok(()), |difference| differ(&difference))
    }

    /// The first byte that differs from other contents.
    pub(crate) fn first_difference(&self, then: &Snapshots) -> Option<u64> {
        self.devices.iter().zip(then).find_map(|(now, then)| now.snapshot().first_difference(then))
    }

    pub(crate) fn snapshots(&self) -> Snapshots {
        self.devices.iter().map(|device| device.snapshot()).collect()
    }
}

/// Opens a group. A member that was away when the power went may be newer than the others know: it is refused, and left out.
pub(super) fn open_group(
    members: &[Arc<dyn BlockDevice>],
    options: &ImportOptions,
) -> bedplate_fs::Result<Group> {
    // A device that something else wrote over is no member any more.
    let is_member = |device: &&Arc<dyn BlockDevice>| !matches!(Label::read(&***device), Err(error) if error.kind == bedplate_volume::ErrorKind::NotAMember);
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

/// The parts in which long changes are logged. Between two of them another thread may go on.
pub(super) fn limits(per_record: u16) -> Limits {
    match per_record.into() {
        0 => Limits::default(),
        count => Limits {
            extents_per_record: count,
            names_per_record: count,
            between_records: Some(Arc::new(|_| crate::interleave::pause())),
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
