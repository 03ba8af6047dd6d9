//! Formatting on a device that fails: what is left is no volume, or an empty one, and formatting again makes one.

use block::{BlockDevice, CrashChoice, FaultRule, Trigger};
use fs::{FileSystem, FormatOptions};

use super::{Failure, FailureTally, one_sentence};
use crate::bed::Remains;
use crate::run::{format_options, quiet, stale_bed};
use crate::view::see;
use crate::workload::Setup;

/// Formats again and again, with the first, second, third … call failing, until none fails any more.
///
/// # Errors
/// What was left although it must not be.
pub fn try_format_failures(setup: &Setup, failure: Failure) -> Result<FailureTally, String> {
    let mut tally = FailureTally::default();
    for nth in 1.. {
        let context = |what: String| format!("{failure:?} call {nth} fails: {what}");
        let bed = stale_bed(setup, nth);
        bed.weakest().inject(FaultRule::new(failure.fault(), Trigger::Nth(nth)));
        let wires = bed.connect();
        let formatted = FileSystem::format(&wires.data, wires.log.as_ref(), &format_options(setup));
        if bed.weakest().counters().errors == 0 {
            return Ok(tally);
        }
        bed.weakest().clear_faults();
        tally.runs += 1;
        if let Err(error) = &formatted {
            one_sentence(error).map_err(context)?;
        }
        let all = bed.operation_count();
        let choices = [CrashChoice::KeepAll, CrashChoice::LoseAll, CrashChoice::Seeded(nth), CrashChoice::Seeded(!nth)];
        for (after, choice) in [all, all * 3 / 4, all / 2].into_iter().flat_map(|after| choices.clone().map(|choice| (after, choice))) {
            empty_or_none(&bed.cut(after, &choice)).map_err(|what| context(format!("cut after operation {after} ({choice:?}): {what}")))?;
            tally.states += 1;
        }
        let again = FormatOptions { force: true, ..format_options(setup) };
        FileSystem::format(&wires.data, wires.log.as_ref(), &again).map_err(|e| context(format!("formatting again fails: {e}")))?;
        empty_or_none(&bed.cut(bed.operation_count(), &CrashChoice::KeepAll)).map_err(context)?;
        let fs = wires.mount(quiet()).map_err(|e| context(format!("formatted again it does not mount: {e}")))?;
        fs.unmount().map_err(|e| context(format!("formatted again it does not unmount: {e}")))?;
    }
    unreachable!("formatting does not make that many calls")
}

/// A volume that mounts has nothing in it; one that does not is refused.
fn empty_or_none(remains: &Remains) -> Result<(), String> {
    match remains.mount(quiet()) {
        Ok(fs) => {
            let names = see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?.view.names;
            if names.is_empty() { Ok(()) } else { Err(format!("a fresh volume has names: {names:?}")) }
        }
        Err(error) => one_sentence(&error),
    }
}
