//! `bedplate get VOLUME SRC DST`

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bedplate::{FileSystem, IoMode, OpenOptions};
use clap::Args;

use crate::copy::{self, Copied};
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::session::Volume;

/// Copy a file out of a volume that is not mounted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The file inside the volume
    src: PathBuf,
    /// Where to: a name, or a directory that exists; '-' is standard output
    dst: PathBuf,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let to_stream = arguments.dst == Path::new("-");
    if to_stream && output.is_json() {
        return Err(Failure::usage(
            "the file and the JSON document cannot both go to standard output: name a file, or use \
             'bedplate cat --json'",
        ));
    }
    let copied = arguments.volume.with(Access::ReadOnly, output, |fs| {
        let open = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_only() };
        let source = fs.open(&arguments.src, &open)?;
        if to_stream {
            copy::to_stream(&source, &mut io::stdout().lock())?;
            return Ok(None);
        }
        get(fs, &source, arguments, output).map(Some)
    })?;
    copied.map_or(Ok(()), |copied| output.show(&copied))
}

fn get(
    fs: &FileSystem,
    source: &bedplate::File,
    arguments: &Arguments,
    output: &Output,
) -> Result<Copied> {
    let started = Instant::now();
    let path = match arguments.src.file_name() {
        Some(name) if arguments.dst.is_dir() => arguments.dst.join(name),
        _ => arguments.dst.clone(),
    };
    let target =
        std::fs::File::create(&path).map_err(|error| Failure::system("create", &path, &error))?;
    let mut progress = Bytes::new(output, "copying", source.size());
    let copied_bytes = copy::to_file(source, &target, &path, &mut progress)?;
    let permissions = Permissions::from_mode(fs.attr(source.ino())?.mode & 0o777);
    target
        .set_permissions(permissions)
        .map_err(|error| Failure::system("set the permissions of", &path, &error))?;
    target.sync_all().map_err(|error| Failure::system("make durable", &path, &error))?;
    Ok(Copied::new(path, source.size(), copied_bytes, started))
}
