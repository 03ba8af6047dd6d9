//! Names and attributes. What changes something is durable before it is answered.

use std::os::fd::OwnedFd;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, Timestamps, makedev, mknodat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::attr::{self, Changes, SetTime};
use super::data::need;
use super::request::{Request, read_name, read_own_name};
use super::status::{Answer, Status};
use super::tree::Node;
use super::xdr::{Reader, Writer};

/// The most bytes of what a symbolic link leads to.
const TARGET_BYTES_MAX: usize = 4095;

const UNCHECKED: u32 = 0;
const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;

pub fn getattr(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let node = request.node(from)?;
    attr::write(out, &node.stat, request.key());
    Ok(())
}

pub fn setattr(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let mut node = request.node(from)?;
    let changes = Changes::read(from)?;
    let guard = from.option(|from| Ok([from.u32()?, from.u32()?]))?;
    request.need_writable()?;
    if guard.is_some_and(|guard| guard != attr::changed(&node.stat)) {
        return Err(Status::NotSynced.into());
    }
    change(request, &mut node, &changes)?;
    node.sync(&request.live, &request.tree.verifier)?;
    request.write_changed(out, &mut node)
}

/// Changes attributes as the user that asks.
fn change(request: &Request<'_>, node: &mut Node, changes: &Changes) -> Answer<()> {
    if !changes.are_possible() {
        return Err(Status::Invalid.into());
    }
    if let Some(size) = changes.size {
        let file = node.open(&request.live, true, &request.tree.verifier)?;
        need(request, node, Access::WRITE_OK)?;
        let _acting = request.act()?;
        rustix::fs::ftruncate(&file.fd, size)?;
    }
    let _acting = request.act()?;
    let path = node.own_path();
    let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
    if uid.is_some() || gid.is_some() {
        rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::empty())?;
    }
    if let Some(mode) = changes.mode.filter(|_| node.file_type() != FileType::Symlink) {
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
    }
    if changes.atime != SetTime::Keep || changes.mtime != SetTime::Keep {
        let times = Timestamps {
            last_access: changes.atime.timespec(),
            last_modification: changes.mtime.timespec(),
        };
        utimensat(CWD, &path, &times, AtFlags::empty())?;
    }
    Ok(())
}

pub fn lookup(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let dir = request.node(from)?;
    let name = read_name(from)?;
    if dir.file_type() != FileType::Directory {
        return Err(Status::NotDirectory.into());
    }
    let found = {
        let _acting = request.act()?;
        match name {
            b".." => {
                rustix::fs::accessat(CWD, dir.own_path(), Access::EXEC_OK, AtFlags::EACCESS)?;
                None
            }
            name => Some(request.live.child(&dir, name)?),
        }
    };
    let found = match found {
        Some(found) => found,
        None => request.live.parent(&dir)?,
    };
    out.opaque(&request.key().seal(&found.handle)?);
    attr::write_after(out, &found.stat, request.key());
    attr::write_after(out, &dir.stat, request.key());
    Ok(())
}

pub fn access(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    const READ: u32 = 0x01;
    const LOOKUP: u32 = 0x02;
    const MODIFY: u32 = 0x04;
    const EXTEND: u32 = 0x08;
    const DELETE: u32 = 0x10;
    const EXECUTE: u32 = 0x20;
    let node = request.node(from)?;
    let asked = from.u32()?;
    let is_dir = node.file_type() == FileType::Directory;
    let writing = if is_dir { MODIFY | EXTEND | DELETE } else { MODIFY | EXTEND };
    let searching = if is_dir { LOOKUP } else { EXECUTE };
    let mut granted = 0;
    {
        let _acting = request.act()?;
        let may =
            |access| rustix::fs::accessat(CWD, node.own_path(), access, AtFlags::EACCESS).is_ok();
        for (bits, access) in
            [(READ, Access::READ_OK), (writing, Access::WRITE_OK), (searching, Access::EXEC_OK)]
        {
            if asked & bits != 0 && may(access) {
                granted |= asked & bits;
            }
        }
    }
    if request.tree.rights.read_only {
        granted &= !writing;
    }
    attr::write_after(out, &node.stat, request.key());
    out.u32(granted);
    Ok(())
}

pub fn readlink(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let node = request.node(from)?;
    if node.file_type() != FileType::Symlink {
        return Err(Status::Invalid.into());
    }
    let target = rustix::fs::readlinkat(&node.fd, c"", Vec::new())?;
    attr::write_after(out, &node.stat, request.key());
    out.opaque(target.to_bytes());
    Ok(())
}

/// Reads what every procedure that makes something begins with: the directory, and a name in it.
fn place<'a>(request: &Request<'_>, from: &mut Reader<'a>) -> Answer<(Node, &'a [u8])> {
    let dir = request.node(from)?;
    let name = read_own_name(from)?;
    request.need_writable()?;
    if dir.file_type() != FileType::Directory {
        return Err(Status::NotDirectory.into());
    }
    Ok((dir, name))
}

/// Gives what was made its attributes, makes it durable with its name, and writes the result.
fn finish_made(
    request: &Request<'_>,
    dir: &mut Node,
    node: &mut Node,
    changes: &Changes,
    out: &mut Writer,
) -> Answer<()> {
    // An owner that it has already is no change, which only the superuser could make.
    let uid = changes.uid.filter(|uid| *uid != node.stat.stx_uid);
    let gid = changes.gid.filter(|gid| *gid != node.stat.stx_gid);
    change(request, node, &Changes { uid, gid, ..*changes })?;
    node.sync(&request.live, &request.tree.verifier)?;
    dir.sync(&request.live, &request.tree.verifier)?;
    node.look_again()?;
    request.write_made(out, node)?;
    request.write_changed(out, dir)
}

fn new_mode(changes: &Changes, otherwise: u32) -> Mode {
    Mode::from_raw_mode(changes.mode.unwrap_or(otherwise) & 0o7777)
}

pub fn create(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let (mut dir, name) = place(request, from)?;
    let (mut node, changes) = match from.u32()? {
        how @ (UNCHECKED | GUARDED) => {
            let changes = Changes::read(from)?;
            if !changes.are_possible() {
                return Err(Status::Invalid.into());
            }
            make_file(request, &dir, name, changes, how)?
        }
        EXCLUSIVE => {
            let verifier = from.array()?;
            (make_exclusively(request, &dir, name, verifier)?, Changes::default())
        }
        _ => return Err(super::xdr::Garbage.into()),
    };
    finish_made(request, &mut dir, &mut node, &changes, out)
}

/// Makes a file, or finds the one that is there; returns it with what is left to change of it.
fn make_file(
    request: &Request<'_>,
    dir: &Node,
    name: &[u8],
    changes: Changes,
    how: u32,
) -> Answer<(Node, Changes)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let acting = request.act()?;
    match rustix::fs::openat(&dir.fd, name, flags, new_mode(&changes, 0o666)) {
        Ok(file) => {
            let node = request.live.found(file)?;
            // Nothing of the size is left to do for an empty file.
            let size = changes.size.filter(|size| *size != 0);
            Ok((node, Changes { mode: None, size, ..changes }))
        }
        Err(Errno::EXIST) if how == UNCHECKED => {
            let node = request.live.child(dir, name)?;
            drop(acting);
            if node.file_type() != FileType::RegularFile {
                return Err(Status::Exists.into());
            }
            Ok((node, Changes { size: changes.size, ..Changes::default() }))
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes a file that keeps the client's verifier in its times until the client sets them: the same
/// request, when it comes again, finds by it that it was carried out.
///
/// The file gets its name last, so a crash leaves none without the verifier.
fn make_exclusively(
    request: &Request<'_>,
    dir: &Node,
    name: &[u8],
    verifier: [u8; 8],
) -> Answer<Node> {
    // The high bit stays away: not every file system has times after 2038.
    let [a, b, c, d, e, f, g, h] = verifier;
    let times = [[a, b, c, d], [e, f, g, h]].map(|part| u32::from_be_bytes(part) & 0x7fff_ffff);
    let _acting = request.act()?;
    let file = unnamed(dir)?;
    let [atime, mtime] = times.map(|seconds| SetTime::To([seconds, 0]));
    rustix::fs::futimens(
        &file,
        &Timestamps { last_access: atime.timespec(), last_modification: mtime.timespec() },
    )?;
    rustix::fs::fsync(&file)?;
    let made = request.live.found(file)?;
    let linked = rustix::fs::linkat(CWD, made.own_path(), &dir.fd, name, AtFlags::SYMLINK_FOLLOW);
    match linked {
        Ok(()) => Ok(made),
        Err(Errno::EXIST) => {
            let there = request.live.child(dir, name)?;
            let seconds = |of: &rustix::fs::StatxTimestamp| of.tv_sec;
            let told = [seconds(&there.stat.stx_atime), seconds(&there.stat.stx_mtime)];
            let is_same = there.file_type() == FileType::RegularFile
                && there.stat.stx_size == 0
                && told == times.map(i64::from);
            if is_same { Ok(there) } else { Err(Status::Exists.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

fn unnamed(dir: &Node) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, dir.own_path(), flags, Mode::empty())
}

pub fn mkdir(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let (mut dir, name) = place(request, from)?;
    let changes = Changes::read(from)?;
    let mut node = {
        let _acting = request.act()?;
        rustix::fs::mkdirat(&dir.fd, name, new_mode(&changes, 0o777))?;
        request.live.child(&dir, name)?
    };
    // The system has given it the bit of the directory above, which the mode may lack.
    let mode = changes.mode.filter(|mode| mode & 0o7000 != 0);
    let kept = u32::from(node.stat.stx_mode) & 0o2000;
    let changes = Changes { mode: mode.map(|mode| mode | kept), size: None, ..changes };
    finish_made(request, &mut dir, &mut node, &changes, out)
}

pub fn symlink(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let (mut dir, name) = place(request, from)?;
    let changes = Changes::read(from)?;
    let target = from.opaque(TARGET_BYTES_MAX)?;
    if target.contains(&0) {
        return Err(Status::Invalid.into());
    }
    let mut node = {
        let _acting = request.act()?;
        rustix::fs::symlinkat(target, &dir.fd, name)?;
        request.live.child(&dir, name)?
    };
    finish_made(request, &mut dir, &mut node, &Changes { mode: None, size: None, ..changes }, out)
}

pub fn mknod(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let (mut dir, name) = place(request, from)?;
    let kind = match from.u32()? {
        3 => FileType::BlockDevice,
        4 => FileType::CharacterDevice,
        6 => FileType::Socket,
        7 => FileType::Fifo,
        _ => return Err(Status::BadType.into()),
    };
    let changes = Changes::read(from)?;
    let device = match kind {
        FileType::BlockDevice | FileType::CharacterDevice => makedev(from.u32()?, from.u32()?),
        _ => 0,
    };
    let mut node = {
        let _acting = request.act()?;
        mknodat(&dir.fd, name, kind, new_mode(&changes, 0o666), device)?;
        request.live.child(&dir, name)?
    };
    finish_made(request, &mut dir, &mut node, &Changes { mode: None, size: None, ..changes }, out)
}

pub fn remove(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    take_away(request, from, AtFlags::empty(), out)
}

pub fn rmdir(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    take_away(request, from, AtFlags::REMOVEDIR, out)
}

fn take_away(
    request: &Request<'_>,
    from: &mut Reader<'_>,
    flags: AtFlags,
    out: &mut Writer,
) -> Answer<()> {
    let (mut dir, name) = place(request, from)?;
    let victim = {
        let _acting = request.act()?;
        let victim = request.live.child(&dir, name)?;
        rustix::fs::unlinkat(&dir.fd, name, flags)?;
        victim
    };
    request.live.files.forget(&victim.handle, &request.tree.verifier);
    dir.sync(&request.live, &request.tree.verifier)?;
    request.write_changed(out, &mut dir)
}

pub fn rename(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let (mut old_dir, old) = place(request, from)?;
    let (mut new_dir, new) = place(request, from)?;
    let victim = {
        let _acting = request.act()?;
        let victim = request.live.child(&new_dir, new).ok();
        rustix::fs::renameat(&old_dir.fd, old, &new_dir.fd, new)?;
        victim
    };
    if let Some(victim) = victim {
        request.live.files.forget(&victim.handle, &request.tree.verifier);
    }
    new_dir.sync(&request.live, &request.tree.verifier)?;
    if old_dir.handle != new_dir.handle {
        old_dir.sync(&request.live, &request.tree.verifier)?;
    }
    request.write_changed(out, &mut old_dir)?;
    request.write_changed(out, &mut new_dir)
}

pub fn link(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let mut node = request.node(from)?;
    let (mut dir, name) = place(request, from)?;
    {
        let _acting = request.act()?;
        let flags = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, node.own_path(), &dir.fd, name, flags)?;
    }
    node.sync(&request.live, &request.tree.verifier)?;
    dir.sync(&request.live, &request.tree.verifier)?;
    node.look_again()?;
    attr::write_after(out, &node.stat, request.key());
    request.write_changed(out, &mut dir)
}
