//! `bedplate files DIR`

mod advice;
mod users;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bedplate::format_size;
use bedplate_trace::{Trace, summarized};
use clap::Args;
use serde::Serialize;

use super::trace::cut_told;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::mount::watch::{self, Scope};
use crate::render::output::Output;
use crate::render::text::{Name, count, table};
use advice::{Advice, Work, advise};
use users::{User, users};

const EXAMPLES: &str = "\
Examples:
  bedplate files /srv/pg
  bedplate files /srv/pg --trace load.trace
  bedplate --json files /mnt/bedplate/db";

/// Tell of the files of a directory what is worth moving: their I/O, what the page cache holds of
/// them, their pieces, and the mode for them
///
/// On any file system. I/O comes from a trace (bedplate trace), or from the statistics of the mount
/// where the directory lies on one; without either no mode is recommended. Of processes that have
/// files of the directory open the system knows only what they read and write in all.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The directory
    directory: PathBuf,
    /// A trace of the programs that use it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Tell of so many files
    #[arg(long, value_name = "N", default_value = "20")]
    top: usize,
}

/// Files that are looked at.
const FILES_MAX: usize = 100_000;

/// One file.
#[derive(Debug, Serialize)]
struct Row {
    path: Name,
    size_bytes: u64,
    space_bytes: u64,
    /// What the page cache holds; nothing where the system does not say.
    cached_bytes: Option<u64>,
    extents: Option<u32>,
    #[serde(flatten)]
    work: Option<Work>,
    #[serde(flatten)]
    advice: Option<Advice>,
}

/// All of them.
#[derive(Serialize)]
struct Told {
    directory: Name,
    /// Where the I/O comes from.
    source: &'static str,
    files: u64,
    size_bytes: u64,
    cached_bytes: u64,
    rows: Vec<Row>,
    users: Vec<User>,
    /// Files and directories that could not be looked at.
    unseen: u64,
    /// There were more files than are looked at.
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let failed = |error| Failure::system("look into", &arguments.directory, &error);
    let directory = arguments.directory.canonicalize().map_err(failed)?;
    if !directory.is_dir() {
        let place = arguments.directory.display();
        return Err(Failure::usage(format!("{place} is not a directory")));
    }
    let mut cut = None;
    let (source, works) = match &arguments.trace {
        Some(path) => {
            let loaded = Trace::load(path)?;
            cut = loaded.cut.as_ref().map(cut_told);
            let summary = summarized(&loaded.trace);
            let works = summary.files.iter().map(|f| (PathBuf::from(&f.path), Work::traced(f)));
            ("trace", Some(works.collect()))
        }
        None if live::require_mount(&directory).is_ok() => ("mount", Some(of_mount(&directory)?)),
        None => ("none", None),
    };
    let mut found = Found::default();
    found.walk(&directory, works.as_ref());
    let (files, size_bytes) = (found.rows.len() as u64, sum(&found.rows, |row| row.size_bytes));
    let cached_bytes = sum(&found.rows, |row| row.cached_bytes.unwrap_or(0));
    found.rows.sort_by_key(|row| {
        let moved = row.work.as_ref().map_or(0, |work| work.moved() + 1);
        std::cmp::Reverse((moved, row.cached_bytes.unwrap_or(0), row.size_bytes))
    });
    found.rows.truncate(arguments.top);
    output.show(&Told {
        users: users(&directory),
        directory: directory.into(),
        source,
        files,
        size_bytes,
        cached_bytes,
        rows: found.rows,
        unseen: found.unseen,
        more: found.more,
        cut,
    })
}

fn sum(rows: &[Row], of: impl Fn(&Row) -> u64) -> u64 {
    rows.iter().map(of).sum()
}

/// What the mount counted since it began.
fn of_mount(directory: &Path) -> Result<HashMap<PathBuf, Work>> {
    let seen = Scope::new(&[directory.to_owned()])?.look()?;
    let rows = watch::between(&watch::Seen::new(), &seen);
    Ok(rows
        .into_iter()
        .map(|row| (row.path.clone(), Work::counted(&row.activity.counters)))
        .collect())
}

#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    unseen: u64,
    more: bool,
}

impl Found {
    /// Looks at all files below, without following links.
    fn walk(&mut self, directory: &Path, works: Option<&HashMap<PathBuf, Work>>) {
        let mut open = vec![directory.to_owned()];
        while let Some(directory) = open.pop() {
            let Ok(entries) = std::fs::read_dir(&directory) else {
                self.unseen += 1;
                continue;
            };
            for entry in entries.flatten() {
                if self.rows.len() >= FILES_MAX {
                    self.more = true;
                    return;
                }
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => open.push(entry.path()),
                    Ok(kind) if kind.is_file() => match row(&entry.path(), works) {
                        Some(row) => self.rows.push(row),
                        None => self.unseen += 1,
                    },
                    Ok(_) => {}
                    Err(_) => self.unseen += 1,
                }
            }
        }
    }
}

/// Looks at one file; nothing of one that may not be opened.
fn row(path: &Path, works: Option<&HashMap<PathBuf, Work>>) -> Option<Row> {
    // A file that became a pipe meanwhile is not waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let work = works.map(|works| works.get(path).cloned().unwrap_or_default());
    Some(Row {
        path: path.to_owned().into(),
        size_bytes: meta.len(),
        space_bytes: meta.blocks() * 512,
        cached_bytes: bedplate_block::cached_bytes(&file).ok(),
        extents: bedplate_block::extents(&file).ok(),
        advice: work.as_ref().map(advise),
        work,
    })
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}, {}, {} of them in the page cache",
            self.directory,
            count(self.files, "file"),
            format_size(self.size_bytes),
            format_size(self.cached_bytes)
        )?;
        let heads =
            ["file", "size", "cached", "pieces", "reads", "writes", "syncs", "mode", "because"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(self.rows.iter().map(cells));
        if rows.len() > 1 {
            write!(f, "\n{}", table(&rows, &[1, 2, 3, 4, 5, 6]))?;
        }
        if self.source == "none" {
            writeln!(f, "no mode is recommended without the I/O: give a trace with --trace")?;
        }
        if !self.users.is_empty() {
            let heads = ["process", "pid", "files here", "read in all", "written in all"];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(self.users.iter().map(User::cells));
            write!(f, "\n{}", table(&rows, &[1, 2, 3, 4]))?;
        }
        if self.more {
            writeln!(f, "there are more than {FILES_MAX} files: the rest was not looked at")?;
        }
        if self.unseen > 0 {
            writeln!(f, "not looked at, for want of permission: {}", self.unseen)?;
        }
        match &self.cut {
            Some(cut) => write!(f, "{cut}"),
            None => Ok(()),
        }
    }
}

fn cells(row: &Row) -> Vec<String> {
    let of = |get: fn(&Work) -> String| row.work.as_ref().map_or_else(String::new, get);
    vec![
        row.path.to_string(),
        format_size(row.size_bytes),
        row.cached_bytes.map_or_else(|| "?".to_owned(), format_size),
        row.extents.map_or_else(|| "?".to_owned(), |extents| extents.to_string()),
        of(|work| work.reads.to_string()),
        of(|work| work.writes.to_string()),
        of(|work| work.syncs.to_string()),
        row.advice.as_ref().map_or("", |advice| advice.mode).to_owned(),
        row.advice.as_ref().map_or_else(String::new, |advice| advice.reason.clone()),
    ]
}
