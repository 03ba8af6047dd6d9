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
    /// Where a listing goes on behind it.
    pub cookie: u64,
    /// The attributes, where the server tells them.
    pub attr: Option<Attr>,
    /// By what the server knows it, where it tells that.
    pub handle: Option<Handle>,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What the next part is asked for with, beside a cookie.
    pub verifier: u64,
    /// Its names, the dots among them where the server lists them.
    pub entries: Vec<Entry>,
    /// Where the next part begins.
    pub cookie: u64,
    /// There is no further part.
    pub is_end: bool,
}

impl Client {
    /// Lists a directory, without the dots, and hands each part over as it comes, so that memory does
    /// not grow with the directory.
    ///
    /// # Errors
    /// The server's; that of `each`.
    pub fn list(&self, dir: &Handle, mut each: impl FnMut(Entry) -> Result<()>) -> Result<()> {
        let (mut cookie, mut verifier) = (0, 0);
        loop {
            let part = self.list_part(dir, cookie, verifier)?;
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

    /// Lists the part of a directory that begins behind a cookie; 0: the beginning.
    ///
    /// # Errors
    /// The server's.
    pub fn list_part(&self, dir: &Handle, cookie: u64, verifier: u64) -> Result<Part> {
        let doing = "list a directory";
        let mut arguments = dir.arguments();
        arguments.u64(cookie);
        arguments.u64(verifier);
        arguments.u32(NAMES_BYTES);
        arguments.u32(BYTES as u32);
        let part = self.ask(doing, n::READDIRPLUS, &arguments, |from| read_part(from, cookie))?;
        if part.entries.is_empty() && !part.is_end {
            return Err(Error::protocol(doing, "with no names, though there are more"));
        }
        Ok(part)
    }
}

fn read_part(from: &mut Reader<'_>, before: u64) -> Result<Part, Garbage> {
    attr::read_after(from)?;
    let verifier = from.u64()?;
    let mut part = Part { verifier, entries: Vec::new(), cookie: before, is_end: false };
    while from.bool()? {
        let number = from.u64()?;
        let name = from.opaque(n::NAME_BYTES_MAX)?.to_vec();
        let cookie = from.u64()?;
        part.cookie = cookie;
        let attr = attr::read_after(from)?;
        let handle = from.option(Handle::read)?;
        // What others take for a path.
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Garbage);
        }
        part.entries.push(Entry { name, number, cookie, attr, handle });
    }
    part.is_end = from.bool()?;
    // A listing that goes on where it was never ends.
    if part.cookie == before && !part.is_end { Err(Garbage) } else { Ok(part) }
}
