//! A file of SQLite against what lies below it.

use super::Check;
use crate::facts::device::Stack;
use crate::facts::sqlite::Sqlite;
use crate::facts::{Database, Facts};
use crate::report::{Finding, Mend, Outcome, Rule, Sure, quoted, size, time};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "sqlite-page",
            looks_at: "the page size of the file",
            finding_when: "it is smaller than a physical block of the disk",
            source: "SQLite: PRAGMA page_size; the file format, 1.3.2",
        },
        judge: |facts| of(facts, |file| vec![page(facts, file)]),
    },
    Check {
        rule: Rule {
            name: "sqlite-journal",
            looks_at: "whether the file keeps a write-ahead log, and what a commit costs without",
            finding_when: "it keeps a rollback journal",
            source: "SQLite: Write-Ahead Logging; Atomic Commit In SQLite",
        },
        judge: |facts| of(facts, |file| vec![journal(facts, file)]),
    },
    Check {
        rule: Rule {
            name: "sqlite-log",
            looks_at: "how long the write-ahead log has become",
            finding_when: "longer than 64 MiB and than the database: no checkpoint gets to its end",
            source: "SQLite: Write-Ahead Logging, 6: avoiding excessively large WAL files",
        },
        judge: |facts| of(facts, |file| vec![log(facts, file)]),
    },
    Check {
        rule: Rule {
            name: "sqlite-free",
            looks_at: "how many pages of the file hold nothing",
            finding_when: "more than 64 MiB, and a half",
            source: "SQLite: VACUUM; the file format, 1.5",
        },
        judge: |facts| of(facts, |file| vec![free(facts, file)]),
    },
];

fn of(facts: &Facts, judge: impl FnOnce(&Sqlite) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.sqlite.as_ref().map_or_else(Vec::new, |file| Outcome::of(file, judge))
}

fn name(facts: &Facts) -> String {
    match &facts.question.database {
        Some(Database::Sqlite(path)) => path.display().to_string(),
        _ => String::new(),
    }
}

fn run(facts: &Facts, sql: &str) -> Mend {
    Mend::ByHand(format!("sqlite3 {} '{sql}'", quoted(&name(facts))))
}

fn page(facts: &Facts, file: &Sqlite) -> Outcome {
    let physical = facts.stack.as_ref().ok().and_then(Stack::physical_bytes);
    let Some(physical) = physical.filter(|physical| *physical > file.page_bytes) else {
        return Outcome::Fine(format!("pages of {}", size(file.page_bytes)));
    };
    Outcome::Found(Finding {
        at: name(facts),
        measured: format!(
            "pages of {}, the disk below writes {} at once",
            size(file.page_bytes),
            size(physical)
        ),
        costs: format!(
            "the page cache or the disk reads and writes {} for each page: {} times the bytes",
            size(physical),
            physical / file.page_bytes.max(1)
        ),
        mend: run(
            facts,
            &format!("PRAGMA journal_mode = DELETE; PRAGMA page_size = {physical}; VACUUM"),
        ),
        sure: Sure::Certain,
    })
}

/// How many flushes a commit with a rollback journal takes: of the journal, of its header, of the
/// database; removing the journal is another, which is not counted.
const FLUSHES_OF_ROLLBACK: f64 = 3.0;

fn journal(facts: &Facts, file: &Sqlite) -> Outcome {
    if file.has_wal {
        return Outcome::Fine("it keeps a write-ahead log".to_owned());
    }
    let costs = match &facts.flush {
        Ok(times) => format!(
            "a commit waits for three flushes or four, here {} or more; with a write-ahead log for \
             one at most, {}",
            time(times.fdatasync_us * FLUSHES_OF_ROLLBACK),
            time(times.fdatasync_us)
        ),
        Err(_) => {
            "a commit waits for three flushes or four; with a write-ahead log for one at most"
                .to_owned()
        }
    };
    Outcome::Found(Finding {
        at: name(facts),
        measured: "it keeps a rollback journal".to_owned(),
        costs,
        mend: run(facts, "PRAGMA journal_mode = WAL"),
        sure: Sure::Likely,
    })
}

fn log(facts: &Facts, file: &Sqlite) -> Outcome {
    let data = file.pages.saturating_mul(file.page_bytes);
    let measured = format!("a log of {}, {} of data", size(file.wal_bytes), size(data));
    if file.wal_bytes <= 64 << 20 || file.wal_bytes <= data {
        return Outcome::Fine(measured);
    }
    Outcome::Found(Finding {
        at: name(facts),
        measured,
        costs:
            "readers look for each page in all of the log first; a reader that never ends keeps \
                it from beginning anew"
                .to_owned(),
        mend: run(facts, "PRAGMA wal_checkpoint(TRUNCATE)"),
        sure: Sure::Likely,
    })
}

fn free(facts: &Facts, file: &Sqlite) -> Outcome {
    let bytes = file.free_pages.saturating_mul(file.page_bytes);
    let measured = format!("{} of {} pages are free", file.free_pages, file.pages);
    if bytes <= 64 << 20 || file.free_pages <= file.pages / 2 {
        return Outcome::Fine(measured);
    }
    Outcome::Found(Finding {
        at: name(facts),
        measured,
        costs: format!(
            "{} of the file hold nothing, and what is read together lies apart",
            size(bytes)
        ),
        mend: run(facts, "VACUUM"),
        sure: Sure::Possible,
    })
}
