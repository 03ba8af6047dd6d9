//! What a backup consists of: one JSON document a line.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::CHUNK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::pieces::{Chunk, Content, Piece};

/// The version of the format that is written; 1 is read, too.
pub const VERSION: u32 = 2;

/// Bytes that are nearly always text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// They are.
    Text(String),
    /// They are not.
    Raw {
        /// The bytes.
        bytes: Vec<u8>,
    },
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|e| Self::Raw { bytes: e.into_bytes() }, Self::Text)
    }
}

impl Bytes {
    /// Returns them.
    pub fn get(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Raw { bytes } => bytes,
        }
    }

    /// Returns them as a path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.get().to_vec()))
    }
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub format: u32,
    /// The backup's name.
    pub name: String,
    /// The volume that it is of.
    pub volume: String,
    /// The checkpoint that it is of.
    pub checkpoint: Bytes,
    /// That checkpoint's epoch.
    pub epoch: u32,
    /// When that checkpoint was made, nanoseconds since 1970.
    pub created: i64,
    /// The backup against which this one was made; it can be restored without it.
    pub base: Option<String>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory; it comes before what is in it.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe, a socket or a device.
    Special,
}

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The path from the root of the checkpoint; empty for the root.
    pub path: Bytes,
    /// What it is.
    pub kind: Kind,
    /// Type and permissions, as `stat` has them.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The time of the last change of content, nanoseconds since 1970.
    pub mtime: i64,
    /// The inode on the volume.
    pub ino: u64,
    /// The device's number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rdev: u64,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Bytes>,
    /// The first name of the same file: it has no content of its own here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Bytes>,
    /// Extended attributes: name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(Bytes, Bytes)>,
    /// The I/O mode that is set on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_mode: Option<String>,
    /// How many bytes of it are written untorn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untorn_bytes: Option<u32>,
    /// `on` where what is written to it gets checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// How many bytes of it are wanted in one run of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent_bytes: Option<u64>,
    /// Its size.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// In format 1: numbers of chunks of 1 MiB in the file, and their hashes. Empty once read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<(u64, String)>,
    /// Chunks with content of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<Chunk>,
    /// Which of their ranges the file is made of; what none covers is zeros.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Piece>,
}

impl Entry {
    /// Returns where its content lies.
    pub fn content(&self) -> Content {
        Content { chunks: self.data.clone(), pieces: self.pieces.clone() }
    }

    /// Sets where its content lies.
    pub fn set_content(&mut self, content: Content) {
        (self.data, self.pieces) = (content.chunks, content.pieces);
    }

    /// Makes what a manifest of `format` says of its content that of today; `None` where it says
    /// what cannot be.
    fn understood(mut self, format: u32) -> Option<Self> {
        if format == 1 {
            if !self.data.is_empty() || !self.pieces.is_empty() {
                return None;
            }
            let content = Content::of_numbered(std::mem::take(&mut self.chunks), self.size)?;
            self.set_content(content);
        }
        (self.chunks.is_empty() && self.content().is_possible(self.size)).then_some(self)
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    /// How many entries there are.
    entries: u64,
    /// The hash of all lines before.
    hash: String,
}

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// What it is of.
    pub header: Header,
    /// Its names, directories before what is in them.
    pub entries: Vec<Entry>,
}

impl Manifest {
    /// Writes it.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut hash = blake3::Hasher::new();
        let mut line = |out: &mut dyn Write, text: String| {
            hash.update(text.as_bytes()).update(b"\n");
            writeln!(out, "{text}")
        };
        line(out, serde_json::to_string(&self.header)?)?;
        for entry in &self.entries {
            line(out, serde_json::to_string(entry)?)?;
        }
        let end =
            End { entries: self.entries.len() as u64, hash: hash.finalize().to_hex().to_string() };
        writeln!(out, "{}", serde_json::to_string(&end)?)
    }

    /// Returns lines with an end that fits them, as far as that can be.
    #[cfg(feature = "forge")]
    pub fn sealed(lines: &[u8]) -> Vec<u8> {
        let mut text = lines.to_vec();
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        let end = End {
            entries: text.iter().filter(|byte| **byte == b'\n').count() as u64 - 1,
            hash: blake3::hash(&text).to_hex().to_string(),
        };
        text.extend(serde_json::to_vec(&end).expect("two fields are written"));
        text
    }

    /// Reads the one that lies at `place`; nothing in it is trusted.
    pub fn read(text: &[u8], place: &str) -> Result<Self> {
        let damaged = |what: &str| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{place}: the manifest {what}: use another backup"),
            )
        };
        let mut lines: Vec<&[u8]> =
            text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n').collect();
        let end: End = lines.pop().and_then(parse).ok_or_else(|| damaged("is cut short"))?;
        let mut hash = blake3::Hasher::new();
        for line in &lines {
            hash.update(line).update(b"\n");
        }
        if hash.finalize().to_hex().as_str() != end.hash {
            return Err(damaged("does not have its hash"));
        }
        let header: Header =
            lines.first().and_then(|line| parse(line)).ok_or_else(|| damaged("has no header"))?;
        if !(1..=VERSION).contains(&header.format) {
            let message = format!(
                "{place} has format {}, this software reads 1 to {VERSION}: use a newer bedplate",
                header.format
            );
            return Err(Error::new(ErrorKind::NewerFormat, message));
        }
        let entries: Vec<Entry> = lines
            .iter()
            .skip(1)
            .map(|line| parse(line))
            .collect::<Option<_>>()
            .ok_or_else(|| damaged("does not parse"))?;
        if entries.len() as u64 != end.entries || !is_tree(&entries) {
            return Err(damaged("holds impossible names"));
        }
        if !has_possible_sizes(&entries) {
            return Err(damaged("holds impossible sizes"));
        }
        let format = header.format;
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|entry| entry.understood(format))
            .collect::<Option<_>>()
            .ok_or_else(|| damaged("holds impossible chunks"))?;
        Ok(Self { header, entries })
    }
}

impl Manifest {
    /// Whether a reader takes it: directories before what is in them, and chunks in their order,
    /// within their files.
    pub fn is_readable(&self) -> bool {
        is_tree(&self.entries)
            && self.entries.iter().all(|entry| entry.content().is_possible(entry.size))
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}

/// Returns whether every name lies in a directory that came before, and every link leads to a file
/// that did.
fn is_tree(entries: &[Entry]) -> bool {
    let mut kinds: HashMap<&[u8], Kind> = HashMap::new();
    entries.iter().all(|entry| {
        let path = entry.path.get();
        let parent = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let fits = if path.is_empty() {
            entry.kind == Kind::Directory
        } else {
            kinds.get(parent) == Some(&Kind::Directory)
        };
        let leads = entry.link.as_ref().is_none_or(|link| {
            entry.kind == Kind::File && kinds.get(link.get()) == Some(&Kind::File)
        });
        fits && leads && is_inside(path) && kinds.insert(path, entry.kind).is_none()
    })
}

/// Returns whether every size is one that a file can have, and all of them can be added up.
fn has_possible_sizes(entries: &[Entry]) -> bool {
    let possible =
        |entry: &Entry| (entry.size <= i64::MAX as u64 - CHUNK_BYTES).then_some(entry.size);
    entries.iter().try_fold(0_u64, |sum, entry| sum.checked_add(possible(entry)?)).is_some()
}

/// Returns whether a path leads nowhere but below the root, and is the only way to write it: `d/.`
/// and `d/` are `d` by another name.
fn is_inside(path: &[u8]) -> bool {
    path.is_empty()
        || path
            .split(|byte| *byte == b'/')
            .all(|part| !matches!(part, b"" | b"." | b"..") && !part.contains(&0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::Form;

    fn manifest(path: &[u8]) -> Manifest {
        let header = Header {
            format: VERSION,
            name: "one".into(),
            volume: "v".into(),
            checkpoint: b"odd \xff".to_vec().into(),
            epoch: 3,
            created: -1,
            base: None,
        };
        let entry = Entry {
            path: path.to_vec().into(),
            kind: Kind::File,
            mode: 0o100_644,
            uid: 1,
            gid: 2,
            mtime: 3,
            ino: 4,
            rdev: 0,
            target: None,
            link: None,
            attributes: vec![(b"user.x".to_vec().into(), vec![0, 255].into())],
            io_mode: Some("direct".into()),
            untorn_bytes: None,
            integrity: Some("on".into()),
            extent_bytes: Some(1 << 20),
            size: 5,
            chunks: Vec::new(),
            data: vec![Chunk { hash: "ab".repeat(32), len: 9, form: Form::Zstd }],
            pieces: vec![Piece { offset: 1, len: 4, chunk: 0, at: 5 }],
        };
        let dir = |path: &[u8]| Entry {
            path: path.to_vec().into(),
            kind: Kind::Directory,
            io_mode: None,
            size: 0,
            data: Vec::new(),
            pieces: Vec::new(),
            attributes: Vec::new(),
            ..entry.clone()
        };
        Manifest { header, entries: vec![dir(b""), dir(b"d"), entry] }
    }

    fn text(manifest: &Manifest) -> Vec<u8> {
        let mut text = Vec::new();
        manifest.write(&mut text).unwrap();
        text
    }

    fn read(text: &[u8]) -> Result<Manifest> {
        Manifest::read(text, "m")
    }

    #[test]
    fn manifests_survive_writing_and_no_damage_is_taken_for_one() {
        let manifest = manifest(b"d/odd \xff\n");
        let whole = text(&manifest);
        assert_eq!(read(&whole).unwrap(), manifest);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err() || read(&damaged).unwrap() == manifest, "byte {at}");
            assert!(at + 1 >= whole.len() || read(&whole[..at]).is_err(), "cut at {at}");
        }
    }

    fn is_refused(change: impl Fn(&mut Entry)) -> bool {
        let mut manifest = manifest(b"d/x");
        change(&mut manifest.entries[2]);
        read(&text(&manifest)).is_err_and(|failure| failure.kind == ErrorKind::Corrupt)
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        assert!(!is_refused(|_| {}));
        for path in [
            &b"../x"[..],
            b"/etc/passwd",
            b"d/../../b",
            b"d//x",
            b"d/./x",
            b"none/x",
            b"d",
            b"",
            b"d/..",
            b"d/",
            b"d/.",
            b"d/x\0",
        ] {
            assert!(
                is_refused(|entry| entry.path = path.to_vec().into()),
                "{}",
                path.escape_ascii()
            );
        }
        assert!(is_refused(|entry| entry.link = Some(b"d".to_vec().into())));
        assert!(is_refused(|entry| entry.link = Some(b"../x".to_vec().into())));
        let mut through_a_link = manifest(b"d/x");
        through_a_link.entries[1].kind = Kind::Symlink;
        assert!(read(&text(&through_a_link)).is_err());
    }

    /// Their sum was once taken as it came.
    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(is_refused(|entry| entry.size = u64::MAX));
        let mut large = manifest(b"d/x");
        let entry = Entry { size: i64::MAX as u64 / 2, ..large.entries[2].clone() };
        large
            .entries
            .extend((0..5_u8).map(|n| Entry { path: vec![b'p' + n].into(), ..entry.clone() }));
        assert!(
            read(&text(&large)).is_err_and(|failure| failure.message.contains("impossible sizes"))
        );
    }

    #[test]
    fn chunks_that_cannot_be_are_refused() {
        let hash = || "ab".repeat(32);
        let of_format_1 = |chunks: Vec<(u64, String)>| {
            let mut old = manifest(b"d/x");
            old.header.format = 1;
            let entry = &mut old.entries[2];
            (entry.chunks, entry.data, entry.pieces) = (chunks, Vec::new(), Vec::new());
            read(&text(&old))
        };
        assert!(of_format_1(vec![(0, hash())]).is_ok());
        for chunks in [
            vec![(1, hash())],
            vec![(u64::MAX, hash())],
            vec![(0, hash()), (0, hash())],
            vec![(0, "../../x".into())],
            vec![(0, String::new())],
        ] {
            assert!(of_format_1(chunks.clone()).is_err(), "{chunks:?}");
        }
        assert!(is_refused(|entry| entry.pieces[0].at = 6));
        assert!(is_refused(|entry| entry.pieces[0].chunk = 1));
        assert!(is_refused(|entry| entry.pieces[0].len = 5));
        assert!(is_refused(|entry| entry.data[0].hash = "../../x".into()));
        assert!(is_refused(|entry| entry.chunks = vec![(0, hash())]), "that is of format 1");
    }

    /// S-231: a backup of the first format is read as what it is.
    #[test]
    fn s_231_a_manifest_of_format_1_is_read() {
        let size = 2 * CHUNK_BYTES + 5;
        let mut old = manifest(b"d/x");
        old.header.format = 1;
        let entry = &mut old.entries[2];
        let numbered = vec![(0, "ab".repeat(32)), (2, "cd".repeat(32))];
        (entry.size, entry.chunks) = (size, numbered);
        (entry.data, entry.pieces) = (Vec::new(), Vec::new());
        let content = read(&text(&old)).unwrap().entries[2].content();
        let chunk = |hash: &str, len| Chunk { hash: hash.repeat(32), len, form: Form::Raw };
        let expected = Content {
            chunks: vec![chunk("ab", CHUNK_BYTES), chunk("cd", 5)],
            pieces: vec![
                Piece { offset: 0, len: CHUNK_BYTES, chunk: 0, at: 0 },
                Piece { offset: 2 * CHUNK_BYTES, len: 5, chunk: 1, at: 0 },
            ],
        };
        assert_eq!(content, expected, "S-231");
    }
}
