//! `bedplate doctor [DIR|DEVICE|--postgres DSN|--mysql DSN|--sqlite FILE]`

mod place;
mod shown;

use std::path::PathBuf;

use bedplate_doctor::{Copy, Machine, Mend, System, apply, examine, rules};
use clap::Args;

use crate::database;
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use shown::{Examined, Fix};

/// Check what a database runs on: devices, file system, memory, its settings; exit code 0: nothing
/// found, 1: findings, 8: could not look
///
/// On any file system. Each finding says what was measured, what it costs, the command that mends
/// it, and how sure it is. What could not be looked at is told with the reason.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A directory or file of a database, or a block device; the current directory when none is
    /// given
    path: Option<PathBuf>,
    /// Look at a server of PostgreSQL too, which psql asks: postgresql://[USER@][HOST][/DATABASE];
    /// the directory is its data directory when none is given
    #[arg(long, value_name = "DSN", conflicts_with = "root")]
    postgres: Option<database::Dsn>,
    /// Look at a server of MariaDB or MySQL too, which its client asks:
    /// mysql://[USER@][HOST[:PORT]][?socket=PATH]; the password, where there is one, in MYSQL_PWD
    #[arg(long, value_name = "DSN", conflicts_with_all = ["postgres", "root"])]
    mysql: Option<database::MysqlDsn>,
    /// Look at a database file of SQLite too, and at the directory that it lies in
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "postgres", "mysql", "root"])]
    sqlite: Option<PathBuf>,
    /// The size of a page of the database, where none is asked
    #[arg(long, value_name = "SIZE", value_parser = page_size, default_value = "8k")]
    page: u64,
    /// Measure reads too, on a file of 64 MiB in the directory that is gone afterwards
    #[arg(long)]
    measure: bool,
    /// Tell what is as it should be, too
    #[arg(short, long)]
    all: bool,
    /// Tell only what this check says, and with --fix mend only that; may be given several times
    #[arg(long = "check", value_name = "NAME")]
    checks: Vec<String>,
    /// Write the settings of the running kernel that mend findings, and tell how to take them back;
    /// nothing else is changed
    #[arg(long, conflicts_with = "root")]
    fix: bool,
    /// Only tell the commands that mend, those that --fix does not run among them
    #[arg(long, requires = "fix")]
    dry_run: bool,
    /// Look at a copy of another machine's /proc and /sys in this directory; nothing is measured
    #[arg(long, value_name = "DIR", requires = "path", conflicts_with = "measure")]
    root: Option<PathBuf>,
}

/// Reads the size of a page.
fn page_size(text: &str) -> std::result::Result<u64, String> {
    let bytes = bedplate::parse_size(text)?;
    let fits = bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes);
    if fits { Ok(bytes) } else { Err("a page is a power of two from 512 B to 1 MiB".to_owned()) }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    // Where it could not look nothing was found, and nothing is good.
    examined(arguments, output).map_err(|failure| match failure.exit {
        Exit::Failed => failure.exiting(Exit::Unchecked),
        _ => failure,
    })
}

fn examined(arguments: &Arguments, output: &Output) -> Result<Exit> {
    known(&arguments.checks)?;
    let system: Box<dyn System> = match &arguments.root {
        Some(root) if !root.join("proc").is_dir() => {
            let why = "holds no copy of a machine: there is no 'proc' in it";
            return Err(Failure::usage(format!("{} {why}", root.display())));
        }
        Some(root) => Box::new(Copy::new(root)),
        None => Box::new(Machine),
    };
    let question = place::question(arguments)?;
    let place = question.place.clone();
    let mut report = examine(&*system, question);
    if !arguments.checks.is_empty() {
        report.keep(|name| arguments.checks.iter().any(|check| check == name));
    }
    let fix = arguments.fix.then(|| {
        let mends = report.findings.iter().map(|found| &found.finding.mend);
        mends.map(|mend| fix(&*system, mend, arguments.dry_run)).collect::<Vec<_>>()
    });
    let exit = if report.findings.is_empty() { Exit::Done } else { Exit::Failed };
    output.show(&Examined::new(&place, report, fix, arguments))?;
    Ok(exit)
}

/// Refuses the name of a check that there is none of.
fn known(checks: &[String]) -> Result<()> {
    let rules = rules();
    let names = || rules.iter().map(|rule| rule.name);
    match checks.iter().find(|check| names().all(|name| name != check.as_str())) {
        None => Ok(()),
        Some(check) => {
            let meant = bedplate::meant(check, names());
            Err(Failure::usage(format!(
                "there is no check '{check}'{meant}: 'bedplate doctor --all' tells all of them"
            )))
        }
    }
}

fn fix(system: &dyn System, mend: &Mend, dry_run: bool) -> Fix {
    match mend {
        Mend::ByHand(command) => Fix::by_hand(command),
        Mend::Settings { undo, keep, .. } => {
            let fixed = if dry_run { Vec::new() } else { apply(system, mend) };
            Fix::settings(mend, undo, keep, &fixed)
        }
    }
}
