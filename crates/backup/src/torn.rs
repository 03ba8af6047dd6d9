//! Databases that rely on whole pages, restored to where pages can tear.
//!
//! A file that is written untorn on a Bedplate mount is written as anything else elsewhere. A
//! PostgreSQL cluster with `full_page_writes = off` then recovers from half a page without
//! noticing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::manifest::{Kind, Manifest};

/// The files of a cluster's settings; what the later one says counts.
const SETTINGS: [&str; 2] = ["postgresql.conf", "postgresql.auto.conf"];
/// More than any such file has.
const BYTES_MAX: u64 = 1 << 20;

/// Says what is not safe about a backup that was restored to `root`, outside of a Bedplate mount.
pub fn warnings(manifest: &Manifest, root: &Path) -> Vec<String> {
    let mut said: Vec<String> =
        clusters(manifest).iter().filter_map(|dir| of_cluster(&root.join(dir))).collect();
    let untorn = manifest.entries.iter().filter(|entry| entry.untorn_bytes.is_some()).count();
    if untorn > 0 {
        let were = if untorn == 1 { "file or directory was" } else { "files and directories were" };
        said.push(format!(
            "{untorn} {were} written untorn, and may tear here: turn on \
             full_page_writes, the doublewrite buffer or what else guards against torn pages \
             before a database is started on them"
        ));
    }
    said
}

/// Returns the directories of PostgreSQL clusters.
fn clusters(manifest: &Manifest) -> Vec<PathBuf> {
    let is_control = |path: &Path| path.ends_with("global/pg_control");
    let files = manifest.entries.iter().filter(|entry| entry.kind == Kind::File);
    files
        .map(|entry| entry.path.path())
        .filter(|path| is_control(path))
        .filter_map(|path| Some(path.parent()?.parent()?.to_owned()))
        .collect()
}

fn of_cluster(dir: &Path) -> Option<String> {
    let mut is_off = None;
    for name in SETTINGS {
        let mut text = Vec::new();
        // A cluster may have its settings elsewhere.
        let read =
            File::open(dir.join(name)).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
        if read.is_ok() {
            is_off = turned_off(&String::from_utf8_lossy(&text)).or(is_off);
        }
    }
    is_off?.then(|| {
        format!(
            "the PostgreSQL cluster in {} has full_page_writes = off and is not safe here: a page \
             can tear outside of a Bedplate mount; set it to on before the server is started",
            dir.display()
        )
    })
}

/// Returns whether settings turn full pages off; `None` where they say nothing of it.
fn turned_off(text: &str) -> Option<bool> {
    let value_of = |line: &str| {
        let line = line.split('#').next()?.trim();
        let (name, value) = line.split_once(|c: char| c == '=' || c.is_whitespace())?;
        let value = value.trim_start_matches(|c: char| c == '=' || c.is_whitespace());
        name.eq_ignore_ascii_case("full_page_writes")
            .then(|| value.trim().trim_matches('\'').to_ascii_lowercase())
    };
    let value = text.lines().filter_map(value_of).next_back()?;
    // As PostgreSQL reads a truth value: any beginning of a word that means one alone.
    let begins = |word: &str| !value.is_empty() && word.starts_with(&value);
    Some(begins("false") || begins("no") || value == "0" || value == "of" || value == "off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_postgresql_reads_them() {
        for (text, off) in [
            ("", None),
            ("#full_page_writes = off", None),
            ("full_page_writes=off", Some(true)),
            ("full_page_writes off # fast", Some(true)),
            ("  Full_Page_Writes   =  'f'\n", Some(true)),
            ("full_page_writes = 0\nfull_page_writes = on", Some(false)),
            ("full_page_writes_x = off", None),
            ("full_page_writes = o", Some(false)),
        ] {
            assert_eq!(turned_off(text), off, "{text}");
        }
    }
}
