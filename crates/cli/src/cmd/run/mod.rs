//! `bedplate run [--report] -- PROGRAM ...`

mod program;
mod report;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::failure::{Failure, Result};
use crate::render::output::Output;
use report::Report;

/// The library that goes in front of a program's calls.
const LIBRARY: &str = "libbedplate_lease.so";

/// Run a program that reads and writes files of a mount on the device by itself
///
/// The mount must allow it to the program's user (mount option lease=), and serve the files in
/// concurrent mode. All else goes through the mount as without it. A program that is given a lease
/// can read and write the whole volume.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Wait for the program, and tell at its end what went directly and why the rest did not
    #[arg(long)]
    report: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let library = find_library()?;
    let (name, rest) =
        arguments.program.split_first().ok_or_else(|| Failure::usage("name a program to run"))?;
    let path = program::find(name)?;
    if let Some(why) = program::why_not(&path) {
        tracing::warn!("{} {why}: it runs as without this command", path.display());
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(rest).env("LD_PRELOAD", preloaded(&library));
    if !arguments.report {
        let error = command.exec();
        return Err(Failure::system("run", &path, &error));
    }
    let report = Report::new()?;
    command.env(report::VARIABLE, report.path());
    let status = command.status().map_err(|error| Failure::system("run", &path, &error))?;
    output.show(&report.told())?;
    // As a shell says it of a program that a signal ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code == 0 {
        return Ok(());
    }
    drop(report);
    std::process::exit(code)
}

/// Finds the library beside this program, or where a package puts it.
fn find_library() -> Result<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::system("find", Path::new("/proc/self/exe"), &error))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("../lib"), beside.join("../lib/bedplate")];
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file());
    found.and_then(|path| path.canonicalize().ok()).ok_or_else(|| {
        Failure::new(
            "not_found",
            format!(
                "there is no {LIBRARY} in {0} or {0}/../lib: put it beside bedplate",
                beside.display()
            ),
        )
    })
}

/// What the loader is to load first: the library, and then what it was to load anyway.
fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(before);
    }
    all
}
