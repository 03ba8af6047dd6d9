//! `bedplate checkpoint clone`

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::format_size;
use bedplate_serve::control::Request;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::links::{Leads, Link, LinkReport, Source};
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::mount::Mount;
use crate::reach::Reach;
use crate::render::output::Output;
use crate::render::text;

/// What to clone, and where to.
#[derive(Debug, Args)]
pub struct CloneArguments {
    /// CHECKPOINT, or CHECKPOINT:/PATH for a file or directory of it, or :/PATH for what is there
    /// now
    source: OsString,
    /// The clone's path, on the mount or from the volume's root; nothing is there yet
    new_path: PathBuf,
    /// Leave the links of a PostgreSQL cluster as they are: the clone's table spaces are then those
    /// of the original
    #[arg(long)]
    keep_links: bool,
}

/// Symbolic links that are told one by one.
const LINKS_SHOWN_MAX: usize = 20;

#[derive(Serialize, Deserialize)]
struct Cloned {
    #[serde(default)]
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    inodes: u64,
    extents: u64,
    shared_bytes: u64,
    /// The symbolic links that led out of what was cloned.
    #[serde(default)]
    links: Vec<LinkReport>,
}

/// Changes a clone of the present before it has its name.
pub type Dress<'a> = &'a dyn Fn(&Path) -> Result<()>;

/// Returns the name that a clone has until it is whole.
pub fn unfinished(path: &Path) -> PathBuf {
    beside(path, ".", ".unfinished".as_ref())
}

/// Clones a directory of a mount as it is, with what the links of a cluster lead to. It has its name
/// once `dress` is done with it.
pub fn clone_present(
    mount: &Mount,
    source: &Path,
    new: &Path,
    dress: Dress<'_>,
    output: &Output,
) -> Result<()> {
    let reach = Reach::Mounted(mount.clone());
    let inside = reach.inside(source);
    let arguments = CloneArguments {
        source: [OsStr::new(":"), inside.as_os_str()].into_iter().collect(),
        new_path: new.to_owned(),
        keep_links: false,
    };
    arguments.clone_with_links(mount, &reach, None, inside, Some(dress), output).map(drop)
}

impl CloneArguments {
    pub(super) fn run(&self, reach: &Reach, output: &Output) -> Result<()> {
        let (checkpoint, path) = split(&self.source)?;
        let inside = reach.inside(&path);
        let mut done = match reach {
            Reach::Mounted(mount) => {
                self.clone_with_links(mount, reach, checkpoint, inside, None, output)?
            }
            Reach::Alone(_) => {
                clone(reach, checkpoint, inside, reach.inside_new(&self.new_path), output)?
            }
        };
        done.path.clone_from(&self.new_path);
        output.show(&done)
    }

    /// Clones on a mount. Where a PostgreSQL cluster keeps data behind links, what they lead to is
    /// cloned too, of the same moment, and the links of the clone lead there.
    fn clone_with_links(
        &self,
        mount: &Mount,
        reach: &Reach,
        checkpoint: Option<Vec<u8>>,
        inside: PathBuf,
        dress: Option<Dress<'_>>,
        output: &Output,
    ) -> Result<Cloned> {
        let live = on_mount(mount, &inside);
        let read = checkpoint
            .as_ref()
            .map_or_else(|| live.clone(), |name| on_mount(mount, &in_checkpoint(name, &inside)));
        let source = Source { read: &read, live: &live, mount: &mount.dir };
        // What is not there is refused by the clone itself, in its own words.
        let links = if read.is_dir() { source.links()? } else { Vec::new() };
        let (of_cluster, others): (Vec<_>, Vec<_>) =
            links.into_iter().partition(|link| link.of_cluster && !self.keep_links);
        let mut parts = Parts {
            mount,
            reach,
            output,
            of: checkpoint,
            new: reach.inside_new(&self.new_path),
            dress,
            made: Vec::new(),
        };
        let mut done = match (of_cluster.is_empty(), dress) {
            (true, None) => clone(reach, parts.of, inside, parts.new, output)?,
            (true, Some(_)) => {
                parts.require_new(&self.new_path)?;
                parts.make(inside, &[]).map_err(|failure| parts.undone(failure))?
            }
            (false, _) => self.clone_cluster(parts, inside, &of_cluster)?,
        };
        done.links.extend(others.iter().map(|link| LinkReport::new(link, None)));
        Ok(done)
    }

    fn clone_cluster(
        &self,
        mut parts: Parts<'_>,
        inside: PathBuf,
        links: &[Link],
    ) -> Result<Cloned> {
        require_on_mount(links)?;
        parts.require_new(&self.new_path)?;
        // All parts are of one moment: of the checkpoint that was named, or of a passing one, which
        // the next mount removes if this process cannot.
        let passing =
            parts.of.is_none().then(|| format!(".clone-links-{}", std::process::id()).into_bytes());
        if let Some(name) = &passing {
            let create = Request::Create {
                name: name.clone(),
                paths: Vec::new(),
                keep: false,
                automatic: true,
            };
            let _made: serde_json::Value =
                parts.reach.ask(&create, Access::ReadWrite, parts.output)?;
        }
        let of = parts.of.take().or_else(|| passing.clone()).unwrap_or_default();
        // A table space may have come since the links were looked for: those of the moment that is
        // cloned count.
        let mount = parts.mount;
        let (live, read) =
            (on_mount(mount, &inside), on_mount(mount, &in_checkpoint(&of, &inside)));
        parts.of = Some(of);
        let links = Source { read: &read, live: &live, mount: &mount.dir }.links();
        let made = links.and_then(|links| {
            let links: Vec<Link> = links.into_iter().filter(|link| link.of_cluster).collect();
            require_on_mount(&links)?;
            parts.make(inside, &links)
        });
        let done = made.map_err(|failure| parts.undone(failure));
        if let Some(name) = passing {
            let delete = Request::Delete { name };
            let _deleted: serde_json::Value =
                parts.reach.ask(&delete, Access::ReadWrite, parts.output)?;
        }
        done
    }
}

/// Refuses links that lead off the mount.
fn require_on_mount(links: &[Link]) -> Result<()> {
    let Some(link) = links.iter().find(|link| link.leads == Leads::Elsewhere) else {
        return Ok(());
    };
    let (at, target) = (text::name(&link.at), text::name(&link.target));
    let message = format!(
        "{at} leads to {target}, off the mount, so the clone would share it with the original and \
         a table dropped in one would be gone in both; bring it onto the volume, or say \
         --keep-links"
    );
    Err(Failure::new("invalid", message))
}

/// The parts of a cluster's clone: the cluster, and what its links lead to.
struct Parts<'a> {
    mount: &'a Mount,
    reach: &'a Reach,
    output: &'a Output,
    /// The checkpoint that all are of; `None`: one part alone is cloned as it is.
    of: Option<Vec<u8>>,
    /// The path of the cluster's clone, from the root of the volume; a table space's is that with
    /// its number behind a dot.
    new: PathBuf,
    /// What is done with it before it has its name.
    dress: Option<Dress<'a>>,
    /// What was made so far, on the mount.
    made: Vec<PathBuf>,
}

impl Parts<'_> {
    fn require_new(&self, shown: &Path) -> Result<()> {
        if on_mount(self.mount, &self.new).symlink_metadata().is_ok() {
            return Err(Failure::new("exists", format!("{} exists", shown.display())));
        }
        Ok(())
    }

    /// Makes all parts. The cluster stands under a hidden name until its links lead to the others,
    /// so that no server starts on it before.
    fn make(&mut self, inside: PathBuf, links: &[Link]) -> Result<Cloned> {
        let hidden = unfinished(&self.new);
        let mut sum = self.part(inside, hidden.clone())?;
        let (hidden, whole) = (on_mount(self.mount, &hidden), on_mount(self.mount, &self.new));
        for link in links {
            let place = match &link.leads {
                Leads::Source(within) => whole.join(within),
                Leads::Volume(path) => {
                    let part = beside(
                        &beside(&self.new, "", ".".as_ref()),
                        "",
                        link.at.file_name().unwrap_or_default(),
                    );
                    let made = self.part(path.clone(), part.clone())?;
                    (sum.inodes, sum.extents) =
                        (sum.inodes + made.inodes, sum.extents + made.extents);
                    sum.shared_bytes += made.shared_bytes;
                    on_mount(self.mount, &part)
                }
                Leads::Elsewhere => continue,
            };
            point(&hidden.join(&link.at), &place)?;
            sum.links.push(LinkReport::new(link, Some(place)));
        }
        self.dress.map_or(Ok(()), |dress| dress(&hidden))?;
        std::fs::rename(&hidden, &whole).map_err(|e| Failure::system("name", &whole, &e))?;
        // It has its name, and its links lead to the others: nothing of it is taken back any more.
        self.made.clear();
        let dir = std::fs::File::open(&self.mount.dir)
            .map_err(|e| Failure::system("open", &self.mount.dir, &e))?;
        bedplate_block::sync_file_system(&dir)
            .map_err(|e| Failure::system("sync", &self.mount.dir, &e))?;
        Ok(sum)
    }

    fn part(&mut self, inside: PathBuf, new: PathBuf) -> Result<Cloned> {
        let path = on_mount(self.mount, &new);
        let done = clone(self.reach, self.of.clone(), inside, new, self.output)?;
        self.made.push(path);
        Ok(done)
    }

    /// Removes what was made before a failure, and says what could not be.
    fn undone(&self, mut failure: Failure) -> Failure {
        for path in self.made.iter().filter(|path| path.symlink_metadata().is_ok()) {
            if let Err(e) = std::fs::remove_dir_all(path) {
                failure.message = format!(
                    "{}; {} is left of it ({}): remove it",
                    failure.message,
                    path.display(),
                    crate::failure::plain(&e)
                );
            }
        }
        failure
    }
}

/// Returns a path beside another, whose name has something before and behind.
fn beside(path: &Path, before: &str, behind: &OsStr) -> PathBuf {
    let mut name = OsString::from(before);
    name.push(path.file_name().unwrap_or_default());
    name.push(behind);
    path.with_file_name(name)
}

/// Lets a symbolic link lead to another place; there is always a link under its name.
fn point(link: &Path, place: &Path) -> Result<()> {
    let mut new = link.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let moved = || -> std::io::Result<()> {
        let before = link.symlink_metadata()?;
        std::os::unix::fs::symlink(place, &new)?;
        std::os::unix::fs::lchown(&new, Some(before.uid()), Some(before.gid()))?;
        std::fs::rename(&new, link)
    };
    moved().map_err(|e| Failure::system("point the link", link, &e))
}

/// Asks for one clone; paths are from the root of the volume.
fn clone(
    reach: &Reach,
    checkpoint: Option<Vec<u8>>,
    inside: PathBuf,
    new: PathBuf,
    output: &Output,
) -> Result<Cloned> {
    let request = Request::Clone { checkpoint, path: bytes(inside), target: bytes(new) };
    reach.ask(&request, Access::ReadWrite, output).map_err(|failure| reach.with_places(failure))
}

/// Returns where a path from the root of the volume is on its mount.
fn on_mount(mount: &Mount, inside: &Path) -> PathBuf {
    mount.dir.join(inside.strip_prefix("/").unwrap_or(inside))
}

/// Returns where a path is in a checkpoint, from the root of the volume.
fn in_checkpoint(name: &[u8], inside: &Path) -> PathBuf {
    Path::new("/.checkpoints")
        .join(OsStr::from_bytes(name))
        .join(inside.strip_prefix("/").unwrap_or(inside))
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Divides a source at its first `:/`: a checkpoint's name has no slash.
fn split(source: &OsStr) -> Result<(Option<Vec<u8>>, PathBuf)> {
    let bytes = source.as_bytes();
    let (name, path) = match bytes.windows(2).position(|pair| pair == b":/") {
        Some(at) => (&bytes[..at], Path::new(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (bytes, Path::new("/")),
    };
    if bytes.is_empty() || name.contains(&b'/') {
        let shown = source.to_string_lossy();
        return Err(Failure::usage(format!(
            "'{shown}' names no source: say CHECKPOINT, CHECKPOINT:/PATH, or :/PATH for what is \
             there now"
        )));
    }
    Ok(((!name.is_empty()).then(|| name.to_vec()), path.to_owned()))
}

impl fmt::Display for Cloned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, inodes, extents, shared_bytes, links } = self;
        let (what, extents) = (
            text::count_in(*inodes, "file or directory", "files and directories"),
            text::count(*extents, "extent"),
        );
        write!(
            f,
            "{}: {what}, {} shared in {extents}",
            text::name(path),
            format_size(*shared_bytes)
        )?;
        links.iter().take(LINKS_SHOWN_MAX).try_for_each(|link| write!(f, "\n{link}"))?;
        let more = links.len().saturating_sub(LINKS_SHOWN_MAX);
        if more > 0 {
            write!(f, "\nand {more} more links that lead out of the clone")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_checkpoint_and_a_path() {
        let divided = |text: &str| {
            split(OsStr::new(text))
                .map(|(name, path)| (name.map(|name| String::from_utf8(name).unwrap()), path))
        };
        let some = |name: &str, path: &str| Ok((Some(name.to_owned()), PathBuf::from(path)));
        assert_eq!(divided("nightly").map_err(drop), some("nightly", "/"));
        assert_eq!(divided("a:b:/pg/base:/x").map_err(drop), some("a:b", "/pg/base:/x"));
        assert_eq!(divided(":/pg").map_err(drop), Ok((None, "/pg".into())));
        assert!(divided("").is_err() && divided("/pg").is_err());
    }
}
