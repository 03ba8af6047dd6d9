//! `bedplate trim DIR|VOLUME`

use std::fmt;
use std::path::PathBuf;

use bedplate::{TrimStep, format_size, parse_size};
use bedplate_serve::control::Request;
use clap::Args;
use serde::Serialize;

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::reach::{Reach, Target};
use crate::reach::{ask_here, ask_mount};
use crate::render::output::Output;
use crate::render::text;

/// Tell the device below a volume which of its blocks are free, mounted or not
///
/// An image file gives them back to the file system it lies on, as holes; an SSD or a thin volume
/// learns what it need not keep (TRIM, UNMAP). Programs go on meanwhile. A mirror takes it where
/// its members read as zeros afterwards; a RAID-5 takes none.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Leave free runs alone that are shorter than this
    #[arg(long, value_parser = parse_size, value_name = "BYTES", default_value = "64k")]
    min: u64,
}

#[derive(Debug, Serialize)]
struct Trimmed {
    #[serde(serialize_with = "text::readable")]
    volume: PathBuf,
    discarded_bytes: u64,
    runs: u64,
    /// Free, and left alone.
    passed_bytes: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let named = arguments.target.named().to_owned();
    let trimmed = match arguments.target.reach()? {
        Reach::Mounted(mount) => trim(named, arguments.min, |request| ask_mount(&mount, request))?,
        Reach::Alone(volume) => volume.with(Access::ReadWrite, output, |fs| {
            trim(named, arguments.min, |request| ask_here(fs, request))
        })?,
    };
    output.show(&trimmed)
}

fn trim(
    volume: PathBuf,
    run_bytes_min: u64,
    ask: impl Fn(&Request) -> Result<TrimStep>,
) -> Result<Trimmed> {
    let mut sum = Trimmed { volume, discarded_bytes: 0, runs: 0, passed_bytes: 0 };
    let mut from = Some(0);
    while let Some(at) = from {
        let step = ask(&Request::Trim { from: at, run_bytes_min })?;
        sum.discarded_bytes += step.discarded_bytes;
        sum.runs += step.runs;
        sum.passed_bytes += step.passed_bytes;
        if !step.is_supported {
            return Err(Failure::new(
                "unsupported",
                format!(
                    "{}: the device below takes no discards, or the volume has parity or copies \
                     that would differ afterwards: nothing more is discarded",
                    text::name(&sum.volume)
                ),
            ));
        }
        from = step.next;
    }
    Ok(sum)
}

impl fmt::Display for Trimmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} discarded in {} runs",
            text::name(&self.volume),
            format_size(self.discarded_bytes),
            self.runs
        )?;
        if self.passed_bytes > 0 {
            write!(f, "; {} left alone in shorter runs", format_size(self.passed_bytes))?;
        }
        Ok(())
    }
}
