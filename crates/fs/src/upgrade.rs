//! Upgrading: an older volume becomes one of the present format, in place.
//!
//! ```text
//!  log replayed ─► claims of all extents ─► one metadata commit: what was replayed, and the free space ─► superblock A ─► superblock B
//!                                           └ older formats do not look at it ────────────────────────┘ └ counts from here on ┘
//! ```
//!
//! Cut at any point, the volume is of the older or of the present format and whole in either; an
//! upgrade that is run again counts everything again (S-196).

use std::sync::Arc;

use bedplate_block::BlockDevice;
use serde::Serialize;

use crate::mount::{begin_writing, load, refuse_damage};
use crate::{Error, ErrorKind, Result};

/// Cap of the tree's cache during an upgrade.
const CACHE_BYTES: u64 = 64 << 20;

/// What an upgrade did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpgradeReport {
    /// The format version before.
    pub from: u32,
    /// The format version now.
    pub to: u32,
    /// Extents read.
    pub extents: u64,
}

/// Upgrades; see [`FileSystem::upgrade`](crate::FileSystem::upgrade).
pub(crate) fn upgrade(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
) -> Result<UpgradeReport> {
    let loaded = load(Arc::clone(device), log.cloned(), false, CACHE_BYTES)?;
    let from = loaded.found.superblock.version();
    if loaded.found.superblock.sums {
        loaded.meta.close();
        return Ok(UpgradeReport { from, to: from, extents: 0 });
    }
    refuse_damage(&loaded)?;
    loaded.meta.recount_space();
    let (_space, extents) = begin_writing(&loaded)?;
    if loaded.meta.is_cramped() {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{} has no room for the free space in its metadata: mount it, remove something, \
                 unmount it and upgrade it again",
                device.name()
            ),
        ));
    }
    loaded.meta.close();
    loaded.meta.region().update_superblock(|superblock| {
        superblock.keeps_space = true;
        superblock.packs = true;
        superblock.sums = true;
        superblock.clean = true;
        superblock.carries = false;
    })?;
    Ok(UpgradeReport { from, to: loaded.meta.region().superblock().version(), extents })
}

#[cfg(test)]
mod sum_tests;
