//! `bedplate upgrade VOLUME`

use std::fmt;
use std::path::PathBuf;

use bedplate::{FileSystem, UpgradeReport};
use clap::Args;
use serde::Serialize;

use crate::device::{self, Access};
use crate::failure::Result;
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::Volume;

/// Bring a volume that is not mounted to the newest format, in place
///
/// A volume of an older format mounts as it is; of the newest one, in a time that does not grow
/// with its files. An upgrade that is interrupted leaves the volume whole: run it again. Older
/// versions of bedplate do not mount the volume afterwards.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
}

#[derive(Serialize)]
struct Upgraded {
    volume: PathBuf,
    #[serde(flatten)]
    report: UpgradeReport,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let Volume { volume, devices } = &arguments.volume;
    let opened = device::open_with_log(volume, devices.log.as_deref(), Access::ReadWrite)?;
    let report = progress::during(output, "upgrading", || {
        FileSystem::upgrade(&opened.device, opened.log.as_ref())
    })?;
    output.show(&Upgraded { volume: volume.clone(), report })
}

impl fmt::Display for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, UpgradeReport { from, to, extents }) =
            (text::name(&self.volume), &self.report);
        if from == to {
            return write!(f, "{volume}: format version {to} already, nothing to do");
        }
        let read = text::count(*extents, "extent");
        write!(f, "{volume}: upgraded from format version {from} to {to} ({read} read)")
    }
}
