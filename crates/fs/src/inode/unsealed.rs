//! Which bytes of a file on the device must not change before the log is sealed (I-IO-3).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::steady::Bit;
use crate::{Lsn, Result};
use bedplate_store::{MetaStore, PlantedBug, planted};

/// Device ranges whose content a record in the log vouches for with a checksum that replay will
/// still look at.
///
/// They must not change before [`permit`](Self::permit): a replay that met other bytes would end
/// the log there and lose what was acknowledged. Records that carry their bytes have replay write
/// them, so what is written over those may be carried by a further record instead (I-HOM-4). Ranges
/// that continue each other are one entry with the first and last record of theirs, so a file that
/// grows for long without a sync has one.
#[derive(Debug)]
pub(crate) struct Unsealed {
    /// Whether there are any.
    any: Bit,
    /// The last record among the entries, 0 without entries.
    last: AtomicU64,
    /// The last record that carries its bytes.
    carried: AtomicU64,
    entries: Mutex<BTreeMap<u64, Entry>>,
}

/// How many entries are let lie before sealed ones are looked for.
const PRUNE_ENTRIES: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Entry {
    end: u64,
    first: Lsn,
    last: Lsn,
    /// All of these records carry what they vouch for.
    carried: bool,
}

/// What vouches for bytes of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Voucher {
    /// Nothing, or what is sealed.
    Nothing,
    /// Records that carry them.
    Carried,
    /// A record that expects to find them on the device.
    Device,
}

impl Unsealed {
    pub(super) fn new(any: Bit) -> Self {
        let [last, carried] = [const { AtomicU64::new(0) }; 2];
        Self { any, last, carried, entries: Mutex::default() }
    }

    /// Returns the last record that vouches for bytes, sealed or not; 0: none does.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Adds what a record exposed, and may carry. Called before the range can be found in the extent
    /// map.
    pub(crate) fn add(&self, exposure: &[(u64, u32)], lsn: Lsn, sealed: Lsn, carried: bool) {
        debug_assert!(
            exposure.iter().all(|(_, len)| *len > 0),
            "I-IO-3: a checksum vouches for bytes: {exposure:?}"
        );
        let mut entries = self.entries.lock();
        if self.last.load(Ordering::Relaxed) <= sealed.0 {
            entries.clear();
        } else if entries.len() >= PRUNE_ENTRIES && entries.len().is_power_of_two() {
            entries.retain(|_, entry| entry.last > sealed);
        }
        for (offset, len) in exposure {
            let mut range = *offset..offset + u64::from(*len);
            let mut entry = Entry { end: range.end, first: lsn, last: lsn, carried };
            while let Some((start, met)) = joining(&entries, &range, sealed, carried) {
                entries.remove(&start);
                range = range.start.min(start)..range.end.max(met.end);
                entry = Entry {
                    end: range.end,
                    first: entry.first.min(met.first),
                    last: entry.last.max(met.last),
                    carried: entry.carried && met.carried,
                };
            }
            debug_assert!(
                entry.first <= entry.last && range.start < entry.end,
                "I-IO-3: an entry covers records in order: {entry:?} from {}",
                range.start
            );
            entries.insert(range.start, entry);
        }
        self.last.fetch_max(lsn.0, Ordering::Release);
        if carried {
            self.carried.fetch_max(lsn.0, Ordering::Relaxed);
        }
        self.any.set(true);
    }

    /// Returns whether one of the records after `sealed` carries its bytes.
    pub(crate) fn carries(&self, sealed: Lsn) -> bool {
        self.carried.load(Ordering::Relaxed) > sealed.0
    }

    /// Returns what vouches for some of the device bytes, of the records after `sealed`.
    pub(crate) fn voucher(&self, range: &Range<u64>, sealed: Lsn) -> Voucher {
        if self.last() <= sealed.0 {
            return Voucher::Nothing;
        }
        let entries = self.entries.lock();
        let before = entries.range(..range.start).next_back().map(|(_, entry)| entry);
        let before = before.filter(|entry| entry.end > range.start);
        let all = before.into_iter().chain(entries.range(range.clone()).map(|(_, entry)| entry));
        let unsealed = all.filter(|entry| entry.last > sealed);
        let voucher = |entry: &Entry| match entry.carried {
            true => Voucher::Carried,
            false => Voucher::Device,
        };
        unsealed.map(voucher).max().unwrap_or(Voucher::Nothing)
    }

    /// Makes sure that device bytes may be overwritten. The caller keeps them from being exposed
    /// anew meanwhile, by the inode lock.
    ///
    /// # Errors
    /// The log's, when it has to be sealed first.
    #[inline]
    pub(crate) fn permit(&self, range: &Range<u64>, meta: &MetaStore) -> Result<()> {
        let last = self.last.load(Ordering::Acquire);
        if last == 0 || planted(PlantedBug::OverwriteWithoutSeal) {
            return Ok(());
        }
        self.permit_exposed(last, range, meta)
    }

    #[cold]
    fn permit_exposed(&self, last: u64, range: &Range<u64>, meta: &MetaStore) -> Result<()> {
        if last <= meta.sealed_lsn().0 {
            self.forget(meta.sealed_lsn());
            return Ok(());
        }
        loop {
            let met = overlapping(&self.entries.lock(), range);
            let Some((start, entry)) = met else { break };
            permit_entry(entry, meta)?;
            let mut entries = self.entries.lock();
            // It may have grown meanwhile, by a record that was not asked about.
            if entries.get(&start).is_some_and(|now| now.last == entry.last && now.end == entry.end)
            {
                entries.remove(&start);
            }
        }
        debug_assert!(
            overlapping(&self.entries.lock(), range).is_none(),
            "I-IO-3: no checksum vouches for these bytes any more"
        );
        Ok(())
    }

    fn forget(&self, sealed: Lsn) {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| entry.last > sealed);
        let last = entries.values().map(|entry| entry.last.0).max().unwrap_or(0);
        self.last.store(last, Ordering::Release);
        self.any.set(last > 0);
    }
}

/// Permits all records from the entry's first to its last.
fn permit_entry(entry: Entry, meta: &MetaStore) -> Result<()> {
    debug_assert!(entry.first <= entry.last, "I-IO-3: an entry covers records in order: {entry:?}");
    meta.permit_overwrite(entry.first)?;
    if entry.last > entry.first && meta.sealed_lsn() >= entry.first {
        // The first is written, so those between may be too. While the first is still buffered all
        // of them are, and the one permission covers the buffer.
        meta.seal(entry.last)?;
    }
    Ok(())
}

/// The first entry that overlaps the range.
fn overlapping(entries: &BTreeMap<u64, Entry>, range: &Range<u64>) -> Option<(u64, Entry)> {
    let before =
        entries.range(..range.start).next_back().filter(|(_, entry)| entry.end > range.start);
    before.or_else(|| entries.range(range.clone()).next()).map(|(start, entry)| (*start, *entry))
}

/// An entry to join with a new one: what overlaps it, or ends where it begins, is as far from being
/// sealed, and is carried or not as that is.
fn joining(
    entries: &BTreeMap<u64, Entry>,
    range: &Range<u64>,
    sealed: Lsn,
    carried: bool,
) -> Option<(u64, Entry)> {
    let before = entries.range(..range.start).next_back().filter(|(_, entry)| {
        entry.end == range.start && entry.first > sealed && entry.carried == carried
    });
    overlapping(entries, range).or_else(|| before.map(|(start, entry)| (*start, *entry)))
}

#[cfg(test)]
mod tests {
    use super::super::steady::Cause;
    use super::*;

    #[test]
    fn a_growing_file_is_one_entry() {
        let unsealed = Unsealed::new(Bit::alone(Cause::Unsealed));
        for i in 0..10u64 {
            unsealed.add(&[(1000 + i * 10, 10)], Lsn(i + 1), Lsn(0), false);
        }
        unsealed.add(&[(5000, 1)], Lsn(20), Lsn(0), false);
        let entries = unsealed.entries.lock();
        assert_eq!(entries.len(), 2);
        let (_, first) = overlapping(&entries, &(1099..1200)).expect("it ends there");
        assert_eq!((first.first, first.last, first.end), (Lsn(1), Lsn(10), 1100));
        assert!(overlapping(&entries, &(1100..5000)).is_none());
        assert!(overlapping(&entries, &(0..6000)).is_some());
    }

    #[test]
    fn sealed_entries_are_forgotten() {
        let unsealed = Unsealed::new(Bit::alone(Cause::Unsealed));
        unsealed.add(&[(0, 10)], Lsn(1), Lsn(0), false);
        unsealed.add(&[(100, 10)], Lsn(5), Lsn(1), true);
        assert_eq!(unsealed.entries.lock().len(), 1);
        unsealed.forget(Lsn(5));
        assert_eq!(unsealed.last.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn i_hom_4_what_no_record_expects_on_the_device_is_known() {
        let unsealed = Unsealed::new(Bit::alone(Cause::Unsealed));
        unsealed.add(&[(0, 10)], Lsn(1), Lsn(0), true);
        unsealed.add(&[(10, 10)], Lsn(2), Lsn(0), true);
        unsealed.add(&[(20, 10)], Lsn(3), Lsn(0), false);
        unsealed.add(&[(40, 10)], Lsn(4), Lsn(0), true);
        let voucher = |range, sealed| unsealed.voucher(&range, Lsn(sealed));
        assert_eq!(voucher(30..40, 0), Voucher::Nothing);
        assert_eq!(voucher(5..20, 0), Voucher::Carried);
        assert_eq!(voucher(5..21, 0), Voucher::Device);
        assert_eq!(voucher(29..45, 0), Voucher::Device);
        assert_eq!(voucher(29..45, 3), Voucher::Carried);
        assert_eq!(voucher(0..50, 4), Voucher::Nothing);
        // Over what is carried, and then joined with what is not.
        unsealed.add(&[(5, 20)], Lsn(5), Lsn(0), true);
        assert_eq!(voucher(0..1, 0), Voucher::Device);
    }
}
