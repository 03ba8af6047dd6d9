//! What monitoring reads: the counters of files, their names, and the processes that have them
//! open.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_fs::{FileActivity, InodeNo, IoMode, MoverReport};
use serde::Serialize;

use super::errno::Answer;
use super::open_files::OpenFile;
use super::shared::Shared;
use super::xattrs::json;

/// The most bytes that the kernel takes as one attribute's value.
const VALUE_BYTES_MAX: usize = 60 << 10;
/// Files looked at for one page.
const PAGE_FILES: usize = 256;
/// Names remembered; then all are looked up anew.
const NAMES_MAX: usize = 65_536;
/// Opens told of; a file may have more.
const OPENS_MAX: usize = 256;

/// A file with its name.
#[derive(Serialize)]
struct Named {
    /// From the root of the file system, readable; `None` when it has no name any more.
    path: Option<String>,
    /// The same as it is, where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    #[serde(flatten)]
    activity: FileActivity,
}

/// As many files as fit into one answer.
#[derive(Serialize)]
pub(super) struct Page {
    files: Vec<Named>,
    /// Where the next page begins; `None` on the last.
    next: Option<u64>,
}

/// What background defragmentation does and did.
#[derive(Serialize)]
pub(super) struct Mover {
    #[serde(flatten)]
    mover: MoverReport,
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

    /// Returns the files behind an inode number that did anything.
    pub(super) fn activities_page(&self, after: InodeNo) -> Answer<Page> {
        let mut activities = self.fs.activities(after, PAGE_FILES);
        let more = activities.len() == PAGE_FILES;
        let mut bytes = 0;
        let fitting = activities.iter().take_while(|activity| {
            // With room for the longest path that is usual; what does not fit after all is cut below.
            bytes += json(activity).map_or(VALUE_BYTES_MAX, |text| text.len() + 64);
            bytes < VALUE_BYTES_MAX
        });
        let count = fitting.count().max(1).min(activities.len());
        let cut = count < activities.len();
        activities.truncate(count);
        let mut page = Page {
            next: activities.last().filter(|_| more || cut).map(|last| last.ino.0),
            files: self.named(activities)?,
        };
        while page.files.len() > 1 && json(&page)?.len() > VALUE_BYTES_MAX {
            page.files.truncate(page.files.len() / 2);
            page.next = page.files.last().map(|last| last.activity.ino.0);
        }
        Ok(page)
    }

    /// Names without end would be searched for that of a file that has none.
    fn has_name(&self, ino: InodeNo) -> bool {
        self.fs.attr(ino).is_ok_and(|attr| attr.nlink > 0)
    }

    /// Returns what background defragmentation does and did; with the paths of its files, where those may be told.
    pub(super) fn mover(&self, with_paths: bool) -> Answer<Mover> {
        let mover = self.fs.info().mover;
        let inodes: Vec<InodeNo> =
            mover.now.iter().chain(&mover.last).map(|file| file.ino).collect();
        let paths = if with_paths { self.paths(&inodes)? } else { HashMap::new() };
        let paths =
            paths.into_iter().map(|(ino, path)| (ino, bedplate_fs::readable_name(&path))).collect();
        Ok(Mover { mover, paths })
    }

    fn named(&self, activities: Vec<FileActivity>) -> Answer<Vec<Named>> {
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
    fn paths(&self, inodes: &[InodeNo]) -> Answer<HashMap<u64, Vec<u8>>> {
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
