//! What scrubs on schedule found of files on a mounted group: the copies under a file that
//! differed.

use std::path::Path;

use serde_json::Value;

use super::findings::Finding;
use crate::daemon::control;
use crate::daemon::scrubbed::{Differing, ScrubStatus, at};
use crate::mount::Mount;
use crate::render::text;

/// Returns how scrubs stand on the group that a mount is of; `None` where it is of none, or its
/// daemon does not tell this user.
pub fn of_mount(mount: &Mount) -> Option<ScrubStatus> {
    control::status_of(mount)?.scrub
}

/// Returns where extents lie on the volume.
fn runs_of(extents: &[Value]) -> Vec<(u64, u64)> {
    extents
        .iter()
        .filter_map(|extent| {
            let start = extent.get("volume_offset")?.as_u64()?;
            Some((start, start + extent.get("len")?.as_u64()?))
        })
        .collect()
}

/// Returns what was found where a file lies, or lay then.
pub fn of_file(
    path: &Path,
    extents: &[Value],
    mount: &Mount,
    scrub: &ScrubStatus,
) -> Option<Finding> {
    let inside = mount.inside(path);
    let inside =
        format!("{}, byte ", bedplate::readable_name(inside.as_os_str().as_encoded_bytes()));
    let runs = runs_of(extents);
    let concerns = |one: &Differing| {
        let (from, to) = (one.address, one.address.saturating_add(one.len));
        let lies_there = || runs.iter().any(|(start, end)| from < *end && *start < to);
        // What lay there is known in most cases, and the blocks may be another file's by now.
        one.volume == "data"
            && one.file.as_ref().map_or_else(lies_there, |file| {
                file.split(" or ").any(|file| file.starts_with(&inside))
            })
    };
    let last =
        scrub.last.iter().flat_map(|last| last.found.iter().map(|one| (Some(last.ended_s), one)));
    let found: Vec<_> = scrub
        .found
        .iter()
        .map(|one| (None, one))
        .chain(last)
        .filter(|(_, one)| concerns(one))
        .collect();
    let (when, _) = found.first()?;
    let left = found.iter().filter(|(_, one)| !one.repaired).count();
    let when = when.map_or_else(
        || "the scrub that is under way".to_owned(),
        |ended_s| format!("the last scrub, which ended {},", at(ended_s)),
    );
    let told: Vec<String> = found.iter().map(|(_, one)| one.to_string()).collect();
    let group = text::quoted(&mount.dir);
    Some(Finding {
        kind: "copies_differ",
        count: found.len() as u64,
        what: format!("{when} found that copies of it differ: {}", told.join("; ")),
        cost: match left {
            0 => "nothing any more: all of it was made good".to_owned(),
            _ => format!(
                "{} left: which copy a read gets is chance, and one of them is wrong",
                text::count(left as u64, "place")
            ),
        },
        who: Vec::new(),
        change: match left {
            0 => "nothing; if it happens again, replace the member".to_owned(),
            _ => format!(
                "make good what is known to be wrong: bedplate volume scrub --repair {group}; \
                 restore the rest from a backup"
            ),
        },
    })
}
