//! Settings of InnoDB against what lies below it.

use super::Check;
use super::device::small_blocks;
use super::torn::{promised, unguarded};
use crate::facts::Facts;
use crate::facts::device::Stack;
use crate::facts::mysql::Mysql;
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "innodb-doublewrite",
            looks_at: "innodb_doublewrite against what mount and device promise of a page",
            finding_when: "it is off, and nothing keeps pages whole",
            source: "MariaDB, MySQL: innodb_doublewrite; docs/semantics.md: S-58",
        },
        judge: |facts| of(facts, doublewrite),
    },
    Check {
        rule: Rule {
            name: "innodb-direct",
            looks_at: "innodb_flush_method, and how much of the data files is in the page cache",
            finding_when: "it is not O_DIRECT, and 64 MiB or more are",
            source: "MariaDB, MySQL: innodb_flush_method; cachestat in linux/mman.h, mincore(2)",
        },
        judge: |facts| of(facts, direct),
    },
    Check {
        rule: Rule {
            name: "innodb-log-block",
            looks_at: "innodb_log_write_ahead_size against the disk",
            finding_when: "it is smaller than a physical block",
            source: "MariaDB, MySQL: innodb_log_write_ahead_size",
        },
        judge: |facts| of(facts, log_block),
    },
    Check {
        rule: Rule {
            name: "innodb-log-size",
            looks_at: "how long the log lasts at the rate at which it was written",
            finding_when: "less than ten minutes, after an hour of service",
            source: "MariaDB: innodb_log_file_size; MySQL: innodb_redo_log_capacity",
        },
        judge: |facts| of(facts, log_size),
    },
    Check {
        rule: Rule {
            name: "innodb-buffers",
            looks_at: "innodb_buffer_pool_size against memory, and how often a page was found there",
            finding_when: "it is full, less than an eighth of memory, and misses 1 % or more",
            source: "MariaDB, MySQL: innodb_buffer_pool_size",
        },
        judge: |facts| of(facts, buffers),
    },
    Check {
        rule: Rule {
            name: "innodb-commit",
            looks_at: "innodb_flush_log_at_trx_commit",
            finding_when: "it is not 1",
            source: "MariaDB, MySQL: innodb_flush_log_at_trx_commit",
        },
        judge: |facts| of(facts, commit),
    },
];

fn of(facts: &Facts, judge: fn(&Facts, &Mysql) -> Outcome) -> Vec<Outcome> {
    facts.mysql().map_or_else(Vec::new, |server| vec![judge(facts, server)])
}

/// Returns the command that changes a variable at once.
fn set(name: &str, value: impl std::fmt::Display) -> Mend {
    Mend::ByHand(format!("mariadb -e 'SET GLOBAL {name} = {value}'  # and in the configuration"))
}

/// Returns the line that changes a variable with the next start.
fn configured(name: &str, value: impl std::fmt::Display) -> Mend {
    Mend::ByHand(format!("{name} = {value}  # in [mysqld], and a restart"))
}

fn doublewrite(facts: &Facts, server: &Mysql) -> Outcome {
    let page = server.page_bytes();
    let Some(setting) = server.told("innodb_doublewrite") else {
        return Outcome::Unseen("the server tells no innodb_doublewrite".to_owned());
    };
    let is_off = matches!(setting, "OFF" | "0");
    match (is_off, promised(facts, page)) {
        (true, Some(promise)) => Outcome::Fine(format!(
            "off, and the mount writes {} untorn in mode {}; 'bedplate explain' looks at every file",
            size(promise.untorn_bytes),
            promise.mode
        )),
        (true, None) => {
            unguarded(facts, page, "innodb_doublewrite", configured("innodb_doublewrite", "ON"))
        }
        (false, _) => Outcome::Fine(setting.to_owned()),
    }
}

const CACHED_MIN: u64 = 64 << 20;

fn direct(facts: &Facts, server: &Mysql) -> Outcome {
    let method = server.told("innodb_flush_method").filter(|method| !method.is_empty());
    let method = method.unwrap_or("fsync");
    if method.to_ascii_uppercase().starts_with("O_DIRECT") {
        return Outcome::Fine(method.to_owned());
    }
    let cached = match &facts.cached_bytes {
        Some(Ok(cached)) => *cached,
        Some(Err(why)) => return Outcome::Unseen(why.clone()),
        None => return Outcome::Unseen("no directory was looked at".to_owned()),
    };
    let measured =
        format!("{method}, and {} of the data files are in the page cache", size(cached));
    if cached < CACHED_MIN {
        return Outcome::Fine(measured);
    }
    let pool = server.number("innodb_buffer_pool_size").unwrap_or(0);
    Outcome::Found(Finding {
        at: "innodb_flush_method".to_owned(),
        measured,
        costs: format!(
            "up to {} of memory hold a second copy of what the buffer pool of {} has",
            size(cached.min(pool)),
            size(pool)
        ),
        mend: configured("innodb_flush_method", "O_DIRECT"),
        sure: Sure::Likely,
    })
}

fn log_block(facts: &Facts, server: &Mysql) -> Outcome {
    let physical = facts.stack.as_ref().map_err(Clone::clone).and_then(|stack: &Stack| {
        stack.physical_bytes().ok_or_else(|| "no disk tells its physical block".to_owned())
    });
    let (ahead, physical) = match (server.number("innodb_log_write_ahead_size"), physical) {
        (Ok(ahead), Ok(physical)) => (ahead, physical),
        (Err(why), _) | (_, Err(why)) => return Outcome::Unseen(why),
    };
    if ahead >= physical {
        return Outcome::Fine(format!(
            "{}, over physical blocks of {}",
            size(ahead),
            size(physical)
        ));
    }
    let mend = format!("innodb_log_write_ahead_size = {physical}  # in [mysqld], and a restart");
    let measured = format!("it writes in {}", size(ahead));
    small_blocks("the log of InnoDB".to_owned(), &measured, (ahead, physical), mend, Sure::Certain)
}

fn log_size(_facts: &Facts, server: &Mysql) -> Outcome {
    let asked =
        (server.log_bytes(), server.number("Innodb_os_log_written"), server.number("Uptime"));
    let (log, written, uptime) = match asked {
        (Ok(log), Ok(written), Ok(uptime)) => (log, written, uptime.max(1)),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => return Outcome::Unseen(why),
    };
    let rate = written / uptime;
    let seconds = log / rate.max(1);
    let measured = format!(
        "{} of log, written at {} a second on average since the start: it lasts {} minutes",
        size(log),
        size(rate),
        seconds / 60
    );
    if uptime < 3600 || seconds >= 600 {
        return Outcome::Fine(measured);
    }
    let wanted = rate.saturating_mul(3600).next_multiple_of(1 << 20);
    let name = match server.number("innodb_redo_log_capacity") {
        Ok(_) => "innodb_redo_log_capacity",
        Err(_) => "innodb_log_file_size",
    };
    Outcome::Found(Finding {
        at: name.to_owned(),
        measured,
        costs:
            "each page that changes is written again that often, and writers wait where that is \
                too slow"
                .to_owned(),
        mend: set(name, wanted),
        sure: Sure::Likely,
    })
}

fn buffers(facts: &Facts, server: &Mysql) -> Outcome {
    let asked = (
        server.number("innodb_buffer_pool_size"),
        server.number("Innodb_buffer_pool_read_requests"),
        server.number("Innodb_buffer_pool_reads"),
        server.number("Innodb_buffer_pool_pages_free"),
    );
    let (pool, requests, reads, free) = match asked {
        (Ok(pool), Ok(requests), Ok(reads), Ok(free)) => (pool, requests, reads, free),
        (Err(why), ..) | (_, Err(why), ..) | (_, _, Err(why), _) | (.., Err(why)) => {
            return Outcome::Unseen(why);
        }
    };
    let memory = match &facts.memory.total_bytes {
        Ok(memory) => *memory,
        Err(why) => return Outcome::Unseen(why.clone()),
    };
    let missed = reads as f64 * 100.0 / requests.max(1) as f64;
    let measured = format!(
        "{} of {} of memory; {reads} pages were not found there, {missed:.1} %",
        size(pool),
        size(memory)
    );
    let is_full = free < pool / server.page_bytes() / 20;
    if !is_full || pool >= memory / 8 || reads < 100_000 || missed < 1.0 {
        return Outcome::Fine(measured);
    }
    Outcome::Found(Finding {
        at: "innodb_buffer_pool_size".to_owned(),
        measured,
        costs: format!("{} were read from the files so far", size(reads * server.page_bytes())),
        mend: set("innodb_buffer_pool_size", memory / 2),
        sure: Sure::Likely,
    })
}

fn commit(facts: &Facts, server: &Mysql) -> Outcome {
    match server.number("innodb_flush_log_at_trx_commit") {
        Ok(1) => Outcome::Fine("1".to_owned()),
        Ok(value) => Outcome::Found(Finding {
            at: "innodb_flush_log_at_trx_commit".to_owned(),
            measured: format!("it is {value}"),
            costs: match &facts.flush {
                Ok(times) => format!(
                    "a power cut loses what was committed in the last second, to save each commit \
                     {}",
                    crate::report::time(times.fdatasync_us)
                ),
                Err(_) => "a power cut loses what was committed in the last second".to_owned(),
            },
            mend: set("innodb_flush_log_at_trx_commit", 1),
            sure: Sure::Certain,
        }),
        Err(why) => Outcome::Unseen(why),
    }
}
