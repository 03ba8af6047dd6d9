//! `bedplate bench volume [--member DEVICE …]`

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bedplate_bench::{Results, VolumeReport, Volumes};
use clap::Args;
use serde::Serialize;

use crate::device::place;
use crate::device::signature;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// What layouts of several devices reach of what their members reach: one device, stripe, mirror,
/// RAID-5, rebuild, resynchronisation, and what the foreground feels of it
#[derive(Debug, Args)]
pub struct Arguments {
    /// A device or image file of 48 MiB or more, overwritten; five of them. None: memory
    #[arg(long = "member", value_name = "DEVICE")]
    members: Vec<PathBuf>,
    /// Size of each of five members in memory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = bedplate::parse_size, conflicts_with = "members")]
    size: u64,
    /// How often the volume and its members take turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one measurement lasts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = bedplate::parse_duration)]
    time: Duration,
    /// Only these measurements: one, stripe-read, stripe-write, mirror-read, raid5-rows,
    /// raid5-small, rebuild, resync, foreground, or parts of their names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Write results.json into this directory, for 'bench tables'
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Take members that hold something; it is gone
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
struct VolumeResults(VolumeReport);

impl fmt::Display for VolumeResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let open = |path: &PathBuf| match signature::recognize(path)? {
        Some(what) if !arguments.force => Err(Failure::new(
            "exists",
            format!("{} holds {what}: add --force to destroy it", path.display()),
        )),
        _ => {
            Ok(device::open_plain(&place::whole(path).unwrap_or(path.clone()), Access::ReadWrite)?)
        }
    };
    let members = arguments.members.iter().map(open).collect::<Result<Vec<_>>>()?;
    let Arguments { size, time, rounds, .. } = *arguments;
    let mut results = Results::begin(std::env::args().collect());
    let report = Volumes { members, size_bytes: size, time, rounds, only: arguments.only.clone() }
        .measure()?;
    if let Some(directory) = &arguments.report {
        results.volumes = Some(report.clone());
        results.save(directory)?;
    }
    output.show(&VolumeResults(report))
}
