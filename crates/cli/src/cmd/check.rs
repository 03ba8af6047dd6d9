//! `bedplate check PATH [--repair | --data]`

use std::fmt;
use std::path::PathBuf;

use bedplate::{CheckReport, FileSystem};
use clap::Args;
use serde::Serialize;

use crate::device::{self, Access};
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::Volume;

/// Check a volume that is not mounted; exit code 0: clean, 1: mended, 4: broken, 8: could not look
///
/// Without --repair nothing is written. A volume that was not unmounted is checked as recovery
/// would leave it.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// Mend what is wrong where all of it has one right answer; write nothing otherwise
    #[arg(long)]
    repair: bool,
    /// Read every block that has a checksum too, those of checkpoints included
    #[arg(long, conflicts_with = "repair")]
    data: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Clean,
    Mended,
    Broken,
}

#[derive(Serialize)]
struct Checked {
    volume: PathBuf,
    verdict: Verdict,
    exit_code: u8,
    #[serde(flatten)]
    report: CheckReport,
    #[serde(skip)]
    repair: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let report = look(arguments, output).map_err(exiting)?;
    let (verdict, exit) = match &report {
        report if report.findings.is_empty() => (Verdict::Clean, Exit::Done),
        report if report.is_sound() => (Verdict::Mended, Exit::Failed),
        _ => (Verdict::Broken, Exit::Broken),
    };
    output.show(&Checked {
        volume: arguments.volume.volume.clone(),
        verdict,
        exit_code: exit as u8,
        report,
        repair: arguments.repair,
    })?;
    Ok(exit)
}

fn look(arguments: &Arguments, output: &Output) -> Result<CheckReport> {
    let access = if arguments.repair { Access::ReadWrite } else { Access::ReadOnly };
    let opened = device::open_with_log(
        &arguments.volume.volume,
        arguments.volume.devices.log.as_deref(),
        access,
    )?;
    Ok(progress::during(output, "checking", || {
        let (device, log) = (&opened.device, opened.log.as_ref());
        match arguments.data {
            true => FileSystem::check_data(device, log),
            false => FileSystem::check(device, log, arguments.repair),
        }
    })?)
}

/// A volume that cannot be read as one is broken; everything else kept the check from looking.
fn exiting(failure: Failure) -> Failure {
    let exit = if matches!(failure.kind.as_str(), "not_a_volume" | "corrupt") {
        Exit::Broken
    } else {
        Exit::Unchecked
    };
    failure.exiting(exit)
}

impl Checked {
    /// Tells in brackets what was looked at; nothing where the check did not get that far.
    fn looked(&self) -> String {
        let report = &self.report;
        if report.inodes == 0 {
            return String::new();
        }
        let looked = [(report.inodes, "inode"), (report.names, "name"), (report.extents, "extent")]
            .map(|(n, noun)| text::count(n, noun))
            .join(", ");
        let summed = match report.summed_blocks {
            0 => String::new(),
            blocks => format!(", {} with checksums", text::count(blocks, "block")),
        };
        let looked = format!("{looked}{summed}");
        if report.clean_unmount {
            return format!(" ({looked})");
        }
        format!(
            " ({looked}; it was not unmounted, and the log holds {})",
            text::count(report.log_records, "record")
        )
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, report) = (text::name(&self.volume), &self.report);
        for finding in &report.findings {
            match finding.mended {
                true => writeln!(f, "{} (mended)", finding.message)?,
                false => writeln!(f, "{}; {}", finding.message, finding.remedy)?,
            }
        }
        let looked = self.looked();
        let found = text::count(report.findings.len() as u64, "fault");
        match self.verdict {
            Verdict::Clean => write!(f, "{volume}: clean{looked}"),
            Verdict::Mended => write!(f, "{volume}: {found}, all mended{looked}"),
            Verdict::Broken if report.is_repairable() => {
                write!(
                    f,
                    "{volume}: broken, {found}{looked}; 'bedplate check --repair {volume}' mends it"
                )
            }
            Verdict::Broken => {
                let untouched = if self.repair {
                    "nothing was written"
                } else {
                    "a repair would write nothing"
                };
                write!(
                    f,
                    "{volume}: broken, {found}{looked}; {untouched}, because not all of it has one \
                     right answer: "
                )?;
                write!(f, "'bedplate salvage {volume} DIRECTORY' copies out what can be read")
            }
        }
    }
}
