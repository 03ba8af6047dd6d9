//! `bedplate tee FILE`

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use bedplate_direct::Sink;
use clap::Args;

use super::cp::Requests;
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Write standard input to a file with large direct requests, past the page cache, and to standard
/// output
///
/// For what comes out of a pipe: `tar c DIR | bedplate tee -q backup.tar`. The file is durable when
/// the command ends.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The file, or an nfs:// URL; it is made, or emptied first
    file: PathBuf,
    /// Write nothing to standard output
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    requests: Requests,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    if output.is_json() && !arguments.quiet {
        return Err(Failure::usage("standard output takes the input or a document: add --quiet"));
    }
    let mut input = standard(io::stdin())?;
    let mut out = if arguments.quiet { None } else { Some(standard(io::stdout())?) };
    let mut sink = Sink::create(&arguments.file, arguments.requests.get())?;
    loop {
        let space = sink.space()?;
        let read = match input.read(space) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Failure::new("io", format!("cannot read standard input: {error}")));
            }
        };
        if let Some(out) = &mut out {
            out.write_all(&space[..read]).map_err(|error| {
                Failure::new("io", format!("cannot write to standard output: {error}"))
            })?;
        }
        sink.fill(read)?;
    }
    let (bytes, route) = sink.finish()?;
    if output.is_json() {
        return output.document(&serde_json::json!({
            "file": arguments.file,
            "size_bytes": bytes,
            "write_direct": route == bedplate_direct::Route::Direct,
        }));
    }
    Ok(())
}

/// Opens a standard stream as a file without a buffer of its own; a pipe is made as wide as the
/// system allows, so that each side is called less often.
pub fn standard(stream: impl AsFd) -> Result<File> {
    const WIDTHS: [usize; 2] = [8 << 20, 1 << 20];
    for width in WIDTHS {
        // What is no pipe, or a pipe of a user with many, stays as it is.
        if rustix::pipe::fcntl_setpipe_size(&stream, width).is_ok() {
            break;
        }
    }
    let owned = stream
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Failure::new("io", format!("cannot use a standard stream: {error}")))?;
    Ok(File::from(owned))
}
