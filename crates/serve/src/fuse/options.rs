//! Which mount options there are: the tunables of the file system by their names, and those of a
//! mount alone.

use bedplate_fs::{IoMode, ReleaseBehind, TUNABLES, Takes, Tunable, TunableInfo, Unit};

use crate::{Error, ErrorKind};

/// A mount option that is no tunable.
#[derive(Debug, Clone, Copy)]
pub struct MountOption {
    /// As it is written, before `=` where it has a value.
    pub name: &'static str,
    /// How its value is written; `None`: it has none.
    pub value: Option<&'static str>,
    /// What it does.
    pub effect: &'static str,
}

impl MountOption {
    /// Makes a row of a table.
    #[must_use]
    pub const fn new(
        name: &'static str,
        value: Option<&'static str>,
        effect: &'static str,
    ) -> Self {
        Self { name, value, effect }
    }
}

/// The options of a mount that are no tunables, in the order in which they are told.
pub const MOUNT_OPTIONS: [MountOption; 30] = {
    const fn flag(name: &'static str, effect: &'static str) -> MountOption {
        MountOption::new(name, None, effect)
    }
    [
        flag("ro", "nothing is written to the device"),
        flag("rw", "the opposite of ro, and the default"),
        MountOption::new("checkpoint", Some("NAME"), "shows that checkpoint alone, read-only"),
        MountOption::new(
            "writeback",
            Some("auto|on|off"),
            "whether the kernel collects the writes of cached files; auto, the default: where the \
             mode is cached",
        ),
        MountOption::new(
            "transport",
            Some("device|io_uring"),
            "how requests come from the kernel: by reads of /dev/fuse, the default, or over io_uring, \
             where the kernel has that and root has turned it on",
        ),
        MountOption::new(
            "kernel-dirty",
            Some("25|PERCENT"),
            "how much of what the kernel lets be dirty on the machine may be pages that it collects \
             for this mount; 25, the default; only root's mounts can have another than the kernel's, 1",
        ),
        MountOption::new(
            "inode-lock",
            Some("range|whole"),
            "what direct writers lock: the range they write, the default, or the whole file",
        ),
        MountOption::new(
            "xattr",
            Some("on|off"),
            "whether there are extended attributes; off: the kernel never asks for any, and commands that read or set something of single files by them are refused",
        ),
        flag(
            "acl",
            "the kernel checks permissions by access control lists (setfacl); the default where the \
             volume has any",
        ),
        flag("noacl", "access control lists are neither followed nor shown, and cannot be set"),
        MountOption::new(
            "lease",
            Some("off|owner|USER:..."),
            "which users' programs may read and write files on the device by themselves (bedplate \
             run); off, the default. A lease gives its holder the whole volume",
        ),
        MountOption::new(
            "lease-kill",
            Some("off|SECONDS"),
            "after how long a process is ended that holds a file under its lease while something \
             waits for it; off, the default: never",
        ),
        flag("relatime", "access times move once a day at most, and after a change; the default"),
        flag("noatime", "access times never move"),
        flag("nodiratime", "accepted: reading a directory never moves its access time"),
        flag("lazytime", "accepted: times that reads and writes move are always written later"),
        flag("async", "accepted: writes are always collected, and made durable by a sync"),
        flag(
            "allow_other",
            "lets users other than the mounting one in; permissions are checked in any case",
        ),
        flag("default_permissions", "accepted: the kernel always checks permissions"),
        flag("auto_unmount", "the mount goes away when the daemon dies"),
        flag("nonempty", "mounts over a directory that is not empty"),
        flag("dev", "device nodes work as such"),
        flag("nodev", "the opposite of dev, and the default"),
        flag("suid", "set-user-ID and set-group-ID bits count"),
        flag("nosuid", "the opposite of suid, and the default"),
        flag("exec", "programs may be run; the default"),
        flag("noexec", "the opposite of exec"),
        flag("defaults", "accepted, changes nothing"),
        MountOption::new("fsname", Some("NAME"), "what lists of mounts show instead of the volume"),
        MountOption::new("subtype", Some("bedplate"), "accepted, changes nothing"),
    ]
};

/// Earlier spellings of tunables. They are accepted with a warning: one value, or of a pair also
/// `LOW:HIGH`.
pub(super) const EARLIER: [Earlier; 4] = [
    Earlier { name: "readahead", low: Some(Tunable::ReadAheadMin), tunable: Tunable::ReadAheadMax },
    Earlier {
        name: "write-behind",
        low: Some(Tunable::WriteBehindStart),
        tunable: Tunable::WriteBehindMax,
    },
    Earlier { name: "extsize", low: None, tunable: Tunable::ExtentSize },
    Earlier { name: "defrag", low: None, tunable: Tunable::DefragRate },
];

/// An earlier spelling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Earlier {
    pub(super) name: &'static str,
    /// The lower of a pair, which stood before a colon.
    pub(super) low: Option<Tunable>,
    pub(super) tunable: Tunable,
}

impl Earlier {
    /// Says how it is written now.
    pub(super) fn warning(self) -> String {
        let names = self
            .low
            .into_iter()
            .chain([self.tunable])
            .map(|tunable| format!("'{}='", tunable.info().name))
            .collect::<Vec<_>>();
        format!(
            "mount option '{}=': write {} instead; the next version does not know it any more",
            self.name,
            names.join(" and ")
        )
    }
}

/// Returns the tunables that a mount option of their name sets.
pub fn mount_tunables() -> impl Iterator<Item = &'static TunableInfo> {
    TUNABLES.iter().filter(|info| info.takes != Takes::Format)
}

/// Returns all options of a mount as they are written, with what they do: first the tunables.
pub fn mount_options() -> impl Iterator<Item = (String, &'static str)> {
    let tunables = mount_tunables()
        .map(|info| (format!("{}={}", info.name, value_of(info.unit)), info.effect));
    tunables.chain(MOUNT_OPTIONS.iter().map(|option| (option.to_string(), option.effect)))
}

impl std::fmt::Display for MountOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(value) => write!(f, "{}={value}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Returns how the value of a tunable is written.
fn value_of(unit: Unit) -> String {
    match unit {
        Unit::Mode => IoMode::ALL.map(IoMode::name).join("|"),
        Unit::Bytes => "SIZE".to_owned(),
        Unit::Duration => "DURATION".to_owned(),
        Unit::Percent => "PERCENT".to_owned(),
        Unit::Number => "N".to_owned(),
        Unit::Switch => "on|off".to_owned(),
        Unit::Release => ReleaseBehind::ALL.map(ReleaseBehind::name).join("|"),
    }
}

/// Returns whether there is an option of a name, before `=` where it has a value; earlier spellings
/// count.
#[must_use]
pub fn is_mount_option(name: &str) -> bool {
    let known = mount_tunables()
        .map(|info| info.name)
        .chain(MOUNT_OPTIONS.iter().map(|option| option.name));
    known.chain(EARLIER.iter().map(|earlier| earlier.name)).any(|known| known == name)
}

/// Makes the error of an option that there is not. `more` are those that the caller takes besides.
#[must_use]
pub fn unknown_mount_option(option: &str, more: &[MountOption]) -> Error {
    let tunables = mount_tunables().map(|info| format!("{}=", info.name));
    let others = MOUNT_OPTIONS.iter().chain(more).map(|option| {
        if option.value.is_some() { format!("{}=", option.name) } else { option.name.to_owned() }
    });
    let known: Vec<String> = tunables.chain(others).collect();
    let name = option.split_inclusive('=').next().unwrap_or(option);
    let meant = bedplate_fs::meant(name, known.iter().map(String::as_str));
    let known = known.join(", ");
    Error::new(
        ErrorKind::Option,
        format!("mount option '{option}': unknown{meant}; known are {known}"),
    )
}
