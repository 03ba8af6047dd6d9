//! Errors: here at every 23rd call; the judge of the whole check lets every fifth one fail, in the
//! release build (`--failing`).

use bedplate_sim::{
    DIRECTED, Failure, FailureTally, Setup, try_failures, try_format_cuts, try_format_failures,
};

fn every_call_fails(failure: Failure, for_ever: bool) {
    let mut total = FailureTally::default();
    for directed in DIRECTED {
        match try_failures(&Setup::DISK, &(directed.steps)(), failure, for_ever, 23) {
            Ok(tally) => total.add(&tally),
            Err(what) => panic!("{}: {what}", directed.name),
        }
    }
    println!("{failure:?}, for ever {for_ever}: {total:?}");
}

/// S-33, S-35
#[test]
fn s_35_a_read_fails_at_any_call() {
    every_call_fails(Failure::Read, false);
    every_call_fails(Failure::Read, true);
}

#[test]
fn s_33_a_write_fails_at_any_call() {
    every_call_fails(Failure::Write, false);
    every_call_fails(Failure::Write, true);
}

#[test]
fn s_33_no_space_is_left_below_the_device_at_any_call() {
    every_call_fails(Failure::NoSpace, false);
    every_call_fails(Failure::NoSpace, true);
}

#[test]
fn s_33_a_flush_fails_at_any_call() {
    every_call_fails(Failure::Flush, false);
    every_call_fails(Failure::Flush, true);
}

/// A clone that is reported as failed, because what it was made of cannot be deleted, may be there
/// whole after a cut in its middle: the judge once knew its inode number only from then on when the
/// error had been told.
#[test]
fn s_432_every_flush_fails_while_clones_are_made() {
    let name = "clones written on both sides and deleted in any order";
    let directed = DIRECTED.iter().find(|one| one.name == name).expect("it has this name");
    // The first clone is step 4.
    let steps = &(directed.steps)()[..5];
    for for_ever in [false, true] {
        let tally = try_failures(&Setup::DISK, steps, Failure::Flush, for_ever, 1)
            .unwrap_or_else(|what| panic!("{name}: {what}"));
        assert!(tally.runs > 3 && tally.states > 0, "flushes fail: {tally:?}");
    }
}

/// With a log on a device of its own it is the log's device that fails.
#[test]
fn s_33_a_log_device_fails_at_any_call() {
    for name in [
        "log wrap and metadata commits",
        "log of an earlier incarnation",
        "sync of a new directory",
    ] {
        let directed =
            DIRECTED.iter().find(|directed| directed.name == name).expect("it has this name");
        for failure in [Failure::Write, Failure::Flush] {
            let tally = try_failures(&Setup::TWO_DISKS, &(directed.steps)(), failure, false, 9)
                .unwrap_or_else(|what| panic!("{name}: {what}"));
            assert!(tally.runs > 0 && tally.states > 0, "{name}: {failure:?} strikes");
        }
    }
}

/// S-98: a power cut after any operation of formatting leaves what was there, nothing, or a whole
/// new volume: over something else and over a volume, with and without a cache, in sectors of both
/// sizes, and with the log on a device of its own.
#[test]
fn s_98_a_power_cut_while_formatting_leaves_a_whole_volume_or_none() {
    let setups = [
        Setup::DISK,
        Setup { sector: 4096, untorn_unit: 4096, ..Setup::DISK },
        Setup { volatile_cache: false, ..Setup::DISK },
        Setup::TWO_DISKS,
    ];
    for (setup, over_a_volume) in
        setups.into_iter().flat_map(|setup| [(setup, false), (setup, true)])
    {
        match try_format_cuts(&setup, over_a_volume, 4) {
            Ok(states) => println!("{setup:?}, over a volume {over_a_volume}: {states} states"),
            Err(what) => panic!("{setup:?}, over a volume {over_a_volume}: {what}"),
        }
    }
}

/// What is left of a volume that could not be formatted is none, or an empty one.
#[test]
fn formatting_fails_at_any_call() {
    for (setup, failure) in [Setup::DISK, Setup::TWO_DISKS]
        .into_iter()
        .flat_map(|setup| Failure::ALL.map(|failure| (setup, failure)))
    {
        let tally = try_format_failures(&setup, failure).unwrap_or_else(|what| panic!("{what}"));
        assert!(tally.runs > 0, "{failure:?} strikes");
    }
}
