//! Which settings a database can do without on a file whose pages do not tear, and which it cannot.
//! Pure.

use bedplate::{IoMode, Untorn, format_size};
use serde::Serialize;

/// A page of PostgreSQL, unless it was built with another.
pub const POSTGRESQL_PAGE: u32 = 8 << 10;
/// A page of InnoDB by default.
pub const INNODB_PAGE: u32 = 16 << 10;
/// The smallest page InnoDB can be made with.
const INNODB_PAGE_MIN: u32 = 4 << 10;

/// What a database may be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The database.
    pub database: &'static str,
    /// The line for its configuration.
    pub setting: String,
    /// Why.
    pub why: String,
}

/// What can tear below a directory whose new files cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// One of them.
    at: String,
    /// How many files and directories there are.
    pub count: u64,
    /// Some of them are served as cached.
    pub cached: bool,
    /// It lies on no mount of ours, or may not be looked at.
    pub unknown: bool,
}

impl Torn {
    /// Begins to count with a file or directory.
    pub fn new(at: &std::path::Path) -> Self {
        Self { at: crate::render::text::name(at), count: 0, cached: false, unknown: false }
    }
}

impl Advice {
    /// Keeps the guard up where something below the directory `path` can tear.
    pub fn unless_torn(self, path: &str, torn: Option<&Torn>, unit: &str) -> Self {
        let guard = match self.setting.as_str() {
            "full_page_writes = off" => "full_page_writes = on",
            "innodb_doublewrite = OFF" => "innodb_doublewrite = ON",
            _ => return self,
        };
        let Some(Torn { at, count, cached, unknown }) = torn else { return self };
        let more = if *count > 1 {
            format!(" and of {} more files and directories", count - 1)
        } else {
            String::new()
        };
        let why = match (unknown, cached) {
            (true, _) => format!(
                "nothing is known of the pages in {at}: it lies on no Bedplate mount, or you may \
                 not look at it"
            ),
            (_, true) => format!(
                "the pages of {at}{more} can tear: some are served as cached (bedplate mode), or \
                 set before: bedplate untorn -R {path} {unit}"
            ),
            _ => format!(
                "the pages of {at}{more} can tear, what was there before included: bedplate untorn \
                 -R {path} {unit}"
            ),
        };
        Self { setting: guard.to_owned(), why, ..self }
    }
}

/// Returns whether a file or directory is a database's log, by the names that databases give: its
/// records are whole or left out by their own checksums, and untorn pages cost it and gain nothing.
pub fn is_log(path: &std::path::Path) -> bool {
    let is_log = |name: &str| {
        matches!(name, "pg_wal" | "pg_xlog" | "#innodb_redo")
            || name.starts_with("ib_logfile")
            || name.ends_with("-wal")
            || name.ends_with("-journal")
    };
    path.components().any(|part| part.as_os_str().to_str().is_some_and(is_log))
}

/// Returns the lines for a file, or for what is created in a directory, that is served in `mode`
/// (`None`: not known).
pub fn of(path: &str, untorn: Option<Untorn>, mode: Option<IoMode>) -> Vec<Advice> {
    // S-58 speaks of writes past the caches; a cache writes its pages when and in which pieces it
    // likes.
    let unit =
        untorn.map(|untorn| untorn.bytes).filter(|_| mode.is_none_or(|mode| !mode.writes_behind()));
    let why_not = match untorn {
        Some(_) if unit.is_none() => format!(
            "it is served as cached, where pages can tear all the same; bedplate mode {path} \
             concurrent ends that, and on a mount costs more than this setting does"
        ),
        Some(_) => String::new(),
        None => "no page size is kept from tearing here".to_owned(),
    };
    vec![postgresql(path, unit, &why_not), innodb(path, unit, &why_not), sqlite()]
}

fn postgresql(path: &str, unit: Option<u32>, why_not: &str) -> Advice {
    let (setting, why) = match unit {
        Some(unit) if unit >= POSTGRESQL_PAGE => (
            "full_page_writes = off",
            format!("pages of 8 KiB do not tear: {} are written untorn", format_size(unit.into())),
        ),
        Some(unit) => (
            "full_page_writes = on",
            format!(
                "only {} are written untorn: bedplate untorn {path} 8k",
                format_size(unit.into())
            ),
        ),
        None if why_not.starts_with("no page") => {
            ("full_page_writes = on", format!("{why_not}: bedplate untorn {path} 8k"))
        }
        None => ("full_page_writes = on", why_not.to_owned()),
    };
    Advice { database: "PostgreSQL", setting: setting.to_owned(), why }
}

fn innodb(path: &str, unit: Option<u32>, why_not: &str) -> Advice {
    let (setting, why) = match unit {
        Some(unit) if unit >= INNODB_PAGE => (
            "innodb_doublewrite = OFF".to_owned(),
            format!(
                "with an innodb_page_size of up to {}k; the default is 16k",
                (unit >> 10).min(64)
            ),
        ),
        Some(unit) if unit >= INNODB_PAGE_MIN => (
            "innodb_doublewrite = ON".to_owned(),
            format!(
                "pages of 16 KiB can tear: bedplate untorn {path} 16k; it can be OFF too where \
                 innodb_page_size = {}k was chosen when the server was set up",
                unit >> 10
            ),
        ),
        Some(unit) => (
            "innodb_doublewrite = ON".to_owned(),
            format!("{} are less than a page of any size", format_size(unit.into())),
        ),
        None if why_not.starts_with("no page") => {
            ("innodb_doublewrite = ON".to_owned(), format!("{why_not}: bedplate untorn {path} 16k"))
        }
        None => ("innodb_doublewrite = ON".to_owned(), why_not.to_owned()),
    };
    Advice { database: "InnoDB", setting, why }
}

fn sqlite() -> Advice {
    let why = "its journal keeps transactions of several pages whole, which pages that do not tear \
               cannot: journal_mode = OFF loses data on any storage";
    Advice {
        database: "SQLite",
        setting: "PRAGMA journal_mode = WAL".to_owned(),
        why: why.to_owned(),
    }
}

impl Advice {
    /// Returns whether it gives a guard up.
    pub fn gives_up(&self) -> bool {
        self.setting.to_ascii_lowercase().ends_with("= off")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(bytes: Option<u32>, mode: Option<IoMode>) -> Vec<String> {
        of("/f", bytes.map(|bytes| Untorn { bytes, by_device: false }), mode)
            .into_iter()
            .map(|advice| advice.setting)
            .collect()
    }

    #[test]
    fn a_guard_is_given_up_only_where_the_whole_page_is_kept_from_tearing() {
        let [on, off] = [
            ["full_page_writes = on", "innodb_doublewrite = ON"],
            ["full_page_writes = off", "innodb_doublewrite = OFF"],
        ];
        for (bytes, mode, postgresql, innodb) in [
            (None, Some(IoMode::Concurrent), on[0], on[1]),
            (Some(4 << 10), Some(IoMode::Concurrent), on[0], on[1]),
            (Some(8 << 10), Some(IoMode::Direct), off[0], on[1]),
            (Some(16 << 10), Some(IoMode::ConcurrentCache), off[0], off[1]),
            (Some(64 << 10), None, off[0], off[1]),
            (Some(64 << 10), Some(IoMode::Cached), on[0], on[1]),
        ] {
            assert_eq!(
                settings(bytes, mode),
                [postgresql, innodb, "PRAGMA journal_mode = WAL"],
                "{bytes:?} {mode:?}"
            );
        }
    }

    /// Once `explain` of pg_wal advised to write it untorn, which the guide warns of.
    #[test]
    fn logs_are_known_by_their_names() {
        for log in ["/mnt/pg/pg_wal", "/mnt/pg/pg_wal/00000001", "/d/a.db-wal", "/d/ib_logfile0"] {
            assert!(is_log(log.as_ref()), "{log}");
        }
        for other in ["/mnt/pg/base/1/2", "/mnt/walnut.db", "/d/pg_wal.old"] {
            assert!(!is_log(other.as_ref()), "{other}");
        }
    }

    #[test]
    fn the_reason_says_what_to_change() {
        let advice = |bytes: Option<u32>, mode| {
            of("/f", bytes.map(|bytes| Untorn { bytes, by_device: false }), Some(mode))
        };
        assert!(advice(None, IoMode::Concurrent)[0].why.contains("bedplate untorn /f 8k"));
        assert!(advice(Some(8 << 10), IoMode::Concurrent)[1].why.contains("innodb_page_size = 8k"));
        assert!(
            advice(Some(16 << 10), IoMode::Cached)[0].why.contains("bedplate mode /f concurrent")
        );
    }
}
