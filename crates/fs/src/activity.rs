//! What single files did since they were loaded: for watching and for tuning.

use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::data::DataPath;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::mode::Service;
use crate::{CounterSnapshot, FileKind, InodeNo, IoMode, Latencies, Result, Waits};
use bedplate_store::{DentryRow, Table, split_key};

/// Names looked at while the metadata is held still.
const NAMES_AT_ONCE: usize = 4096;
/// The deepest path that is followed upwards; a damaged volume may have directories that go round.
const DEPTH_MAX: usize = 4096;

/// What one file did since it was loaded or its counters were reset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileActivity {
    /// The inode.
    pub ino: InodeNo,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The mode set on the file.
    pub file_mode: Option<IoMode>,
    /// The mode it is served in; `None` before its first open in this mount.
    pub effective_mode: Option<IoMode>,
    /// Its opens conflict: it is served `cached` until the last of them goes.
    pub mixed: bool,
    /// How many opens there are.
    pub opens: u32,
    /// What was counted.
    pub counters: CounterSnapshot,
    /// How long its I/O took. Empty for a file that came when too many others had histograms.
    pub latencies: Latencies,
    /// What its reads and writes waited for.
    #[serde(default)]
    pub waits: Waits,
}

/// One name of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath {
    /// The directory it stands in.
    pub dir: InodeNo,
    /// Its name in there.
    pub name: Vec<u8>,
    /// The whole path from the root, beginning with `/`.
    pub path: Vec<u8>,
}

impl Engine {
    /// Returns what a file did.
    pub(crate) fn activity(&self, ino: InodeNo) -> Result<FileActivity> {
        Ok(self.activity_of(&self.inode(ino)?, self.queues_for_threads()))
    }

    /// Returns what the files did that did anything, by rising inode number, from the one after
    /// `after`; at most `limit`.
    pub(crate) fn activities(&self, after: InodeNo, limit: usize) -> Vec<FileActivity> {
        let idle = CounterSnapshot::default();
        let mut inodes = self.loaded_inodes(|inode| {
            inode.ino > after && inode.kind == FileKind::File && inode.snapshot() != idle
        });
        inodes.sort_unstable_by_key(|inode| inode.ino);
        let has_threads = self.queues_for_threads();
        inodes.iter().take(limit).map(|inode| self.activity_of(inode, has_threads)).collect()
    }

    fn activity_of(&self, inode: &Arc<Inode>, has_threads: bool) -> FileActivity {
        let service = DataPath::new(self, inode).service_if_any();
        FileActivity {
            ino: inode.ino,
            size_bytes: inode.stat(self.block_size()).size,
            file_mode: inode.attr_lock().row.io_mode,
            effective_mode: service.map(Service::mode),
            mixed: service.is_some_and(Service::is_mixed),
            // An open or close that is under way is not waited for: it may wait for I/O.
            opens: inode.data.opens.try_lock().map_or(1, |opens| opens.len()),
            counters: inode.snapshot(),
            latencies: inode.latencies.snapshot(),
            waits: inode.data.waits.snapshot(has_threads),
        }
    }

    /// Lets what is counted begin anew, of one file or of everything.
    pub(crate) fn reset_statistics(&self, ino: Option<InodeNo>) -> Result<()> {
        match ino {
            Some(ino) => self.inode(ino)?.reset_statistics(),
            None => {
                self.reset_counters();
                self.sampler().reset();
            }
        }
        Ok(())
    }

    /// Returns one path of each inode that has a name. Reads every name of the file system once, so
    /// ask for many at once and remember them.
    pub(crate) fn paths_of(&self, inodes: &[InodeNo]) -> Result<HashMap<InodeNo, FilePath>> {
        let mut wanted: HashSet<InodeNo> =
            inodes.iter().copied().filter(|ino| *ino != InodeNo::ROOT).collect();
        let mut places = HashMap::new();
        if !wanted.is_empty() {
            self.scan_names(|dir, name, row| {
                if wanted.remove(&row.ino) {
                    places.insert(row.ino, (dir, name.to_vec()));
                }
                !wanted.is_empty()
            })?;
        }
        let mut dirs = HashMap::from([(InodeNo::ROOT, Vec::new())]);
        let mut paths = HashMap::new();
        for (ino, (dir, name)) in places {
            let Some(mut path) = self.path_of_directory(dir, &mut dirs)? else { continue };
            path.push(b'/');
            path.extend_from_slice(&name);
            paths.insert(ino, FilePath { dir, name, path });
        }
        Ok(paths)
    }

    /// Visits every name, in parts, so that no change waits for the whole; until `visit` has seen
    /// enough.
    fn scan_names(&self, mut visit: impl FnMut(InodeNo, &[u8], DentryRow) -> bool) -> Result<()> {
        let mut last: Option<Vec<u8>> = None;
        loop {
            let (mut seen, mut next) = (0, None);
            let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            self.scan_rows(Table::Dentry, from, Bound::Unbounded, |key, value| {
                let (dir, name) = split_key(key)?;
                seen += 1;
                if !visit(dir, name, DentryRow::decode(value)?) {
                    return Ok(ControlFlow::Break(()));
                }
                next = (seen == NAMES_AT_ONCE).then(|| key.to_vec());
                Ok(if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if next.is_none() {
                return Ok(());
            }
            last = next;
        }
    }

    /// Returns a directory's path without a `/` at its end; `None` for one that hangs nowhere.
    fn path_of_directory(
        &self,
        dir: InodeNo,
        known: &mut HashMap<InodeNo, Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let mut below = Vec::new();
        let mut at = dir;
        while !known.contains_key(&at) {
            let Ok(parent) = self.parent(at) else { return Ok(None) };
            let Some(name) = self.name_in(parent, at)? else { return Ok(None) };
            below.push((at, name));
            if below.len() > DEPTH_MAX {
                return Ok(None);
            }
            at = parent;
        }
        let mut path = known[&at].clone();
        for (ino, name) in below.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(&name);
            known.insert(ino, path.clone());
        }
        Ok(Some(path))
    }

    /// Returns the name of a subdirectory.
    fn name_in(&self, dir: InodeNo, ino: InodeNo) -> Result<Option<Vec<u8>>> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let entries = self.names_of(dir, after.as_deref(), NAMES_AT_ONCE)?;
            if let Some(entry) = entries.iter().find(|entry| entry.ino == ino) {
                return Ok(Some(entry.name.clone()));
            }
            match entries.last() {
                Some(last) if entries.len() == NAMES_AT_ONCE => after = Some(last.name.clone()),
                _ => return Ok(None),
            }
        }
    }
}
