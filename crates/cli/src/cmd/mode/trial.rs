//! A trial of another I/O mode on a live file: measured before and during, kept or taken back, and
//! remembered with the file.

use std::cell::OnceCell;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bedplate::{FileActivity, IoMode, LatencySnapshot, Timestamp};
use rustix::fs::{Mode, OFlags, XattrFlags, setxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cmd::mode::condition::{Of, Quantity, Statistic, change};
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::mount::watch::short;
use crate::render::text;

/// Fewer timed operations say nothing of a percentile.
const TIMED_MIN: u64 = 30;

/// What became of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is under way.
    Running,
    /// The new mode stays.
    Kept,
    /// The file is served as before.
    Reverted,
}

/// A trial, as it is stored with the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Trial {
    /// When it began, in nanoseconds since 1970.
    pub began: i64,
    /// The mode that was set on the file before; `None`: none.
    pub mode_before: Option<String>,
    /// How it was served before.
    pub served_before: String,
    /// The mode that was tried.
    pub mode_tried: String,
    /// When it was to be kept.
    pub keep_if: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// What was measured before.
    pub before: Measured,
    /// What was measured in the mode that was tried.
    pub after: Option<Measured>,
    /// What to know of the comparison.
    pub note: Option<String>,
}

/// What a file did in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its length.
    pub seconds: f64,
    /// Reads and writes.
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Share of the reads through the library cache that it answered; `None` when none went through
    /// it.
    pub hit_ratio: Option<f64>,
    /// Of reads and writes together.
    pub all: Latency,
    /// Of reads.
    pub read: Latency,
    /// Of writes.
    pub write: Latency,
    /// Of syncs.
    pub sync: Latency,
}

/// How long operations took; without values where too few were timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were timed.
    pub timed: u64,
    /// The average in nanoseconds.
    pub average_ns: Option<u64>,
    /// The median.
    pub p50_ns: Option<u64>,
    /// The 99th percentile.
    pub p99_ns: Option<u64>,
}

impl Latency {
    fn of(snapshot: &LatencySnapshot) -> Self {
        let enough = |value: Option<u64>| value.filter(|_| snapshot.timed >= TIMED_MIN);
        let at = |share| enough(snapshot.percentile_ns(share));
        Self {
            timed: snapshot.timed,
            average_ns: enough(snapshot.average_ns()),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
        }
    }
}

impl Measured {
    /// Returns what came between two looks at a file.
    pub fn between(earlier: &FileActivity, later: &FileActivity, seconds: f64) -> Self {
        let (counters, latencies) =
            (later.counters.since(&earlier.counters), later.latencies.since(&earlier.latencies));
        let through = counters.cache_hits + counters.cache_misses;
        let mut all = latencies.read.clone();
        all.add(&latencies.write);
        Self {
            seconds,
            operations: counters.reads + counters.writes,
            bytes: counters.read_bytes + counters.written_bytes,
            hit_ratio: (through > 0).then(|| counters.cache_hits as f64 / through as f64),
            all: Latency::of(&all),
            read: Latency::of(&latencies.read),
            write: Latency::of(&latencies.write),
            sync: Latency::of(&latencies.sync),
        }
    }

    /// Returns a quantity; `None` where it was not measured.
    pub fn value(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::Latency(of, statistic) => {
                let latency = match of {
                    Of::All => self.all,
                    Of::Read => self.read,
                    Of::Write => self.write,
                    Of::Sync => self.sync,
                };
                let ns = match statistic {
                    Statistic::Average => latency.average_ns,
                    Statistic::P50 => latency.p50_ns,
                    Statistic::P99 => latency.p99_ns,
                };
                ns.map(|ns| ns as f64)
            }
            Quantity::Throughput => Some(self.bytes as f64 / self.seconds),
            Quantity::Operations => Some(self.operations as f64 / self.seconds),
            // Nothing went through the cache: it answered nothing.
            Quantity::Hit => Some(self.hit_ratio.unwrap_or(0.0)),
        }
    }
}

/// Returns the last trial of a file.
pub fn of_file(path: &Path) -> Result<Option<Trial>> {
    let mut trial: Option<Trial> = live::get_as(path, live::TRIAL)?;
    if let Some(trial) = trial.as_mut().filter(|trial| trial.verdict == Verdict::Running)
        && live::get(path, live::TRIAL_MODE)?.is_none()
    {
        (trial.verdict, trial.reason) =
            (Verdict::Reverted, "its command or the mount was killed meanwhile".to_owned());
    }
    Ok(trial)
}

/// A file that is tried: the same one, whatever becomes of its name.
pub struct OnTrial {
    shown: PathBuf,
    /// Opened by its name only, which no program sees and no mode depends on.
    file: OwnedFd,
    /// Where the system has it.
    at: PathBuf,
    mode_tried: OnceCell<String>,
}

impl OnTrial {
    /// Takes a file on a mount.
    pub fn open(path: &Path) -> Result<Self> {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Failure::system("open", path, &e.into()))?;
        let at = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { shown: path.to_owned(), file, at, mode_tried: OnceCell::new() })
    }

    /// Returns the mode that is set on it.
    pub fn mode(&self) -> Result<Option<String>> {
        Ok(self.told(live::get(&self.at, live::MODE))?.filter(|mode| !mode.is_empty()))
    }

    /// Sets a mode on it.
    pub fn set_mode(&self, mode: &str) -> Result<()> {
        self.told(live::set(&self.at, live::MODE, mode))
    }

    /// Returns the mode it is served in.
    pub fn served(&self) -> Result<String> {
        self.told(live::get(&self.at, live::EFFECTIVE_MODE))?.ok_or_else(|| self.is_no_file())
    }

    /// Returns what it did so far.
    pub fn look(&self) -> Result<FileActivity> {
        self.told(live::get_as(&self.at, live::ACTIVITY))?.ok_or_else(|| self.is_no_file())
    }

    /// Remembers a trial with it.
    pub fn store(&self, trial: &Trial) -> Result<()> {
        let text = serde_json::to_string(trial)
            .map_err(|e| Failure::new("io", format!("the trial cannot be written as JSON: {e}")))?;
        self.told(live::set(&self.at, live::TRIAL, &text))
    }

    /// Lets it be served in a mode for as long as [`go_on`](Self::go_on) is called.
    pub fn begin(&self, mode: IoMode) -> Result<()> {
        let value = format!("{} {}", mode.name(), std::process::id());
        match setxattr(&self.at, live::TRIAL_MODE, value.as_bytes(), XattrFlags::CREATE) {
            Ok(()) => {
                self.mode_tried.get_or_init(|| value);
                Ok(())
            }
            Err(Errno::BUSY) => {
                let message = format!(
                    "{} is on another trial already: wait until that has ended",
                    self.shown.display()
                );
                Err(Failure::new("busy", message))
            }
            Err(error) => self.told(Err(live::refused("set", live::TRIAL_MODE, &self.at, error))),
        }
    }

    /// Tells the mount that the trial, if there is one, goes on.
    pub fn go_on(&self) -> Result<()> {
        let Some(value) = self.mode_tried.get() else { return Ok(()) };
        let gone = |why: &str| {
            Failure::new(
                "interrupted",
                format!(
                    "{} {why}: there is nothing to judge, and it is served as before",
                    self.shown.display()
                ),
            )
        };
        if rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0) {
            return Err(gone("was removed or replaced meanwhile"));
        }
        match setxattr(&self.at, live::TRIAL_MODE, value.as_bytes(), XattrFlags::REPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::NODATA) => Err(gone(
                "is not on trial any more, because this command was held up, or it was ended",
            )),
            Err(error) => self.told(Err(live::refused("set", live::TRIAL_MODE, &self.at, error))),
        }
    }

    /// Lets it be served as what is set on it.
    pub fn end(&self) -> Result<()> {
        self.told(live::remove(&self.at, live::TRIAL_MODE))
    }

    fn is_no_file(&self) -> Failure {
        Failure::usage(format!("{} is not a file: a trial needs one", self.shown.display()))
    }

    /// Names the file as its user did.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|failure| match failure.kind.as_str() {
            "stale_mount" => live::stale(&self.shown),
            _ => Failure {
                message: failure
                    .message
                    .replace(&*self.at.to_string_lossy(), &self.shown.to_string_lossy()),
                ..failure
            },
        })
    }
}

impl Trial {
    /// Tells of it in one line.
    pub fn line(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Running => "not ended",
            Verdict::Kept => "kept",
            Verdict::Reverted => "taken back",
        };
        format!(
            "{} instead of {} on {} UTC, {verdict}: {}",
            self.mode_tried,
            self.served_before,
            bedplate::format_time(Timestamp(self.began)),
            self.reason
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let quantity = |of, statistic| Quantity::Latency(of, statistic);
        let ns = |value: f64| short(Some(value as u64));
        let size = |value: f64| format!("{}/s", bedplate::format_size(value as u64));
        let plain = |value: f64| format!("{value:.0}/s");
        let ratio = |value: f64| format!("{:.1}%", value * 100.0);
        type Show<'a> = &'a dyn Fn(f64) -> String;
        let lines: [(&str, Quantity, Show<'_>); 8] = [
            ("p50", quantity(Of::All, Statistic::P50), &ns),
            ("p99", quantity(Of::All, Statistic::P99), &ns),
            ("average", quantity(Of::All, Statistic::Average), &ns),
            ("read.p99", quantity(Of::Read, Statistic::P99), &ns),
            ("write.p99", quantity(Of::Write, Statistic::P99), &ns),
            ("throughput", Quantity::Throughput, &size),
            ("operations", Quantity::Operations, &plain),
            ("hit", Quantity::Hit, &ratio),
        ];
        let mut rows = vec![vec![
            String::new(),
            self.served_before.clone(),
            self.mode_tried.clone(),
            "change".to_owned(),
        ]];
        for (name, quantity, show) in lines {
            let (before, after) = (
                self.before.value(quantity),
                self.after.as_ref().and_then(|after| after.value(quantity)),
            );
            let told = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), show);
            let changed = match (before, after) {
                (Some(before), Some(after)) if quantity == Quantity::Hit => {
                    format!("{:+.1} points", (after - before) * 100.0)
                }
                (Some(before), Some(after)) if before > 0.0 => {
                    format!("{:+.1}%", change(before, after))
                }
                _ => "-".to_owned(),
            };
            rows.push(vec![name.to_owned(), told(before), told(after), changed]);
        }
        rows
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::table(&self.rows(), &[1, 2, 3]))?;
        if let Some(note) = &self.note {
            writeln!(f, "note: {note}")?;
        }
        match self.verdict {
            Verdict::Kept => write!(f, "{} is kept: {}", self.mode_tried, self.reason),
            Verdict::Reverted => write!(f, "{} is back: {}", self.served_before, self.reason),
            Verdict::Running => write!(f, "not ended: {}", self.reason),
        }
    }
}
