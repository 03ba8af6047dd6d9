//! Reading directories.
//!
//! The file system lists names in byte order and goes on after any name; the kernel goes on after a
//! 64-bit *cookie*, which it may give back at any time (`telldir`, `seekdir`). A directory may hold
//! millions of names, so the names behind all cookies of a stream cannot be kept. The stream is cut
//! into chunks of [`CHUNK`] names. Kept are the name before each chunk, and all names of the two
//! chunks read last.
//!
//! ```text
//!   cookie   0: start   1: after "."   2: after ".."   else  chunk + 1 : 32 | place in chunk : 10 | hash of the name : 22
//! ```
//!
//! A cookie of the last two chunks leads exactly to its name, also when that was removed meanwhile.
//! An older one leads to the name in its chunk that has the hash; if that was removed, to the
//! beginning of the chunk, so that nothing that stayed is ever left out.

use std::sync::Arc;

use bedplate_fs::{Attr, DirEntry, ErrorKind, FileKind, InodeNo};
use parking_lot::Mutex;

use super::errno::{Answer, Errno};
use super::shared::Shared;

/// Names in a chunk.
const CHUNK: usize = 512;
/// Names asked of the file system at once: what fits the usual request.
const BATCH: usize = 128;

const PLACE_BITS: u32 = 10;
const HASH_BITS: u32 = 22;

const AFTER_DOT: u64 = 1;
const _: () = assert!(
    CHUNK <= 1 << PLACE_BITS && PLACE_BITS + HASH_BITS < 63,
    "a cookie has room for a place in a chunk, a hash, and chunks"
);
const _: () = assert!(BATCH <= CHUNK, "a batch of a listing lies in two chunks at most");

const AFTER_DOT_DOT: u64 = 2;

/// An open directory.
pub(super) struct DirStream {
    dir: InodeNo,
    cursor: Mutex<Cursor>,
}

/// Where a stream goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Position {
    /// The name before it; `None` at the start.
    after: Option<Vec<u8>>,
    chunk: usize,
    place: usize,
}

#[derive(Debug)]
struct Cursor {
    /// The name before each chunk.
    starts: Vec<Option<Vec<u8>>>,
    /// The names of the last two chunks, by chunk.
    recent: Vec<(usize, Vec<Vec<u8>>)>,
}

impl Cursor {
    fn new() -> Self {
        Self { starts: vec![None], recent: Vec::new() }
    }

    /// Returns the position behind a cookie; `list` reads the directory after a name.
    fn seek(
        &mut self,
        cookie: u64,
        list: impl Fn(Option<&[u8]>, usize) -> Answer<Vec<DirEntry>>,
    ) -> Answer<Position> {
        if cookie <= AFTER_DOT_DOT {
            return Ok(Position::default());
        }
        let (chunk, place, hash) = decode(cookie).ok_or(Errno::INVAL)?;
        if let Some(name) = self.recent_name(chunk, place)
            && hash_of(name) == hash
        {
            return Ok(Position { after: Some(name.to_vec()), chunk, place: place + 1 });
        }
        let start = self.starts.get(chunk).ok_or(Errno::INVAL)?.clone();
        let names: Vec<Vec<u8>> =
            list(start.as_deref(), CHUNK)?.into_iter().map(|entry| entry.name).collect();
        let Some(found) = names.iter().position(|name| hash_of(name) == hash) else {
            return Ok(Position { after: start, chunk, place: 0 });
        };
        let after = Some(names[found].clone());
        self.keep(chunk, names[..=found].to_vec());
        Ok(Position { after, chunk, place: found + 1 })
    }

    fn recent_name(&self, chunk: usize, place: usize) -> Option<&[u8]> {
        let (_, names) = self.recent.iter().find(|(kept, _)| *kept == chunk)?;
        names.get(place).map(Vec::as_slice)
    }

    /// Keeps the names of a chunk, and of one other.
    fn keep(&mut self, chunk: usize, names: Vec<Vec<u8>>) {
        self.recent.retain(|(kept, _)| *kept != chunk);
        if self.recent.len() > 1 {
            self.recent.remove(0);
        }
        debug_assert!(
            self.recent.len() < 2 && names.len() <= CHUNK,
            "the names of two chunks are kept: {} of chunk {chunk}",
            names.len()
        );
        self.recent.push((chunk, names));
    }

    /// Moves a position that stands at the end of a chunk to the beginning of the next.
    fn turn(&mut self, at: &mut Position) {
        if at.place < CHUNK {
            return;
        }
        (at.chunk, at.place) = (at.chunk + 1, 0);
        debug_assert!(
            at.chunk <= self.starts.len(),
            "chunks of a listing follow each other: {} after {}",
            at.chunk,
            self.starts.len()
        );
        match self.starts.get_mut(at.chunk) {
            Some(start) => start.clone_from(&at.after),
            None => self.starts.push(at.after.clone()),
        }
    }

    /// Passes over a name at a position that [`turn`](Self::turn) has seen.
    fn pass(&mut self, at: &mut Position, name: Vec<u8>) {
        assert!(
            at.place < CHUNK && at.chunk < self.starts.len(),
            "a position is turned before it moves"
        );
        if !self.recent.iter().any(|(kept, _)| *kept == at.chunk) {
            self.keep(at.chunk, Vec::new());
        }
        if let Some((_, names)) = self.recent.iter_mut().find(|(kept, _)| *kept == at.chunk) {
            names.truncate(at.place);
            names.push(name.clone());
            debug_assert!(
                names.len() <= at.place + 1,
                "the names that are kept end with the one that was passed: {} at {}",
                names.len(),
                at.place
            );
        }
        at.place += 1;
        at.after = Some(name);
    }
}

fn encode(at: &Position, name: &[u8]) -> u64 {
    debug_assert!(
        at.place < CHUNK && (at.chunk as u64) < 1 << (63 - PLACE_BITS - HASH_BITS),
        "a cookie has room for place {} of chunk {}",
        at.place,
        at.chunk
    );
    ((at.chunk as u64 + 1) << (PLACE_BITS + HASH_BITS))
        | ((at.place as u64) << HASH_BITS)
        | hash_of(name)
}

fn decode(cookie: u64) -> Option<(usize, usize, u64)> {
    let chunk = usize::try_from(cookie >> (PLACE_BITS + HASH_BITS)).ok()?.checked_sub(1)?;
    let place = (cookie >> HASH_BITS) & ((1 << PLACE_BITS) - 1);
    Some((chunk, place as usize, cookie & ((1 << HASH_BITS) - 1)))
}

/// FNV-1a, folded: tells names of one chunk apart well enough.
fn hash_of(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash ^ (hash >> HASH_BITS) ^ (hash >> (2 * HASH_BITS))) & ((1 << HASH_BITS) - 1)
}

/// One name on its way to the kernel.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) cookie: u64,
}

impl Shared {
    pub(super) fn opendir(&self, dir: InodeNo) -> Answer<u64> {
        if self.fs.attr(dir)?.kind != FileKind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        Ok(self.dirs.insert(Arc::new(DirStream { dir, cursor: Mutex::new(Cursor::new()) })))
    }

    pub(super) fn dir_stream(&self, handle: u64) -> Answer<Arc<DirStream>> {
        self.dirs.get(handle).ok_or(Errno::BADF)
    }

    /// Lists a directory from a cookie on, until `take` says that it took none of an entry.
    pub(super) fn readdir(
        &self,
        handle: u64,
        cookie: u64,
        mut take: impl FnMut(Listed<'_>) -> Answer<bool>,
    ) -> Answer<()> {
        let stream = self.dir_stream(handle)?;
        let kind = FileKind::Directory;
        if cookie == 0 && !take(Listed { name: b".", ino: stream.dir, kind, cookie: AFTER_DOT })? {
            return Ok(());
        }
        if cookie < AFTER_DOT_DOT {
            let parent = self.fs.parent(stream.dir)?;
            if !take(Listed { name: b"..", ino: parent, kind, cookie: AFTER_DOT_DOT })? {
                return Ok(());
            }
        }
        let list = |after: Option<&[u8]>, limit| Ok(self.fs.read_dir(stream.dir, after, limit)?);
        let mut cursor = stream.cursor.lock();
        let mut at = cursor.seek(cookie, list)?;
        loop {
            let batch = list(at.after.as_deref(), BATCH)?;
            let is_last = batch.len() < BATCH;
            for entry in batch {
                cursor.turn(&mut at);
                let listed = Listed {
                    name: &entry.name,
                    ino: entry.ino,
                    kind: entry.kind,
                    cookie: encode(&at, &entry.name),
                };
                if !take(listed)? {
                    return Ok(());
                }
                cursor.pass(&mut at, entry.name);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Lists names with attributes. Each inode that `take` takes is retained, except for the dots,
    /// on which the kernel takes no reference.
    pub(super) fn readdirplus(
        &self,
        handle: u64,
        cookie: u64,
        mut take: impl FnMut(&Listed<'_>, &Attr) -> bool,
    ) -> Answer<()> {
        let mut taken = 0_usize;
        let answer = self.readdir(handle, cookie, |listed| {
            let dots = listed.name == b"." || listed.name == b"..";
            let attr = match self.fs.attr(listed.ino) {
                Ok(attr) => attr,
                // Removed since it was listed: as if it had been removed before.
                Err(error) if error.kind == ErrorKind::NotFound && !dots => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            let attr = match attr {
                attr if dots => attr,
                attr => match self.retain_and_tell(attr) {
                    Ok(attr) => attr,
                    Err(_) => return Ok(true),
                },
            };
            let took = take(&listed, &attr);
            if !took && !dots {
                self.forget(listed.ino, 1);
            }
            taken += usize::from(took);
            Ok(took)
        });
        // What was taken was retained and must go out; the error comes back when the kernel goes
        // on.
        if taken > 0 { Ok(()) } else { answer }
    }

    pub(super) fn fsyncdir(&self, handle: u64) -> Answer<()> {
        Ok(self.fs.sync_inode(self.dir_stream(handle)?.dir)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn list(
        names: &BTreeSet<Vec<u8>>,
    ) -> impl Fn(Option<&[u8]>, usize) -> Answer<Vec<DirEntry>> + '_ {
        move |after, limit| {
            let later =
                names.iter().filter(|name| after.is_none_or(|after| name.as_slice() > after));
            Ok(later
                .take(limit)
                .map(|name| DirEntry { name: name.clone(), ino: InodeNo(9), kind: FileKind::File })
                .collect())
        }
    }

    fn names(count: usize) -> BTreeSet<Vec<u8>> {
        (0..count).map(|i| format!("file-{i:07}").into_bytes()).collect()
    }

    /// Reads up to `limit` names after a cookie, as one request does, and returns them with their
    /// cookies.
    fn read(
        cursor: &mut Cursor,
        names: &BTreeSet<Vec<u8>>,
        cookie: u64,
        limit: usize,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut at = cursor.seek(cookie, list(names)).unwrap();
        let mut out = Vec::new();
        for entry in list(names)(at.after.as_deref(), limit).unwrap() {
            cursor.turn(&mut at);
            out.push((encode(&at, &entry.name), entry.name.clone()));
            cursor.pass(&mut at, entry.name);
        }
        out
    }

    fn read_all(
        cursor: &mut Cursor,
        names: &BTreeSet<Vec<u8>>,
        step: usize,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut out: Vec<(u64, Vec<u8>)> = Vec::new();
        loop {
            let cookie = out.last().map_or(AFTER_DOT_DOT, |(cookie, _)| *cookie);
            let more = read(cursor, names, cookie, step);
            if more.is_empty() {
                return out;
            }
            out.extend(more);
        }
    }

    #[test]
    fn a_stream_gives_every_name_once_whatever_the_size_of_requests() {
        let names = names(3 * CHUNK + 17);
        for step in [1, 7, 128, 511, 512, 513, 5000] {
            let read = read_all(&mut Cursor::new(), &names, step);
            assert!(read.iter().map(|(_, name)| name).eq(names.iter()), "step {step}");
            let cookies: BTreeSet<u64> = read.iter().map(|(cookie, _)| *cookie).collect();
            assert_eq!(cookies.len(), names.len(), "cookies are unique");
            assert!(
                cookies
                    .iter()
                    .all(|cookie| *cookie > AFTER_DOT_DOT && i64::try_from(*cookie).is_ok())
            );
        }
    }

    #[test]
    fn seeking_back_to_any_cookie_goes_on_after_its_name() {
        let names = names(4 * CHUNK);
        let mut cursor = Cursor::new();
        let all = read_all(&mut cursor, &names, 100);
        for at in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, 4 * CHUNK - 2] {
            let next = read(&mut cursor, &names, all[at].0, 1);
            assert_eq!(next[0], all[at + 1], "after {at}");
        }
    }

    #[test]
    fn reading_again_from_the_start_keeps_later_cookies() {
        let names = names(4 * CHUNK);
        let mut cursor = Cursor::new();
        let all = read_all(&mut cursor, &names, 100);
        read(&mut cursor, &names, AFTER_DOT_DOT, 2 * CHUNK);
        let at = 3 * CHUNK + 5;
        assert_eq!(read(&mut cursor, &names, all[at].0, 1)[0], all[at + 1]);
    }

    /// `rm -r` removes what it was given before it reads on.
    #[test]
    fn removing_what_was_read_leaves_nothing_out() {
        let mut names = names(3 * CHUNK);
        let (mut cursor, mut cookie, mut seen) = (Cursor::new(), AFTER_DOT_DOT, 0);
        loop {
            let batch = read(&mut cursor, &names, cookie, 100);
            let Some((last, _)) = batch.last() else { break };
            cookie = *last;
            seen += batch.len();
            for (_, name) in &batch {
                names.remove(name);
            }
        }
        assert_eq!((seen, names.len()), (3 * CHUNK, 0));
    }

    #[test]
    fn an_old_cookie_of_a_removed_name_leaves_nothing_out() {
        let mut names = names(5 * CHUNK);
        let mut cursor = Cursor::new();
        let all = read_all(&mut cursor, &names, 100);
        let (cookie, name) = all[10].clone();
        names.remove(&name);
        let next = read(&mut cursor, &names, cookie, 5 * CHUNK);
        for (_, later) in &all[11..] {
            assert!(next.iter().any(|(_, name)| name == later));
        }
    }

    #[test]
    fn s_48_what_is_kept_does_not_grow_with_the_directory() {
        let names = names(40 * CHUNK);
        let mut cursor = Cursor::new();
        read_all(&mut cursor, &names, 1000);
        assert_eq!(cursor.starts.len(), 40);
        assert!(cursor.recent.iter().map(|(_, names)| names.len()).sum::<usize>() <= 2 * CHUNK);
    }

    #[test]
    fn a_cookie_of_another_stream_is_refused() {
        let at = Position { after: None, chunk: 3, place: 5 };
        assert_eq!(Cursor::new().seek(encode(&at, b"x"), list(&names(3))), Err(Errno::INVAL));
    }
}
