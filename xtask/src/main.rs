//! The one toolbox of the repository: `cargo xtask check` is what a contributor and CI run.
#![forbid(unsafe_code)]

mod binaries;
mod book;
mod check;
mod cleanup;
mod dist;
mod fuzz;
mod judge;
mod mutants;
mod path_length;
mod real;
mod released;
mod sh;
mod tally;
mod tidy;

use std::ffi::OsString;
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
        /// Only the first answers, without a release build: fmt, tidy, unit tests, and a first look
        /// of the judge.
        #[arg(long)]
        quick: bool,
    },
    /// Builds the book of docs/ into target/book and checks its links.
    Book,
    /// Packs what is handed out into target/dist: the stripped program, symbols, man pages,
    /// completions, examples, licences, a bill of materials, and a Debian package of them.
    Dist(dist::Options),
    /// Checks sizes, crate edges, words, links, licences and ids.
    Tidy,
    /// Fuzzes every decoder, or the named ones, with coverage guidance.
    Fuzz(fuzz::Options),
    /// Plants mistakes one by one and says what notices each, and after how long.
    Mutants(mutants::Options),
    /// Counts the instructions of one read, write and durable append under callgrind, and fails
    /// when they pass their budget.
    PathLength,
    /// Runs real programs on the release binary: databases that are killed, verified data, bad
    /// input, comparisons.
    Real(Box<real::Options>),
    /// Runs a program with io_uring forbidden.
    #[command(hide = true)]
    WithoutIoUring {
        /// The program and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<OsString>,
    },
    /// The second process of a test: does what its standard input says.
    #[command(hide = true)]
    Peer,
    /// Appends durably to a file by several threads for some seconds.
    #[command(hide = true)]
    Append {
        /// The file, the threads, the seconds.
        file: PathBuf,
        threads: u64,
        seconds: u64,
    },
}

/// Returns the repository's root: the directory above this crate.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lives one directory below the root")
        .to_path_buf()
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match &arguments.command {
        Command::WithoutIoUring { program } => {
            return real::exec_without_io_uring(program).map(|()| true);
        }
        Command::Peer => return real::serve_peer().map(|()| true),
        Command::Append { file, threads, seconds } => {
            return real::append(file, *threads, *seconds).map(|()| true);
        }
        _ => std::env::set_current_dir(root())?,
    }
    cleanup::on_signals()?;
    match arguments.command {
        Command::Check { steps, quick } => check::check(&steps, quick),
        Command::Book => book::build(),
        Command::Dist(options) => dist::build(&options),
        Command::Tidy => check::check(&[check::Step::Tidy], false),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::PathLength => path_length::check().map(|()| true),
        Command::Real(options) => check::real(&options),
        Command::WithoutIoUring { .. } | Command::Peer | Command::Append { .. } => Ok(true),
    }
}

fn main() -> ExitCode {
    let result = run(Arguments::parse());
    cleanup::leave_to_signal();
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
