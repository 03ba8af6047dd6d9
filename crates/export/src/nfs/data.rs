//! Bytes of files: READ, WRITE and COMMIT.

use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, CWD};

use super::attr;
use super::request::Request;
use super::status::{Answer, Status};
use super::tree::Node;
use super::xdr::{Reader, Writer, padding};

/// The most bytes of one read or write.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;

const UNSTABLE: u32 = 0;
const DATA_SYNC: u32 = 1;
const FILE_SYNC: u32 = 2;

/// Refuses what the user may not do with a file's bytes.
///
/// A client has opened the file before, and asks again with every call: the owner may go on after
/// it took the right from itself, as with a file that is open.
pub fn need(request: &Request<'_>, node: &Node, access: Access) -> Answer<()> {
    if request.user.uid == node.stat.stx_uid {
        return Ok(());
    }
    let _acting = request.act()?;
    let may = |access| rustix::fs::accessat(CWD, node.own_path(), access, AtFlags::EACCESS);
    let asked = match may(access) {
        // A user that may run a program may read it: the system of the client does, to run it.
        Err(_) if access == Access::READ_OK => may(Access::EXEC_OK),
        asked => asked,
    };
    Ok(asked?)
}

pub fn read(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let mut node = request.node(from)?;
    let (offset, count) = (from.u64()?, from.u32()? as usize);
    let count = count.min(TRANSFER_BYTES_MAX);
    let file = node.open(&request.live, false, &request.tree.verifier)?;
    need(request, &node, Access::READ_OK)?;
    let began = out.0.len();
    attr::write_after(out, &node.stat, request.key());
    // How many bytes, whether the file ends there, and how many once more.
    (0..3).for_each(|_| out.u32(0));
    let first = out.0.len();
    out.0.resize(first + count, 0);
    let got = read_all(&file.fd, &mut out.0[first..], offset)?;
    out.0.truncate(first + got);
    out.0.resize(first + got + padding(got), 0);
    node.look_again()?;
    let mut head = Writer::default();
    attr::write_after(&mut head, &node.stat, request.key());
    head.u32(got as u32);
    head.bool(offset.saturating_add(got as u64) >= node.stat.stx_size);
    head.u32(got as u32);
    out.0[began..first].copy_from_slice(&head.0);
    Ok(())
}

/// Reads until `data` is full or the file ends; returns how much that was.
fn read_all(fd: &OwnedFd, data: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut got = 0;
    while got < data.len() {
        // A file ends where the system's offsets do.
        let at = offset.checked_add(got as u64).filter(|at| i64::try_from(*at).is_ok());
        let Some(at) = at else { break };
        match rustix::io::pread(fd, &mut data[got..], at) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

pub fn write(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let mut node = request.node(from)?;
    let (offset, count, stable) = (from.u64()?, from.u32()?, from.u32()?);
    let data = from.opaque(TRANSFER_BYTES_MAX)?;
    request.need_writable()?;
    if stable > FILE_SYNC || data.len() != count as usize {
        return Err(Status::Invalid.into());
    }
    let end = offset.checked_add(u64::from(count)).filter(|end| i64::try_from(*end).is_ok());
    if end.is_none() {
        return Err(Status::TooLarge.into());
    }
    let verifier = &request.tree.verifier;
    let file = node.open(&request.live, true, verifier)?;
    need(request, &node, Access::WRITE_OK)?;
    let promised = verifier.value();
    let written = {
        // Set-ID bits and capabilities go with a write of another than the superuser.
        let _acting = request.act()?;
        write_all(&file.fd, data, offset)
    };
    file.wrote();
    written?;
    if stable != UNSTABLE {
        file.flush(stable == FILE_SYNC, verifier)?;
    }
    node.look_again()?;
    attr::write_change(out, &node.stat, request.key());
    out.u32(count);
    out.u32(match stable {
        UNSTABLE => UNSTABLE,
        DATA_SYNC => DATA_SYNC,
        _ => FILE_SYNC,
    });
    out.u64(promised);
    Ok(())
}

fn write_all(fd: &OwnedFd, mut data: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(fd, data, offset) {
            Ok(0) => return Err(rustix::io::Errno::IO),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub fn commit(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let mut node = request.node(from)?;
    // All of the file is made durable, whatever part is asked for.
    let (_offset, _count) = (from.u64()?, from.u32()?);
    request.need_writable()?;
    let verifier = &request.tree.verifier;
    let file = node.open(&request.live, true, verifier)?;
    need(request, &node, Access::WRITE_OK)?;
    file.flush(true, verifier)?;
    let promised = verifier.value();
    node.look_again()?;
    attr::write_change(out, &node.stat, request.key());
    out.u64(promised);
    Ok(())
}
