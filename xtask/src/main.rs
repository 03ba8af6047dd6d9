//! The one toolbox of the repository: `cargo xtask check` is what a contributor and CI run.
#![forbid(unsafe_code)]

mod check;
mod sh;
mod tally;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The toolbox of Bedplate.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs every check, or only the named steps, and ends with one line of totals.
    Check {
        /// Steps to run; all of them when none is named.
        #[arg(value_enum)]
        steps: Vec<check::Step>,
    },
    /// Checks sizes, crate edges, words, links, licences and ids.
    Tidy,
}

/// Returns the repository's root: the directory above this crate.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives one directory below the root").to_path_buf()
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    std::env::set_current_dir(root())?;
    match arguments.command {
        Command::Check { steps } => check::check(&steps),
        Command::Tidy => check::check(&[check::Step::Tidy]),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
