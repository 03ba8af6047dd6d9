//! The `bedplate` command: the only place where the rooms are put together.
//!
//! ```text
//! main ─ args ─ cmd/<noun>/<verb> ─┬─ reach, session   a volume: through the daemon of its mount, or through the library
//!                                  ├─ daemon           the process that serves a mount, and the requests it answers
//!                                  ├─ database         servers and files of databases that a command is about
//!                                  ├─ device           devices and groups, found and opened by path
//!                                  ├─ mount            mounts of this machine, and files on them through their extended attributes
//!                                  └─ render           people or JSON, one document on standard output
//! ```
#![forbid(unsafe_code)]

mod address;
mod args;
mod cmd;
mod copy;
mod daemon;
mod database;
mod device;
mod failure;
#[cfg(feature = "forge")]
pub mod forge;
mod logging;
mod metrics;
mod mount;
mod passphrase;
mod reach;
mod render;
mod session;
mod tree;

use std::process::ExitCode;

use failure::{Exit, Failure};
use render::output::Output;

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
    if let Some(warning) = args::warning(&arguments) {
        tracing::warn!("{warning}");
    }
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
