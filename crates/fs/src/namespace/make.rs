//! Making files, directories, links and nodes.

use std::sync::Arc;

use super::access::Attributes;
use super::{put_name, touch_directory};
use crate::data::{EXTENT_SIZE, INTEGRITY, PLACEMENT, RELEASE_BEHIND, UNTORN};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Attr, Error, ErrorKind, FileKind, InodeNo, Lsn, NewFile, Result, Timestamp};
use bedplate_store::{
    ExtentMap, InodeRow, PlantedBug, RecordKind, RowChange, Table, check_name, inode_key, pair_key,
    planted,
};

pub(super) const SET_GID: u32 = 0o2000;
/// The permission bits that there are.
pub(crate) const MODE_BITS: u32 = 0o7777;
/// Longest target of a symbolic link in bytes.
const TARGET_BYTES_MAX: usize = 4095;
const _: () =
    assert!(SET_GID & MODE_BITS == SET_GID, "the bit that a directory hands down is one of a mode");
/// Most names one inode may have.
const LINKS_MAX: u32 = 1 << 31;
/// Blocks that must be available before a new inode is accepted.
const METADATA_BLOCKS: u64 = 1;

/// Whether a symbolic link may lead there.
pub(crate) fn target_is_possible(target: &[u8]) -> bool {
    (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

/// Refuses targets that no symbolic link can have.
pub(crate) fn check_target(target: &[u8]) -> Result<()> {
    if target_is_possible(target) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the target of a symbolic link has 1 to {TARGET_BYTES_MAX} bytes without NUL, not {}",
            target.len()
        ),
    ))
}

/// What is to be made.
pub(crate) struct Making<'a> {
    pub(crate) kind: FileKind,
    pub(crate) new: NewFile,
    pub(crate) rdev: u32,
    pub(crate) target: &'a [u8],
}

impl Engine {
    /// Begins to make an object under a name: no room is made for what is refused here.
    pub(crate) fn begin_make(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.begin_change()?;
        self.need_live(dir)
    }

    /// Makes an object under a name, after [`begin_make`](Self::begin_make).
    pub(crate) fn make(&self, dir: InodeNo, name: &[u8], making: &Making<'_>) -> Result<Attr> {
        let _names = self.lock_names_in(dir);
        let parent = self.directory(dir)?;
        self.need_free(dir, name)?;
        self.need_space()?;
        let mut inherited = self.inherited_in(dir, making.kind)?;
        let (new, lists) = self.inherit_acl(dir, making.kind, making.new)?;
        inherited.extend(lists);
        let mut rows = Vec::with_capacity(5);
        let inode = self.new_inode_in(&parent, &Making { new, ..*making }, &mut rows);
        rows.push(put_name(dir, name, inode.ino, making.kind));
        put_inherited(inode.ino, inherited, &mut rows);
        let locks =
            touch_directory(&parent, i32::from(making.kind == FileKind::Directory), &mut rows);
        debug_assert!(locks.row.nlink > 0, "I-NAM-1: nothing is made in a directory that went");
        let lsn = self.commit(RecordKind::Create, rows);
        drop(locks);
        inode.note_lsn(lsn, true);
        parent.note_lsn(lsn, false);
        Ok(inode.stat(self.block_size()))
    }

    /// Begins to make a file without a name: no room is made for what is refused here.
    pub(crate) fn begin_make_unnamed(&self, dir: InodeNo) -> Result<()> {
        self.begin_change()?;
        self.need_live(dir)
    }

    /// Makes a pinned file without a name, after [`begin_make_unnamed`](Self::begin_make_unnamed):
    /// an orphan until it is linked, which takes after its directory as a named one does.
    pub(crate) fn make_unnamed(&self, dir: InodeNo, new: NewFile) -> Result<Attr> {
        self.need_space()?;
        let _names = self.lock_names_in(dir);
        let parent = self.directory(dir)?;
        let mut inherited = self.inherited_in(dir, FileKind::File)?;
        let (new, lists) = self.inherit_acl(dir, FileKind::File, new)?;
        inherited.extend(lists);
        let row = InodeRow {
            nlink: 0,
            ..new_row(&parent, &Making { kind: FileKind::File, new, rdev: 0, target: &[] })
        };
        let mut rows = Vec::with_capacity(3);
        let inode = self.new_inode(row, &mut rows);
        inode.pin()?;
        put_inherited(inode.ino, inherited, &mut rows);
        rows.push(RowChange::put(Table::Orphan, inode_key(inode.ino), Vec::new()));
        let lsn = self.commit(RecordKind::Create, rows);
        inode.note_lsn(lsn, true);
        Ok(inode.stat(self.block_size()))
    }

    pub(crate) fn read_link(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("inode {} is not a symbolic link", ino.0),
            ));
        }
        let attr = inode.attr_lock();
        Ok(attr.row.target.clone())
    }

    pub(crate) fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        self.begin_change()?;
        self.need_live(dir).and_then(|()| self.need_live(ino))?;
        let changing = self.change();
        // One without names may be on its way out.
        let inode = self.pin_number(&changing, ino)?;
        let _names = self.lock_names_in(dir);
        let parent = self.directory(dir)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                format!("inode {} is a directory and can have one name only", ino.0),
            ));
        }
        self.need_free(dir, name)?;
        let mut attr = inode.attr_lock();
        if attr.row.nlink >= LINKS_MAX {
            return Err(Error::new(
                ErrorKind::TooManyLinks,
                format!("inode {} has {LINKS_MAX} names already", ino.0),
            ));
        }
        let was_orphan = attr.row.nlink == 0;
        attr.row.nlink += 1;
        attr.row.ctime = Timestamp::now();
        let mut rows = vec![attr.change(), put_name(dir, name, ino, inode.kind)];
        let parent_lock = touch_directory(&parent, 0, &mut rows);
        if was_orphan {
            rows.push(RowChange::delete(Table::Orphan, inode_key(ino)));
        }
        let lsn = self.commit(RecordKind::Link, rows);
        drop((attr, parent_lock));
        inode.note_lsn(lsn, true);
        parent.note_lsn(lsn, false);
        Ok(inode.stat(self.block_size()))
    }

    /// Gives an orphan that no other thread can reach its first name, and `nlink` links. The caller
    /// holds the names lock alone and found the name free.
    pub(crate) fn name_orphan(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        nlink: u32,
    ) -> Lsn {
        let directory = inode.kind == FileKind::Directory;
        let mut rows = vec![
            put_name(dir.ino, name, inode.ino, inode.kind),
            RowChange::delete(Table::Orphan, inode_key(inode.ino)),
        ];
        let dir_lock = touch_directory(dir, i32::from(directory), &mut rows);
        let mut attr = inode.attr_lock();
        debug_assert_eq!(attr.row.nlink, 0, "inode {} gets its first name", inode.ino.0);
        attr.row.nlink = nlink;
        if directory {
            attr.row.parent = dir.ino;
        }
        rows.push(attr.change());
        let lsn = self.commit(RecordKind::Link, rows);
        drop((attr, dir_lock));
        inode.note_lsn(lsn, true);
        dir.note_lsn(lsn, false);
        lsn
    }

    /// A file or directory is written untorn, and with checksums, where the directory it is made in is,
    /// gets extents of the same size, releases the same pages and lies on the same members.
    fn inherited_in(&self, dir: InodeNo, kind: FileKind) -> Result<Attributes> {
        let mut found = Vec::new();
        if matches!(kind, FileKind::File | FileKind::Directory) {
            for name in [UNTORN, INTEGRITY, EXTENT_SIZE, RELEASE_BEHIND, PLACEMENT] {
                if name == PLACEMENT && planted(PlantedBug::PlacementNotInherited) {
                    continue;
                }
                found.extend(self.row_of(Table::Xattr, dir, name)?.map(|value| (name, value)));
            }
        }
        Ok(found)
    }

    /// Refuses what grows the metadata of a full volume. Asked when nothing else stands in the way
    /// of the change: the caller may make room by deleting checkpoints and try again, and none is
    /// deleted for what is refused anyway.
    pub(crate) fn need_space(&self) -> Result<()> {
        if self.would_fit(METADATA_BLOCKS) {
            return Ok(());
        }
        Err(Error::no_space(METADATA_BLOCKS, "the volume is full: delete something, or grow it"))
    }

    /// Adds the rows of a new inode with one name to `rows`.
    pub(super) fn new_inode_in(
        &self,
        parent: &Inode,
        making: &Making<'_>,
        rows: &mut Vec<RowChange>,
    ) -> Arc<Inode> {
        self.new_inode(new_row(parent, making), rows)
    }

    fn new_inode(&self, row: InodeRow, rows: &mut Vec<RowChange>) -> Arc<Inode> {
        debug_assert!(
            row.target.is_empty() || row.size == row.target.len() as u64,
            "a symbolic link is as long as its target: {row:?}"
        );
        let ino = self.new_ino();
        debug_assert!(ino.is_possible(), "inode numbers do not run out: {}", ino.0);
        rows.push(RowChange::put(Table::Inode, inode_key(ino), row.encode()));
        let inode = Arc::new(Inode::new(ino, row));
        inode.data.set_map(self.maps().begin(ExtentMap::default()));
        self.add_inode(Arc::clone(&inode));
        self.count_inodes(1);
        inode
    }
}

fn put_inherited(ino: InodeNo, inherited: Attributes, rows: &mut Vec<RowChange>) {
    let put = |(name, value)| RowChange::put(Table::Xattr, pair_key(ino, name), value);
    rows.extend(inherited.into_iter().map(put));
}

fn new_row(parent: &Inode, making: &Making<'_>) -> InodeRow {
    let attr = parent.attr_lock();
    let directory = making.kind == FileKind::Directory;
    let inherits_group = attr.row.mode & SET_GID != 0;
    let set_gid = if inherits_group && directory { SET_GID } else { 0 };
    let now = Timestamp::now();
    InodeRow {
        kind: making.kind,
        mode: (making.new.mode & MODE_BITS) | set_gid,
        nlink: if directory { 2 } else { 1 },
        uid: making.new.uid,
        gid: if inherits_group { attr.row.gid } else { making.new.gid },
        rdev: if matches!(making.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            making.rdev
        } else {
            0
        },
        size: making.target.len() as u64,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        io_mode: if matches!(making.kind, FileKind::File | FileKind::Directory) {
            attr.row.io_mode
        } else {
            None
        },
        parent: if directory { parent.ino } else { InodeNo(0) },
        target: making.target.to_vec(),
    }
}
