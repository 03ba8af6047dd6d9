//! Pages that are in memory twice.

use super::Check;
use crate::facts::Facts;
use crate::facts::postgres::Doubled;
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[Check {
    rule: Rule {
        name: "double-cache",
        looks_at: "which pages of the server's buffers are in the page cache too",
        finding_when: "64 MiB or more, and a quarter of the buffers",
        source: "mincore(2); PostgreSQL: pg_buffercache, shared_buffers",
    },
    judge: |facts| {
        let doubled = facts.doubled.as_ref();
        doubled
            .map_or_else(Vec::new, |seen| Outcome::of(seen, |seen| vec![doubled_of(facts, seen)]))
    },
}];

const BOTH_MIN: u64 = 64 << 20;

fn doubled_of(facts: &Facts, doubled: &Doubled) -> Outcome {
    let Doubled { buffered_bytes, both_bytes } = *doubled;
    let percent = both_bytes * 100 / buffered_bytes.max(1);
    let measured = format!(
        "of {} in the buffers {} are in the page cache too, {percent} %",
        size(buffered_bytes),
        size(both_bytes)
    );
    if both_bytes < BOTH_MIN || percent < 25 {
        return Outcome::Fine(measured);
    }
    let memory = facts.memory.total_bytes.as_ref().ok().copied();
    let of_memory = memory.map_or_else(String::new, |memory| {
        format!(", {:.1} % of the machine's", both_bytes as f64 * 100.0 / memory.max(1) as f64)
    });
    let wanted = memory.map_or(buffered_bytes, |memory| memory / 4).max(buffered_bytes) >> 20;
    Outcome::Found(Finding {
        at: "shared_buffers".to_owned(),
        measured,
        costs: format!(
            "{} of memory{of_memory} hold a second copy, where other pages could be",
            size(both_bytes)
        ),
        mend: Mend::ByHand(format!(
            "psql -c \"ALTER SYSTEM SET shared_buffers = '{wanted}MB'\"  # and a restart; what is \
             read often stays there, and its copies leave the page cache"
        )),
        sure: Sure::Certain,
    })
}
