//! `bedplate run [--report] [--direct[=GLOB]] [--nfs SERVER=DIR] -- PROGRAM ...`

mod children;
mod nfs;
mod program;
mod report;

pub use program::{find as find_program, why_not};

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

/// Where the library finds which files go past the page cache.
const DIRECT_VARIABLE: &str = "BEDPLATE_DIRECT";

/// Run a program that reads and writes files of a mount on the device by itself
///
/// The mount must allow it to the program's user (mount option lease=), and serve the files in
/// concurrent mode. All else goes through the mount as without it. A program that is given a lease
/// can read and write the whole volume.
///
/// With --direct the program's files on other file systems are read and written past the page cache,
/// too, where those take direct I/O.
///
/// With --nfs the program finds a directory of an NFS server under a directory of this machine, by
/// version 3 of the protocol and past the kernel's client and its page cache. For root no other
/// program sees it, and every user that the program becomes asks the server as itself; ordinary
/// users need fusermount3 (package fuse3), and their other programs see it, too. The command stays
/// until the program and all that it started have ended, and passes SIGTERM and SIGHUP on. Then nothing stays mounted, and what was written is durable.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Wait for the program, and tell at its end what went directly and why the rest did not
    #[arg(long)]
    report: bool,
    /// Read and write files of any file system past the page cache: all, or those whose name (or
    /// path, where the pattern has a slash) is like one of these patterns, with * and ?
    #[arg(
        long,
        value_name = "GLOB[:GLOB…]",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "*"
    )]
    direct: Option<OsString>,
    /// Show the program a directory of an NFS server: HOST:/EXPORT=/DIR or nfs://HOST/EXPORT=/DIR,
    /// several times for several. Options follow the export as in nfs:// URLs, and mode= with them:
    /// HOST:/EXPORT?nconnect=8&mode=cached=/DIR (concurrent where nothing is said)
    #[arg(long, value_name = "SERVER=DIR", conflicts_with_all = ["direct", "report"])]
    nfs: Vec<String>,
    /// Have the program end with the process of this number, its parent
    #[arg(long, value_name = "PID", hide = true)]
    ends_with: Option<u32>,
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
    let (name, rest) =
        arguments.program.split_first().ok_or_else(|| Failure::usage("name a program to run"))?;
    if !arguments.nfs.is_empty() {
        return nfs::run(&arguments.nfs, name, rest);
    }
    if let Some(parent) = arguments.ends_with {
        return children::become_program(parent, name, rest);
    }
    let library = find_library()?;
    let path = program::find(name)?;
    if let Some(why) = program::why_not(&path) {
        tracing::warn!("{} {why}: it runs as without this command", path.display());
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(rest).env("LD_PRELOAD", preloaded(&library));
    match &arguments.direct {
        Some(patterns) if patterns.is_empty() => {
            return Err(Failure::usage("--direct= wants a pattern, as in --direct='*.db'"));
        }
        Some(patterns) => command.env(DIRECT_VARIABLE, patterns),
        None => command.env_remove(DIRECT_VARIABLE),
    };
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
pub fn find_library() -> Result<PathBuf> {
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
pub fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(before);
    }
    all
}
