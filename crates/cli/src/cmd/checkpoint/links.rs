//! Symbolic links of what is cloned: those that lead out of it, and where to.
//!
//! A clone copies links as they are. One that leads to an absolute place leads there from the clone
//! as well, so a clone of a PostgreSQL cluster would share its table spaces with the original, and
//! `DROP TABLE` in one would destroy the table of the other.

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::render::text;

/// A symbolic link that leads out of what is cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The link, from what is cloned.
    pub at: PathBuf,
    /// What it says.
    pub target: PathBuf,
    /// Where that is.
    pub leads: Leads,
    /// Whether it belongs to a PostgreSQL cluster: a table space, or the write-ahead log.
    pub of_cluster: bool,
}

/// Where a link leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leads {
    /// Into what is cloned, by an absolute path: a copy of the link leads into the original. The
    /// path is from what is cloned.
    Source(PathBuf),
    /// Elsewhere on the same mount. The path is from the root of the volume.
    Volume(PathBuf),
    /// Off the mount.
    Elsewhere,
}

/// What a clone says of a link.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkReport {
    #[serde(serialize_with = "text::readable")]
    link: PathBuf,
    /// Where the link leads in the clone.
    #[serde(serialize_with = "text::readable")]
    target: PathBuf,
    /// Whether it led somewhere else in the original.
    rewritten: bool,
}

impl LinkReport {
    /// Says that a link is as it was, or that it leads to `place` now.
    pub fn new(link: &Link, place: Option<PathBuf>) -> Self {
        Self {
            link: link.at.clone(),
            rewritten: place.is_some(),
            target: place.unwrap_or_else(|| link.target.clone()),
        }
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, target) = (text::name(&self.link), text::name(&self.target));
        if self.rewritten {
            write!(f, "{link} leads to {target} now")
        } else {
            write!(f, "{link} leads to {target}, out of the clone")
        }
    }
}

/// Where the source of a clone is.
#[derive(Debug)]
pub struct Source<'a> {
    /// Where it is read: in the mount, or in a checkpoint of it.
    pub read: &'a Path,
    /// Its place in the present, which is what absolute paths name.
    pub live: &'a Path,
    /// The root of the mount.
    pub mount: &'a Path,
}

impl Source<'_> {
    /// Finds the links that lead out of the source.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn links(&self) -> Result<Vec<Link>> {
        let mut found = Vec::new();
        let mut directories = vec![PathBuf::new()];
        while let Some(dir) = directories.pop() {
            let path = self.read.join(&dir);
            self.look(&dir, &path, &mut directories, &mut found)
                .map_err(|e| Failure::system("read", &path, &e))?;
        }
        found.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(found)
    }

    fn look(
        &self,
        dir: &Path,
        path: &Path,
        directories: &mut Vec<PathBuf>,
        found: &mut Vec<Link>,
    ) -> io::Result<()> {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let at = dir.join(entry.file_name());
            if kind.is_dir() {
                directories.push(at);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                if let Some(leads) = self.leads(dir, &target) {
                    found.push(Link { of_cluster: self.is_of_cluster(&at), at, target, leads });
                }
            }
        }
        Ok(())
    }

    /// Tells where a link in `dir` leads; `None`: within the source, wherever that is.
    fn leads(&self, dir: &Path, target: &Path) -> Option<Leads> {
        let place = lexical(&self.live.join(dir).join(target));
        if target.is_relative() && place.starts_with(self.live) {
            return None;
        }
        let real = place.canonicalize().unwrap_or(place);
        Some(if let Ok(inside) = real.strip_prefix(self.live) {
            Leads::Source(inside.to_owned())
        } else if let Ok(inside) = real.strip_prefix(self.mount) {
            Leads::Volume(Path::new("/").join(inside))
        } else {
            Leads::Elsewhere
        })
    }

    /// Tells whether a link is one that a PostgreSQL cluster keeps data behind.
    fn is_of_cluster(&self, at: &Path) -> bool {
        let is_cluster = |dir: Option<&Path>| {
            dir.is_some_and(|dir| self.read.join(dir).join("PG_VERSION").is_file())
        };
        let parent = at.parent();
        let is_log = at.file_name().is_some_and(|name| name == "pg_wal" || name == "pg_xlog");
        let is_space = parent.and_then(Path::file_name).is_some_and(|name| name == "pg_tblspc");
        is_log && is_cluster(parent) || is_space && is_cluster(parent.and_then(Path::parent))
    }
}

/// Takes `.` and `..` out of an absolute path.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_lead_out_are_found_and_those_of_a_cluster_are_told_apart() {
        let scratch = tempfile::tempdir().unwrap();
        let mount = scratch.path().canonicalize().unwrap().join("mnt");
        let live = mount.join("pg");
        std::fs::create_dir_all(live.join("pg_tblspc")).unwrap();
        std::fs::create_dir_all(live.join("base/1")).unwrap();
        std::fs::create_dir_all(mount.join("space")).unwrap();
        std::fs::write(live.join("PG_VERSION"), "15\n").unwrap();
        symlink(mount.join("space"), live.join("pg_tblspc/16400")).unwrap();
        symlink("/usr", live.join("pg_tblspc/16401")).unwrap();
        symlink(live.join("base"), live.join("pg_tblspc/16402")).unwrap();
        symlink("../../wal", live.join("pg_wal")).unwrap();
        symlink("../PG_VERSION", live.join("base/version")).unwrap();
        symlink("../../../space/x", live.join("base/1/pg_wal")).unwrap();

        let found = Source { read: &live, live: &live, mount: &mount }.links().unwrap();
        let link = |at: &str, target: PathBuf, leads, of_cluster| Link {
            at: at.into(),
            target,
            leads,
            of_cluster,
        };
        assert_eq!(
            found,
            [
                link(
                    "base/1/pg_wal",
                    "../../../space/x".into(),
                    Leads::Volume("/space/x".into()),
                    false
                ),
                link("pg_tblspc/16400", mount.join("space"), Leads::Volume("/space".into()), true),
                link("pg_tblspc/16401", "/usr".into(), Leads::Elsewhere, true),
                link("pg_tblspc/16402", live.join("base"), Leads::Source("base".into()), true),
                link("pg_wal", "../../wal".into(), Leads::Elsewhere, true),
            ]
        );
    }
}
