//! What went directly, told at the end of a program: the sum over its processes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Where the library finds the place of its report.
pub const VARIABLE: &str = "BEDPLATE_LEASE_REPORT";

/// How each line of the library begins.
const HEAD: &str = "bedplate-lease:";

/// How each line of the library on files past the page cache begins.
const DIRECT_HEAD: &str = "bedplate-direct:";

/// A file to which each process adds a line; removed when dropped.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
}

/// The sums.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeaseTotals {
    processes: u64,
    reads: u64,
    writes: u64,
    syncs: u64,
    /// Reads that found their pages in the cache of the mount.
    hits: u64,
    /// Calls on leased files that went to the mount, by reason.
    through_the_mount: BTreeMap<String, u64>,
    /// Files that got no lease, by reason.
    refused: BTreeMap<String, u64>,
    /// What went past the page cache of other file systems, and what did not: absent without
    /// `--direct`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    direct: BTreeMap<String, u64>,
}

impl Report {
    /// Makes the file, which only this user may read.
    pub fn new() -> Result<Self> {
        let name = format!("bedplate-run-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.map_err(|error| Failure::system("make", &path, &error))?;
        Ok(Self { path })
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what the processes told.
    pub fn told(&self) -> LeaseTotals {
        let text = std::fs::read(&self.path).unwrap_or_default();
        LeaseTotals::of(&String::from_utf8_lossy(&text))
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("{} stays: {error}", self.path.display());
        }
    }
}

impl LeaseTotals {
    fn of(text: &str) -> Self {
        let mut told = Self::default();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix(HEAD) {
                told.processes += 1;
                counts(line).for_each(|(name, count)| told.add(name, count));
            } else if let Some(line) = line.strip_prefix(DIRECT_HEAD) {
                let counts = counts(line).filter(|(name, _)| *name != "pid");
                counts.for_each(|(name, n)| *told.direct.entry(name.to_owned()).or_default() += n);
            }
        }
        told
    }

    fn add(&mut self, name: &str, count: u64) {
        match name {
            "pid" => {}
            "reads" => self.reads += count,
            "writes" => self.writes += count,
            "syncs" => self.syncs += count,
            "hits" => self.hits += count,
            _ => match name.strip_prefix("refused-") {
                Some(reason) => *self.refused.entry(reason.to_lowercase()).or_default() += count,
                None => *self.through_the_mount.entry(name.to_owned()).or_default() += count,
            },
        }
    }
}

/// The words of a line that count something.
fn counts(line: &str) -> impl Iterator<Item = (&str, u64)> {
    let words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words.map(|(name, count)| (name, count.parse().unwrap_or(0)))
}

impl fmt::Display for LeaseTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<String, u64>| {
            let told: Vec<_> =
                counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if told.is_empty() { "none".to_owned() } else { told.join(", ") }
        };
        if !self.direct.is_empty() {
            let of = |name: &str| self.direct.get(name).copied().unwrap_or(0);
            let (files, refused) = (of("files"), of("refused"));
            writeln!(
                f,
                "past the cache    {} reads, {} writes ({} of them copied), {files} files",
                of("reads"),
                of("writes"),
                of("bounced")
            )?;
            let (odd, failed) = (of("buffered-writes"), of("failed"));
            let told = "writes of parts of blocks";
            write!(f, "through the cache {odd} {told}, {failed} refused calls, {refused} files")?;
            if self.processes == 0 {
                return Ok(());
            }
            writeln!(f)?;
        }
        if self.processes == 0 {
            return write!(
                f,
                "no process of the program opened a file of a mount with the library"
            );
        }
        writeln!(
            f,
            "on the device     {} reads, {} writes, {} syncs",
            self.reads, self.writes, self.syncs
        )?;
        writeln!(f, "in the cache      {} reads", self.hits)?;
        writeln!(f, "through the mount {}", list(&self.through_the_mount))?;
        writeln!(f, "not leased        {}", list(&self.refused))?;
        write!(f, "processes         {}", self.processes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_all_processes_are_summed() {
        let text = "bedplate-lease: pid=7 reads=10 writes=2 syncs=1 hits=5 unaligned=3\n\
                    anything else\n\
                    bedplate-lease: pid=8 reads=1 writes=0 syncs=0 unaligned=1 refused-Mode=2\n";
        let told = LeaseTotals::of(text);
        assert_eq!((told.processes, told.reads, told.writes, told.syncs), (2, 11, 2, 1));
        assert_eq!(told.through_the_mount.get("unaligned"), Some(&4));
        assert_eq!(told.refused.get("mode"), Some(&2));
        let shown = told.to_string();
        assert!(shown.contains("in the cache      5 reads"), "{shown}");
        assert!(shown.contains("11 reads, 2 writes, 1 syncs") && shown.contains("unaligned 4"));
        assert_eq!(LeaseTotals::of("").to_string().lines().count(), 1);
        let text = "bedplate-direct: pid=7 files=2 reads=5 writes=1 bounced=3 buffered-writes=4\n\
                    bedplate-direct: pid=8 files=1 reads=5 refused=6\n";
        let shown = LeaseTotals::of(text).to_string();
        assert!(shown.contains("10 reads, 1 writes (3 of them copied), 3 files"), "{shown}");
        assert!(shown.contains("4 writes of parts of blocks, 0 refused calls, 6 files"), "{shown}");
    }
}
