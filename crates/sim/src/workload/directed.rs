//! Directed workloads: what has broken file systems before.

use bedplate_fs::IoMode;

use super::clones::{clones, copied_ranges, given_up, shared_in_part};
use super::large::large;
use super::lists::lists;
use super::logs::logs;
use super::past::{
    checkpoints, clones_of_full_volume, cut_deletions, defragmentation, full_volume, heirs,
    named_files, placement, rollbacks, summed, untorn,
};
use super::smaller::smaller;
use super::waiting::{delayed_growth, journals, odd_log, read_in_order, written_over};
use super::{Change, On, RenameKind, Step};

/// A workload with a name.
#[derive(Debug, Clone, Copy)]
pub struct Directed {
    /// What it is about.
    pub name: &'static str,
    /// Makes the steps.
    pub steps: fn() -> Vec<Step>,
}

/// All of them.
pub const DIRECTED: &[Directed] = &[
    Directed { name: "write, sync, rename over the old file", steps: replace_by_rename },
    Directed { name: "rename over an open file", steps: rename_over_open },
    Directed { name: "removal of open files", steps: unlink_open },
    Directed { name: "append after truncation", steps: append_after_truncate },
    Directed { name: "removed bytes stay removed", steps: removed_bytes },
    Directed { name: "punch below a hole fill", steps: punch_under_fill },
    Directed { name: "overwrite of what was just exposed", steps: overwrite_exposed },
    Directed { name: "overwrite in place", steps: overwrite_in_place },
    Directed { name: "more than a checksum vouches for", steps: large_writes },
    Directed { name: "sync of a new directory", steps: new_directory },
    Directed { name: "names move between directories", steps: moves },
    Directed { name: "log wrap and metadata commits", steps: full_log },
    Directed { name: "metadata outgrow their region", steps: metadata_growth },
    Directed {
        name: "recovery makes the metadata grow where a file was",
        steps: growth_at_recovery,
    },
    Directed { name: "log of an earlier incarnation", steps: incarnations },
    Directed { name: "growth in flight", steps: growth },
    Directed { name: "a file system becomes smaller and larger", steps: smaller },
    Directed { name: "the log moves and changes its size", steps: logs },
    Directed { name: "modes switch in flight", steps: mode_switches },
    Directed { name: "O_DSYNC beside writes that were not synced", steps: durable_beside_lazy },
    Directed {
        name: "checkpoints made, written after, deleted and rolled back to",
        steps: checkpoints,
    },
    Directed { name: "clones written on both sides and deleted in any order", steps: clones },
    Directed { name: "what clones had is written at once", steps: given_up },
    Directed { name: "checkpoints go from the newest and from the middle", steps: heirs },
    Directed { name: "deletions of checkpoints that were cut short", steps: cut_deletions },
    Directed { name: "ranges cut out and put in", steps: collapse_insert },
    Directed { name: "blocks are used again at once", steps: reuse },
    Directed { name: "checkpoints of named files and directories", steps: named_files },
    Directed { name: "one file and one directory are rolled back", steps: rollbacks },
    Directed { name: "pages that are written untorn", steps: untorn },
    Directed { name: "blocks with checksums", steps: summed },
    Directed { name: "scattered files are moved together", steps: defragmentation },
    Directed { name: "files move between members", steps: placement },
    Directed { name: "a full volume deletes its oldest checkpoints", steps: full_volume },
    Directed { name: "a full volume and what clones still need", steps: clones_of_full_volume },
    Directed { name: "a log in odd pieces", steps: odd_log },
    Directed { name: "journals whose head is written over", steps: journals },
    Directed { name: "growth that waits in memory", steps: delayed_growth },
    Directed { name: "pages written over in order", steps: written_over },
    Directed { name: "files read in order", steps: read_in_order },
    Directed { name: "access control lists and modes", steps: lists },
    Directed { name: "large I/O of cached files", steps: large },
    Directed { name: "writes across what clones share in part", steps: shared_in_part },
    Directed { name: "ranges copied between files", steps: copied_ranges },
];

pub(super) const A: On = On::Name(0, 0);
pub(super) const B: On = On::Name(1, 0);

pub(super) fn write(on: On, offset: u64, len: u32, fill: u8) -> Step {
    Step::Write(on, IoMode::Concurrent, offset, len, fill, false)
}

/// S-15: the classic way to replace a file leaves the old one or the new one.
fn replace_by_rename() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 20_000, 1), Step::Sync];
    for round in 0..4 {
        let rename = Step::Rename(1, 0, 0, 0, RenameKind::Replace);
        steps.extend([
            Step::Create(1, 0),
            write(B, 0, 10_000, 50 + round),
            Step::SyncData(B),
            rename,
        ]);
        steps.push(if round % 2 == 0 { Step::SyncDirectory(0) } else { Step::SyncAll(A) });
    }
    steps
}

fn rename_over_open() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 12_000, 1), Step::Sync];
    for (round, mode) in IoMode::ALL.into_iter().enumerate() {
        let fill = 10 * u8::try_from(round + 1).expect("four rounds");
        steps.extend([
            Step::Hold(0, 0, 0, mode),
            Step::Create(1, 0),
            write(B, 0, 9000, fill),
            Step::SyncData(B),
            Step::Rename(1, 0, 0, 0, RenameKind::Replace),
            // The old file lives on, without a name.
            write(On::Held(0), 4096, 8192, fill + 1),
            Step::SyncData(On::Held(0)),
            Step::Read(On::Held(0), mode, 0, 20_000),
            Step::SyncDirectory(0),
            Step::Release(0),
        ]);
    }
    steps
}

/// S-17: a file lives until its last open ends; after a crash it is gone.
fn unlink_open() -> Vec<Step> {
    let mut steps = Vec::new();
    for (mode, end) in [
        (IoMode::Cached, Step::Release(0)),
        (IoMode::Concurrent, Step::Kill),
        (IoMode::Direct, Step::Remount),
    ] {
        steps.extend([
            Step::Create(0, 0),
            write(A, 0, 50_000, 3),
            Step::Sync,
            Step::Hold(0, 0, 0, mode),
            Step::Unlink(0, 0),
            write(On::Held(0), 40_000, 30_000, 4),
            Step::SyncAll(On::Held(0)),
            Step::Create(0, 0),
            write(A, 0, 30_000, 5),
            Step::SyncData(A),
            Step::Allocate(On::Held(0), Change::Punch, 0, 20_000),
            Step::Sync,
            end,
            write(A, 30_000, 30_000, 6),
            Step::SyncData(A),
            Step::Unlink(0, 0),
        ]);
    }
    steps
}

fn append_after_truncate() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 9000, 1), Step::SyncData(A)];
    for (size, fill) in [(100, 2), (0, 3), (4096, 4), (8191, 5)] {
        steps.extend([
            Step::SetSize(A, size),
            Step::Append(0, 0, IoMode::Concurrent, 9000, fill, false),
            Step::SyncData(A),
            Step::SetSize(A, size),
            Step::Append(0, 0, IoMode::Cached, 700, fill + 50, true),
        ]);
    }
    steps
}

/// S-11: what was removed does not come back when the file grows over it again.
fn removed_bytes() -> Vec<Step> {
    let mut steps = Vec::new();
    for removal in [
        Step::SetSize(A, 5000),
        Step::Allocate(A, Change::Punch, 4096, 20_000),
        Step::Allocate(A, Change::Zero, 1000, 30_000),
    ] {
        steps.extend([
            Step::Create(0, 0),
            write(A, 0, 50_000, 7),
            Step::Sync,
            removal,
            Step::SyncData(A),
            Step::SetSize(A, 60_000),
            write(A, 45_000, 100, 9),
            Step::Sync,
            Step::Unlink(0, 0),
        ]);
    }
    steps
}

fn punch_under_fill() -> Vec<Step> {
    vec![
        Step::Create(0, 0),
        Step::Allocate(A, Change::Preallocate, 0, 40_960),
        write(A, 8192, 8192, 1),
        Step::Allocate(A, Change::Punch, 4096, 8192),
        write(A, 4096, 8192, 2),
        Step::SyncAll(A),
        write(A, 4096, 4096, 3),
        Step::Allocate(A, Change::Punch, 0, 40_000),
        write(A, 5000, 100, 4),
        Step::SyncData(A),
        Step::Allocate(A, Change::PreallocateKeep, 0, 60_000),
        write(A, 36_000, 9000, 5),
        Step::SyncData(A),
    ]
}

/// I-IO-3: bytes that a checksum in the log vouches for change only once it is sealed.
fn overwrite_exposed() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0)];
    for round in 0..5u8 {
        let at = u64::from(round) * 8192;
        steps.extend([
            write(A, at, 8192, 10 * round + 1),
            Step::SyncData(A),
            write(A, at, 4096, 10 * round + 2),
            write(A, at + 8192, 4096, 10 * round + 3),
            Step::SyncData(A),
            write(A, at + 8192, 512, 10 * round + 4),
        ]);
    }
    steps
}

/// Too much for a checksum: the record waits for the data instead.
fn large_writes() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Sync];
    for round in 0..4u8 {
        steps.extend([
            write(A, u64::from(round) * 1_500_000, 1_400_000, round * 2 + 1),
            Step::SyncData(if round % 2 == 0 { A } else { B }),
            Step::Write(B, IoMode::Cached, u64::from(round) * 4096, 4096, round * 2 + 2, false),
            Step::SyncAll(B),
        ]);
    }
    steps
}

/// S-3, S-16: a new directory and what is in it.
fn new_directory() -> Vec<Step> {
    vec![
        Step::MakeDirectory(1),
        Step::SyncDirectory(0),
        Step::Create(0, 1),
        Step::SyncDirectory(1),
        Step::Write(On::Name(0, 1), IoMode::Concurrent, 0, 6000, 1, false),
        Step::SyncData(On::Name(0, 1)),
        Step::Symlink(1, 1, 300),
        Step::Link(0, 1, 2, 0),
        Step::SyncDirectory(1),
        Step::RenameDirectory(1, 2),
        Step::SyncDirectory(0),
        Step::Unlink(0, 2),
        Step::SyncAll(On::Name(2, 0)),
        Step::Unlink(1, 2),
        Step::RemoveDirectory(2),
        Step::SyncDirectory(0),
    ]
}

/// S-2, S-14: a name goes from directory to directory, and syncs of either end keep it.
fn moves() -> Vec<Step> {
    let mut steps = vec![
        Step::MakeDirectory(1),
        Step::MakeDirectory(2),
        Step::Create(0, 0),
        write(A, 0, 5000, 1),
        Step::Sync,
    ];
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        steps.extend([
            Step::Rename(0, from, 0, to, RenameKind::Replace),
            if to == 1 { Step::SyncDirectory(from) } else { Step::SyncAll(On::Name(0, to)) },
            Step::Create(1, to),
            Step::SetMode(1, to, 0o600),
            Step::Link(1, to, 3, to),
            Step::Rename(0, to, 1, to, RenameKind::Exchange),
            Step::SyncDirectory(to),
            Step::Rename(1, to, 0, to, RenameKind::Replace),
            // The replaced file has another name: its link count is an attribute of its own.
            Step::SyncAll(On::Name(3, to)),
            Step::Unlink(3, to),
        ]);
    }
    steps
}

/// Attributes large enough to fill the log again and again: metadata commits at any moment, also
/// where the ring wraps.
fn full_log() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0)];
    for round in 0..26 {
        let which = round % 4;
        steps.extend([
            Step::SetAttribute(0, 0, which, 60_000),
            write(A, u64::from(round) * 4096, 4096, round + 1),
        ]);
        steps.push(if round % 5 == 4 { Step::Sync } else { Step::SyncAll(A) });
    }
    steps
}

/// More attributes than the metadata region holds at first (1 MiB): it takes blocks of the volume,
/// twice, while files are written beside it and blocks that were just freed are free to be taken.
fn metadata_growth() -> Vec<Step> {
    let mut steps =
        vec![Step::Create(0, 0), Step::Create(1, 0), write(A, 0, 262_144, 1), Step::Sync];
    for round in 0..44u8 {
        steps.extend([
            Step::SetAttribute(round % 2, 0, round, 60_000),
            write(B, u64::from(round) * 4096, 4096, round + 1),
        ]);
        match round % 11 {
            3 => steps.push(Step::SyncAll(B)),
            7 => steps.extend([
                Step::Allocate(A, Change::Punch, u64::from(round) * 4096, 16_384),
                Step::Sync,
            ]),
            10 => steps.push(if round < 22 { Step::Remount } else { Step::Kill }),
            _ => {}
        }
    }
    // What is free again is used again, also for data.
    steps.extend((0..40).map(|which| Step::RemoveAttribute(which % 2, 0, which)));
    steps.extend([
        Step::Sync,
        Step::Remount,
        write(A, 0, 131_072, 99),
        Step::SetAttribute(0, 0, 50, 60_000),
        Step::SyncAll(A),
    ]);
    steps
}

/// A file is removed and rows are added for which the metadata region must grow; the process dies
/// between the log write of that and its flush, and the next mount lets the region grow where the
/// file was, as the free run that fits best. The removal is as durable as the log, whose device may
/// lose it.
fn growth_at_recovery() -> Vec<Step> {
    const BEHIND: On = On::Name(2, 0);
    let mut rows = (0..).map(|which| Step::SetAttribute(1, 0, which, 60_000));
    let mut steps = vec![
        Step::Create(1, 0),
        Step::Create(0, 0),
        Step::Create(2, 0),
        write(A, 0, 1_800_000, 1),
        write(BEHIND, 0, 1, 2),
    ];
    steps.extend(rows.by_ref().take(6));
    // The tree has all that, and the ring begins empty: it takes two syncs of almost half its size.
    steps.push(Step::Remount);
    steps.extend(rows.by_ref().take(7));
    steps.extend([Step::SyncAll(B), Step::Unlink(0, 0)]);
    steps.extend(rows.by_ref().take(6));
    // The data is flushed and two batches are written; the log's flush is not made.
    steps.push(Step::Die(Box::new(Step::Sync), 3));
    steps.extend([
        Step::Unlink(2, 0),
        Step::Create(0, 0),
        write(A, 0, 500_000, 3),
        Step::SyncAll(A),
    ]);
    steps
}

/// What an earlier life left in the ring is not taken for new: recoveries with short logs behind
/// long ones.
fn incarnations() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 4096, 1), Step::Sync];
    for round in 0..5u8 {
        steps.extend([
            Step::SetMode(0, 0, 0o600 + u32::from(round)),
            Step::SyncAll(A),
            Step::Create(1, 0),
            Step::SyncDirectory(0),
            Step::SetAttribute(1, 0, round, 300),
            Step::SyncAll(B),
            Step::Kill,
            Step::SetMode(0, 0, 0o700 + u32::from(round)),
            Step::SyncAll(A),
            Step::Unlink(1, 0),
            Step::Kill,
            Step::Unlink(1, 0),
            Step::SyncDirectory(0),
        ]);
    }
    steps
}

/// S-34: the volume is filled, the device grows, and the new room is used at once, because there is
/// no other.
fn growth() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Sync];
    // What does not fit is refused.
    let mut at = 0;
    for kib in [32 << 10, 16 << 10, 8 << 10, 4 << 10, 2 << 10, 1 << 10, 512, 256, 128, 64] {
        steps.push(Step::Allocate(A, Change::PreallocateKeep, at, kib << 10));
        at += kib << 10;
    }
    // More than what is kept from data, so that the new end is used too.
    steps.extend([
        Step::Sync,
        Step::Grow(9),
        Step::Allocate(B, Change::Preallocate, 2 << 20, 9 << 20),
        Step::SyncAll(B),
        Step::Grow(1),
    ]);
    for round in 0..6u8 {
        let at = u64::from(round) * 120_000;
        steps.extend([
            Step::Grow(2),
            Step::Allocate(B, Change::Preallocate, at, 100_000),
            write(B, at, 60_000, round + 1),
            Step::Grow(1),
            Step::Write(B, IoMode::Cached, at + 90_000, 30_000, round + 9, true),
        ]);
        steps.push(if round == 3 { Step::Kill } else { Step::SyncData(B) });
    }
    steps
}

/// A written file is overwritten in place, over and over: nothing but the data needs a flush.
fn overwrite_in_place() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 65_536, 1), Step::Sync, Step::Remount];
    for round in 0..8u8 {
        let mode = IoMode::ALL[usize::from(round % 4)];
        steps.extend([
            Step::Write(A, mode, u64::from(round) * 4096, 8192, 10 + round, false),
            Step::SyncData(A),
        ]);
    }
    steps
}

/// S-29, S-30: a file is written in all modes at once while its own mode changes.
fn mode_switches() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 30_000, 1), Step::Sync];
    let modes = [IoMode::Cached, IoMode::Direct, IoMode::ConcurrentCache, IoMode::Concurrent];
    for (round, mode) in modes.into_iter().cycle().take(8).enumerate() {
        let fill = 3 * u8::try_from(round + 1).expect("eight rounds");
        let at = u64::from(fill) * 1500;
        steps.extend([
            Step::Hold(u8::try_from(round % 2).expect("0 or 1"), 0, 0, mode),
            Step::Write(On::Held(0), mode, at, 5000, fill, false),
            Step::SetIoMode(0, 0, Some(modes[(round + 1) % 4])),
            Step::Write(A, modes[(round + 2) % 4], at + 2000, 4096, fill + 1, round % 3 == 0),
            Step::Read(On::Held(0), mode, 0, 60_000),
            Step::Append(0, 0, modes[(round + 3) % 4], 700, fill + 2, false),
            if round % 2 == 0 { Step::SyncData(On::Held(0)) } else { Step::SyncAll(A) },
        ]);
    }
    steps
}

/// S-6: a write with `O_DSYNC` keeps its promise whatever the others do.
fn durable_beside_lazy() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Sync];
    for round in 0..8u64 {
        let fill = u8::try_from(round * 4 + 1).expect("small");
        let mode = IoMode::ALL[usize::try_from(round % 4).expect("below 4")];
        steps.extend([
            Step::Write(A, IoMode::Cached, round * 3000, 5000, fill, false),
            Step::Write(A, mode, round * 4096, 1024, fill + 1, true),
            Step::Write(B, mode, round * 2048, 2048, fill + 2, round % 2 == 0),
            Step::Append(0, 0, mode, 600, fill + 3, true),
        ]);
    }
    steps
}

fn collapse_insert() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 80_000, 1), Step::Sync];
    for round in 0..5u8 {
        let at = u64::from(round) * 8192;
        steps.extend([
            Step::Allocate(A, Change::Collapse, at, 4096),
            write(A, at, 4096, 20 + round),
            Step::Allocate(A, Change::Insert, 4096, 8192),
            write(A, 4096, 5000, 40 + round),
            Step::SyncData(A),
            write(A, at + 12_288, 9000, 60 + round),
        ]);
    }
    steps
}

/// A nearly full volume: what is freed is the next to be used, by another file.
fn reuse() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Create(2, 0)];
    // All but a little is taken, so that freed blocks are used again.
    steps
        .extend([Step::Allocate(On::Name(2, 0), Change::PreallocateKeep, 0, 30 << 20), Step::Sync]);
    for round in 0..6u8 {
        let (a, b) = if round % 2 == 0 { (A, B) } else { (B, A) };
        steps.extend([
            write(a, 0, 60_000, 2 * round + 1),
            Step::SyncData(a),
            Step::SetSize(a, 0),
            write(b, 0, 40_000, 2 * round + 2),
            Step::SyncData(b),
            Step::Allocate(b, Change::Punch, 0, 30_000),
            write(a, 0, 30_000, 100 + round),
        ]);
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use bedplate_block::Recorded;

    use super::*;
    use crate::run::record;
    use crate::workload::{Setup, pattern};

    /// Where the chunks of the metadata region stand that a copy of the superblock names
    /// (docs/format.md).
    fn chunks(copy: &[u8]) -> Vec<Range<u64>> {
        let number =
            |at: usize| u64::from_le_bytes(copy[at..at + 8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(copy[80..84].try_into().expect("four bytes"));
        (0..count as usize)
            .map(|chunk| 84 + 16 * chunk)
            .map(|at| number(at)..number(at) + number(at + 8))
            .collect()
    }

    /// Only a region that grew during a mount after a death, over blocks of the file, shows what
    /// such a mount relies on.
    #[test]
    fn a_recovery_lets_the_region_grow_where_the_file_was() {
        for setup in [Setup::DISK, Setup::TWO_DISKS] {
            let history = record(&setup, &growth_at_recovery())
                .unwrap_or_else(|what| panic!("{setup:?}: {what}"));
            // The sectors of the region, and those that the file had last; the operations with
            // which one took of the other.
            let (mut region, mut file, mut taken) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
            let mut written = 0;
            for (at, operation) in history.bed.data().operations().iter().enumerate() {
                let Recorded::Write { offset, data } = operation else { continue };
                if *offset == 0 {
                    let now: BTreeSet<u64> =
                        chunks(data).into_iter().flat_map(|chunk| chunk.step_by(512)).collect();
                    taken.extend(
                        now.difference(&region).any(|sector| file.contains(sector)).then_some(at),
                    );
                    region = now;
                } else if let Some(from) = [written, 0].into_iter().find(|from| {
                    data[..] == pattern(*from, u32::try_from(data.len()).expect("small"), 1)
                }) {
                    if from == 0 {
                        file.clear();
                    }
                    file.extend((*offset..offset + data.len() as u64).step_by(512));
                    written = from + data.len() as u64;
                }
            }
            let mounts = history.deaths_on_data();
            let after_death =
                mounts.iter().filter(|mount| taken.iter().any(|at| mount.contains(at))).count();
            assert_eq!(
                after_death, 1,
                "{setup:?}: the region grew over the file at operations {taken:?}, mounts after a \
                 death took {mounts:?}"
            );
        }
    }
}
