//! The change of names: one exchange of two names, so that each leads to one side at any moment.
//!
//! ```text
//! forward  NAME.before-convert = link to the copy, or an empty directory; exchange with NAME
//! back     exchange; what is left at NAME.before-convert is removed
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bedplate_block::MountEntry;
use rustix::fs::{CWD, RenameFlags};

use super::journal::{Journal, Place, Switch};
use crate::error::{Error, ErrorKind, Result, system};
use crate::partial::sync_directory;

/// Refuses a name that could not be changed, before anything is copied.
pub(super) fn refuse_unchangeable(journal: &Journal, place: &Place) -> Result<()> {
    let name = &journal.name;
    let shown = name.display();
    if journal.switch == Switch::No {
        return Ok(());
    }
    if MountEntry::at(name).map_err(system("look for mounts at", name))?.is_some() {
        let message = format!(
            "{shown} is a mount point, which cannot be renamed: convert a directory in it, or copy \
             it with --no-switch"
        );
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if std::fs::symlink_metadata(journal.before()).is_ok() {
        let message = format!(
            "{} is there already: it is what {shown} was before an earlier conversion, so remove \
             it or give it another name",
            journal.before().display()
        );
        return Err(Error::new(ErrorKind::Exists, message));
    }
    if journal.switch == Switch::Bind && !rustix::process::geteuid().is_root() {
        let message = "only root mounts directories: convert without --bind, by a link";
        return Err(Error::new(ErrorKind::NotPermitted, message));
    }
    let (one, other) = (place.scratch("one"), place.scratch("other"));
    let make = |path: &Path| std::fs::write(path, "").map_err(system("make", path));
    make(&one)?;
    make(&other)?;
    let exchanged = rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
    crate::tree::replace(&one)?;
    crate::tree::replace(&other)?;
    exchanged.map_err(|error| {
        let message = format!(
            "the file system of {shown} cannot exchange two names ({}): copy with --no-switch and \
             change the names yourself",
            std::io::Error::from(error)
        );
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// Returns whether the names are exchanged already.
pub(super) fn is_done(journal: &Journal) -> bool {
    let ino = |path: &Path| std::fs::symlink_metadata(path).map(|is| is.ino()).ok();
    let where_it_goes = if journal.is_back() { journal.name.clone() } else { journal.before() };
    ino(&where_it_goes) == Some(journal.before_ino)
}

/// Changes the names as the journal says. Repeating it does no harm.
pub(super) fn change(journal: &Journal) -> Result<()> {
    let before = journal.before();
    if journal.is_back() {
        unmount(journal)?;
        if !is_done(journal) {
            exchange(journal)?;
        }
        return remove_stand_in(&before);
    }
    if !is_done(journal) {
        remove_stand_in(&before)?;
        match journal.switch {
            Switch::Link => std::os::unix::fs::symlink(&journal.target, &before),
            Switch::Bind => std::fs::create_dir(&before),
            Switch::No => return Ok(()),
        }
        .map_err(system("make", &before))?;
        exchange(journal)?;
    }
    mount(journal, &journal.target)
}

/// Changes the names back, however far a change got that nothing was started on; a change back that
/// is done stays.
pub(super) fn change_back(journal: &Journal) -> Result<()> {
    if journal.is_back() {
        return if is_done(journal) { Ok(()) } else { mount(journal, &journal.source) };
    }
    unmount(journal)?;
    if is_done(journal) {
        exchange(journal)?;
    }
    remove_stand_in(&journal.before())
}

/// Mounts a directory at the name, where that is how it is changed.
fn mount(journal: &Journal, directory: &Path) -> Result<()> {
    if journal.switch != Switch::Bind || is_mounted(journal)? {
        return Ok(());
    }
    rustix::mount::mount_bind(directory, &journal.name)
        .map_err(|error| Error::system("mount the copy at", &journal.name, &error.into()))
}

fn exchange(journal: &Journal) -> Result<()> {
    let (name, before) = (&journal.name, journal.before());
    rustix::fs::renameat_with(CWD, name, CWD, &before, RenameFlags::EXCHANGE)
        .map_err(|error| Error::system("exchange the names of", name, &error.into()))?;
    sync_directory(name)
}

/// Removes what stood in for the directory: a link, or an empty directory.
fn remove_stand_in(path: &Path) -> Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(is) if is.is_dir() => std::fs::remove_dir(path),
        Ok(is) if is.is_symlink() => std::fs::remove_file(path),
        Ok(_) => Err(std::io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(system("remove", path))?;
    sync_directory(path)
}

fn is_mounted(journal: &Journal) -> Result<bool> {
    let at = MountEntry::at(&journal.name);
    Ok(at.map_err(system("look for mounts at", &journal.name))?.is_some())
}

fn unmount(journal: &Journal) -> Result<()> {
    if journal.switch != Switch::Bind || !is_mounted(journal)? {
        return Ok(());
    }
    let flags = rustix::mount::UnmountFlags::empty();
    rustix::mount::unmount(&journal.name, flags)
        .map_err(|error| Error::system("unmount", &journal.name, &error.into()))
}
