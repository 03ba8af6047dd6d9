//! Passes: each makes the copy what the directory is, and looks only at what may have changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::scan::{Entry, Names, State, is_gone, scan};
use crate::attributes::{self, Left};
use crate::error::{Error, ErrorKind, Result, system};
use crate::update::{Effort, Updated, first_difference, update};
use crate::{Progress, Rate};

/// Files up to this size are copied side by side, a worker for each; all workers take part in a
/// larger one.
const SMALL_BYTES: u64 = 16 << 20;

/// What of a file can have changed since the last pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parts {
    /// What its size and times tell.
    AsTimesTell,
    /// Nothing but its times.
    Nothing,
    /// Its attributes, and these bytes, ascending.
    Only(Vec<Range<u64>>),
    /// Anything.
    All,
}

/// Where passes read a directory.
pub trait Source: Sync {
    /// Begins a pass; returns the directory as this pass is to read it.
    ///
    /// # Errors
    /// When there is nothing to read.
    fn begin(&mut self) -> Result<PathBuf>;

    /// Returns whether nothing changes in what a pass reads.
    fn stands_still(&self) -> bool;

    /// Returns what changed since the last pass began to read, where it does not read the directory
    /// itself.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn changed_since(&self) -> Result<Option<PathBuf>>;

    /// Tells what of a file, by its path from the directory, can have changed since the last pass.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn parts(&self, path: &Path) -> Result<Parts>;
}

/// The directory itself, of any file system.
#[derive(Debug)]
pub struct Plain(pub PathBuf);

impl Source for Plain {
    fn begin(&mut self) -> Result<PathBuf> {
        Ok(self.0.clone())
    }

    fn stands_still(&self) -> bool {
        false
    }

    fn changed_since(&self) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn parts(&self, _: &Path) -> Result<Parts> {
        Ok(Parts::AsTimesTell)
    }
}

/// What a pass did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Files that were looked into.
    pub files: u64,
    /// Names that went, or became something else.
    pub removed: u64,
    /// Bytes that were read of the source.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// How long it took.
    pub took: Duration,
}

/// The copy of a directory, and what is known of it.
#[derive(Debug)]
pub(super) struct Mirror<'a> {
    target: PathBuf,
    /// What the last pass read.
    root: PathBuf,
    workers: usize,
    rate: Option<&'a Rate>,
    /// Files as they were when their copy was made.
    known: HashMap<PathBuf, State>,
    /// Files whose copy was compared since it was made.
    proven: HashSet<PathBuf>,
    /// Nothing changes in what a pass reads.
    stands_still: bool,
    /// What of attributes could not be kept.
    pub(super) left: Left,
    /// Sockets, pipes and device nodes, which are left out.
    pub(super) left_out: Vec<PathBuf>,
    /// Symbolic links that lead out of the directory.
    pub(super) leading_out: Vec<PathBuf>,
}

/// A file that a pass looks into.
struct Job<'a> {
    entry: &'a Entry,
    parts: Option<Vec<Range<u64>>>,
}

impl<'a> Mirror<'a> {
    pub(super) fn new(target: PathBuf, workers: usize, rate: Option<&'a Rate>) -> Self {
        Self {
            target,
            root: PathBuf::new(),
            workers: workers.max(1),
            rate,
            known: HashMap::new(),
            proven: HashSet::new(),
            stands_still: false,
            left: Left::new(),
            left_out: Vec::new(),
            leading_out: Vec::new(),
        }
    }

    /// Makes the copy what the source is.
    pub(super) fn pass(&mut self, source: &mut dyn Source, progress: Progress<'_>) -> Result<Pass> {
        let started = Instant::now();
        let root = source.begin()?;
        self.root.clone_from(&root);
        let entries = scan(&root)?;
        let mut pass = Pass { removed: self.remove_others(&entries)?, ..Pass::default() };
        self.make_directories(&entries)?;
        let mut names = Names::default();
        let (mut jobs, mut further) = (Vec::new(), Vec::new());
        self.left_out.clear();
        self.leading_out.clear();
        for entry in &entries {
            if entry.is.is_file() {
                match names.first(entry) {
                    Some(first) => further.push((entry, first)),
                    None => jobs.extend(self.job(entry, source)?),
                }
            } else if entry.is.is_symlink() {
                self.symlink(&root, entry)?;
            } else if !entry.is.is_dir() {
                self.left_out.push(entry.path.clone());
            }
        }
        let paths: HashSet<&Path> = entries.iter().map(|entry| entry.path.as_path()).collect();
        self.known.retain(|path, _| paths.contains(path.as_path()));
        self.stands_still = source.stands_still();
        self.update_all(&root, jobs, &mut pass, progress)?;
        for (entry, first) in further {
            self.further_name(&entry.path, first)?;
        }
        self.finish_directories(&root, &entries)?;
        self.sync()?;
        pass.took = started.elapsed();
        Ok(pass)
    }

    /// Removes from the copy what the source has not, or has as something else.
    fn remove_others(&self, entries: &[Entry]) -> Result<u64> {
        let kinds: HashMap<&Path, _> =
            entries.iter().map(|entry| (entry.path.as_path(), entry.is.file_type())).collect();
        let mut removed = 0;
        // What lies in a directory comes behind it.
        for there in scan(&self.target)?.into_iter().rev() {
            if kinds.get(there.path.as_path()) == Some(&there.is.file_type()) {
                continue;
            }
            remove(&self.target.join(&there.path), &there.is)?;
            removed += 1;
        }
        Ok(removed)
    }

    fn make_directories(&self, entries: &[Entry]) -> Result<()> {
        for entry in entries.iter().filter(|entry| entry.is.is_dir()) {
            let path = self.target.join(&entry.path);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(system("make", &path))?,
            }
        }
        Ok(())
    }

    /// Says whether a file has to be looked into, and which parts of it.
    fn job<'e>(&self, entry: &'e Entry, source: &dyn Source) -> Result<Option<Job<'e>>> {
        let state = State::of(&entry.is);
        let Some(known) = self.known.get(&entry.path) else {
            return Ok(Some(Job { entry, parts: None }));
        };
        Ok(match source.parts(&entry.path)? {
            Parts::All => Some(Job { entry, parts: None }),
            Parts::Only(parts) => Some(Job { entry, parts: Some(parts) }),
            Parts::Nothing => {
                (!known.is_like(&state)).then_some(Job { entry, parts: Some(Vec::new()) })
            }
            Parts::AsTimesTell => (*known != state).then_some(Job { entry, parts: None }),
        })
    }

    fn update_all(
        &mut self,
        root: &Path,
        jobs: Vec<Job<'_>>,
        pass: &mut Pass,
        progress: Progress<'_>,
    ) -> Result<()> {
        // Until its copy is made again a file is neither known nor compared.
        for job in &jobs {
            self.known.remove(&job.entry.path);
            self.proven.remove(&job.entry.path);
        }
        let (small, large): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.entry.is.len() <= SMALL_BYTES);
        let (target, rate, workers) = (self.target.clone(), self.rate, self.workers);
        let work = |job: &Job<'_>, workers: usize| {
            let path = &job.entry.path;
            let (from, into) = (root.join(path), target.join(path));
            let effort = Effort { workers, rate };
            let result = update(&from, &into, job.parts.as_deref(), effort, progress);
            match result {
                // Removed meanwhile: the next pass removes the copy.
                Err(error) if error.kind == ErrorKind::NotFound && !from.exists() => Ok(None),
                result => result.map(Some),
            }
        };
        let done = side_by_side(&small, workers, |job| work(job, 1))?;
        for (job, updated) in small.iter().zip(done) {
            self.note(&job.entry.path, updated, pass);
        }
        for job in &large {
            let updated = work(job, workers)?;
            self.note(&job.entry.path, updated, pass);
        }
        Ok(())
    }

    fn note(&mut self, path: &Path, updated: Option<Updated>, pass: &mut Pass) {
        let Some(updated) = updated else { return };
        pass.files += 1;
        pass.read += updated.read;
        pass.written += updated.written;
        self.left.extend(updated.left);
        let state = State::of(&updated.source);
        // One that changed a moment ago may change again without a trace.
        if self.stands_still || state.is_settled() {
            self.known.insert(path.to_owned(), state);
        }
    }

    fn symlink(&mut self, root: &Path, entry: &Entry) -> Result<()> {
        let (from, to) = (root.join(&entry.path), self.target.join(&entry.path));
        let leads_to = match std::fs::read_link(&from) {
            Err(error) if is_gone(&error) => return Ok(()),
            leads_to => leads_to.map_err(system("read", &from))?,
        };
        if leads_out(&entry.path, &leads_to) {
            self.leading_out.push(entry.path.clone());
        }
        if std::fs::read_link(&to).is_ok_and(|there| there == leads_to) {
            return attributes::keep_of_link(&entry.is, &to, &mut self.left);
        }
        crate::tree::replace(&to)?;
        std::os::unix::fs::symlink(leads_to, &to).map_err(system("make", &to))?;
        attributes::keep_of_link(&entry.is, &to, &mut self.left)
    }

    /// Gives a file of the copy a further name.
    fn further_name(&self, path: &Path, first: &Path) -> Result<()> {
        let (first, to) = (self.target.join(first), self.target.join(path));
        let id = |path: &Path| std::fs::symlink_metadata(path).map(|is| (is.dev(), is.ino()));
        match (id(&first), id(&to)) {
            // Removed meanwhile.
            (Err(error), _) if is_gone(&error) => return Ok(()),
            (Ok(first), Ok(there)) if first == there => return Ok(()),
            _ => {}
        }
        crate::tree::replace(&to)?;
        std::fs::hard_link(&first, &to).map_err(system("make", &to))
    }

    /// Gives directories what their sources have, the innermost first: filling one moves its times.
    fn finish_directories(&mut self, root: &Path, entries: &[Entry]) -> Result<()> {
        let own = entries.iter().rev().filter(|entry| entry.is.is_dir());
        for path in own.map(|entry| entry.path.as_path()).chain([Path::new("")]) {
            let (from, into) = (join(root, path), join(&self.target, path));
            match attributes::keep_of_directory(&from, &into, &mut self.left) {
                Err(error) if error.kind == ErrorKind::NotFound && !from.exists() => {}
                kept => kept?,
            }
        }
        Ok(())
    }

    /// Makes what was written durable, so that comparisons read it from the device, and so that no
    /// pass leaves work to the stop.
    fn sync(&self) -> Result<()> {
        let root = std::fs::File::open(&self.target).map_err(system("open", &self.target))?;
        bedplate_block::sync_file_system(&root)
            .map_err(system("sync the file system of", &self.target))
    }

    /// Forgets what was compared.
    pub(super) fn doubt_all(&mut self) {
        self.proven.clear();
    }

    /// Compares every file with its copy that was not compared since the copy was made; returns
    /// those that differ, and how much was read.
    pub(super) fn prove(&mut self, progress: Progress<'_>) -> Result<(Vec<PathBuf>, u64)> {
        let root = self.root.clone();
        let entries = scan(&root)?;
        let mut names = Names::default();
        let files: Vec<&Entry> = entries
            .iter()
            .filter(|entry| entry.is.is_file() && names.first(entry).is_none())
            .filter(|entry| !self.proven.contains(&entry.path))
            .collect();
        let (target, rate) = (self.target.clone(), self.rate);
        let compare = |entry: &&Entry, workers: usize| {
            let (from, into) = (root.join(&entry.path), target.join(&entry.path));
            first_difference(&from, &into, Effort { workers, rate }, progress).map_or_else(
                |error| if error.kind == ErrorKind::NotFound { Ok(true) } else { Err(error) },
                |first| Ok(first.is_some()),
            )
        };
        let (small, large): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|entry| entry.is.len() <= SMALL_BYTES);
        let mut differ = side_by_side(&small, self.workers, |entry| compare(entry, 1))?;
        for entry in &large {
            differ.push(compare(entry, self.workers)?);
        }
        let mut different = Vec::new();
        let mut read = 0;
        for (entry, differs) in small.iter().chain(&large).zip(differ) {
            read += entry.is.len().min(entry.is.blocks() * 512);
            if differs {
                self.known.remove(&entry.path);
                different.push(entry.path.clone());
            } else if self.known.get(&entry.path) == Some(&State::of(&entry.is)) {
                self.proven.insert(entry.path.clone());
            }
        }
        Ok((different, read))
    }

    /// Compares names, kinds, sizes, times, owners and rights of everything; returns the first that
    /// differs.
    pub(super) fn first_other_name(&self) -> Result<Option<PathBuf>> {
        let gives_owners = !self.left.contains("owner");
        let look = |root: &Path| -> Result<BTreeMap<PathBuf, String>> {
            let entries = scan(root)?;
            let mut names = Names::default();
            let told = entries
                .iter()
                .filter(|entry| entry.is.is_file() || entry.is.is_dir() || entry.is.is_symlink());
            told.map(|entry| {
                let first = names.first(entry);
                Ok((entry.path.clone(), shown(root, entry, first, gives_owners)?))
            })
            .collect()
        };
        let (ours, theirs) = (look(&self.root)?, look(&self.target)?);
        let only_theirs = theirs.keys().find(|path| !ours.contains_key(*path));
        let other = ours.iter().find(|(path, shown)| theirs.get(*path) != Some(shown));
        Ok(other.map(|(path, _)| path).or(only_theirs).cloned())
    }
}

/// Returns what two copies of an entry have in common.
fn shown(root: &Path, entry: &Entry, first: Option<&Path>, with_owner: bool) -> Result<String> {
    let Entry { path, is } = entry;
    if is.is_symlink() {
        let path = root.join(path);
        return Ok(format!("{:?}", std::fs::read_link(&path).map_err(system("read", &path))?));
    }
    let owner = with_owner.then(|| (is.mode(), is.uid(), is.gid()));
    let content = is.is_file().then(|| (is.len(), first, is.mtime(), is.mtime_nsec()));
    Ok(format!("{owner:?} {content:?}"))
}

/// As `join`, without a slash behind the directory itself.
fn join(root: &Path, path: &Path) -> PathBuf {
    if path == Path::new("") { root.to_owned() } else { root.join(path) }
}

/// Returns whether a link at a path from the directory leads out of it, as far as names tell. An
/// absolute one does, and stays right; a relative one leads elsewhere in the copy.
fn leads_out(link: &Path, leads_to: &Path) -> bool {
    let mut depth = link.components().count() as i64 - 1;
    for part in leads_to.components() {
        match part {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return true,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

fn remove(path: &Path, is: &Metadata) -> Result<()> {
    let removed = if is.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if !is_gone(&error) => Err(Error::system("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Does `work` on all items on several threads; returns the results in the order of the items.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    workers: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(items.len()) {
            scope.spawn(|| {
                while failure.lock().is_none() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    match work(item) {
                        Ok(result) => done.lock().push((at, result)),
                        Err(error) => {
                            failure.lock().get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_directory_are_told() {
        let out = |link: &str, to: &str| leads_out(Path::new(link), Path::new(to));
        assert!(out("a", "../b") && out("a/b", "../../c") && out("a/b", "/c"));
        assert!(!out("a", "b/c") && !out("a/b", "../c") && !out("a/b", "./c/../../d"));
    }
}
