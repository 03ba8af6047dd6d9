//! Leases of live mounts: what went to the device past them, and what did so between two looks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use bedplate::{LeaseCounts, LeaseReport};
use bedplate_serve::control::Request;
use serde::Serialize;

use crate::failure::Result;
use crate::mount::{Mount, live};
use crate::render::text;

/// Asks a mount; `None` where it hands out no leases, or does not tell this user.
pub fn of(mount: &Mount) -> Result<Option<LeaseReport>> {
    match live::ask(mount, &Request::Leases) {
        Err(failure) if live::is_unreached(&failure) => Ok(None),
        told => told,
    }
}

/// What mounts told at one moment, by where they are mounted.
pub type Looked = BTreeMap<PathBuf, LeaseReport>;

/// Looks at mounts; those that tell nothing are left out.
pub fn look(mounts: &[Mount]) -> Result<Looked> {
    let mut looked = Looked::new();
    for mount in mounts {
        looked.extend(of(mount)?.map(|told| (mount.dir.clone(), told)));
    }
    Ok(looked)
}

/// Says counts that are not 0 in one line; `None` where all are.
pub fn list(counts: &[(String, u64)]) -> Option<String> {
    let told: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What programs did under the leases of one mount in a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leased {
    mounted_at: PathBuf,
    processes: usize,
    files: usize,
    /// What was done in this time.
    #[serde(flatten)]
    counts: LeaseCounts,
    /// What is waited for at this moment, in sentences.
    waits: Vec<String>,
    /// How long the time was; `None` when it counts from the mount.
    #[serde(skip)]
    seconds: Option<f64>,
}

/// Returns what was done between two looks so many seconds apart; mounts without a process that has
/// leases, on which nothing was done, are left out.
pub fn between(before: &Looked, now: &Looked, seconds: Option<f64>) -> Vec<Leased> {
    let nothing = LeaseCounts::default();
    let leased = |(dir, told): (&PathBuf, &LeaseReport)| {
        let earlier = before.get(dir).map_or(&nothing, |earlier| &earlier.total);
        let counts = difference(earlier, &told.total);
        let is_told = !told.clients.is_empty()
            || counts.reads + counts.writes + counts.syncs + counts.hits > 0;
        is_told.then(|| Leased {
            mounted_at: dir.clone(),
            processes: told.clients.len(),
            files: told.files.len(),
            counts,
            waits: told.waits.iter().map(ToString::to_string).collect(),
            seconds,
        })
    };
    now.iter().filter_map(leased).collect()
}

/// The counters of a new mount start at zero.
fn difference(before: &LeaseCounts, now: &LeaseCounts) -> LeaseCounts {
    let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    let each = |before: &[(String, u64)], now: &[(String, u64)]| {
        let earlier: BTreeMap<_, _> = before.iter().cloned().collect();
        let of = |name: &String| earlier.get(name).copied().unwrap_or(0);
        now.iter().map(|(name, count)| (name.clone(), since(of(name), *count))).collect()
    };
    LeaseCounts {
        reads: since(before.reads, now.reads),
        writes: since(before.writes, now.writes),
        syncs: since(before.syncs, now.syncs),
        hits: since(before.hits, now.hits),
        fallbacks: each(&before.fallbacks, &now.fallbacks),
        refused: each(&before.refused, &now.refused),
    }
}

impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseCounts { reads, writes, syncs, hits, fallbacks, .. } = &self.counts;
        write!(f, "leases of {}: ", text::name(&self.mounted_at))?;
        match self.seconds {
            Some(seconds) => {
                let rate = |count: u64| count as f64 / seconds;
                let (reads, writes, syncs) = (rate(*reads), rate(*writes), rate(*syncs));
                write!(f, "{reads:.0} reads/s, {writes:.0} writes/s, {syncs:.0} syncs/s")?;
                if *hits > 0 {
                    write!(f, ", {:.0} hits/s", rate(*hits))?;
                }
            }
            None => {
                write!(f, "{reads} reads, {writes} writes, {syncs} syncs")?;
                if *hits > 0 {
                    write!(f, ", {hits} hits")?;
                }
            }
        }
        write!(
            f,
            " on the device, by {}",
            text::count_in(self.processes as u64, "process", "processes")
        )?;
        if let Some(list) = list(fallbacks) {
            write!(f, "; to the mount: {list}")?;
        }
        self.waits.iter().try_for_each(|wait| write!(f, "; WAITING: {wait}"))
    }
}

#[cfg(test)]
mod tests {
    use bedplate::LeasedBy;

    use super::*;

    fn told(reads: u64, unaligned: u64, processes: usize) -> LeaseReport {
        let fallbacks = vec![("unaligned".to_owned(), unaligned), ("shared".to_owned(), 3)];
        LeaseReport {
            clients: vec![LeasedBy::default(); processes],
            total: LeaseCounts { reads, fallbacks, ..LeaseCounts::default() },
            ..LeaseReport::default()
        }
    }

    #[test]
    fn leased_io_is_counted_from_look_to_look() {
        let dir = PathBuf::from("/mnt");
        let at = |told: LeaseReport| Looked::from([(dir.clone(), told)]);
        let leased = between(&at(told(100, 2, 1)), &at(told(160, 6, 2)), Some(2.0));
        assert_eq!(
            leased[0].to_string(),
            "leases of /mnt: 30 reads/s, 0 writes/s, 0 syncs/s on the device, by 2 processes; to \
             the mount: unaligned 4"
        );
        let anew = between(&at(told(160, 0, 1)), &at(told(5, 0, 0)), None);
        assert!(
            anew[0].to_string().starts_with("leases of /mnt: 5 reads, 0 writes"),
            "{}",
            anew[0]
        );
        assert!(between(&at(told(5, 0, 0)), &at(told(5, 0, 0)), None).is_empty());
    }
}
