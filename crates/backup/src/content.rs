//! The content of one file on its way into chunks: what is as in the base is taken over, what
//! changed is read and packed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bedplate_block::AlignedBuf;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::CHUNK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::pieces::{Content, Piece, joined};
use crate::repository::Repository;

/// Changed ranges are read in whole blocks of this size, as `O_DIRECT` wants it.
const BLOCK_BYTES: u64 = 4096;
/// A chunk of the base of which the file has less than one part in so many left is not referred to
/// any more: what is left is stored again, so that old chunks become free. One block is read again
/// for every four that changed since, at most.
const LIVE_PART_MIN: u64 = 5;
const _: () = assert!(
    CHUNK_BYTES.is_multiple_of(BLOCK_BYTES) && LIVE_PART_MIN > 1,
    "a chunk is whole blocks, and one that is all alive is referred to"
);

/// What a file is read with.
pub struct Reader<'a> {
    pub repository: &'a Repository,
    pub path: PathBuf,
    pub size: u64,
    /// The level of zstd; `None` stores bytes as they are.
    pub level: Option<i32>,
}

/// The content of a file, and what it took.
#[derive(Debug, Default)]
pub struct Taken {
    pub content: Content,
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that the repository did not have.
    pub stored: u64,
    /// Bytes that were written for them.
    pub written: u64,
}

/// Changed ranges on their way into one chunk.
struct Pack {
    buffer: AlignedBuf,
    filled: usize,
    pieces: Vec<Piece>,
}

impl Reader<'_> {
    fn refused(&self, error: &io::Error) -> Error {
        Error::system("read", &self.path, error)
    }

    /// Opens the file past all caches: `O_DIRECT` goes past the kernel's, and a mode named by a
    /// suffix past that of a mount in `concurrent+cache`.
    fn open(&self) -> Result<File> {
        let open = |path: &Path| File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        let mut suffixed = self.path.clone().into_os_string();
        suffixed.push("::direct");
        // A name that is too long for the suffix, or another file that is really called so, leaves
        // the file's own mode.
        let same = |file: &File| {
            Ok::<_, io::Error>(file.metadata()?.ino() == fs::symlink_metadata(&self.path)?.ino())
        };
        match open(Path::new(&suffixed)) {
            Ok(file) if same(&file).is_ok_and(|same| same) => Ok(file),
            _ => open(&self.path).map_err(|e| self.refused(&e)),
        }
    }

    /// Reads everything, in chunks that begin at multiples of 1 MiB.
    pub fn read_all(&self) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.size == 0 {
            return Ok(taken);
        }
        let (file, mut at) = (self.open()?, 0);
        let mut pack = Pack::new();
        while at < self.size {
            at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data / CHUNK_BYTES * CHUNK_BYTES,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(self.refused(&error.into())),
            };
            let end = (at + CHUNK_BYTES).min(self.size);
            self.add(&file, (at, end), &mut pack, &mut taken)?;
            self.close(&mut pack, &mut taken)?;
            at = end;
        }
        Ok(taken)
    }

    /// Takes over what did not change since `old`, of a file of `old_size`, and reads the rest.
    pub fn update(&self, old: &Content, old_size: u64, changed: &[(u64, u64)]) -> Result<Taken> {
        let changed = self.to_read(old, old_size, changed)?;
        let mut content = old.clone();
        content.cut(&changed, self.size);
        let mut taken = Taken { content, ..Taken::default() };
        if !changed.is_empty() {
            let (file, mut pack) = (self.open()?, Pack::new());
            for range in in_chunks(&changed) {
                let len = (range.1 - range.0).next_multiple_of(BLOCK_BYTES) as usize;
                if pack.filled + len > CHUNK_BYTES as usize {
                    self.close(&mut pack, &mut taken)?;
                }
                self.add(&file, range, &mut pack, &mut taken)?;
            }
            self.close(&mut pack, &mut taken)?;
            taken.content.pieces.sort_unstable_by_key(|piece| piece.offset);
        }
        taken.content.drop_unused();
        debug_assert!(taken.content.is_possible(self.size), "{:?}", taken.content);
        Ok(taken)
    }

    /// Returns the ranges that have to be read, by offset: what changed, what the new size
    /// uncovers, what got lost, and what little is left of chunks.
    fn to_read(
        &self,
        old: &Content,
        old_size: u64,
        told: &[(u64, u64)],
    ) -> Result<Vec<(u64, u64)>> {
        let mut ranges: Vec<_> =
            told.iter().map(|(offset, len)| self.in_blocks(*offset, offset + len)).collect();
        if old_size < self.size {
            // The rest of the block with the old end was behind it.
            ranges.push(self.in_blocks(old_size, old_size.next_multiple_of(BLOCK_BYTES)));
        }
        let of_chunks = |wanted: &BTreeSet<usize>| {
            let pieces = old.pieces.iter().filter(|piece| wanted.contains(&piece.chunk));
            pieces.map(|piece| self.in_blocks(piece.offset, piece.end())).collect::<Vec<_>>()
        };
        let mut again = BTreeSet::new();
        for (index, chunk) in old.chunks.iter().enumerate() {
            if !self.repository.holds(chunk)? {
                again.insert(index);
            }
        }
        ranges.extend(of_chunks(&again));
        let ranges = joined(ranges);
        let mut left = old.clone();
        left.cut(&ranges, self.size);
        let mut live = vec![0; old.chunks.len()];
        left.pieces.iter().for_each(|piece| live[piece.chunk] += piece.len);
        let is_sparse = |index: &usize| live[*index] * LIVE_PART_MIN < old.chunks[*index].len;
        let sparse: BTreeSet<usize> = (0..old.chunks.len()).filter(is_sparse).collect();
        let rest: Vec<_> = left
            .pieces
            .iter()
            .filter(|piece| sparse.contains(&piece.chunk))
            .map(|piece| self.in_blocks(piece.offset, piece.end()))
            .collect();
        Ok(joined(ranges.into_iter().chain(rest).collect()))
    }

    /// Widens a range to whole blocks, as far as the file goes.
    fn in_blocks(&self, from: u64, to: u64) -> (u64, u64) {
        let to = to.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX).min(self.size);
        (from / BLOCK_BYTES * BLOCK_BYTES, to)
    }

    /// Reads a range of at most 1 MiB behind what the pack holds. Of zeros nothing is kept.
    fn add(
        &self,
        file: &File,
        (from, to): (u64, u64),
        pack: &mut Pack,
        taken: &mut Taken,
    ) -> Result<()> {
        let len = (to - from) as usize;
        self.read_at(file, from, len, &mut pack.buffer[pack.filled..])?;
        taken.read += len as u64;
        if pack.buffer[pack.filled..pack.filled + len].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        pack.pieces.push(Piece {
            offset: from,
            len: len as u64,
            chunk: taken.content.chunks.len(),
            at: pack.filled as u64,
        });
        pack.filled += len;
        // Only the end of a file is no whole block, and nothing comes behind that.
        debug_assert!(
            (len as u64).is_multiple_of(BLOCK_BYTES) || to == self.size,
            "{from}..{to} of {} is read in blocks",
            self.size
        );
        Ok(())
    }

    fn read_at(&self, file: &File, start: u64, wanted: usize, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        let room = wanted.next_multiple_of(BLOCK_BYTES as usize);
        while filled < wanted {
            // Behind the end a direct read gives what there is.
            match file.read_at(&mut buffer[filled..room], start + filled as u64) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        if filled >= wanted {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "{} ended at byte {}, before its size: back up again",
                self.path.display(),
                start + filled as u64
            ),
        ))
    }

    /// Stores what a pack holds as one chunk.
    fn close(&self, pack: &mut Pack, taken: &mut Taken) -> Result<()> {
        if pack.pieces.is_empty() {
            return Ok(());
        }
        let bytes = &pack.buffer[..pack.filled];
        let stored = self.repository.store(bytes, self.level)?;
        if let Some(written) = stored.written {
            taken.stored += bytes.len() as u64;
            taken.written += written;
        }
        taken.content.chunks.push(stored.chunk);
        taken.content.pieces.append(&mut pack.pieces);
        pack.filled = 0;
        Ok(())
    }
}

impl Pack {
    fn new() -> Self {
        Self { buffer: AlignedBuf::zeroed(CHUNK_BYTES as usize), filled: 0, pieces: Vec::new() }
    }
}

/// Cuts ranges at multiples of 1 MiB: what changed as a whole is a chunk as in a backup in full.
fn in_chunks(ranges: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> {
    ranges.iter().flat_map(|(from, to)| {
        let (mut at, end) = (*from, *to);
        std::iter::from_fn(move || {
            let next = (at / CHUNK_BYTES * CHUNK_BYTES + CHUNK_BYTES).min(end);
            (at < end).then(|| (std::mem::replace(&mut at, next), next))
        })
    })
}
