//! Cuts the power, recovers, and compares what is there with what was promised.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use block::{BlockDevice, CrashChoice, SimulatedDevice, SimulatedOptions};
use fs::{FileKind, FileSystem, FindingKind, InodeNo, NewFile, OpenOptions};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::run::{Done, History, Promise, View, mount, view};
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
}

impl Violation {
    pub(crate) fn new(seed: u64, setup: &Setup, steps: &[Step], what: String) -> Box<Self> {
        Box::new(Self { seed, setup: *setup, steps: steps.to_vec(), what })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        writeln!(f, "volume: {:?}", self.setup)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  step {number}: {step:?}")?;
        }
        write!(f, "reproduce with: cargo run --release -p bedplate-sim -- --seed {} --steps {}", self.seed, self.steps.len())
    }
}

/// Judges one cut.
///
/// # Errors
/// One sentence that says which promise was broken.
pub fn judge(history: &History, cut: &Cut) -> Result<(), String> {
    let image = history.device.crash_image(cut.after, &cut.choice);
    let context = |what: String| format!("cut after device operation {} ({:?}): {what}", cut.after, cut.choice);
    let Some(seed) = cut.again else {
        let device: Arc<dyn BlockDevice> = image;
        return recover_and_compare(history, cut.after, &device).map_err(context);
    };
    // Recover on a simulated device, cut again in the middle of it, and judge what the second recovery makes of it.
    let options = SimulatedOptions { geometry: image.geometry(), seed, ..SimulatedOptions::default() };
    let simulated = SimulatedDevice::over(&image.snapshot(), &options);
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    let recovered = recover(history, cut.after, &device).map_err(context)?;
    let recovery_end = simulated.operation_count();
    drop(recovered);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let after = rng.random_range(0..=recovery_end);
    let twice: Arc<dyn BlockDevice> = simulated.crash_image(after, &CrashChoice::Seeded(rng.random()));
    recover_and_compare(history, cut.after, &twice).map_err(|what| context(format!("second cut after operation {after} of the recovery: {what}")))
}

/// Checks, mounts, and compares.
fn recover(history: &History, after: usize, device: &Arc<dyn BlockDevice>) -> Result<(FileSystem, View), String> {
    let report = FileSystem::check(device, None, false).map_err(|e| format!("check does not run: {e}"))?;
    // An update of the superblock that the cut interrupted leaves one copy torn; the other one serves.
    if let Some(finding) = report.findings.iter().find(|finding| finding.kind != FindingKind::Superblock) {
        return Err(format!("check finds {:?}: {} (and {} more)", finding.kind, finding.message, report.findings.len() - 1));
    }
    let fs = mount(device).map_err(|e| format!("the volume does not mount: {e}"))?;
    let seen = view(&fs).map_err(|e| format!("the recovered volume cannot be read: {e}"))?;
    compare(history, after, &seen)?;
    Ok((fs, seen))
}

/// Recovers, then uses the volume on, unmounts it and mounts it again.
fn recover_and_compare(history: &History, after: usize, device: &Arc<dyn BlockDevice>) -> Result<(), String> {
    let (fs, seen) = recover(history, after, device)?;
    go_on(&fs)?;
    fs.unmount().map_err(|e| format!("the recovered volume cannot be unmounted: {e}"))?;
    let fs = mount(device).map_err(|e| format!("the volume does not mount a second time: {e}"))?;
    fs.remove("/judge").map_err(|e| format!("what was synced after recovery is lost: {e}"))?;
    let again = view(&fs).map_err(|e| format!("the volume cannot be read a second time: {e}"))?;
    if again == seen { Ok(()) } else { Err("the second mount shows something else than the first".into()) }
}

/// The recovered volume must be usable.
fn go_on(fs: &FileSystem) -> Result<(), String> {
    let work = || {
        fs.make(InodeNo::ROOT, b"judge", FileKind::File, NewFile::default(), 0)?;
        let file = fs.open("/judge", &OpenOptions::read_write())?;
        file.write_at(&[0xa5; 10_000], 0)?;
        file.sync_all()
    };
    work().map_err(|e| format!("the recovered volume cannot be written: {e}"))
}

/// Holds a recovered view against the promises of the history at the cut.
fn compare(history: &History, after: usize, seen: &View) -> Result<(), String> {
    let complete = history.done.partition_point(|done| done.end <= after);
    // The next step was under way: its first operation may have been on its way to the device.
    let started = (complete + 1).min(history.done.len());
    compare_names(history, complete, started, seen)?;
    for (line, shown) in &seen.checkpoints {
        compare_checkpoint(history, line, shown)?;
    }
    for (ino, content) in &seen.contents {
        compare_content(history, complete, started, *ino, content)?;
    }
    Ok(())
}

/// The views from `from` steps done to `to` steps done.
fn views(history: &History, from: usize, to: usize) -> impl Iterator<Item = &View> {
    let before = (from == 0).then_some(&history.before);
    before.into_iter().chain(history.done[from.saturating_sub(1)..to].iter().map(|done| &done.view))
}

fn compare_names(history: &History, complete: usize, started: usize, seen: &View) -> Result<(), String> {
    let synced = names_synced(&history.done[..complete]);
    if views(history, synced, started).any(|view| view.names == seen.names) {
        return Ok(());
    }
    let expected = &views(history, synced, synced).next().expect("there is one").names;
    Err(format!("the names are those of no step from {synced} to {started}\n   found:    {:#?}\n   step {synced}: {expected:#?}", seen.names))
}

/// A checkpoint shows what it showed when it was made, to the byte (S-50, S-54).
fn compare_checkpoint(history: &History, line: &str, shown: &View) -> Result<(), String> {
    let made = history.done.iter().find_map(|done| done.view.checkpoints.get(line));
    let made = made.ok_or_else(|| format!("'{line}' was never there"))?;
    if made.names != shown.names {
        return Err(format!("'{line}' shows the names {:#?}, when it was made {:#?}", shown.names, made.names));
    }
    let other = made.contents.iter().find(|(ino, content)| shown.contents.get(*ino) != Some(*content));
    other.map_or(Ok(()), |(ino, content)| {
        let at = shown.contents.get(ino).and_then(|shown| shown.iter().zip(content.iter()).position(|(a, b)| a != b));
        Err(format!("'{line}' shows another inode {} than when it was made, first at byte {at:?}", ino.0))
    })
}

/// Returns how many steps' names are promised.
fn names_synced(done: &[Done]) -> usize {
    let mut synced = 0;
    for (number, step) in done.iter().enumerate() {
        let touched_by = |ino: InodeNo| done[..number].iter().rposition(|before| before.touched.contains(&ino)).map_or(0, |at| at + 1);
        synced = synced.max(match step.promise {
            Promise::None | Promise::Written(..) | Promise::Data(_) => 0,
            Promise::Inode(ino) => touched_by(ino),
            Promise::Names | Promise::All => number + 1,
        });
    }
    synced
}

/// Returns after how many steps the content of a file was promised last.
fn content_synced(done: &[Done], ino: InodeNo) -> usize {
    let keeps = |step: &Done| match step.promise {
        Promise::None | Promise::Written(..) | Promise::Names => false,
        Promise::Data(synced) | Promise::Inode(synced) => synced == ino,
        Promise::All => true,
    };
    done.iter().rposition(keeps).map_or(0, |at| at + 1)
}

fn compare_content(history: &History, complete: usize, started: usize, ino: InodeNo, content: &[u8]) -> Result<(), String> {
    let synced = content_synced(&history.done[..complete], ino);
    // A file that did not exist yet was empty.
    let empty = Arc::new(Vec::new());
    let allowed: Vec<&Arc<Vec<u8>>> = views(history, synced, started).map(|view| view.contents.get(&ino).unwrap_or(&empty)).collect();
    let len = content.len();
    let exact = allowed.iter().any(|version| version.len() == len);
    let between = allowed.windows(2).any(|pair| pair[0].len() < len && len < pair[1].len());
    if !exact && !between {
        let sizes: Vec<_> = allowed.iter().map(|version| version.len()).collect();
        return Err(format!("inode {} has {len} bytes; since its last sync (step {synced}) it had {sizes:?}", ino.0));
    }
    for (at, byte) in content.iter().enumerate() {
        if !allowed.iter().any(|version| version.get(at).copied().unwrap_or(0) == *byte) {
            let values: Vec<_> = allowed.iter().map(|version| version.get(at)).collect();
            return Err(format!("inode {} holds {byte:#04x} at byte {at} of {len}; since its last sync (step {synced}) it held {values:x?}", ino.0));
        }
    }
    for (number, step) in history.done[..complete].iter().enumerate().skip(synced) {
        if let Promise::Written(written, from, to) = step.promise
            && written == ino
        {
            compare_written(history, number + 1..started, ino, from..to, content)?;
        }
    }
    Ok(())
}

/// Holds the bytes of one write with `O_DSYNC` against what the file held since.
fn compare_written(history: &History, steps: Range<usize>, ino: InodeNo, range: Range<u64>, content: &[u8]) -> Result<(), String> {
    let empty = Arc::new(Vec::new());
    let later: Vec<&Arc<Vec<u8>>> = views(history, steps.start, steps.end).map(|view| view.contents.get(&ino).unwrap_or(&empty)).collect();
    for at in range {
        let byte = |content: &[u8]| usize::try_from(at).ok().and_then(|at| content.get(at).copied());
        if !later
            .iter()
            .any(|version| byte(version).unwrap_or(0) == byte(content).unwrap_or(0) && (byte(content).is_some() || byte(version).is_none()))
        {
            let values: Vec<_> = later.iter().map(|version| byte(version)).collect();
            return Err(format!(
                "inode {} holds {:x?} at byte {at}; since it was written with O_DSYNC (step {}) it held {values:x?}",
                ino.0,
                byte(content),
                steps.start
            ));
        }
    }
    Ok(())
}
