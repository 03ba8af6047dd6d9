//! `bedplate mount PATH DIR -o remount,…`, as mount(8) calls it: what can be changed of a live
//! mount is changed, without a moment in which it is not there.
//!
//! mount(8) passes on every option of the line in `/etc/fstab`, or of the list of mounts where
//! there is none, and not only what is to change. An option that counts at the mount alone is
//! therefore no failure; it is named, unless the mount has it already.

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{Takes, Tunable, TuneOptions};
use bedplate_serve::control::Request;
use bedplate_serve::fuse::{is_mount_option, is_remount_flag};
use serde::Serialize;
use serde_json::Value;

use super::{OPTIONS, fstab, unknown};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::render::text;

/// What the kernel tells of every mount by FUSE, which is what mount(8) passes on.
const OF_KERNEL: [&str; 7] =
    ["user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "blksize=", "default_permissions"];

/// What was changed.
#[derive(Debug, Serialize)]
struct Remounted {
    dir: PathBuf,
    flags: Vec<String>,
    tunables: Vec<String>,
}

/// Returns the options of a remount; `None` where it is a mount.
pub fn wanted(options: &[String]) -> Option<Vec<String>> {
    let options: Vec<String> =
        options.join(",").split(',').map(|option| option.trim().to_owned()).collect();
    options.iter().any(|option| option == "remount").then_some(options)
}

pub fn run(dir: &Path, options: &[String], output: &Output) -> Result<()> {
    let canonical = mount::canonical(dir)?;
    let mount = mount::at(&canonical)?.filter(Mount::is_ours).ok_or_else(|| {
        let what = "is no Bedplate mount: there is nothing to remount";
        Failure::new("not_a_mount", format!("{} {what}", dir.display()))
    })?;
    let change = Change::read(options, &mount)?;
    if change.makes_writable() && was_mounted_read_only(&mount)? {
        let dir = dir.display();
        return Err(Failure::new(
            "read_only",
            format!(
                "{dir} was mounted with ro, or turned read-only after a failure: 'bedplate unmount \
                 {dir}', then mount it with rw"
            ),
        ));
    }
    if !change.later.is_empty() {
        tracing::warn!(
            "a remount does not change {}: unmount, and mount with them",
            change.later.join(", ")
        );
    }
    if !change.tunables.is_empty() {
        let changes = change.tunables.iter().map(|(tunable, value)| (*tunable, Some(*value)));
        let tune = TuneOptions { changes: changes.collect(), live_only: true };
        live::ask::<Value>(&mount, &Request::Tune(tune))?;
    }
    if !change.flags.is_empty() {
        let flags: Vec<&str> = change.flags.iter().map(String::as_str).collect();
        bedplate_serve::fuse::remount(&mount.dir, &flags)?;
    }
    let told = |(tunable, value): &(Tunable, u64)| {
        format!("{}={}", tunable.info().name, tunable.info().unit.format(*value))
    };
    output.show(&Remounted {
        dir: mount.dir,
        tunables: change.tunables.iter().map(told).collect(),
        flags: change.flags,
    })
}

/// What options ask of a live mount.
#[derive(Debug, Default)]
struct Change {
    /// For the kernel.
    flags: Vec<String>,
    /// For the daemon, until the unmount.
    tunables: Vec<(Tunable, u64)>,
    /// What counts at the mount alone, and is another there.
    later: Vec<String>,
}

impl Change {
    fn read(options: &[String], mount: &Mount) -> Result<Self> {
        let mut change = Self::default();
        for option in options {
            change.add(option, mount)?;
        }
        Ok(change)
    }

    fn add(&mut self, option: &str, mount: &Mount) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
        let is_known = matches!(option, "" | "remount" | "defaults") || fstab::is_word(option);
        if is_known || OF_KERNEL.iter().any(|known| option.starts_with(known)) {
            return Ok(());
        }
        if is_remount_flag(option) {
            if !mount.options.iter().any(|present| present == option) {
                self.flags.push(option.to_owned());
            }
            return Ok(());
        }
        // What mount(8) read from the list of mounts and passes on.
        if mount.options.iter().any(|present| present == option) {
            return Ok(());
        }
        match (Tunable::named(name), value) {
            (Ok(tunable), Some(value)) if tunable.info().takes == Takes::Live => {
                let wrong = |error: bedplate::Error| {
                    Failure::usage(format!("mount option '{option}': {}", error.message))
                };
                let value = tunable.parse(value).map_err(wrong)?;
                self.tunables.retain(|(other, _)| *other != tunable);
                self.tunables.push((tunable, value));
            }
            _ if !is_mount_option(name) && OPTIONS.iter().all(|known| known.name != name) => {
                return Err(unknown(option));
            }
            _ => self.later.push(option.to_owned()),
        }
        Ok(())
    }

    fn makes_writable(&self) -> bool {
        self.flags.iter().any(|flag| flag == "rw")
    }
}

/// Returns whether the daemon refuses writes, whatever the kernel lets through.
fn was_mounted_read_only(mount: &Mount) -> Result<bool> {
    let info = live::info(mount)?;
    let is = |name: &str| {
        info.get(name).is_some_and(|value| *value != Value::Bool(false) && !value.is_null())
    };
    Ok(is("read_only") || is("failed"))
}

impl fmt::Display for Remounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> = self.flags.iter().chain(&self.tunables).map(String::as_str).collect();
        let dir = text::name(&self.dir);
        if all.is_empty() {
            return write!(f, "{dir}: remounted, nothing was to be changed");
        }
        write!(f, "{dir}: remounted with {}", all.join(", "))
    }
}
