//! `bedplate trace -- PROGRAM …`, `bedplate trace show FILE`

mod arena;
mod attach;
mod record;
mod ring;
mod running;
mod show;
mod shown;

use clap::{Args, Subcommand};

pub use show::told as cut_told;

use crate::failure::{Failure, Result};
use crate::render::output::Output;

const EXAMPLES: &str = "\
Examples:
  bedplate trace -- sqlite3 shop.db 'VACUUM'
  bedplate trace -o load.trace --children=wait -- pg_ctl -D /srv/pg start
  bedplate trace --pid 4711 -o live.trace
  bedplate trace show load.trace
  bedplate trace show load.trace --html load.html
  bedplate --json trace show load.trace";

/// Record what I/O a program does, on any file system; and show it
///
/// Reads, writes, syncs, opens and their errors, each with its place, size and duration, are kept in
/// one file. The program runs as without it. What goes through mappings of files and through io_uring
/// is not seen: both are counted. Programs that are linked statically, or run with another user's
/// rights, cannot be recorded. Processes that run already are recorded by the kernel's tracepoints,
/// which only root may use.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    record: record::Recording,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(show::Arguments),
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.what {
        Some(What::Show(arguments)) => show::run(arguments, output),
        None if arguments.record.is_empty() => Err(Failure::usage(
            "name a program behind --, a process with --pid, or a trace: trace show FILE",
        )),
        None => record::run(&arguments.record, output),
    }
}
