//! What is set on files and directories, and taken over by what is created in them: `untorn`,
//! `integrity`, `extent-size` and `release-behind`.

pub mod extent_size;
pub mod integrity;
pub mod release_behind;
pub mod untorn;

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use bedplate::{FileKind, FileSystem, InodeNo, parse_size};

use crate::address::PathArg;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::render::output::Output;
use crate::session::{Devices, Volume};

/// A size, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<T>(pub Option<T>);

impl<T: TryFrom<u64>> FromStr for Wanted<T> {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        T::try_from(parse_size(text)?)
            .map(|size| Self(Some(size)))
            .map_err(|_| format!("'{text}' is too much"))
    }
}

/// What is set, and how.
pub struct Mark<T, V> {
    /// The attribute of a mount.
    pub attribute: &'static str,
    /// What can be chosen, for people: a mount refuses the rest without a word.
    pub takes: &'static str,
    /// Sets it in a volume that is not mounted.
    pub set: fn(&FileSystem, InodeNo, Option<T>) -> bedplate::Result<()>,
    /// Reads it there.
    pub get: fn(&FileSystem, InodeNo) -> bedplate::Result<Option<V>>,
    /// Reads what a mount answers.
    pub read: fn(&str) -> Option<V>,
}

impl<T: Display + Copy, V> Mark<T, V> {
    /// Sets it if wanted, also below if `recursive`; returns what it is then, and how many below
    /// were set.
    pub fn apply(
        &self,
        file: &Path,
        wanted: Option<Wanted<T>>,
        recursive: bool,
        devices: &Devices,
        output: &Output,
    ) -> Result<(Option<V>, u64)> {
        let below = wanted.filter(|_| recursive);
        match PathArg::parse(file) {
            PathArg::Live(path) => {
                live::require_mount(&path)?;
                wanted.map_or(Ok(()), |wanted| self.set_live(&path, wanted))?;
                let told = live::get(&path, self.attribute)?.and_then(|text| (self.read)(&text));
                Ok((told, below.map_or(Ok(0), |wanted| self.below_live(&path, wanted))?))
            }
            PathArg::Inside { volume, path } => {
                let access = if wanted.is_some() { Access::ReadWrite } else { Access::ReadOnly };
                Volume::new(volume, devices).with(access, output, |fs| {
                    let ino = fs.resolve(&path)?.ino;
                    wanted.map_or(Ok(()), |wanted| (self.set)(fs, ino, wanted.0))?;
                    Ok((
                        (self.get)(fs, ino)?,
                        below.map_or(Ok(0), |wanted| self.below_inside(fs, ino, wanted))?,
                    ))
                })
            }
        }
    }

    fn set_live(&self, path: &Path, Wanted(value): Wanted<T>) -> Result<()> {
        match value {
            Some(value) => {
                live::set(path, self.attribute, &value.to_string()).map_err(|failure| match failure
                    .kind
                    .as_str()
                {
                    "invalid" => Failure::new(
                        "invalid",
                        format!(
                            "{} cannot be set on {}: choose {}",
                            value,
                            path.display(),
                            self.takes
                        ),
                    ),
                    _ => failure,
                })
            }
            None => live::remove(path, self.attribute),
        }
    }

    /// Sets what is below a directory; what is neither file nor directory has nothing to set.
    /// Returns how many were.
    pub fn below_live(&self, path: &Path, wanted: Wanted<T>) -> Result<u64> {
        if !path.is_dir() {
            return Ok(0);
        }
        let unlisted = |error: std::io::Error| Failure::system("list", path, &error);
        let mut set = 0;
        for entry in std::fs::read_dir(path).map_err(unlisted)? {
            let entry = entry.map_err(unlisted)?;
            let (kind, path) = (entry.file_type().map_err(unlisted)?, entry.path());
            if kind.is_file() || kind.is_dir() {
                self.set_live(&path, wanted)?;
                set += 1;
            }
            if kind.is_dir() {
                set += self.below_live(&path, wanted)?;
            }
        }
        Ok(set)
    }

    /// As [`below_live`](Self::below_live), in a volume that is not mounted.
    pub fn below_inside(&self, fs: &FileSystem, ino: InodeNo, wanted: Wanted<T>) -> Result<u64> {
        if fs.attr(ino)?.kind != FileKind::Directory {
            return Ok(0);
        }
        let mut set = 0;
        for entry in fs.read_dir(ino, None, usize::MAX)? {
            if matches!(entry.kind, FileKind::File | FileKind::Directory) {
                (self.set)(fs, entry.ino, wanted.0)?;
                set += 1 + self.below_inside(fs, entry.ino, wanted)?;
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_or_none_are_wanted() {
        assert_eq!("none".parse(), Ok(Wanted::<u32>(None)));
        assert_eq!("16k".parse(), Ok(Wanted(Some(16_384_u32))));
        assert!("8G".parse::<Wanted<u32>>().is_err() && "8G".parse::<Wanted<u64>>().is_ok());
    }
}
