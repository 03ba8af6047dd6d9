//! Handles: numbers that the kernel gives back with every request on an open file or directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::RwLock;

/// Number of shards: opens of one shard do not disturb requests on another.
const SHARDS: usize = 16;

#[derive(Debug)]
struct Shard<T> {
    slots: Vec<Option<Arc<T>>>,
    free: Vec<usize>,
}

/// A table of open things by handle. A handle is used again after its thing was removed.
#[derive(Debug)]
pub(super) struct Table<T> {
    shards: [RwLock<Shard<T>>; SHARDS],
    next_shard: AtomicUsize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| {
                RwLock::new(Shard { slots: Vec::new(), free: Vec::new() })
            }),
            next_shard: AtomicUsize::new(0),
        }
    }

    pub(super) fn insert(&self, item: Arc<T>) -> u64 {
        let shard_index = self.next_shard.fetch_add(1, Relaxed) % SHARDS;
        let mut shard = self.shards[shard_index].write();
        let slot = shard.free.pop().unwrap_or_else(|| {
            shard.slots.push(None);
            shard.slots.len() - 1
        });
        debug_assert!(
            shard.slots[slot].is_none(),
            "a handle that is given out belongs to nothing: slot {slot} of shard {shard_index}"
        );
        shard.slots[slot] = Some(item);
        (slot * SHARDS + shard_index) as u64
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        let (shard, slot) = self.place(handle)?;
        shard.read().slots.get(slot)?.clone()
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        let (shard, slot) = self.place(handle)?;
        let mut shard = shard.write();
        let item = shard.slots.get_mut(slot)?.take()?;
        debug_assert!(!shard.free.contains(&slot), "slot {slot} was in use, so it was not free");
        shard.free.push(slot);
        Some(item)
    }

    /// Removes everything.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            // Both at once: a slot that is free and not there would be given out. What was in them is
            // dropped with the shard unlocked.
            let removed = {
                let mut shard = shard.write();
                shard.free.clear();
                std::mem::take(&mut shard.slots)
            };
            drop(removed);
        }
    }

    fn place(&self, handle: u64) -> Option<(&RwLock<Shard<T>>, usize)> {
        let handle = usize::try_from(handle).ok()?;
        Some((&self.shards[handle % SHARDS], handle / SHARDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_find_their_thing_until_removed() {
        let table = Table::new();
        let handles: Vec<u64> = (0..100).map(|i| table.insert(Arc::new(i))).collect();
        for (i, handle) in handles.iter().enumerate() {
            assert_eq!(*table.get(*handle).unwrap(), i);
        }
        assert_eq!(*table.remove(handles[7]).unwrap(), 7);
        assert!(table.get(handles[7]).is_none());
        assert!(table.remove(handles[7]).is_none());
        assert!(table.get(u64::MAX).is_none());
        table.clear();
        assert!(handles.iter().all(|handle| table.get(*handle).is_none()));
    }

    /// An open between the two steps of a clear was given a slot that was gone, and panicked.
    #[test]
    fn a_table_that_is_cleared_gives_out_only_slots_that_it_has() {
        let table = Table::new();
        std::thread::scope(|scope| {
            let opens = || {
                for i in 0..100_000 {
                    let handles = [0; 4].map(|_| table.insert(Arc::new(i)));
                    handles.into_iter().for_each(|handle| drop(table.remove(handle)));
                }
            };
            let opens: Vec<_> = (0..4).map(|_| scope.spawn(opens)).collect();
            while !opens.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                table.clear();
            }
        });
    }

    #[test]
    fn handles_are_used_again() {
        let table = Table::new();
        let mut seen = std::collections::HashSet::new();
        for i in 0..1000 {
            let handle = table.insert(Arc::new(i));
            seen.insert(handle);
            table.remove(handle);
        }
        assert!(seen.len() <= SHARDS);
    }
}
