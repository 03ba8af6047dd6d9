//! A recording in a directory: the bytes, the lines, and what ties them together.
//!
//! ```text
//! DIR/spool          the bytes of all writes, one behind the other
//! DIR/acknowledged   the lines
//! DIR/recording.json    everything else; offsets and lengths in bytes
//! ```

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bedplate_block::{Recording, Source, Spooled};
use serde::{Deserialize, Serialize};

use crate::acknowledged::Acknowledgement;
use crate::error::{Error, ErrorKind, Result};
use crate::lab::Lab;
use crate::recorded::{Circumstances, Image, Recorded, base, geometry};

pub const SPOOL: &str = "spool";
pub const LINES: &str = "acknowledged";
const INDEX: &str = "recording.json";

/// Changes whenever an earlier recording can no longer be read.
const FORMAT: u32 = 1;

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
    #[serde(rename = "told")]
    acknowledgements: Vec<Acknowledgement>,
}

/// Writes what ties the files together; they are there already.
pub fn save(recorded: &Recorded, dir: &Path) -> Result<()> {
    let operation = |operation: &Spooled| match operation {
        Spooled::Write { offset, len, source } => {
            Operation::Write(Run::new(*offset, *len, *source))
        }
        Spooled::Flush { covers } => Operation::Flush { covers: *covers },
    };
    let index = Index {
        format: FORMAT,
        circumstances: recorded.circumstances.clone(),
        first: *recorded.cuts.start(),
        last: *recorded.cuts.end(),
        start: recorded
            .recording
            .start()
            .map(|(range, source)| Run::new(range.start, range.end - range.start, source))
            .collect(),
        operations: recorded.recording.operations().iter().map(operation).collect(),
        acknowledgements: recorded.acknowledgements.clone(),
    };
    let text = serde_json::to_vec(&index)
        .map_err(|error| Error::io("write the recording as JSON", &error.into()))?;
    write_whole(&dir.join(INDEX), &text)
}

impl Index {
    /// Returns what is wrong with the sizes and places that it names.
    fn fault(&self) -> Option<String> {
        let sector_bytes = self.circumstances.sector_bytes;
        if !sector_bytes.is_power_of_two() || !(512..=65_536).contains(&sector_bytes) {
            return Some(format!("its sector is {sector_bytes} bytes"));
        }
        (self.first > self.last || self.last > self.operations.len())
            .then(|| "it ends before its program does".to_owned())
    }

    /// Puts the operations back over what they ran on.
    fn restore(&self, lab: &Lab<'_>, spool: File) -> Result<Recording> {
        let start: Vec<_> = self
            .start
            .iter()
            .map(|run| (run.0..run.0.saturating_add(run.1), run.source()))
            .collect();
        let operation = |operation: &Operation| match operation {
            Operation::Write(run) => {
                Spooled::Write { offset: run.0, len: run.1, source: run.source() }
            }
            Operation::Flush { covers } => Spooled::Flush { covers: *covers },
        };
        let operations: Vec<_> = self.operations.iter().map(operation).collect();
        let base = base(
            lab,
            self.circumstances.image.as_ref().map(|image| image.path.as_path()),
            self.circumstances.size_bytes,
        )?;
        Ok(Recording::restore(
            base,
            geometry(self.circumstances.sector_bytes),
            spool,
            &start,
            &operations,
        )?)
    }

    /// Says whether its acknowledgements are in order and within a file of lines so long.
    fn fits_lines(&self, length: u64) -> bool {
        let ordered = self
            .acknowledgements
            .windows(2)
            .all(|pair| pair[0].after <= pair[1].after && pair[0].end < pair[1].end);
        ordered && self.acknowledgements.last().is_none_or(|line| line.end <= length)
    }
}

/// Reads a recording.
///
/// # Errors
/// `Corrupt` for one that cannot be read, `Invalid` when the image it was made on has changed;
/// those of the system.
pub fn load(lab: &Lab<'_>, dir: &Path) -> Result<Recorded> {
    let path = dir.join(INDEX);
    let text =
        std::fs::read(&path).map_err(|error| Error::system("read the recording", &path, &error))?;
    let damaged = |why: &dyn std::fmt::Display| {
        Error::new(
            ErrorKind::Corrupt,
            format!("{} is no recording that can be replayed: {why}", path.display()),
        )
    };
    let index: Index = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
    if index.format != FORMAT {
        return Err(damaged(&format!(
            "its format is {}, this program reads {FORMAT}",
            index.format
        )));
    }
    let circumstances = &index.circumstances;
    if let Some(image) = &circumstances.image
        && Image::of(&image.path)? != *image
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} has changed since the recording was made: make a new recording",
                image.path.display()
            ),
        ));
    }
    if let Some(why) = index.fault() {
        return Err(damaged(&why));
    }
    let open = |name: &str| {
        let path = dir.join(name);
        File::open(&path).map_err(|error| Error::system("open", &path, &error))
    };
    let lines = open(LINES)?;
    let length =
        lines.metadata().map_err(|error| Error::system("look at", &dir.join(LINES), &error))?.len();
    if !index.fits_lines(length) {
        return Err(damaged(&"its lines are not those of the file beside it"));
    }
    let recording = index.restore(lab, open(SPOOL)?)?;
    Ok(Recorded {
        recording,
        cuts: index.first..=index.last,
        acknowledgements: index.acknowledgements,
        lines,
        circumstances: index.circumstances,
    })
}

/// Writes a file so that it is on the medium before anything relies on it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| Error::system("write", path, &error))
}
