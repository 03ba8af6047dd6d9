//! What monitoring reads: the counters of files, their names, and the processes that have them
//! open.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_fs::{DefragmenterReport, FileActivity, InodeNo, IoMode, Result};
use serde::Serialize;

use super::open_files::OpenFile;
use super::shared::Shared;

/// Files looked at, and looked up, at once.
const FILES_AT_ONCE: usize = 4096;
/// Names remembered; then all are looked up again.
const NAMES_MAX: usize = 65_536;
/// Opens told of; a file may have more.
const OPENS_MAX: usize = 256;

/// A file with its name.
#[derive(Serialize)]
pub(super) struct Named {
    /// From the root of the file system, readable; `None` when it has no name any more.
    path: Option<String>,
    /// The same as it is, where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    #[serde(flatten)]
    activity: FileActivity,
}

/// What background defragmentation does and did.
#[derive(Serialize)]
pub(super) struct Defragmenter {
    #[serde(flatten)]
    defragmenter: DefragmenterReport,
    /// Of the files it names, from the root of the file system, by inode number; those that have no
    /// name any more are left out.
    paths: HashMap<u64, String>,
}

/// One open of a file.
#[derive(Serialize)]
pub(super) struct OpenTold {
    /// The thread that opened it.
    pid: u32,
    writable: bool,
    /// The mode that the name it was opened by asked for.
    named_mode: Option<IoMode>,
    /// It was opened with `O_DIRECT`.
    direct_flag: bool,
    requested_mode: IoMode,
    misaligned: u64,
    syncs: u64,
    sync_wait_ns: u64,
}

impl Shared {
    /// Counts an I/O that a direct open gets a bounce buffer for.
    pub(super) fn note_alignment(&self, open: &OpenFile, offset: u64, len: usize) {
        if open.how.direct && (offset | len as u64) & (self.io_align - 1) != 0 {
            open.misaligned.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn opens_of(&self, ino: InodeNo) -> Vec<OpenTold> {
        let told = |open: &OpenFile| {
            let (named_mode, direct_flag) = open.file.named_mode();
            OpenTold {
                pid: open.how.pid,
                writable: open.how.writable,
                named_mode,
                direct_flag,
                requested_mode: open.file.requested_mode(),
                misaligned: open.misaligned.load(Relaxed),
                syncs: open.syncs.load(Relaxed),
                sync_wait_ns: open.sync_wait_ns.load(Relaxed),
            }
        };
        self.files.all_of(ino).iter().take(OPENS_MAX).map(|open| told(open)).collect()
    }

    /// Returns the files that did anything, with their names.
    pub(super) fn activities(&self) -> Result<Vec<Named>> {
        let mut found = Vec::new();
        let mut after = InodeNo(0);
        loop {
            let activities = self.fs.activities(after, FILES_AT_ONCE);
            let Some(last) = activities.last() else { return Ok(found) };
            after = last.ino;
            found.extend(self.named(activities)?);
        }
    }

    /// Names without end would be searched for that of a file that has none.
    fn has_name(&self, ino: InodeNo) -> bool {
        self.fs.attr(ino).is_ok_and(|attr| attr.nlink > 0)
    }

    /// Returns what background defragmentation does and did.
    pub(super) fn defragmenter(&self) -> Result<Defragmenter> {
        let defragmenter = self.fs.info().defragmenter;
        let inodes: Vec<InodeNo> =
            defragmenter.now.iter().chain(&defragmenter.last).map(|file| file.ino).collect();
        let paths = self
            .paths(&inodes)?
            .into_iter()
            .map(|(ino, path)| (ino, bedplate_fs::readable_name(&path)))
            .collect();
        Ok(Defragmenter { defragmenter, paths })
    }

    fn named(&self, activities: Vec<FileActivity>) -> Result<Vec<Named>> {
        let inodes: Vec<InodeNo> = activities.iter().map(|activity| activity.ino).collect();
        let mut paths = self.paths(&inodes)?;
        let mut named = |activity: FileActivity| {
            let path = paths.remove(&activity.ino.0);
            let odd = path.as_ref().filter(|path| std::str::from_utf8(path).is_err());
            Named {
                path_bytes: odd.cloned(),
                path: path.as_ref().map(|path| bedplate_fs::readable_name(path)),
                activity,
            }
        };
        Ok(activities.into_iter().map(&mut named).collect())
    }

    /// Returns the paths of those that have one, by inode number.
    fn paths(&self, inodes: &[InodeNo]) -> Result<HashMap<u64, Vec<u8>>> {
        let mut known = self.known_names.lock();
        if known.len() > NAMES_MAX {
            known.clear();
        }
        let mut moved = false;
        known.retain(|ino, place| {
            if !inodes.contains(ino) {
                return true;
            }
            let still = self.fs.lookup(place.dir, &place.name).is_ok_and(|attr| attr.ino == *ino);
            moved |= !still;
            still
        });
        if moved {
            // It may have been a directory above that moved.
            known.clear();
        }
        let unknown: Vec<InodeNo> = inodes
            .iter()
            .copied()
            .filter(|ino| !known.contains_key(ino) && self.has_name(*ino))
            .collect();
        if !unknown.is_empty() {
            known.extend(self.fs.paths_of(&unknown)?);
        }
        let path = |ino: &InodeNo| Some((ino.0, known.get(ino)?.path.clone()));
        Ok(inodes.iter().filter_map(path).collect())
    }
}
