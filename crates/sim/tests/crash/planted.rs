//! A judge that finds nothing is not believed: each planted mistake must be found, within so many states.

use fs::PlantedBug;
use sim::{Cuts, DIRECTED, Effort, Failure, Setup, generate, try_failures, try_steps};

/// More crash states than this are not looked at for one mistake.
const STATES_MAX: u64 = 2_000;

/// Plants a mistake and looks for a broken promise: in the directed workload where it should hurt, then in all, then in random ones.
fn finds(bug: PlantedBug, near: &str) {
    fs::plant(Some(bug));
    let directed = DIRECTED.iter().find(|directed| directed.name == near).expect("the workload has this name");
    let mut states = 0;
    let near = (1..=3).map(|seed| (seed, Setup::DISK, (directed.steps)(), Cuts::Every(6)));
    let far = (1..=40).flat_map(|seed| {
        let (setup, steps) = generate(seed, 30);
        let all = DIRECTED.iter().map(move |directed| (seed, Setup::DISK, (directed.steps)(), Cuts::Random(40)));
        all.chain([(seed, setup, steps, Cuts::Random(40))])
    });
    for (seed, setup, steps, cuts) in near.chain(far) {
        let effort = Effort { cuts, second_cut_every: 0, second_life_every: 0, ..Effort::default() };
        match try_steps(seed, &setup, &steps, &effort) {
            Ok(tally) => states += tally.states,
            Err(violation) => return println!("{bug:?}: found in state {}: {}", states + violation.states + 1, violation.what),
        }
        assert!(states < STATES_MAX, "{bug:?} went unnoticed in {states} states");
    }
    panic!("{bug:?} went unnoticed in {states} states");
}

#[test]
fn a_missing_flush() {
    finds(PlantedBug::MissingFlush, "sync of a new directory");
}

#[test]
fn a_sync_that_flushes_nothing() {
    finds(PlantedBug::SyncWithoutFlush, "overwrite in place");
}

#[test]
fn the_log_before_the_data() {
    finds(PlantedBug::LogBeforeData, "more than a checksum vouches for");
}

#[test]
fn an_exposure_without_a_checksum() {
    finds(PlantedBug::ExposureWithoutChecksum, "write, sync, rename over the old file");
}

#[test]
fn a_block_that_is_used_again_too_early() {
    finds(PlantedBug::ReuseBeforeSealed, "blocks are used again at once");
}

#[test]
fn an_overwrite_without_a_seal() {
    finds(PlantedBug::OverwriteWithoutSeal, "overwrite of what was just exposed");
}

#[test]
fn a_stale_block_exposed_by_an_extension() {
    finds(PlantedBug::NewBlockNotPadded, "punch below a hole fill");
}

#[test]
fn a_stale_tail_exposed_by_a_growth() {
    finds(PlantedBug::TailNotZeroed, "append after truncation");
}

#[test]
fn a_metadata_commit_without_flushes() {
    finds(PlantedBug::MetadataCommitWithoutFlush, "log wrap and metadata commits");
}

#[test]
fn a_tail_that_moves_too_early() {
    finds(PlantedBug::TailBeforeCommit, "log wrap and metadata commits");
}

#[test]
fn a_superblock_without_a_flush() {
    finds(PlantedBug::SuperblockWithoutFlush, "growth in flight");
}

#[test]
fn a_rename_that_a_sync_does_not_know() {
    finds(PlantedBug::RenameNotNoted, "names move between directories");
}

#[test]
fn a_log_of_an_earlier_life() {
    finds(PlantedBug::SameIncarnation, "log of an earlier incarnation");
}

/// The judge of failing devices finds it: the sync that met the failure, or the next one, says that all is well.
#[test]
fn a_failed_flush_that_is_forgotten() {
    fs::plant(Some(PlantedBug::FailedFlushForgotten));
    let found = DIRECTED.iter().find_map(|directed| try_failures(&Setup::DISK, &(directed.steps)(), Failure::Flush, false, 7).err());
    println!("FailedFlushForgotten: {}", found.expect("FailedFlushForgotten went unnoticed"));
}
