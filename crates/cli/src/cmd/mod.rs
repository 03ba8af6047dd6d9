//! One file or folder per subcommand: its arguments, its result in both forms, and `run`.

mod advise;
mod backup;
mod bench;
mod branch;
mod cat;
mod check;
mod checkpoint;
mod completions;
mod compress;
mod convert;
mod cp;
mod crashlab;
mod defrag;
mod doctor;
mod explain;
mod export;
mod files;
mod format;
mod get;
mod grow;
mod info;
mod iostat;
mod log;
mod ls;
mod manpages;
mod mark;
mod mkdir;
mod mode;
mod mount;
mod place;
mod preallocate;
mod put;
mod quickstart;
mod replay;
mod restore;
mod rm;
mod run;
mod salvage;
mod shrink;
mod stat;
mod status;
mod tee;
mod top;
mod trace;
mod trim;
mod tune;
mod unmount;
mod upgrade;
mod volume;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::failure::{Exit, Result};
use crate::render::output::Output;

#[cfg(feature = "forge")]
pub use backup::listing as backup_listing;

const EXIT_CODES: &str = "\
Exit codes:
  0  done; check: the volume is clean
  1  failed; check: there were faults, and all are mended; doctor: there are findings;
     status, info, volume show, volume list, volume wait: a group is degraded or being
     rebuilt
  2  the command line is wrong
  4  the volume is broken; salvage: not everything was saved whole; backup verify:
     a backup is damaged; crashlab: states failed; volume scrub: something differs;
     status, info, volume show, list and wait: broken, refused, read-only after a failure,
     or left by a dead daemon
  8  check could not look at the volume, or doctor at the place

Sizes are written as 4096, 4k, 64M or 1.5GiB, durations as 5s, 500ms or 1h.
BEDPLATE_LOG sets what is logged: warn, info, debug, trace or room=level.";

/// Ordinary files with the speed of a raw device, for databases
#[derive(Debug, Parser)]
#[command(name = "bedplate", version, propagate_version = true, after_help = EXIT_CODES, max_term_width = 120)]
pub struct Cli {
    /// What every subcommand takes.
    #[command(flatten)]
    pub global: Global,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// What every subcommand takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Print one JSON document instead of text; a failure is a document too
    #[arg(long, global = true)]
    pub json: bool,
    /// Tell what is done; twice: how; three times: everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

/// The subcommands, in the order in which they are learned.
#[derive(Debug, Subcommand)]
pub enum Command {
    Quickstart(quickstart::Arguments),
    Format(format::Arguments),
    Mount(mount::Arguments),
    #[command(visible_alias = "umount")]
    Unmount(unmount::Arguments),
    Info(info::Arguments),
    Stat(stat::Arguments),
    Status(status::Arguments),
    Mode(mode::Arguments),
    Run(run::Arguments),
    Untorn(mark::untorn::Arguments),
    Integrity(mark::integrity::Arguments),
    Explain(explain::Arguments),
    Doctor(doctor::Arguments),
    Iostat(iostat::Arguments),
    Top(top::Arguments),
    Files(files::Arguments),
    Trace(trace::Arguments),
    Replay(replay::Arguments),
    Advise(advise::Arguments),
    Tune(tune::Arguments),
    Preallocate(preallocate::Arguments),
    #[command(alias = "extsize")]
    ExtentSize(mark::extent_size::Arguments),
    ReleaseBehind(mark::release_behind::Arguments),
    Defrag(defrag::Arguments),
    Place(place::Arguments),
    Trim(trim::Arguments),
    Grow(grow::Arguments),
    Shrink(shrink::Arguments),
    #[command(subcommand)]
    Log(log::Command),
    Check(check::Arguments),
    Upgrade(upgrade::Arguments),
    Salvage(salvage::Arguments),
    Checkpoint(checkpoint::Arguments),
    Branch(branch::Arguments),
    Backup(backup::Arguments),
    Restore(restore::Arguments),
    Convert(convert::Arguments),
    Cp(cp::Arguments),
    Tee(tee::Arguments),
    Compress(compress::Arguments),
    Ls(ls::Arguments),
    Cat(cat::Arguments),
    Put(put::Arguments),
    Get(get::Arguments),
    Mkdir(mkdir::Arguments),
    Rm(rm::Arguments),
    #[command(subcommand)]
    Volume(volume::Command),
    Bench(bench::Arguments),
    Crashlab(crashlab::Arguments),
    #[command(subcommand)]
    Export(export::Command),
    Completions(completions::Arguments),
    Manpages(manpages::Arguments),
}

/// Runs the subcommand.
pub fn run(cli: &Cli, output: &Output) -> Result<Exit> {
    match &cli.command {
        Command::Check(arguments) => return check::run(arguments, output),
        Command::Volume(command) => return volume::run(command, output),
        Command::Doctor(arguments) => return doctor::run(arguments, output),
        Command::Crashlab(arguments) => return crashlab::run(arguments, output),
        Command::Salvage(arguments) => return salvage::run(arguments, output),
        Command::Checkpoint(arguments) => checkpoint::run(arguments, output),
        Command::Quickstart(arguments) => quickstart::run(arguments, output),
        Command::Format(arguments) => format::run(arguments, output),
        Command::Mount(arguments) => mount::run(arguments, cli.global.verbose, output),
        Command::Unmount(arguments) => unmount::run(arguments, output),
        Command::Info(arguments) => return info::run(arguments, output),
        Command::Status(arguments) => return status::run(arguments, output),
        Command::Stat(arguments) => stat::run(arguments, output),
        Command::Untorn(arguments) => mark::untorn::run(arguments, output),
        Command::Integrity(arguments) => mark::integrity::run(arguments, output),
        Command::Mode(arguments) => mode::run(arguments, output),
        Command::Run(arguments) => run::run(arguments, output),
        Command::Explain(arguments) => explain::run(arguments, output),
        Command::Iostat(arguments) => iostat::run(arguments, output),
        Command::Top(arguments) => top::run(arguments, output),
        Command::Files(arguments) => files::run(arguments, output),
        Command::Trace(arguments) => trace::run(arguments, output),
        Command::Replay(arguments) => replay::run(arguments, output),
        Command::Advise(arguments) => advise::run(arguments, output),
        Command::Tune(arguments) => tune::run(arguments, output),
        Command::ExtentSize(arguments) => mark::extent_size::run(arguments, output),
        Command::ReleaseBehind(arguments) => mark::release_behind::run(arguments, output),
        Command::Preallocate(arguments) => preallocate::run(arguments, output),
        Command::Defrag(arguments) => defrag::run(arguments, output),
        Command::Place(arguments) => place::run(arguments, output),
        Command::Upgrade(arguments) => upgrade::run(arguments, output),
        Command::Trim(arguments) => trim::run(arguments, output),
        Command::Grow(arguments) => grow::run(arguments, output),
        Command::Shrink(arguments) => shrink::run(arguments, output),
        Command::Log(command) => log::run(command, output),
        Command::Branch(arguments) => branch::run(arguments, output),
        Command::Backup(arguments) => backup::run(arguments, output),
        Command::Restore(arguments) => restore::run(arguments, output),
        Command::Convert(arguments) => convert::run(arguments, output),
        Command::Cp(arguments) => cp::run(arguments, output),
        Command::Tee(arguments) => tee::run(arguments, output),
        Command::Compress(arguments) => compress::run(arguments, output),
        Command::Ls(arguments) => ls::run(arguments, output),
        Command::Cat(arguments) => cat::run(arguments, output),
        Command::Put(arguments) => put::run(arguments, output),
        Command::Get(arguments) => get::run(arguments, output),
        Command::Mkdir(arguments) => mkdir::run(arguments, output),
        Command::Rm(arguments) => rm::run(arguments, output),
        Command::Export(command) => export::run(command, output),
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::Completions(arguments) => completions::run(arguments, output),
        Command::Manpages(arguments) => manpages::run(arguments, output),
    }?;
    Ok(Exit::Done)
}
