//! The system's list of mounts, read without touching the mounts themselves: a dead one answers
//! nothing.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount, as a line of `/proc/PID/mountinfo` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// `MAJOR:MINOR` of the device that `stat` reports for what lies below.
    pub device: String,
    /// Which part of the file system is mounted; `/` is all of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// What is mounted.
    pub source: PathBuf,
    /// Options of the mount, as the kernel writes them: `rw,nosuid`.
    pub flags: String,
    /// Options of the file system, as its driver prints them.
    pub options: String,
}

impl MountEntry {
    /// Returns the mounts that this process sees, in the order in which they were made.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        Self::of_process(Path::new("/proc/self"))
    }

    /// Returns the mounts that a process sees, by its directory below `/proc`.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn of_process(process: &Path) -> io::Result<Vec<Self>> {
        Ok(Self::parse(&std::fs::read(process.join("mountinfo"))?))
    }

    /// Reads a list; what is no line of one is passed over.
    #[must_use]
    pub fn parse(list: &[u8]) -> Vec<Self> {
        list.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
    }

    /// Returns what is mounted exactly at a directory, the topmost where there are several.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn at(dir: &Path) -> io::Result<Option<Self>> {
        Ok(Self::all()?.into_iter().rfind(|entry| entry.dir == dir))
    }

    /// Finds the mount that an absolute path lies on, by its name alone: no file system is asked.
    #[must_use]
    pub fn above<'a>(entries: &'a [Self], path: &Path) -> Option<&'a Self> {
        // Of several on one directory the last hides the others, and `max_by_key` returns the last
        // of equals.
        let holds = entries.iter().filter(|entry| path.starts_with(&entry.dir));
        holds.max_by_key(|entry| entry.dir.components().count())
    }
}

/// Reads a line: `36 35 98:0 root /mnt rw,noatime master:1 - ext3 source rw,errors=continue`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let device = text(fields.nth(2)?);
    let (root, dir) = (unescape(fields.next()?), unescape(fields.next()?));
    let flags = text(fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (text(fields.next()?), unescape(fields.next()?));
    let options = text(fields.next().unwrap_or_default());
    Some(MountEntry { device, root, dir, kind, source, flags, options })
}

/// Undoes the kernel's `\040` for a space and the like.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|code| {
            *first == b'\\' && code.iter().all(|digit| (b'0'..=b'7').contains(digit))
        });
        let value = code.and_then(|code| {
            let value = code.iter().fold(0_u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
            u8::try_from(value).ok()
        });
        out.push(value.unwrap_or(*first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_with_its_escapes_and_optional_fields() {
        let list = br"417 29 0:53 / /mnt/two\040words rw,nosuid shared:201 master:1 - fuse.bedplate /data/a\134b.img rw,user_id=0
40 35 7:0 / /x rw - xfs /dev/loop0 rw,attr2
";
        let entries = MountEntry::parse(list);
        let first = MountEntry {
            device: "0:53".into(),
            root: "/".into(),
            dir: "/mnt/two words".into(),
            kind: "fuse.bedplate".into(),
            source: r"/data/a\b.img".into(),
            flags: "rw,nosuid".into(),
            options: "rw,user_id=0".into(),
        };
        assert_eq!((entries.len(), &entries[0]), (2, &first));
        assert_eq!(
            MountEntry::parse(b"4 3 0:5 /a\\040b /x rw - xfs z rw")[0].root,
            Path::new("/a b")
        );
        assert_eq!((entries[1].kind.as_str(), entries[1].options.as_str()), ("xfs", "rw,attr2"));
    }

    #[test]
    fn what_is_no_line_is_passed_over() {
        for line in [
            &b""[..],
            b"1 2",
            b"417 29 0:53 /",
            b"1 2 0:1 / /mnt rw",
            b"417 29 0:53 / /mnt rw -",
            b"417 29 0:53 / /mnt rw - fuse.bedplate",
        ] {
            assert_eq!(MountEntry::parse(line), []);
        }
        assert_eq!(unescape(br"a\04"), Path::new(r"a\04"));
        assert_eq!(unescape(br"\777"), Path::new(r"\777"));
    }

    #[test]
    fn a_path_lies_on_the_innermost_and_last_mount_that_holds_it() {
        let text = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            40 27 0:42 / /data\\040here rw shared:1 - btrfs /dev/vdb rw,space_cache\n\
            41 27 0:43 / /data\\040here rw shared:1 - fuse.bedplate /srv/an\\040image rw\n\
            broken line\n";
        let entries = MountEntry::parse(text);
        let find = |path: &str| {
            let entry = MountEntry::above(&entries, Path::new(path))?;
            Some((entry.kind.as_str(), entry.source.to_str().unwrap()))
        };
        assert_eq!(find("/data here/v.img"), Some(("fuse.bedplate", "/srv/an image")));
        assert_eq!(find("/data hereafter/v.img"), Some(("ext4", "/dev/vda")));
        assert_eq!((entries.len(), find("v.img")), (3, None));
    }

    #[test]
    fn this_machine_has_a_root() {
        let root = MountEntry::at(Path::new("/")).unwrap().unwrap();
        let own = MountEntry::of_process(Path::new("/proc/self")).unwrap();
        assert!(own.iter().any(|entry| entry.device == root.device));
    }
}
