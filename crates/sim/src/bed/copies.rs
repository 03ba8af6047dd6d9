//! Whether the copies of a group hold the same, looked at on the members themselves.

use std::ops::Range;

use bedplate_block::Snapshot;
use bedplate_volume::{Config, Extent, Layout};

/// A byte that not all copies have, or that its parity does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Differs {
    /// Where in each column: in bytes from its beginning.
    at: u64,
    /// Whether copies differ or a row and its parity.
    parity: bool,
}

/// Returns the first difference among what is no longer as it was when all agreed.
pub(super) fn difference(
    config: &Config,
    agreed: &[Snapshot],
    now: &[Snapshot],
) -> Option<Differs> {
    config.volumes.iter().find_map(|volume| {
        let (columns, len, parity) = match &volume.layout {
            Layout::Mirror(mirror) => {
                (extents(mirror.plexes())?, volume.layout.size_bytes(), false)
            }
            Layout::Raid5(raid5) => {
                (extents(raid5.columns())?, raid5.rows() * raid5.unit_bytes(), true)
            }
            _ => return None,
        };
        let changed = columns.iter().flat_map(|column| changed(column, len, agreed, now));
        changed.into_iter().find_map(|range| differs(&columns, &range, now, parity))
    })
}

/// The so-manieth page of a member's data, counted round, of those that are no longer as they were
/// when all agreed: where it begins on the member.
pub(super) fn written(
    config: &Config,
    agreed: &[Snapshot],
    now: &[Snapshot],
    member: usize,
    number: usize,
) -> Option<u64> {
    let volume = config.volumes.first()?;
    let (columns, len) = match &volume.layout {
        Layout::Mirror(mirror) => (extents(mirror.plexes())?, volume.layout.size_bytes()),
        Layout::Raid5(raid5) => (extents(raid5.columns())?, raid5.rows() * raid5.unit_bytes()),
        _ => return None,
    };
    let column = columns.iter().find(|column| usize::from(column.member) == member)?;
    let pages: Vec<u64> = changed(column, len, agreed, now)
        .into_iter()
        .flat_map(|range| range.step_by(4096))
        .collect();
    pages.get(number % pages.len().max(1)).map(|page| column.start + page)
}

/// The columns, where each is one piece of a member.
fn extents(columns: &[Layout]) -> Option<Vec<Extent>> {
    columns
        .iter()
        .map(|column| if let Layout::Extent(extent) = column { Some(*extent) } else { None })
        .collect()
}

/// What of a column changed: ranges of bytes from its beginning.
fn changed(column: &Extent, len: u64, agreed: &[Snapshot], now: &[Snapshot]) -> Vec<Range<u64>> {
    let member = usize::from(column.member);
    let pages = now[member].pages_not_shared(&agreed[member]).into_iter();
    let within = pages.map(|page| {
        page.start.saturating_sub(column.start)..page.end.saturating_sub(column.start).min(len)
    });
    within.filter(|range| !range.is_empty()).collect()
}

fn differs(
    columns: &[Extent],
    range: &Range<u64>,
    now: &[Snapshot],
    parity: bool,
) -> Option<Differs> {
    let len = usize::try_from(range.end - range.start).expect("a page");
    let read = |column: &Extent| {
        let mut bytes = vec![0; len];
        now[usize::from(column.member)].read(&mut bytes, column.start + range.start);
        bytes
    };
    let mut columns = columns.iter();
    let mut first = read(columns.next()?);
    for column in columns {
        let other = read(column);
        if parity {
            first.iter_mut().zip(&other).for_each(|(sum, byte)| *sum ^= byte);
        } else if let Some(at) = first.iter().zip(&other).position(|(a, b)| a != b) {
            return Some(Differs { at: range.start + at as u64, parity });
        }
    }
    let at = parity.then(|| first.iter().position(|byte| *byte != 0)).flatten();
    at.map(|at| Differs { at: range.start + at as u64, parity })
}
