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
    /// Calls on leased files that went to the mount, by reason.
    through_the_mount: BTreeMap<String, u64>,
    /// Files that got no lease, by reason.
    refused: BTreeMap<String, u64>,
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
        for line in text.lines().filter_map(|line| line.strip_prefix(HEAD)) {
            told.processes += 1;
            for (name, count) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
                told.add(name, count.parse().unwrap_or(0));
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
            _ => match name.strip_prefix("refused-") {
                Some(reason) => *self.refused.entry(reason.to_lowercase()).or_default() += count,
                None => *self.through_the_mount.entry(name.to_owned()).or_default() += count,
            },
        }
    }
}

impl fmt::Display for LeaseTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<String, u64>| {
            let told: Vec<_> =
                counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if told.is_empty() { "none".to_owned() } else { told.join(", ") }
        };
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
        let text = "bedplate-lease: pid=7 reads=10 writes=2 syncs=1 unaligned=3\n\
                    anything else\n\
                    bedplate-lease: pid=8 reads=1 writes=0 syncs=0 unaligned=1 refused-Mode=2\n";
        let told = LeaseTotals::of(text);
        assert_eq!((told.processes, told.reads, told.writes, told.syncs), (2, 11, 2, 1));
        assert_eq!(told.through_the_mount.get("unaligned"), Some(&4));
        assert_eq!(told.refused.get("mode"), Some(&2));
        let shown = told.to_string();
        assert!(shown.contains("11 reads, 2 writes, 1 syncs") && shown.contains("unaligned 4"));
        assert_eq!(LeaseTotals::of("").to_string().lines().count(), 1);
    }
}
