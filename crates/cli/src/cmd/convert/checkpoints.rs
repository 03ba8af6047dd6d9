//! Passes over a directory on a Bedplate mount: each reads a checkpoint, and what changed since the
//! last one is told by the volume without reading.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::{CheckpointDifference, DifferenceKind};
use bedplate_direct::convert::{Parts, Source};
use bedplate_direct::{Error, ErrorKind};
use bedplate_serve::control::{Changes, Request};
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::reach::ask_mount;

/// A directory of a mounted volume.
pub struct Checkpoints {
    mount: Mount,
    /// The directory from the root of the volume, without a slash before it.
    inside: PathBuf,
    /// What the names of the checkpoints begin with.
    prefix: String,
    number: u32,
    /// The checkpoints of the pass before, and of this one.
    before: Option<String>,
    now: Option<String>,
    changed: HashMap<PathBuf, DifferenceKind>,
}

impl Checkpoints {
    /// Prepares passes over a directory; removes the checkpoints of a conversion that was killed.
    pub fn new(mount: Mount, directory: &Path, id: &str) -> Result<Self> {
        let inside = mount.inside(directory).strip_prefix("/").unwrap_or(directory).to_owned();
        let prefix = format!("convert-{id}-");
        let new = Self {
            mount,
            inside,
            prefix,
            number: 0,
            before: None,
            now: None,
            changed: HashMap::new(),
        };
        new.delete_all()?;
        Ok(new)
    }

    /// Deletes all checkpoints that were made for this conversion.
    pub fn delete_all(&self) -> Result<()> {
        let all: Value = ask_mount(&self.mount, &Request::List)?;
        let names = all.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
        for name in names.filter(|name| name.starts_with(&self.prefix)) {
            self.delete(name)?;
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        let _freed: Value =
            live::ask(&self.mount, &Request::Delete { name: name.as_bytes().to_vec() })?;
        Ok(())
    }

    fn next(&mut self) -> Result<PathBuf> {
        if let Some(old) = self.before.take() {
            self.delete(&old)?;
        }
        self.before = self.now.take();
        self.number += 1;
        let name = format!("{}{}", self.prefix, self.number);
        let create = Request::Create {
            name: name.clone().into_bytes(),
            paths: Vec::new(),
            keep: false,
            automatic: true,
        };
        let _made: Value = ask_mount(&self.mount, &create)?;
        self.now = Some(name.clone());
        self.changed.clear();
        if let Some(before) = &self.before {
            let differences = self.differences(before, Some(&name))?;
            self.changed = differences.collect();
        }
        Ok(self.mount.dir.join(".checkpoints").join(name).join(&self.inside))
    }

    /// Returns the paths from the root of the volume that differ between a checkpoint and a later
    /// one, or the present, and how.
    fn differences(
        &self,
        from: &str,
        to: Option<&str>,
    ) -> Result<impl Iterator<Item = (PathBuf, DifferenceKind)>> {
        let (from, to) = (from.as_bytes().to_vec(), to.map(|to| to.as_bytes().to_vec()));
        let all: Vec<CheckpointDifference> = ask_mount(&self.mount, &Request::Diff { from, to })?;
        Ok(all.into_iter().map(|one| {
            let path = Path::new(std::ffi::OsStr::from_bytes(&one.path));
            (path.strip_prefix("/").unwrap_or(path).to_owned(), one.kind)
        }))
    }

    fn first_since(&self) -> Result<Option<PathBuf>> {
        let Some(now) = &self.now else { return Ok(None) };
        let mut changed = self.differences(now, None)?.map(|(path, _)| path);
        Ok(changed.find_map(|path| path.strip_prefix(&self.inside).map(Path::to_owned).ok()))
    }

    fn changes(&self, path: &Path) -> Result<Parts> {
        let (Some(before), Some(now)) = (&self.before, &self.now) else { return Ok(Parts::All) };
        let whole = self.inside.join(path);
        let shown = self.mount.dir.join(".checkpoints").join(now).join(&whole);
        // A change of a file with several names may be told of another one.
        let has_names = std::fs::symlink_metadata(&shown).is_ok_and(|is| is.nlink() > 1);
        let is_moved = whole.ancestors().any(|above| {
            self.changed.get(above).is_some_and(|kind| *kind != DifferenceKind::Changed)
        });
        if has_names || is_moved {
            return Ok(Parts::All);
        }
        if !self.changed.contains_key(&whole) {
            return Ok(Parts::Nothing);
        }
        let request = Request::Changes {
            path: Path::new("/").join(&whole).into_os_string().as_bytes().to_vec(),
            from: before.clone().into_bytes(),
            to: Some(now.clone().into_bytes()),
        };
        let changes: Changes = live::ask(&self.mount, &request)?;
        let ranges = changes.ranges.iter().map(|one| one.offset..one.offset + one.len);
        Ok(Parts::Only(ranges.collect()))
    }
}

fn told(failure: &Failure) -> Error {
    let kind = match failure.kind.as_str() {
        "no_space" => ErrorKind::NoSpace,
        "read_only" => ErrorKind::ReadOnly,
        "not_permitted" => ErrorKind::NotPermitted,
        _ => ErrorKind::Failed,
    };
    Error { kind, message: failure.message.clone() }
}

impl Source for Checkpoints {
    fn begin(&mut self) -> bedplate_direct::Result<PathBuf> {
        self.next().map_err(|failure| told(&failure))
    }

    fn stands_still(&self) -> bool {
        true
    }

    fn changed_since(&self) -> bedplate_direct::Result<Option<PathBuf>> {
        self.first_since().map_err(|failure| told(&failure))
    }

    fn parts(&self, path: &Path) -> bedplate_direct::Result<Parts> {
        self.changes(path).map_err(|failure| told(&failure))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // What stays is removed with the oldest ones when the volume is full, and by the next run.
        let _deleted = self.delete_all();
    }
}
