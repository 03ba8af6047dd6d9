//! File data of which a crash left copies in doubt: what has a checksum is compared before the copies
//! are made alike.
//!
//! Which blocks have one says the table of checksums, and not the extents, of which none need be read.
//! So a block may be looked at that became free, or was written to since without a checksum, and has
//! the old one. That does no harm: where copies of it differ and one has the old checksum, no write
//! after that was durable, and either may stay. Blocks of the volume itself are left alone.

use bedplate_block::AlignedBuf;

use super::{Loaded, own};
use bedplate_store::{PlantedBug, crc32c, planted};

/// How much is read at once.
const STEP_BYTES: u64 = 256 << 10;

/// Reads the blocks with checksums of which copies are in doubt, and lets the copy count that has the
/// checksum where the first one has not. What no copy has is told by whatever reads it.
pub(super) fn compare(look: &Loaded) {
    let block = u64::from(look.found.superblock.block_size);
    let step = (STEP_BYTES / block).max(1);
    let own = own(look);
    let is_own = |at: u64| {
        let behind = own.partition_point(|run| run.end() <= at);
        own.get(behind).is_some_and(|run| run.start.0 <= at)
    };
    let mut buf = AlignedBuf::zeroed((step * block) as usize);
    let mut run: Vec<(u64, u32)> = Vec::new();
    for range in look.device.ranges_in_doubt() {
        if planted(PlantedBug::DoubtfulDataNotCompared) {
            break;
        }
        let blocks = range.start / block..range.end.div_ceil(block);
        look.meta.each_sum(blocks, |at, sum| {
            let goes_on = run.last().is_none_or(|last| last.0 + 1 == at);
            if !goes_on || run.len() as u64 == step {
                compare_run(look, &run, &mut buf);
                run.clear();
            }
            if !is_own(at) {
                run.push((at, sum));
            }
        });
        compare_run(look, &run, &mut buf);
        run.clear();
    }
}

/// Compares blocks that follow each other.
fn compare_run(look: &Loaded, run: &[(u64, u32)], buf: &mut AlignedBuf) {
    let Some((first, _)) = run.first() else { return };
    let block = look.found.superblock.block_size as usize;
    let buf = &mut buf[..run.len() * block];
    let at_once = look.device.read_at(buf, first * block as u64).is_ok();
    for ((at, sum), part) in run.iter().zip(buf.chunks_mut(block)) {
        let is_right = |bytes: &[u8]| crc32c(bytes) == *sum;
        if at_once && is_right(part) {
            continue;
        }
        if let Err(error) = look.device.read_right(part, at * block as u64, &is_right) {
            tracing::debug!(%error, "block {at} is passed over");
        }
    }
}
