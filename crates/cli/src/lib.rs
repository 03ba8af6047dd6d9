//! The `bedplate` command: the only place where the rooms are put together.
//!
//! ```text
//! main ─ args (clap) ─ cmd/<subcommand> ─┬─ session   a volume through the library
//!                                        ├─ live      files of a mount, through their extended attributes
//!                                        ├─ daemon    the mount that outlives the command
//!                                        └─ output    people or JSON, one document on standard output
//! ```
#![forbid(unsafe_code)]

mod address;
mod args;
mod cmd;
mod condition;
mod control;
mod copy;
mod counters;
mod daemon;
mod device;
mod failure;
#[cfg(feature = "forge")]
pub mod forge;
mod group;
mod live;
mod logging;
mod made;
mod metrics;
mod mounts;
mod mover;
mod names;
mod newcomer;
mod output;
mod progress;
mod reach;
mod scrubbed;
mod session;
mod signature;
mod status;
mod text;
mod trial;
mod watch;

use std::process::ExitCode;

use failure::{Exit, Failure};
use output::Output;

/// Runs the command that the process was started with, and returns what it answers to its caller.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = args::from_environment();
    let output = Output::new(args::wants_json(&arguments));
    let cli = match args::parse(&arguments) {
        Ok(cli) => cli,
        Err(stop) => return stop.report(&output),
    };
    logging::start(cli.global.verbose);
    logging::quiet_tree();
    match cmd::run(&cli, &output) {
        Ok(exit) => exit.into(),
        Err(failure) => report(&output, &failure),
    }
}

/// Tells a failure and turns it into the exit code.
fn report(output: &Output, failure: &Failure) -> ExitCode {
    output.fail(failure);
    Exit::from(failure).into()
}
