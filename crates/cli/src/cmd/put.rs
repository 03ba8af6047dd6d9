//! `bedplate put VOLUME SRC DST`

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bedplate::{File, FileKind, FileSystem, IoMode, OpenOptions, SetAttr};
use clap::Args;

use crate::copy::{self, Copied};
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::session::Volume;

/// Copy a file into a volume that is not mounted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The file to copy; '-' is standard input
    src: PathBuf,
    /// Where to inside the volume: a name, or a directory that exists
    dst: PathBuf,
    /// The I/O mode to set on the copy
    #[arg(long)]
    mode: Option<IoMode>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let started = Instant::now();
    let source = Source::open(&arguments.src)?;
    let copied = arguments.volume.with(Access::ReadWrite, output, |fs| {
        let path = target(fs, &arguments.dst, source.name.as_deref())?;
        let existed = fs.resolve(&path).is_ok();
        let options =
            OpenOptions { truncate: true, mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
        let file = fs.open(&path, &options)?;
        match fill(fs, &file, &source, arguments, output) {
            Ok(copied_bytes) => Ok(Copied::new(path, file.size(), copied_bytes, started)),
            Err(failure) => {
                drop(file);
                Err(if existed { failure } else { discard(fs, &path, failure) })
            }
        }
    })?;
    output.show(&copied)
}

/// Removes half a copy; where even that fails, both failures are told.
fn discard(fs: &FileSystem, path: &Path, mut failure: Failure) -> Failure {
    if let Err(error) = fs.remove(path) {
        failure.message = format!(
            "{} (and the half copy {} could not be removed: {error})",
            failure.message,
            path.display()
        );
    }
    failure
}

fn fill(
    fs: &FileSystem,
    file: &File,
    source: &Source,
    arguments: &Arguments,
    output: &Output,
) -> Result<u64> {
    let copied = match &source.file {
        Some((system, meta)) => {
            let mut progress = Bytes::new(output, "copying", meta.len());
            let copied = copy::from_file(system, &arguments.src, file, &mut progress)?;
            let owner = SetAttr {
                mode: Some(meta.mode() & 0o777),
                uid: Some(meta.uid()),
                gid: Some(meta.gid()),
                ..SetAttr::default()
            };
            fs.set_attr(file.ino(), &owner)?;
            copied
        }
        None => {
            let copied = copy::from_stream(&mut std::io::stdin().lock(), "standard input", file)?;
            let (uid, gid) =
                (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
            fs.set_attr(
                file.ino(),
                &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() },
            )?;
            copied
        }
    };
    if arguments.mode.is_some() {
        fs.set_io_mode(file.ino(), arguments.mode)?;
    }
    file.sync_all()?;
    Ok(copied)
}

struct Source {
    name: Option<PathBuf>,
    file: Option<(std::fs::File, std::fs::Metadata)>,
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { name: None, file: None });
        }
        let file = std::fs::File::open(path).map_err(|e| Failure::system("open", path, &e))?;
        let meta = file.metadata().map_err(|e| Failure::system("look at", path, &e))?;
        if meta.is_dir() {
            return Err(Failure::new(
                "is_directory",
                format!(
                    "{} is a directory and put copies one file: mount the volume to copy a tree",
                    path.display()
                ),
            ));
        }
        Ok(Self { name: path.file_name().map(PathBuf::from), file: Some((file, meta)) })
    }
}

/// Returns the path of the copy: below `dst` when that is a directory.
fn target(fs: &FileSystem, dst: &Path, name: Option<&Path>) -> Result<PathBuf> {
    let is_directory = fs.resolve(dst).is_ok_and(|attr| attr.kind == FileKind::Directory);
    match name {
        Some(name) if is_directory => Ok(dst.join(name)),
        None if is_directory => Err(Failure::new(
            "is_directory",
            format!("{} is a directory: name the file to make from standard input", dst.display()),
        )),
        _ => Ok(dst.to_owned()),
    }
}
