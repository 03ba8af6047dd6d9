//! A recording in a directory: the bytes, the lines, and what ties them together.
//!
//! ```text
//! DIR/spool          the bytes of all writes, one behind the other
//! DIR/acknowledged   the lines
//! DIR/recording.json    everything else; offsets and lengths in bytes
//! ```

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use block::{Recording, Source, Spooled};
use serde::{Deserialize, Serialize};

use super::acknowledged::Told;
use super::record::{Circumstances, Recorded, base, geometry, write_whole};
use crate::failure::{Failure, Result};

pub const SPOOL: &str = "spool";
pub const LINES: &str = "acknowledged";
const INDEX: &str = "recording.json";

/// Changes whenever a recording of before cannot be read any more.
const FORMAT: u32 = 1;

/// A volume that a recording starts with, and how it was then: a recording on top of another volume means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub path: PathBuf,
    size_bytes: u64,
    modified_ns: i128,
}

impl Image {
    pub fn of(path: &Path) -> Result<Self> {
        let failed = |error| Failure::system("look at", path, &error);
        let path = path.canonicalize().map_err(failed)?;
        let meta = path.metadata().map_err(failed)?;
        let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Ok(Self { size_bytes: meta.len(), modified_ns, path })
    }
}

/// A run of bytes: where on the device, how many, where in the spool; nowhere: zeros.
#[derive(Serialize, Deserialize)]
struct Run(u64, u64, Option<u64>);

impl Run {
    fn new(offset: u64, len: u64, source: Source) -> Self {
        Self(
            offset,
            len,
            match source {
                Source::Zeros => None,
                Source::File { at, .. } => Some(at),
            },
        )
    }

    fn source(&self) -> Source {
        self.2.map_or(Source::Zeros, |at| Source::File { file: 0, at })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Operation {
    Write(Run),
    Flush { covers: usize },
}

#[derive(Serialize, Deserialize)]
struct Index {
    format: u32,
    circumstances: Circumstances,
    first: usize,
    last: usize,
    start: Vec<Run>,
    operations: Vec<Operation>,
    told: Vec<Told>,
}

/// Writes what ties the files together; they are there already.
pub fn save(recorded: &Recorded, dir: &Path) -> Result<()> {
    let operation = |operation: &Spooled| match operation {
        Spooled::Write { offset, len, source } => Operation::Write(Run::new(*offset, *len, *source)),
        Spooled::Flush { covers } => Operation::Flush { covers: *covers },
    };
    let index = Index {
        format: FORMAT,
        circumstances: recorded.circumstances.clone(),
        first: *recorded.cuts.start(),
        last: *recorded.cuts.end(),
        start: recorded.recording.start().map(|(range, source)| Run::new(range.start, range.end - range.start, source)).collect(),
        operations: recorded.recording.operations().iter().map(operation).collect(),
        told: recorded.told.clone(),
    };
    let text = serde_json::to_vec(&index).map_err(|error| Failure::new("io", format!("cannot write the recording as JSON: {error}")))?;
    write_whole(&dir.join(INDEX), &text)
}

/// Reads a recording.
pub fn load(dir: &Path) -> Result<Recorded> {
    let path = dir.join(INDEX);
    let text = std::fs::read(&path).map_err(|error| Failure::system("read the recording", &path, &error))?;
    let damaged = |why: &dyn std::fmt::Display| Failure::new("corrupt", format!("{} is no recording that can be replayed: {why}", path.display()));
    let index: Index = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
    if index.format != FORMAT {
        return Err(damaged(&format!("its format is {}, this program reads {FORMAT}", index.format)));
    }
    let circumstances = &index.circumstances;
    if let Some(image) = &circumstances.image
        && Image::of(&image.path)? != *image
    {
        return Err(Failure::new("invalid", format!("{} has changed since the recording was made: make a new recording", image.path.display())));
    }
    if !circumstances.sector_bytes.is_power_of_two() || !(512..=65_536).contains(&circumstances.sector_bytes) {
        return Err(damaged(&format!("its sector is {} bytes", circumstances.sector_bytes)));
    }
    if index.first > index.last || index.last > index.operations.len() {
        return Err(damaged(&"it ends before its program does"));
    }
    let open = |name: &str| {
        let path = dir.join(name);
        File::open(&path).map_err(|error| Failure::system("open", &path, &error))
    };
    let lines = open(LINES)?;
    let length = lines.metadata().map_err(|error| Failure::system("look at", &dir.join(LINES), &error))?.len();
    let ordered = index.told.windows(2).all(|pair| pair[0].after <= pair[1].after && pair[0].end < pair[1].end);
    if !ordered || index.told.last().is_some_and(|told| told.end > length) {
        return Err(damaged(&"its lines are not those of the file beside it"));
    }
    let start: Vec<_> = index.start.iter().map(|run| (run.0..run.0.saturating_add(run.1), run.source())).collect();
    let operation = |operation: &Operation| match operation {
        Operation::Write(run) => Spooled::Write { offset: run.0, len: run.1, source: run.source() },
        Operation::Flush { covers } => Spooled::Flush { covers: *covers },
    };
    let operations: Vec<_> = index.operations.iter().map(operation).collect();
    let base = base(circumstances.image.as_ref().map(|image| image.path.as_path()), circumstances.size_bytes)?;
    let recording = Recording::restore(base, geometry(circumstances.sector_bytes), open(SPOOL)?, &start, &operations)?;
    Ok(Recorded { recording, cuts: index.first..=index.last, told: index.told, lines, circumstances: index.circumstances })
}
