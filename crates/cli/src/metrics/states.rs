//! Metrics of how things stand: checkpoints and their schedules, the health of a group, scrubs,
//! rebuilds and relayouts. What alerts ask for.

use std::collections::BTreeMap;
use std::fmt;

use bedplate::{CheckpointInfo, FsInfo, Group, Schedule, Timestamp};

use super::families::Out;
use super::turns;
use crate::daemon::status::{SPLIT, Status};

/// Returns a time as Prometheus counts it.
fn seconds(time: Timestamp) -> f64 {
    time.0 as f64 / 1e9
}

pub(super) fn checkpoints(
    out: &mut Out<'_>,
    info: &FsInfo,
    made: &[CheckpointInfo],
    schedules: &[Schedule],
) -> fmt::Result {
    out.gauge("checkpoints", "Checkpoints", info.checkpoints.count)?;
    out.gauge(
        "checkpoints_removable",
        "Checkpoints that a schedule or a full volume may delete",
        info.checkpoints.removable,
    )?;
    out.gauge(
        "checkpoints_being_deleted",
        "Deleted checkpoints whose space is not all free yet",
        info.checkpoints.deleting,
    )?;
    out.counter(
        "checkpoints_deleted_for_space",
        "Checkpoints deleted because the volume was full",
        info.checkpoints.deleted_for_space,
    )?;
    let youngest = made.iter().map(|checkpoint| checkpoint.created.0).max();
    out.seconds_gauges(
        "checkpoint_youngest_timestamp_seconds",
        "When the youngest checkpoint was made",
        youngest.map(|time| ([("kind", "any")], seconds(Timestamp(time)))),
    )?;
    let name = |schedule: &Schedule| [("schedule", schedule.name.clone())];
    out.seconds_gauges(
        "schedule_period_seconds",
        "How often a schedule makes a checkpoint",
        schedules.iter().map(|one| (name(one), one.every_s as f64)),
    )?;
    out.seconds_gauges(
        "schedule_last_timestamp_seconds",
        "When a schedule last made a checkpoint",
        schedules.iter().filter_map(|one| Some((name(one), seconds(one.last?)))),
    )?;
    out.gauges(
        "schedule_failed",
        "1 while the last turn of a schedule made no checkpoint",
        schedules.iter().map(|one| (name(one), u64::from(one.failure.is_some()))),
    )?;
    out.seconds_gauges(
        "backup_run_timestamp_seconds",
        "When the last backup of a timer was made, by the beginning of its checkpoint's name",
        backups(made).map(|(name, time)| ([("name", name)], seconds(time))),
    )
}

/// Returns when the last backup of each timer was made. While the next one is under way, and until
/// it has succeeded, its checkpoint is there beside that of the last.
fn backups(made: &[CheckpointInfo]) -> impl Iterator<Item = (String, Timestamp)> {
    let mut oldest = BTreeMap::new();
    for checkpoint in made.iter().filter(|one| one.automatic && !one.kept) {
        if let Some(prefix) = turns::prefix(&checkpoint.name) {
            let time = oldest.entry(bedplate::readable_name(prefix)).or_insert(checkpoint.created);
            *time = checkpoint.created.min(*time);
        }
    }
    oldest.into_iter()
}

pub(super) fn group(out: &mut Out<'_>, group: &Group) -> fmt::Result {
    let status = Status::of(group);
    out.gauges(
        "group_health",
        "1, with how the group is: whole, split, rebuilding, degraded or broken",
        [([("health", status.health())], 1)],
    )?;
    let is_whole = matches!(status.health(), "whole" | SPLIT);
    out.gauge("group_whole", "1 while the group is whole, or split in two", is_whole.into())?;
    out.gauge(
        "rebuild_pending_bytes",
        "Bytes that are to be compared or copied until all copies agree",
        status.pending_bytes.unwrap_or(0),
    )?;
    out.gauge(
        "rebuild_bytes_per_second",
        "Bytes of it done in a second of late",
        status.pending_bytes_per_second.unwrap_or(0),
    )?;
    let moving = || {
        let volumes = status.volumes.iter();
        volumes.filter_map(|one| Some(([("volume", one.role.clone())], one.relayout.as_ref()?)))
    };
    out.gauges(
        "relayout_moved_bytes",
        "Bytes that a relayout under way has moved",
        moving().map(|(labels, relayout)| (labels, relayout.moved_bytes)),
    )?;
    out.gauges(
        "relayout_total_bytes",
        "Bytes that it moves in all",
        moving().map(|(labels, relayout)| (labels, relayout.total_bytes)),
    )?;
    let Some(scrub) = &status.scrub else { return Ok(()) };
    out.gauge("scrub_period_seconds", "How often copies are compared", scrub.every_s)?;
    out.gauge(
        "scrub_compared_bytes",
        "Bytes that a scrub under way has compared",
        scrub.compared_bytes.unwrap_or(0),
    )?;
    let Some(last) = &scrub.last else { return Ok(()) };
    out.gauge("scrub_last_timestamp_seconds", "When the last scrub ended", last.ended_s)?;
    out.gauge("scrub_differences", "Places that the last scrub found to differ", last.differences)?;
    out.gauge("scrub_differences_left", "Places of them that were left as they are", last.left)
}

#[cfg(test)]
mod tests {
    use bedplate::Epoch;

    use super::*;

    #[test]
    fn a_backup_counts_once_the_one_before_is_gone() {
        let made = |name: &str, at: i64, automatic: bool, kept: bool| CheckpointInfo {
            name: name.into(),
            epoch: Epoch(1),
            created: Timestamp(at),
            automatic,
            kept,
            paths: Vec::new(),
        };
        let mut all = vec![
            made("backup-2026-11-20T01:00:00Z", 1, true, true),
            made("backup-2026-11-25T01:00:00Z", 2, true, false),
            made("backup-2026-11-26T01:00:00Z", 3, true, false),
            made("db-2026-11-26T01:00:00Z", 4, true, false),
            made("by-hand-2026-11-26T01:00:00Z", 5, false, false),
            made("hourly", 6, true, false),
            made("-2026-11-26T01:00:00Z", 7, true, false),
        ];
        let told = |all: &[CheckpointInfo]| backups(all).collect::<Vec<_>>();
        let db = ("db".to_owned(), Timestamp(4));
        assert_eq!(told(&all), [("backup".to_owned(), Timestamp(2)), db.clone()]);
        all.remove(1);
        assert_eq!(told(&all), [("backup".to_owned(), Timestamp(3)), db]);
    }
}
