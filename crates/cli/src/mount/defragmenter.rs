//! Background defragmentation of live mounts: what it does, and what it did between two looks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{DefragmenterReport, DefragmenterState, MovedFile, format_size};
use bedplate_serve::control::Request;
use serde::{Deserialize, Serialize};

use crate::failure::Result;
use crate::mount::Mount;
use crate::mount::live;
use crate::render::text;

/// What the daemon of a mount tells.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DefragmenterStatus {
    #[serde(flatten)]
    pub report: DefragmenterReport,
    /// Paths from the root of the file system, by inode number.
    paths: BTreeMap<u64, String>,
}

impl DefragmenterStatus {
    /// Asks a mount; `None` where its daemon does not tell this user.
    pub fn of(mount: &Mount) -> Result<Option<Self>> {
        match live::ask(mount, &Request::Defragmenter) {
            Err(failure) if live::is_unreached(&failure) => Ok(None),
            told => told.map(Some),
        }
    }

    /// Returns where a file that the report names lies in the system, if it still has a name.
    pub fn path(&self, dir: &Path, file: &MovedFile) -> Option<PathBuf> {
        self.paths.get(&file.ino.0).map(|path| dir.join(path.trim_start_matches('/')))
    }
}

/// What mounts told at one moment, by where they are mounted.
pub type Looked = BTreeMap<PathBuf, DefragmenterStatus>;

/// Looks at mounts; those that do not tell are left out.
pub fn look(mounts: &[Mount]) -> Result<Looked> {
    let mut looked = Looked::new();
    for mount in mounts {
        looked.extend(DefragmenterStatus::of(mount)?.map(|told| (mount.dir.clone(), told)));
    }
    Ok(looked)
}

/// What one mount moved in a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moved {
    mounted_at: PathBuf,
    state: DefragmenterState,
    /// The file it is at, where it has one and that has a name.
    file: Option<PathBuf>,
    /// Copied in this time.
    moved_bytes: u64,
    /// The same in a second; `None` when it counts from the mount.
    bytes_per_s: Option<f64>,
    /// Files put together since the mount.
    files: u64,
    /// Scattered files that it has not come to.
    waiting_files: u64,
}

/// Returns what was moved between two looks so many seconds apart; mounts where it is off and did
/// nothing are left out.
pub fn between(before: &Looked, now: &Looked, seconds: Option<f64>) -> Vec<Moved> {
    let moved = |(dir, told): (&PathBuf, &DefragmenterStatus)| {
        let report = &told.report;
        // The counters of a new mount start at zero.
        let earlier = before.get(dir).map_or(0, |earlier| earlier.report.moved_bytes);
        let moved_bytes = report.moved_bytes.checked_sub(earlier).unwrap_or(report.moved_bytes);
        let is_told = report.state != DefragmenterState::Off || moved_bytes > 0;
        is_told.then(|| Moved {
            mounted_at: dir.clone(),
            state: report.state,
            file: report.now.as_ref().and_then(|file| told.path(dir, file)),
            moved_bytes,
            bytes_per_s: seconds.map(|seconds| moved_bytes as f64 / seconds),
            files: report.files,
            waiting_files: report.waiting_files,
        })
    };
    now.iter().filter_map(moved).collect()
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            DefragmenterState::Off => "off",
            DefragmenterState::Idle => "idle",
            DefragmenterState::Waiting => "waits, programs are busy",
            DefragmenterState::Working => "works",
        };
        write!(f, "defragmentation of {}: {state}", text::name(&self.mounted_at))?;
        if let Some(file) = &self.file {
            write!(f, " on {}", text::name(file))?;
        }
        match self.bytes_per_s {
            Some(rate) => write!(f, ", {}/s", format_size(rate as u64))?,
            None => write!(f, ", {} moved", format_size(self.moved_bytes))?,
        }
        let (files, waiting) =
            (text::count(self.files, "file"), text::count(self.waiting_files, "scattered file"));
        write!(f, ", {files} put together since the mount, {waiting} to come")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(state: &str, moved_bytes: u64) -> DefragmenterStatus {
        let last = serde_json::json!({
            "ino": 7, "before": { "bytes": 262_144, "runs": 60, "shared": 0 }, "after": { "bytes": 262_144,
                "runs": 60,
                "shared": 0 },
                "moved_bytes": moved_bytes,
                "stuck_bytes": 0,
        });
        let report = serde_json::to_value(DefragmenterReport {
            moved_bytes,
            ..DefragmenterReport::default()
        })
        .unwrap();
        let mut document = report;
        document["state"] = state.into();
        document["now"] = if state == "working" { last } else { serde_json::Value::Null };
        document["paths"] = serde_json::json!({ "7": "/db/table" });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn what_was_moved_is_counted_from_look_to_look() {
        let dir = PathBuf::from("/mnt");
        let at = |told: DefragmenterStatus| Looked::from([(dir.clone(), told)]);
        let (before, now) = (at(told("idle", 4 << 20)), at(told("working", 10 << 20)));
        let moved = between(&before, &now, Some(2.0));
        assert_eq!(
            (moved.len(), moved[0].moved_bytes, moved[0].bytes_per_s),
            (1, 6 << 20, Some(f64::from(3 << 20)))
        );
        let line = moved[0].to_string();
        assert_eq!(
            line,
            "defragmentation of /mnt: works on /mnt/db/table, 3 MiB/s, 0 files put together since \
             the mount, 0 scattered files to come"
        );
        let anew = between(&now, &at(told("waiting", 1 << 20)), None);
        assert!(
            anew[0].moved_bytes == 1 << 20
                && anew[0].to_string().contains("waits, programs are busy, 1 MiB moved"),
            "{}",
            anew[0]
        );
        assert!(between(&Looked::new(), &at(told("off", 0)), None).is_empty());
    }
}
