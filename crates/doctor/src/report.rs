//! What a check says: fine, a finding, or why it could not look.

use std::fmt::Display;
use std::path::PathBuf;

use serde::Serialize;

/// How sure a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// It follows from what was read or measured.
    Certain,
    /// It does on nearly every machine on which this was seen.
    Likely,
    /// It depends on what the programs do; measure it.
    Possible,
}

/// A row of the table of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its name, which stays.
    pub name: &'static str,
    /// What it looks at.
    pub looks_at: &'static str,
    /// When that is a finding.
    pub finding_when: &'static str,
    /// Where that stands.
    pub source: &'static str,
}

/// One write to a file below `/sys` or `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The file.
    pub path: PathBuf,
    /// What is written to it.
    pub value: String,
}

impl Setting {
    /// Makes one.
    pub fn new(path: impl Into<PathBuf>, value: &dyn Display) -> Self {
        Self { path: path.into(), value: value.to_string() }
    }

    /// Returns the command that does the same.
    #[must_use]
    pub fn command(&self) -> String {
        format!("echo {} > {}", quoted(&self.value), self.path.display())
    }
}

/// Returns a word as a shell reads it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What mends a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// Settings of the running kernel, with those that take them back.
    Settings {
        /// What is written.
        set: Vec<Setting>,
        /// What takes it back.
        undo: Vec<Setting>,
        /// How it is kept over a restart.
        keep: String,
    },
    /// A command to be run by hand: it changes a configuration or data, or needs a restart.
    ByHand(String),
}

impl Mend {
    /// Makes the mend of one setting that now has the value `before`.
    pub fn setting(path: impl Into<PathBuf>, value: &dyn Display, before: &dyn Display) -> Self {
        let path = path.into();
        debug_assert!(
            value.to_string() != before.to_string(),
            "a mend changes {}: {value}",
            path.display()
        );
        let keep = kept(&path, &value.to_string());
        Self::Settings {
            set: vec![Setting::new(path.clone(), value)],
            undo: vec![Setting::new(path, before)],
            keep,
        }
    }

    /// Returns the commands, one a line.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        match self {
            Self::Settings { set, .. } => set.iter().map(Setting::command).collect(),
            Self::ByHand(command) => vec![command.clone()],
        }
    }
}

/// Says how a setting is kept over a restart.
fn kept(path: &std::path::Path, value: &str) -> String {
    let text = path.display().to_string();
    match text.strip_prefix("/proc/sys/") {
        Some(name) => format!("{} = {value} in /etc/sysctl.d", name.replace('/', ".")),
        None if text.contains("/queue/") => "a udev rule with the same value".to_owned(),
        None => "a line of the system's start with the same command".to_owned(),
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The layer, file or setting that it is about.
    pub at: String,
    /// What was measured or read.
    pub measured: String,
    /// What that costs.
    pub costs: String,
    /// What mends it.
    pub mend: Mend,
    /// How sure it is.
    pub sure: Sure,
}

/// What a check says of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It looked, and there is nothing to say against it.
    Fine(String),
    /// Something is wrong.
    Found(Finding),
    /// It could not look.
    Unseen(String),
}

impl Outcome {
    /// Turns what was not seen into that outcome, and what was into the outcomes of `judge`.
    pub fn of<T>(seen: &Result<T, String>, judge: impl FnOnce(&T) -> Vec<Outcome>) -> Vec<Outcome> {
        match seen {
            Ok(seen) => judge(seen),
            Err(why) => vec![Outcome::Unseen(why.clone())],
        }
    }
}

/// Returns a size as people write it, in the unit that fits.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Returns microseconds as people write them.
#[must_use]
pub fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.1} µs"),
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.1} s", us / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_written_as_people_do() {
        assert_eq!(
            [size(512), size(4096), size(1536 << 20), size(3 << 40)],
            ["512 B", "4 KiB", "1.5 GiB", "3 TiB"]
        );
        assert_eq!(
            [time(3.25), time(180.4), time(8300.0), time(2.5e6)],
            ["3.2 µs", "180 µs", "8.3 ms", "2.5 s"]
        );
    }

    #[test]
    fn a_setting_is_a_command_and_can_be_taken_back() {
        let mend = Mend::setting("/proc/sys/vm/swappiness", &10, &"60");
        assert_eq!(mend.commands(), ["echo 10 > /proc/sys/vm/swappiness"]);
        let Mend::Settings { undo, keep, .. } = mend else { panic!("it is a setting") };
        assert_eq!(undo[0].command(), "echo 60 > /proc/sys/vm/swappiness");
        assert_eq!(keep, "vm.swappiness = 10 in /etc/sysctl.d");
        let cache = Setting::new("/sys/block/sda/queue/write_cache", &"write back");
        assert!(cache.command().starts_with("echo 'write back' > "));
    }
}
