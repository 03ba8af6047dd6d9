//! Tunables: what can be set of a file system, in one table. Listing, validation, mount options and
//! the guide all come from it.
//!
//! ```text
//!   mount option ──► stored in the volume ──► default         which value a mount begins with; what comes first counts
//!                          ▲
//!   FileSystem::tune ──────┴──► in effect at once, or from the next mount: the table says which
//! ```
//!
//! - I-TUNE-1: a value in effect, or stored by [`tune`](crate::FileSystem::tune), lies in its
//!   range; one that a volume holds and does not is not taken.

use serde::{Deserialize, Serialize};

use super::{MountOptions, Unit};
use crate::{Error, ErrorKind, IoMode, ReleaseBehind, Result};

/// The most requests that a front end serves at once.
pub(super) const THREADS_MAX: u64 = 1024;

/// The largest I/O size that programs are told to prefer.
const PREFERRED_IO_MAX: u64 = 64 << 20;

/// Something that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tunable {
    /// The I/O mode of files that neither an open, nor the file, nor its directory gives one.
    Mode,
    /// Cap of the library cache.
    Cache,
    /// First read-ahead window.
    ReadAheadMin,
    /// Largest read-ahead window.
    ReadAheadMax,
    /// Share of the cache that may be dirty before write-behind begins.
    WriteBehindStart,
    /// Share of the cache that may be dirty before writers wait.
    WriteBehindMax,
    /// How many clusters of a file are complete before they are written behind.
    WriteBehindClusters,
    /// How many pages of a file, written at random, may be dirty before write-behind begins.
    WriteBehindRandom,
    /// How often the sync daemon works.
    Sync,
    /// Of how many reads and writes one is timed.
    LatencySample,
    /// How many bytes of a file are wanted in one run of the volume.
    ExtentSize,
    /// Which pages leave the caches behind a sequential read or write.
    ReleaseBehind,
    /// How many bytes a second are moved in the background to put scattered files together.
    DefragRate,
    /// From how many operations a second on that waits.
    DefragLoad,
    /// How much of writes that make uncached files grow is delayed at most.
    DelayWrites,
    /// How much is read ahead past the caches at most.
    ReadWindow,
    /// From which size on aligned I/O passes the library cache.
    DirectAbove,
    /// The I/O size that programs are told to prefer.
    PreferredIo,
    /// Cap of the extent maps in memory.
    Maps,
    /// Whether the device is told of blocks as they become free.
    Discard,
    /// Requests that a front end serves at once.
    Threads,
    /// Cap of the metadata tree's cache.
    MetadataCache,
    /// Size of the intent log.
    LogSize,
    /// Allocation unit.
    BlockSize,
}

/// When a change counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Takes {
    /// At once, and where it is stored also at every later mount.
    Live,
    /// As a mount option only: it is needed before the volume can be read.
    MountOption,
    /// Never: it is set when the volume is formatted.
    Format,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TunableInfo {
    /// Which.
    #[serde(skip)]
    pub tunable: Tunable,
    /// Its name.
    pub name: &'static str,
    /// How its values are written.
    pub unit: Unit,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// When a change counts.
    pub takes: Takes,
    /// The mount or format option that sets it too.
    pub option: &'static str,
    /// What it does, in one sentence.
    pub effect: &'static str,
}

const fn row(
    tunable: Tunable,
    name: &'static str,
    unit: Unit,
    range: (u64, u64),
    takes: Takes,
    option: &'static str,
    effect: &'static str,
) -> TunableInfo {
    TunableInfo { tunable, name, unit, min: range.0, max: range.1, takes, option, effect }
}

const SECOND: u64 = 1_000_000_000;

/// All that can be set, in the order of [`Tunable`].
pub const TUNABLES: [TunableInfo; 24] = {
    use Takes::{Format, Live, MountOption};
    use Unit::{Bytes, Duration, Mode, Number, Percent, Release, Switch};
    [
        row(
            Tunable::Mode,
            "mode",
            Mode,
            (1, 4),
            Live,
            "mode=",
            "I/O mode of files that neither their open nor they themselves nor their directory \
             give one",
        ),
        row(
            Tunable::Cache,
            "cache",
            Bytes,
            (0, 1 << 50),
            Live,
            "cache=",
            "cap of the library cache; a smaller one gives memory back at once",
        ),
        row(
            Tunable::ReadAheadMin,
            "read-ahead-min",
            Bytes,
            (0, 1 << 30),
            Live,
            "read-ahead-min=",
            "first read-ahead window; it doubles with every sequential hit",
        ),
        row(
            Tunable::ReadAheadMax,
            "read-ahead-max",
            Bytes,
            (0, 1 << 30),
            Live,
            "read-ahead-max=",
            "largest read-ahead window; 0 turns read-ahead off",
        ),
        row(
            Tunable::WriteBehindStart,
            "write-behind-start",
            Percent,
            (0, 75),
            Live,
            "write-behind-start=",
            "share of the cache that may be dirty before it is written in the background",
        ),
        row(
            Tunable::WriteBehindMax,
            "write-behind-max",
            Percent,
            (1, 75),
            Live,
            "write-behind-max=",
            "share of the cache that may be dirty before writers write back themselves",
        ),
        row(
            Tunable::WriteBehindClusters,
            "write-behind-clusters",
            Number,
            (0, 65_536),
            Live,
            "write-behind-clusters=",
            "clusters of 128 KiB of a file, dirty in a row, that are complete before they are \
             written in the background; 0: 1 MiB at a time",
        ),
        row(
            Tunable::WriteBehindRandom,
            "write-behind-random",
            Number,
            (0, 1 << 24),
            Live,
            "write-behind-random=",
            "pages of a file, written at random, that may be dirty before all of them are written \
             in the background; 0: any number",
        ),
        row(
            Tunable::Sync,
            "sync",
            Duration,
            (SECOND / 100, 86_400 * SECOND),
            Live,
            "sync=",
            "how often dirty pages, the log and, when due, the metadata are written",
        ),
        row(
            Tunable::LatencySample,
            "latency-sample",
            Number,
            (0, u32::MAX as u64),
            Live,
            "latency-sample=",
            "at least one read or write in so many is timed; 1 times all, 0 none",
        ),
        row(
            Tunable::ExtentSize,
            "extent-size",
            Bytes,
            (0, super::EXTENT_SIZE_MAX),
            Live,
            "extent-size=",
            "how much of a file is wanted in one run of the volume, where neither it nor its \
             directory says (bedplate extent-size); 0: whatever comes",
        ),
        row(
            Tunable::ReleaseBehind,
            "release-behind",
            Release,
            (0, 3),
            Live,
            "release-behind=",
            "which pages leave the caches behind a sequential read or write, where neither the \
             file nor its directory says (bedplate release-behind)",
        ),
        row(
            Tunable::DefragRate,
            "defrag-rate",
            Bytes,
            (0, 1 << 40),
            Live,
            "defrag-rate=",
            "how much is moved in a second, in the background, to put scattered files together; 0: \
             nothing",
        ),
        row(
            Tunable::DefragLoad,
            "defrag-load",
            Number,
            (0, u32::MAX as u64),
            Live,
            "defrag-load=",
            "reads, writes and syncs of programs in a second above which nothing is moved",
        ),
        row(
            Tunable::DelayWrites,
            "delay-writes",
            Bytes,
            (0, 1 << 40),
            Live,
            "delay-writes=",
            "how much of writes of up to 1 MiB that make files grow past the caches, or write over them in order, waits in memory at most, to be written in large pieces; 0: nothing",
        ),
        row(
            Tunable::ReadWindow,
            "read-window",
            Bytes,
            (0, 1 << 40),
            Live,
            "read-window=",
            "how much is read ahead at most of files that are read in order past the caches; 0: nothing",
        ),
        row(
            Tunable::DirectAbove,
            "direct-above",
            Bytes,
            (0, 1 << 40),
            Live,
            "direct-above=",
            "from which size on aligned reads and writes of cached files, and reads in \
             concurrent+cache, pass the library cache; 0: never",
        ),
        row(
            Tunable::PreferredIo,
            "preferred-io",
            Bytes,
            (0, PREFERRED_IO_MAX),
            Live,
            "preferred-io=",
            "the I/O size that a mount tells programs to prefer (st_blksize) for files past the \
             kernel's caches, rounded down to a power of two; 0: the allocation unit",
        ),
        row(
            Tunable::Maps,
            "maps",
            Bytes,
            (0, 1 << 50),
            Live,
            "maps=",
            "cap of what is in memory of where the data of files lies; what is not is read again",
        ),
        row(
            Tunable::Discard,
            "discard",
            Switch,
            (0, 1),
            Live,
            "discard=",
            "whether the device is told of blocks as they become free, in runs of 64 KiB or more",
        ),
        row(
            Tunable::Threads,
            "threads",
            Number,
            (1, THREADS_MAX),
            Live,
            "threads=",
            "requests that a mount serves at once, each by a thread of its own",
        ),
        row(
            Tunable::MetadataCache,
            "metadata-cache",
            Bytes,
            (0, 1 << 50),
            MountOption,
            "metadata-cache=",
            "cap of the cache of the metadata tree",
        ),
        row(
            Tunable::LogSize,
            "log-size",
            Bytes,
            (0, 1 << 30),
            Format,
            "--log-size",
            "size of the intent log, which `bedplate log resize` changes",
        ),
        row(
            Tunable::BlockSize,
            "block-size",
            Bytes,
            (512, 65_536),
            Format,
            "--block-size",
            "allocation unit",
        ),
    ]
};

impl Tunable {
    /// Returns its row of the table.
    #[must_use]
    pub fn info(self) -> &'static TunableInfo {
        &TUNABLES[self as usize]
    }

    /// Finds one by its name.
    ///
    /// # Errors
    /// `Invalid`: one sentence with all names.
    pub fn named(name: &str) -> Result<Self> {
        let known = || TUNABLES.iter().map(|info| info.name).collect::<Vec<_>>().join(", ");
        let found = TUNABLES.iter().find(|info| info.name == name);
        found.map(|info| info.tunable).ok_or_else(|| {
            let meant = super::meant(name, TUNABLES.iter().map(|info| info.name));
            Error::new(
                ErrorKind::Invalid,
                format!("there is no tunable '{name}'{meant}: known are {}", known()),
            )
        })
    }

    /// Reads a value and checks its range. That of [`Cache`](Self::Cache) may be a share of this
    /// process's memory, as in `10%`.
    ///
    /// # Errors
    /// `Invalid`: one sentence with what is allowed.
    pub fn parse(self, text: &str) -> Result<u64> {
        let info = self.info();
        let parsed = match text.strip_suffix('%') {
            Some(share) if info.unit == Unit::Bytes => super::share::parse(self, share),
            _ => info.unit.parse(text),
        };
        let value = parsed
            .map_err(|why| Error::new(ErrorKind::Invalid, format!("{}: {why}", info.name)))?;
        if self.allows(value) {
            Ok(value)
        } else {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("{}: {text} is not {}", info.name, info.range()),
            ))
        }
    }

    /// Returns whether a value lies in the range.
    #[must_use]
    pub fn allows(self, value: u64) -> bool {
        (self.info().min..=self.info().max).contains(&value)
    }

    /// Returns its default.
    #[must_use]
    pub fn default_value(self) -> u64 {
        self.of(&MountOptions::default())
    }

    /// Returns what mount options say; 0 of what is set by `format`.
    pub(crate) fn of(self, options: &MountOptions) -> u64 {
        match self {
            Self::Mode => options.mode as u64,
            Self::Cache => options.cache_bytes,
            Self::ReadAheadMin => options.read_ahead_bytes_min.into(),
            Self::ReadAheadMax => options.read_ahead_bytes_max.into(),
            Self::WriteBehindStart => options.write_behind_percent_start.into(),
            Self::WriteBehindMax => options.write_behind_percent_max.into(),
            Self::WriteBehindClusters => options.write_behind_clusters.into(),
            Self::WriteBehindRandom => options.write_behind_random.into(),
            Self::Sync => u64::try_from(options.sync_interval.as_nanos()).unwrap_or(u64::MAX),
            Self::LatencySample => options.latency_sample.into(),
            Self::ExtentSize => options.extent_size_bytes,
            Self::ReleaseBehind => options.release_behind as u64,
            Self::DefragRate => options.defrag_rate_bytes,
            Self::DefragLoad => options.defrag_load_max.into(),
            Self::DelayWrites => options.delay_writes_bytes,
            Self::ReadWindow => options.read_window_bytes,
            Self::DirectAbove => options.direct_above_bytes,
            Self::PreferredIo => options.preferred_io_bytes.into(),
            Self::Maps => options.map_bytes,
            Self::Discard => options.discard.into(),
            Self::Threads => options.threads.into(),
            Self::MetadataCache => options.metadata_cache_bytes,
            Self::LogSize | Self::BlockSize => 0,
        }
    }

    /// Sets a value, which lies in the range, in mount options.
    pub fn put(self, value: u64, options: &mut MountOptions) {
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Self::Mode => options.mode = mode_of(value),
            Self::Cache => options.cache_bytes = value,
            Self::ReadAheadMin => options.read_ahead_bytes_min = small,
            Self::ReadAheadMax => options.read_ahead_bytes_max = small,
            Self::WriteBehindStart => options.write_behind_percent_start = small,
            Self::WriteBehindMax => options.write_behind_percent_max = small,
            Self::WriteBehindClusters => options.write_behind_clusters = small,
            Self::WriteBehindRandom => options.write_behind_random = small,
            Self::Sync => options.sync_interval = std::time::Duration::from_nanos(value),
            Self::LatencySample => options.latency_sample = small,
            Self::ExtentSize => options.extent_size_bytes = value,
            Self::ReleaseBehind => {
                options.release_behind = ReleaseBehind::of_code(value).unwrap_or_default();
            }
            Self::DefragRate => options.defrag_rate_bytes = value,
            Self::DefragLoad => options.defrag_load_max = small,
            Self::DelayWrites => options.delay_writes_bytes = value,
            Self::ReadWindow => options.read_window_bytes = value,
            Self::DirectAbove => options.direct_above_bytes = value,
            Self::PreferredIo => options.preferred_io_bytes = small,
            Self::Maps => options.map_bytes = value,
            Self::Discard => options.discard = value != 0,
            Self::Threads => options.threads = small,
            Self::MetadataCache => options.metadata_cache_bytes = value,
            Self::LogSize | Self::BlockSize => {}
        }
    }
}

/// Returns the mode of a number in the range of [`Tunable::Mode`].
pub(crate) fn mode_of(value: u64) -> IoMode {
    IoMode::ALL[usize::try_from(value).unwrap_or(1).clamp(1, 4) - 1]
}

impl TunableInfo {
    /// Returns what is allowed, in words.
    #[must_use]
    pub fn range(&self) -> String {
        match self.unit {
            Unit::Mode => format!("one of {}", IoMode::ALL.map(IoMode::name).join(", ")),
            Unit::Release => {
                format!("one of {}", ReleaseBehind::ALL.map(ReleaseBehind::name).join(", "))
            }
            Unit::Switch => "one of off, on".to_owned(),
            unit => format!("from {} to {}", unit.format(self.min), unit.format(self.max)),
        }
    }
}

/// Where the value in effect comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TunedBy {
    /// It was not set.
    Default,
    /// It is stored in the volume.
    Volume,
    /// A mount option.
    MountOption,
    /// It was set since the mount, and not stored.
    Live,
    /// `format`.
    Format,
}

/// How a tunable stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunableState {
    /// Its name.
    pub name: String,
    /// How values are written.
    pub unit: Unit,
    /// The value in effect.
    pub value: u64,
    /// Where that comes from.
    pub by: TunedBy,
    /// The value stored in the volume.
    pub stored: Option<u64>,
    /// The default; `None` of what is set by `format`.
    pub default: Option<u64>,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// When a change counts.
    pub takes: Takes,
    /// The mount or format option that sets it too.
    pub option: String,
    /// What it does.
    pub effect: String,
}

/// A change of tunables.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TuneOptions {
    /// What to set; `None`: back to the default, and nothing stored.
    pub changes: Vec<(Tunable, Option<u64>)>,
    /// Until the unmount only: the volume keeps what it holds.
    pub live_only: bool,
}

/// Checks what two tunables must be to each other.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_pairs(options: &MountOptions) -> Result<()> {
    for (low, high) in [
        (Tunable::ReadAheadMin, Tunable::ReadAheadMax),
        (Tunable::WriteBehindStart, Tunable::WriteBehindMax),
    ] {
        // A largest window of 0 turns read-ahead off, whatever the first one is.
        let off = high == Tunable::ReadAheadMax && high.of(options) == 0;
        if low.of(options) > high.of(options) && !off {
            let (low, high, unit) = (
                (low.info().name, low.of(options)),
                (high.info().name, high.of(options)),
                low.info().unit,
            );
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} would be {}, more than {}, which is {}: set both",
                    low.0,
                    unit.format(low.1),
                    high.0,
                    unit.format(high.1)
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
