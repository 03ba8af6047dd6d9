//! Mount options, as mount(8) writes them.

use std::time::Duration;

use bedplate_fs::{InodeLockSetting, IoMode, MountOptions, Tunable};

use super::lease::LeaseUsers;
use super::options::{EARLIER, Earlier, MOUNT_OPTIONS, mount_tunables, unknown_mount_option};
use super::pairs;
use crate::{Error, ErrorKind, Result};

/// What `kernel-dirty=` is where it is not given, in per cent: enough for a load of tables to be
/// collected, and so little that a daemon that stands still does not stop the machine's writers.
pub(super) const KERNEL_DIRTY_PERCENT: u8 = 25;

/// The longest time of `lease-kill=`, in seconds.
const LEASE_KILL_MAX_S: u64 = 86_400;

/// Whether the kernel collects the writes of cached files and sends them later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteBack {
    /// On where the mount's mode is `cached`, off elsewhere.
    #[default]
    Auto,
    /// Writes of cached files go into the kernel's page cache and reach the library in large
    /// pieces. While the kernel knows a file, it answers `stat` with the modification time that
    /// *it* last set, which direct writes do not move.
    On,
    /// Writes go through the page cache to the library at once; the library collects them.
    Off,
}

/// Whether the kernel checks permissions by access control lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acls {
    /// Where the volume has any.
    #[default]
    Auto,
    /// It does, and lists can be set. Of each inode whose owner is not the caller it asks for a list
    /// once, as long as it keeps the inode.
    On,
    /// It goes by the permission bits alone, and lists are neither seen nor set.
    Off,
}

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// A `read` of `/dev/fuse` for each, and a `write` for each answer.
    #[default]
    Device,
    /// Over io_uring, where the kernel has it and it is turned on; else as [`Device`](Self::Device),
    /// with a warning.
    IoUring,
}

/// How a volume is mounted. Parsed from text by [`parse`](Self::parse); every field may be set
/// directly too.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// What the file system needs to know; give it to [`bedplate_fs::FileSystem::mount`].
    pub file_system: MountOptions,
    /// Lets users other than the mounting one use the mount. Permissions are checked in any case.
    pub allow_other: bool,
    /// Whether the kernel collects writes.
    pub write_back: WriteBack,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// How much of the pages that the kernel lets be dirty on the machine may be this mount's, in
    /// per cent, 1 to 100.
    pub kernel_dirty_percent: u8,
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
    /// Whether there are extended attributes. Without them the kernel does not ask for any, of every
    /// file that is made, written or run.
    pub extended_attributes: bool,
    /// Whether access control lists count.
    pub acls: Acls,
    /// Which users' programs may read and write files on the device by themselves.
    pub leases: LeaseUsers,
    /// After how long a process that holds a file under its lease is ended when something waits for
    /// it; `None`: never.
    pub lease_kill: Option<Duration>,
    /// What lists of mounts show besides the kernel's options and the tunables: options as they were
    /// given.
    pub listed: Vec<String>,
    /// What [`parse`](Self::parse) has to say of options that it took: one sentence for each
    /// earlier spelling, and for each option that has no effect beside another one.
    pub warnings: Vec<String>,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            file_system: MountOptions { schedules: true, ..MountOptions::default() },
            allow_other: false,
            write_back: WriteBack::Auto,
            transport: Transport::Device,
            kernel_dirty_percent: KERNEL_DIRTY_PERCENT,
            auto_unmount: false,
            nonempty: false,
            source: None,
            dev: false,
            suid: false,
            exec: true,
            extended_attributes: true,
            acls: Acls::Auto,
            leases: LeaseUsers::Off,
            lease_kill: None,
            listed: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl MountSettings {
    /// Reads options separated by commas; of two that contradict each other the later one counts.
    /// The empty text gives the defaults.
    ///
    /// # Errors
    /// `Option`: one sentence that quotes the first option that is unknown or has a wrong value.
    pub fn parse(text: &str) -> Result<Self> {
        let mut settings = Self::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            settings.apply(option)?;
        }
        settings.settle_pairs()?;
        let idle: Vec<String> = pairs::warnings(&settings).collect();
        settings.warnings.extend(idle);
        Ok(settings)
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        let applied = match option.split_once('=') {
            Some((name, value)) => self.apply_value(name, value),
            None => self.apply_flag(option),
        };
        match applied {
            Ok(true) => {
                self.list(option);
                Ok(())
            }
            Ok(false) => Err(unknown_mount_option(option, &[])),
            Err(why) => {
                Err(Error::new(ErrorKind::Option, format!("mount option '{option}': {why}")))
            }
        }
    }

    /// Notes an option that neither the kernel's list of mounts shows nor that of the tunables; the
    /// later of two counts.
    fn list(&mut self, option: &str) {
        const SHOWN_OTHERWISE: [&str; 2] = ["fsname", "subtype"];
        let Some((name, _)) = option.split_once('=') else { return };
        let is_own = MOUNT_OPTIONS.iter().any(|own| own.name == name);
        if is_own && !SHOWN_OTHERWISE.contains(&name) {
            self.listed.retain(|other| other.split('=').next() != Some(name));
            self.listed.push(option.to_owned());
        }
    }

    /// Refuses a lower bound above the higher one where both were given; where one was, the other
    /// follows it.
    fn settle_pairs(&mut self) -> Result<()> {
        let fs = &mut self.file_system;
        let pairs = [
            (
                Tunable::ReadAheadMin,
                fs.read_ahead_bytes_min,
                Tunable::ReadAheadMax,
                fs.read_ahead_bytes_max,
            ),
            (
                Tunable::WriteBehindStart,
                fs.write_behind_percent_start,
                Tunable::WriteBehindMax,
                fs.write_behind_percent_max,
            ),
        ];
        for (low, low_value, high, high_value) in
            pairs.into_iter().filter(|(_, low_value, _, high_value)| low_value > high_value)
        {
            // A largest window of 0 turns read-ahead off, whatever the first one is.
            let off = high == Tunable::ReadAheadMax && high_value == 0;
            match (fs.given.contains(low), fs.given.contains(high)) {
                (true, true) if !off => {
                    let (low, high) = (low.info(), high.info());
                    let values =
                        (low.unit.format(low_value.into()), high.unit.format(high_value.into()));
                    let what = format!(
                        "mount option '{}=': {} is more than {}=, which is {}",
                        low.name, values.0, high.name, values.1
                    );
                    return Err(Error::new(ErrorKind::Option, what));
                }
                (true, false) => high.put(low_value.into(), fs),
                _ => low.put(high_value.into(), fs),
            }
        }
        Ok(())
    }

    /// Returns whether nothing of the mount can be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.file_system.read_only || self.file_system.checkpoint.is_some()
    }

    /// Returns whether programs may get leases.
    pub(super) fn hands_out_leases(&self) -> bool {
        self.leases != LeaseUsers::Off && !self.is_read_only()
    }

    /// Returns whether the kernel is to collect writes on a mount of a mode.
    #[must_use]
    pub fn writes_back(&self, mode: IoMode) -> bool {
        match self.write_back {
            WriteBack::Auto => mode.writes_behind() && !self.is_read_only(),
            WriteBack::On => !self.is_read_only(),
            WriteBack::Off => false,
        }
    }

    /// Returns whether access control lists count on a mount of a volume that has some, or none.
    #[must_use]
    pub fn enforces_acls(&self, has_some: bool) -> bool {
        let wanted = match self.acls {
            Acls::Auto => has_some,
            Acls::On => true,
            Acls::Off => false,
        };
        wanted && self.extended_attributes
    }

    /// Applies an option without a value; returns whether there is such a one.
    fn apply_flag(&mut self, name: &str) -> std::result::Result<bool, String> {
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
            "acl" => self.acls = Acls::On,
            "noacl" => self.acls = Acls::Off,
            // Always so (reading a directory moves no time); the words are known because people
            // write them.
            "default_permissions" | "defaults" | "nodiratime" | "lazytime" | "async" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Applies an option with a value; returns whether there is such a one.
    fn apply_value(&mut self, name: &str, value: &str) -> std::result::Result<bool, String> {
        let fs = &mut self.file_system;
        if let Some(info) = mount_tunables().find(|info| info.name == name) {
            set(fs, info.tunable, value)?;
            return Ok(true);
        }
        if let Some(earlier) = EARLIER.iter().find(|earlier| earlier.name == name) {
            self.warnings.push(earlier.warning());
            set_earlier(fs, *earlier, value)?;
            return Ok(true);
        }
        match name {
            "inode-lock" => {
                fs.inode_lock = choice(
                    value,
                    &[("range", InodeLockSetting::Range), ("whole", InodeLockSetting::Whole)],
                )?;
            }
            "writeback" => {
                self.write_back = choice(
                    value,
                    &[("auto", WriteBack::Auto), ("on", WriteBack::On), ("off", WriteBack::Off)],
                )?;
            }
            "transport" => {
                self.transport = choice(
                    value,
                    &[("device", Transport::Device), ("io_uring", Transport::IoUring)],
                )?;
            }
            "kernel-dirty" => self.kernel_dirty_percent = percent(value)?,
            "xattr" => self.extended_attributes = choice(value, &[("on", true), ("off", false)])?,
            "lease" => self.leases = LeaseUsers::parse(value)?,
            "lease-kill" => self.lease_kill = lease_kill(value)?,
            "checkpoint" if !value.is_empty() => fs.checkpoint = Some(value.as_bytes().to_vec()),
            "fsname" if !value.is_empty() => self.source = Some(value.to_string()),
            "subtype" => choice(value, &[("bedplate", ())])?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads how long a process may hold a file that something waits for: seconds, or `off`.
fn lease_kill(text: &str) -> std::result::Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let seconds = text.parse().ok().filter(|seconds| (1..=LEASE_KILL_MAX_S).contains(seconds));
    seconds.map(|seconds| Some(Duration::from_secs(seconds))).ok_or_else(|| {
        format!("'{text}' is neither off nor a number of seconds from 1 to {LEASE_KILL_MAX_S}")
    })
}

/// Reads a share: `25` or `25%`.
fn percent(text: &str) -> std::result::Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let share = number.parse().ok().filter(|share| (1..=100).contains(share));
    share.ok_or_else(|| format!("'{text}' is no number of per cent from 1 to 100"))
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> std::result::Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("'{value}' is none of its values: {}", names.join(", "))
    })
}

/// Sets a tunable, which then overrides what the volume holds; returns its value.
fn set(fs: &mut MountOptions, tunable: Tunable, text: &str) -> std::result::Result<u64, String> {
    let value = tunable.parse(text).map_err(|error| error.message)?;
    tunable.put(value, fs);
    fs.given.insert(tunable);
    Ok(value)
}

/// Sets what an earlier spelling meant: one tunable, or of a pair `HIGH` or `LOW:HIGH`.
fn set_earlier(
    fs: &mut MountOptions,
    earlier: Earlier,
    text: &str,
) -> std::result::Result<(), String> {
    match earlier.low.zip(text.split_once(':')) {
        Some((low, (low_text, high_text))) => {
            let (low, high) = (set(fs, low, low_text)?, set(fs, earlier.tunable, high_text)?);
            if low > high { Err(format!("{low_text} is more than {high_text}")) } else { Ok(()) }
        }
        None => set(fs, earlier.tunable, text).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::options::mount_options;
    use super::*;

    #[test]
    fn options_are_read_as_people_write_them() {
        let text = "mode=concurrent+cache,ro,allow_other,inode-lock=whole,cache=256M,sync=500ms,read-ahead-min=4k,read-ahead-max=1M,threads=3,noatime,fsname=db,\
                    write-behind-start=10%,write-behind-max=20%";
        let settings = MountSettings::parse(text).unwrap();
        assert_eq!(settings.file_system.mode, IoMode::ConcurrentCache);
        assert!(
            settings.file_system.read_only
                && settings.allow_other
                && !settings.file_system.relatime
        );
        assert_eq!(settings.file_system.inode_lock, InodeLockSetting::Whole);
        assert_eq!(settings.file_system.cache_bytes, 256 << 20);
        assert_eq!(settings.file_system.sync_interval, Duration::from_millis(500));
        assert_eq!(
            (settings.file_system.read_ahead_bytes_min, settings.file_system.read_ahead_bytes_max),
            (4096, 1 << 20)
        );
        assert_eq!(settings.file_system.threads, 3);
        assert_eq!(
            (
                settings.file_system.write_behind_percent_start,
                settings.file_system.write_behind_percent_max
            ),
            (10, 20)
        );
        assert!(
            settings.file_system.given.contains(Tunable::Cache)
                && !settings.file_system.given.contains(Tunable::LatencySample)
        );
        assert_eq!(settings.source.as_deref(), Some("db"));
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn defaults_are_safe_and_the_later_option_counts() {
        let settings = MountSettings::parse("").unwrap();
        assert!(
            !settings.allow_other
                && !settings.suid
                && !settings.dev
                && settings.exec
                && !settings.file_system.read_only
        );
        assert!(settings.file_system.threads >= 16);
        let settings = MountSettings::parse(
            "defaults,ro,suid, rw,nosuid,nodiratime,default_permissions,subtype=bedplate",
        )
        .unwrap();
        assert!(!settings.file_system.read_only && !settings.suid);
        for text in ["readahead=0", "read-ahead-max=0"] {
            assert_eq!(MountSettings::parse(text).unwrap().file_system.read_ahead_bytes_min, 0);
        }
        assert_eq!(
            MountSettings::parse("read-ahead-min=4M").unwrap().file_system.read_ahead_bytes_max,
            4 << 20
        );
    }

    #[test]
    fn a_share_of_the_kernels_dirty_pages_is_per_cent() {
        for (text, percent) in [("", 25), ("kernel-dirty=1", 1), ("kernel-dirty=100%", 100)] {
            assert_eq!(MountSettings::parse(text).unwrap().kernel_dirty_percent, percent);
        }
        for wrong in ["0", "101", "-1", "all", "", "1%%"] {
            let error = MountSettings::parse(&format!("kernel-dirty={wrong}")).unwrap_err();
            assert_eq!(
                error.message,
                format!(
                    "mount option 'kernel-dirty={wrong}': '{wrong}' is no number of per cent from 1 \
                     to 100"
                )
            );
        }
    }

    /// S-522: as it is read, and as what is wrong with it is told.
    #[test]
    fn s_522_the_size_of_the_cache_may_be_a_share_of_the_memory() {
        let cache = |text: &str| MountSettings::parse(text).unwrap().file_system.cache_bytes;
        let (all, half) = (cache("cache=100%"), cache("cache=50%"));
        assert!(all >= bedplate_block::memory_limit_bytes() && half * 2 >= all, "{half} of {all}");
        assert!(all.is_multiple_of(1 << 20) && half * 2 - all <= 2 << 20, "{half} of {all}");
        assert_eq!(
            MountSettings::parse("cache=110%").unwrap_err().message,
            "mount option 'cache=110%': cache: '110%' is no share of the memory: write whole per \
             cent from 1% to 100%, or a size"
        );
        assert!(MountSettings::parse("metadata-cache=10%").is_err());
    }

    #[test]
    fn every_option_that_is_told_is_known_and_every_tunable_is_set_by_its_name() {
        for info in mount_tunables() {
            let (name, value) = (info.name, info.unit.format(info.max));
            let settings =
                MountSettings::parse(&format!("{name}={}", value.replace(' ', ""))).unwrap();
            assert!(settings.file_system.given.contains(info.tunable), "{name}");
        }
        for option in MOUNT_OPTIONS {
            let parsed = match option.value {
                Some(values) => MountSettings::parse(&format!(
                    "{}={}",
                    option.name,
                    values.split('|').next().unwrap()
                )),
                None => MountSettings::parse(option.name),
            };
            parsed.unwrap_or_else(|error| panic!("{option}: {error}"));
        }
        let refusal = MountSettings::parse("frobnicate").unwrap_err().message;
        for (option, _) in mount_options() {
            let name = option.split_inclusive('=').next().unwrap();
            assert!(refusal.contains(&format!(" {name}")), "{refusal} does not know {name}");
        }
    }

    #[test]
    fn earlier_spellings_are_taken_with_a_warning() {
        let settings =
            MountSettings::parse("readahead=4k:1M,write-behind=30%,extsize=64k,defrag=20M")
                .unwrap();
        let fs = &settings.file_system;
        assert_eq!(
            (fs.read_ahead_bytes_min, fs.read_ahead_bytes_max, fs.write_behind_percent_max),
            (4096, 1 << 20, 30)
        );
        assert_eq!((fs.extent_size_bytes, fs.defrag_rate_bytes), (64 << 10, 20 << 20));
        assert_eq!(settings.warnings.len(), 4);
        assert!(
            settings.warnings[0].contains("'readahead='")
                && settings.warnings[0].contains("'read-ahead-min=' and 'read-ahead-max='")
        );
        assert!(
            !fs.given.contains(Tunable::WriteBehindStart),
            "of a pair with one value the other one is not given"
        );
    }

    #[test]
    fn the_kernel_collects_writes_only_where_the_mount_is_cached_and_writable() {
        for (text, writes_back) in [
            ("", true),
            ("mode=concurrent", false),
            ("mode=direct,writeback=on", true),
            ("writeback=off", false),
            ("ro,writeback=on", false),
        ] {
            let settings = MountSettings::parse(text).unwrap();
            assert_eq!(settings.writes_back(settings.file_system.mode), writes_back, "{text}");
        }
    }

    #[test]
    fn lists_count_where_the_volume_has_some_unless_the_mount_says_otherwise() {
        for (text, without, with) in [
            ("", false, true),
            ("acl", true, true),
            ("noacl", false, false),
            ("noacl,acl", true, true),
            ("xattr=off", false, false),
            ("acl,xattr=off", false, false),
        ] {
            let settings = MountSettings::parse(text).unwrap();
            let enforces = [false, true].map(|has_some| settings.enforces_acls(has_some));
            assert_eq!(enforces, [without, with], "{text}");
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
            "extsize=much",
            "log-size=1M",
            "read-ahead-min",
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
        let error = MountSettings::parse("read-ahead-max=1M,read-ahead-min=2M").unwrap_err();
        assert!(
            error
                .message
                .contains("'read-ahead-min=': 2 MiB is more than read-ahead-max=, which is 1 MiB"),
            "{error}"
        );
        assert!(
            MountSettings::parse("read-ahead-min=2M,read-ahead-max=0").is_ok(),
            "it turns read-ahead off"
        );
    }
}
