//! `bedplate checkpoint clone`

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bedplate::format_size;
use bedplate_serve::control::Request;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::reach::Reach;
use crate::render::output::Output;
use crate::render::text;

/// What to clone, and where to.
#[derive(Debug, Args)]
pub struct CloneArguments {
    /// CHECKPOINT, or CHECKPOINT:/PATH for a file or directory of it, or :/PATH for what is there
    /// now
    source: OsString,
    /// The clone's path, on the mount or from the volume's root; nothing is there yet
    new_path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Cloned {
    #[serde(default)]
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    inodes: u64,
    extents: u64,
    shared_bytes: u64,
}

impl CloneArguments {
    pub(super) fn run(&self, reach: &Reach, output: &Output) -> Result<()> {
        let (checkpoint, path) = split(&self.source)?;
        let request = Request::Clone {
            checkpoint,
            path: bytes(reach.inside(&path)),
            target: bytes(reach.inside_new(&self.new_path)),
        };
        let done: Cloned = reach
            .ask(&request, Access::ReadWrite, output)
            .map_err(|failure| reach.with_places(failure))?;
        output.show(&Cloned { path: self.new_path.clone(), ..done })
    }
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Divides a source at its first `:/`: a checkpoint's name has no slash.
fn split(source: &OsStr) -> Result<(Option<Vec<u8>>, PathBuf)> {
    let bytes = source.as_bytes();
    let (name, path) = match bytes.windows(2).position(|pair| pair == b":/") {
        Some(at) => (&bytes[..at], Path::new(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (bytes, Path::new("/")),
    };
    if bytes.is_empty() || name.contains(&b'/') {
        let shown = source.to_string_lossy();
        return Err(Failure::usage(format!(
            "'{shown}' names no source: say CHECKPOINT, CHECKPOINT:/PATH, or :/PATH for what is there now"
        )));
    }
    Ok(((!name.is_empty()).then(|| name.to_vec()), path.to_owned()))
}

impl fmt::Display for Cloned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, inodes, extents, shared_bytes } = self;
        let (what, extents) = (
            text::count_in(*inodes, "file or directory", "files and directories"),
            text::count(*extents, "extent"),
        );
        write!(
            f,
            "{}: {what}, {} shared in {extents}",
            text::name(path),
            format_size(*shared_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_checkpoint_and_a_path() {
        let divided = |text: &str| {
            split(OsStr::new(text))
                .map(|(name, path)| (name.map(|name| String::from_utf8(name).unwrap()), path))
        };
        let some = |name: &str, path: &str| Ok((Some(name.to_owned()), PathBuf::from(path)));
        assert_eq!(divided("nightly").map_err(drop), some("nightly", "/"));
        assert_eq!(divided("a:b:/pg/base:/x").map_err(drop), some("a:b", "/pg/base:/x"));
        assert_eq!(divided(":/pg").map_err(drop), Ok((None, "/pg".into())));
        assert!(divided("").is_err() && divided("/pg").is_err());
    }
}
