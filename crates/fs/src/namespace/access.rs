//! Access control lists of files and directories: set together with the mode that they say, changed
//! by `chmod`, inherited by what is made. Nothing here checks permissions: front ends do.

use super::acl::{Acl, AclKind};
use super::make::SET_GID;
use crate::engine::Engine;
use crate::{Error, ErrorKind, FileKind, InodeNo, NewFile, Result, Timestamp};
use bedplate_store::{PlantedBug, RecordKind, RowChange, Table, pair_key, planted};

/// What becomes of the set-group-ID bit when an access list is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetGroupId {
    /// It stays.
    Keep,
    /// It goes: the caller belongs to another group and has no right to set it (`chmod(2)`).
    Clear,
}

/// A list that is to be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewAcl<'a> {
    pub(crate) kind: AclKind,
    /// Its bytes.
    pub(crate) value: &'a [u8],
    pub(crate) set_gid: SetGroupId,
    /// Refuses one that exists.
    pub(crate) create: bool,
    /// Refuses one that is missing.
    pub(crate) replace: bool,
}

/// Rows of extended attributes that are to be written for an inode.
pub(super) type Attributes = Vec<(&'static [u8], Vec<u8>)>;

impl Engine {
    /// Begins to set a list: no room is made for what is refused here.
    pub(crate) fn begin_set_acl(&self, ino: InodeNo, new: &NewAcl<'_>) -> Result<Acl> {
        let kind = new.kind;
        let refused = |what, why: &str| {
            let name = kind.name().escape_ascii();
            Err(Error::new(what, format!("inode {} cannot have this '{name}': {why}", ino.0)))
        };
        let acl = match Acl::decode(new.value) {
            Ok(acl) => acl,
            Err(why) => return refused(ErrorKind::Invalid, why),
        };
        self.begin_change()?;
        self.need_live(ino)?;
        match (self.inode(ino)?.kind, kind) {
            (FileKind::Symlink, _) => refused(ErrorKind::Unsupported, "it is a symbolic link"),
            (FileKind::Directory, _) | (_, AclKind::Access) => Ok(acl),
            _ => refused(ErrorKind::Invalid, "nothing is made in what is no directory"),
        }
    }

    /// Sets a list, after [`begin_set_acl`](Self::begin_set_acl); an access list sets the mode too,
    /// and one that a mode says alone is not kept.
    pub(crate) fn set_acl(&self, ino: InodeNo, acl: &Acl, new: &NewAcl<'_>) -> Result<()> {
        let kind = new.kind;
        let changing = self.change();
        let inode = self.pin_number(&changing, ino)?;
        let _names = self.lock_names_in(ino);
        self.need_attribute(ino, kind.name(), new.create, new.replace)?;
        self.need_space()?;
        let key = pair_key(ino, kind.name());
        let mode_says_all = kind == AclKind::Access && acl.is_mode_alone();
        let mut rows: Vec<RowChange> = self.acl_note().will_be_set().into_iter().collect();
        if !mode_says_all {
            rows.push(RowChange::put(Table::Xattr, key, acl.encode()));
        } else if self.row(Table::Xattr, &key)?.is_some() {
            rows.push(RowChange::delete(Table::Xattr, key));
        }
        if planted(PlantedBug::AclApartFromMode) && !rows.is_empty() {
            let first = self.commit(RecordKind::Xattr, std::mem::take(&mut rows));
            self.sync_to(first)?;
        }
        let mut attr = inode.attr_lock();
        attr.merge_times();
        attr.row.ctime = Timestamp::now();
        if kind == AclKind::Access {
            attr.row.mode = (attr.row.mode & !0o777) | acl.mode_bits();
            if new.set_gid == SetGroupId::Clear {
                attr.row.mode &= !SET_GID;
            }
        }
        rows.push(attr.change());
        let lsn = self.commit(RecordKind::Xattr, rows);
        inode.note_lsn(lsn, false);
        self.acl_note().is_set();
        Ok(())
    }

    /// Returns a list of an inode.
    ///
    /// # Errors
    /// `Corrupt` where it cannot be one.
    fn acl(&self, ino: InodeNo, kind: AclKind) -> Result<Option<Acl>> {
        let stored = self.row_of(Table::Xattr, ino, kind.name())?;
        stored.map(|bytes| decode_stored(ino, kind, &bytes)).transpose()
    }

    /// Returns the change of an inode's access list, if it has one, that a change of its mode takes
    /// with it. The caller holds the inode's names.
    pub(super) fn acl_after(&self, ino: InodeNo, mode: u32) -> Result<Option<RowChange>> {
        if !self.acl_note().may_be() || planted(PlantedBug::AclOutlivesMode) {
            return Ok(None);
        }
        let Some(mut acl) = self.acl(ino, AclKind::Access)? else { return Ok(None) };
        acl.follow_mode(mode);
        let key = pair_key(ino, AclKind::Access.name());
        Ok(Some(RowChange::put(Table::Xattr, key, acl.encode())))
    }

    /// Returns what is made in a directory with the mode that it gets, and the lists that it gets:
    /// where the directory has a default list, that decides, bounded by the mode; elsewhere the
    /// umask does.
    pub(super) fn inherit_acl(
        &self,
        dir: InodeNo,
        kind: FileKind,
        new: NewFile,
    ) -> Result<(NewFile, Attributes)> {
        if kind == FileKind::Symlink {
            return Ok((new, Vec::new()));
        }
        let may_be = self.acl_note().may_be();
        let default = if may_be { self.acl(dir, AclKind::Default)? } else { None };
        let Some(default) = default else {
            return Ok((NewFile { mode: new.mode & !new.umask, ..new }, Vec::new()));
        };
        let mut access = default.clone();
        access.restrict_to_mode(new.mode);
        let mode = (new.mode & !0o777) | access.mode_bits();
        let mut lists = Vec::new();
        if !access.is_mode_alone() {
            lists.push((AclKind::Access.name(), access.encode()));
        }
        if kind == FileKind::Directory {
            lists.push((AclKind::Default.name(), default.encode()));
        }
        Ok((NewFile { mode, ..new }, lists))
    }
}

/// Decodes a list and encodes it again, for tests that forge rows; `None` for what is none.
#[cfg(any(test, feature = "forge"))]
pub(crate) fn decode_acl(bytes: &[u8]) -> Option<Vec<u8>> {
    Acl::decode(bytes).ok().map(|acl| acl.encode())
}

/// Reads a list that the volume holds.
pub(crate) fn decode_stored(ino: InodeNo, kind: AclKind, bytes: &[u8]) -> Result<Acl> {
    Acl::decode(bytes).map_err(|why| {
        Error::corrupt(format!(
            "the attribute '{}' of inode {} is no access control list: {why}; remove it with \
             'setfattr -x' and set it again",
            kind.name().escape_ascii(),
            ino.0
        ))
    })
}
