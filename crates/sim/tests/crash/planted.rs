//! A judge that finds nothing is not believed: each planted mistake must be found, within so many
//! states.

use bedplate_fs::{IoMode, PlantedBug};
use bedplate_sim::{
    Back, Cuts, DIRECTED, Effort, Failure, On, Setup, Step, generate, try_failures,
    try_format_cuts, try_pair, try_steps,
};

use crate::interleaved::number;

/// More crash states than this are not looked at for one mistake.
const STATES_MAX: u64 = 2_000;

/// Plants a mistake and looks for a broken promise: in the directed workload where it should hurt,
/// then in all, then in random ones.
fn finds(bug: PlantedBug, near: &str) {
    finds_on(&Setup::DISK, bug, near);
}

/// As [`finds`], on other devices than one disk.
fn finds_on(disks: &Setup, bug: PlantedBug, near: &str) {
    bedplate_fs::plant(Some(bug));
    let directed =
        DIRECTED.iter().find(|directed| directed.name == near).expect("the workload has this name");
    let mut states = 0;
    let near = (1..=3).map(|seed| (seed, *disks, (directed.steps)(), Cuts::Every(6)));
    let far = (1..=40).flat_map(|seed| {
        let (setup, steps) = generate(seed, 30);
        let all = DIRECTED
            .iter()
            .map(move |directed| (seed, *disks, (directed.steps)(), Cuts::Random(40)));
        all.chain([(seed, setup, steps, Cuts::Random(40))])
    });
    for (seed, setup, steps, cuts) in near.chain(far) {
        let effort =
            Effort { cuts, second_cut_every: 0, second_life_every: 0, ..Effort::default() };
        match try_steps(seed, &setup, &steps, &effort) {
            Ok(tally) => states += tally.states,
            Err(violation) => {
                return println!(
                    "{bug:?}, log apart {}: found in state {}: {}",
                    disks.separate_log,
                    states + violation.states + 1,
                    violation.what
                );
            }
        }
        assert!(states < STATES_MAX, "{bug:?} went unnoticed in {states} states");
    }
    panic!("{bug:?} went unnoticed in {states} states");
}

/// S-484
#[test]
fn a_deletion_that_nothing_takes_up_again() {
    finds(PlantedBug::DeletionNotResumed, "deletions of checkpoints that were cut short");
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
fn a_directory_that_is_not_synced() {
    finds(PlantedBug::DirectoryNotSynced, "sync of a new directory");
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

/// S-373: the new size is written before what lies beyond it was moved.
#[test]
fn s_373_a_size_before_its_blocks() {
    finds(PlantedBug::ShrinkBeforeMoved, "a file system becomes smaller and larger");
}

/// S-395: the superblock names the log's new place before the tree holds what the old log has.
#[test]
fn s_395_a_log_that_moves_before_it_was_applied() {
    finds(PlantedBug::LogSwitchedFirst, "the log moves and changes its size");
    finds_on(&Setup::TWO_DISKS, PlantedBug::LogSwitchedFirst, "the log moves and changes its size");
}

/// S-372: what is freed beyond the end that the file system is to have is handed out again.
#[test]
fn s_372_a_block_beyond_the_new_end() {
    finds(PlantedBug::FenceLetsThrough, "a file system becomes smaller and larger");
}

#[test]
fn a_rename_that_a_sync_does_not_know() {
    finds(PlantedBug::RenameNotNoted, "names move between directories");
}

#[test]
fn a_log_of_an_earlier_life() {
    finds(PlantedBug::SameIncarnation, "log of an earlier incarnation");
}

#[test]
fn a_page_that_is_written_in_place() {
    finds(PlantedBug::UntornInPlace, "pages that are written untorn");
}

#[test]
fn a_part_of_a_map_that_changes_while_it_is_absent() {
    finds_on(&Setup::SMALL_MAPS, PlantedBug::ChangedPartEvicted, "pages that are written untorn");
}

#[test]
fn a_part_of_a_map_that_begins_late() {
    finds_on(&Setup::SMALL_MAPS, PlantedBug::PartBeginsLate, "pages that are written untorn");
}

#[test]
fn a_part_of_a_map_that_is_too_long() {
    finds_on(&Setup::SMALL_MAPS, PlantedBug::PartTooLong, "pages that are written untorn");
}

#[test]
fn a_copy_of_sectors_that_another_write_leaves_as_it_was() {
    finds(PlantedBug::HeldSectorsStay, "a log in odd pieces");
}

/// S-546
#[test]
fn what_is_written_anew_without_the_bytes_around_it() {
    finds(PlantedBug::RenewedInPart, "journals whose head is written over");
}

#[test]
fn a_held_write_that_reads_do_not_see() {
    finds(PlantedBug::HeldWriteNotRead, "a log in odd pieces");
}

#[test]
fn a_held_write_that_a_sync_does_not_know() {
    finds(PlantedBug::HeldWriteNotSynced, "a log in odd pieces");
}

#[test]
fn a_delayed_write_that_a_read_does_not_see() {
    finds(PlantedBug::DelayedWriteNotRead, "growth that waits in memory");
}

#[test]
fn a_delayed_write_that_a_sync_does_not_write() {
    finds(PlantedBug::DelayedWriteNotSynced, "growth that waits in memory");
}

#[test]
fn a_write_that_passes_a_delayed_one() {
    finds(PlantedBug::DelayedWritePassed, "pages written over in order");
}

/// S-519, S-520
#[test]
fn large_io_of_cached_files_beside_its_pages() {
    for bug in [PlantedBug::LargeReadPassesDirty, PlantedBug::LargeWriteUnannounced] {
        finds(bug, "large I/O of cached files");
    }
}

#[test]
fn what_was_read_ahead_and_outlives_a_write() {
    finds(PlantedBug::WindowOutlivesWrite, "files read in order");
}

#[test]
fn a_held_write_that_a_checkpoint_does_not_have() {
    finds(PlantedBug::FreezeLeavesHeld, "a log in odd pieces");
}

#[test]
fn a_write_over_what_a_clone_may_get_back() {
    finds(PlantedBug::WriteBeforeUnshared, "what clones had is written at once");
}

/// S-76: a write that begins in a block of its own is padded with zeros where what follows is shared.
#[test]
fn s_76_what_is_shared_in_part_counts_as_shared() {
    finds(PlantedBug::SharedAsAWhole, "writes across what clones share in part");
}

/// S-534, I-CPY-2: the record of a copy that is there before what the source was written in place.
#[test]
fn s_534_a_copied_range_before_what_it_copies() {
    finds(PlantedBug::RangeWithoutBarrier, "ranges copied between files");
}

/// S-532, I-CKP-2
#[test]
fn s_532_a_copied_range_that_is_not_counted() {
    finds(PlantedBug::RangeUncounted, "ranges copied between files");
}

/// S-533, I-CPY-1
#[test]
fn s_533_a_block_that_a_file_gets_twice() {
    finds(PlantedBug::BlockHadTwice, "ranges copied between files");
}

/// S-532
#[test]
fn s_532_a_copied_range_that_is_written_in_place() {
    finds(PlantedBug::RangeWrittenInPlace, "ranges copied between files");
}

#[test]
fn images_that_go_to_the_wrong_checkpoint() {
    finds(PlantedBug::ImagesToOldestHeir, "checkpoints go from the newest and from the middle");
}

#[test]
fn a_rollback_in_two_parts() {
    finds(PlantedBug::RollbackInParts, "one file and one directory are rolled back");
}

#[test]
fn a_list_that_becomes_durable_before_its_mode() {
    finds(PlantedBug::AclApartFromMode, "access control lists and modes");
}

#[test]
fn a_list_that_outlives_its_mode() {
    finds(PlantedBug::AclOutlivesMode, "access control lists and modes");
}

#[test]
fn a_first_list_that_the_next_mount_does_not_know_of() {
    finds(PlantedBug::AclNotNoted, "access control lists and modes");
}

/// A power cut between two records of a truncation, the first of them durable by a sync in the
/// middle: what the second one would have freed is there again where the file grows.
#[test]
fn a_truncation_that_does_not_note_that_it_is_under_way() {
    bedplate_fs::plant(Some(PlantedBug::TruncationNotMarked));
    let effort = Effort {
        cuts: Cuts::Around(20),
        second_cut_every: 0,
        second_life_every: 0,
        ..Effort::default()
    };
    let found =
        try_pair(1, number(&Step::Truncate(0, 0, 3000), &Step::Sync), &Setup::SMALL, 1, &effort);
    let violation = found.expect_err("TruncationNotMarked went unnoticed");
    println!("TruncationNotMarked: found in state {}: {}", violation.states + 1, violation.what);
    assert!(violation.states < STATES_MAX && violation.what.contains("S-11"), "{violation}");
}

/// A write of the source in the middle of a copy, to a block that both have from then on.
#[test]
fn a_copy_whose_source_is_written_in_place() {
    bedplate_fs::plant(Some(PlantedBug::RangeWrittenInPlace));
    let effort = Effort { second_cut_every: 0, second_life_every: 0, ..Effort::default() };
    let copy =
        Step::CopyRange(On::Name(0, 0), On::Name(4, 0), IoMode::Concurrent, 2048, 2048, 2048);
    let write = Step::Write(On::Name(0, 0), IoMode::Concurrent, 2048, 512, 73, false);
    let found = try_pair(1, number(&copy, &write), &Setup::SMALL, 1, &effort);
    let violation = found.expect_err("RangeWrittenInPlace went unnoticed");
    println!("RangeWrittenInPlace: found in state {}: {}", violation.states + 1, violation.what);
}

/// A checkpoint or a rollback between two records of a truncation by path, or of the reclaim of a
/// removed file.
#[test]
fn a_freeze_that_does_not_wait_for_long_changes() {
    bedplate_fs::plant(Some(PlantedBug::FreezeBesideChanges));
    let effort = Effort {
        cuts: Cuts::Around(6),
        second_cut_every: 0,
        second_life_every: 0,
        ..Effort::default()
    };
    let everything = Step::Rollback(0, Back::Everything, true);
    for (change, other) in
        [(Step::Truncate(0, 0, 3000), Step::Checkpoint(1, None)), (Step::Unlink(0, 0), everything)]
    {
        // Which of two is first where both can go on is the scheduler's: on a loaded machine one
        // attempt may miss the moment.
        let attempt = || try_pair(1, number(&change, &other), &Setup::SMALL, 1, &effort).err();
        let found = (0..5).find_map(|_| attempt());
        let violation = found.expect("FreezeBesideChanges went unnoticed");
        println!(
            "FreezeBesideChanges, {change:?}: found in state {}: {}",
            violation.states + 1,
            violation.what
        );
        assert!(violation.states < STATES_MAX);
    }
}

/// The metadata region grows, the power goes between the two copies of the superblock, and during
/// the recovery once more: the older copy alone names too little.
#[test]
fn copies_of_the_superblock_that_stay_unequal() {
    bedplate_fs::plant(Some(PlantedBug::CopiesStayUnequal));
    let directed = DIRECTED
        .iter()
        .find(|directed| directed.name == "metadata outgrow their region")
        .expect("the workload has this name");
    let effort = Effort {
        cuts: Cuts::Around(500),
        second_cut_every: 2,
        second_life_every: 0,
        ..Effort::default()
    };
    let found =
        (1..=8).find_map(|seed| try_steps(seed, &Setup::DISK, &(directed.steps)(), &effort).err());
    let violation = found.expect("CopiesStayUnequal went unnoticed");
    println!(
        "CopiesStayUnequal: seed {}, found in state {}: {}",
        violation.seed,
        violation.states + 1,
        violation.what
    );
}

/// With a log on a device of its own a flush of one device says nothing of the other, and the order
/// between them is the file system's.
#[test]
fn two_devices_in_the_wrong_order() {
    for (bug, near) in [
        (PlantedBug::DataFlushedAfterLog, "overwrite of what was just exposed"),
        // The data is not flushed at all, and then the log is not.
        (PlantedBug::LogBeforeData, "write, sync, rename over the old file"),
        (PlantedBug::MissingFlush, "sync of a new directory"),
        (PlantedBug::ReuseBeforeSealed, "blocks are used again at once"),
        (PlantedBug::MetadataCommitWithoutFlush, "log wrap and metadata commits"),
        (PlantedBug::TailBeforeCommit, "log wrap and metadata commits"),
        (PlantedBug::SameIncarnation, "log of an earlier incarnation"),
        (PlantedBug::RecoveryWithoutFlush, "recovery makes the metadata grow where a file was"),
    ] {
        finds_on(&Setup::TWO_DISKS, bug, near);
    }
}

/// The judge of failing devices finds it: the sync that met the failure, or the next one, says that
/// all is well.
#[test]
fn a_failed_flush_that_is_forgotten() {
    bedplate_fs::plant(Some(PlantedBug::FailedFlushForgotten));
    let found = DIRECTED.iter().find_map(|directed| {
        try_failures(&Setup::DISK, &(directed.steps)(), Failure::Flush, false, 7).err()
    });
    println!("FailedFlushForgotten: {}", found.expect("FailedFlushForgotten went unnoticed"));
}

/// Superblocks that name a volume which is not there yet.
#[test]
fn a_volume_that_is_announced_too_early() {
    bedplate_fs::plant(Some(PlantedBug::PublishedWhileFormatting));
    for setup in [Setup::DISK, Setup::TWO_DISKS] {
        println!(
            "PublishedWhileFormatting: {}",
            try_format_cuts(&setup, true, 4).expect_err("PublishedWhileFormatting went unnoticed")
        );
    }
}
