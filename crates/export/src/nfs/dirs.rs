//! Listings, and facts of the whole file system.

use rustix::fs::{Access, AtFlags, CWD, FileType};

use super::attr;
use super::data::TRANSFER_BYTES_MAX;
use super::listing::{DOT, DOT_DOT, Listed};
use super::request::{NAME_BYTES_MAX, Request};
use super::status::{Answer, Status};
use super::tree::Node;
use super::xdr::{Reader, Writer, padding};

/// The most bytes of a listing in one reply.
const LISTING_BYTES_MAX: u32 = 1 << 18;
/// What closes a listing: no more entries, and whether that is the end.
const END_BYTES: usize = 8;
/// How many names a directory's file may have, as clients are told; the file system says in the end.
const LINKS_MAX: u32 = 65_000;

/// Whether names are told with attributes and handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    Names,
    /// Where the user may list the directory and not look up its names.
    NoAttributes,
    Attributes,
}

impl With {
    fn without_looking(self) -> Self {
        if self == Self::Names { self } else { Self::NoAttributes }
    }
}

pub fn readdir(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let dir = request.node(from)?;
    let (cookie, verifier, max) = (from.u64()?, from.u64()?, from.u32()?);
    let room = Room { names: usize::MAX, bytes: max.min(LISTING_BYTES_MAX) as usize };
    list(request, &dir, Place { cookie, verifier }, room, With::Names, out)
}

pub fn readdirplus(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let dir = request.node(from)?;
    let (cookie, verifier) = (from.u64()?, from.u64()?);
    let (names, max) = (from.u32()? as usize, from.u32()?);
    let room = Room { names, bytes: max.min(LISTING_BYTES_MAX) as usize };
    list(request, &dir, Place { cookie, verifier }, room, With::Attributes, out)
}

/// Where a listing goes on.
#[derive(Clone, Copy)]
struct Place {
    cookie: u64,
    verifier: u64,
}

/// How much a client takes: bytes of names with their cookies and numbers, and bytes in all.
struct Room {
    names: usize,
    bytes: usize,
}

fn list(
    request: &Request<'_>,
    dir: &Node,
    place: Place,
    mut room: Room,
    mut with: With,
    out: &mut Writer,
) -> Answer<()> {
    if dir.file_type() != FileType::Directory {
        return Err(Status::NotDirectory.into());
    }
    {
        let _acting = request.act()?;
        let may = |access| rustix::fs::accessat(CWD, dir.own_path(), access, AtFlags::EACCESS);
        may(Access::READ_OK)?;
        if may(Access::EXEC_OK).is_err() {
            with = with.without_looking();
        }
    }
    // Cookies depend on the key alone, so they hold as long as handles do.
    let verifier = request.key().number(3, b"cookies");
    if place.cookie != 0 && place.verifier != verifier {
        return Err(Status::BadCookie.into());
    }
    let began = out.0.len();
    attr::write_after(out, &dir.stat, request.key());
    out.u64(verifier);
    room.bytes = room.bytes.saturating_sub(out.0.len() - began + END_BYTES);
    let first = out.0.len();
    let is_end = write_entries(request, dir, place.cookie, &mut room, with, out)?;
    if out.0.len() == first && !is_end {
        return Err(Status::TooSmall.into());
    }
    out.bool(false);
    out.bool(is_end);
    Ok(())
}

/// Writes what fits; returns whether that was the last.
fn write_entries(
    request: &Request<'_>,
    dir: &Node,
    mut cookie: u64,
    room: &mut Room,
    with: With,
    out: &mut Writer,
) -> Answer<bool> {
    // Begins the listing, before anything of it is told.
    let mut window = request.live.listings.window(dir, cookie, request.key())?;
    for (dot, name) in [(DOT, &b"."[..]), (DOT_DOT, b"..")] {
        if cookie < dot {
            let node = if dot == DOT { None } else { Some(request.live.parent(dir)) };
            let node = match &node {
                None => Some(dir),
                Some(parent) => parent.as_ref().ok(),
            };
            let number = node.map_or(0, |node| node.stat.stx_ino);
            let listed = Listed { cookie: dot, name: name.to_vec(), number };
            if !write_entry(request, &listed, node, room, with, out)? {
                return Ok(false);
            }
            cookie = dot;
        }
    }
    loop {
        for listed in window.after(cookie) {
            let node = (with == With::Attributes)
                .then(|| request.live.child(dir, &listed.name).ok())
                .flatten();
            if !write_entry(request, listed, node.as_ref(), room, with, out)? {
                return Ok(false);
            }
        }
        if window.is_last() {
            return Ok(true);
        }
        cookie = window.after(cookie).last().map_or(cookie, |listed| listed.cookie);
        window = request.live.listings.window(dir, cookie, request.key())?;
    }
}

/// Writes one entry where it fits. What cannot be looked at is told without attributes.
fn write_entry(
    request: &Request<'_>,
    listed: &Listed,
    node: Option<&Node>,
    room: &mut Room,
    with: With,
    out: &mut Writer,
) -> Answer<bool> {
    let began = out.0.len();
    out.bool(true);
    out.u64(listed.number);
    out.opaque(&listed.name);
    out.u64(listed.cookie);
    let name_bytes = 20 + listed.name.len() + padding(listed.name.len());
    if with != With::Names {
        match node.filter(|_| with == With::Attributes) {
            Some(node) => {
                attr::write_after(out, &node.stat, request.key());
                out.bool(true);
                out.opaque(&request.key().seal(&node.handle)?);
            }
            None => {
                out.bool(false);
                out.bool(false);
            }
        }
    }
    let bytes = out.0.len() - began;
    let fits = bytes <= room.bytes && name_bytes <= room.names;
    if fits {
        room.bytes -= bytes;
        room.names -= name_bytes;
    } else {
        out.0.truncate(began);
    }
    Ok(fits)
}

pub fn fsstat(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let node = request.node(from)?;
    let totals = rustix::fs::fstatvfs(&node.fd)?;
    attr::write_after(out, &node.stat, request.key());
    let bytes = |blocks: u64| blocks.saturating_mul(totals.f_frsize);
    out.u64(bytes(totals.f_blocks));
    out.u64(bytes(totals.f_bfree));
    out.u64(bytes(totals.f_bavail));
    out.u64(totals.f_files);
    out.u64(totals.f_ffree);
    out.u64(totals.f_favail);
    // May change at any time.
    out.u32(0);
    Ok(())
}

pub fn fsinfo(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    /// Hard links, symbolic links, the same everywhere, times can be set.
    const PROPERTIES: u32 = 0x1b;
    let node = request.node(from)?;
    attr::write_after(out, &node.stat, request.key());
    let unit = node.stat.stx_blksize.clamp(512, TRANSFER_BYTES_MAX as u32);
    for _read_and_write in 0..2 {
        out.u32(TRANSFER_BYTES_MAX as u32);
        out.u32(TRANSFER_BYTES_MAX as u32);
        out.u32(unit);
    }
    out.u32(LISTING_BYTES_MAX);
    out.u64(i64::MAX.unsigned_abs());
    // Times are kept to the nanosecond.
    out.u32(0);
    out.u32(1);
    out.u32(PROPERTIES);
    Ok(())
}

pub fn pathconf(request: &Request<'_>, from: &mut Reader<'_>, out: &mut Writer) -> Answer<()> {
    let node = request.node(from)?;
    attr::write_after(out, &node.stat, request.key());
    out.u32(LINKS_MAX);
    out.u32(NAME_BYTES_MAX as u32);
    // Longer names are refused, only the superuser gives files away, and the case of names counts
    // and stays.
    for fact in [true, true, false, true] {
        out.bool(fact);
    }
    Ok(())
}
