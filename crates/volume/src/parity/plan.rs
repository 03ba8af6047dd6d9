//! What a write asks of rows. Pure.
//!
//! A row is cut into *windows*, ranges within the unit in which the same units are written from end to end. For a window of `n` data units, `k` of them
//! written, there are two ways to the new parity, and the one that reads fewer members is taken:
//!
//! ```text
//!   modify      read the k old units and the old parity:   P' = P ^ old ^ new       k + 1 reads
//!   complement  read the n - k other units:                P' = others ^ new        n - k reads, none where everything is written
//! ```

use std::collections::BTreeMap;

use crate::Raid5;

/// The longest window in bytes: longer ones are cut, so that every one fits a record of the log.
pub(crate) const WINDOW_BYTES: u64 = 64 << 10;

/// Bytes on their way to an address of the volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put<'a> {
    pub at: u64,
    pub bytes: &'a [u8],
}

/// Bytes `lo` to `hi` of the units of a row, and the units that are written there.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    pub row: u64,
    pub lo: u64,
    pub hi: u64,
    pub new: Vec<(usize, &'a [u8])>,
}

impl Window<'_> {
    pub fn len(&self) -> usize {
        (self.hi - self.lo) as usize
    }
}

/// The member that cannot be read, if one cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Out {
    pub column: usize,
    /// Whether it is written all the same: it is being brought up to date.
    pub takes_writes: bool,
}

/// The way to the new parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The parity's member is gone.
    None,
    Modify,
    Complement,
}

/// Chooses the way for a window.
pub(crate) fn way(raid5: &Raid5, window: &Window<'_>, out: Option<Out>) -> Way {
    let parity = raid5.parity_column(window.row);
    let written = |column| window.new.iter().any(|(unit, _)| raid5.data_column(window.row, *unit) == column);
    match out {
        Some(out) if out.column == parity && !out.takes_writes => Way::None,
        // The old content of what is out is neither needed nor there.
        Some(out) if out.column == parity || written(out.column) => Way::Complement,
        Some(_) => Way::Modify,
        None if raid5.data_units() - window.new.len() <= window.new.len() => Way::Complement,
        None => Way::Modify,
    }
}

/// Returns the columns that a way reads.
pub(crate) fn reads(raid5: &Raid5, window: &Window<'_>, way: Way) -> Vec<usize> {
    let is_new = |unit: &usize| window.new.iter().any(|(new, _)| new == unit);
    let column = |unit| raid5.data_column(window.row, unit);
    match way {
        Way::None => Vec::new(),
        Way::Complement => (0..raid5.data_units()).filter(|unit| !is_new(unit)).map(column).collect(),
        Way::Modify => window.new.iter().map(|(unit, _)| column(*unit)).chain([raid5.parity_column(window.row)]).collect(),
    }
}

/// Bytes on their way to a data unit: its ordinal, the first byte in it, the bytes.
type Piece<'a> = (usize, u64, &'a [u8]);

/// Cuts what is to be written into windows, by row and then by place in the unit. The puts do not overlap.
pub(crate) fn windows<'a>(raid5: &Raid5, puts: &[Put<'a>]) -> Vec<Window<'a>> {
    let mut rows: BTreeMap<u64, Vec<Piece<'a>>> = BTreeMap::new();
    for put in puts {
        let (mut at, mut bytes) = (put.at, put.bytes);
        while !bytes.is_empty() {
            let place = raid5.place(at);
            let len = bytes.len().min((raid5.unit_bytes() - place.within) as usize);
            rows.entry(place.row).or_default().push((place.unit, place.within, &bytes[..len]));
            (at, bytes) = (at + len as u64, &bytes[len..]);
        }
    }
    rows.into_iter().flat_map(|(row, pieces)| row_windows(row, &pieces)).collect()
}

fn row_windows<'a>(row: u64, pieces: &[Piece<'a>]) -> Vec<Window<'a>> {
    let end = |piece: &Piece<'_>| piece.1 + piece.2.len() as u64;
    let mut edges: Vec<u64> = pieces.iter().flat_map(|piece| (piece.1..end(piece)).step_by(WINDOW_BYTES as usize).chain([end(piece)])).collect();
    edges.sort_unstable();
    edges.dedup();
    let window = |pair: &[u64]| {
        let (lo, hi) = (pair[0], pair[1]);
        let here = pieces.iter().filter(|piece| piece.1 <= lo && hi <= end(piece));
        let new: Vec<_> = here.map(|(unit, from, bytes)| (*unit, &bytes[(lo - from) as usize..(hi - from) as usize])).collect();
        (!new.is_empty()).then_some(Window { row, lo, hi, new })
    };
    edges.windows(2).filter_map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Layout};

    fn raid5(columns: u16) -> Raid5 {
        Raid5::new(4096, (0..columns).map(|member| Layout::Extent(Extent { member, start: 0, len: 1 << 20 })).collect())
    }

    #[test]
    fn windows_are_where_the_same_units_are_written() {
        let (raid5, bytes) = (raid5(4), vec![0; 64 << 10]);
        let shape = |at, len: usize| {
            let windows = windows(&raid5, &[Put { at, bytes: &bytes[..len] }]);
            windows.iter().map(|w| (w.row, w.lo, w.hi, w.new.iter().map(|new| new.0).collect::<Vec<_>>())).collect::<Vec<_>>()
        };
        assert_eq!(shape(0, 12_288), [(0, 0, 4096, vec![0, 1, 2])]);
        assert_eq!(shape(3072, 2048), [(0, 0, 1024, vec![1]), (0, 3072, 4096, vec![0])]);
        assert_eq!(shape(2048, 4096), [(0, 0, 2048, vec![1]), (0, 2048, 4096, vec![0])]);
        assert_eq!(shape(2048, 6144), [(0, 0, 2048, vec![1]), (0, 2048, 4096, vec![0, 1])]);
        assert_eq!(shape(8192, 8192), [(0, 0, 4096, vec![2]), (1, 0, 4096, vec![0])]);
    }

    #[test]
    fn the_way_that_reads_fewer_members_is_taken_and_never_reads_what_is_out() {
        let bytes = vec![0; 64 << 10];
        for columns in 3..9_u16 {
            let raid5 = raid5(columns);
            let data = raid5.data_units();
            for written in 1..=data {
                let puts = [Put { at: 0, bytes: &bytes[..written * 4096] }];
                let window = &windows(&raid5, &puts)[0];
                let cost = |out| reads(&raid5, window, way(&raid5, window, out));
                assert_eq!(cost(None).len(), (written + 1).min(data - written), "{written} of {data}");
                for column in 0..columns.into() {
                    for takes_writes in [false, true] {
                        assert!(!cost(Some(Out { column, takes_writes })).contains(&column));
                    }
                }
            }
        }
    }
}
