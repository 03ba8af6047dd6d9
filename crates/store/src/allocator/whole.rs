//! Blocks in one run, for what cannot be scattered.

use super::{AllocRequest, Allocator, SpaceClass};
use crate::extent::Run;

impl Allocator {
    /// Takes so many blocks for the volume itself, in one run, and leaves what data would leave.
    /// `None` where no free run is so long.
    pub fn allocate_run(&self, blocks: u64) -> Option<Run> {
        self.open_everything();
        let mut inner = self.give_up_lots();
        loop {
            // What is kept for appends may divide the run.
            inner.revoke_all();
            let want = AllocRequest {
                goal: None,
                blocks,
                ahead: None,
                class: SpaceClass::Metadata,
                reserved: 0,
                part: None,
            };
            let is_left = inner.available(SpaceClass::Data) >= blocks;
            if let Some(run) = is_left.then(|| inner.allocate(want)).flatten() {
                if run.blocks == blocks {
                    inner.unread.note_own(run);
                    inner.check_totals();
                    return Some(run);
                }
                inner.insert(run);
            }
            let (found, any) = self.find_more(inner, SpaceClass::Data);
            inner = found;
            if !any {
                return None;
            }
        }
    }
}
