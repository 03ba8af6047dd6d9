//! The database's own buffer cache, as far as it matters to a disk: which pages are in memory.
//! Second-chance replacement, in shards.

use std::collections::HashMap;

use parking_lot::Mutex;

const SHARDS: usize = 64;

/// The numbers of the pages in memory.
pub(crate) struct PageCache {
    shards: Vec<Mutex<Shard>>,
}

struct Shard {
    slots: Vec<Slot>,
    capacity: usize,
    hand: usize,
    at: HashMap<u64, usize>,
}

struct Slot {
    page: u64,
    used: bool,
}

impl PageCache {
    /// Makes a cache that holds about `pages` pages.
    pub(crate) fn new(pages: u64) -> Self {
        let capacity = (pages as usize).div_ceil(SHARDS).max(1);
        let shard = || {
            Mutex::new(Shard {
                slots: Vec::with_capacity(capacity),
                capacity,
                hand: 0,
                at: HashMap::with_capacity(capacity),
            })
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Uses a page; returns whether it was there. If not, it is there now, in place of one that was
    /// not used lately.
    pub(crate) fn touch(&self, page: u64) -> bool {
        let spread = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        self.shards[spread as usize].lock().touch(page)
    }
}

impl Shard {
    fn touch(&mut self, page: u64) -> bool {
        if let Some(&slot) = self.at.get(&page) {
            self.slots[slot].used = true;
            return true;
        }
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(Slot { page, used: false });
            self.slots.len() - 1
        } else {
            self.evict(page)
        };
        self.at.insert(page, slot);
        false
    }

    fn evict(&mut self, page: u64) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[slot].used) {
                self.at.remove(&self.slots[slot].page);
                self.slots[slot] = Slot { page, used: false };
                return slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_fits_and_forgets_the_rest() {
        let cache = PageCache::new(640);
        for page in 0..200 {
            assert!(!cache.touch(page));
        }
        let kept = (0..200).filter(|&page| cache.touch(page)).count();
        assert!(kept > 190, "{kept}");
        for page in 1000..10_000 {
            cache.touch(page);
        }
        let kept = (0..200).filter(|&page| cache.touch(page)).count();
        assert!(kept < 20, "{kept}");
    }

    #[test]
    fn what_is_used_survives_what_is_not() {
        let mut shard = Shard { slots: Vec::new(), capacity: 4, hand: 0, at: HashMap::new() };
        for page in 0..4 {
            shard.touch(page);
        }
        shard.touch(0);
        shard.touch(10);
        assert!(shard.touch(0), "used twice, so it had a second chance");
        assert!(!shard.touch(1), "the first that had not been used again");
    }
}
