//! Where a volume's addresses live now. Each operation pins the current layout epoch from its
//! beginning to its end. A layout change publishes a new epoch without blocking; whatever must
//! retire the old one waits until no operation pins it.
//!
//! ```text
//!   open ──bar()──► writes to a range wait ──install()──► open, moved           retired epochs live until their last operation ends
//!        ──shut()─► all operations wait    ──install()──► open, of another shape
//! ```
//! * I-VSP-1: an epoch of another shape (size, members, regions) is installed only while no
//!   operation holds any other.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, RwLock, rank};

use super::raid5::Parity;
use crate::layout::{Locate, Order, Run, Side, rows_from_start};
use crate::redundancy::Redundancy;
use crate::{Layout, Relayout, VolumeConfig};

/// How long a waiting thread sleeps between two looks.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Where a volume's addresses live.
#[derive(Debug, Clone)]
pub(crate) struct LayoutEpoch {
    pub layout: Layout,
    pub relayout: Option<Relayout>,
    /// The order of a relayout in cycles.
    pub order: Option<Arc<Order>>,
    pub size_bytes: u64,
    /// The indices of the members that it has extents on.
    pub members: Vec<usize>,
    /// What a volume with more than one copy keeps; none where it has one, and while a group is
    /// only looked at.
    pub redundancy: Option<Arc<Redundancy>>,
    /// What the layout keeps where it is a RAID-5.
    pub parity: Option<Arc<Parity>>,
    /// What the next layout keeps where it is one.
    pub next_parity: Option<Arc<Parity>>,
    /// Writes to this range wait; in cycles it is one of the walk.
    pub barred: Option<Range<u64>>,
    /// All operations wait.
    pub shut: bool,
}

impl LayoutEpoch {
    /// Makes the epoch that a configuration describes, of whole blocks, without what redundancy
    /// needs.
    pub fn new(volume: &VolumeConfig, block: u64) -> Self {
        let size_bytes = volume.size_bytes();
        debug_assert!(block.is_power_of_two(), "a volume is whole blocks of {block} bytes");
        Self {
            layout: volume.layout.clone(),
            relayout: volume.relayout.clone(),
            order: volume
                .relayout
                .as_ref()
                .filter(|relayout| relayout.in_cycles)
                .and_then(|relayout| Order::of(&volume.layout, relayout))
                .map(Arc::new),
            size_bytes: size_bytes - size_bytes % block,
            members: volume.members(),
            redundancy: None,
            parity: None,
            next_parity: None,
            barred: None,
            shut: false,
        }
    }

    /// Says whether its relayout goes to its end without overwriting what is needed. Another is not
    /// begun, and no group opened with it.
    pub fn is_walkable(&self) -> bool {
        self.relayout.as_ref().is_none_or(|relayout| {
            if relayout.in_cycles {
                self.order.is_some()
            } else {
                relayout.is_walkable(&self.layout)
            }
        })
    }

    /// Returns the rows that its addresses are laid out in; 0 where there are none, and while they
    /// are moved to others.
    pub fn row_bytes(&self) -> u32 {
        if self.relayout.is_some() { 0 } else { rows_from_start(&self.layout) }
    }

    /// Returns the RAID-5 that an address is in.
    #[inline]
    pub fn parity_at(&self, at: u64) -> Option<&Arc<Parity>> {
        match self.relayout.as_ref().map(|relayout| relayout.side(at)) {
            None | Some(Side::Now) => self.parity.as_ref(),
            Some(Side::Next) => self.next_parity.as_ref(),
            Some(Side::Staged) => None,
        }
    }

    /// Returns every RAID-5 that addresses may be in.
    pub fn parities(&self) -> impl Iterator<Item = &Arc<Parity>> {
        self.parity.iter().chain(&self.next_parity)
    }

    pub fn has_parity(&self) -> bool {
        self.parity.is_some() || self.next_parity.is_some()
    }

    /// Cuts a range where one layout ends and another begins: addresses and lengths.
    pub fn stretches(&self, at: u64, len: u64) -> Vec<(u64, u64)> {
        let Some(staged) =
            self.relayout.as_ref().filter(|relayout| !relayout.in_cycles).map(Relayout::staged)
        else {
            return vec![(at, len)];
        };
        let mut edges = vec![at];
        edges.extend(
            [staged.start, staged.end].into_iter().filter(|edge| (at + 1..at + len).contains(edge)),
        );
        edges.push(at + len);
        edges.dedup();
        debug_assert!(edges.is_sorted(), "stretches follow each other: {edges:?}");
        edges.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
    }

    #[inline]
    pub fn bars(&self, offset: u64, len: u64) -> bool {
        self.barred.as_ref().is_some_and(|barred| match &self.order {
            None => offset < barred.end && barred.start < offset + len,
            Some(order) => order.concerns(barred, offset, len),
        })
    }
}

impl Locate for LayoutEpoch {
    #[inline]
    fn locate(&self, at: u64) -> Run {
        match (&self.relayout, &self.order) {
            (None, _) => self.layout.locate(at),
            (Some(relayout), None) => relayout.locate(&self.layout, at),
            (Some(relayout), Some(order)) => order.locate(relayout, &self.layout, at),
        }
    }
}

/// The epoch that counts, and those that operations still hold.
#[derive(Debug)]
pub(crate) struct EpochTable {
    /// A leaf lock.
    now: RwLock<Arc<LayoutEpoch>, { rank::LAYOUT_EPOCH }>,
    /// How many counted so far.
    version: AtomicU64,
    /// Rank G3: another epoch is installed under it.
    retired: Mutex<Vec<Weak<LayoutEpoch>>, { rank::PINNED_EPOCHS }>,
}

impl EpochTable {
    pub fn new(epoch: LayoutEpoch) -> Self {
        Self {
            now: RwLock::new(Arc::new(epoch)),
            version: AtomicU64::new(0),
            retired: Mutex::default(),
        }
    }

    /// Returns the epoch that counts, even while it is shut: to look at it, or within an operation.
    #[inline]
    pub fn peek(&self) -> Arc<LayoutEpoch> {
        Arc::clone(&self.now.read())
    }

    /// Returns a number that changes when another epoch counts: for callers that keep the one they
    /// go by, and let go of it now and then.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the epoch for an operation.
    #[inline]
    pub fn get(&self) -> Arc<LayoutEpoch> {
        loop {
            let epoch = self.peek();
            if !epoch.shut {
                return epoch;
            }
            drop(epoch);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the epoch for writes to ranges; nothing while one of them is barred.
    #[inline]
    pub fn try_for_writes(
        &self,
        mut ranges: impl Iterator<Item = (u64, u64)>,
    ) -> Option<Arc<LayoutEpoch>> {
        let epoch = self.peek();
        (!epoch.shut && !ranges.any(|(offset, len)| epoch.bars(offset, len))).then_some(epoch)
    }

    /// Returns the epoch for a write, once its range is not barred.
    #[inline]
    pub fn get_for_write(&self, offset: u64, len: u64) -> Arc<LayoutEpoch> {
        loop {
            if let Some(epoch) = self.try_for_writes(std::iter::once((offset, len))) {
                return epoch;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Lets another epoch count.
    pub fn install(&self, epoch: LayoutEpoch) {
        let mut retired = self.retired.lock();
        let before = std::mem::replace(&mut *self.now.write(), Arc::new(epoch));
        self.version.fetch_add(1, Ordering::Release);
        retired.push(Arc::downgrade(&before));
        drop(before);
        retired.retain(|epoch| epoch.strong_count() > 0);
    }

    /// Changes the epoch that counts.
    pub fn change(&self, change: impl FnOnce(&mut LayoutEpoch)) {
        let mut epoch = (*self.peek()).clone();
        change(&mut epoch);
        self.install(epoch);
    }

    /// Waits until no operation holds an epoch that does not count any more. Gives up in time,
    /// because the owner of such an operation may be waiting, too.
    pub fn drain(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            let mut retired = self.retired.lock();
            retired.retain(|epoch| epoch.strong_count() > 0);
            if retired.is_empty() {
                // What those operations did happened before.
                fence(Ordering::Acquire);
                return true;
            }
            drop(retired);
            if start.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Installs an epoch of another shape, which `make` gets ready while no operation is under way.
    /// Returns false, with everything as before, when operations do not end in time.
    ///
    /// # Errors
    /// Those of `make`; everything is as before.
    pub fn replace<E>(
        &self,
        timeout: Duration,
        make: impl FnOnce(&LayoutEpoch) -> Result<LayoutEpoch, E>,
    ) -> Result<bool, E> {
        self.change(|epoch| epoch.shut = true);
        let made = if self.drain(timeout) { make(&self.peek()).map(Some) } else { Ok(None) };
        let done = match made {
            Ok(Some(epoch)) => {
                assert!(
                    self.drain(Duration::ZERO),
                    "I-VSP-1: no operation pins an epoch that is replaced"
                );
                self.install(LayoutEpoch { shut: false, ..epoch });
                return Ok(true);
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        self.change(|epoch| epoch.shut = false);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Role};

    fn epochs() -> EpochTable {
        let layout = Layout::Extent(Extent { member: 0, start: 0, len: 1 << 20 });
        EpochTable::new(LayoutEpoch::new(
            &VolumeConfig { role: Role::Data, region_bytes: 1 << 16, layout, relayout: None },
            512,
        ))
    }

    #[test]
    fn who_began_under_a_space_is_waited_for_and_nobody_else_is() {
        let epochs = epochs();
        let held = epochs.get();
        epochs.change(|epoch| epoch.barred = Some(4096..8192));
        assert!(!epochs.drain(Duration::ZERO), "an operation goes by the space before");
        let write = |offset, len| epochs.try_for_writes(std::iter::once((offset, len))).is_some();
        assert!(write(0, 4096) && write(8192, 512) && !write(0, 4097) && !write(8191, 10));
        drop(held);
        let other = epochs.get();
        assert!(epochs.drain(Duration::ZERO), "later operations pin the epoch that counts");
        assert!(other.barred.is_some());
    }

    /// I-VSP-1
    #[test]
    fn i_vsp_1_a_space_of_another_shape_waits_for_everybody() {
        let epochs = epochs();
        let held = epochs.get();
        let larger =
            |epoch: &LayoutEpoch| Ok::<_, ()>(LayoutEpoch { size_bytes: 2 << 20, ..epoch.clone() });
        assert_eq!(epochs.replace(Duration::ZERO, larger), Ok(false));
        assert!(!epochs.get().shut, "after a failure operations go on");
        drop(held);
        assert_eq!(epochs.replace(Duration::ZERO, |_| Err(7)), Err(7));
        assert_eq!(
            (epochs.replace(Duration::ZERO, larger), epochs.get().size_bytes),
            (Ok(true), 2 << 20)
        );
    }
}
