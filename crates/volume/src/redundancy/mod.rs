//! Which regions may differ between copies: in memory, and in the dirty region log on the members.

mod dirty_region_log;
mod regions;

use bedplate_block::sync::{Mutex, rank};

pub(crate) use dirty_region_log::{Drl, REGIONS_MAX};
#[cfg(feature = "forge")]
pub(crate) use dirty_region_log::{area, reseal};
pub(crate) use regions::{BEHIND, COPYING, DIRTY, Obstacle, Regions, UNSYNCED};

use crate::Id;

/// What a volume with more than one copy keeps.
#[derive(Debug)]
pub(crate) struct Redundancy {
    pub regions: Regions,
    /// Rank G1: held while bits become durable; a member that fails meanwhile leaves under it.
    pub log: Mutex<Drl, { rank::DIRTY_REGION_LOG }>,
}

impl Redundancy {
    /// Makes what a volume of a size keeps of which nothing is known yet.
    pub fn new(group: Id, ordinal: usize, size_bytes: u64, region_bytes: u64) -> Self {
        let regions = Regions::new(size_bytes, region_bytes);
        Self { log: Mutex::new(Drl::new(group, ordinal, regions.count())), regions }
    }

    /// Knows of every region what another knew.
    pub fn take_over(&self, old: &Self) {
        let count = self.regions.count().min(old.regions.count());
        self.regions.take_over(&old.regions);
        let dirty: Vec<u64> = old.log.lock().dirty().filter(|region| *region < count).collect();
        self.log.lock().change(dirty, true);
    }

    /// What the members held where the volume grew is not the same everywhere: it is made to agree
    /// like what a crash left.
    pub fn doubt_from(&self, size_bytes: u64, uncertain_rows: u32) {
        let new = (0..self.regions.count()).filter(|region| {
            self.regions.range(*region).0 + self.regions.range(*region).1 > size_bytes
        });
        let new: Vec<u64> = new.collect();
        for region in &new {
            self.regions.set_dirty(*region);
            self.regions.set(*region, uncertain_rows);
        }
        self.log.lock().change(new, true);
    }
}
