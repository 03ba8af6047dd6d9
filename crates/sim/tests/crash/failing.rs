//! Errors: here at every ninth call; the release build of the judge lets every one fail (`--failing`).

use sim::{DIRECTED, Failure, FailureTally, Setup, try_failures};

fn every_call_fails(failure: Failure, for_ever: bool) {
    let mut total = FailureTally::default();
    for directed in DIRECTED {
        match try_failures(&Setup::DISK, &(directed.steps)(), failure, for_ever, 9) {
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
