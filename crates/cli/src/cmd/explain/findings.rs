//! What did not go the way a file's mode asks, from what was counted. Pure.

use std::fmt;

use bedplate::{FileActivity, IoMode, Reason, format_size};
use serde::Serialize;

use super::Open;
use crate::mount::watch::short;

/// What is known of a file.
#[derive(Debug, Clone)]
pub struct FileFacts {
    /// Its path as a shell reads it, for the commands proposed.
    pub path: String,
    /// What it did.
    pub activity: FileActivity,
    /// The opens of it, with their programs.
    pub opens: Vec<Open>,
    /// Alignment of direct I/O in bytes.
    pub io_align: u64,
    /// Allocation unit in bytes.
    pub block_size: u64,
    /// In how many extents it lies.
    pub extents: usize,
    /// How many bytes these have.
    pub allocated_bytes: u64,
}

impl FileFacts {
    /// Returns the average length of an extent in bytes.
    pub fn extent_bytes_average(&self) -> u64 {
        self.allocated_bytes / (self.extents.max(1) as u64)
    }
}

/// One thing worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable word for programs: mostly the reason's name.
    pub kind: &'static str,
    /// How often.
    pub count: u64,
    /// What happened.
    pub what: String,
    /// What it cost.
    pub cost: String,
    /// The programs, where these are known.
    pub who: Vec<String>,
    /// What to change.
    pub change: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}: {}", self.kind, self.what)?;
        writeln!(f, "    cost    {}", self.cost)?;
        if !self.who.is_empty() {
            writeln!(f, "    who     {}", self.who.join(", "))?;
        }
        writeln!(f, "    change  {}", self.change)
    }
}

/// Fragments shorter than this, on average, are worth a word.
const EXTENT_BYTES_SMALL: u64 = 1 << 20;
/// And only in so many.
const EXTENTS_MANY: usize = 8;
/// Below this share of hits a cache costs more than it gives.
const HITS_FEW: f64 = 0.2;
/// What fewer of a hundred writes did is no finding.
const SHARE_PERCENT_MIN: u64 = 1;
/// From so many reads on a share says something.
const READS_MANY: u64 = 100;

/// Returns what is worth knowing of a file, the most frequent first.
pub fn of(told: &FileFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        [misaligned(told), mixed(told), dirty_syncs(told), poor_cache(told), fragmented(told)]
            .into_iter()
            .chain([super::locks::waited(told)])
            .flatten()
            .collect();
    findings.extend(
        [
            Reason::Extend,
            Reason::Hole,
            Reason::Unwritten,
            Reason::Shared,
            Reason::Tail,
            Reason::Elsewhere,
        ]
        .into_iter()
        .filter_map(|reason| of_reason(told, reason)),
    );
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.count));
    findings
}

fn names<'a>(opens: impl Iterator<Item = &'a Open>) -> Vec<String> {
    let mut names: Vec<String> = opens.map(ToString::to_string).collect();
    names.sort();
    names.dedup();
    names
}

fn misaligned(told: &FileFacts) -> Option<Finding> {
    let counters = &told.activity.counters;
    let count = Some(counters.misaligned).filter(|count| *count > 0)?;
    let why: Vec<String> =
        [Reason::UnalignedOffset, Reason::UnalignedLength, Reason::UnalignedBuffer]
            .into_iter()
            .filter(|reason| counters.reason(*reason) > 0)
            .map(|reason| {
                format!(
                    "{} {}",
                    reason.name().trim_start_matches("unaligned_"),
                    counters.reason(reason)
                )
            })
            .collect();
    let align = format_size(told.io_align);
    Some(Finding {
        kind: "misaligned",
        count,
        what: format!(
            "{count} of {} I/Os were not in multiples of {align} ({})",
            counters.reads + counters.writes,
            why.join(", ")
        ),
        cost: "each was copied through a bounce buffer; a write also read what surrounds it and \
               held the inode lock exclusive"
            .to_owned(),
        who: names(told.opens.iter().filter(|open| open.misaligned > 0)),
        change: format!(
            "let the program read and write in multiples of {align}, or serve it a file it cannot \
             align as: bedplate mode {} cached",
            told.path
        ),
    })
}

fn mixed(told: &FileFacts) -> Option<Finding> {
    let count = told.activity.counters.reason(Reason::MixedOpen);
    if count == 0 && !told.activity.mixed {
        return None;
    }
    let since = if told.activity.mixed { "it is now" } else { "not any more" };
    // O_DIRECT is never served as cached; everything else a mount serves fastest from the kernel's
    // page cache.
    let change = if told.opens.iter().any(|open| open.direct_flag) {
        format!(
            "a program opens it with O_DIRECT, so let all of them go past the cache: bedplate mode \
             {} concurrent; and close what opened it as cached",
            told.path
        )
    } else {
        format!(
            "give the file one mode for all its programs: bedplate mode {} cached, the faster one \
             on a mount without O_DIRECT",
            told.path
        )
    };
    Some(Finding {
        kind: Reason::MixedOpen.name(),
        count,
        what: format!(
            "{count} I/Os that asked for more were served as cached, because the file was open in \
             conflicting modes; {since}"
        ),
        cost: "they went one writer at a time, like those of an ordinary file".to_owned(),
        who: names(
            told.opens
                .iter()
                .filter(|open| open.requested_mode.parse().is_ok_and(IoMode::writes_behind)),
        ),
        change,
    })
}

fn dirty_syncs(told: &FileFacts) -> Option<Finding> {
    let counters = &told.activity.counters;
    let count = Some(counters.syncs).filter(|_| {
        counters.sync_pages_ns > counters.sync_wait_ns / 2 && counters.sync_pages_ns > 0
    })?;
    Some(Finding {
        kind: "dirty_sync",
        count,
        what: format!("{count} syncs waited mostly for dirty pages of the cache to be written"),
        cost: format!(
            "{} of the {} that syncs took",
            short(Some(counters.sync_pages_ns)),
            short(Some(counters.sync_wait_ns))
        ),
        who: names(told.opens.iter().filter(|open| open.syncs > 0)),
        change: format!(
            "let less be dirty by then: bedplate tune DIR write-behind-start=5% sync=1s; 'bedplate \
             mode try {} concurrent' measures whether going past the cache is faster, which for \
             databases on a mount it was not",
            told.path
        ),
    })
}

fn poor_cache(told: &FileFacts) -> Option<Finding> {
    let counters = &told.activity.counters;
    let through = counters.cache_hits + counters.cache_misses;
    let ratio = counters.cache_hits as f64 / through.max(1) as f64;
    let serves = told.activity.effective_mode.is_some_and(IoMode::writes_through);
    (serves && through >= READS_MANY && ratio < HITS_FEW).then(|| Finding {
        kind: "poor_cache",
        count: counters.cache_misses,
        what: format!("the cache answered {:.0} % of {through} reads", ratio * 100.0),
        cost: "every other read was copied through the cache in vain".to_owned(),
        who: Vec::new(),
        change: format!(
            "make the cache larger: bedplate tune DIR cache=SIZE; or leave the file to the \
             kernel's page cache: bedplate mode {} cached",
            told.path
        ),
    })
}

fn fragmented(told: &FileFacts) -> Option<Finding> {
    (told.extents >= EXTENTS_MANY && told.extent_bytes_average() < EXTENT_BYTES_SMALL).then(|| {
        Finding {
            kind: "fragmented",
            count: told.activity.counters.reason(Reason::Split),
            what: format!(
                "its extents are {} long on average; {} I/Os spanned several",
                format_size(told.extent_bytes_average()),
                told.activity.counters.reason(Reason::Split)
            ),
            cost: "an I/O that spans extents is several on the device".to_owned(),
            who: Vec::new(),
            change: format!(
                "put it together while it is in use: bedplate defrag {}; and let what is created \
                 beside it lie in longer runs: bedplate extent-size DIR SIZE",
                told.path
            ),
        }
    })
}

fn of_reason(told: &FileFacts, reason: Reason) -> Option<Finding> {
    let count = Some(told.activity.counters.reason(reason)).filter(|count| *count > 0)?;
    // One that failed for want of space was a write too.
    let counters = &told.activity.counters;
    let writes = counters.writes.max(count);
    let of = if reason == Reason::Tail { counters.reads + writes } else { writes };
    if u128::from(count) * 100 < u128::from(of) * u128::from(SHARE_PERCENT_MIN) {
        return None;
    }
    let (what, cost, change) = match reason {
        Reason::Extend => (
            format!("{count} of {writes} writes made the file longer"),
            "each changed metadata, and is durable only with the log",
            format!("give it its final size first: bedplate preallocate {} SIZE", told.path),
        ),
        Reason::Hole => (
            format!("{count} of {writes} writes filled a hole"),
            "each allocated blocks and changed metadata",
            format!("allocate them first: bedplate preallocate {} {}", told.path, told.activity.size_bytes),
        ),
        Reason::Unwritten => (
            format!("{count} of {writes} writes were the first to blocks allocated before"),
            "each changed metadata once",
            "nothing: from the second time on they go straight to the device".to_owned(),
        ),
        Reason::Shared => (
            format!("{count} of {writes} writes went to new blocks, because a checkpoint needs the \
                     old ones"),
            "each allocated blocks and changed metadata; the file lies in more extents",
            "nothing: once a block is written it is the file's own; or delete checkpoints that are \
             needed no more".to_owned(),
        ),
        Reason::Tail => (
            format!("{count} I/Os ended within a block of {}", format_size(told.block_size)),
            "a write there held the inode lock exclusive",
            format!("let the file end at a multiple of {}", format_size(told.block_size)),
        ),
        Reason::Elsewhere => (
            format!("{count} of {writes} writes got blocks on other members than the file is placed \
                     on, because those are full"),
            "the file lies, and is read, where it is not to lie",
            format!("make room there, then move it: bedplate place {} --on MEMBER; or place it on \
                     others too", told.path),
        ),
        _ => return None,
    };
    Some(Finding {
        kind: reason.name(),
        count,
        what,
        cost: cost.to_owned(),
        who: Vec::new(),
        change,
    })
}

#[cfg(test)]
mod tests {
    use bedplate::{CounterSnapshot, InodeNo, Latencies, LatencySnapshot, WaitTime, Waits};

    use super::*;

    fn told(change: impl FnOnce(&mut FileFacts)) -> FileFacts {
        let activity = FileActivity {
            ino: InodeNo(9),
            size_bytes: 64 << 20,
            file_mode: None,
            effective_mode: Some(IoMode::Concurrent),
            mixed: false,
            opens: 1,
            counters: CounterSnapshot {
                reads: 1000,
                writes: 1000,
                direct: 2000,
                ..CounterSnapshot::default()
            },
            latencies: Latencies::default(),
            waits: Waits::default(),
        };
        let open = |program: &str, requested: &str| Open {
            pid: 7,
            program: Some(program.to_owned()),
            writable: true,
            named_mode: None,
            direct_flag: false,
            requested_mode: requested.to_owned(),
            misaligned: 0,
            syncs: 0,
            sync_wait_ns: 0,
        };
        let opens = vec![open("postgres", "concurrent"), open("cp", "cached")];
        let allocated_bytes = activity.size_bytes;
        let mut told = FileFacts {
            path: "/mnt/f".into(),
            activity,
            opens,
            io_align: 512,
            block_size: 4096,
            extents: 1,
            allocated_bytes,
        };
        change(&mut told);
        told
    }

    /// S-502: a share of the time that was measured is told, with what would end the waits; a
    /// small one, or one of too few operations, is not.
    #[test]
    fn s_502_waits_for_a_lock_are_a_finding_where_they_are_a_share_of_the_time() {
        let waited = |mode: IoMode, timed, ns: u64, lock: fn(&mut Waits, WaitTime)| {
            told(|told| {
                told.activity.effective_mode = Some(mode);
                let write =
                    LatencySnapshot { timed, sum_ns: 1_000_000, ..LatencySnapshot::default() };
                told.activity.latencies = Latencies { write, ..Latencies::default() };
                lock(&mut told.activity.waits, WaitTime { count: 40, ns, ns_max: ns });
            })
        };
        let alone = |waits: &mut Waits, time| waits.inode_exclusive = time;
        let ranges = |waits: &mut Waits, time| waits.byte_range = time;
        let found = of(&waited(IoMode::Cached, 100, 380_000, alone));
        assert_eq!((found[0].kind, found[0].count), ("lock_waits", 40), "S-502");
        assert!(
            found[0].what.contains("waited 38 % of their time for its inode lock")
                && found[0].change.contains("bedplate mode /mnt/f concurrent"),
            "S-502: {found:?}"
        );
        let found = of(&waited(IoMode::Direct, 100, 380_000, ranges));
        assert!(found[0].what.contains("for byte ranges of it"), "S-502: {found:?}");
        let found = of(&waited(IoMode::Concurrent, 100, 380_000, alone));
        assert!(!found[0].change.contains("bedplate mode"), "S-502: it is concurrent");
        assert!(of(&waited(IoMode::Cached, 29, 380_000, alone)).is_empty(), "S-502");
        assert!(of(&waited(IoMode::Cached, 100, 30_000, alone)).is_empty(), "S-502");
    }

    fn kinds(told: &FileFacts) -> Vec<&'static str> {
        of(told).into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_file_served_as_it_asks_has_no_findings() {
        assert!(of(&told(|_| {})).is_empty());
    }

    #[test]
    fn what_went_another_way_is_named_with_who_and_what_to_change() {
        let findings = of(&told(|told| {
            told.activity.counters.misaligned = 30;
            told.activity.counters.reasons[Reason::UnalignedLength as usize] = 30;
            told.activity.mixed = true;
            told.activity.counters.reasons[Reason::MixedOpen as usize] = 40;
            told.opens[0].misaligned = 30;
        }));
        assert_eq!(
            findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(),
            ["mixed_open", "misaligned"],
            "the most frequent first"
        );
        assert_eq!(
            (findings[0].who[0].as_str(), findings[1].who[0].as_str()),
            ("cp (pid 7)", "postgres (pid 7)")
        );
        assert!(
            findings[1].what.contains("30 of 2000") && findings[1].what.contains("length 30"),
            "{}",
            findings[1]
        );
        assert!(findings[0].change.contains("bedplate mode /mnt/f cached"), "{}", findings[0]);
    }

    /// On a mount `cached` was nowhere clearly slower for PostgreSQL and SQLite; once every finding
    /// here sent them to `concurrent`.
    #[test]
    fn the_way_past_the_cache_is_proposed_only_to_files_that_a_program_opens_with_o_direct() {
        let change = |direct_flag| {
            let findings = of(&told(|told| {
                told.activity.mixed = true;
                told.opens[0].direct_flag = direct_flag;
            }));
            findings[0].change.clone()
        };
        assert!(change(true).contains("bedplate mode /mnt/f concurrent"), "{}", change(true));
        assert!(!change(false).contains("concurrent"), "{}", change(false));
        let poor = of(&told(|told| {
            told.activity.effective_mode = Some(IoMode::ConcurrentCache);
            told.activity.counters.cache_misses = 1000;
        }));
        assert!(poor[0].change.contains("bedplate mode /mnt/f cached"), "{}", poor[0]);
    }

    #[test]
    fn each_reason_has_its_finding() {
        for reason in [
            Reason::Extend,
            Reason::Hole,
            Reason::Unwritten,
            Reason::Shared,
            Reason::Tail,
            Reason::Elsewhere,
        ] {
            assert_eq!(
                kinds(&told(|told| told.activity.counters.reasons[reason as usize] = 20)),
                [reason.name()]
            );
            let few = told(|told| {
                told.activity.counters.writes = 21_844;
                told.activity.counters.reasons[reason as usize] = 64;
            });
            assert!(kinds(&few).is_empty(), "64 of 21,844 are no finding: {}", reason.name());
        }
        assert_eq!(
            kinds(&told(|told| (
                told.activity.counters.sync_wait_ns,
                told.activity.counters.sync_pages_ns,
                told.activity.counters.syncs
            ) = (10, 9, 1))),
            ["dirty_sync"]
        );
        let scattered = told(|told| told.extents = 1000);
        assert_eq!(kinds(&scattered), ["fragmented"]);
        assert!(of(&scattered)[0].change.contains("bedplate defrag /mnt/f"));
        let cache = |hits| {
            told(|told| {
                told.activity.effective_mode = Some(IoMode::ConcurrentCache);
                (told.activity.counters.cache_hits, told.activity.counters.cache_misses) =
                    (hits, 1000);
            })
        };
        assert_eq!(kinds(&cache(10)), ["poor_cache"]);
        assert!(kinds(&cache(900)).is_empty());
    }
}
