//! Where the content of a file lies: chunks, and the pieces of them that the file is made of.
//!
//! ```text
//!   file      |..........|####|..........|##|.....|        . as in the base   # changed since
//!   pieces     A[0,10)    C[0,4) A[14,24) C[4,6) …          sorted by offset, they do not overlap
//!   chunks     A: 1 MiB, stored by the base     C: what changed, one piece behind the other
//! ```

use serde::{Deserialize, Serialize};

use crate::CHUNK_BYTES;

/// How the bytes of a chunk lie in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// As they are.
    Raw,
    /// One frame of zstd.
    Zstd,
}

/// A chunk: the hash of its content, its bytes, and how they lie in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(String, u64, Form)", into = "(String, u64, Form)")]
pub struct Chunk {
    /// BLAKE3 of the content, 64 hexadecimal digits.
    pub hash: String,
    /// Bytes of the content.
    pub len: u64,
    /// How it is stored.
    pub form: Form,
}

impl From<(String, u64, Form)> for Chunk {
    fn from((hash, len, form): (String, u64, Form)) -> Self {
        Self { hash, len, form }
    }
}

impl From<Chunk> for (String, u64, Form) {
    fn from(chunk: Chunk) -> Self {
        (chunk.hash, chunk.len, chunk.form)
    }
}

/// A range of a file that is a range of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, usize, u64)", into = "(u64, u64, usize, u64)")]
pub struct Piece {
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The index of the chunk among those of the file.
    pub chunk: usize,
    /// The first byte in the chunk.
    pub at: u64,
}

impl From<(u64, u64, usize, u64)> for Piece {
    fn from((offset, len, chunk, at): (u64, u64, usize, u64)) -> Self {
        Self { offset, len, chunk, at }
    }
}

impl From<Piece> for (u64, u64, usize, u64) {
    fn from(piece: Piece) -> Self {
        (piece.offset, piece.len, piece.chunk, piece.at)
    }
}

impl Piece {
    /// Returns the first byte of the file behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The content of a file; what no piece covers is zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The chunks.
    pub chunks: Vec<Chunk>,
    /// The pieces, by offset.
    pub pieces: Vec<Piece>,
}

/// Returns whether 64 hexadecimal digits name a chunk.
fn is_hash(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Content {
    /// Returns whether all chunks can exist, and all pieces lie in the file and in their chunks,
    /// and follow each other.
    pub fn is_possible(&self, size: u64) -> bool {
        let chunks = self
            .chunks
            .iter()
            .all(|chunk| is_hash(&chunk.hash) && (1..=CHUNK_BYTES).contains(&chunk.len));
        let mut behind = 0;
        let inside = |piece: &Piece| {
            let chunk = self.chunks.get(piece.chunk)?;
            let end = piece.offset.checked_add(piece.len)?;
            let fits = piece.len > 0
                && piece.offset >= behind
                && end <= size
                && piece.at.checked_add(piece.len)? <= chunk.len;
            behind = end;
            fits.then_some(())
        };
        chunks && self.pieces.iter().map(inside).all(|inside| inside.is_some())
    }

    /// Makes the content of a file of format 1: numbers of chunks of 1 MiB, and their hashes.
    /// `None` where that cannot be.
    pub fn of_numbered(numbered: Vec<(u64, String)>, size: u64) -> Option<Self> {
        let end = size.div_ceil(CHUNK_BYTES);
        let mut content = Self::default();
        for (number, hash) in numbered {
            if number >= end || !is_hash(&hash) {
                return None;
            }
            let offset = number * CHUNK_BYTES;
            let len = (size - offset).min(CHUNK_BYTES);
            let chunk = content.chunks.len();
            content.chunks.push(Chunk { hash, len, form: Form::Raw });
            content.pieces.push(Piece { offset, len, chunk, at: 0 });
        }
        content.is_possible(size).then_some(content)
    }

    /// Returns the pieces of each chunk, by the chunk's index.
    pub fn by_chunk(&self) -> Vec<Vec<Piece>> {
        let mut grouped = vec![Vec::new(); self.chunks.len()];
        self.pieces.iter().for_each(|piece| grouped[piece.chunk].push(*piece));
        grouped
    }

    /// Drops chunks that no piece is of.
    pub fn drop_unused(&mut self) {
        let mut new_index = vec![None; self.chunks.len()];
        let mut chunks = Vec::new();
        for piece in &mut self.pieces {
            let old = piece.chunk;
            piece.chunk = *new_index[old].get_or_insert_with(|| {
                chunks.push(self.chunks[old].clone());
                chunks.len() - 1
            });
        }
        self.chunks = chunks;
    }

    /// Cuts `ranges`, sorted and apart, and what lies behind `size` out of the pieces.
    pub fn cut(&mut self, ranges: &[(u64, u64)], size: u64) {
        let mut kept = Vec::with_capacity(self.pieces.len());
        let mut ranges = ranges.iter().copied().peekable();
        for piece in &self.pieces {
            let end = piece.end().min(size);
            let mut at = piece.offset;
            while at < end {
                // Ranges that end before the rest of the piece are done with.
                while ranges.next_if(|range| range.1 <= at).is_some() {}
                let (from, to) = ranges.peek().copied().unwrap_or((u64::MAX, u64::MAX));
                let keep = from.clamp(at, end);
                if keep > at {
                    let into = piece.at + (at - piece.offset);
                    kept.push(Piece { offset: at, len: keep - at, at: into, chunk: piece.chunk });
                }
                at = if keep < end { to.min(end) } else { end };
            }
        }
        self.pieces = kept;
    }
}

/// Returns ranges (first byte, byte behind) by offset, joined where they touch.
pub fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(from, to)| from < to);
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(len: u64) -> Chunk {
        Chunk { hash: "ab".repeat(32), len, form: Form::Raw }
    }

    /// S-230: what was cut out is nowhere, and everything else where it was: compared byte by byte
    /// with a file that is cut by hand, over all small ranges.
    #[test]
    fn s_230_cutting_leaves_every_other_byte_where_it_was() {
        let pieces = [(0, 4, 0, 2), (4, 3, 1, 0), (9, 5, 0, 8)].map(Piece::from).to_vec();
        let content = Content { chunks: vec![chunk(16), chunk(3)], pieces };
        let bytes = |content: &Content| {
            let mut file = [None; 16];
            for piece in &content.pieces {
                for n in 0..piece.len {
                    file[(piece.offset + n) as usize] = Some((piece.chunk, piece.at + n));
                }
            }
            file
        };
        let before = bytes(&content);
        for from in 0..16 {
            for to in from..16 {
                for size in 0..16 {
                    let ranges = joined(vec![(from, to), (to + 1, to + 2)]);
                    let mut cut = content.clone();
                    cut.cut(&ranges, size);
                    let mut expected = before;
                    for at in 0..16_u64 {
                        let is_cut = at >= size
                            || ranges.iter().any(|range| (range.0..range.1).contains(&at));
                        expected[at as usize] = before[at as usize].filter(|_| !is_cut);
                    }
                    assert_eq!(bytes(&cut), expected, "S-230: {ranges:?} of {size}");
                    assert!(cut.is_possible(size), "S-230: {cut:?}");
                    cut.drop_unused();
                    assert!(cut.is_possible(size), "S-230: {cut:?}");
                }
            }
        }
    }

    #[test]
    fn pieces_that_cannot_be_are_refused() {
        let is_possible = |pieces: &[(u64, u64, usize, u64)], len| {
            let pieces = pieces.iter().copied().map(Piece::from).collect();
            Content { chunks: vec![chunk(len)], pieces }.is_possible(100)
        };
        assert!(is_possible(&[(0, 5, 0, 3), (5, 1, 0, 0)], 8));
        for wrong in [
            (0, 0, 0, 0),
            (0, 5, 1, 0),
            (0, 5, 0, 4),
            (96, 5, 0, 0),
            (u64::MAX, 5, 0, 0),
            (0, 5, 0, u64::MAX),
            (3, u64::MAX, 0, 0),
        ] {
            assert!(!is_possible(&[wrong], 8), "{wrong:?}");
        }
        assert!(!is_possible(&[(0, 5, 0, 0), (4, 1, 0, 0)], 8), "they overlap");
        assert!(!is_possible(&[], 0) && !is_possible(&[], CHUNK_BYTES + 1), "impossible chunks");
    }
}
