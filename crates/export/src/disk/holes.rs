//! Runs of a file from where its data and its holes begin.

use super::{Allocation, Run};
use crate::Result;

/// Where data and holes of a file begin.
pub(super) trait Seek {
    /// Returns where data begins at `offset` or behind it; `None`: nowhere.
    fn data(&self, offset: u64) -> Result<Option<u64>>;
    /// Returns where a hole begins at `offset` or behind it.
    fn hole(&self, offset: u64) -> Result<Option<u64>>;
    /// Appends how the hole `from..to` is allocated.
    fn split_hole(&self, from: u64, to: u64, limit: usize, runs: &mut Vec<Run>) -> Result<()>;
}

/// Returns the runs of `offset..offset + len`, at most `limit`.
pub(super) fn runs(file: &impl Seek, offset: u64, len: u64, limit: usize) -> Result<Vec<Run>> {
    let (mut at, end) = (offset, offset + len);
    let mut runs = Vec::new();
    while at < end && runs.len() < limit {
        debug_assert!(at >= offset, "runs go on where the last one ended: {at} of {offset}");
        let data = file.data(at)?.map_or(end, |data| data.clamp(at, end));
        if data > at {
            file.split_hole(at, data, limit - runs.len(), &mut runs)?;
            at = data;
            continue;
        }
        // A file that is changed meanwhile may answer with what is no longer so: then it is data.
        let hole = file.hole(at)?.map_or(end, |hole| hole.min(end));
        let hole = if hole > at { hole } else { end };
        runs.push(Run { len: hole - at, allocation: Allocation::Data });
        at = hole;
    }
    debug_assert!(
        runs.len() <= limit && runs.iter().all(|run| run.len > 0),
        "as many runs as were asked for, none of them empty: {runs:?}"
    );
    debug_assert!(
        runs.iter().map(|run| run.len).sum::<u64>() <= len,
        "no run reaches beyond the range: {runs:?} of {len}"
    );
    Ok(runs)
}
