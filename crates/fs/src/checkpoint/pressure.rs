//! Whether checkpoints fill the volume.

use std::fmt;

use serde::Serialize;

use crate::engine::Engine;
use crate::{Result, SpacePolicy, format_size};

/// From how much of the volume in checkpoints on it is worth a warning, in percent.
const HELD_PERCENT_WARN: u64 = 50;
/// From how little of the volume available on it is, where there are checkpoints, in percent.
const AVAILABLE_PERCENT_WARN: u64 = 10;
const _: () = assert!(
    HELD_PERCENT_WARN < 100 && AVAILABLE_PERCENT_WARN < 100,
    "a warning comes before a volume is full"
);

/// Checkpoints hold much of the volume, or little of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pressure {
    /// Bytes that all checkpoints together hold: what deleting them would free.
    pub held_bytes: u64,
    /// How much of the volume that is.
    pub held_percent: u64,
    /// How much of the volume is available to data.
    pub available_percent: u64,
    /// What happens to checkpoints when nothing is left.
    pub policy: SpacePolicy,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held_bytes, held_percent, available_percent, policy } = self;
        let then = match policy {
            SpacePolicy::Refuse => {
                "on a full volume writes fail until some are deleted (policy 'refuse')"
            }
            SpacePolicy::DeleteOldest => {
                "a full volume deletes the oldest automatic ones (policy 'delete-oldest')"
            }
        };
        let held = format_size(*held_bytes);
        write!(
            f,
            "checkpoints hold {held_percent} % of the volume ({held}) and {available_percent} % of \
             it is available: {then}"
        )
    }
}

impl Engine {
    /// Returns what there is to warn of. Counts what checkpoints hold only where they may hold
    /// much.
    pub(crate) fn pressure(&self) -> Result<Option<Pressure>> {
        let counts = self.checkpoint_counts();
        let (statfs, percent) = (self.statfs(), |part: u64, all: u64| {
            u64::try_from(u128::from(part) * 100 / u128::from(all.max(1))).unwrap_or(100)
        });
        let available_percent = percent(statfs.available_bytes, statfs.total_bytes);
        if counts.count == 0 || available_percent > 100 - HELD_PERCENT_WARN {
            return Ok(None);
        }
        let held_bytes = self.all_checkpoints_space()?.alone_bytes;
        let held_percent = percent(held_bytes, statfs.total_bytes);
        let worth_it =
            held_percent >= HELD_PERCENT_WARN || available_percent < AVAILABLE_PERCENT_WARN;
        Ok(worth_it.then_some(Pressure {
            held_bytes,
            held_percent,
            available_percent,
            policy: counts.policy,
        }))
    }
}
