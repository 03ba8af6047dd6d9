//! Cuts the power, recovers, and compares what is there with what was promised.

use std::collections::BTreeSet;
use std::fmt;

use bedplate_block::{AlignedBuf, BlockDevice, CrashChoice};
use bedplate_fs::{
    ErrorKind, FileKind, FileSystem, FindingKind, InodeNo, MountOptions, NewFile, OpenOptions,
    SpacePolicy,
};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::bed::{Bed, Remains, quiet};
use crate::history::History;
use crate::kept::compare;
use crate::view::{Seen, View, difference, is_zero, see};
use crate::workload::{Setup, Step};

/// One power cut.
#[derive(Debug, Clone)]
pub struct Cut {
    /// How many device operations were issued before it.
    pub after: usize,
    /// What becomes of the unflushed ones.
    pub choice: CrashChoice,
    /// A seed for a second cut during recovery.
    pub again: Option<u64>,
}

/// A broken promise, and everything that reproduces it.
#[derive(Debug)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The volume.
    pub setup: Setup,
    /// The steps.
    pub steps: Vec<Step>,
    /// What was wrong.
    pub what: String,
    /// How many crash states had been found in order before.
    pub states: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        writeln!(f, "volume: {:?}", self.setup)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  step {number}: {step:?}")?;
        }
        Ok(())
    }
}

/// What takes long and is done after some cuts only.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Looks {
    /// A read-only mount comes first, and is compared with the recovery.
    pub(crate) read_only: bool,
    /// The recovered volume is written to, unmounted and mounted again, and shows the same.
    pub(crate) goes_on: bool,
    /// The group compares all its copies; else what changed is compared without it.
    pub(crate) scrub: bool,
    /// At last a bit of a member turns, and the group finds it.
    pub(crate) rot: Option<usize>,
}

/// Says whether a recovered view keeps what was promised.
type Kept<'a> = &'a dyn Fn(&View) -> Result<(), String>;

/// Judges one cut.
///
/// # Errors
/// One sentence that says which promise was broken.
pub fn judge(history: &History, cut: &Cut) -> Result<(), String> {
    assert!(
        cut.after <= history.operations(),
        "the power goes within the recording: after {} of {}",
        cut.after,
        history.operations()
    );
    let remains = history.bed.cut(cut.after, &cut.choice);
    let context = |what: String| {
        format!("cut after device operation {} ({:?}): {what}", cut.after, cut.choice)
    };
    let kept = |seen: &View| compare(history, cut.after, seen);
    let looks = Looks {
        read_only: cut.after.is_multiple_of(8),
        goes_on: goes_on(cut),
        scrub: cut.after % 16 == 5,
        rot: Some(cut.after).filter(|after| after % 64 == 13),
    };
    let Some(seed) = cut.again else {
        return recover_and_compare(&history.before, looks, &remains, &kept).map_err(context);
    };
    check(&remains).map_err(context)?;
    // Recover on simulated devices, cut again in the middle of it, and judge what the second
    // recovery makes of it.
    let bed = Bed::again(&remains, seed);
    let wires = bed.connect();
    let recovered = recover(|| wires.mount(quiet()), &kept).map_err(context)?;
    let recovery_end = bed.operation_count();
    drop(recovered);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let after = rng.random_range(0..=recovery_end);
    let twice = bed.cut(after, &CrashChoice::Seeded(rng.random()));
    let context = |what: String| {
        context(format!("second cut after operation {after} of the recovery: {what}"))
    };
    recover_and_compare(
        &history.before,
        Looks { goes_on: seed.is_multiple_of(2), ..Looks::default() },
        &twice.copy(),
        &kept,
    )
    .map_err(context)?;
    if !check(&twice).map_err(context)? {
        return Ok(());
    }
    let copy = rng.random_range(0..2);
    damage(&twice, copy).map_err(context)?;
    let unreadable = |what| context(format!("copy {copy} of the superblock is unreadable: {what}"));
    recover_and_compare(&history.before, Looks::default(), &twice, &kept).map_err(unreadable)
}

/// Every second cut, on average.
fn goes_on(cut: &Cut) -> bool {
    match cut.choice {
        CrashChoice::Seeded(seed) | CrashChoice::InOrder(seed) => seed.is_multiple_of(2),
        _ => cut.after.is_multiple_of(2),
    }
}

/// A check that changes nothing finds nothing; returns whether both copies of the superblock are
/// whole.
fn check(remains: &Remains) -> Result<bool, String> {
    let report = remains
        .volume(true)
        .and_then(|volume| FileSystem::check(&volume, remains.log().as_ref(), false))
        .map_err(|e| format!("check does not run: {e}"))?;
    // An update of the superblock that the cut interrupted leaves one copy torn; the other one
    // serves.
    if let Some(finding) =
        report.findings.iter().find(|finding| finding.kind != FindingKind::Superblock)
    {
        return Err(format!(
            "check finds {:?}: {} (and {} more)",
            finding.kind,
            finding.message,
            report.findings.len() - 1
        ));
    }
    Ok(report.findings.is_empty())
}

/// S-39: makes one copy of the superblock unreadable; the other one must do.
fn damage(remains: &Remains, copy: u64) -> Result<(), String> {
    let Some(device) = remains.only_device() else { return Ok(()) };
    device
        .write_at(
            &AlignedBuf::from_slice(&[0xee; 4096]),
            SUPERBLOCKS[usize::from(!copy.is_multiple_of(2))],
        )
        .map_err(|e| e.to_string())
}

/// Where the copies of the superblock lie (docs/format.md).
const SUPERBLOCKS: [u64; 2] = [0, 8 << 20];

/// Mounts, and compares.
fn recover(
    mount: impl FnOnce() -> bedplate_fs::Result<FileSystem>,
    kept: Kept<'_>,
) -> Result<(FileSystem, Seen), String> {
    let fs = mount().map_err(|e| format!("the volume does not mount: {e}"))?;
    let seen = see(&fs).map_err(|e| format!("the recovered volume cannot be read: {e}"))?;
    kept(&seen.view)?;
    // S-17: what lost its last name while it was open is gone.
    let inodes: BTreeSet<InodeNo> = seen.nodes.keys().copied().collect();
    let counted = fs.statfs().inodes;
    if counted != inodes.len() as u64 && seen.view.checkpoints.is_empty() {
        return Err(format!("S-17: {counted} inodes are in use, names lead to {}", inodes.len()));
    }
    Ok((fs, seen))
}

/// Recovers, and lets every file grow; before that, where it is asked for, uses the volume on,
/// unmounts it and mounts it again.
pub(crate) fn recover_and_compare(
    before: &View,
    looks: Looks,
    remains: &Remains,
    kept: Kept<'_>,
) -> Result<(), String> {
    // Of a write that was not synced a copy that cannot be read in places may have another part
    // than recovery takes for all copies.
    let looked = if looks.read_only {
        Some(look(remains)?).filter(|_| !remains.are_unreadable())
    } else {
        None
    };
    check(remains)?;
    let (fs, seen) = recover(|| remains.mount(quiet()), kept)?;
    if let Some(what) = looked.and_then(|looked| difference(&looked, &seen.view)) {
        return Err(format!(
            "S-38: a read-only mount shows another state than recovery makes: {what}"
        ));
    }
    let (fs, seen) = if looks.goes_on { use_on(before, remains, fs, &seen)? } else { (fs, seen) };
    grow_over_removed(&fs, &seen.view)?;
    drop((fs, seen));
    remains.copies_agree(looks.scrub, looks.rot)
}

/// Writes to a recovered volume, unmounts it, and mounts it again: it shows the same.
fn use_on(
    before: &View,
    remains: &Remains,
    fs: FileSystem,
    seen: &Seen,
) -> Result<(FileSystem, Seen), String> {
    let wrote = go_on(before, &fs)?;
    // One that the cut interrupted comes some way, and on after the next mount.
    end_deletions(&fs, seen.nodes.len() % 4)?;
    fs.unmount().map_err(|e| format!("the recovered volume cannot be unmounted: {e}"))?;
    let fs = remains
        .mount(quiet())
        .map_err(|e| format!("the volume does not mount a second time: {e}"))?;
    if wrote {
        fs.remove("/judge").map_err(|e| format!("what was synced after recovery is lost: {e}"))?;
    }
    end_deletions(&fs, usize::MAX)?;
    let again = see(&fs).map_err(|e| format!("the volume cannot be read a second time: {e}"))?;
    if let Some(what) = difference(&again.view, &seen.view) {
        return Err(format!("the second mount shows something else than the first: {what}"));
    }
    Ok((fs, again))
}

/// S-484: carries out so many steps of deletions that were cut short; with room they come to an end.
fn end_deletions(fs: &FileSystem, most: usize) -> Result<(), String> {
    let mut steps = 0;
    while steps < most
        && fs.delete_step().map_err(|e| format!("S-484: a deletion does not go on: {e}"))?
    {
        steps += 1;
    }
    let left = fs.checkpoint_counts().deleting;
    if steps < most && left > 0 && fs.statfs().available_bytes >= ROOM_BYTES {
        return Err(format!("S-484: {left} deletions do not end, after {steps} steps"));
    }
    Ok(())
}

/// S-38: a read-only mount writes nothing; returns what it shows.
fn look(remains: &Remains) -> Result<View, String> {
    let before = remains.snapshots();
    let options = MountOptions { read_only: true, ..quiet() };
    let fs =
        remains.mount(options).map_err(|e| format!("the volume does not mount read-only: {e}"))?;
    let seen = see(&fs)
        .map_err(|e| format!("the volume cannot be read when it is mounted read-only: {e}"))?;
    drop(fs);
    match remains.first_difference(&before) {
        None => Ok(seen.view),
        Some(at) => Err(format!("S-38: a read-only mount changed byte {at} of the device")),
    }
}

/// Where less is available, a recovered volume may have no room for what is tried on it.
const ROOM_BYTES: u64 = 64 << 10;

/// The recovered volume must be usable; returns whether there is a file now. No checkpoint may go
/// for it: they are compared once more.
fn go_on(before: &View, fs: &FileSystem) -> Result<bool, String> {
    if fs.checkpoint_counts().policy == SpacePolicy::DeleteOldest
        && fs.statfs().available_bytes < ROOM_BYTES
    {
        return Ok(false);
    }
    let work = || -> bedplate_fs::Result<InodeNo> {
        let made = fs.make(InodeNo::ROOT, b"judge", FileKind::File, NewFile::default(), 0)?.ino;
        let file = fs.open("/judge", &OpenOptions::read_write())?;
        file.write_at(&[0xa5; 10_000], 0)?;
        file.sync_all()?;
        Ok(made)
    };
    let made = match work() {
        Ok(made) => made,
        // S-34: names can be removed from a full volume.
        Err(error)
            if error.kind == ErrorKind::NoSpace && fs.statfs().available_bytes < ROOM_BYTES =>
        {
            return match fs.remove("/judge") {
                Err(error) if error.kind != ErrorKind::NotFound => {
                    Err(format!("S-34: a name cannot be removed from a full volume: {error}"))
                }
                _ => Ok(false),
            };
        }
        Err(error) => return Err(format!("the recovered volume cannot be written: {error}")),
    };
    let known =
        |view: &View| view.names.iter().any(|line| line.contains(&format!(" inode {} ", made.0)));
    if known(before) {
        Err(format!("S-19: inode number {} is used twice", made.0))
    } else {
        Ok(true)
    }
}

/// Each file grows by so many bytes.
const GROWN_BYTES: usize = 64 << 10;

/// S-11: where files grow they read as zeros, also over what a truncation removed that the cut
/// interrupted.
fn grow_over_removed(fs: &FileSystem, seen: &View) -> Result<(), String> {
    for (ino, content) in &seen.contents {
        let end = content.len() as u64;
        let grown = || -> bedplate_fs::Result<AlignedBuf> {
            let file = fs.open_inode(*ino, &OpenOptions::read_write())?;
            file.set_size(end + GROWN_BYTES as u64)?;
            let mut behind = AlignedBuf::zeroed(GROWN_BYTES);
            file.read_at(&mut behind, end)?;
            Ok(behind)
        };
        match grown() {
            Ok(behind) => {
                if !is_zero(&behind)
                    && let Some(at) = behind.iter().position(|byte| *byte != 0)
                {
                    let (byte, at) = (behind[at], end + at as u64);
                    return Err(format!(
                        "S-11: inode {} of {end} bytes was made longer and holds {byte:#04x} at \
                         byte {at}",
                        ino.0
                    ));
                }
            }
            // It takes a block where the last one is shared with a checkpoint.
            Err(error) if error.kind == ErrorKind::NoSpace => return Ok(()),
            Err(error) => return Err(format!("inode {} cannot be made longer: {error}", ino.0)),
        }
    }
    Ok(())
}
