//! Whose pages can tear below a directory: a setting of a server holds for all its data files, not
//! for those that are created from now on alone.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use bedplate::IoMode;

use super::databases::{INNODB_PAGE, POSTGRESQL_PAGE, Torn};
use crate::failure::{Failure, Result};
use crate::mount::live;

/// What was found of two databases.
#[derive(Debug, Default)]
pub struct Below {
    /// What can tear of PostgreSQL.
    pub postgresql: Option<Torn>,
    /// What can tear of InnoDB.
    pub innodb: Option<Torn>,
}

/// Whose data file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Postgresql,
    Innodb,
}

/// Looks at all data files below a directory, and at the directories on the way to them, where
/// others will be created.
pub fn below(dir: &Path, mount_mode: Option<IoMode>) -> Result<Below> {
    let mut found = Below::default();
    look(dir, mount_mode, &mut found)?;
    Ok(found)
}

/// Looks into a directory; returns whose data files lie in it or below.
fn look(dir: &Path, mount_mode: Option<IoMode>, found: &mut Below) -> Result<[bool; 2]> {
    let unlisted = |error: std::io::Error| Failure::system("list", dir, &error);
    let mut holds = [false; 2];
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            found.unknown(Of::Postgresql, dir);
            found.unknown(Of::Innodb, dir);
            return Ok([true; 2]);
        }
        entries => entries.map_err(unlisted)?,
    };
    for entry in entries {
        let entry = entry.map_err(unlisted)?;
        let (kind, path) = (entry.file_type().map_err(unlisted)?, entry.path());
        if kind.is_dir() {
            let below = look(&path, mount_mode, found)?;
            for of in [Of::Postgresql, Of::Innodb].into_iter().filter(|of| below[*of as usize]) {
                holds[of as usize] = true;
                found.note(of, &path, mount_mode)?;
            }
        } else if let Some(space) = table_space(dir, &entry) {
            holds[Of::Postgresql as usize] = true;
            match live::require_mount(&space) {
                Ok(_) => drop(look(&space, mount_mode, found)?),
                // Nothing is known of what lies elsewhere.
                Err(_) => found.unknown(Of::Postgresql, &path),
            }
        } else if let Some(of) = whose(&entry).filter(|_| kind.is_file()) {
            holds[of as usize] = true;
            found.note(of, &path, mount_mode)?;
        }
    }
    Ok(holds)
}

/// Returns where a table space of PostgreSQL leads.
fn table_space(dir: &Path, entry: &DirEntry) -> Option<PathBuf> {
    let is_link =
        dir.ends_with("pg_tblspc") && entry.file_type().is_ok_and(|kind| kind.is_symlink());
    is_link.then(|| entry.path().canonicalize().ok()).flatten()
}

/// Returns whose data file it is, by its name: `16384`, `16384_vm`, `16384.1`; `t.ibd`, `ibdata1`,
/// `undo_001`.
fn whose(entry: &DirEntry) -> Option<Of> {
    let name = entry.file_name().into_string().ok()?;
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    // A segment of PostgreSQL's log has a name of 24 hexadecimal digits, and its records have
    // checksums of their own.
    let is_relation = digits > 0
        && digits < 24
        && matches!(name.as_bytes().get(digits), None | Some(b'_' | b'.'));
    if is_relation {
        return Some(Of::Postgresql);
    }
    let is_space = name.ends_with(".ibd")
        || name.ends_with(".ibu")
        || name.starts_with("ibdata")
        || name.starts_with("undo_");
    is_space.then_some(Of::Innodb)
}

impl Below {
    fn of(&mut self, of: Of) -> &mut Option<Torn> {
        match of {
            Of::Postgresql => &mut self.postgresql,
            Of::Innodb => &mut self.innodb,
        }
    }

    fn unknown(&mut self, of: Of, path: &Path) {
        self.of(of).get_or_insert_with(|| Torn::new(path)).unknown = true;
    }

    /// Notes a file or directory whose pages, or those of its new files, can tear.
    fn note(&mut self, of: Of, path: &Path, mount_mode: Option<IoMode>) -> Result<()> {
        let page = if of == Of::Postgresql { POSTGRESQL_PAGE } else { INNODB_PAGE };
        let unit = match live::get(path, live::UNTORN) {
            // It was removed meanwhile.
            Err(failure) if failure.kind == "not_found" => return Ok(()),
            unit => unit?,
        };
        let unit = unit
            .and_then(|text| crate::cmd::mark::untorn::read(&text))
            .map_or(0, |untorn| untorn.bytes);
        let mode = live::get(path, live::MODE)?.and_then(|mode| mode.parse().ok()).or(mount_mode);
        let cached = mode.is_some_and(IoMode::writes_behind);
        if unit >= page && !cached {
            return Ok(());
        }
        let torn = self.of(of).get_or_insert_with(|| Torn::new(path));
        torn.count += 1;
        torn.cached |= cached;
        Ok(())
    }
}
