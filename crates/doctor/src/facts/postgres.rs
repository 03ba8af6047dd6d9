//! A server of PostgreSQL: settings, what it counted, and which pages are in its buffers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::system::{Seen, System};

/// Answers SQL with bare rows, columns between `|`.
pub type Ask<'a> = &'a dyn Fn(&str) -> Seen<String>;

/// The settings that are looked at.
const SETTINGS: [&str; 16] = [
    "block_size",
    "data_directory",
    "fsync",
    "full_page_writes",
    "huge_pages",
    "huge_pages_status",
    "io_method",
    "max_connections",
    "max_wal_size",
    "server_version_num",
    "shared_buffers",
    "synchronous_commit",
    "wal_buffers",
    "wal_init_zero",
    "wal_recycle",
    "wal_sync_method",
];

/// From so many buffers on a part of them is looked at.
const BUFFERS_MAX: u64 = 1 << 18;
/// The forks of a relation, by number, as they end the names of its files.
const FORKS: [&str; 4] = ["", "_fsm", "_vm", "_init"];
/// Bytes of a file of a relation; what is behind them is in the next.
const SEGMENT_BYTES: u64 = 1 << 30;

/// A page in the buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffered {
    /// The file, from the data directory.
    pub file: PathBuf,
    /// Where the page begins in it, in bytes.
    pub offset: u64,
}

/// Which pages are in the buffers.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// The pages that were looked at.
    pub pages: Vec<Buffered>,
    /// One of so many was.
    pub one_of: u64,
}

/// A server.
#[derive(Debug, Clone)]
pub struct Postgres {
    settings: BTreeMap<String, String>,
    /// Checkpoints by time and by request.
    pub checkpoints: Seen<(u64, u64)>,
    /// Pages found in the buffers, and read into them.
    pub blocks: Seen<(u64, u64)>,
    /// Full page images in the log, bytes of the log, writes because its buffers were full, writes.
    pub wal: Seen<[u64; 4]>,
    /// Bytes of all databases.
    pub size_bytes: Seen<u64>,
    /// Which pages are in the buffers.
    pub buffers: Seen<Buffers>,
}

impl Postgres {
    /// Asks a server.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn ask(ask: Ask<'_>) -> Seen<Self> {
        let names = SETTINGS.map(|name| format!("'{name}'")).join(",");
        let rows = ask(&format!(
            "SELECT name || '=' || setting FROM pg_settings WHERE name IN ({names})"
        ))?;
        let settings = rows
            .lines()
            .filter_map(|row| row.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut server = Self {
            settings: settings.collect(),
            checkpoints: Err(String::new()),
            blocks: pair(
                ask,
                "SELECT coalesce(sum(blks_hit), 0), coalesce(sum(blks_read), 0) FROM \
                 pg_stat_database",
            ),
            wal: Err("before PostgreSQL 14 the log is not counted".to_owned()),
            size_bytes: pair(ask, "SELECT sum(pg_database_size(oid)), 0 FROM pg_database")
                .map(|(bytes, _)| bytes),
            buffers: Err(String::new()),
        };
        let version = server.version();
        server.checkpoints = if version >= 170_000 {
            pair(ask, "SELECT num_timed, num_requested FROM pg_stat_checkpointer")
        } else {
            pair(ask, "SELECT checkpoints_timed, checkpoints_req FROM pg_stat_bgwriter")
        };
        if version >= 140_000 {
            server.wal = wal(ask, version);
        }
        server.buffers = server.ask_buffers(ask);
        Ok(server)
    }

    /// Returns a setting; `None` where this version has none, or tells it to others only.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Returns a setting that is a number, in its unit.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }

    /// Returns its version: 150018.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.number("server_version_num").unwrap_or(0)
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.number("block_size").filter(|bytes| bytes.is_power_of_two()).unwrap_or(8192)
    }

    /// Returns the size of its buffers in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        self.number("shared_buffers").unwrap_or(0).saturating_mul(self.page_bytes())
    }

    /// Returns the directory of its data, where it tells it.
    #[must_use]
    pub fn data_directory(&self) -> Option<&Path> {
        self.setting("data_directory").filter(|dir| dir.starts_with('/')).map(Path::new)
    }

    fn ask_buffers(&self, ask: Ask<'_>) -> Seen<Buffers> {
        let schema = ask("SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace n ON \
             extnamespace = n.oid WHERE extname = 'pg_buffercache'")?;
        let schema = schema.trim();
        if schema.is_empty() {
            return Err("which pages are in the buffers is not told: CREATE EXTENSION \
                        pg_buffercache in the database that is asked"
                .to_owned());
        }
        let one_of = self.number("shared_buffers").unwrap_or(0).div_ceil(BUFFERS_MAX).max(1);
        let rows = ask(&format!(
            "SELECT reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber FROM \
             {schema}.pg_buffercache WHERE relfilenode IS NOT NULL AND bufferid % {one_of} = 0"
        ))?;
        let pages = rows.lines().filter_map(|row| self.buffered(row)).collect();
        Ok(Buffers { pages, one_of })
    }

    /// Reads a row: `1663|5|16384|0|17`.
    fn buffered(&self, row: &str) -> Option<Buffered> {
        let mut numbers = row.split('|').map(|number| number.trim().parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (space, database, relation, fork, block) =
            (next()?, next()?, next()?, next()?, next()?);
        let fork = FORKS.get(usize::try_from(fork).ok()?)?;
        let dir = match space {
            1664 => PathBuf::from("global"),
            1663 => PathBuf::from(format!("base/{database}")),
            // Its directory has the version in its name.
            _ => PathBuf::from(format!("pg_tblspc/{space}/*/{database}")),
        };
        let offset = block.checked_mul(self.page_bytes())?;
        let segment = match offset / SEGMENT_BYTES {
            0 => String::new(),
            segment => format!(".{segment}"),
        };
        let file = dir.join(format!("{relation}{fork}{segment}"));
        Some(Buffered { file, offset: offset % SEGMENT_BYTES })
    }
}

fn wal(ask: Ask<'_>, version: u64) -> Seen<[u64; 4]> {
    // The writes are told elsewhere since 18.
    let writes = if version >= 180_000 { "0" } else { "wal_write" };
    let row =
        ask(&format!("SELECT wal_fpi, wal_bytes, wal_buffers_full, {writes} FROM pg_stat_wal"))?;
    let numbers: Vec<u64> = row.trim().split('|').filter_map(|n| n.parse().ok()).collect();
    numbers.try_into().map_err(|_| "pg_stat_wal answers in a form not known here".to_owned())
}

fn pair(ask: Ask<'_>, sql: &str) -> Seen<(u64, u64)> {
    let row = ask(sql)?;
    let (one, other) = row.trim().split_once('|').unwrap_or((row.trim(), "0"));
    match (one.parse(), other.parse()) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        _ => Err("the server answers in a form not known here".to_owned()),
    }
}

/// Pages that are in the buffers of a server, and in the page cache too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubled {
    /// Bytes in the buffers.
    pub buffered_bytes: u64,
    /// Bytes that are in both.
    pub both_bytes: u64,
}

/// Looks which pages of the buffers are in the page cache too.
///
/// # Errors
/// Why it was not seen.
pub fn doubled(system: &dyn System, server: &Postgres, dir: &Path) -> Seen<Doubled> {
    let buffers = server.buffers.as_ref().map_err(Clone::clone)?;
    let mut of_files: BTreeMap<&Path, Vec<u64>> = BTreeMap::new();
    for page in &buffers.pages {
        of_files.entry(&page.file).or_default().push(page.offset);
    }
    let (os_page, page) = (rustix::param::page_size() as u64, server.page_bytes());
    let mut both = 0_u64;
    for (file, offsets) in of_files {
        let Some(path) = file_of(system, dir, file) else { continue };
        let cached = match system.cached_pages(&path) {
            Ok(cached) => cached,
            // A relation that was dropped meanwhile is in no cache.
            Err(why) if why.starts_with("there is no") => continue,
            Err(why) => return Err(why),
        };
        let is_cached = |offset: &&u64| {
            let first = usize::try_from(**offset / os_page).unwrap_or(usize::MAX);
            let count = usize::try_from(page.div_ceil(os_page)).unwrap_or(1);
            cached.get(first..first.saturating_add(count)).is_some_and(|all| all.iter().all(|c| *c))
        };
        both += offsets.iter().filter(is_cached).count() as u64;
    }
    let bytes = |pages: u64| pages.saturating_mul(page).saturating_mul(buffers.one_of);
    Ok(Doubled { buffered_bytes: bytes(buffers.pages.len() as u64), both_bytes: bytes(both) })
}

/// Returns where a file of a server lies; that of a table space below a directory of the version.
fn file_of(system: &dyn System, dir: &Path, file: &Path) -> Option<PathBuf> {
    let Some((space, rest)) = file.to_str()?.split_once("/*/") else { return Some(dir.join(file)) };
    let space = dir.join(space);
    let version = system.names(&space).ok()?.into_iter().next()?;
    Some(space.join(version).join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_buffers_is_a_place_in_a_file() {
        let server = Postgres::ask(&|_| Ok(String::new())).unwrap();
        let at = |row: &str| {
            server.buffered(row).map(|page| (page.file.display().to_string(), page.offset))
        };
        assert_eq!(at("1663|5|16384|0|17"), Some(("base/5/16384".into(), 17 * 8192)));
        assert_eq!(at("1664|0|1262|2|0"), Some(("global/1262_vm".into(), 0)));
        assert_eq!(at("1663|5|16384|0|131073"), Some(("base/5/16384.1".into(), 8192)));
        assert_eq!(at("24576|5|7|1|0"), Some(("pg_tblspc/24576/*/5/7_fsm".into(), 0)));
        for broken in ["", "1663|5|16384|9|1", "a|b", "1663|5|16384|0|18446744073709551615"] {
            assert_eq!(at(broken), None, "{broken}");
        }
    }
}
