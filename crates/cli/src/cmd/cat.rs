//! `bedplate cat VOLUME PATH`

use std::fmt;
use std::io;
use std::path::PathBuf;

use bedplate::{IoMode, OpenOptions};
use clap::Args;
use serde::Serialize;

use crate::copy;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::session::Volume;

/// Write a file of a volume that is not mounted to standard output
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The file inside the volume
    path: PathBuf,
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
    let open = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_only() };
    arguments.volume.with(Access::ReadOnly, output, |fs| {
        let file = fs.open(&arguments.path, &open)?;
        if !output.is_json() {
            copy::to_stream(&file, &mut io::stdout().lock())?;
            return Ok(());
        }
        let size_bytes = file.size();
        if size_bytes > JSON_BYTES_MAX {
            let (path, limit) = (arguments.path.display(), bedplate::format_size(JSON_BYTES_MAX));
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
        output.show(&Content { path: arguments.path.clone(), size_bytes, encoding, content })
    })
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.content)
    }
}
