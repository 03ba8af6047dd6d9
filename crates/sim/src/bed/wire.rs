//! The way from one process to its devices, which ends when it dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceCall, DeviceQueue, Error, ErrorKind, Hook,
    HookedDevice, JoinedMembers, Lent, MemberMap, MemoryDevice, Operation, QueueOptions, Request,
    Result,
};
use bedplate_fs::{FileSystem, IoMode, MountOptions};
use bedplate_volume::{FOREGROUND_UNLIMITED, Group, ImportOptions, NewGroup, Role, WeakGroup};
use parking_lot::Mutex;

use super::Bed;
use super::ills::AilingQueue;
use super::remains::{MEMBER, fill_blank, limited, open_group};
use crate::leased::Program;
use crate::workload::Backend;

/// The way from one process to its devices.
#[derive(Debug)]
pub(crate) struct Wires {
    bed: Bed,
    devices: Vec<Arc<dyn BlockDevice>>,
    closed: Arc<AtomicBool>,
    /// How many calls of devices get through before the process dies.
    fuse: Arc<AtomicU64>,
    /// The group that is open.
    group: Mutex<Option<WeakGroup>>,
}

impl Bed {
    /// Connects a process to the devices.
    pub(crate) fn connect(&self) -> Wires {
        let (closed, fuse) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(u64::MAX)));
        let wire = |(index, inner): (usize, &Arc<_>)| {
            let wire = Wire {
                bed: self.clone(),
                index,
                closed: Arc::clone(&closed),
                fuse: Arc::clone(&fuse),
            };
            HookedDevice::named(name(self, index), Arc::clone(inner) as _, wire)
                as Arc<dyn BlockDevice>
        };
        Wires {
            bed: self.clone(),
            devices: self.devices.iter().enumerate().map(wire).collect(),
            closed,
            fuse,
            group: Mutex::default(),
        }
    }
}

/// Members need names of their own.
fn name(bed: &Bed, index: usize) -> String {
    match bed.backend {
        Backend::One => "simulated".to_owned(),
        _ => format!("{MEMBER}{index}"),
    }
}

impl Wires {
    /// Nothing gets through any more.
    pub(crate) fn cut(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Nothing gets through any more after so many calls.
    pub(crate) fn cut_after(&self, calls: u64) {
        self.fuse.store(calls, Ordering::SeqCst);
    }

    /// Whether the process is dead.
    pub(crate) fn is_cut(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The data device, or the first member.
    pub(crate) fn data(&self) -> &Arc<dyn BlockDevice> {
        &self.devices[0]
    }

    /// Begins a process with leases on a file system that was mounted through these, where the
    /// volume is to have one.
    pub(crate) fn attach(&self, fs: &FileSystem) -> std::result::Result<Option<Program>, String> {
        if !self.bed.leases {
            return Ok(None);
        }
        Program::attach(fs, self.data(), &self.bed.leased).map(Some)
    }

    /// The log's own device.
    pub(crate) fn log(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.devices.get(self.bed.members)
    }

    /// Whether the log may move, and the device that it may move to.
    pub(crate) fn spare_log(&self) -> Option<Option<Arc<dyn BlockDevice>>> {
        (self.bed.backend == Backend::One).then(|| self.log().cloned())
    }

    /// The log's own device, where the log is on it now.
    fn log_now(&self) -> Option<Arc<dyn BlockDevice>> {
        let log = self.log().filter(|_| {
            self.bed.backend != Backend::One || {
                // Looked at past the wires: no program reads here.
                let raw = self.bed.data();
                let now = MemoryDevice::from_snapshot(&raw.snapshot(), raw.geometry());
                is_apart(&(now as _))
            }
        });
        log.cloned()
    }

    /// Makes a group of the members, where there are several.
    pub(crate) fn make_group(&self) -> std::result::Result<(), String> {
        let Some(data) = self.bed.backend.arrangement() else { return Ok(()) };
        let new = NewGroup {
            name: "judge".into(),
            data,
            members: self.devices[..self.bed.members].to_vec(),
            log_members: Vec::new(),
            spares: Vec::new(),
            region_bytes: Some(64 << 10),
            reserve_bytes: 0,
            force: false,
        };
        bedplate_volume::create(&new).map_err(|e| e.to_string())?;
        // What copies or compares in the background of a program would wait for it now and then.
        let options = ImportOptions { degraded: false, background: false, read_only: false };
        let group = open_group(&self.devices[..self.bed.members], &options, &|_| false)
            .map_err(|e| e.to_string())?;
        group.set_foreground(FOREGROUND_UNLIMITED).map_err(|e| e.to_string())
    }

    /// Opens what the file system lies on, without the members that are away. With `sync`
    /// everything is brought up to date first.
    pub(crate) fn volume(&self, sync: bool) -> bedplate_fs::Result<Arc<dyn BlockDevice>> {
        if self.bed.backend == Backend::One {
            return Ok(Arc::clone(self.data()));
        }
        let there = (0..self.bed.members)
            .filter(|member| !self.bed.is_away(*member))
            .map(|member| Arc::clone(&self.devices[member]));
        let options = ImportOptions { degraded: true, background: false, read_only: false };
        let there: Vec<_> = there.collect();
        let group = open_group(&there, &options, &|member| self.bed.is_hurt(member))?;
        if sync {
            fill_blank(&group, &there)?;
            group
                .sync()
                .map_err(|e| bedplate_fs::Error::new(bedplate_fs::ErrorKind::Io, e.to_string()))?;
        }
        *self.group.lock() = Some(group.downgrade());
        Ok(data_of(&group))
    }

    /// The group looks whether its members are what they were, as its background thread does every
    /// few seconds.
    pub(crate) fn check_members(&self) -> std::result::Result<(), String> {
        self.group()?.check_members().map_err(|e| e.to_string())
    }

    /// The group that is open.
    pub(crate) fn group(&self) -> std::result::Result<Group, String> {
        self.group
            .lock()
            .as_ref()
            .and_then(WeakGroup::upgrade)
            .ok_or_else(|| "no group is open".to_owned())
    }

    pub(crate) fn mount(&self, options: MountOptions) -> bedplate_fs::Result<FileSystem> {
        self.mount_synced(false, options)
    }

    /// Mounts; with `sync` a group is brought up to date first.
    pub(crate) fn mount_synced(
        &self,
        sync: bool,
        options: MountOptions,
    ) -> bedplate_fs::Result<FileSystem> {
        // Opens that name no mode are then of files that may be leased.
        let mode = if self.bed.leases { IoMode::Concurrent } else { options.mode };
        let options = MountOptions { mode, ..options };
        let fs = FileSystem::mount(
            self.volume(sync)?,
            self.log_now(),
            limited(options, self.bed.per_record, self.bed.small_maps),
        )?;
        // The sync daemon comes some way with a deletion that was cut short. What fails is tried
        // again.
        let steps = self.bed.operation_count() % 4;
        let _taken = (0..steps).take_while(|_| fs.delete_step().unwrap_or(false)).count();
        Ok(fs)
    }
}

/// Whether a volume has its log on a device of its own, or does not tell.
pub(super) fn is_apart(volume: &Arc<dyn BlockDevice>) -> bool {
    FileSystem::probe(volume).map_or(true, |volume| volume.log_separate)
}

/// The data volume of a group, which keeps the group open.
pub(super) fn data_of(group: &Group) -> Arc<dyn BlockDevice> {
    group.volume(Role::Data).expect("every group has one")
}

/// What stands on the way to one device.
#[derive(Debug)]
struct Wire {
    bed: Bed,
    index: usize,
    closed: Arc<AtomicBool>,
    fuse: Arc<AtomicU64>,
}

impl Wire {
    fn open(&self, operation: Operation) -> Result<()> {
        if self.fuse.load(Ordering::SeqCst) != u64::MAX
            && self
                .fuse
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_err()
        {
            self.closed.store(true, Ordering::SeqCst);
        }
        let detail = if self.closed.load(Ordering::SeqCst) {
            "the process is dead"
        } else if self.bed.is_away(self.index) {
            "the device is gone"
        } else if !self.bed.ills.takes_call(self.index) {
            self.bed.set_away(self.index, true);
            "the device is gone from now on"
        } else {
            return Ok(());
        };
        Err(Error {
            kind: ErrorKind::Io,
            operation,
            device: name(&self.bed, self.index),
            offset: None,
            errno: None,
            detail: detail.to_owned(),
        })
    }
}

impl Hook for Wire {
    /// One device says that it is two members, one behind the other, so that files can be placed.
    fn members(&self, inner: &Arc<dyn BlockDevice>) -> (MemberMap, u64) {
        let size = inner.size_bytes();
        (JoinedMembers::map_of(size, 2), size)
    }

    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        crate::interleave::pause();
        self.open(call.operation())?;
        self.bed
            .ills
            .unreadable(self.index)
            .meet(&name(&self.bed, self.index), &call, || self.bed.operation_count())?;
        self.bed.timed(pass)
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> Result<Box<dyn DeviceQueue>> {
        self.open(Operation::Queue)?;
        let wire = Self {
            bed: self.bed.clone(),
            index: self.index,
            closed: Arc::clone(&self.closed),
            fuse: Arc::clone(&self.fuse),
        };
        let bed = self.bed.clone();
        let moment = Box::new(move || bed.operation_count());
        let queue = AilingQueue::new(
            inner.queue(options)?,
            name(&self.bed, self.index),
            self.bed.ills.unreadable(self.index),
            moment,
        );
        Ok(Box::new(TimedQueue { queue: Box::new(queue), wire }))
    }

    /// A process with leases is a thread here, which has the device by itself: its descriptors are
    /// of nothing.
    fn lend(&self, _inner: &Arc<dyn BlockDevice>, _read_only: bool) -> Result<Option<Lent>> {
        if !self.bed.leases {
            return Ok(None);
        }
        let nothing = || std::fs::File::open("/dev/null").map(Into::into).ok();
        Ok(nothing().zip(nothing()).map(|(claim, io)| Lent { claim, io }))
    }
}

/// A queue whose operations are on the clock, in the order in which they reach the device.
struct TimedQueue {
    queue: Box<dyn DeviceQueue>,
    wire: Wire,
}

impl DeviceQueue for TimedQueue {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.queue.push(request)
    }

    fn submit(&mut self) -> Result<()> {
        crate::interleave::pause();
        self.wire.open(Operation::Queue)?;
        self.wire.bed.timed(|| self.queue.submit())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        crate::interleave::pause();
        self.wire.open(Operation::Queue)?;
        self.wire.bed.timed(|| self.queue.complete(min, out))
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}
