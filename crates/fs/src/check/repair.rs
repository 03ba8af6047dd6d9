//! Mending: recovers the volume for good and commits the repairs.
//!
//! ```text
//!  damaged superblock copy ─► log replayed, tree committed (as a mount does) ─► repairs: one record ─► tree committed ─► marked clean
//! ```
//!
//! Cut at any point, the volume is as broken as before or mended, and never worse (I-CHK-2).

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::notes::Notes;
use super::{CACHE_BYTES, past};
use crate::mount::{begin_writing, load};
use crate::{Error, FindingKind, Result};
use bedplate_store::{CheckpointSet, Record, RecordKind, Superblock};

/// Mends everything that `notes` say; all of it has one right answer.
pub(super) fn mend(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    notes: &mut Notes,
) -> Result<()> {
    assert!(
        notes.report.is_repairable(),
        "I-CHK-1: what needs a guess is left alone, and everything beside it"
    );
    Superblock::read(device)?.restore(device)?;
    // I-CHK-2: from here on the copies are written in turns, so both must be whole.
    if let Some(at) = Superblock::read(device)?.bad_copy {
        return Err(Error::corrupt(format!(
            "{}: superblock copy at byte {at} was written and cannot be read again: replace the \
             device",
            device.name()
        )));
    }
    if notes.report.findings.iter().any(|finding| finding.kind != FindingKind::Superblock) {
        let loaded = load(Arc::clone(device), log.cloned(), false, CACHE_BYTES)?;
        if loaded.found.superblock.keeps_space {
            loaded.meta.recount_space();
        }
        let _space = begin_writing(&loaded)?;
        let rows =
            past::with_images(&loaded.meta, std::mem::take(&mut notes.repairs), &notes.past)?;
        // They say what every checkpoint shows from now on: nothing is to be kept of what was
        // wrong.
        loaded.meta.set_checkpoints(CheckpointSet::default());
        let _left = loaded.meta.commit(
            Record { kind: RecordKind::Setting, rows, exposes: None, barrier: false },
            None,
        );
        loaded.meta.metadata_commit()?;
        loaded.meta.close();
        loaded.meta.region().update_superblock(|superblock| {
            superblock.clean = true;
            superblock.carries = false;
        })?;
    }
    notes.report.findings.iter_mut().for_each(|finding| finding.mended = true);
    Ok(())
}
