//! Runs of blocks that were shared until a record that may not be sealed yet.
//!
//! The one row that has them now may have them written in place only once it is: a crash before
//! would bring back the file, or checkpoint, that shared them, with the new bytes (I-CKP-7). It is
//! the same for blocks that become free (I-SPC-2), but these wait in the free space, and a writer
//! does not wait: it has the record sealed.

use std::collections::VecDeque;

use bedplate_block::IntervalMap;

use crate::Lsn;
use crate::extent::Run;

/// Runs and the records after which one row covers them.
#[derive(Debug, Default)]
pub struct PendingUnshare {
    /// The last record of each run.
    runs: IntervalMap<Lsn>,
    /// In the order of their records, to forget them by.
    order: VecDeque<(Lsn, Run)>,
}

impl PendingUnshare {
    /// Notes runs that a record left to one row, and forgets those of records up to `sealed`.
    pub fn note(&mut self, lsn: Lsn, runs: &[Run], sealed: Lsn) {
        while let Some((old, run)) = self.order.front().copied().filter(|(old, _)| *old <= sealed) {
            self.order.pop_front();
            self.runs.remove_where(&(run.start.0..run.end()), |lsn| *lsn == old);
        }
        for run in runs {
            self.runs.put(run.start.0..run.end(), lsn);
            self.order.push_back((lsn, *run));
        }
    }

    /// Returns the record that must be sealed before any block of the run is written in place, if
    /// one is known.
    pub fn last(&self, run: Run) -> Option<Lsn> {
        self.runs.overlapping(run.start.0..run.end()).map(|(_, lsn)| *lsn).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockNo;

    /// I-CKP-7: against a record a block.
    #[test]
    fn i_ckp_7_a_run_is_known_until_its_record_is_sealed() {
        let (mut left, mut model, mut sealed) = (PendingUnshare::default(), [Lsn(0); 64], Lsn(0));
        let mut random = 5u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for lsn in (1..4000).map(Lsn) {
            let start = next(64);
            let run = Run { start: BlockNo(start), blocks: 1 + next(64 - start) };
            if next(3) == 0 {
                sealed = Lsn(sealed.0 + next(lsn.0 - sealed.0));
            }
            if next(2) == 0 {
                left.note(lsn, &[run], sealed);
                model[start as usize..run.end() as usize].fill(lsn);
            }
            let expected = model[start as usize..run.end() as usize]
                .iter()
                .max()
                .copied()
                .expect("a block at least");
            let found = left.last(run).filter(|lsn| *lsn > sealed);
            assert_eq!(
                found,
                Some(expected).filter(|lsn| *lsn > sealed),
                "{run:?} after record {}",
                lsn.0
            );
        }
        left.note(Lsn(4000), &[], Lsn(4000));
        assert!(left.runs.is_empty() && left.order.is_empty(), "{left:?}");
    }
}
