//! Reads of what has a checksum: where a copy is not what was written, another is asked.

use std::cell::RefCell;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, Copies};

use crate::Result;
use crate::planted::{PlantedBug, planted};

/// Fills `buf` from `offset`, with a copy that is right if there is one; those that are not are
/// written over. Where none is the last one tried is in `buf`. `what` names it.
pub(crate) fn read_a_right_copy(
    device: &Arc<dyn BlockDevice>,
    buf: &mut [u8],
    offset: u64,
    what: &str,
    is_right: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    device.read_at(buf, offset)?;
    if is_right(buf) || planted(PlantedBug::FirstSuperblockBelieved) {
        return Ok(());
    }
    if device.read_right(buf, offset, is_right)? != Copies::NoneRight {
        tracing::warn!(
            event = "metadata_healed",
            "{}: {what} at byte {offset} is not what was written; another copy is, and counts",
            device.name()
        );
    }
    Ok(())
}

/// The most choices of versions that are tried for a range in several runs.
const CHOICES_MAX: usize = 256;

/// Looks in all copies for what belongs in runs of the volume (first byte, length): for bytes of
/// which `is_right` says yes, and writes them over copies that differ. Returns them.
pub(crate) fn right_of_runs(
    device: &Arc<dyn BlockDevice>,
    runs: &[(u64, u64)],
    is_right: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Vec<u8>>> {
    let mut all = Vec::with_capacity(runs.len());
    for run in runs {
        all.push(versions(device, *run)?);
    }
    let choices = all.iter().fold(1_usize, |all, of| all.saturating_mul(of.len()));
    let pick = |mut choice: usize| -> Vec<&Vec<u8>> {
        let chosen = all.iter().map(|of| {
            let version = &of[choice % of.len()];
            choice /= of.len();
            version
        });
        chosen.collect()
    };
    let found = (0..choices.min(CHOICES_MAX)).map(pick).find(|chosen| {
        is_right(&chosen.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>())
    });
    let Some(chosen) = found else { return Ok(None) };
    for ((run, right), of) in runs.iter().zip(&chosen).zip(&all) {
        if of.len() > 1 {
            look(device, *run, &|bytes| bytes == &right[..])?;
        }
    }
    Ok(Some(chosen.into_iter().flatten().copied().collect()))
}

/// Returns what the copies hold of a run, each version once.
fn versions(device: &Arc<dyn BlockDevice>, run: (u64, u64)) -> Result<Vec<Vec<u8>>> {
    let versions: RefCell<Vec<Vec<u8>>> = RefCell::default();
    let last = look(device, run, &|bytes| {
        let mut versions = versions.borrow_mut();
        if !versions.iter().any(|known| known == bytes) {
            versions.push(bytes.to_vec());
        }
        false
    })?;
    let mut versions = versions.into_inner();
    if versions.is_empty() {
        versions.push(last);
    }
    Ok(versions)
}

/// Asks the device for a copy of a run of which `is_right` says yes; returns the last that it tried.
fn look(
    device: &Arc<dyn BlockDevice>,
    (first, len): (u64, u64),
    is_right: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<u8>> {
    let sector = u64::from(device.geometry().logical_block_size);
    let (start, end) = (first / sector * sector, (first + len).next_multiple_of(sector));
    let index = |n: u64| usize::try_from(n).expect("a part of a page fits the address space");
    let within = index(first - start)..index(first + len - start);
    let mut buf = AlignedBuf::zeroed(index(end - start));
    device.read_right(&mut buf, start, &|bytes| is_right(&bytes[within.clone()]))?;
    Ok(buf[within].to_vec())
}
