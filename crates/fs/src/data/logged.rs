//! Data that goes into the log instead of to its place: what small writes add to a file that is
//! synced, behind its end or where it has no data yet.
//!
//! A durable append is a write of its data, a write of its record and a flush. Of a small one the
//! record carries the data: one write and the flush, and many appends go to their place in one
//! write later (`store/src/log/home.rs`, decision 0062). Of a file that is not synced between its writes
//! nothing is gained: its data goes to its place at once, or waits (`data/delayed.rs`).

use std::sync::atomic::Ordering;

use super::DataPath;
use super::exposure::Exposing;
use crate::Result;

impl DataPath<'_> {
    /// Has the record of a write of so many bytes, which adds to the file and changes nothing, carry
    /// its data, where that pays.
    pub(super) fn log_if_small(self, exposing: &mut Exposing, bytes: u64) {
        let state = self.state();
        if bytes <= self.fs.limits().logged_write_bytes
            && state.synced.load(Ordering::Relaxed)
            && self.fs.carries_data(bytes)
            && !exposing.sums()
            // Its processes read the device.
            && state.lease().is_none()
        {
            exposing.set_logged();
        }
    }

    /// As [`overwrite`](Self::overwrite), of what the record is to carry.
    pub(super) fn log_overwrite(
        self,
        exposing: &mut Exposing,
        bytes: &[u8],
        at: u64,
    ) -> Result<()> {
        let range = at..at + bytes.len() as u64;
        let state = self.state();
        self.fs.permit_overwrite(&state.unsealed, &range)?;
        state.held_sectors.forget(&range);
        let _write = state.read_windows.begin_write(range);
        exposing.log_write(at, bytes);
        Ok(())
    }
}
