//! Listings.

use super::Client;
use crate::handle::Handle;
use crate::wire::attr::{self, Attr};
use crate::wire::numbers as n;
use crate::wire::xdr::{Garbage, Reader};
use crate::{Error, Result};

/// How much of a listing is asked for at once.
pub(super) const BYTES: usize = 64 << 10;
/// What names may take of that.
const NAMES_BYTES: u32 = 16 << 10;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The number in the file system.
    pub number: u64,
    /// The attributes, where the server tells them.
    pub attr: Option<Attr>,
    /// By what the server knows it, where it tells that.
    pub handle: Option<Handle>,
}

/// A part of a listing.
struct Part {
    verifier: u64,
    entries: Vec<Entry>,
    cookie: u64,
    is_end: bool,
}

impl Client {
    /// Lists a directory, without the dots, and hands each part over as it comes, so that memory does
    /// not grow with the directory.
    ///
    /// # Errors
    /// The server's; that of `each`.
    pub fn list(&self, dir: &Handle, mut each: impl FnMut(Entry) -> Result<()>) -> Result<()> {
        let doing = "list a directory";
        let (mut cookie, mut verifier) = (0, 0);
        loop {
            let mut arguments = dir.arguments();
            arguments.u64(cookie);
            arguments.u64(verifier);
            arguments.u32(NAMES_BYTES);
            arguments.u32(BYTES as u32);
            let part =
                self.0.ask(doing, n::READDIRPLUS, &arguments, |from| read_part(from, cookie))?;
            if part.entries.is_empty() && !part.is_end {
                return Err(Error::protocol(doing, "with no names, though there are more"));
            }
            (cookie, verifier) = (part.cookie, part.verifier);
            let names = part.entries.into_iter();
            names
                .filter(|entry| !matches!(&entry.name[..], b"." | b".."))
                .try_for_each(&mut each)?;
            if part.is_end {
                return Ok(());
            }
        }
    }
}

fn read_part(from: &mut Reader<'_>, before: u64) -> Result<Part, Garbage> {
    attr::read_after(from)?;
    let verifier = from.u64()?;
    let mut part = Part { verifier, entries: Vec::new(), cookie: before, is_end: false };
    while from.bool()? {
        let number = from.u64()?;
        let name = from.opaque(n::NAME_BYTES_MAX)?.to_vec();
        part.cookie = from.u64()?;
        let attr = attr::read_after(from)?;
        let handle = from.option(Handle::read)?;
        // What others take for a path.
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Garbage);
        }
        part.entries.push(Entry { name, number, attr, handle });
    }
    part.is_end = from.bool()?;
    // A listing that goes on where it was never ends.
    if part.cookie == before && !part.is_end { Err(Garbage) } else { Ok(part) }
}
