//! What a write asks of rows. Pure.
//!
//! A row is cut into *windows*, ranges within the unit in which the same units are written from end
//! to end. For a window of `n` data units, `k` of them written, there are two ways to the new
//! parity, and the one that reads fewer members is taken:
//!
//! ```text
//!   modify      read the k old units and the old parity:   P' = P ^ old ^ new       k + 1 reads
//!   complement  read the n - k other units:                P' = others ^ new        n - k reads, none where everything is written
//! ```

use std::collections::BTreeMap;

use crate::Raid5;

/// The longest window in bytes: longer ones are cut, so that every one fits a record of the log.
pub(crate) const WINDOW_BYTES: u64 = 64 << 10;
const _: () = assert!(
    WINDOW_BYTES.is_multiple_of(super::log::PAGE as u64),
    "a window of a row is whole pages of the parity log"
);

/// Bytes on their way to an address of the volume: the ordinal of the buffer that holds them, the
/// first one there, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Put {
    pub at: u64,
    pub buffer: usize,
    pub from: usize,
    pub len: usize,
}

/// A unit that is written in a window: its ordinal in the row, and where its bytes stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct New {
    pub unit: usize,
    pub buffer: usize,
    pub from: usize,
}

/// Bytes `lo` to `hi` of the units of a row, and the units that are written there.
#[derive(Debug)]
pub(crate) struct Window {
    pub row: u64,
    pub lo: u64,
    pub hi: u64,
    pub new: Vec<New>,
}

impl Window {
    pub fn len(&self) -> usize {
        debug_assert!(self.lo < self.hi, "a window holds a byte: {self:?}");
        (self.hi - self.lo) as usize
    }

    /// Returns the bytes of a unit that is written.
    pub fn bytes<'a>(&self, new: &New, buffers: &[&'a [u8]]) -> &'a [u8] {
        debug_assert!(
            new.from + self.len() <= buffers[new.buffer].len(),
            "what is written to a window lies in its buffer: {new:?}"
        );
        &buffers[new.buffer][new.from..new.from + self.len()]
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
pub(crate) enum ParityMethod {
    /// The parity's member is gone.
    None,
    Modify,
    Complement,
}

/// Chooses the way for a window.
pub(crate) fn method(raid5: &Raid5, window: &Window, out: Option<Out>) -> ParityMethod {
    debug_assert!(
        !window.new.is_empty() && window.new.len() <= raid5.data_units(),
        "I-PAR-1: a window of row {} writes some of {} units",
        window.row,
        raid5.data_units()
    );
    let parity = raid5.parity_column(window.row);
    let written =
        |column| window.new.iter().any(|new| raid5.data_column(window.row, new.unit) == column);
    match out {
        Some(out) if out.column == parity && !out.takes_writes => ParityMethod::None,
        // The old content of what is out is neither needed nor there.
        Some(out) if out.column == parity || written(out.column) => ParityMethod::Complement,
        Some(_) => ParityMethod::Modify,
        None if raid5.data_units() - window.new.len() <= window.new.len() => {
            ParityMethod::Complement
        }
        None => ParityMethod::Modify,
    }
}

/// Returns the columns that a way reads.
pub(crate) fn reads(raid5: &Raid5, window: &Window, method: ParityMethod) -> Vec<usize> {
    let is_new = |unit: &usize| window.new.iter().any(|new| new.unit == *unit);
    let column = |unit| raid5.data_column(window.row, unit);
    match method {
        ParityMethod::None => Vec::new(),
        ParityMethod::Complement => {
            (0..raid5.data_units()).filter(|unit| !is_new(unit)).map(column).collect()
        }
        ParityMethod::Modify => window
            .new
            .iter()
            .map(|new| column(new.unit))
            .chain([raid5.parity_column(window.row)])
            .collect(),
    }
}

/// Bytes on their way to a data unit.
struct Piece {
    new: New,
    /// First and end byte in the unit.
    lo: u64,
    hi: u64,
}

/// Cuts what is to be written into windows, by row and then by place in the unit. The puts do not
/// overlap.
pub(crate) fn windows(raid5: &Raid5, puts: &[Put]) -> Vec<Window> {
    let mut rows: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
    for put in puts {
        let (mut at, mut from, end) = (put.at, put.from, put.from + put.len);
        while from < end {
            let place = raid5.place(at);
            let len = (end - from).min((raid5.unit_bytes() - place.within) as usize);
            debug_assert!(
                len > 0 && place.within + len as u64 <= raid5.unit_bytes(),
                "a piece lies in one unit: {len} bytes at {place:?}"
            );
            let new = New { unit: place.unit, buffer: put.buffer, from };
            rows.entry(place.row).or_default().push(Piece {
                new,
                lo: place.within,
                hi: place.within + len as u64,
            });
            (at, from) = (at + len as u64, from + len);
        }
    }
    rows.into_iter().flat_map(|(row, pieces)| row_windows(row, &pieces)).collect()
}

fn row_windows(row: u64, pieces: &[Piece]) -> Vec<Window> {
    debug_assert!(
        pieces.iter().all(|piece| piece.lo < piece.hi),
        "a piece of row {row} holds a byte"
    );
    let mut edges: Vec<u64> = pieces
        .iter()
        .flat_map(|piece| (piece.lo..piece.hi).step_by(WINDOW_BYTES as usize).chain([piece.hi]))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let window = |pair: &[u64]| {
        let (lo, hi) = (pair[0], pair[1]);
        let here = pieces.iter().filter(|piece| piece.lo <= lo && hi <= piece.hi);
        let new: Vec<_> = here
            .map(|piece| New { from: piece.new.from + (lo - piece.lo) as usize, ..piece.new })
            .collect();
        (!new.is_empty()).then_some(Window { row, lo, hi, new })
    };
    edges.windows(2).filter_map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Layout};

    fn raid5(columns: u16) -> Raid5 {
        Raid5::new(
            4096,
            (0..columns)
                .map(|member| Layout::Extent(Extent { member, start: 0, len: 1 << 20 }))
                .collect(),
        )
    }

    #[test]
    fn windows_are_where_the_same_units_are_written() {
        let raid5 = raid5(4);
        let shape = |at, len: usize| {
            let windows = windows(&raid5, &[Put { at, buffer: 0, from: 0, len }]);
            windows
                .iter()
                .map(|w| (w.row, w.lo, w.hi, w.new.iter().map(|new| new.unit).collect::<Vec<_>>()))
                .collect::<Vec<_>>()
        };
        assert_eq!(shape(0, 12_288), [(0, 0, 4096, vec![0, 1, 2])]);
        assert_eq!(shape(3072, 2048), [(0, 0, 1024, vec![1]), (0, 3072, 4096, vec![0])]);
        assert_eq!(shape(2048, 4096), [(0, 0, 2048, vec![1]), (0, 2048, 4096, vec![0])]);
        assert_eq!(shape(2048, 6144), [(0, 0, 2048, vec![1]), (0, 2048, 4096, vec![0, 1])]);
        assert_eq!(shape(8192, 8192), [(0, 0, 4096, vec![2]), (1, 0, 4096, vec![0])]);
    }

    #[test]
    fn a_window_finds_its_bytes_wherever_they_stand() {
        let (raid5, first, second) =
            (raid5(4), vec![1; 4096], (0..8192).map(|at| (at / 512) as u8).collect::<Vec<_>>());
        let puts = [
            Put { at: 4096, buffer: 0, from: 0, len: 4096 },
            Put { at: 9216, buffer: 1, from: 1024, len: 2048 },
        ];
        let windows = windows(&raid5, &puts);
        assert_eq!(
            windows.iter().map(|w| (w.lo, w.hi, w.new.len())).collect::<Vec<_>>(),
            [(0, 1024, 1), (1024, 3072, 2), (3072, 4096, 1)]
        );
        let buffers = [&first[..], &second];
        assert_eq!(windows[1].bytes(&windows[1].new[1], &buffers), &second[1024..3072]);
        assert_eq!(windows[2].bytes(&windows[2].new[0], &buffers), &first[3072..]);
    }

    #[test]
    fn the_way_that_reads_fewer_members_is_taken_and_never_reads_what_is_out() {
        for columns in 3..9_u16 {
            let raid5 = raid5(columns);
            let data = raid5.data_units();
            for written in 1..=data {
                let puts = [Put { at: 0, buffer: 0, from: 0, len: written * 4096 }];
                let window = &windows(&raid5, &puts)[0];
                let cost = |out| reads(&raid5, window, method(&raid5, window, out));
                assert_eq!(
                    cost(None).len(),
                    (written + 1).min(data - written),
                    "{written} of {data}"
                );
                for column in 0..columns.into() {
                    for takes_writes in [false, true] {
                        assert!(!cost(Some(Out { column, takes_writes })).contains(&column));
                    }
                }
            }
        }
    }
}
