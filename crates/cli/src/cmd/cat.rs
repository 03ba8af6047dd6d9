//! `bedplate cat VOLUME PATH` and `bedplate cat FILE`

use std::fmt;
use std::io;
use std::path::PathBuf;

use bedplate::{IoMode, OpenOptions};
use clap::Args;
use serde::Serialize;

use super::cp::Requests;
use super::tee::standard;
use crate::copy;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::session::Volume;

/// Write a file to standard output: one of a volume that is not mounted, or with one argument any
/// file or block device of the system, past the page cache, or a file of an NFS server, by its URL
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The file inside the volume; without it, VOLUME is the file that is written, as it lies on
    /// its file system
    path: Option<PathBuf>,
    #[command(flatten)]
    requests: Requests,
}

/// The largest file that is put into a JSON document.
const JSON_BYTES_MAX: u64 = 16 << 20;

#[derive(Serialize)]
struct Content {
    path: PathBuf,
    size_bytes: u64,
    encoding: &'static str,
    content: String,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let Some(path) = &arguments.path else { return write_direct(arguments, output) };
    let open = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_only() };
    arguments.volume.with(Access::ReadOnly, output, |fs| {
        let file = fs.open(path, &open)?;
        if !output.is_json() {
            copy::to_stream(&file, &mut io::stdout().lock())?;
            return Ok(());
        }
        let size_bytes = file.size();
        if size_bytes > JSON_BYTES_MAX {
            let (path, limit) = (path.display(), bedplate::format_size(JSON_BYTES_MAX));
            return Err(Failure::new(
                "too_large",
                format!(
                    "{path} is larger than the {limit} that fit a JSON document: use 'bedplate get'"
                ),
            ));
        }
        let mut bytes = Vec::new();
        copy::to_stream(&file, &mut bytes)?;
        let (encoding, content) = match String::from_utf8(bytes) {
            Ok(text) => ("utf-8", text),
            Err(error) => {
                ("hex", error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
            }
        };
        output.show(&Content { path: path.clone(), size_bytes, encoding, content })
    })
}

/// Writes a file of the system, read with direct requests.
fn write_direct(arguments: &Arguments, output: &Output) -> Result<()> {
    if output.is_json() {
        return Err(Failure::usage("a file of the system is written as it is: leave --json out"));
    }
    let (file, workers) = (&arguments.volume.volume, arguments.requests.get());
    let mut out = standard(io::stdout())?;
    match bedplate_direct::read_to(file, &mut out, workers, None, &|_| {}) {
        // As the system's cat: the reader has what it wants.
        Err(error) if error.kind == bedplate_direct::ErrorKind::Closed => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.content)
    }
}
