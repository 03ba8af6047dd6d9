//! How a change of tunables gets into effect, and into the volume.

use std::sync::Arc;

use crate::engine::{Engine, TuningState, cache_options, refusal, stored_key};
use crate::inode::Inode;
use crate::options::{
    TUNABLES, Takes, Tunable, TunableInfo, TunableState, TuneOptions, TunedBy, check_pairs,
};
use crate::{Error, ErrorKind, FileKind, IoMode, MountOptions, Result};
use bedplate_store::{RecordKind, RowChange, Table};

impl Engine {
    /// Returns how all tunables stand.
    pub(crate) fn tunables(&self) -> Vec<TunableState> {
        self.states(&self.tuning().lock())
    }

    fn states(&self, state: &TuningState) -> Vec<TunableState> {
        let value = |tunable: Tunable| match tunable {
            Tunable::Cache => self.cache().cap_bytes(),
            Tunable::LogSize => self.superblock().log.len,
            Tunable::BlockSize => self.block_size().into(),
            other => other.of(&state.options),
        };
        let states = |info: &TunableInfo| TunableState {
            name: info.name.to_owned(),
            unit: info.unit,
            value: value(info.tunable),
            by: state.by[info.tunable as usize],
            stored: state.stored[info.tunable as usize],
            default: (info.takes != Takes::Format).then(|| info.tunable.default_value()),
            min: info.min,
            max: info.max,
            takes: info.takes,
            option: info.option.to_owned(),
            effect: info.effect.to_owned(),
        };
        TUNABLES.iter().map(states).collect()
    }

    /// Changes tunables: all, or none.
    pub(crate) fn tune(&self, change: &TuneOptions) -> Result<Vec<TunableState>> {
        let mut state = self.tuning().lock();
        change
            .changes
            .iter()
            .try_for_each(|(tunable, value)| check_change(*tunable, *value, self.block_size()))?;
        if !change.live_only {
            self.begin_change()?;
        }
        let mut next = state.options.clone();
        for (tunable, value) in
            change.changes.iter().filter(|(tunable, _)| tunable.info().takes == Takes::Live)
        {
            let back = if change.live_only { state.stored[*tunable as usize] } else { None };
            tunable.put(value.or(back).unwrap_or_else(|| tunable.default_value()), &mut next);
        }
        check_pairs(&next)?;
        self.take_over(&state.options, &next)?;
        state.options = next;
        for (tunable, value) in &change.changes {
            let at = *tunable as usize;
            if !change.live_only {
                state.stored[at] = *value;
            }
            if tunable.info().takes == Takes::Live {
                state.by[at] = match value {
                    Some(_) if change.live_only => TunedBy::Live,
                    Some(_) => TunedBy::Volume,
                    None if state.stored[at].is_some() => TunedBy::Volume,
                    None => TunedBy::Default,
                };
            }
        }
        if !change.live_only && !change.changes.is_empty() {
            let row = |(tunable, value): &(Tunable, Option<u64>)| match value {
                Some(value) => RowChange::put(
                    Table::Setting,
                    stored_key(*tunable),
                    value.to_le_bytes().to_vec(),
                ),
                None => RowChange::delete(Table::Setting, stored_key(*tunable)),
            };
            let lsn = self.commit(RecordKind::Setting, change.changes.iter().map(row).collect());
            self.sync_to(lsn)?;
        }
        Ok(self.states(&state))
    }

    /// Lets everything that is live go by other options.
    fn take_over(&self, before: &MountOptions, next: &MountOptions) -> Result<()> {
        if before.mode != next.mode
            && let Err(error) = self.serve_in(next.mode)
        {
            self.serve_again_in(before.mode);
            return Err(error);
        }
        let cache = |options: &MountOptions| {
            cache_options(options, self.geometry().logical_block_size, self.block_size())
        };
        if let Err(error) = self.cache().retune(&cache(before), &cache(next)) {
            self.serve_again_in(before.mode);
            return Err(error);
        }
        self.sampler().set_every(next.latency_sample);
        self.tuning().set_delayed_bytes_max(next.delay_writes_bytes);
        self.tuning().set_read_window_bytes_max(next.read_window_bytes);
        self.tuning().set_direct_above_bytes(next.direct_above_bytes);
        self.tuning().set_preferred_io_bytes(next.preferred_io_bytes);
        self.maps().set_bytes_max(next.map_bytes);
        self.trim_maps();
        self.tuning().set_sync_interval_ns(Tunable::Sync.of(next));
        if before.sync_interval != next.sync_interval {
            self.sync_waker().wake();
        }
        if before.extent_size_bytes != next.extent_size_bytes {
            self.tuning().set_extent_size(next.extent_size_bytes);
            self.epochs_changed();
        }
        if before.release_behind != next.release_behind {
            self.tuning().set_release_behind(next.release_behind);
            self.epochs_changed();
            let files = self.loaded_inodes(|inode| inode.kind == FileKind::File);
            files.iter().for_each(|inode| crate::data::release_changed(self, inode));
        }
        self.defrag_status().take_over(next);
        if before.discard != next.discard {
            self.set_discarding(next.discard);
        }
        Ok(())
    }

    /// Serves files without a mode of their own, open ones too, in another one.
    fn serve_in(&self, mode: IoMode) -> Result<()> {
        // First: an open that comes now finds the new mode, and one that came before is found
        // below.
        self.tuning().set_mode(mode);
        let follows =
            |inode: &Inode| inode.kind == FileKind::File && inode.attr_lock().row.io_mode.is_none();
        let files: Vec<Arc<Inode>> = self.loaded_inodes(|inode| inode.kind == FileKind::File);
        files
            .iter()
            .filter(|inode| follows(inode))
            .try_for_each(|inode| crate::data::mode_changed(self, inode))
    }

    fn serve_again_in(&self, mode: IoMode) {
        if self.tuning().mode() != mode
            && let Err(error) = self.serve_in(mode)
        {
            tracing::warn!(
                "some files are served in another mode than '{mode}' until they are opened again: \
                 {error}"
            );
        }
    }
}

fn check_change(tunable: Tunable, value: Option<u64>, block_size: u32) -> Result<()> {
    let info = tunable.info();
    let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, format!("{}: {why}", info.name)));
    match info.takes {
        Takes::Format => refuse(format!(
            "it is set once, by 'bedplate format {}', and cannot be changed",
            info.option
        )),
        Takes::MountOption => refuse(format!(
            "it is needed before the volume can be read: give the mount option {}",
            info.option
        )),
        _ => value.and_then(|value| refusal(tunable, value, block_size)).map_or(Ok(()), refuse),
    }
}
