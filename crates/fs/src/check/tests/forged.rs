//! Volumes with forged rows.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_store::{
    Bytes, DentryRow, ExtentRow, InodeRow, Table, extent_key, inode_key, pair_key,
};

use crate::forge::{self, RowImage};
use crate::{
    FileBlock, FileKind, FileSystem, FindingKind, FormatOptions, InodeNo, MountOptions, NewFile,
    OpenOptions, Result,
};

pub(super) const SIZE: u64 = 32 << 20;

pub(super) const NEW: NewFile = NewFile { mode: 0o644, uid: 1, gid: 2, umask: 0 };

/// A volume with `/d/one` and `/d/two` of some blocks, `/d/link`, `/d/e` and nothing to recover.
pub(in crate::check) struct Forged {
    pub(super) memory: Arc<MemoryDevice>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(in crate::check) d: InodeNo,
    pub(in crate::check) e: InodeNo,
    pub(in crate::check) one: InodeNo,
    pub(in crate::check) two: InodeNo,
    pub(in crate::check) link: InodeNo,
}

impl Forged {
    pub(in crate::check) fn new() -> Self {
        let memory = MemoryDevice::new(SIZE);
        let device: Arc<dyn BlockDevice> = memory.clone();
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
        let d = fs.create_dir_all("/d").unwrap().ino;
        let e = fs.create_dir_all("/d/e").unwrap().ino;
        let file = |name: &str| {
            let file = fs.open(format!("/d/{name}"), &OpenOptions::create()).unwrap();
            file.write_at(&[7; 3 * 4096], 0).unwrap();
            file.sync_all().unwrap();
            file.ino()
        };
        let (one, two) = (file("one"), file("two"));
        let link = fs.symlink(d, b"link", b"one", NEW).unwrap().ino;
        fs.set_xattr(one, b"user.note", b"kept", false, false).unwrap();
        fs.unmount().unwrap();
        Self { memory, device, d, e, one, two, link }
    }

    pub(in crate::check) fn put(&self, rows: &[RowImage]) {
        forge::put_rows(&self.device, rows).unwrap();
    }

    pub(in crate::check) fn value(&self, table: Table, key: &[u8]) -> Vec<u8> {
        let rows = forge::rows(&self.device).unwrap();
        rows.into_iter()
            .find(|row| row.table == table as u8 && row.key == key)
            .unwrap()
            .value
            .unwrap()
    }

    pub(in crate::check) fn inode(&self, ino: InodeNo) -> InodeRow {
        InodeRow::decode(&self.value(Table::Inode, &inode_key(ino))).unwrap()
    }

    pub(in crate::check) fn with_inode(&self, ino: InodeNo, change: impl FnOnce(&mut InodeRow)) {
        let mut row = self.inode(ino);
        change(&mut row);
        self.put(&[put(Table::Inode, inode_key(ino), row.encode())]);
    }

    pub(in crate::check) fn extent(&self, ino: InodeNo) -> ExtentRow {
        ExtentRow::decode(&self.value(Table::Extent, &extent_key(ino, FileBlock(0)))).unwrap()
    }

    pub(super) fn name(&self, dir: InodeNo, name: &[u8], ino: InodeNo, kind: FileKind) {
        self.put(&[put(Table::Dentry, pair_key(dir, name), DentryRow { ino, kind }.encode())]);
    }

    /// Checks, requires exactly these findings, and that a repair does what `repairable` says.
    pub(in crate::check) fn finds(&self, wanted: &[(FindingKind, &str)], repairable: bool) {
        let before = self.memory.snapshot();
        let report = FileSystem::check(&self.device, None, false).unwrap();
        assert_eq!(
            self.memory.snapshot().first_difference(&before),
            None,
            "I-CHK-1: a check writes nothing"
        );
        let found: Vec<_> = report
            .findings
            .iter()
            .map(|finding| (finding.kind, finding.message.as_str()))
            .collect();
        assert_eq!(found.len(), wanted.len(), "{found:#?}");
        for (kind, part) in wanted {
            assert!(
                found.iter().any(|(found, message)| found == kind && message.contains(part)),
                "{kind:?} '{part}' is not among {found:#?}"
            );
        }
        assert!(report.findings.iter().all(|finding| !finding.remedy.is_empty()));
        assert_eq!(report.is_repairable(), repairable, "{:#?}", report.findings);

        let report = FileSystem::check(&self.device, None, true).unwrap();
        assert_eq!(report.is_sound(), repairable);
        if repairable {
            let again = FileSystem::check(&self.device, None, false).unwrap();
            assert!(again.findings.is_empty() && again.clean_unmount, "{:#?}", again.findings);
            self.mount().unwrap().unmount().unwrap();
        } else {
            assert_eq!(
                self.memory.snapshot().first_difference(&before),
                None,
                "I-CHK-1: a repair that refuses writes nothing"
            );
        }
    }

    pub(in crate::check) fn mount(&self) -> Result<FileSystem> {
        FileSystem::mount(Arc::clone(&self.device), None, MountOptions::default())
    }
}

pub(in crate::check) fn put(
    table: Table,
    key: impl Into<Bytes>,
    value: impl Into<Bytes>,
) -> RowImage {
    RowImage { table: table as u8, key: key.into().to_vec(), value: Some(value.into().to_vec()) }
}

pub(in crate::check) fn delete(table: Table, key: impl Into<Bytes>) -> RowImage {
    RowImage { table: table as u8, key: key.into().to_vec(), value: None }
}
