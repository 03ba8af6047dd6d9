//! Pages that a database does not guard against a power cut within a write.

use crate::facts::{Facts, Promise};
use crate::report::{Finding, Mend, Outcome, Sure, size};

/// Returns the promise of the mount where it keeps whole pages of so many bytes.
pub fn promised(facts: &Facts, page: u64) -> Option<&Promise> {
    let promise = facts.question.promise.as_ref();
    promise.filter(|promise| promise.untorn_bytes >= page && !promise.is_cached)
}

/// Judges pages of so many bytes that nothing guards, by the setting that is off.
pub fn unguarded(facts: &Facts, page: u64, setting: &str, mend: Mend) -> Outcome {
    let kind = match &facts.mount {
        Some(Ok(mount)) => mount.entry.kind.as_str(),
        _ => "a file system that is not known",
    };
    if kind == "zfs" {
        return Outcome::Unseen(format!(
            "{setting} is off, and zfs writes records whole: they must have {} or more (zfs get \
             recordsize)",
            size(page)
        ));
    }
    let top = facts.stack.as_ref().ok().and_then(|stack| stack.top());
    let device = top.and_then(|top| top.atomic_write_bytes.as_ref().ok()).copied().unwrap_or(0);
    let promises = device.unsigned_abs() >= page;
    let told = if promises {
        format!(
            "the device could write {} whole, but only where it is asked to (RWF_ATOMIC)",
            size(device.unsigned_abs())
        )
    } else {
        "the device promises no more than a sector".to_owned()
    };
    Outcome::Found(Finding {
        at: setting.to_owned(),
        measured: format!("it is off, on {kind}; {told}"),
        costs: format!(
            "a power cut within a write of {} leaves a page half old and half new, which no \
             recovery mends",
            size(page)
        ),
        mend,
        sure: if promises { Sure::Likely } else { Sure::Certain },
    })
}
