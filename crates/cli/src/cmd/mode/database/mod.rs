//! `bedplate mode database --postgres DSN|--mysql DSN|--sqlite FILE MODE --list LIST`, and `--undo LIST`

mod files;
mod list;

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use self::files::Part;
use self::list::List;
use super::Wanted;
use crate::database::{self, Dsn, MysqlDsn, Named};
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Find the files of a database and set their I/O mode, also while it runs; and put it back
///
/// The list is written first: each file with the mode of its own that it had, from which --undo puts
/// it back. Set are the files of tables, indexes and undo, those of the log, and the directories in
/// which the database creates more of them. Temporary tables and small files of the server are left.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A server of PostgreSQL, which psql asks: postgresql://[USER@][HOST][/DATABASE]
    #[arg(long, value_name = "DSN", required_unless_present_any = ["mysql", "sqlite", "undo"])]
    postgres: Option<Dsn>,
    /// A server of MariaDB or MySQL, which its client asks:
    /// mysql://[USER@][HOST[:PORT]][?socket=PATH]; the password, where there is one, in MYSQL_PWD
    #[arg(long, value_name = "DSN", conflicts_with = "postgres")]
    mysql: Option<MysqlDsn>,
    /// A database file of SQLite; its write-ahead log too, where there is one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["postgres", "mysql"])]
    sqlite: Option<PathBuf>,
    /// cached, direct, concurrent or concurrent+cache; 'inherit' takes away the files' own
    #[arg(required_unless_present = "undo")]
    mode: Option<Wanted>,
    /// Only the files of tables and indexes, or only those of the log
    #[arg(long)]
    only: Option<Part>,
    /// The file that the list is written to, which is not there yet
    #[arg(long, value_name = "FILE", required_unless_present_any = ["dry_run", "undo"])]
    list: Option<PathBuf>,
    /// Only tell what would be set
    #[arg(long)]
    dry_run: bool,
    /// Give what is in this list the modes again that it had
    #[arg(long, value_name = "LIST", exclusive = true)]
    undo: Option<PathBuf>,
}

/// What was listed, and how much of it was set.
#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    list: List,
    /// How many files and directories were set; with --dry-run 0.
    set: u64,
    /// How many do not lie on a mount.
    elsewhere: u64,
    /// Where the list is.
    written_to: Option<PathBuf>,
}

impl Part {
    /// What its files are of, for people.
    fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Log => "log",
        }
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    if let Some(list) = &arguments.undo {
        return output.show(&List::read(list)?.put_back()?);
    }
    let Arguments { postgres, mysql, sqlite, .. } = arguments;
    let named =
        Named { postgres: postgres.as_ref(), mysql: mysql.as_ref(), sqlite: sqlite.as_deref() };
    let database = database::of(named)?.ok_or_else(|| Failure::usage("no database is named"))?;
    let found = files::of(&database)?;
    let wanted = |part: Part| arguments.only.is_none_or(|only| only == part);
    let found = found.into_iter().filter(|found| wanted(found.part));
    let mode = arguments.mode.and_then(|Wanted(mode)| mode);
    let (list, elsewhere) = List::of(found, mode)?;
    if list.files.is_empty() {
        return Err(none(elsewhere));
    }
    let written_to = arguments.list.clone().filter(|_| !arguments.dry_run);
    let set = match &written_to {
        None => 0,
        Some(path) => {
            list.write(path)?;
            list.set().map_err(|failure| {
                let undo = format!("'bedplate mode database --undo {}'", path.display());
                let message = format!("{}; what was set is put back by {undo}", failure.message);
                Failure { message, ..failure }
            })?
        }
    };
    output.show(&Done { list, set, elsewhere, written_to })
}

fn none(elsewhere: u64) -> Failure {
    let why = match elsewhere {
        0 => "the database has no such file".to_owned(),
        count => format!("none of its {count} files and directories lies on a Bedplate mount"),
    };
    Failure::new("not_found", format!("there is nothing to set: {why}"))
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.list)?;
        if self.elsewhere > 0 {
            writeln!(f, "{} do not lie on a Bedplate mount, and stay as they are", self.elsewhere)?;
        }
        match &self.written_to {
            None => write!(f, "nothing was set"),
            Some(path) => {
                let path = crate::render::text::name(path);
                write!(
                    f,
                    "{} were set; 'bedplate mode database --undo {path}' puts them back",
                    self.set
                )
            }
        }
    }
}
