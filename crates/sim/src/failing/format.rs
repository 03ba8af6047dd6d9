//! Formatting on a device that fails, or loses its power: what is left is no volume, or an empty
//! one, and formatting again makes one.

use bedplate_block::{BlockDevice, CrashChoice, FaultRule, Trigger};
use bedplate_fs::{ErrorKind, FileSystem, FormatOptions, OpenOptions};

use super::{Failure, FailureTally, one_sentence};
use crate::bed::{Remains, format_options, fresh_bed, quiet, stale_bed};
use crate::view::see;
use crate::workload::Setup;

/// Formats again and again, with the first, second, third … call failing, until none fails any
/// more.
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
        let formatted = FileSystem::format(wires.data(), wires.log(), &format_options(setup));
        if bed.weakest().counters().errors == 0 {
            return Ok(tally);
        }
        bed.weakest().clear_faults();
        tally.runs += 1;
        if let Err(error) = &formatted {
            one_sentence(error).map_err(context)?;
        }
        let all = bed.operation_count();
        let choices = [
            CrashChoice::KeepAll,
            CrashChoice::LoseAll,
            CrashChoice::Seeded(nth),
            CrashChoice::Seeded(!nth),
        ];
        for (after, choice) in [all, all * 3 / 4, all / 2]
            .into_iter()
            .flat_map(|after| choices.clone().map(|choice| (after, choice)))
        {
            empty_or_none(&bed.cut(after, &choice)).map_err(|what| {
                context(format!("cut after operation {after} ({choice:?}): {what}"))
            })?;
            tally.states += 1;
        }
        let again = FormatOptions { force: true, ..format_options(setup) };
        FileSystem::format(wires.data(), wires.log(), &again)
            .map_err(|e| context(format!("formatting again fails: {e}")))?;
        empty_or_none(&bed.cut(bed.operation_count(), &CrashChoice::KeepAll)).map_err(context)?;
        let fs = wires
            .mount(quiet())
            .map_err(|e| context(format!("formatted again it does not mount: {e}")))?;
        fs.unmount().map_err(|e| context(format!("formatted again it does not unmount: {e}")))?;
    }
    unreachable!("formatting does not make that many calls")
}

/// Formats devices that hold something else, or a volume with a file, and cuts the power after
/// every operation, in so many ways: what was there is whole, or nothing mounts, or the new volume
/// is whole and can be used (S-98). Returns how many states were looked at.
///
/// # Errors
/// What was left although it must not be.
pub fn try_format_cuts(setup: &Setup, over_a_volume: bool, ways: u64) -> Result<u64, String> {
    let bed = if over_a_volume { fresh_bed(setup, 1) } else { stale_bed(setup, 1) };
    let wires = bed.connect();
    if over_a_volume {
        let old = wires.mount(quiet()).map_err(|e| e.to_string())?;
        old.open("/old", &OpenOptions::create())
            .and_then(|file| file.write_at(&OLD, 0))
            .map_err(|e| e.to_string())?;
        old.unmount().map_err(|e| e.to_string())?;
    }
    let first = bed.operation_count();
    let options = FormatOptions { force: over_a_volume, ..format_options(setup) };
    let report =
        FileSystem::format(wires.data(), wires.log(), &options).map_err(|e| e.to_string())?;
    let last = bed.operation_count();
    let mut states = 0;
    for (after, way) in (first..=last).flat_map(|after| (0..ways).map(move |way| (after, way))) {
        let choice = match way {
            0 => CrashChoice::LoseAll,
            1 => CrashChoice::KeepAll,
            _ => CrashChoice::Seeded(after as u64 * ways + way),
        };
        let context = |what: String| {
            format!(
                "formatting is cut after operation {} of {} ({choice:?}): {what}",
                after - first,
                last - first
            )
        };
        let left = after_format(&bed.cut(after, &choice), &report.uuid).map_err(context)?;
        if left == Left::Nothing && after == last
            || left == Left::TheOld && (after == last || !over_a_volume)
        {
            return Err(context(format!("there is {left:?}")));
        }
        states += 1;
    }
    Ok(states)
}

/// What the old volume's file holds.
static OLD: [u8; 20_000] = [0x5a; 20_000];

/// What a cut left.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    TheOld,
    TheNew,
}

fn after_format(remains: &Remains, uuid: &str) -> Result<Left, String> {
    let fs = match remains.mount(quiet()) {
        Ok(fs) => fs,
        Err(error) if error.kind == ErrorKind::NotAVolume => {
            return one_sentence(&error).map(|()| Left::Nothing);
        }
        Err(error) => return Err(format!("S-98: half a volume is there: {error}")),
    };
    let broken = |what: &'static str| move |e: bedplate_fs::Error| format!("S-98: {what}: {e}");
    let names = see(&fs).map_err(broken("what mounts cannot be read"))?.view.names;
    let is_new = fs.info().uuid == uuid;
    if is_new && !names.is_empty() {
        return Err(format!("S-98: the new volume has names: {names:?}"));
    }
    let mut content = vec![0; OLD.len()];
    if !is_new {
        let old = fs
            .open("/old", &OpenOptions::read_only())
            .and_then(|file| file.read_at(&mut content, 0))
            .map_err(broken("the old volume"))?;
        if old != OLD.len() || content != OLD {
            return Err("S-98: the old volume mounts, and its file is damaged".into());
        }
    }
    fs.open("/new", &OpenOptions::create())
        .and_then(|file| file.write_at(&OLD, 0))
        .map_err(broken("what mounts cannot be used"))?;
    fs.unmount().map_err(broken("what mounts cannot be unmounted"))?;
    let report = remains
        .volume(true)
        .and_then(|volume| FileSystem::check(&volume, remains.log().as_ref(), false))
        .map_err(broken("a check does not run"))?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("S-98: a check finds {:?}: {}", finding.kind, finding.message));
    }
    Ok(if is_new { Left::TheNew } else { Left::TheOld })
}

/// A volume that mounts has nothing in it; one that does not is refused.
fn empty_or_none(remains: &Remains) -> Result<(), String> {
    match remains.mount(quiet()) {
        Ok(fs) => {
            let names =
                see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?.view.names;
            if names.is_empty() {
                Ok(())
            } else {
                Err(format!("a fresh volume has names: {names:?}"))
            }
        }
        Err(error) => one_sentence(&error),
    }
}
