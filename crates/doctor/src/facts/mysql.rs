//! A server of MariaDB or MySQL: variables, what it counted, and how much of its files the page
//! cache holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::system::{Seen, System};

/// Answers SQL with bare rows, columns between tabs.
pub type Ask<'a> = &'a dyn Fn(&str) -> Seen<String>;

/// The variables that are looked at.
const VARIABLES: [&str; 14] = [
    "datadir",
    "innodb_buffer_pool_size",
    "innodb_data_home_dir",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_log_file_size",
    "innodb_log_files_in_group",
    "innodb_log_group_home_dir",
    "innodb_log_write_ahead_size",
    "innodb_page_size",
    "innodb_redo_log_capacity",
    "innodb_undo_directory",
    "version",
];
/// The counters.
const COUNTERS: [&str; 5] = [
    "Innodb_buffer_pool_pages_free",
    "Innodb_buffer_pool_read_requests",
    "Innodb_buffer_pool_reads",
    "Innodb_os_log_written",
    "Uptime",
];

/// A server.
#[derive(Debug, Clone)]
pub struct Mysql {
    told: BTreeMap<String, String>,
}

impl Mysql {
    /// Asks a server.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn ask(ask: Ask<'_>) -> Seen<Self> {
        let list = |names: &[&str]| {
            names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",")
        };
        let variables = list(&VARIABLES);
        let mut rows = ask(&format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({variables})"))?;
        rows.push('\n');
        let counters = list(&COUNTERS);
        rows += &ask(&format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({counters})"))?;
        let told = rows
            .lines()
            .filter_map(|row| row.split_once('\t'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self { told: told.collect() })
    }

    /// Returns a variable or counter; `None` where this version has none.
    #[must_use]
    pub fn told(&self, name: &str) -> Option<&str> {
        self.told.get(name).map(String::as_str)
    }

    /// Returns one that is a number.
    ///
    /// # Errors
    /// Where the server tells none.
    pub fn number(&self, name: &str) -> Seen<u64> {
        self.told(name)
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| format!("the server tells no {name}"))
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.number("innodb_page_size").ok().filter(|b| b.is_power_of_two()).unwrap_or(16384)
    }

    /// Returns how much the log holds before old changes have to be written, in bytes.
    ///
    /// # Errors
    /// Where the server does not tell.
    pub fn log_bytes(&self) -> Seen<u64> {
        if let Ok(bytes) = self.number("innodb_redo_log_capacity") {
            return Ok(bytes);
        }
        let files = self.number("innodb_log_files_in_group").unwrap_or(1);
        Ok(self.number("innodb_log_file_size")?.saturating_mul(files))
    }

    /// Returns the directory of its data.
    #[must_use]
    pub fn data_directory(&self) -> Option<&Path> {
        self.told("datadir").filter(|dir| dir.starts_with('/')).map(Path::new)
    }
}

/// Returns how many bytes of the data files of InnoDB in a directory are in the page cache.
///
/// # Errors
/// Why it was not seen.
pub fn cached_bytes(system: &dyn System, dir: &Path) -> Seen<u64> {
    let mut cached = 0;
    for file in data_files(system, dir)? {
        match system.cached_bytes(&file) {
            Ok(bytes) => cached += bytes,
            // A table that was dropped meanwhile is in no cache.
            Err(why) if why.starts_with("there is no") => {}
            Err(why) => return Err(why),
        }
    }
    Ok(cached)
}

/// Returns the data files in a directory, and in those of the databases in it.
fn data_files(system: &dyn System, dir: &Path) -> Seen<Vec<PathBuf>> {
    let is_data = |name: &str| {
        name.ends_with(".ibd") || name.starts_with("ibdata") || name.starts_with("undo")
    };
    let mut files = Vec::new();
    for name in system.names(dir)? {
        let path = dir.join(&name);
        if system.at(&path).is_dir() {
            let below = system.names(&path)?;
            files.extend(
                below
                    .into_iter()
                    .filter_map(|name| is_data(name.to_str()?).then(|| path.join(name))),
            );
        } else if name.to_str().is_some_and(is_data) {
            files.push(path);
        }
    }
    Ok(files)
}
