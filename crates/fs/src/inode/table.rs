//! The table of the inodes that are loaded, and of the pins of those that are not.

use std::collections::HashMap;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Inode;
use crate::statistics::{CounterSnapshot, Counters};
use crate::{InodeNo, Lsn, Result};
use bedplate_store::InodeRow;

/// How many unpinned inodes a shard keeps before it drops some.
const SHARD_INODES_MAX: usize = 1024;
/// How many inodes a shard keeps that were idle from one turn of the sync daemon to the next.
const SHARD_IDLE_MAX: usize = 256;
/// A map with so much room, of which less than a quarter is used, gives room back.
const ROOM_KEPT: usize = 1024;
const SHARDS: usize = 16;
const _: () = assert!(
    SHARD_IDLE_MAX <= SHARD_INODES_MAX && SHARDS.is_power_of_two(),
    "I-INO-3: fewer idle inodes stay than are looked through"
);

#[derive(Default)]
struct Shard {
    inodes: HashMap<InodeNo, Arc<Inode>>,
    /// Pins of inodes that are not loaded; none is 0.
    parked: HashMap<InodeNo, u64>,
}

impl Shard {
    fn give_room_back(&mut self) {
        if self.inodes.capacity() > ROOM_KEPT.max(4 * self.inodes.len()) {
            self.inodes.shrink_to_fit();
        }
        if self.parked.capacity() > ROOM_KEPT.max(4 * self.parked.len()) {
            self.parked.shrink_to_fit();
        }
    }
}

/// The loaded inodes, in shards.
pub(crate) struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    /// Sums of the inodes that are loaded no more.
    left: Counters,
    /// How often all of them were looked at.
    #[cfg(test)]
    pub(crate) walks: AtomicU64,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            left: Counters::default(),
            #[cfg(test)]
            walks: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.shards[usize::try_from(ino.0 % SHARDS as u64).expect("below SHARDS")]
    }

    /// Returns a loaded inode, or loads it with `load` (called with the shard locked, so that it is
    /// loaded once). A full table lets go of idle inodes whose records are `sealed`.
    pub(crate) fn get_or_load(
        &self,
        ino: InodeNo,
        sealed: Lsn,
        load: impl FnOnce() -> Result<InodeRow>,
    ) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            inode.note_used();
            return Ok(Arc::clone(inode));
        }
        let inode = Arc::new(Inode::new(ino, load()?));
        self.shrink(&mut shard, sealed);
        inode.life.lock().pins = shard.parked.remove(&ino).unwrap_or(0);
        shard.inodes.insert(ino, Arc::clone(&inode));
        Ok(inode)
    }

    /// Returns an inode if it is loaded.
    pub(crate) fn if_loaded(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino).cloned()
    }

    /// Returns whether an inode is pinned, loaded or not.
    pub(crate) fn is_pinned(&self, ino: InodeNo) -> bool {
        let shard = self.shard(ino).lock();
        shard
            .inodes
            .get(&ino)
            .map_or_else(|| shard.parked.contains_key(&ino), |inode| inode.life.lock().pins > 0)
    }

    /// Takes `count` pins off an inode, loaded or not; returns it where none is left, for the
    /// caller to reclaim it if it has no name. All with the shard locked: a rollback that takes the
    /// inode away parks what is left.
    pub(crate) fn unpin(&self, ino: InodeNo, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            return inode.take_pins(count).then(|| Arc::clone(inode));
        }
        let pins = shard.parked.get_mut(&ino)?;
        assert!(
            *pins >= count,
            "I-INO-2: inode {} has {pins} parked pins, {count} are given back",
            ino.0
        );
        *pins -= count;
        if *pins == 0 {
            shard.parked.remove(&ino);
        }
        None
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>, sealed: Lsn) {
        let mut shard = self.shard(inode.ino).lock();
        self.shrink(&mut shard, sealed);
        let ino = inode.ino;
        debug_assert!(!shard.parked.contains_key(&ino), "inode {} is new, nothing pins it", ino.0);
        let before = shard.inodes.insert(ino, inode);
        debug_assert!(before.is_none(), "inode {} is in memory once", ino.0);
    }

    pub(crate) fn remove(&self, ino: InodeNo) {
        if let Some(inode) = self.shard(ino).lock().inodes.remove(&ino) {
            self.left.absorb(&inode.snapshot());
        }
    }

    /// Returns the loaded inodes that a test picks; it is called with a shard locked.
    pub(crate) fn loaded(&self, pick: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        #[cfg(test)]
        self.walks.fetch_add(1, Ordering::Relaxed);
        self.shards
            .iter()
            .flat_map(|shard| {
                shard
                    .lock()
                    .inodes
                    .values()
                    .filter(|inode| pick(inode))
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Forgets an inode whose row a rollback took away. What retains it, such as a kernel that
    /// looked it up, gives its pins back later, and another rollback may bring the inode back
    /// before: they are parked.
    pub(crate) fn kill(&self, inode: &Inode) {
        inode.kill();
        let mut shard = self.shard(inode.ino).lock();
        if shard.inodes.remove(&inode.ino).is_some() {
            self.left.absorb(&inode.snapshot());
            let pins = inode.life.lock().pins;
            if pins > 0 {
                shard.parked.insert(inode.ino, pins);
            }
        }
    }

    /// Forgets inodes that are no more, retained or not.
    pub(crate) fn drop_all(&self, inodes: &[Arc<Inode>]) {
        inodes.iter().for_each(|inode| self.remove(inode.ino));
    }

    /// Returns the sums of the counters of all inodes that are loaded or were.
    pub(crate) fn counters(&self) -> CounterSnapshot {
        let sum = Counters::default();
        sum.absorb(&self.left.snapshot());
        self.shards.iter().for_each(|shard| {
            shard.lock().inodes.values().for_each(|inode| sum.absorb(&inode.snapshot()));
        });
        sum.snapshot()
    }

    /// Sets all counters back to zero.
    pub(crate) fn reset_statistics(&self) {
        self.left.reset();
        self.shards.iter().for_each(|shard| {
            shard.lock().inodes.values().for_each(|inode| inode.reset_statistics());
        });
    }

    /// Drops idle inodes from a full shard: half of it at once, so that the cost is constant an
    /// inode.
    fn shrink(&self, shard: &mut Shard, sealed: Lsn) {
        if shard.inodes.len() >= SHARD_INODES_MAX && shard.inodes.len().is_power_of_two() {
            self.let_go(shard, sealed, SHARD_INODES_MAX / 2, |_| true);
        }
    }

    /// Returns whether so many are loaded that it is worth a seal of the log to let go of some.
    pub(crate) fn are_many(&self) -> bool {
        self.shards.iter().map(|shard| shard.lock().inodes.len()).sum::<usize>()
            > SHARDS * SHARD_IDLE_MAX
    }

    /// I-INO-3: lets go of inodes that were idle since the last call, and gives back the room that
    /// they and forgotten pins had. Returns how many.
    pub(crate) fn let_idle_go(&self, sealed: Lsn) -> usize {
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let spare = shard.inodes.len().saturating_sub(SHARD_IDLE_MAX);
            shard.inodes.values().for_each(|inode| inode.rest());
            count += self.let_go(&mut shard, sealed, spare, Inode::is_rested);
            shard.give_room_back();
        }
        count
    }

    /// Drops up to `spare` idle inodes that a test picks; returns how many.
    fn let_go(
        &self,
        shard: &mut Shard,
        sealed: Lsn,
        mut spare: usize,
        pick: impl Fn(&Inode) -> bool,
    ) -> usize {
        let Shard { inodes, parked } = shard;
        let before = inodes.len();
        inodes.retain(|ino, inode| {
            // An open holds the inode itself, so the pins of one that only the table holds are
            // retentions.
            if spare == 0 || Arc::strong_count(inode) > 1 || !pick(inode) {
                return true;
            }
            let Some(pins) = inode.pins_if_idle(sealed) else { return true };
            if pins > 0 {
                let before = parked.insert(*ino, pins);
                debug_assert!(
                    before.is_none(),
                    "I-INO-2: the pins of inode {} are parked once: {before:?}",
                    ino.0
                );
            }
            spare -= 1;
            self.left.absorb(&inode.snapshot());
            false
        });
        before - inodes.len()
    }

    /// Returns how many inodes are loaded, and of how many only the pins are known.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let sizes = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.inodes.len(), shard.parked.len())
        });
        sizes.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn i_ino_2_pins_outlive_the_stay_in_memory() {
        let table = InodeTable::new();
        let count = (SHARDS * SHARD_INODES_MAX * 2) as u64;
        for ino in 1..=count {
            let inode = table.get_or_load(InodeNo(ino), Lsn(0), || Ok(row(1))).unwrap();
            inode.pin().unwrap();
            inode.pin().unwrap();
        }
        let loaded: usize = table.shards.iter().map(|shard| shard.lock().inodes.len()).sum();
        assert!(loaded <= SHARDS * SHARD_INODES_MAX, "{loaded} inodes are loaded and not in use");
        for ino in 1..=count {
            assert!(table.unpin(InodeNo(ino), 1).is_none_or(|inode| !inode.is_dying()));
            // The last name goes while it is retained: it must live on until the last pin goes.
            let inode = table.get_or_load(InodeNo(ino), Lsn(0), || Ok(row(1))).unwrap();
            inode.attr_lock().row.nlink = 0;
            assert!(!inode.lost_name());
            assert!(inode.unpin(1), "inode {ino}");
            table.remove(InodeNo(ino));
        }
        assert!(table.shards.iter().all(|shard| shard.lock().parked.is_empty()));
    }

    #[test]
    fn i_ino_3_what_was_idle_is_let_go_of_and_what_is_used_stays() {
        let table = InodeTable::new();
        let count = (SHARDS * SHARD_INODES_MAX / 2) as u64;
        let load = |ino: u64| table.get_or_load(InodeNo(ino), Lsn(0), || Ok(row(1))).unwrap();
        (1..=count).for_each(|ino| assert!(!load(ino).pin().unwrap(), "the first pin"));
        let held = load(7);
        load(8).note_lsn(Lsn(9), false);
        assert_eq!(table.let_idle_go(Lsn(0)), 0, "all were asked for a moment ago");
        let used: Vec<Arc<Inode>> = (100..120).map(load).collect();
        let addresses: Vec<*const Inode> = used.iter().map(Arc::as_ptr).collect();
        drop(used);
        assert_eq!(
            table.let_idle_go(Lsn(0)) as u64,
            count - (SHARDS * SHARD_IDLE_MAX) as u64,
            "I-INO-3"
        );
        assert_eq!(
            table.sizes(),
            (SHARDS * SHARD_IDLE_MAX, count as usize - SHARDS * SHARD_IDLE_MAX)
        );
        assert!(
            addresses
                .iter()
                .zip(100..)
                .all(|(address, ino)| std::ptr::eq(*address, Arc::as_ptr(&load(ino))))
        );
        assert!(
            Arc::ptr_eq(&held, &load(7)) && load(8).meta_lsn() == Lsn(9),
            "an open, and a record that is not sealed"
        );
        for ino in 1..=count {
            assert!(table.unpin(InodeNo(ino), 1).is_none_or(|inode| !inode.is_dying()));
        }
        table.let_idle_go(Lsn(0));
        let shards: Vec<_> = table.shards.iter().map(|shard| shard.lock()).collect();
        assert!(
            shards
                .iter()
                .all(|shard| shard.parked.is_empty() && shard.parked.capacity() <= ROOM_KEPT)
        );
    }
}
