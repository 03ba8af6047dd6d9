//! Settings of PostgreSQL against what lies below it.

use super::Check;
use super::torn::{promised, unguarded};
use crate::facts::Facts;
use crate::facts::postgres::Postgres;
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size, time};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "full-page-writes",
            looks_at: "full_page_writes against what mount and device promise of a page",
            finding_when: "it is off and nothing keeps pages whole, or on where a Bedplate mount does",
            source: "PostgreSQL: full_page_writes; docs/semantics.md: S-58",
        },
        judge: |facts| of(facts, |server| vec![full_page_writes(facts, server)]),
    },
    Check {
        rule: Rule {
            name: "fsync",
            looks_at: "fsync and synchronous_commit",
            finding_when: "one of them is off",
            source: "PostgreSQL: fsync, synchronous_commit",
        },
        judge: |facts| of(facts, |server| vec![fsync(facts, server)]),
    },
    Check {
        rule: Rule {
            name: "checkpoints",
            looks_at: "how many checkpoints came because max_wal_size was full",
            finding_when: "more than ten, and more than came by time",
            source: "PostgreSQL: max_wal_size, pg_stat_bgwriter, pg_stat_checkpointer",
        },
        judge: |facts| of(facts, |server| vec![checkpoints(server)]),
    },
    Check {
        rule: Rule {
            name: "wal-buffers",
            looks_at: "how often the log was written because its buffers were full",
            finding_when: "of more than a tenth of its writes",
            source: "PostgreSQL: wal_buffers, pg_stat_wal",
        },
        judge: |facts| of(facts, |server| vec![wal_buffers(server)]),
    },
    Check {
        rule: Rule {
            name: "wal-files",
            looks_at: "wal_init_zero and wal_recycle against a file system that copies on write",
            finding_when: "one of them is on, on btrfs or zfs",
            source: "PostgreSQL: wal_init_zero, wal_recycle",
        },
        judge: |facts| of(facts, |server| vec![wal_files(facts, server)]),
    },
    Check {
        rule: Rule {
            name: "shared-buffers",
            looks_at: "shared_buffers against the data, the memory, and how often a page was found there",
            finding_when: "they are less than an eighth of memory and of the data, and miss 1 % or more",
            source: "PostgreSQL: shared_buffers, pg_stat_database",
        },
        judge: |facts| of(facts, |server| vec![shared_buffers(facts, server)]),
    },
    Check {
        rule: Rule {
            name: "buffer-pages",
            looks_at: "whether shared_buffers of 4 GiB or more lie in huge pages",
            finding_when: "they do not",
            source: "PostgreSQL: huge_pages; Documentation/admin-guide/mm/hugetlbpage.rst",
        },
        judge: |facts| of(facts, |server| vec![buffer_pages(facts, server)]),
    },
    Check {
        rule: Rule {
            name: "io-method",
            looks_at: "how PostgreSQL 18 and later reads asynchronously",
            finding_when: "not at all",
            source: "PostgreSQL: io_method",
        },
        judge: |facts| of(facts, |server| vec![io_method(facts, server)]),
    },
];

fn of(facts: &Facts, judge: impl FnOnce(&Postgres) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.postgres().map_or_else(Vec::new, judge)
}

/// Returns the command that changes a setting.
fn set(name: &str, value: &str, restart: bool) -> Mend {
    let then = if restart { "  # and a restart" } else { " -c \"SELECT pg_reload_conf()\"" };
    Mend::ByHand(format!("psql -c \"ALTER SYSTEM SET {name} = {value}\"{then}"))
}

fn full_page_writes(facts: &Facts, server: &Postgres) -> Outcome {
    let page = server.page_bytes();
    let Some(setting) = server.setting("full_page_writes") else {
        return Outcome::Unseen("the server tells no full_page_writes".to_owned());
    };
    let promised = promised(facts, page);
    match (setting, promised) {
        ("off", Some(promise)) => Outcome::Fine(format!(
            "off, and the mount writes {} untorn in mode {}; 'bedplate explain' looks at every file",
            size(promise.untorn_bytes),
            promise.mode
        )),
        ("off", None) => {
            unguarded(facts, page, "full_page_writes", set("full_page_writes", "on", false))
        }
        (_, Some(promise)) => needless(server, promise.untorn_bytes),
        _ => Outcome::Fine("on".to_owned()),
    }
}

/// Judges full page images where pages do not tear.
fn needless(server: &Postgres, untorn_bytes: u64) -> Outcome {
    let Ok([images, bytes, ..]) = server.wal else {
        return Outcome::Fine("on, where pages do not tear either way".to_owned());
    };
    let percent = images.saturating_mul(server.page_bytes()).min(bytes) * 100 / bytes.max(1);
    if percent < 20 {
        return Outcome::Fine(format!("on, and {percent} % of the log are full pages"));
    }
    Outcome::Found(Finding {
        at: "full_page_writes".to_owned(),
        measured: format!("it is on, and the mount writes {} untorn", size(untorn_bytes)),
        costs: format!("up to {percent} % of the {} of log are full pages", size(bytes)),
        mend: Mend::ByHand(
            "bedplate explain DIR  # tells whether every file of the server is guarded; then \
             full_page_writes = off"
                .to_owned(),
        ),
        sure: Sure::Possible,
    })
}

fn fsync(facts: &Facts, server: &Postgres) -> Outcome {
    match server.setting("fsync") {
        Some("off") => Outcome::Found(Finding {
            at: "fsync".to_owned(),
            measured: "it is off".to_owned(),
            costs: "after a crash of the machine the cluster may be broken beyond recovery"
                .to_owned(),
            mend: set("fsync", "on", false),
            sure: Sure::Certain,
        }),
        Some(_) if server.setting("synchronous_commit") == Some("off") => {
            let saved = facts.flush.as_ref().map_or_else(
                |_| String::new(),
                |times| format!(", to save each commit {}", time(times.fdatasync_us)),
            );
            Outcome::Found(Finding {
                at: "synchronous_commit".to_owned(),
                measured: "it is off".to_owned(),
                costs: format!("a crash loses what was committed in the last moments{saved}"),
                mend: set("synchronous_commit", "on", false),
                sure: Sure::Certain,
            })
        }
        Some(setting) => Outcome::Fine(format!(
            "{setting}, by {}",
            server.setting("wal_sync_method").unwrap_or("a method that is not told")
        )),
        None => Outcome::Unseen("the server tells no fsync".to_owned()),
    }
}

/// From so many requested checkpoints on they say something: people ask for some, too.
const REQUESTED_MIN: u64 = 10;

fn checkpoints(server: &Postgres) -> Outcome {
    let (timed, requested) = match &server.checkpoints {
        Ok(counts) => *counts,
        Err(why) => return Outcome::Unseen(why.clone()),
    };
    let megabytes = server.number("max_wal_size").unwrap_or(1024);
    let measured = format!(
        "{requested} checkpoints came by request and {timed} by time, with max_wal_size = {}",
        size(megabytes << 20)
    );
    if requested <= REQUESTED_MIN || requested <= timed {
        return Outcome::Fine(measured);
    }
    let images = match server.wal {
        Ok([images, bytes, ..]) => format!(
            "; of {} of log since then up to {} are full pages, of which each checkpoint begins anew",
            size(bytes),
            size(images.saturating_mul(server.page_bytes()))
        ),
        Err(_) => String::new(),
    };
    Outcome::Found(Finding {
        at: "max_wal_size".to_owned(),
        measured,
        costs: format!("each writes all dirty buffers before their time{images}"),
        mend: set("max_wal_size", &format!("'{}MB'", megabytes.saturating_mul(4)), false),
        sure: Sure::Likely,
    })
}

fn wal_buffers(server: &Postgres) -> Outcome {
    let (full, writes) = match &server.wal {
        Ok([_, _, full, writes]) => (*full, *writes),
        Err(why) => return Outcome::Unseen(why.clone()),
    };
    let buffers = server.number("wal_buffers").unwrap_or(0).saturating_mul(8192);
    let measured =
        format!("{full} writes because {} of buffers were full, of {writes}", size(buffers));
    if full < 1000 || full.saturating_mul(10) < writes {
        return Outcome::Fine(measured);
    }
    Outcome::Found(Finding {
        at: "wal_buffers".to_owned(),
        measured,
        costs:
            "in each a program that wanted to add to the log wrote it itself, with the lock that \
                all others wait for"
                .to_owned(),
        mend: set("wal_buffers", "'64MB'", true),
        sure: Sure::Likely,
    })
}

fn wal_files(facts: &Facts, server: &Postgres) -> Outcome {
    let kind = match &facts.mount {
        Some(Ok(mount)) => mount.entry.kind.as_str(),
        Some(Err(why)) => return Outcome::Unseen(why.clone()),
        None => return Outcome::Unseen("no file system was looked at".to_owned()),
    };
    let is_on = |name: &&str| server.setting(name) == Some("on");
    let on: Vec<&str> = ["wal_init_zero", "wal_recycle"].into_iter().filter(is_on).collect();
    let Some(first) = on.first().filter(|_| matches!(kind, "btrfs" | "zfs")) else {
        return Outcome::Fine(format!("on {kind}: {}", if on.is_empty() { "off" } else { "on" }));
    };
    let written = match server.wal {
        Ok([_, bytes, ..]) => format!(", {} of log so far", size(bytes)),
        Err(_) => String::new(),
    };
    Outcome::Found(Finding {
        at: on.join(", "),
        measured: format!("on, on {kind}, which writes each block to a new place"),
        costs: format!(
            "a file of the log that is made or used again is written twice{written}, and the second \
             time frees what the first one took"
        ),
        mend: Mend::ByHand(format!(
            "psql {}-c \"SELECT pg_reload_conf()\"",
            on.iter()
                .map(|name| format!("-c \"ALTER SYSTEM SET {name} = off\" "))
                .collect::<String>()
        )),
        sure: if *first == "wal_init_zero" { Sure::Likely } else { Sure::Possible },
    })
}

fn shared_buffers(facts: &Facts, server: &Postgres) -> Outcome {
    let (found, read) = match &server.blocks {
        Ok(blocks) => *blocks,
        Err(why) => return Outcome::Unseen(why.clone()),
    };
    let (memory, data) = match (&facts.memory.total_bytes, &server.size_bytes) {
        (Ok(memory), Ok(data)) => (*memory, *data),
        (Err(why), _) | (_, Err(why)) => return Outcome::Unseen(why.clone()),
    };
    let buffers = server.buffer_bytes();
    let missed = read as f64 * 100.0 / (found.saturating_add(read)).max(1) as f64;
    let measured = format!(
        "{} of {} of memory, for {} of data; {read} pages were not found there, {missed:.1} %",
        size(buffers),
        size(memory),
        size(data)
    );
    let is_small = buffers < memory / 8 && buffers < data / 8;
    if !is_small || read < 100_000 || missed < 1.0 {
        return Outcome::Fine(measured);
    }
    let wanted = (memory / 4).min(data) >> 20;
    Outcome::Found(Finding {
        at: "shared_buffers".to_owned(),
        measured,
        costs: format!(
            "each was a system call and a copy from the page cache or a read of the device: {} so far",
            size(read.saturating_mul(server.page_bytes()))
        ),
        mend: set("shared_buffers", &format!("'{wanted}MB'"), true),
        sure: Sure::Likely,
    })
}

fn buffer_pages(facts: &Facts, server: &Postgres) -> Outcome {
    let buffers = server.buffer_bytes();
    if buffers < 4 << 30 {
        return Outcome::Fine(format!("{} are little for huge pages", size(buffers)));
    }
    let (pages, page) = match (&facts.memory.huge_pages, &facts.memory.huge_page_bytes) {
        (Ok(pages), Ok(page)) => (*pages, *page),
        (Err(why), _) | (_, Err(why)) => return Outcome::Unseen(why.clone()),
    };
    // Before 17 the server does not say whether it got them.
    let has = match server.setting("huge_pages_status") {
        Some(status) => status == "on",
        None => pages.saturating_mul(page) >= buffers,
    };
    if has {
        return Outcome::Fine(format!("{} in pages of {}", size(buffers), size(page)));
    }
    let connections = server.number("max_connections").unwrap_or(100);
    let tables = buffers / 512;
    let wanted = (buffers + buffers / 20).div_ceil(page.max(1));
    Outcome::Found(Finding {
        at: "huge_pages".to_owned(),
        measured: format!("{} of buffers, {pages} huge pages are set aside", size(buffers)),
        costs: format!(
            "each process that touches all of them has {} of page tables: {} for {connections} \
             connections",
            size(tables),
            size(tables.saturating_mul(connections))
        ),
        mend: Mend::ByHand(format!(
            "sysctl vm.nr_hugepages={wanted}  # and a restart of PostgreSQL"
        )),
        sure: Sure::Certain,
    })
}

fn io_method(facts: &Facts, server: &Postgres) -> Outcome {
    match server.setting("io_method") {
        None => Outcome::Fine("this version reads as it needs pages".to_owned()),
        Some("sync") => Outcome::Found(Finding {
            at: "io_method".to_owned(),
            measured: "it is sync".to_owned(),
            costs: match facts.reads {
                Some(Ok(reads)) => format!(
                    "a scan waits {} for each page that is not in memory, one after another",
                    time(reads.random_cached_us)
                ),
                _ => {
                    "a scan waits for each page that is not in memory, one after another".to_owned()
                }
            },
            mend: set(
                "io_method",
                if facts.memory.io_uring_disabled == Ok(0) { "io_uring" } else { "worker" },
                true,
            ),
            sure: Sure::Possible,
        }),
        Some(method) => Outcome::Fine(method.to_owned()),
    }
}
