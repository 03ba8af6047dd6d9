//! Looking at a RAID-5 that was not closed in order, without writing to it: what the parity log
//! would write again is shown as if it stood in place.
//!
//! ```text
//!   member   │ data │ page │ data │ page │ data │        a window (window.rs): pages of the log's records are served from memory
//! ```
//! Where a member is away and the log of another cannot be read, rows under way in the crash may be
//! neither old nor new. They lie in regions that the dirty region log names; there nothing is made
//! from parity, and everywhere else it is (S-109).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Geometry, MemoryDevice, Operation, Result, Window, WindowPiece,
};

use super::Parity;
use super::log::{PAGE, RecordPart};
use super::recover::{Logs, read_logs};
use crate::group::{Handles, MemberHandle};
use crate::io::epoch::{EpochTable, LayoutEpoch};
use crate::io::volume_io::VolumeIo;
use crate::redundancy::Drl;
use crate::{Config, Error, ErrorKind, VolumeConfig};

/// Where rows may be neither old nor new.
#[derive(Debug)]
pub(crate) struct UncertainRows {
    /// The regions that were being written to.
    dirty: Drl,
    region_bytes: u64,
    size_bytes: u64,
    /// The member whose log cannot be read.
    log_unreadable: String,
}

/// Refuses to write to a group with rows in doubt that cannot be made whole: a member is away, and
/// the log of another cannot be read.
///
/// # Errors
/// `Broken`; nothing was written.
pub(crate) fn refuse_unreadable_log(config: &Config, handles: &Handles) -> crate::Result<()> {
    let rows = |volume: &VolumeConfig| volume.layouts().any(crate::Layout::has_parity);
    for (ordinal, volume) in config.volumes.iter().enumerate().filter(|(_, volume)| rows(volume)) {
        let epoch = super::with_parity(LayoutEpoch::new(volume, 512), config.id, ordinal);
        for parity in epoch.parities() {
            let away = |column: &usize| {
                !parity.handle(handles, *column).is_some_and(|handle| handle.is_active())
            };
            let Some(column) = (0..parity.raid5.columns().len()).find(away) else { continue };
            let Some((handle, error)) = read_logs(parity, handles).1.pop() else { continue };
            let (group, path) = (
                &config.name,
                &config.members[usize::from(parity.raid5.copy(column, 0).member)].path,
            );
            return Err(Error::new(
                ErrorKind::Broken,
                format!(
                    "group {group} was not closed in order, {path} is away or not up to date, and \
                     the parity log of {} cannot be read ({error}): rows that were being written \
                     cannot be made whole; nothing was written; connect {path} if it was there \
                     until then, or open the group for reading only ('bedplate mount -o \
                     ro,degraded'), which serves all the rest",
                    handle.name()
                ),
            ));
        }
    }
    Ok(())
}

impl VolumeIo {
    /// Lets members show what the parity log says, before anything is read.
    pub fn show_parity_log(
        &self,
        epochs: &EpochTable,
        config: &Config,
        volume: &VolumeConfig,
    ) -> Result<()> {
        for parity in epochs.peek().parities() {
            let handles = self.group_state.handles();
            let (logs, mut log_unreadable) = read_logs(parity, &handles);
            self.group_state.replace_handles(Arc::new(shown(parity, &handles, &logs)?));
            if let Some((handle, error)) = log_unreadable.pop() {
                tracing::warn!(volume = self.name, member = handle.name(), %error,
                    "its parity log cannot be read; rows that were being written are not made from \
                     parity");
                let mut dirty = Drl::new(
                    config.id,
                    self.ordinal,
                    volume.size_bytes().div_ceil(volume.region_bytes),
                );
                let members = handles.iter().flatten().filter(|handle| handle.takes_writes());
                if members.filter(|handle| dirty.absorb(&*handle.device).is_ok()).count() == 0 {
                    return Err(error);
                }
                let uncertain_rows = UncertainRows {
                    dirty,
                    region_bytes: volume.region_bytes,
                    size_bytes: volume.size_bytes(),
                    log_unreadable: handle.name().to_owned(),
                };
                self.uncertain_rows.get_or_init(|| uncertain_rows);
            }
        }
        Ok(())
    }

    /// Refuses to make anything from a row that may be neither old nor new.
    pub(super) fn refuse_uncertain(&self, parity: &Parity, row: u64) -> Result<()> {
        let Some(uncertain_rows) = self.uncertain_rows.get() else { return Ok(()) };
        let start = row * parity.raid5.row_bytes();
        let last = (start + parity.raid5.row_bytes()).min(uncertain_rows.size_bytes) - 1;
        if !(start / uncertain_rows.region_bytes..=last / uncertain_rows.region_bytes)
            .any(|region| uncertain_rows.dirty.is_dirty(region))
        {
            return Ok(());
        }
        let detail = format!(
            "this was being written when the group was cut off, its member is away, and the parity \
             log of {} cannot be read: what the other members make of it may be neither old nor \
             new",
            uncertain_rows.log_unreadable
        );
        Err(self.error(bedplate_block::ErrorKind::Io, Operation::Read, Some(start), detail))
    }
}

/// Returns the open members with what the logs say in its place.
fn shown(parity: &Parity, handles: &Handles, logs: &Logs) -> Result<Handles> {
    let mut shown = handles.clone();
    for column in 0..parity.raid5.columns().len() {
        let index = usize::from(parity.raid5.copy(column, 0).member);
        let own = logs.records.iter().flatten().filter(|part| usize::from(part.column) == column);
        let Some(handle) = handles[index].as_ref() else { continue };
        let pages = pages(&handle.device, own)?;
        if !pages.is_empty() {
            let state = if handle.is_active() {
                crate::MemberState::Active
            } else {
                crate::MemberState::Stale
            };
            let with_pages = MemberHandle::new(handle.id, over(&handle.device, &pages)?, state);
            with_pages.learn_label();
            shown[index] = Some(with_pages);
        }
    }
    Ok(shown)
}

/// Returns the pages of a member that parts of records change, as they are with them.
fn pages<'a>(
    device: &Arc<dyn BlockDevice>,
    parts: impl Iterator<Item = &'a RecordPart>,
) -> Result<BTreeMap<u64, AlignedBuf>> {
    let mut pages = BTreeMap::new();
    for part in parts {
        let mut rest = &part.bytes[..];
        for place in &part.places {
            let (mut at, end) = (place.offset, place.offset + u64::from(place.len));
            while at < end {
                let start = at - at % PAGE as u64;
                let page = match pages.entry(start) {
                    Entry::Occupied(page) => page.into_mut(),
                    Entry::Vacant(place) => {
                        let mut page = AlignedBuf::zeroed(PAGE);
                        device.read_at(&mut page, start)?;
                        place.insert(page)
                    }
                };
                let (from, len) =
                    ((at - start) as usize, (end - at).min(start + PAGE as u64 - at) as usize);
                page[from..from + len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                at += len as u64;
            }
        }
    }
    Ok(pages)
}

/// Returns a member with pages over it.
fn over(
    device: &Arc<dyn BlockDevice>,
    pages: &BTreeMap<u64, AlignedBuf>,
) -> Result<Arc<dyn BlockDevice>> {
    let memory = MemoryDevice::with_geometry(
        (pages.len() * PAGE) as u64,
        Geometry { read_only: false, ..device.geometry() },
    );
    let memory_of: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
    let (mut pieces, mut end) = (Vec::new(), 0);
    for ((at, page), from) in pages.iter().zip((0..).step_by(PAGE)) {
        memory.write_at(page, from)?;
        if *at > end {
            pieces.push(WindowPiece { device: Arc::clone(device), start: end, len: at - end });
        }
        pieces.push(WindowPiece { device: Arc::clone(&memory_of), start: from, len: PAGE as u64 });
        end = at + PAGE as u64;
    }
    if device.size_bytes() > end {
        pieces.push(WindowPiece {
            device: Arc::clone(device),
            start: end,
            len: device.size_bytes() - end,
        });
    }
    Ok(Window::open(device.name().to_owned(), pieces))
}
