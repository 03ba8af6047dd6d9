//! `bedplate salvage VOLUME TO`

mod save;

use std::fmt;
use std::path::PathBuf;

use bedplate::Salvage;
use clap::Args;
use serde::Serialize;

use crate::device::{self, Access};
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use crate::render::progress::{self, Bytes};
use crate::render::text;
use crate::session::Volume;
use save::Saved;

/// Copy out all files of a broken volume that can still be read; exit code 0: all of them, 4: not
/// all, or not all of them whole
///
/// The volume is never written. It need not mount: each page of the metadata and each block of data
/// is believed for itself, and what had to be left out or may be old is named.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The directory to copy to; made where it does not exist, and empty where it does
    to: PathBuf,
    /// The block size of the volume, believed where both superblocks are lost
    #[arg(long, value_name = "SIZE", value_parser = bedplate::parse_size)]
    block_size: Option<u64>,
}

#[derive(Serialize)]
struct Salvaged {
    volume: PathBuf,
    to: PathBuf,
    /// Whether everything was found, and all of it whole.
    complete: bool,
    /// What is wrong with the volume as a whole.
    losses: Vec<String>,
    #[serde(flatten)]
    saved: Saved,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let block_size = arguments.block_size.map(block_size).transpose()?;
    let device = device::open(&arguments.volume.volume, Access::ReadOnly)?;
    let log = arguments
        .volume
        .devices
        .log
        .as_ref()
        .map(|log| device::open(log, Access::ReadOnly))
        .transpose()?;
    prepare(&arguments.to)?;
    let opened = progress::during(output, "gathering what is left", || {
        Salvage::open(&device, log.as_ref(), block_size)
    });
    let salvage = opened.map_err(|error| Failure::from(error).exiting(Exit::Broken))?;
    let entries = progress::during(output, "putting names together", || salvage.entries());
    let of_file =
        |ino| salvage.data(ino).iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len));
    let total =
        entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(of_file(entry.attr.ino)));
    let saved =
        save::save(&salvage, &entries, &arguments.to, &mut Bytes::new(output, "saving", total))?;
    let losses = salvage.losses().to_vec();
    let complete = losses.is_empty() && saved.is_complete();
    let exit = if complete { Exit::Done } else { Exit::Broken };
    output.show(&Salvaged {
        volume: arguments.volume.volume.clone(),
        to: arguments.to.clone(),
        complete,
        losses,
        saved,
    })?;
    Ok(exit)
}

fn block_size(size: u64) -> Result<u32> {
    let possible = u32::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two() && (512..=65_536).contains(size));
    possible.ok_or_else(|| {
        Failure::usage(format!(
            "a block size of {size} is not possible: it is a power of two from 512 to 65536"
        ))
    })
}

/// Makes the directory. One that holds something is refused, so that nothing old is taken for
/// saved.
fn prepare(to: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(to)
        .map_err(|error| Failure::system("make the directory", to, &error))?;
    let mut entries = std::fs::read_dir(to).map_err(|error| Failure::system("list", to, &error))?;
    if entries.next().is_some() {
        return Err(Failure::new(
            "exists",
            format!("{} is not empty: name a directory that is, or does not exist", to.display()),
        ));
    }
    Ok(())
}

impl fmt::Display for Salvaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, saved) = (text::name(&self.volume), &self.saved);
        for loss in &self.losses {
            writeln!(f, "{volume}: {loss}")?;
        }
        for damaged in &saved.damaged {
            let end = damaged.range.offset + damaged.range.len;
            writeln!(
                f,
                "{}: bytes {} to {end} are lost: {}",
                text::name(&damaged.path),
                damaged.range.offset,
                damaged.range.reason
            )?;
        }
        for (path, why) in saved
            .doubtful
            .iter()
            .chain(&saved.skipped)
            .map(|noted| (text::name(&noted.path), &noted.reason))
        {
            writeln!(f, "{path}: {why}")?;
        }
        let found =
            [(saved.files, "file"), (saved.directories, "directory"), (saved.others, "other")]
                .map(|(n, noun)| text::count(n, noun))
                .join(", ");
        let bytes = bedplate::format_size(saved.copied_bytes);
        write!(f, "{volume}: {found} ({bytes}) saved to {}", text::name(&self.to))?;
        match (self.complete, saved.lost_bytes) {
            (true, _) => write!(f, "; nothing is missing"),
            (false, 0) => write!(f, "; not everything: see above"),
            (false, lost) => {
                write!(f, "; {} of data are lost: see above", bedplate::format_size(lost))
            }
        }
    }
}
