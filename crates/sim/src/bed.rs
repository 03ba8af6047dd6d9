//! What a volume lies on: simulated devices with one power supply: one, or a group of members, and
//! another one where the log has a device of its own.
//!
//! ```text
//!   file system ─► (group ─►) Wire ─► data device, or members ─┐
//!              └─────────────► Wire ─► log device ──────────────┴─► clock: operation 1, 2, 3 … of all, in the order in which they came
//! ```
//!
//! A cut after operation `n` is one moment of all devices. What each of them had not flushed by
//! then arrives or not on its own.

mod copies;
mod decay;
mod fresh;
mod ills;
mod remains;
mod rot;
mod wire;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, CrashStep, Geometry, MemoryDevice, SimulatedDevice,
    SimulatedOptions, Snapshot,
};
use bedplate_fs::FileSystem;
use bedplate_volume::{Config, Group, Label};
use parking_lot::Mutex;

pub(crate) use fresh::{SIZE_MAX, format_options, fresh_bed, quiet, shrink, smaller, stale_bed};
use ills::{Ills, Unreadable};
pub use remains::Remains;
pub(crate) use remains::with_helpers;
pub(crate) use wire::Wires;

use crate::workload::Backend;

/// The simulated devices of a volume.
#[derive(Debug, Clone)]
pub struct Bed {
    backend: Backend,
    /// The data device, or the members of the group, then the log's own device.
    devices: Vec<Arc<SimulatedDevice>>,
    /// How many of them hold data.
    members: usize,
    clock: Arc<Mutex<Clock>>,
    /// What the devices held when the copies of a group agreed.
    agreed: Arc<Snapshots>,
    /// Members that do not answer.
    away: Arc<Vec<AtomicBool>>,
    /// One of them is away for good.
    lost: Arc<AtomicBool>,
    ills: Arc<Ills>,
    /// How many extents or names a record of a long change takes when the volume is mounted; 0: as
    /// many as in the product.
    per_record: u16,
    /// Whether the extent maps of files leave memory as soon as nothing looks at them.
    small_maps: bool,
    /// Whether a process with leases does I/O beside the mount.
    leases: bool,
    /// How many reads, writes and syncs were made under leases.
    leased: Arc<AtomicU64>,
}

/// Which device each operation was on, where there are several.
#[derive(Debug, Default)]
struct Clock {
    order: Vec<u8>,
    /// How many operations of each device are in the order.
    counts: Vec<usize>,
}

/// Both labels of a member lie in so many bytes, each in its half; the dirty region log begins
/// behind them.
const LABELS_BYTES: u64 = 2 << 20;
/// A byte of a label behind the identities in its head.
const ROTTEN_BYTE: u64 = 80;

/// Contents of all devices.
pub(crate) type Snapshots = Vec<Snapshot>;

impl Bed {
    /// Makes devices with these contents: those that hold data, and the log's own last, if it has
    /// one.
    pub(crate) fn over(
        backend: Backend,
        contents: &[Snapshot],
        geometry: Geometry,
        seed: u64,
    ) -> Self {
        assert!(
            contents.len() == backend.members() || contents.len() == backend.members() + 1,
            "each member has a content, and a log's own device may: {} for {backend:?}",
            contents.len()
        );
        let options = |number: u64| SimulatedOptions {
            geometry,
            seed: seed.wrapping_add(number << 32),
            ..SimulatedOptions::default()
        };
        let devices: Vec<_> = contents
            .iter()
            .zip(0..)
            .map(|(content, number)| SimulatedDevice::over(content, &options(number)))
            .collect();
        let away = Arc::new(devices.iter().map(|_| AtomicBool::new(false)).collect());
        let agreed = Arc::new(contents.to_vec());
        let ills = Arc::new(Ills::new(&vec![Vec::new(); contents.len()]));
        Self {
            backend,
            members: backend.members(),
            devices,
            clock: Arc::default(),
            agreed,
            away,
            lost: Arc::default(),
            ills,
            per_record: 0,
            small_maps: false,
            leases: false,
            leased: Arc::default(),
        }
    }

    /// The same, mounted so that a record of a long change takes so many extents or names, and with
    /// extent maps that leave memory at once, or do not.
    pub(crate) fn limited(self, per_record: u16, small_maps: bool) -> Self {
        Self { per_record, small_maps, ..self }
    }

    /// The same, with a process that has leases beside each mount, or without.
    pub(crate) fn leasing(self, leases: bool) -> Self {
        Self { leases, ..self }
    }

    /// Returns how many reads, writes and syncs were made under leases.
    pub(crate) fn leased(&self) -> u64 {
        self.leased.load(Ordering::Relaxed)
    }

    /// Makes devices that go on with what a cut left.
    pub(crate) fn again(remains: &Remains, seed: u64) -> Self {
        let bed =
            Self::over(remains.backend, &remains.snapshots(), remains.devices[0].geometry(), seed)
                .limited(remains.per_record, remains.small_maps);
        Self { agreed: Arc::clone(&remains.agreed), ills: Arc::new(remains.ills()), ..bed }
    }

    /// The device that holds the data; of a group the first member.
    #[must_use]
    pub fn data(&self) -> &Arc<SimulatedDevice> {
        &self.devices[0]
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    /// Each device.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<SimulatedDevice>> {
        self.devices.iter()
    }

    /// The device whose failures matter: the log's own, or the only one.
    pub(crate) fn weakest(&self) -> &Arc<SimulatedDevice> {
        self.log().unwrap_or(&self.devices[0])
    }

    /// The log's own device.
    pub(crate) fn log(&self) -> Option<&Arc<SimulatedDevice>> {
        self.devices.get(self.members)
    }

    /// Contents as they are, caches included.
    pub(crate) fn snapshots(&self) -> Snapshots {
        self.devices.iter().map(|device| device.snapshot()).collect()
    }

    /// How many operations the devices saw.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        if self.devices.len() > 1 {
            self.clock.lock().order.len()
        } else {
            self.devices[0].operation_count()
        }
    }

    /// Lets a member answer no more, or again.
    pub(crate) fn set_away(&self, member: usize, away: bool) {
        self.away[member].store(away, Ordering::SeqCst);
    }

    /// Lets a member answer no more, for good.
    pub(crate) fn lose(&self, member: usize) {
        self.set_away(member, true);
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Lets all members answer again that are not away for good.
    pub(crate) fn return_all(&self) {
        if !self.lost.load(Ordering::SeqCst) {
            self.away.iter().for_each(|away| away.store(false, Ordering::SeqCst));
        }
    }

    /// Lets a member answer no more after so many further calls.
    pub(crate) fn dies_after(&self, member: usize, calls: u64) {
        self.ills.dies_after(member, calls);
    }

    /// Members that were to die and have not are dead from now on.
    pub(crate) fn defuse(&self) {
        self.ills.defuse().into_iter().for_each(|member| self.set_away(member, true));
    }

    /// The member of which something cannot be read.
    pub(crate) fn unreadable_member(&self) -> Option<usize> {
        (0..self.members).find(|member| !self.ills.unreadable(*member).now().is_empty())
    }

    /// From now on so many pages of a member cannot be read that were written to since the copies
    /// agreed first, until something is written there.
    pub(crate) fn make_unreadable(
        &self,
        member: usize,
        config: &Config,
        number: usize,
        pages: u64,
    ) {
        if let Some(at) = copies::written(config, &self.agreed, &self.snapshots(), member, number) {
            let end = (at + pages * 4096).min(self.devices[member].size_bytes());
            self.ills.unreadable(member).add(self.operation_count(), at..end);
        }
    }

    /// The member of which a block with a checksum has rotted.
    pub(crate) fn decayed_member(&self) -> Option<usize> {
        self.ills.decayed(usize::MAX)
    }

    /// Turns a bit of a block with a checksum that a member of a mirror has right, the so-manieth of
    /// those, and leaves it so.
    pub(crate) fn decay(&self, fs: &FileSystem, config: &Config, member: usize, number: usize) {
        let read = |at: u64, bytes: &mut [u8]| self.devices[member].snapshot().read(bytes, at);
        if let Some(at) = decay::block(fs, config, member, number, &read) {
            self.ills.decays(member, self.operation_count() + 1);
            self.timed(|| self.devices[member].decay(at + number as u64 % 512, 16));
        }
    }

    /// Turns a bit of a block of the volume's own on a member of a mirror, the so-manieth of those in
    /// use, and leaves it so.
    pub(crate) fn decay_own(&self, fs: &FileSystem, config: &Config, member: usize, number: usize) {
        if let Some(at) = decay::own(fs, config, member, number) {
            self.ills.decays(member, self.operation_count() + 1);
            self.timed(|| self.devices[member].decay(at + number as u64 * 7 % 512, 16));
        }
    }

    /// All can be read again that a process that dies may have left half written in a row.
    pub(crate) fn mend_rows(&self) {
        let all = 0..u64::MAX;
        let members = (0..self.members).filter(|_| self.backend == Backend::Raid5);
        members
            .for_each(|member| self.ills.unreadable(member).mend(|| self.operation_count(), &all));
    }

    /// Turns a bit of one of the copies of a member's label.
    pub(crate) fn rot_label(&self, member: usize, copy: u64) {
        self.ills.hurt(member);
        self.timed(|| self.devices[member].decay(copy % 2 * (LABELS_BYTES / 2) + ROTTEN_BYTE, 4));
    }

    /// Turns a bit in a member's dirty region log.
    pub(crate) fn rot_region_log(&self, member: usize, at: u64) {
        self.timed(|| self.devices[member].decay(LABELS_BYTES + at % 512, 1));
    }

    /// Whether something damaged the label of a member, or wrote over it.
    fn is_hurt(&self, member: usize) -> bool {
        self.ills.is_hurt(member)
    }

    /// Turns a bit of what was written to a member. The group compares its copies without knowing
    /// which is right, and then knowing.
    pub(crate) fn rot(&self, group: &Group, member: usize, number: usize) -> Result<(), String> {
        let decay = |offset: u64| self.timed(|| self.devices[member].decay(offset, 16));
        rot::compare(group, member, number, &self.agreed, &|| self.snapshots(), &decay)
    }

    /// Writes over the labels of a member past the process: with zeros, or with what it held when
    /// the copies agreed first.
    pub(crate) fn overwrite_labels(&self, member: usize, old: bool) -> bedplate_block::Result<()> {
        self.overwrite(member, old, 0..LABELS_BYTES)
    }

    /// Writes over the rest of a member. Once its group knows: after a power cut before that, an
    /// old label beside old data looks like a good member.
    pub(crate) fn overwrite_data(&self, member: usize, old: bool) -> bedplate_block::Result<()> {
        self.overwrite(member, old, LABELS_BYTES..self.devices[member].size_bytes())
    }

    fn overwrite(&self, member: usize, old: bool, range: Range<u64>) -> bedplate_block::Result<()> {
        self.ills.hurt(member);
        self.ills.unreadable(member).mend(|| self.operation_count(), &range);
        let (device, older) = (&self.devices[member], &self.agreed[member]);
        self.timed(|| {
            if old {
                restore(device, older, &range)
            } else {
                device.write_zeroes(range.start, range.end - range.start)
            }
        })?;
        self.timed(|| device.flush())
    }

    /// Whether what a member held when the copies agreed first is of a member that the group still
    /// has. A member that was replaced since has no way back by itself: its place is taken.
    pub(crate) fn was_member(&self, member: usize, config: &Config) -> bool {
        let older = MemoryDevice::from_snapshot(&self.agreed[member], MemoryDevice::GEOMETRY);
        Label::read(&*older).is_ok_and(|label| config.index_of(label.member).is_some())
    }

    /// Whether a member does not answer.
    pub(crate) fn is_away(&self, member: usize) -> bool {
        self.away[member].load(Ordering::SeqCst)
    }

    /// How many operations each device had seen when `after` were through.
    pub(crate) fn moments(&self, after: usize) -> Vec<usize> {
        if self.devices.len() == 1 {
            return vec![after];
        }
        debug_assert!(
            after <= self.clock.lock().order.len(),
            "a moment is one of the recording: {after}"
        );
        let mut moments = vec![0; self.devices.len()];
        self.clock.lock().order[..after]
            .iter()
            .for_each(|device| moments[usize::from(*device)] += 1);
        moments
    }

    /// Each device with its moment, and what becomes of what it had not flushed.
    fn fates(
        &self,
        after: usize,
        choice: &CrashChoice,
    ) -> Vec<(&Arc<SimulatedDevice>, usize, CrashChoice)> {
        if self.devices.len() == 1 {
            return vec![(&self.devices[0], after, choice.clone())];
        }
        let (now, next) =
            (self.moments(after), self.moments((after + 1).min(self.operation_count())));
        // Without a cache only one write is on its way when the power goes, though there be several
        // devices.
        let fate = |(index, device): (usize, &'_ Arc<SimulatedDevice>)| {
            let on_its_way = device.geometry().volatile_cache || now[index] < next[index];
            (
                now[index],
                if on_its_way {
                    apart(choice, index, index == self.members)
                } else {
                    CrashChoice::LoseAll
                },
            )
        };
        self.devices
            .iter()
            .enumerate()
            .map(|(index, device)| (device, fate((index, device))))
            .map(|(device, (at, choice))| (device, at, choice))
            .collect()
    }

    /// How many writes a cut after so many operations may take back.
    pub(crate) fn unflushed(&self, after: usize) -> usize {
        self.fates(after, &CrashChoice::LoseAll)
            .into_iter()
            .map(|(device, at, _)| device.unflushed(at).len())
            .sum()
    }

    /// What a choice means for a cut after so many operations: for each device what arrives.
    pub(crate) fn crash_steps(&self, after: usize, choice: &CrashChoice) -> Vec<Vec<CrashStep>> {
        self.fates(after, choice)
            .into_iter()
            .map(|(device, at, choice)| device.crash_steps(at, &choice))
            .collect()
    }

    /// What a cut after so many operations leaves.
    pub(crate) fn cut(&self, after: usize, choice: &CrashChoice) -> Remains {
        let devices = self
            .fates(after, choice)
            .into_iter()
            .map(|(device, at, choice)| device.crash_image(at, &choice))
            .collect();
        // A row of a RAID-5 that the cut left half written says nothing of a unit that cannot be
        // read.
        let unreadable = |member: usize| {
            if self.backend == Backend::Mirror {
                self.ills.unreadable(member).at(after)
            } else {
                Vec::new()
            }
        };
        let unreadable = (0..self.devices.len())
            .map(|member| Arc::new(Unreadable::of(&unreadable(member))))
            .collect();
        let hurt = (0..self.devices.len()).map(|member| self.ills.is_hurt(member)).collect();
        let (backend, members, per_record) = (self.backend, self.members, self.per_record);
        let decayed = self.ills.decayed(after);
        Remains {
            backend,
            devices,
            members,
            agreed: Arc::clone(&self.agreed),
            per_record,
            small_maps: self.small_maps,
            unreadable,
            hurt,
            decayed,
        }
    }

    /// Runs a call of one of the devices, and lets the clock run by the operations that it made.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.devices.len() == 1 {
            return call();
        }
        let mut clock = self.clock.lock();
        let result = call();
        let Clock { order, counts } = &mut *clock;
        counts.resize(self.devices.len(), 0);
        for (index, (device, known)) in self.devices.iter().zip(counts).enumerate() {
            let now = device.operation_count();
            let number = u8::try_from(index).expect("a few devices");
            order.extend(std::iter::repeat_n(number, now - *known));
            *known = now;
        }
        result
    }
}

/// Writes what an older content holds where it differs.
fn restore(
    device: &SimulatedDevice,
    older: &Snapshot,
    range: &Range<u64>,
) -> bedplate_block::Result<()> {
    for page in device
        .snapshot()
        .pages_not_shared(older)
        .into_iter()
        .filter(|page| range.contains(&page.start))
    {
        let mut bytes = AlignedBuf::zeroed(usize::try_from(page.end - page.start).expect("a page"));
        older.read(&mut bytes, page.start);
        device.write_at(&bytes, page.start)?;
    }
    Ok(())
}

/// Each device has a choice of its own; that the log's keeps all and the others nothing, or the
/// other way round, is what their order stands against.
fn apart(choice: &CrashChoice, index: usize, is_log: bool) -> CrashChoice {
    let CrashChoice::Seeded(seed) = choice else { return choice.clone() };
    let own = || {
        CrashChoice::Seeded(if index == 0 {
            *seed
        } else {
            seed.rotate_left(32) ^ 0x9e37_79b9_u64.wrapping_mul(index as u64)
        })
    };
    match (seed % 8, is_log) {
        (0, false) | (1, true) => CrashChoice::LoseAll,
        (0, true) | (1, false) => CrashChoice::KeepAll,
        (2, false) => CrashChoice::LoseAll,
        // One member had everything, the others what came.
        (3, false) if index as u64 == (seed >> 8) % 3 => CrashChoice::KeepAll,
        _ => own(),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_block::{AlignedBuf, MemoryDevice};

    use super::*;

    /// Each device loses what it had not flushed itself: a flush of one says nothing of the other,
    /// and both are cut at one moment.
    #[test]
    fn a_cut_is_one_moment_of_both_devices() {
        let geometry = Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY };
        let empty = Snapshot::empty(1 << 20);
        let bed = Bed::over(Backend::One, &[empty.clone(), empty], geometry, 1);
        let wires = bed.connect();
        let log = wires.log().cloned().expect("it has one");
        let page = |fill: u8| AlignedBuf::from_slice(&[fill; 4096]);
        wires.data().write_at(&page(1), 0).expect("it takes it");
        log.write_at(&page(2), 0).expect("it takes it");
        log.flush().expect("it flushes");
        wires.data().write_at(&page(3), 4096).expect("it takes it");
        wires.data().flush().expect("it flushes");
        let first = |device: &Arc<MemoryDevice>, at: u64| {
            let mut page = page(0);
            device.read_at(&mut page, at).expect("it reads");
            page[0]
        };
        let shows = |after: usize, choice: &CrashChoice| {
            let left = bed.cut(after, choice);
            (first(&left.devices[0], 0), first(&left.devices[0], 4096), first(&left.devices[1], 0))
        };
        assert_eq!(bed.operation_count(), 5);
        assert_eq!(shows(0, &CrashChoice::KeepAll), (0, 0, 0));
        assert_eq!(shows(2, &CrashChoice::KeepAll), (1, 0, 2));
        assert_eq!(shows(3, &CrashChoice::LoseAll), (0, 0, 2), "the log's flush is the log's");
        assert_eq!(shows(4, &CrashChoice::LoseAll), (0, 0, 2));
        assert_eq!(shows(5, &CrashChoice::LoseAll), (1, 3, 2));
        assert_eq!(
            shows(2, &CrashChoice::Seeded(8)),
            (0, 0, 2),
            "one keeps all, the other nothing"
        );
        assert_eq!(shows(2, &CrashChoice::Seeded(9)), (1, 0, 0));
        assert_eq!((bed.unflushed(2), bed.unflushed(3), bed.unflushed(5)), (2, 1, 0));
    }
}
