//! Small durable writes, and reads, as they were measured.

use super::Check;
use crate::facts::Facts;
use crate::facts::device::{Layer, Stack};
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size, time};
use crate::system::{FlushTimes, ReadTimes};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "flush",
            looks_at: "how long 4 KiB take: as they are, with O_DSYNC, with fdatasync",
            finding_when: "the disk has a volatile cache, and being flushed takes it no time",
            source: "Documentation/block/writeback_cache_control.rst",
        },
        judge: |facts| of_times(facts, |times| vec![flush(facts, times)]),
    },
    Check {
        rule: Rule {
            name: "flushes",
            looks_at: "how many flushes the disks get for a write in place with O_DSYNC",
            finding_when: "more than one",
            source: "Documentation/admin-guide/iostats.rst: field 16; open(2): O_DSYNC",
        },
        judge: |facts| of_times(facts, |times| vec![flushes(times)]),
    },
    Check {
        rule: Rule {
            name: "reads",
            looks_at: "with --measure: reads through the page cache and past it",
            finding_when: "never: it is told, and judged with the read-ahead",
            source: "open(2): O_DIRECT; proc(5): /proc/pid/io",
        },
        judge: |facts| {
            let reads = facts.reads.as_ref();
            reads.map_or_else(Vec::new, |seen| Outcome::of(seen, |reads| vec![of_reads(reads)]))
        },
    },
];

fn of_times(facts: &Facts, judge: impl FnOnce(&FlushTimes) -> Vec<Outcome>) -> Vec<Outcome> {
    Outcome::of(&facts.flush, judge)
}

fn of_reads(reads: &ReadTimes) -> Outcome {
    let rate = |bps: f64| size(bps as u64);
    Outcome::Fine(format!(
        "8 KiB at random take {} through the page cache and {} past it; front to back {} and {} a \
         second",
        time(reads.random_cached_us),
        time(reads.random_direct_us),
        rate(reads.sequential_cached_bps),
        rate(reads.sequential_direct_bps)
    ))
}

/// What a flush takes at least, as a part of the write before it, where it does something.
const FLUSH_PART_MIN: f64 = 0.25;

fn flush(facts: &Facts, times: &FlushTimes) -> Outcome {
    let measured = format!(
        "a write takes {}, with O_DSYNC {}, with fdatasync {}",
        time(times.write_us),
        time(times.dsync_us),
        time(times.fdatasync_us)
    );
    let is_free = times.dsync_us.max(times.fdatasync_us) < times.write_us * (1.0 + FLUSH_PART_MIN);
    let volatile =
        |layer: &&Layer| layer.write_cache.as_ref().is_ok_and(|cache| cache == "write back");
    let stack = facts.stack.as_ref().ok();
    let disk = stack.and_then(|stack: &Stack| stack.disks().find(volatile));
    let Some(disk) = disk.filter(|_| is_free) else { return Outcome::Fine(measured) };
    let rotates = disk.rotates == Ok(1);
    Outcome::Found(Finding {
        at: disk.told(),
        measured: format!("{measured}; the disk tells of a volatile cache"),
        costs:
            "where the cache has no battery behind it, what commits called durable is lost with \
                the power: a flush does nothing here"
                .to_owned(),
        mend: Mend::ByHand(format!(
            "hdparm -W 0 {}  # NVMe: nvme set-feature -f 6 -v 0; virtual: cache=none at the host; \
             or know of its battery",
            disk.node().display()
        )),
        // A disk that rotates cannot write between two turns.
        sure: if rotates { Sure::Likely } else { Sure::Possible },
    })
}

/// From so many on it is not one, of which others' flushes were counted too.
const FLUSHES_MAX: f64 = 1.5;

fn flushes(times: &FlushTimes) -> Outcome {
    let Some(each) = times.dsync_flushes else {
        return Outcome::Unseen("the disks do not count their flushes".to_owned());
    };
    let of_fdatasync = times.fdatasync_flushes.unwrap_or(0.0);
    let measured = format!("{each:.1} flushes for each O_DSYNC, {of_fdatasync:.1} for fdatasync");
    if each < FLUSHES_MAX {
        return Outcome::Fine(measured);
    }
    Outcome::Found(Finding {
        at: "O_DSYNC".to_owned(),
        measured,
        costs: format!(
            "each commit waits {}, of which one flush less would save up to {}",
            time(times.dsync_us),
            time((times.dsync_us - times.write_us).max(0.0) / each)
        ),
        mend: Mend::ByHand(if of_fdatasync < FLUSHES_MAX {
            "psql -c \"ALTER SYSTEM SET wal_sync_method = fdatasync\" -c \"SELECT \
             pg_reload_conf()\"  # or the same of another database"
                .to_owned()
        } else {
            "bedplate format; bedplate mount  # a durable write takes one flush there".to_owned()
        }),
        sure: Sure::Possible,
    })
}
