//! Data that the log has instead of its place on the device.

use super::store::MetaStore;
use crate::Result;
use crate::log::{HomeWrites, ReplayReport};

impl MetaStore {
    /// Takes note of what records carry that were replayed: reads of the device are to show it.
    pub fn add_homes(&self, replayed: &ReplayReport) {
        self.homes.add(replayed.last, &replayed.homes);
    }

    /// Returns what records carry and the device does not have.
    #[inline]
    pub fn homes(&self) -> &HomeWrites {
        &self.homes
    }

    /// Has the device have all that records carry. No flush.
    ///
    /// # Errors
    /// The device's; then the rest waits.
    pub fn write_homes(&self) -> Result<()> {
        self.homes.write(&*self.device)
    }

    /// Returns whether a record may carry `bytes` more of data.
    #[inline]
    pub fn carries_data(&self, bytes: u64) -> bool {
        self.homes.bytes() + bytes <= HomeWrites::BYTES_MAX
            && self.log.get().is_some_and(|log| log.carries_data(bytes))
    }
}
