//! `bedplate defrag --report DIR`: what background defragmentation does and did.

use std::fmt;
use std::path::PathBuf;

use bedplate::{DefragmenterReport, DefragmenterState, MovedFile, format_size};
use serde::Serialize;
use serde_json::Value;

use super::told;
use crate::failure::{Failure, Result};
use crate::mount::Mount;
use crate::mount::defragmenter::DefragmenterStatus;
use crate::render::output::Output;
use crate::render::text;

#[derive(Serialize)]
struct Report {
    mounted_at: PathBuf,
    #[serde(flatten)]
    defragmenter: DefragmenterReport,
    /// Path of the file in `now`.
    now_path: Option<PathBuf>,
    /// Paths of the files in `last`, where they are still known; in the same order.
    paths: Vec<Option<PathBuf>>,
}

/// Shows the report of a mount.
pub fn show(mount: &Mount, output: &Output) -> Result<()> {
    let told = DefragmenterStatus::of(mount)?;
    let told = told.ok_or_else(|| {
        Failure::new(
            "io",
            "the daemon of the mount does not tell what it moves; is it of another version?",
        )
    })?;
    let path = |file: &MovedFile| told.path(&mount.dir, file);
    let (now, paths) =
        (told.report.now.as_ref().and_then(path), told.report.last.iter().map(path).collect());
    output.show(&Report {
        mounted_at: mount.dir.clone(),
        now_path: now,
        paths,
        defragmenter: told.report,
    })
}

/// Reads the report out of what `info` tells.
fn of(info: &Value) -> Option<DefragmenterReport> {
    serde_json::from_value(info.get("defragmenter")?.clone()).ok()
}

/// Tells in one line how it stands.
pub fn line(info: &Value) -> Option<String> {
    of(info).map(|defragmenter| state(&defragmenter))
}

fn state(defragmenter: &DefragmenterReport) -> String {
    let now = match defragmenter.state {
        DefragmenterState::Off => {
            "off: bedplate tune DIR defrag-rate=20m lets files be put together in the background"
                .to_owned()
        }
        DefragmenterState::Idle => "idle: nothing is scattered".to_owned(),
        DefragmenterState::Waiting => {
            format!(
                "waiting: programs are busy; {} scattered files wait",
                defragmenter.waiting_files
            )
        }
        DefragmenterState::Working => {
            format!("working; {} scattered files wait", defragmenter.waiting_files)
        }
    };
    if defragmenter.files == 0 && defragmenter.moved_bytes == 0 {
        return now;
    }
    format!(
        "{now}; {} moved, {} files put together since the mount",
        format_size(defragmenter.moved_bytes),
        defragmenter.files
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", text::name(&self.mounted_at), state(&self.defragmenter))?;
        if let (Some(file), Some(path)) = (&self.defragmenter.now, &self.now_path) {
            writeln!(
                f,
                "now {}: {}; {} moved",
                text::name(path),
                told(&file.before),
                format_size(file.moved_bytes)
            )?;
        }
        for (file, path) in self.defragmenter.last.iter().zip(&self.paths) {
            let name = path.as_ref().map_or_else(|| format!("inode {}", file.ino.0), text::name);
            write!(
                f,
                "{name}: {}, now {}; {} moved",
                told(&file.before),
                told(&file.after),
                format_size(file.moved_bytes)
            )?;
            if file.stuck_bytes > 0 {
                write!(
                    f,
                    "; {} have no better place in the free space",
                    format_size(file.stuck_bytes)
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_how_it_stands() {
        let mut defragmenter = DefragmenterReport::default();
        assert!(state(&defragmenter).contains("tune DIR defrag-rate=20m"));
        defragmenter = DefragmenterReport {
            state: DefragmenterState::Waiting,
            waiting_files: 3,
            files: 2,
            moved_bytes: 5 << 20,
            ..defragmenter
        };
        assert_eq!(
            state(&defragmenter),
            "waiting: programs are busy; 3 scattered files wait; 5 MiB moved, 2 files put together \
             since the mount"
        );
        let info = serde_json::json!({ "defragmenter": defragmenter });
        assert_eq!(line(&info), Some(state(&defragmenter)));
        assert_eq!(line(&Value::Null), None);
    }
}
