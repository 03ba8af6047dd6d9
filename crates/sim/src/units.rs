//! Units that are written untorn: after a cut each write is there in the whole unit, or not at all
//! (S-58).

use std::collections::BTreeSet;
use std::ops::Range;

use bedplate_fs::InodeNo;

use crate::history::{Done, History, content_of, views};
use crate::outcome::Wrote;
use crate::view::View;

/// More states than this of one unit are not told apart.
const STATES_MAX: usize = 256;

/// Holds every unit of a file against the writes since its last sync: any of them is there or not,
/// but none in part.
pub(crate) fn compare_units(
    history: &History,
    steps: Range<usize>,
    ino: InodeNo,
    content: &[u8],
) -> Result<(), String> {
    let to_file =
        |done: &'_ Done| done.wrote.clone().filter(|wrote| wrote.ino == ino && wrote.unit > 0);
    let promised: Vec<Wrote> = history.done[steps.clone()].iter().filter_map(to_file).collect();
    let Some(unit) = promised.first().map(|wrote| wrote.unit) else { return Ok(()) };
    debug_assert!(unit.is_power_of_two(), "a unit is a power of two: {unit}");
    let units: BTreeSet<u64> = promised
        .iter()
        .flat_map(|wrote| wrote.range.start / unit..wrote.range.end.div_ceil(unit))
        .collect();
    for number in units {
        let region = number * unit..(number + 1) * unit;
        let Some(states) = states(history, steps.clone(), ino, unit, &region) else { continue };
        let found = part(content, &region);
        if !states.contains(&found) {
            let at = states
                .iter()
                .filter_map(|state| found.iter().zip(state).position(|(a, b)| a != b))
                .max()
                .unwrap_or(0) as u64;
            let what =
                "is torn: it holds parts of writes, or of one write and of what was there before";
            return Err(format!(
                "S-58: unit {number} (of {unit} bytes) of inode {} {what}; byte {} fits nothing",
                ino.0,
                region.start + at
            ));
        }
    }
    Ok(())
}

/// What a unit may hold after a cut; `None` where something else than an untorn write changed it.
fn states(
    history: &History,
    steps: Range<usize>,
    ino: InodeNo,
    unit: u64,
    region: &Range<u64>,
) -> Option<BTreeSet<Vec<u8>>> {
    let mut shown = views(history, steps.start, steps.end)
        .map(|view: &View| part(content_of(view, ino), region));
    let mut before = shown.next().expect("there is a state before the first step");
    let mut states = BTreeSet::from([before.clone()]);
    for (done, after) in history.done[steps].iter().zip(shown) {
        match done.wrote.as_ref().filter(|wrote| wrote.ino == ino) {
            Some(wrote) => {
                let written = wrote.range.start.max(region.start)..wrote.range.end.min(region.end);
                if !written.is_empty() {
                    if wrote.unit != unit {
                        return None;
                    }
                    write(&mut states, &after, written, region);
                }
            }
            None if before != after => return None,
            None => {}
        }
        if states.len() > STATES_MAX {
            return None;
        }
        before = after;
    }
    Some(states)
}

/// Adds what becomes of each state by a write, whose bytes are in `after`.
fn write(states: &mut BTreeSet<Vec<u8>>, after: &[u8], written: Range<u64>, region: &Range<u64>) {
    debug_assert!(
        region.start <= written.start && written.end <= region.end,
        "what was written of a unit lies in it: {written:?} of {region:?}"
    );
    let index = |at: u64| usize::try_from(at - region.start).expect("a unit is small");
    let range = index(written.start)..index(written.end);
    let changed: Vec<Vec<u8>> = states
        .iter()
        .map(|state| {
            let mut state = state.clone();
            state[range.clone()].copy_from_slice(&after[range.clone()]);
            state
        })
        .collect();
    states.extend(changed);
}

/// A part of a content; what lies behind its end is zero.
fn part(content: &[u8], region: &Range<u64>) -> Vec<u8> {
    let clamped = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
    let mut part = content[clamped(region.start)..clamped(region.end)].to_vec();
    part.resize(usize::try_from(region.end - region.start).expect("a unit is small"), 0);
    part
}
