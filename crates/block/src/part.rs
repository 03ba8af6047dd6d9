//! Parts of a device: pieces of it that are opened, and claimed, as a device of their own.
//!
//! ```text
//! /dev/sdb#4M+10240M,20484M+1024M     two pieces of /dev/sdb, one behind the other
//! ```
//! A part claims its own bytes alone, so that several processes may have parts of one device open.
//! What exists under the whole name is no part.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The unit in bytes in which pieces begin and end.
const UNIT_BYTES: u64 = 1 << 20;
/// The most pieces that a part has.
const PIECES_MAX: usize = 64;

/// Pieces of a device: what the path of a part names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The path of the device.
    pub device: PathBuf,
    /// The bytes of it, one range behind the other: multiples of 1 MiB, 1 to 64 of them, none empty
    /// and none beyond what a signed 64-bit offset reaches.
    pub pieces: Vec<Range<u64>>,
}

impl Part {
    /// Reads a path; `None` where it names no part, or where something exists under the whole name.
    #[must_use]
    pub fn parse(path: &Path) -> Option<Self> {
        let bytes = path.as_os_str().as_bytes();
        // What follows '#' in a URI is the URI's.
        if bytes.windows(3).any(|three| three == b"://") {
            return None;
        }
        let at = bytes.iter().rposition(|byte| *byte == b'#')?;
        let text = std::str::from_utf8(&bytes[at + 1..]).ok()?;
        let pieces = text.split(',').map(piece).collect::<Option<Vec<_>>>()?;
        let device = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
        let is_one = at > 0 && pieces.len() <= PIECES_MAX && path.symlink_metadata().is_err();
        is_one.then_some(Self { device, pieces })
    }

    /// Returns the path that names the part.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let mut text = String::new();
        for piece in &self.pieces {
            let divider = if text.is_empty() { '#' } else { ',' };
            let (start, len) = (piece.start / UNIT_BYTES, (piece.end - piece.start) / UNIT_BYTES);
            // A `String` takes all that is written to it.
            let _ = write!(text, "{divider}{start}M+{len}M");
        }
        let mut whole = self.device.clone().into_os_string().into_vec();
        whole.extend(text.bytes());
        OsString::from_vec(whole).into()
    }

    /// Returns the device that the path of a part lies on; every other path as it is.
    #[must_use]
    pub fn device_of(path: &Path) -> PathBuf {
        Self::parse(path).map_or_else(|| path.to_owned(), |part| part.device)
    }
}

fn piece(text: &str) -> Option<Range<u64>> {
    let units = |text: &str| {
        let digits = text.strip_suffix('M')?;
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok())??.checked_mul(UNIT_BYTES)
    };
    let (start, len) = text.split_once('+')?;
    let (start, len) = (units(start)?, units(len)?);
    let end = start.checked_add(len).filter(|end| i64::try_from(*end).is_ok())?;
    (len > 0).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, Backing, DeviceOptions, ErrorKind, create_image, device_path};

    const MIB: u64 = 1 << 20;

    /// S-564
    #[test]
    fn s_564_a_part_is_named_by_its_pieces_and_nothing_else_is_one() {
        for text in ["/dev/sdb#4M+10240M", "a b#0M+4M,8M+1M", "x#y#1M+1M"] {
            let part = Part::parse(Path::new(text)).unwrap();
            assert_eq!(part.path(), Path::new(text));
        }
        let part = Part::parse(Path::new("/d#4M+1M,9M+2M")).unwrap();
        assert_eq!(part.pieces, [4 * MIB..5 * MIB, 9 * MIB..11 * MIB]);
        assert_eq!(Part::device_of(Path::new("/d#4M+1M")), Path::new("/d"));
        let huge = format!("/d#{}M+1M", u64::MAX);
        let beyond = format!("/d#{}M+1M", i64::MAX as u64 / MIB + 1);
        let many = format!("/d#{}", vec!["1M+1M"; 65].join(","));
        for none in [
            "/dev/sdb",
            "#4M+1M",
            "/d#",
            "/d#4M",
            "/d#4+1",
            "/d#4M+0M",
            "/d#+4M+1M",
            "/d#4M+1M,",
            "/d#4M+1M,,5M+1M",
            "/d#-4M+1M",
            "/d# 4M+1M",
            "nbd://h/x#4M+1M",
            &huge,
            &beyond,
            &many,
        ] {
            assert_eq!(Part::parse(Path::new(none)), None, "{none}");
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a#4M+1M");
        std::fs::write(&odd, b"").unwrap();
        assert_eq!(Part::parse(&odd), None, "it exists under the whole name");
    }

    /// S-564
    #[test]
    fn s_564_parts_of_one_device_are_claimed_by_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        create_image(&image, 16 * MIB, false).unwrap();
        let named = |text: &str| PathBuf::from(format!("{}#{text}", image.display()));
        let open = |path: &Path, read_only| {
            crate::open(path, &DeviceOptions { read_only, ..DeviceOptions::default() })
        };
        let one = open(&named("4M+2M,8M+1M"), false).unwrap();
        let other = open(&named("6M+2M"), false).unwrap();
        assert_eq!((one.size_bytes(), other.size_bytes()), (3 * MIB, 2 * MIB));
        for taken in [image.clone(), named("5M+1M"), named("0M+16M"), named("8M+1M")] {
            for read_only in [false, true] {
                let kind = open(&taken, read_only).unwrap_err().kind;
                assert_eq!(kind, ErrorKind::Busy, "{}", taken.display());
            }
        }
        one.write_at(&AlignedBuf::from_slice(&[7; 4096]), 2 * MIB).unwrap();
        one.flush().unwrap();
        drop(one);
        let mut seen = AlignedBuf::zeroed(4096);
        open(&named("8M+1M"), true).unwrap().read_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7), "it was the second piece");
        let past = open(&named("15M+2M"), true).unwrap_err();
        assert_eq!(past.kind, ErrorKind::OutOfRange, "{past}");
        let path = device_path(&named("8M+1M")).unwrap();
        assert_eq!(
            path,
            PathBuf::from(format!("{}#8M+1M", image.canonicalize().unwrap().display()))
        );
        let backing = |path: &Path| Backing::of(path).unwrap();
        assert!(backing(&named("4M+2M")).overlaps(&backing(&image)));
        assert!(!backing(&named("4M+2M")).overlaps(&backing(&named("6M+2M"))));
    }
}
