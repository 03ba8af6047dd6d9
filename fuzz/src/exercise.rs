//! Does everything to a volume that may be hostile: check, mount read-only, mount and use, salvage,
//! repair.
//!
//! What must hold whatever the volume says:
//! - no I/O outside the device, and none without end ([`Checked`]);
//! - a check, a read-only mount, a salvage and a repair that refuses write nothing;
//! - file data never goes where the superblocks, the log or the metadata lie;
//! - what a check calls clean mounts, and nothing in it or in its checkpoints turns out to be
//!   corrupt, also after they became the present;
//! - what a repair calls mended is clean for the next check;
//! - of what a check calls clean, a salvage loses and doubts nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, Snapshot};
use bedplate_fs::{
    AllocateMode, CheckReport, CheckpointOptions, Error, ErrorKind, FileKind, FileSystem, InodeNo,
    NewFile, OpenOptions, RenameMode, RollbackOptions, Salvage, SetAttr, forge,
};

use crate::base::options;
use crate::checked::{Checked, MARK, Watch};

/// How many files and directories of a volume are looked at.
const NODES_MAX: usize = 400;
/// How many files are written.
const WRITTEN_MAX: usize = 6;

/// Does everything to the volume.
pub fn exercise(snapshot: &Snapshot) {
    let report = check(snapshot);
    let clean = report.is_some_and(|report| report.findings.is_empty());
    look(snapshot, clean);
    use_it(snapshot, clean);
    salvage(snapshot, clean);
    if !clean {
        repair(snapshot);
    }
}

fn device(snapshot: &Snapshot, read_only: bool) -> (Arc<Checked>, Arc<dyn BlockDevice>) {
    let probe: Arc<dyn BlockDevice> = Watch::over(snapshot, Vec::new());
    let checked = Watch::over(snapshot, forge::regions(&probe).unwrap_or_default());
    if read_only {
        checked.forbid_writes();
    }
    (Arc::clone(&checked), checked)
}

/// Every refusal says why.
fn explained(error: &Error) {
    assert!(error.message.len() > 10, "{error:?} explains nothing");
}

/// Takes an outcome, which may be any refusal; in a volume that is `clean`, not that of corruption.
fn tolerate<T>(result: bedplate_fs::Result<T>, clean: bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            explained(&error);
            assert!(
                !clean || error.kind != ErrorKind::Corrupt,
                "a check found nothing, and now: {error}"
            );
            None
        }
    }
}

fn check(snapshot: &Snapshot) -> Option<CheckReport> {
    let (checked, device) = device(snapshot, true);
    let report = FileSystem::check(&device, None, false);
    checked.assert_obeyed();
    match report {
        Ok(report) => {
            assert!(
                report.findings.iter().all(|finding| !finding.mended && finding.message.len() > 10)
            );
            Some(report)
        }
        Err(error) => {
            explained(&error);
            None
        }
    }
}

fn look(snapshot: &Snapshot, clean: bool) {
    let (checked, device) = device(snapshot, true);
    match FileSystem::mount(device, None, options(true)) {
        Ok(fs) => {
            walk(&fs, clean);
            tolerate(fs.unmount(), clean);
        }
        Err(error) => {
            explained(&error);
            assert!(!clean, "a check found nothing, and yet it does not mount read-only: {error}");
        }
    }
    checked.assert_obeyed();
}

fn use_it(snapshot: &Snapshot, clean: bool) {
    let (checked, device) = device(snapshot, false);
    match FileSystem::mount(Arc::clone(&device), None, options(false)) {
        Ok(fs) => {
            let files = walk(&fs, clean);
            change(&fs, &files, clean);
            tolerate(fs.sync(), clean);
            tolerate(fs.unmount(), clean);
        }
        Err(error) => {
            explained(&error);
            assert!(!clean, "a check found nothing, and yet it does not mount: {error}");
            // The tree's own notes in its file, and that file's length, are no harm.
            assert!(
                checked.writes_elsewhere() == 0 || error.kind == ErrorKind::NoSpace,
                "it was written to and then refused: {error}"
            );
        }
    }
    checked.assert_obeyed();
    if clean {
        let again = FileSystem::check(&device, None, false).expect("it could be checked before");
        assert!(again.findings.is_empty(), "it was clean, was used, and now: {:?}", again.findings);
    }
}

fn repair(snapshot: &Snapshot) {
    let (checked, device) = device(snapshot, false);
    match FileSystem::check(&device, None, true) {
        Ok(report) if report.is_sound() => {
            let again = FileSystem::check(&device, None, false).expect("it was mended");
            assert!(
                again.findings.is_empty(),
                "mended {:?}, and yet {:?}",
                report.findings,
                again.findings
            );
            let fs = FileSystem::mount(device, None, options(false)).expect("it was mended");
            walk(&fs, true);
            tolerate(fs.unmount(), true);
        }
        Ok(_) => assert_eq!(checked.writes(), 0, "a repair that refuses writes nothing"),
        Err(error) => {
            explained(&error);
            assert_eq!(checked.writes(), 0, "a repair that refuses writes nothing: {error}");
        }
    }
    checked.assert_obeyed();
}

/// Salvages; of what is sound, everything.
fn salvage(snapshot: &Snapshot, clean: bool) {
    let (checked, device) = device(snapshot, true);
    match Salvage::open(&device, None, None) {
        Ok(salvage) => {
            assert!(
                !clean || salvage.losses().is_empty(),
                "a check found nothing, and yet {:?}",
                salvage.losses()
            );
            for entry in salvage.entries().iter().take(NODES_MAX) {
                let name = &entry.name;
                assert!(
                    (1..=255).contains(&name.len())
                        && !name.contains(&b'/')
                        && !name.contains(&0)
                        && name != b"."
                        && name != b".."
                );
                assert!(
                    !clean || entry.doubt.is_none(),
                    "a check found nothing, and yet {:?}",
                    entry.doubt
                );
                assert!(
                    salvage.attributes(entry.attr.ino).iter().all(|(name, _)| !name.is_empty())
                );
                let lost = salvage
                    .read::<std::convert::Infallible>(entry.attr.ino, |_, _| Ok(()))
                    .unwrap_or_else(|never| match never {});
                assert!(!clean || lost.is_empty(), "a check found nothing, and yet {lost:?}");
            }
        }
        Err(error) => {
            explained(&error);
            assert!(!clean, "a check found nothing, and yet nothing can be salvaged: {error}");
        }
    }
    checked.assert_obeyed();
}

/// Looks at every name, up to a bound, and returns the regular files found.
fn walk(fs: &FileSystem, clean: bool) -> Vec<InodeNo> {
    for checkpoint in fs.checkpoints() {
        tolerate(fs.checkpoint_space(&checkpoint.name), clean);
        let path = std::path::Path::new(".checkpoints").join(OsStr::from_bytes(&checkpoint.name));
        if let Some(attr) = tolerate(fs.resolve(path), clean) {
            walk_below(fs, attr.ino, clean);
        }
    }
    walk_below(fs, InodeNo::ROOT, clean)
}

fn walk_below(fs: &FileSystem, top: InodeNo, clean: bool) -> Vec<InodeNo> {
    let mut files = Vec::new();
    let mut directories = vec![(top, 0)];
    let mut seen = 0;
    while let Some((dir, depth)) = directories.pop() {
        tolerate(fs.parent(dir), clean);
        let Some(entries) = tolerate(fs.read_dir(dir, None, NODES_MAX), clean) else { continue };
        for entry in entries {
            seen += 1;
            if seen > NODES_MAX {
                return files;
            }
            let Some(attr) = tolerate(fs.lookup(dir, &entry.name), clean) else { continue };
            look_at(fs, attr.ino, clean);
            match attr.kind {
                FileKind::Directory if depth < 8 => directories.push((attr.ino, depth + 1)),
                FileKind::File => files.push(attr.ino),
                FileKind::Symlink => drop(tolerate(fs.read_link(attr.ino), clean)),
                _ => {}
            }
        }
    }
    files
}

fn look_at(fs: &FileSystem, ino: InodeNo, clean: bool) {
    for name in tolerate(fs.list_xattr(ino), clean).unwrap_or_default() {
        tolerate(fs.get_xattr(ino, &name), clean);
    }
    if !fs.attr(ino).is_ok_and(|attr| attr.kind == FileKind::File) {
        return;
    }
    let Some(file) = tolerate(fs.open_inode(ino, &OpenOptions::read_only()), clean) else { return };
    let mut buf = AlignedBuf::zeroed(16 << 10);
    for at in [0, file.size() / 2, file.size().saturating_sub(100), 1 << 20] {
        tolerate(file.read_at(&mut buf, at), clean);
    }
    tolerate(file.seek_data(0), clean);
    tolerate(file.seek_hole(0), clean);
    tolerate(file.extents(), clean);
}

fn change(fs: &FileSystem, files: &[InodeNo], clean: bool) {
    let mut data = AlignedBuf::zeroed(8 << 10);
    data[..MARK.len()].copy_from_slice(&MARK);
    let step = files.len().div_ceil(WRITTEN_MAX).max(1);
    for ino in files.iter().step_by(step) {
        let Some(file) = tolerate(fs.open_inode(*ino, &OpenOptions::read_write()), clean) else {
            continue;
        };
        tolerate(file.write_at(&data, 0), clean);
        tolerate(file.write_at(&data, (file.size() / 2).next_multiple_of(4096)), clean);
        tolerate(file.write_at(&data, (1 << 20) + 4096), clean);
        tolerate(file.allocate(AllocateMode::PunchHole, 4096, 12 << 10), clean);
        tolerate(file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 64 << 10), clean);
        tolerate(file.set_size(5000), clean);
        tolerate(file.sync_all(), clean);
    }
    let checkpoints = fs.checkpoints();
    tolerate(fs.create_checkpoint("new", &CheckpointOptions::default()), clean);
    change_names(fs, clean);
    // The past becomes the present, whole and in part, and then goes.
    for (checkpoint, path) in checkpoints.iter().zip([None, Some("d/e".into())]) {
        tolerate(fs.rollback(&checkpoint.name, &RollbackOptions { path, force: true }), clean);
    }
    for checkpoint in &checkpoints {
        tolerate(fs.delete_checkpoint(&checkpoint.name), clean);
    }
    // What was allocated from the space that the mount thought free.
    if let Some(file) = tolerate(fs.open("/new file", &OpenOptions::create()), clean) {
        for at in 0..4 {
            tolerate(file.write_at(&data, at << 20), clean);
        }
    }
}

fn change_names(fs: &FileSystem, clean: bool) {
    let new = NewFile { mode: 0o600, uid: 0, gid: 0, umask: 0 };
    tolerate(fs.create_dir_all("/new/directory"), clean);
    tolerate(fs.make(InodeNo::ROOT, b"new file", FileKind::File, new, 0), clean);
    let entries = tolerate(fs.read_dir(InodeNo::ROOT, None, 16), clean).unwrap_or_default();
    for entry in entries {
        let attributes = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        tolerate(fs.set_attr(entry.ino, &attributes), clean);
        tolerate(fs.set_xattr(entry.ino, b"user.new", b"value", false, false), clean);
        tolerate(fs.link(entry.ino, InodeNo::ROOT, b"linked"), clean);
        tolerate(
            fs.rename(InodeNo::ROOT, &entry.name, InodeNo::ROOT, b"moved", RenameMode::Replace),
            clean,
        );
        if let Some(new) = fs.resolve("/new").ok().filter(|new| new.kind == FileKind::Directory) {
            tolerate(
                fs.rename(InodeNo::ROOT, b"moved", new.ino, &entry.name, RenameMode::Replace),
                clean,
            );
            tolerate(
                fs.rename(new.ino, &entry.name, InodeNo::ROOT, &entry.name, RenameMode::NoReplace),
                clean,
            );
        }
        tolerate(fs.unlink(InodeNo::ROOT, b"linked"), clean);
        if let Some(inner) = tolerate(fs.read_dir(entry.ino, None, 3), clean) {
            for inner in inner {
                tolerate(
                    fs.rename(
                        entry.ino,
                        &inner.name,
                        InodeNo::ROOT,
                        b"taken out",
                        RenameMode::Replace,
                    ),
                    clean,
                );
                tolerate(
                    fs.rename(
                        InodeNo::ROOT,
                        b"taken out",
                        entry.ino,
                        &inner.name,
                        RenameMode::Exchange,
                    ),
                    clean,
                );
                tolerate(fs.rmdir(entry.ino, &inner.name), clean);
                tolerate(fs.unlink(entry.ino, &inner.name), clean);
            }
        }
    }
}
