//! What a cut may leave: the names and bytes of a recovered view against what had been promised.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use bedplate_fs::InodeNo;

use crate::history::{Done, History, views};
use crate::model::allocate;
use crate::outcome::Promise;
use crate::units::compare_units;
use crate::view::{View, difference};

/// Holds a recovered view against the promises of the history at the cut.
pub(crate) fn compare(history: &History, after: usize, seen: &View) -> Result<(), String> {
    let reach = Reach::of(history, after);
    compare_names(history, &reach, seen)?;
    for (line, shown) in &seen.checkpoints {
        compare_checkpoint(history, line, shown)?;
    }
    for (ino, content) in &seen.contents {
        compare_content(history, &reach, *ino, content)?;
    }
    Ok(())
}

/// How far a history had come at a cut, in steps.
struct Reach {
    /// So many were over.
    complete: usize,
    /// So many had begun.
    started: usize,
    /// So many another thread's sync had promised.
    floor: usize,
}

impl Reach {
    fn of(history: &History, after: usize) -> Self {
        debug_assert!(
            history.done.is_sorted_by_key(|done| done.end),
            "steps are written down in the order in which they were over"
        );
        let complete = history.done.partition_point(|done| done.end <= after);
        // The next step was under way: its first operation may have been on its way to the device.
        let parts = history.done[complete..].iter().take_while(|done| done.part).count();
        let started = (complete + parts + 1).min(history.done.len());
        let floor = history
            .floors
            .iter()
            .filter(|floor| floor.end <= after)
            .map(|floor| floor.steps)
            .max()
            .unwrap_or(0);
        debug_assert!(
            complete <= started && started <= history.done.len() && floor <= history.done.len(),
            "what is promised was done: {complete}, {started}, {floor} of {}",
            history.done.len()
        );
        Self { complete, started, floor }
    }
}

/// After how many steps the names were those that are seen: all that fit, of those that a cut may
/// leave.
pub(crate) fn names_fit(history: &History, after: usize, seen: &View) -> Vec<usize> {
    let Reach { complete, started, .. } = Reach::of(history, after);
    let synced = names_synced(&history.done[..complete]);
    (synced..)
        .zip(views(history, synced, started))
        .filter(|(_, view)| view.names == seen.names)
        .map(|(steps, _)| steps)
        .collect()
}

fn compare_names(history: &History, reach: &Reach, seen: &View) -> Result<(), String> {
    let started = reach.started;
    let synced = names_synced(&history.done[..reach.complete]).max(reach.floor);
    if views(history, synced, started).any(|view| view.names == seen.names) {
        return Ok(());
    }
    let expected = &views(history, synced, synced).next().expect("there is one").names;
    Err(format!(
        "the names are those of no step from {synced} to {started}\n   found:    {:#?}\n   step \
         {synced}: {expected:#?}",
        seen.names
    ))
}

/// A checkpoint shows what it showed when it was made, to the byte (S-50, S-54).
fn compare_checkpoint(history: &History, line: &str, shown: &View) -> Result<(), String> {
    let views = std::iter::once(&history.before).chain(history.done.iter().map(|done| &done.view));
    let mut made = views.filter_map(|view| view.checkpoints.get(line)).peekable();
    let first = *made.peek().ok_or_else(|| format!("'{line}' was never there"))?;
    let other = |made: &View| difference(shown, made).or_else(|| difference(made, shown));
    // One whose making failed may have gone with its process; the next one of the same name may
    // then have the same epoch.
    if made.any(|made| other(made).is_none()) {
        return Ok(());
    }
    other(first).map_or(Ok(()), |what| {
        Err(format!("'{line}' shows something else than when it was made: {what}"))
    })
}

/// Returns how many steps' names are promised.
fn names_synced(done: &[Done]) -> usize {
    let mut synced = 0;
    for (number, step) in done.iter().enumerate() {
        let touched_by = |ino: InodeNo| {
            done[..number]
                .iter()
                .rposition(|before| before.touched.contains(&ino))
                .map_or(0, |at| at + 1)
        };
        synced = synced.max(match step.promise {
            Promise::None | Promise::Written(..) | Promise::Data(_) => 0,
            Promise::Inode(ino) => touched_by(ino),
            Promise::Names | Promise::Cloned(_) | Promise::All => number + 1,
        });
    }
    debug_assert!(synced <= done.len(), "no name is promised of a step that was not made");
    synced
}

/// The inode numbers of files that a cut cannot have taken back.
pub(crate) fn used_numbers(history: &History, after: usize) -> BTreeSet<InodeNo> {
    let complete = history.done.partition_point(|done| done.end <= after);
    let durable: BTreeSet<usize> =
        (0..=complete).map(|done| names_synced(&history.done[..done])).collect();
    durable
        .into_iter()
        .flat_map(|at| views(history, at, at))
        .flat_map(|view| view.contents.keys().copied())
        .collect()
}

/// Returns after how many steps the content of a file was promised last.
fn content_synced(done: &[Done], ino: InodeNo) -> usize {
    let keeps = |step: &Done| match step.promise {
        Promise::None | Promise::Written(..) | Promise::Names => false,
        Promise::Data(synced) | Promise::Inode(synced) => synced == ino,
        Promise::Cloned(first) => ino >= first,
        Promise::All => true,
    };
    done.iter().rposition(keeps).map_or(0, |at| at + 1)
}

fn compare_content(
    history: &History,
    reach: &Reach,
    ino: InodeNo,
    content: &[u8],
) -> Result<(), String> {
    let Reach { complete, started, floor } = *reach;
    let synced = content_synced(&history.done[..complete], ino).max(floor);
    let allowed = allowed(history, synced, started, ino);
    assert!(
        !allowed.is_empty(),
        "a name leads to inode {}, which no step had: names are compared first",
        ino.0
    );
    let len = content.len();
    let exact = allowed.iter().any(|version| version.len() == len);
    let between = allowed.windows(2).any(|pair| pair[0].len() < len && len < pair[1].len());
    if !exact && !between {
        let sizes: Vec<_> = allowed.iter().map(|version| version.len()).collect();
        return Err(format!(
            "inode {} has {len} bytes; since its last sync (step {synced}) it had {sizes:?}",
            ino.0
        ));
    }
    compare_bytes(&allowed, synced, ino, content)?;
    compare_units(history, synced..started, ino, content)?;
    for (number, step) in history.done[..complete].iter().enumerate().skip(synced) {
        if let Promise::Written(written, from, to) = step.promise
            && written == ino
        {
            compare_written(history, number + 1..started, ino, from..to, content)?;
        }
    }
    Ok(())
}

/// The versions of a file from `from` steps done to `to` steps done. What cuts a range out or puts
/// one in moves bytes whether or not those written before are there: each earlier version is also
/// one with its bytes moved.
fn allowed(history: &History, from: usize, to: usize, ino: InodeNo) -> Vec<Cow<'_, [u8]>> {
    let mut allowed: Vec<Cow<'_, [u8]>> = Vec::new();
    for (view, number) in views(history, from, to).zip(from..) {
        let moved = number
            .checked_sub(1)
            .filter(|_| number > from)
            .and_then(|step| history.done[step].moved);
        if let Some((_, change, offset, len)) = moved.filter(|(moved, ..)| *moved == ino) {
            let block = history.model.block_size.into();
            for index in 0..allowed.len() {
                let mut version = allowed[index].to_vec();
                if allocate(&mut version, block, change, offset, len).is_ok() {
                    allowed.push(version.into());
                }
            }
        }
        // A step may make a file and then write to it.
        let wrote = |step: usize| history.done[step].wrote.as_ref().is_some_and(|w| w.ino == ino);
        if number > from && allowed.is_empty() && wrote(number - 1) {
            allowed.push(Cow::from(&[][..]));
        }
        // A name that comes back with a cut comes back with what the file held.
        allowed.extend(view.contents.get(&ino).map(|content| Cow::from(content.as_slice())));
    }
    allowed
}

/// Every byte is one that a version had there.
fn compare_bytes(
    allowed: &[Cow<'_, [u8]>],
    synced: usize,
    ino: InodeNo,
    content: &[u8],
) -> Result<(), String> {
    // Nearly always all of it is some version's.
    if allowed.iter().any(|version| **version == *content) {
        return Ok(());
    }
    for (at, byte) in content.iter().enumerate() {
        if !allowed.iter().any(|version| version.get(at).copied().unwrap_or(0) == *byte) {
            let values: Vec<_> = allowed.iter().map(|version| version.get(at)).collect();
            let len = content.len();
            return Err(format!(
                "inode {} holds {byte:#04x} at byte {at} of {len}; since its last sync (step \
                 {synced}) it held {values:x?}",
                ino.0
            ));
        }
    }
    Ok(())
}

/// Holds the bytes of one write with `O_DSYNC` against what the file held since.
fn compare_written(
    history: &History,
    steps: Range<usize>,
    ino: InodeNo,
    range: Range<u64>,
    content: &[u8],
) -> Result<(), String> {
    let later: Vec<_> =
        views(history, steps.start, steps.end).filter_map(|view| view.contents.get(&ino)).collect();
    for at in range {
        let byte =
            |content: &[u8]| usize::try_from(at).ok().and_then(|at| content.get(at).copied());
        if !later.iter().any(|version| {
            byte(version).unwrap_or(0) == byte(content).unwrap_or(0)
                && (byte(content).is_some() || byte(version).is_none())
        }) {
            let values: Vec<_> = later.iter().map(|version| byte(version)).collect();
            return Err(format!(
                "inode {} holds {:x?} at byte {at}; since it was written with O_DSYNC (step {}) it \
                 held {values:x?}",
                ino.0,
                byte(content),
                steps.start
            ));
        }
    }
    Ok(())
}
