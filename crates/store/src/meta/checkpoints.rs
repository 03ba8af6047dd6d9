//! Reading the checkpoints at mount.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::MetaStore;
use crate::images::{Checkpoint, CheckpointRow, split_checkpoint_key, split_scope_key};
use crate::row::Table;
use crate::{Epoch, InodeNo, Result};

/// Returns all checkpoints, oldest first.
pub fn load_checkpoints(meta: &MetaStore) -> Result<Vec<Arc<Checkpoint>>> {
    let mut members: BTreeMap<Epoch, HashSet<InodeNo>> = BTreeMap::new();
    meta.scan_all(Table::Scope, |key, _| {
        let (epoch, ino) = split_scope_key(key)?;
        members.entry(epoch).or_default().insert(ino);
        Ok(ControlFlow::Continue(()))
    })?;
    let mut checkpoints = Vec::new();
    meta.scan_all(Table::Checkpoint, |key, value| {
        let (epoch, row) = (split_checkpoint_key(key)?, CheckpointRow::decode(value)?);
        let members = (!row.paths.is_empty()).then(|| members.remove(&epoch).unwrap_or_default());
        checkpoints.push(Arc::new(Checkpoint { epoch, row, members }));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(checkpoints)
}
