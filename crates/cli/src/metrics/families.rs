//! The metrics by name. A name, once here, keeps its meaning: dashboards and alarms hang on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate::{
    CounterSnapshot, FileActivity, FilePath, FileSystem, FsInfo, InodeNo, IntegrityCounts,
    LatencySnapshot, LeaseReport, MapCounts, MemberState, MemberStatistics, OperationStatistics,
    Reason, WeakGroup,
};
use bedplate_serve::fuse::ServingThreads;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{states, threads};

/// Names before all others.
const PREFIX: &str = "bedplate";
/// Bounds of the histograms: powers of two of a microsecond, up to 8 s.
const BOUNDS: u32 = 24;
/// Files asked for at once.
const PAGE: usize = 1024;

/// A count of files that is told as it is.
type Count = (&'static str, &'static str, fn(&CounterSnapshot) -> u64);

const COUNTS: [Count; 14] = [
    ("reads", "Reads served", |c| c.reads),
    ("read_bytes", "Bytes read", |c| c.read_bytes),
    ("writes", "Writes served", |c| c.writes),
    ("written_bytes", "Bytes written", |c| c.written_bytes),
    ("direct", "Reads and writes that went straight to the device", |c| c.direct),
    ("misaligned", "Reads and writes that went through a bounce buffer", |c| c.misaligned),
    ("cache_hits", "Reads answered by the library cache", |c| c.cache_hits),
    ("cache_misses", "Reads through the library cache that went to the device", |c| c.cache_misses),
    ("released_bytes", "Bytes that left a cache behind sequential I/O", |c| c.released_bytes),
    ("delayed", "Writes that waited in memory to be written in larger pieces", |c| c.delayed),
    ("window_hits", "Reads answered from what was read ahead past the caches", |c| c.window_hits),
    ("large", "Reads and writes that passed the library cache because they are large", |c| c.large),
    ("mode_transitions", "Changes to cached and back because opens conflicted", |c| {
        c.mode_transitions
    }),
    ("syncs", "Syncs asked for", |c| c.syncs),
];

const TIMES: [Count; 2] = [
    ("sync_wait_seconds", "Time that syncs took", |c| c.sync_wait_ns),
    ("sync_pages_seconds", "Part of it that went into writing dirty pages first", |c| {
        c.sync_pages_ns
    }),
];

/// What the metrics are taken from.
pub(super) struct Source {
    fs: FileSystem,
    group: Option<WeakGroup>,
    files: usize,
    /// Where it is mounted, the label of all.
    mount: String,
    /// What serves the mount, from when that is there.
    serving: Arc<OnceLock<Arc<ServingThreads>>>,
    /// Names found before; checked before they are told.
    names: Mutex<HashMap<InodeNo, FilePath>>,
}

impl Source {
    pub(super) fn new(
        fs: FileSystem,
        group: Option<WeakGroup>,
        files: usize,
        mount: String,
    ) -> Self {
        Self { fs, group, files, mount, serving: Arc::default(), names: Mutex::default() }
    }

    /// Returns where the threads are named that serve, once there are any.
    pub(super) fn serving(&self) -> Arc<OnceLock<Arc<ServingThreads>>> {
        Arc::clone(&self.serving)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("files", &self.files).finish_non_exhaustive()
    }
}

pub(super) fn registry(source: Source) -> Registry {
    let mut labels = vec![("mount".into(), source.mount.clone().into())];
    if let Some(group) = source.group.as_ref().and_then(WeakGroup::upgrade) {
        labels.push(("group".into(), group.config().name.into()));
    }
    let mut registry = Registry::with_prefix_and_labels(PREFIX, labels.into_iter());
    registry.register_collector(Box::new(source));
    registry
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let info = self.fs.info();
        volume(&mut out, &info)?;
        counters(&mut out, &info)?;
        machinery(&mut out, &info)?;
        if let Some(serving) = self.serving.get() {
            threads::serving(&mut out, &serving.report())?;
        }
        if let Some(told) = &info.io_threads {
            threads::io(&mut out, told)?;
        }
        if let Some(told) = self.fs.lease_report() {
            leases(&mut out, &told)?;
        }
        states::checkpoints(&mut out, &info, &self.fs.checkpoints(), &self.fs.schedules())?;
        if let Some(group) = self.group.as_ref().and_then(WeakGroup::upgrade) {
            members(&mut out, &group)?;
            states::group(&mut out, &group)?;
        }
        if self.files > 0 { self.busiest(&mut out) } else { Ok(()) }
    }
}

fn volume(out: &mut Out<'_>, info: &FsInfo) -> fmt::Result {
    let labels = [
        ("uuid", info.uuid.as_str()),
        ("mode", info.mode.name()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    out.gauges("mount", "1, with what the volume is", [(labels, 1)])?;
    out.gauge(
        "failed",
        "1 after a failed write or flush made the volume read-only",
        info.failed.is_some().into(),
    )?;
    out.gauge("size_bytes", "Size of the file system", info.size_bytes)?;
    out.gauge("free_bytes", "Free bytes", info.free_bytes)?;
    out.gauge("free_runs", "Runs that the free space is cut into", info.free_runs)?;
    out.gauge("metadata_bytes", "Bytes of the metadata region", info.metadata_bytes)?;
    out.gauge("inodes", "Inodes in use", info.inodes)
}

fn counters(out: &mut Out<'_>, info: &FsInfo) -> fmt::Result {
    for (name, help, value) in COUNTS {
        out.counter(name, help, value(&info.counters))?;
    }
    for (name, help, ns) in TIMES {
        out.seconds(name, help, ns(&info.counters))?;
    }
    let reasons =
        Reason::ALL.map(|reason| ([("reason", reason.name())], info.counters.reason(reason)));
    out.counters(
        "not_as_asked",
        "Reads and writes that were not served as their mode asks, by reason",
        reasons,
    )?;
    out.counters(
        "waits",
        "Waits of reads and writes by what they waited for; those for the device, and for a thread \
         of the I/O engine, from a sample",
        info.waits.by_name().map(|(class, time)| ([("class", class)], time.count)),
    )?;
    out.seconds_counters(
        "wait_seconds",
        "How long they took",
        info.waits.by_name().map(|(class, time)| ([("class", class)], time.ns)),
    )?;
    let latencies = [
        ("read", &info.latencies.read),
        ("write", &info.latencies.write),
        ("sync", &info.latencies.sync),
    ];
    out.histograms(
        "operation_seconds",
        "How long operations took; of fast reads and writes a sample is timed, each counted for \
         those it stands for",
        latencies,
    )
}

/// Checksums of file data and of the metadata tree.
fn integrity(out: &mut Out<'_>, sums: &IntegrityCounts) -> fmt::Result {
    out.counter(
        "integrity_verified_blocks",
        "Blocks that were compared with their checksums",
        sums.verified_blocks,
    )?;
    out.counter(
        "integrity_wrong_blocks",
        "Blocks that were not what was written",
        sums.wrong_blocks,
    )?;
    out.counter(
        "integrity_healed_blocks",
        "Wrong blocks that were written over with a right copy",
        sums.healed_blocks,
    )?;
    out.counter(
        "integrity_lost_blocks",
        "Wrong blocks of which no copy was right",
        sums.lost_blocks,
    )?;
    out.counter(
        "metadata_verified_pages",
        "Reads of pages of the metadata tree that were compared with their checksums",
        sums.verified_pages,
    )?;
    out.counter(
        "metadata_healed_pages",
        "Wrong pages of the metadata that were written over with a right copy",
        sums.healed_pages,
    )?;
    out.counter(
        "metadata_lost_pages",
        "Wrong pages of the metadata of which no copy was right",
        sums.lost_pages,
    )
}

fn maps(out: &mut Out<'_>, maps: &MapCounts) -> fmt::Result {
    out.gauge("map_bytes", "Memory that the extent maps of files take", maps.bytes)?;
    out.gauge("map_bytes_max", "Cap of that memory", maps.bytes_max)?;
    out.counter(
        "map_misses",
        "Parts of maps that were read because they were needed",
        maps.misses,
    )?;
    out.counter("map_evictions", "Parts of maps that left memory for the cap", maps.evictions)
}

fn machinery(out: &mut Out<'_>, info: &FsInfo) -> fmt::Result {
    out.counter("lock_waits", "Waits for an inode lock or a byte range", info.lock_waits)?;
    integrity(out, &info.integrity)?;
    out.gauge("delayed_bytes", "Memory that delayed writes take", info.delayed_bytes)?;
    out.gauge("window_bytes", "Memory that is read ahead past the caches", info.window_bytes)?;
    maps(out, &info.maps)?;
    out.gauge("log_size_bytes", "Size of the intent log", info.log.size_bytes)?;
    out.gauge("log_used_bytes", "Bytes of the intent log in use", info.log.used_bytes)?;
    out.counter("log_writes", "Writes of the intent log", info.log.writes)?;
    out.counter("log_syncs", "Syncs served by the log", info.log.syncs)?;
    out.counter("flushes", "Flushes asked of the device", info.log.flushes)?;
    out.counter("metadata_commits", "Durable commits of the metadata", info.log.metadata_commits)?;
    let cache = &info.cache;
    out.gauge("cache_resident_bytes", "Bytes of pages in the library cache", cache.resident_bytes)?;
    out.gauge(
        "cache_dirty_bytes",
        "Bytes of it that are dirty or being written",
        cache.dirty_bytes,
    )?;
    out.counter("cache_evicted_pages", "Pages evicted to make room", cache.evictions)?;
    out.counter(
        "cache_released_pages",
        "Pages that left behind a sequential read or write",
        cache.released,
    )?;
    out.counter(
        "read_ahead_issued_pages",
        "Pages asked for by read-ahead",
        cache.read_ahead_issued,
    )?;
    out.counter("read_ahead_used_pages", "Pages read ahead and then used", cache.read_ahead_used)?;
    out.counter(
        "read_ahead_wasted_pages",
        "Pages read ahead and forgotten unused",
        cache.read_ahead_wasted,
    )?;
    out.counter(
        "write_behind_writes",
        "Device writes made by write-behind, flushes and the sync daemon",
        cache.write_behind_runs,
    )?;
    out.counter("write_behind_bytes", "Bytes of these writes", cache.write_behind_bytes)?;
    out.counter(
        "writers_throttled",
        "Times a writer had to write back pages before it could go on",
        cache.throttled,
    )
}

/// What programs did on the device by themselves; told where the mount hands out leases.
fn leases(out: &mut Out<'_>, told: &LeaseReport) -> fmt::Result {
    let named = |counts: &[(String, u64)]| -> Vec<([(&str, String); 1], u64)> {
        counts.iter().map(|(name, count)| ([("reason", name.clone())], *count)).collect()
    };
    let total = &told.total;
    let done = [("read", total.reads), ("write", total.writes), ("sync", total.syncs)];
    out.counters(
        "leased_operations",
        "Reads, writes and syncs that programs made on the device under leases, as they say",
        done.map(|(operation, count)| ([("operation", operation)], count)),
    )?;
    out.counter(
        "lease_cache_hits",
        "Reads of programs that found their pages in the cache, without a request, as they say",
        total.hits,
    )?;
    out.counters(
        "lease_fallbacks",
        "Calls on leased files that went through the mount, by reason",
        named(&total.fallbacks),
    )?;
    out.counters(
        "lease_refusals",
        "Requests for leases that were refused, by reason",
        named(&total.refused),
    )?;
    out.gauge("lease_processes", "Processes that have leases", told.clients.len() as u64)?;
    out.gauge("lease_files", "Files that are leased", told.files.len() as u64)?;
    out.counter("lease_revocations", "Times a file was taken back", told.revocations)?;
    out.counter(
        "lease_tails",
        "Times a process got blocks behind the end of a file, to make it grow by itself",
        told.tails,
    )?;
    out.counter(
        "lease_append_buffers",
        "Times a process got a buffer for what it appends to a file that rests on the mount",
        told.buffers,
    )?;
    out.counter(
        "lease_long_waits",
        "Times that took more than 100 ms because a process did not go on",
        told.long_waits,
    )?;
    out.counter(
        "lease_request_waits",
        "Times a file was taken back while asynchronous requests on it were in flight",
        told.request_waits,
    )?;
    out.gauge(
        "lease_waits",
        "Files for which a process that does not go on is waited for at this moment",
        told.waits.len() as u64,
    )?;
    out.counter(
        "lease_processes_killed",
        "Processes that were ended because they did not go on (lease-kill=)",
        told.killed,
    )
}

/// What every member of a group did.
fn members(out: &mut Out<'_>, group: &bedplate::Group) -> fmt::Result {
    let (config, statistics) = (group.config(), group.statistics());
    let name = |at: usize| config.members[at].path.clone();
    let members = config.members.iter().filter(|member| !member.is_vacant());
    let active = members.map(|member| {
        ([("member", member.path.clone())], u64::from(member.state == MemberState::Active))
    });
    out.gauges("member_active", "1 while a member holds everything it should", active)?;
    let known: Vec<_> = statistics
        .iter()
        .enumerate()
        .filter_map(|(at, told)| Some((name(at), told.as_ref()?)))
        .collect();
    let each = |pick: fn(&OperationStatistics) -> u64| {
        known.iter().flat_map(move |(member, told)| {
            [("read", &told.reads), ("write", &told.writes), ("flush", &told.flushes)].map(
                |(operation, of)| {
                    ([("member", member.clone()), ("operation", operation.to_owned())], pick(of))
                },
            )
        })
    };
    out.counters("member_operations", "Operations of a member", each(|of| of.operations))?;
    out.counters("member_bytes", "Bytes moved by them", each(|of| of.bytes))?;
    out.counters("member_errors", "Operations that failed", each(|of| of.errors))?;
    out.seconds_gauges(
        "member_operation_p99_seconds",
        "99th percentile of how long they took",
        each(|of| of.time_us_p99).map(|(labels, us)| (labels, us as f64 / 1e6)),
    )?;
    out.counters(
        "member_corrected",
        "Bad reads mended from other members",
        known.iter().map(|(member, told)| ([("member", member.clone())], told.corrected)),
    )?;
    let times = |pick: fn(&MemberStatistics) -> u64| {
        known.iter().map(move |(member, told)| {
            ([("member", member.clone())], pick(told).saturating_mul(1000))
        })
    };
    out.seconds_counters(
        "member_busy_seconds",
        "Time in which at least one operation was under way; its rate is the member's utilisation",
        times(|told| told.busy_us),
    )?;
    out.seconds_counters(
        "member_queued_seconds",
        "Time of all operations under way together; its rate is the mean depth of the queue",
        times(|told| told.queued_us),
    )?;
    out.gauges(
        "member_queue_depth",
        "Operations under way",
        known.iter().map(|(member, told)| ([("member", member.clone())], told.queue_depth)),
    )
}

impl Source {
    /// The busiest files, by operations since they were loaded.
    fn busiest(&self, out: &mut Out<'_>) -> fmt::Result {
        let mut files: Vec<FileActivity> = Vec::new();
        let mut after = InodeNo(0);
        loop {
            let page = self.fs.activities(after, PAGE);
            let Some(last) = page.last() else { break };
            after = last.ino;
            files.extend(page);
            files.sort_by_key(|file| std::cmp::Reverse(file.counters.reads + file.counters.writes));
            files.truncate(self.files);
        }
        let named = self.named(&files);
        for (name, help, value) in COUNTS {
            let values =
                named.iter().map(|(path, file)| ([("file", path.clone())], value(&file.counters)));
            out.counters(
                &format!("file_{name}"),
                &format!("{help}, of the busiest files"),
                values,
            )?;
        }
        let waits = named.iter().flat_map(|(path, file)| {
            let labels = move |class: &str| [("file", path.clone()), ("class", class.to_owned())];
            file.waits.by_name().map(move |(class, time)| (labels(class), time.ns))
        });
        out.seconds_counters(
            "file_wait_seconds",
            "How long reads and writes waited, by what they waited for, of the busiest files",
            waits,
        )?;
        let p99 = |of: fn(&FileActivity) -> &LatencySnapshot| {
            named.iter().filter_map(move |(path, file)| {
                Some(([("file", path.clone())], of(file).percentile_ns(0.99)? as f64 / 1e9))
            })
        };
        out.seconds_gauges(
            "file_read_p99_seconds",
            "99th percentile of how long reads took, of the busiest files",
            p99(|file| &file.latencies.read),
        )?;
        out.seconds_gauges(
            "file_write_p99_seconds",
            "99th percentile of how long writes took, of the busiest files",
            p99(|file| &file.latencies.write),
        )
    }

    /// Adds names; a file without one is left out.
    fn named<'a>(&self, files: &'a [FileActivity]) -> Vec<(String, &'a FileActivity)> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |ino: &InodeNo, place: &FilePath| {
            self.fs.lookup(place.dir, &place.name).is_ok_and(|attr| attr.ino == *ino)
        };
        let before = names.len();
        names.retain(|ino, place| files.iter().any(|file| file.ino == *ino) && still(ino, place));
        if names.len() < before {
            // It may have been a directory above that moved.
            names.clear();
        }
        let unknown: Vec<InodeNo> =
            files.iter().map(|file| file.ino).filter(|ino| !names.contains_key(ino)).collect();
        if !unknown.is_empty() {
            names.extend(self.fs.paths_of(&unknown).unwrap_or_default());
        }
        files
            .iter()
            .filter_map(|file| Some((bedplate::readable_name(&names.get(&file.ino)?.path), file)))
            .collect()
    }
}

/// Writes metrics one by one.
pub(super) struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(
            name,
            help,
            None,
            MetricType::Counter,
        )?)
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, ns: u64) -> fmt::Result {
        ConstCounter::new(ns as f64 / 1e9).encode(self.0.encode_descriptor(
            name,
            help,
            None,
            MetricType::Counter,
        )?)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(
            name,
            help,
            None,
            MetricType::Gauge,
        )?)
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values.into_iter().try_for_each(|(labels, value)| {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)
        })
    }

    /// Lengths of time that add up, in nanoseconds.
    pub(super) fn seconds_counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values.into_iter().try_for_each(|(labels, ns)| {
            ConstCounter::new(ns as f64 / 1e9).encode(family.encode_family(&labels)?)
        })
    }

    pub(super) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)
        })
    }

    /// Times and lengths of time, which are fractions.
    pub(super) fn seconds_gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)
        })
    }

    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        values: [(&str, &LatencySnapshot); 3],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (operation, snapshot) in values {
            let mut below = 0;
            let mut buckets: Vec<(f64, u64)> = (0..BOUNDS)
                .map(|power| {
                    let upto = snapshot.count_up_to(1000 << power);
                    (1e-6 * f64::from(1_u32 << power), upto - std::mem::replace(&mut below, upto))
                })
                .collect();
            buckets.push((f64::INFINITY, snapshot.count - below));
            let labels = [("operation", operation)];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                snapshot.sum_ns as f64 / 1e9,
                snapshot.count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}
