//! Listings of directories: a part of the server's at a time, however large the directory is.

use std::collections::VecDeque;

use bedplate_fs::{FileKind, InodeNo};
use bedplate_nfs::{Client, Entry, Found};
use parking_lot::Mutex;

use super::attrs::{kind_of, small};
use super::requests::{Asked, Done, Remote};
use crate::fuse::dirs::Listed;
use crate::fuse::errno::{Answer, Errno};
use crate::fuse::translate::answers::{ENTRY_BYTES, Out};

/// Where a listing is behind the dots: no server counts from there.
const DOT: u64 = 0x7fff_ffff_ffff_0001;
const DOT_DOT: u64 = 0x7fff_ffff_ffff_0002;

/// A directory that is open.
#[derive(Debug)]
pub(super) struct Listing {
    client: Client,
    place: Mutex<Place>,
}

/// What was read of the server's listing and not told.
#[derive(Debug, Default)]
struct Place {
    entries: VecDeque<Entry>,
    /// Behind which of the server's cookies they begin.
    at: u64,
    verifier: u64,
    is_end: bool,
}

impl Place {
    /// Goes where the kernel is.
    fn go_to(&mut self, cookie: u64) {
        if cookie == 0 || self.at != cookie {
            *self = Self { at: cookie, verifier: self.verifier, ..Self::default() };
        }
        if cookie == 0 {
            self.verifier = 0;
        }
    }
}

impl Remote {
    pub(super) fn open_listing(&self, asked: &Asked) -> Answer<Done> {
        let client = self.callers.of(asked.header());
        let number = self.listings.insert(Listing { client, place: Mutex::default() });
        let bytes = small(|out| out.handle(number, 0));
        Ok(Done { bytes, listing: Some(number), ..Done::default() })
    }

    /// Lists names into as many bytes as the caller has room for, with attributes or without.
    pub(super) fn list(&self, asked: &Asked, with_attributes: bool) -> Answer<Done> {
        let fields = asked.fields();
        let (offset, size) = (fields.u64(8), fields.u32(16) as usize);
        let listing = self.listings.get(fields.u64(0))?;
        let node = self.nodes.get(asked.header().node)?;
        let mut done = Done::of(vec![0; size.min(super::mount::PAYLOAD_BYTES_MAX)]);
        let mut bytes = std::mem::take(&mut done.bytes);
        let mut out = Out::new(&mut bytes);
        let before = if with_attributes { ENTRY_BYTES } else { 0 };
        let mut place = listing.place.lock();
        let mut cookie = offset;
        for (from, to, name) in [(0, DOT, &b"."[..]), (DOT, DOT_DOT, b"..")] {
            let listed =
                Listed { name, ino: InodeNo(node.number), kind: FileKind::Directory, cookie: to };
            if cookie == from && out.name(&listed, listed.ino, before, put_nothing(before)) {
                cookie = to;
            }
        }
        if !matches!(cookie, 0 | DOT) {
            place.go_to(if cookie == DOT_DOT { 0 } else { cookie });
            let told = self.list_rest(&listing.client, &node.handle, &mut place, |entry, found| {
                self.tell(
                    &mut out,
                    &mut done.nodes,
                    entry,
                    found.as_ref().filter(|_| with_attributes),
                    before,
                )
            });
            // What was told stays told; the failure comes again with the next part.
            if let Err(errno) = told
                && out.len() == 0
            {
                return Err(errno);
            }
        }
        let len = out.len();
        bytes.truncate(len);
        Ok(Done { bytes, ..done })
    }

    /// Hands names over until one is not taken, or there are no more.
    fn list_rest(
        &self,
        client: &Client,
        dir: &bedplate_nfs::Handle,
        place: &mut Place,
        mut take: impl FnMut(&Entry, Option<Found>) -> bool,
    ) -> Answer<()> {
        loop {
            while let Some(entry) = place.entries.front() {
                let is_dot = matches!(&entry.name[..], b"." | b"..");
                if !is_dot && !take(entry, found(client, dir, entry)?) {
                    return Ok(());
                }
                place.at = entry.cookie;
                place.entries.pop_front();
            }
            if place.is_end {
                return Ok(());
            }
            let part = client.list_part(dir, place.at, place.verifier)?;
            place.entries = part.entries.into();
            (place.verifier, place.is_end) = (part.verifier, part.is_end);
        }
    }

    /// Puts a name into a listing; `false` where it has no room.
    fn tell(
        &self,
        out: &mut Out<'_>,
        nodes: &mut Vec<u64>,
        entry: &Entry,
        found: Option<&Found>,
        before: usize,
    ) -> bool {
        let kind = entry.attr.or(found.map(|found| found.attr)).map(|attr| attr.kind);
        let kind = kind.map_or(FileKind::File, kind_of);
        let ino = InodeNo(entry.number);
        let listed = Listed { name: &entry.name, ino, kind, cookie: entry.cookie };
        out.name(&listed, ino, before, |out| match found {
            Some(found) => nodes.push(self.put_entry(out, found)),
            None => put_nothing(before)(out),
        })
    }
}

/// Returns what a name leads to; the server is asked where its listing does not tell.
fn found(client: &Client, dir: &bedplate_nfs::Handle, entry: &Entry) -> Answer<Option<Found>> {
    match (&entry.handle, entry.attr) {
        (Some(handle), Some(attr)) => Ok(Some(Found { handle: handle.clone(), attr })),
        _ => match client.lookup(dir, &entry.name) {
            Ok(found) => Ok(Some(found)),
            // It went away meanwhile.
            Err(error) if error.kind == bedplate_nfs::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Errno::from(error)),
        },
    }
}

/// Leaves the place of attributes empty, which the kernel takes for none.
fn put_nothing(len: usize) -> impl Fn(&mut Out<'_>) {
    move |out| out.put(&[0; ENTRY_BYTES][..len])
}
