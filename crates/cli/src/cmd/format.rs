//! `bedplate format PATH [--size SIZE] [--block-size N] [--log PATH] [--force]`

use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate::{
    AlignedBuf, BlockDevice, FileSystem, FormatOptions, FormatReport, format_size, parse_size,
};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::device::group;
use crate::device::made::Made;
use crate::device::place;
use crate::device::signature;
use crate::device::{self, Access, Opened};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::{self, Bytes};
use crate::render::text;

/// Make an empty volume in an image file or on a block device
#[derive(Debug, Args)]
pub struct Arguments {
    /// An image file or a block device, any member of a group, or group:NAME
    path: PathBuf,
    /// Make the image file, this large; the host gives it space as it is written
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Allocation unit in bytes, a power of two from 512 to 64k and not below the device's sector
    #[arg(long, value_name = "N", default_value = "4096", value_parser = parse_size)]
    block_size: u64,
    /// Put the intent log on a device of its own, an image file or a block device
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Size of the intent log; makes the image file of --log where it is missing
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log_size: Option<u64>,
    /// Write the whole device once, so that the host has nothing left to allocate later
    #[arg(long)]
    fill: bool,
    /// Overwrite what is there, and let --size change an existing image file
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Formatted {
    path: PathBuf,
    log: Option<PathBuf>,
    filled: bool,
    #[serde(flatten)]
    report: FormatReport,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let options = options(arguments)?;
    let image = Image::prepare(&arguments.path, arguments.size, "--size", arguments)?;
    let log_image = match &arguments.log {
        Some(log) => Some(Image::prepare(
            log,
            arguments.log_size.filter(|_| !place::exists(log)),
            "--log-size",
            arguments,
        )?),
        None => None,
    };
    let (report, log) = format(arguments, &options, output)?;
    image.keep();
    if let Some(log) = log_image {
        log.keep();
    }
    output.show(&Formatted { path: arguments.path.clone(), log, filled: arguments.fill, report })
}

fn options(arguments: &Arguments) -> Result<FormatOptions> {
    let block_size = u32::try_from(arguments.block_size)
        .ok()
        .filter(|size| size.is_power_of_two() && (512..=65_536).contains(size))
        .ok_or_else(|| {
            Failure::usage(format!(
                "a block size of {} is not possible: choose a power of two from 512 to 65536",
                arguments.block_size
            ))
        })?;
    Ok(FormatOptions {
        block_size,
        log_bytes: arguments.log_size,
        force: arguments.force,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    })
}

/// Formats and returns where the intent log lies, if on a device of its own.
fn format(
    arguments: &Arguments,
    options: &FormatOptions,
    output: &Output,
) -> Result<(FormatReport, Option<PathBuf>)> {
    let Opened { device, log, group: _keeps_its_members } =
        device::open_with_log(&arguments.path, arguments.log.as_deref(), Access::ReadWrite)?;
    if arguments.fill {
        if let (false, Ok(_)) = (options.force, FileSystem::probe(&device)) {
            let path = arguments.path.display();
            return Err(Failure::new(
                "exists",
                format!(
                    "{path} holds a Bedplate volume: add --force to destroy it and make a new one"
                ),
            ));
        }
        fill(&device, output)?;
    }
    let report = progress::during(output, "formatting", || {
        FileSystem::format(&device, log.as_ref(), options)
    })?;
    Ok((report, arguments.log.clone().or(log.map(|log| log.name().into()))))
}

/// Writes all of the device with bytes that no host can compress away.
fn fill(device: &Arc<dyn BlockDevice>, output: &Output) -> Result<()> {
    const REQUEST_BYTES: u64 = 4 << 20;
    let mut buffer = AlignedBuf::zeroed(usize::try_from(REQUEST_BYTES).expect("4 MiB fit"));
    let (size, mut word) = (device.size_bytes(), 0x9e37_79b9_7f4a_7c15_u64);
    let mut progress = Bytes::new(output, "filling", size);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    for offset in (0..size).step_by(usize::try_from(REQUEST_BYTES).expect("4 MiB fit")) {
        for chunk in buffer.chunks_exact_mut(8) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        if stop.load(Ordering::Relaxed) {
            // An image that was made for this goes with the failure.
            return Err(Failure::new(
                "interrupted",
                "interrupted while filling: no volume was made",
            ));
        }
        let len = REQUEST_BYTES.min(size - offset);
        device.write_at(&buffer[..usize::try_from(len).expect("at most 4 MiB")], offset)?;
        progress.advance(len);
    }
    Ok(device.flush()?)
}

/// An image file that this command may make.
#[derive(Default)]
struct Image {
    made: Made,
}

impl Image {
    /// Makes the image file, or finds that what exists may be overwritten.
    fn prepare(
        path: &Path,
        size: Option<u64>,
        option: &str,
        arguments: &Arguments,
    ) -> Result<Self> {
        let shown = path.display();
        if let Some(table) = group::divided(path)? {
            return Err(table.name_a_volume());
        }
        if group::resolve(path)? != path
            || place::exists(path) && group::label_of(path).is_ok_and(|label| label.is_some())
        {
            return match size {
                None => Ok(Self::default()),
                Some(_) => Err(Failure::usage(format!(
                    "{shown} is a group and is used whole: leave out {option}"
                ))),
            };
        }
        if place::is_remote(path) {
            return Self::of_export(path, size, option, arguments.force);
        }
        match (fs::metadata(path), size) {
            (Err(error), Some(size)) if error.kind() == std::io::ErrorKind::NotFound => {
                Self::make(path, size / arguments.block_size * arguments.block_size)
            }
            (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::new(
                    "not_found",
                    format!("{shown} does not exist: add {option} to make an image file"),
                ))
            }
            (Err(error), _) => Err(Failure::system("look at", path, &error)),
            (Ok(meta), _) if meta.is_dir() => Err(Failure::new(
                "is_directory",
                format!("{shown} is a directory: name an image file or a block device"),
            )),
            (Ok(meta), Some(_)) if meta.file_type().is_block_device() => {
                Err(Failure::usage(format!(
                    "{shown} is a block device and is used whole: leave out {option}, which makes \
                     image files"
                )))
            }
            (Ok(meta), size) => {
                refuse_foreign(path, arguments.force)?;
                Self::resize(
                    path,
                    meta.len(),
                    size.map(|size| size / arguments.block_size * arguments.block_size),
                    option,
                    arguments.force,
                )?;
                Ok(Self::default())
            }
        }
    }

    fn of_export(path: &Path, size: Option<u64>, option: &str, force: bool) -> Result<Self> {
        if size.is_some() {
            return Err(Failure::usage(format!(
                "{} is an export of another machine and is used whole: leave out {option}",
                path.display()
            )));
        }
        refuse_foreign(path, force)?;
        Ok(Self::default())
    }

    /// An image holds files of any permissions, so only its owner may read it.
    fn make(path: &Path, size: u64) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| Failure::system("create", path, &error))?;
        let mut image = Self::default();
        image.made.note(path);
        file.set_len(size).map_err(|error| {
            Failure::system(&format!("make {} the size of", format_size(size)), path, &error)
        })?;
        Ok(image)
    }

    /// Leaves an existing image alone unless another size is asked for; an empty file is as good as
    /// none.
    fn resize(
        path: &Path,
        present: u64,
        wanted: Option<u64>,
        option: &str,
        force: bool,
    ) -> Result<()> {
        let shown = path.display();
        match wanted {
            Some(wanted) if wanted == present => Ok(()),
            Some(wanted) if force || present == 0 => {
                let _holds_the_volume = device::open(path, Access::ReadWrite)?;
                let file = OpenOptions::new()
                    .write(true)
                    .open(path)
                    .map_err(|error| Failure::system("open", path, &error))?;
                file.set_len(wanted).map_err(|error| {
                    Failure::system(
                        &format!("make {} the size of", format_size(wanted)),
                        path,
                        &error,
                    )
                })
            }
            Some(_) => Err(Failure::new(
                "exists",
                format!(
                    "{shown} exists and has {}: leave out {option} to format it as it is, or add \
                     --force to change its size",
                    format_size(present)
                ),
            )),
            None if present == 0 && path.is_file() => Err(Failure::new(
                "invalid",
                format!("{shown} is empty: add {option} to say how large it shall be"),
            )),
            None => Ok(()),
        }
    }

    /// Keeps the image file: formatting succeeded.
    fn keep(self) {
        self.made.keep();
    }
}

/// Refuses to destroy what other programs left there.
fn refuse_foreign(path: &Path, force: bool) -> Result<()> {
    if force {
        return Ok(());
    }
    match signature::recognize(path)? {
        Some(what) => Err(Failure::new(
            "exists",
            format!("{} holds {what}: add --force to destroy it and make a volume", path.display()),
        )),
        None => Ok(()),
    }
}

impl fmt::Display for Formatted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, report) = (text::name(&self.path), &self.report);
        let (size, block, log) = (
            format_size(report.size_bytes),
            format_size(report.block_size.into()),
            format_size(report.log_bytes),
        );
        let place = self
            .log
            .as_ref()
            .map_or_else(|| "on the volume".to_owned(), |log| format!("on {}", text::name(log)));
        writeln!(
            f,
            "{path}: a volume of {size} in blocks of {block}, intent log of {log} {place}"
        )?;
        write!(f, "uuid {}", report.uuid)
    }
}
