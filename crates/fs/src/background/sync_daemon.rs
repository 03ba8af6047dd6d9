//! The sync daemon: what is dirty becomes durable within the sync interval, without a call of a
//! program.
//!
//! It wakes once an interval, or when a writer wakes it because the metadata outgrows its bounds.
//! Between two turns it goes on with deletions of checkpoints that no call waits for: those that a
//! crash or an unmount cut short (S-484).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_block::Waker;

use super::Daemon;
use super::freed_memory::FreedMemory;
use crate::engine::Engine;
use crate::{Error, Result};

/// So many steps of deletions follow a turn, however soon the next one is due.
const STEPS_MIN: u32 = 8;

/// What an error of a turn means.
const NOT_WRITTEN: &str =
    "the sync daemon could not write what is dirty; it stays in memory and is tried again";
/// What an error of a deletion means.
const NOT_DELETED: &str =
    "what a deleted checkpoint had does not become free, which is tried again";

/// Starts the daemon of a writable mount.
pub(crate) fn start(fs: &Arc<Engine>) -> std::io::Result<Daemon> {
    let (waker, weak) = (fs.sync_waker().clone(), Arc::downgrade(fs));
    Daemon::spawn("bedplate-sync", fs.sync_waker().clone(), move || run(&waker, &weak))
}

/// Errors that were told, each once.
#[derive(Default)]
struct Told {
    failed: bool,
    others: Vec<&'static str>,
}

impl Told {
    fn tell(&mut self, fs: &Engine, what: &'static str, e: &Error) {
        if fs.has_failed() {
            // The failure says what to do.
            if !std::mem::replace(&mut self.failed, true) {
                tracing::error!(
                    event = "read_only",
                    "the file system is read-only from now on: {e}"
                );
            }
        } else if !self.others.contains(&what) {
            self.others.push(what);
            tracing::error!("{what}: {e}");
        }
    }
}

fn run(waker: &Waker, fs: &Weak<Engine>) {
    let (mut told, mut looked) = (Told::default(), Instant::now());
    let mut memory = FreedMemory::new();
    loop {
        let Some(wait) = fs.upgrade().map(|fs| between_turns(&fs, waker, &mut told)) else {
            return;
        };
        if !waker.wait(wait) {
            return;
        }
        let Some(fs) = fs.upgrade() else { return };
        fs.end_overdue_trials();
        let interval = fs.tuning().sync_interval();
        // How long a file rests is counted in intervals, however often the log fills (S-303).
        let has_passed = looked.elapsed() >= interval;
        if has_passed {
            looked = Instant::now();
        }
        if let Err(e) = turn(&fs, interval, has_passed) {
            told.tell(&fs, NOT_WRITTEN, &e);
        }
        if has_passed {
            memory.look();
        }
    }
}

/// Goes on with deletions until the next turn is due; returns how long that still takes.
fn between_turns(fs: &Engine, waker: &Waker, told: &mut Told) -> Duration {
    let interval = fs.tuning().sync_interval();
    let wait = fs.trials().first_ends_in().map_or(interval, |ends| ends.min(interval));
    let begun = Instant::now();
    if fs.limits().deletes_behind {
        delete_some(fs, waker, wait, told);
    }
    wait.saturating_sub(begun.elapsed())
}

/// Goes on with deletions for so long, or until a turn is wanted.
fn delete_some(fs: &Engine, waker: &Waker, wait: Duration, told: &mut Told) {
    let begun = Instant::now();
    let goes_on = |steps| {
        let is_due = waker.is_woken() || begun.elapsed() >= wait;
        !waker.is_stopped() && (steps < STEPS_MIN || !is_due)
    };
    if let Err(e) = fs.go_on_with_deletions(goes_on) {
        told.tell(fs, NOT_DELETED, &e);
    }
}

/// One turn: held writes, aged pages, lazy times, the log, blocks that wait to be free, the tree.
fn turn(fs: &Engine, interval: Duration, looks_at_leases: bool) -> Result<()> {
    let collected = fs.collect_tails(false);
    let held = fs.write_all_held().and(collected);
    let aged =
        Instant::now().checked_sub(interval).map_or(Ok(()), |then| fs.cache().flush_aged(then));
    fs.let_windows_go();
    fs.delayed_bytes().let_spare_go();
    fs.note_leased_writes();
    fs.commit_all_times(&fs.change());
    let home = fs.write_homes();
    if fs.has_unwritten_records() {
        fs.sync_to(fs.last_lsn())?;
    }
    fs.free_deferred();
    if let Some(lsn) = fs.release_waits_for() {
        fs.seal_to(lsn)?;
        fs.release_sealed();
    }
    fs.discard_freed();
    let refreshed = if looks_at_leases { fs.refresh_leases() } else { Ok(()) };
    fs.give_up_stale_shrink();
    fs.relieve_metadata();
    let committed = if fs.metadata_commit_due() { fs.metadata_commit() } else { Ok(()) };
    let let_go = let_idle_inodes_go(fs);
    held.and(aged).and(home).and(refreshed).and(committed).and(let_go)
}

/// Keeps what inodes cost in memory bounded (I-INO-3). An inode whose last record is not sealed
/// stays, so where many are loaded the log is sealed first.
fn let_idle_inodes_go(fs: &Engine) -> Result<()> {
    let last = fs.last_lsn();
    if fs.inodes_are_many() {
        fs.seal_to(last)?;
    }
    fs.let_idle_inodes_go();
    Ok(())
}

#[cfg(test)]
mod tests {
    use bedplate_block::{
        AlignedBuf, BlockDevice, CrashChoice, MemoryDevice, Recorded, SimulatedDevice,
    };

    use super::*;
    use crate::{
        CheckpointOptions, ErrorKind, FileBlock, FileKind, FileSystem, FormatOptions, InodeNo,
        IoMode, Limits, MountOptions, NewFile, OpenOptions,
    };
    use bedplate_store::{RowChange, Table, before_key, extent_key};

    /// S-140: as long as fewer than 65,536 files had been seen all of them stayed in memory,
    /// forgotten or not, for as long as the volume was mounted.
    #[test]
    fn s_140_i_ino_3_files_that_nothing_uses_are_let_go_of() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let options =
            MountOptions { sync_interval: Duration::from_secs(3600), ..MountOptions::default() };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        let state = fs.state();
        let made: Vec<InodeNo> = (0..6000)
            .map(|i| {
                let ino = fs
                    .make(
                        InodeNo::ROOT,
                        format!("{i}").as_bytes(),
                        FileKind::File,
                        NewFile::default(),
                        0,
                    )
                    .unwrap()
                    .ino;
                fs.retain(ino).unwrap();
                ino
            })
            .collect();
        assert!(state.inode_table().sizes().0 > 6000, "nothing of them is sealed");
        (0..2).for_each(|_| turn(state, Duration::from_secs(3600), true).unwrap());
        let (loaded, parked) = state.inode_table().sizes();
        assert!(loaded <= 4200 && loaded + parked >= 6000, "S-140, I-INO-3: {loaded} and {parked}");
        made.iter().for_each(|ino| fs.forget(*ino, 1));
        assert_eq!(state.inode_table().sizes(), (loaded, 0));
        assert_eq!(fs.attr(made[17]).unwrap().ino, made[17]);
        fs.unmount().unwrap();
        assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
    }

    /// S-413: where the log fills, the daemon makes it empty before a sync has to.
    #[test]
    fn s_413_a_log_that_fills_is_emptied_in_the_background() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            mode: IoMode::Concurrent,
            sync_interval: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        let file = fs.open("/file", &OpenOptions::create()).unwrap();
        let page = AlignedBuf::zeroed(4096);
        let log = || fs.info().log;
        let (commits, mut at) = (log().metadata_commits, 0);
        let mut append = || {
            file.write_at(&page, at).unwrap();
            file.sync_data().unwrap();
            at += 4096;
        };
        while log().used_bytes <= log().size_bytes / 4 * 3 {
            append();
        }
        append();
        let began = Instant::now();
        while log().metadata_commits == commits {
            assert!(began.elapsed() < Duration::from_secs(60), "S-413: {:?}", log());
            std::thread::sleep(Duration::from_millis(1));
        }
        fs.unmount().unwrap();
    }

    /// S-378, I-TRM-1: what is discarded by itself is nothing that a power cut brings back: files
    /// are made and removed, and after every operation of the device those are whole that were there
    /// and durable.
    #[test]
    fn s_378_a_power_cut_brings_nothing_back_that_was_discarded() {
        let simulated = SimulatedDevice::new(48 << 20, 5);
        let device: Arc<dyn BlockDevice> = simulated.clone();
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            mode: IoMode::Concurrent,
            sync_interval: Duration::from_secs(3600),
            discard: true,
            ..MountOptions::default()
        };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        let page = |fill: u8| {
            let mut page = AlignedBuf::zeroed(256 << 10);
            page.fill(fill);
            page
        };
        // What is there after each step, and how far the device was: durable at the end of a step.
        let (mut there, mut steps) = (Vec::new(), Vec::new());
        for n in 0..12u8 {
            let file = fs.open(format!("/f{n}"), &OpenOptions::create()).unwrap();
            file.write_at(&page(n + 1), 0).unwrap();
            drop(file);
            there.push(n);
            if n % 3 == 2 {
                let gone = there.remove(0);
                fs.unlink(InodeNo::ROOT, format!("f{gone}").as_bytes()).unwrap();
            }
            let began = steps.last().map_or(0, |(_, _, ended)| *ended);
            if n % 2 == 0 {
                fs.sync().unwrap();
            }
            turn(fs.state(), Duration::from_secs(3600), true).unwrap();
            steps.push((there.clone(), began, simulated.operation_count()));
        }
        let discards = |operation: &&Recorded| matches!(operation, Recorded::Discard { .. });
        assert!(simulated.operations().iter().filter(discards).count() >= 3, "it discards");
        for (step, (kept, _, ended)) in steps.iter().enumerate() {
            let until = steps.get(step + 1).map_or(*ended, |(_, _, ended)| *ended);
            let next = steps.get(step + 1).map_or(kept, |(there, ..)| there);
            for after in *ended..=until {
                let image: Arc<dyn BlockDevice> =
                    simulated.crash_image(after, &CrashChoice::Seeded(after as u64));
                let fs = FileSystem::mount(image, None, MountOptions::default()).unwrap();
                for n in kept {
                    let file = match fs.open(format!("/f{n}"), &OpenOptions::read_only()) {
                        // It was removed meanwhile: gone, or whole.
                        Err(error) if !next.contains(n) => {
                            assert_eq!(error.kind, ErrorKind::NotFound);
                            continue;
                        }
                        file => file.unwrap(),
                    };
                    let mut read = AlignedBuf::zeroed(256 << 10);
                    assert_eq!(file.read_at(&mut read, 0).unwrap(), 256 << 10);
                    assert!(read[..] == page(n + 1)[..], "S-378: file {n}, cut after {after}");
                }
            }
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A volume on which a checkpoint of twenty images is being deleted, an image a step; nothing goes
    /// on with that by itself.
    fn deleting() -> FileSystem {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let limits = Limits { images_per_record: 1, deletes_behind: false, ..Limits::default() };
        let options = MountOptions {
            mode: IoMode::Concurrent,
            sync_interval: Duration::from_secs(3600),
            limits,
            ..MountOptions::default()
        };
        let fs = FileSystem::mount(device, None, options).unwrap();
        let file = fs.open("/file", &OpenOptions::create()).unwrap();
        let page = AlignedBuf::zeroed(4096);
        let scattered = || {
            for at in 0..20 {
                file.write_at(&page, at * 8192).unwrap();
            }
        };
        scattered();
        fs.create_checkpoint("first", &CheckpointOptions::default()).unwrap();
        scattered();
        fs.state().delete_behind(b"first").unwrap();
        fs
    }

    fn left(fs: &FileSystem) -> u64 {
        fs.checkpoint_counts().deleting
    }

    /// S-430, S-484: between two turns of the sync daemon a deletion goes on to its end. It stops after
    /// some steps where a turn is due, and at once where the file system is closed.
    #[test]
    fn s_430_s_484_deletions_go_on_between_turns() {
        let fs = deleting();
        let (waker, mut told) = (Waker::default(), Told::default());
        waker.wake();
        delete_some(fs.state(), &waker, HOUR, &mut told);
        assert!(waker.is_woken(), "the turn is due still");
        let turns = (0..100).take_while(|_| {
            delete_some(fs.state(), &waker, HOUR, &mut told);
            left(&fs) > 0
        });
        assert!((1..5).contains(&turns.count()), "S-430: some steps a turn");
        let fs = deleting();
        let stopped = Waker::default();
        stopped.stop();
        delete_some(fs.state(), &stopped, HOUR, &mut told);
        assert_eq!(left(&fs), 1, "S-484: no step once it is to end");
        delete_some(fs.state(), &Waker::default(), HOUR, &mut told);
        assert_eq!(left(&fs), 0, "S-484: all of it while no turn is due");
    }

    /// S-484: a call that deletes does not share the steps with the daemon.
    #[test]
    fn s_484_a_call_that_waits_for_a_deletion_carries_it_out_alone() {
        let fs = deleting();
        let waits = fs.state().deleters().enter();
        delete_some(fs.state(), &Waker::default(), HOUR, &mut Told::default());
        assert_eq!(left(&fs), 1);
        drop(waits);
        delete_some(fs.state(), &Waker::default(), HOUR, &mut Told::default());
        assert_eq!(left(&fs), 0);
    }

    /// S-487: a deletion that meets damage is told of once, and a turn goes on without it: it ended
    /// before idle inodes were let go of.
    #[test]
    fn s_487_a_deletion_that_fails_holds_nothing_else_up() {
        let fs = deleting();
        let state = fs.state();
        let key = state
            .reading(|rows| {
                let epoch = rows.checkpoint_set.deleting().next().unwrap().epoch;
                Ok(before_key(epoch, Table::Extent, &extent_key(InodeNo(2), FileBlock(1 << 40))))
            })
            .unwrap();
        // An image that says neither that a row was there nor that it was not.
        let rows = vec![RowChange::put(Table::Before, key, vec![9])];
        state.metadata().replay(rows);
        let mut told = Told::default();
        for _ in 0..3 {
            delete_some(state, &Waker::default(), HOUR, &mut told);
        }
        assert_eq!((left(&fs), told.others), (1, vec![NOT_DELETED]), "it is told once");
        for i in 0..6000 {
            let name = format!("{i}");
            fs.make(InodeNo::ROOT, name.as_bytes(), FileKind::File, NewFile::default(), 0).unwrap();
        }
        (0..2).for_each(|_| turn(state, Duration::from_secs(3600), true).unwrap());
        assert!(state.inode_table().sizes().0 <= 4200, "S-487: they are let go of");
    }
}
