//! The files of a database, by how it names them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bedplate_doctor::{Database, Mysql};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::database;
use crate::failure::{Failure, Result};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Tables, indexes, undo: pages.
    Data,
    /// The log that is replayed after a crash.
    Log,
}

/// A file, or a directory in which the database creates such files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub path: PathBuf,
    pub part: Part,
    pub is_directory: bool,
}

/// Finds the files of a database, in the order of their names.
pub fn of(database: &Database) -> Result<BTreeSet<Found>> {
    let directory = database::directory(database)?;
    let mut finder = Finder(BTreeSet::new());
    match database {
        Database::Postgres(_) => finder.postgres(&directory)?,
        Database::Mysql(server) => finder.mysql(server, &directory)?,
        Database::Sqlite(file) => finder.sqlite(file),
    }
    Ok(finder.0)
}

struct Finder(BTreeSet<Found>);

impl Finder {
    fn add(&mut self, path: PathBuf, part: Part, is_directory: bool) {
        self.0.insert(Found { path, part, is_directory });
    }

    /// Adds the files of a directory that are named so; and the directory, if all that is created in it
    /// is for the same.
    fn directory(
        &mut self,
        directory: &Path,
        part: Part,
        is_apart: bool,
        is_one: impl Fn(&str) -> bool,
    ) -> Result<()> {
        if is_apart {
            self.add(directory.to_owned(), part, true);
        }
        for (name, path) in entries(directory)? {
            if is_one(&name) && path.is_file() {
                self.add(path, part, false);
            }
        }
        Ok(())
    }

    /// `storage-file-layout` in the manual of PostgreSQL.
    fn postgres(&mut self, data: &Path) -> Result<()> {
        self.directory(&data.join("global"), Part::Data, false, is_relation)?;
        let mut parents = vec![data.join("base")];
        for (_, space) in entries(&data.join("pg_tblspc"))? {
            // A directory for each version of the server.
            parents.extend(entries(&space)?.into_iter().map(|(_, of_version)| of_version));
        }
        for parent in parents {
            for (_, of_database) in entries(&parent)?.into_iter().filter(|(_, it)| it.is_dir()) {
                self.directory(&of_database, Part::Data, true, is_relation)?;
            }
        }
        self.directory(&data.join("pg_wal"), Part::Log, true, is_segment)
    }

    fn mysql(&mut self, server: &Mysql, data: &Path) -> Result<()> {
        let place = |variable: &str| {
            let told = server.told(variable).filter(|told| !told.is_empty());
            told.map_or_else(|| data.to_owned(), |told| data.join(told))
        };
        for (_, schema) in entries(data)?.into_iter().filter(|(_, path)| path.is_dir()) {
            self.directory(&schema, Part::Data, false, |name| name.ends_with(".ibd"))?;
        }
        for dir in [data.to_owned(), place("innodb_data_home_dir"), place("innodb_undo_directory")]
        {
            self.directory(&dir, Part::Data, false, is_space)?;
        }
        let log = place("innodb_log_group_home_dir");
        self.directory(&log, Part::Log, false, |name| name.starts_with("ib_logfile"))?;
        let of_new = log.join("#innodb_redo");
        if of_new.is_dir() {
            self.directory(&of_new, Part::Log, true, |name| name.starts_with("#ib_redo"))?;
        }
        Ok(())
    }

    fn sqlite(&mut self, file: &Path) {
        self.add(file.to_owned(), Part::Data, false);
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        let log = PathBuf::from(log);
        if log.is_file() {
            self.add(log, Part::Log, false);
        }
    }
}

/// Names and paths in a directory; none where there is no such directory.
fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let unlisted = |error: std::io::Error| Failure::system("list", directory, &error);
    let listed = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(unlisted)?,
    };
    let named = listed.map(|entry| {
        let entry = entry.map_err(unlisted)?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    });
    named.collect()
}

/// `16384`, `16384.1`, `16384_fsm`, `16384_vm.2`; not those of temporary tables, which begin with a `t`.
fn is_relation(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (name, segment) = name.split_once('.').unwrap_or((name, "0"));
    let (number, fork) = name.split_once('_').unwrap_or((name, "vm"));
    is_number(number) && is_number(segment) && ["fsm", "vm", "init"].contains(&fork)
}

/// `000000010000000000000001`.
fn is_segment(name: &str) -> bool {
    name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `ibdata1`, `undo001`, `undo_001`, `mysql.ibd`.
fn is_space(name: &str) -> bool {
    name.ends_with(".ibd") || name.starts_with("ibdata") || name.starts_with("undo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_of_postgres_are_known_by_their_names() {
        for name in ["16384", "16384.1", "16384_fsm", "16384_vm.2", "16384_init"] {
            assert!(is_relation(name), "{name}");
        }
        for name in ["", "t3_16384", "PG_VERSION", "pg_filenode.map", "16384_x", "16384.", "_vm"] {
            assert!(!is_relation(name), "{name}");
        }
        assert!(is_segment("000000010000000A000000FF") && !is_segment("00000002.history"));
    }

    #[test]
    fn files_of_postgres_are_found_in_all_tablespaces() {
        let data = tempfile::tempdir().unwrap();
        let space = tempfile::tempdir().unwrap();
        let of_space = space.path().join("PG_15_202209061/5");
        for dir in ["global", "base/5", "pg_tblspc", "pg_wal/archive_status"] {
            std::fs::create_dir_all(data.path().join(dir)).unwrap();
        }
        std::fs::create_dir_all(&of_space).unwrap();
        std::os::unix::fs::symlink(space.path(), data.path().join("pg_tblspc/16390")).unwrap();
        let (log, history) = ("pg_wal/000000010000000000000001", "pg_wal/00000002.history");
        for file in ["global/1262", "global/pg_control", "base/5/2619.1", "base/5/PG_VERSION", log]
        {
            std::fs::write(data.path().join(file), "x").unwrap();
        }
        std::fs::write(data.path().join(history), "x").unwrap();
        std::fs::write(of_space.join("16391_fsm"), "x").unwrap();
        let mut finder = Finder(BTreeSet::new());
        finder.postgres(data.path()).unwrap();
        let told = |found: &Found| {
            let path = found.path.strip_prefix(data.path()).unwrap();
            (path.to_string_lossy().into_owned(), found.part, found.is_directory)
        };
        let all: Vec<_> = finder.0.iter().map(told).collect();
        let of_space = "pg_tblspc/16390/PG_15_202209061/5";
        let all: Vec<_> =
            all.iter().map(|(path, part, dir)| (path.as_str(), *part, *dir)).collect();
        assert_eq!(
            all,
            [
                ("base/5", Part::Data, true),
                ("base/5/2619.1", Part::Data, false),
                ("global/1262", Part::Data, false),
                (of_space, Part::Data, true),
                (&format!("{of_space}/16391_fsm"), Part::Data, false),
                ("pg_wal", Part::Log, true),
                (log, Part::Log, false),
            ]
        );
    }
}
