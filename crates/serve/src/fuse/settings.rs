//! Mount options, as mount(8) writes them.

use std::time::Duration;

use fs::{InodeLockSetting, IoMode, MountOptions, Tunable};

use crate::{Error, ErrorKind, Result};

/// Whether the kernel collects the writes of cached files and sends them later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteBack {
    /// On where the mount's mode is `cached`, off elsewhere.
    #[default]
    Auto,
    /// Writes of cached files go into the kernel's page cache and reach the library in large pieces. While the kernel knows a file, it answers
    /// `stat` with the modification time that *it* last set, which direct writes do not move.
    On,
    /// Writes go through the page cache to the library at once; the library collects them.
    Off,
}

/// How a volume is mounted. Parsed from text by [`parse`](Self::parse); every field may be set directly too.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// What the file system needs to know; give it to [`fs::FileSystem::mount`].
    pub file_system: MountOptions,
    /// Lets users other than the mounting one use the mount. Permissions are checked in any case.
    pub allow_other: bool,
    /// Whether the kernel collects writes.
    pub write_back: WriteBack,
    /// Takes the mount away when the serving process dies.
    pub auto_unmount: bool,
    /// Mounts over a directory that is not empty.
    pub nonempty: bool,
    /// The source that lists of mounts show; the device's name where `None`.
    pub source: Option<String>,
    /// Device nodes work as such.
    pub dev: bool,
    /// Set-user-ID and set-group-ID bits count when a program is run.
    pub suid: bool,
    /// Programs may be run.
    pub exec: bool,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            file_system: MountOptions { schedules: true, ..MountOptions::default() },
            allow_other: false,
            write_back: WriteBack::Auto,
            auto_unmount: false,
            nonempty: false,
            source: None,
            dev: false,
            suid: false,
            exec: true,
        }
    }
}

impl MountSettings {
    /// Reads options separated by commas; of two that contradict each other the later one counts. The empty text gives the defaults.
    ///
    /// # Errors
    /// `Option`: one sentence that quotes the first option that is unknown or has a wrong value.
    pub fn parse(text: &str) -> Result<Self> {
        let mut settings = Self::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            settings.apply(option)?;
        }
        Ok(settings)
    }

    /// Applies one option.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn apply(&mut self, option: &str) -> Result<()> {
        match option.split_once('=') {
            Some((name, value)) => self.apply_value(name, value).map_err(|why| refuse(option, &why)),
            None => self.apply_flag(option).map_err(|why| refuse(option, &why)),
        }
    }

    /// Returns whether nothing of the mount can be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.file_system.read_only || self.file_system.checkpoint.is_some()
    }

    /// Returns whether the kernel is to collect writes on a mount of a mode.
    #[must_use]
    pub fn writes_back(&self, mode: IoMode) -> bool {
        match self.write_back {
            WriteBack::Auto => mode == IoMode::Cached && !self.is_read_only(),
            WriteBack::On => !self.is_read_only(),
            WriteBack::Off => false,
        }
    }

    fn apply_flag(&mut self, name: &str) -> std::result::Result<(), String> {
        match name {
            "ro" => self.file_system.read_only = true,
            "rw" => self.file_system.read_only = false,
            "relatime" => self.file_system.relatime = true,
            "noatime" => self.file_system.relatime = false,
            "allow_other" => self.allow_other = true,
            "auto_unmount" => self.auto_unmount = true,
            "nonempty" => self.nonempty = true,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            // Always so (reading a directory moves no time); the words are known because people write them.
            "default_permissions" | "defaults" | "nodiratime" => {}
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn apply_value(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let fs = &mut self.file_system;
        match name {
            "mode" => fs.mode = one_of_modes(tunable(fs, Tunable::Mode, value)?),
            "inode-lock" => fs.inode_lock = choice(value, &[("range", InodeLockSetting::Range), ("whole", InodeLockSetting::Whole)])?,
            "writeback" => self.write_back = choice(value, &[("auto", WriteBack::Auto), ("on", WriteBack::On), ("off", WriteBack::Off)])?,
            "checkpoint" if !value.is_empty() => fs.checkpoint = Some(value.as_bytes().to_vec()),
            "cache" => fs.cache_bytes = tunable(fs, Tunable::Cache, value)?,
            "metadata-cache" => fs.metadata_cache_bytes = tunable(fs, Tunable::MetadataCache, value)?,
            "latency-sample" => fs.latency_sample = tunable(fs, Tunable::LatencySample, value).map(small)?,
            "sync" => fs.sync_interval = tunable(fs, Tunable::Sync, value).map(Duration::from_nanos)?,
            "readahead" => {
                let present = fs.read_ahead_bytes_min;
                (fs.read_ahead_bytes_min, fs.read_ahead_bytes_max) = pair(fs, value, (Tunable::ReadAheadMin, Tunable::ReadAheadMax), present)?;
            }
            "write-behind" => {
                let present = fs.write_behind_percent_start;
                (fs.write_behind_percent_start, fs.write_behind_percent_max) =
                    pair(fs, value, (Tunable::WriteBehindStart, Tunable::WriteBehindMax), present)?;
            }
            "extsize" => fs.extent_size_bytes = tunable(fs, Tunable::ExtentSize, value)?,
            "defrag" => fs.defrag_rate_bytes = tunable(fs, Tunable::DefragRate, value)?,
            "defrag-load" => fs.defrag_load_max = tunable(fs, Tunable::DefragLoad, value).map(small)?,
            "threads" => fs.threads = tunable(fs, Tunable::Threads, value).map(small)?,
            "fsname" if !value.is_empty() => self.source = Some(value.to_string()),
            "subtype" => choice(value, &[("bedplate", ())])?,
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn refuse(option: &str, why: &str) -> Error {
    Error::new(ErrorKind::Option, format!("mount option '{option}': {why}"))
}

fn unknown() -> String {
    "unknown; known are mode=, checkpoint=, inode-lock=, writeback=, cache=, metadata-cache=, readahead=, write-behind=, sync=, latency-sample=, extsize=, defrag=, defrag-load=, threads=, fsname=, ro, rw, relatime, \
     noatime, nodiratime, allow_other, default_permissions, auto_unmount, nonempty, dev, nodev, suid, nosuid, exec and noexec"
        .to_string()
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> std::result::Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("'{value}' is none of its values: {}", names.join(", "))
    })
}

/// Reads the value of a tunable, which then goes before what the volume holds.
fn tunable(fs: &mut MountOptions, tunable: Tunable, value: &str) -> std::result::Result<u64, String> {
    let value = tunable.parse(value).map_err(|error| error.message)?;
    fs.given.insert(tunable);
    Ok(value)
}

/// A value whose range ends before 2^32.
fn small(value: u64) -> u32 {
    u32::try_from(value).expect("the table of tunables bounds it")
}

fn one_of_modes(value: u64) -> IoMode {
    IoMode::ALL.into_iter().find(|mode| *mode as u64 == value).expect("the table of tunables bounds it")
}

/// Reads `HIGH` or `LOW:HIGH`; the low one is never above the high one.
fn pair(fs: &mut MountOptions, value: &str, (low, high): (Tunable, Tunable), low_present: u32) -> std::result::Result<(u32, u32), String> {
    match value.split_once(':') {
        Some((low_text, high_text)) => {
            let values = (tunable(fs, low, low_text).map(small)?, tunable(fs, high, high_text).map(small)?);
            if values.0 > values.1 { Err(format!("{low_text} is more than {high_text}")) } else { Ok(values) }
        }
        None => tunable(fs, high, value).map(small).map(|high| (low_present.min(high), high)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn options_are_read_as_people_write_them() {
        let text = "mode=concurrent+cache,ro,allow_other,inode-lock=whole,cache=256M,sync=500ms,readahead=4k:1M,threads=3,noatime,fsname=db,write-behind=10%:20%";
        let settings = MountSettings::parse(text).unwrap();
        assert_eq!(settings.file_system.mode, IoMode::ConcurrentCache);
        assert!(settings.file_system.read_only && settings.allow_other && !settings.file_system.relatime);
        assert_eq!(settings.file_system.inode_lock, InodeLockSetting::Whole);
        assert_eq!(settings.file_system.cache_bytes, 256 << 20);
        assert_eq!(settings.file_system.sync_interval, Duration::from_millis(500));
        assert_eq!((settings.file_system.read_ahead_bytes_min, settings.file_system.read_ahead_bytes_max), (4096, 1 << 20));
        assert_eq!(settings.file_system.threads, 3);
        assert_eq!((settings.file_system.write_behind_percent_start, settings.file_system.write_behind_percent_max), (10, 20));
        assert!(settings.file_system.given.contains(Tunable::Cache) && !settings.file_system.given.contains(Tunable::LatencySample));
        assert_eq!(settings.source.as_deref(), Some("db"));
    }

    #[test]
    fn defaults_are_safe_and_the_later_option_counts() {
        let settings = MountSettings::parse("").unwrap();
        assert!(!settings.allow_other && !settings.suid && !settings.dev && settings.exec && !settings.file_system.read_only);
        assert!(settings.file_system.threads >= 16);
        let settings = MountSettings::parse("defaults,ro,suid, rw,nosuid,nodiratime,default_permissions,subtype=bedplate").unwrap();
        assert!(!settings.file_system.read_only && !settings.suid);
        assert_eq!(MountSettings::parse("readahead=0").unwrap().file_system.read_ahead_bytes_min, 0);
    }

    #[test]
    fn the_kernel_collects_writes_only_where_the_mount_is_cached_and_writable() {
        for (text, writes_back) in
            [("", true), ("mode=concurrent", false), ("mode=direct,writeback=on", true), ("writeback=off", false), ("ro,writeback=on", false)]
        {
            let settings = MountSettings::parse(text).unwrap();
            assert_eq!(settings.writes_back(settings.file_system.mode), writes_back, "{text}");
        }
    }

    #[test]
    fn what_is_unknown_or_wrong_is_refused_in_one_sentence_that_quotes_it() {
        let wrong = [
            "frobnicate",
            "mode=fast",
            "mode",
            "threads=0",
            "threads=many",
            "cache=lots",
            "sync=soon",
            "sync=0s",
            "write-behind=80%",
            "write-behind=30:20",
            "latency-sample=-1",
            "readahead=2M:1M",
            "inode-lock=none",
            "fsname=",
            "subtype=other",
            "ro=1",
            "writeback",
        ];
        for option in wrong {
            let error = MountSettings::parse(&format!("rw,{option}")).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Option);
            assert!(error.message.contains(&format!("'{option}'")), "{error}");
            assert!(!error.message.contains('\n'));
        }
    }
}
