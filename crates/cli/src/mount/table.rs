//! What is mounted where, from the system's own table.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

const TABLE: &str = "/proc/self/mountinfo";
/// The file system type under which the kernel lists our mounts.
const TYPE: &str = "fuse.bedplate";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What is mounted: for our mounts the volume's path.
    pub source: PathBuf,
    /// `major:minor`, by which the system knows the mount wherever it is.
    pub device: String,
    /// Whether the mount refuses writes.
    pub read_only: bool,
    /// The options of the mount and of the file system, as the kernel tells them.
    pub options: Vec<String>,
    kind: String,
}

impl Mount {
    /// Returns whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.kind == TYPE
    }
}

/// Returns the table; what is mounted last comes last.
fn table() -> Result<Vec<Mount>> {
    let text = std::fs::read(TABLE).map_err(|e| Failure::system("read", Path::new(TABLE), &e))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// Returns what is mounted exactly at `dir`, the topmost.
pub fn at(dir: &Path) -> Result<Option<Mount>> {
    Ok(table()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// Returns our mount below which `path` lies.
pub fn above(path: &Path) -> Result<Option<Mount>> {
    let mounts = table()?.into_iter().filter(|mount| path.starts_with(&mount.dir));
    Ok(mounts.max_by_key(|mount| mount.dir.components().count()).filter(Mount::is_ours))
}

/// Returns all our mounts.
pub fn ours() -> Result<Vec<Mount>> {
    Ok(table()?.into_iter().filter(Mount::is_ours).collect())
}

/// Reads one line: `36 35 98:0 /root /dir options … - type source superoptions`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let (dir, options) = (fields.nth(1)?, fields.next()?);
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (behind.next()?, behind.next()?);
    let of_file_system = behind.next().unwrap_or_default();
    let read_only = options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(Mount {
        dir: unescape(dir),
        source: unescape(source),
        device,
        read_only,
        options: options
            .split(|&byte| byte == b',')
            .chain(of_file_system.split(|&byte| byte == b','))
            .map(|option| String::from_utf8_lossy(option).into_owned())
            .collect(),
        kind: String::from_utf8_lossy(kind).into_owned(),
    })
}

/// Undoes the table's `\040` for a blank and its like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns `path` absolute and without links, also when it is a mount that cannot be looked at: its
/// daemon died, or it belongs to another user.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    let refused = match path.canonicalize() {
        Ok(path) => return Ok(path),
        Err(error) => Failure::system("find", path, &error),
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(refused) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match parent.canonicalize().map(|parent| parent.join(name)) {
        Ok(path) if at(&path)?.is_some() => Ok(path),
        _ => Err(refused),
    }
}

/// Returns whether the system says that the daemon behind a mount is gone, or went while it was
/// asked.
pub fn is_stale(error: &std::io::Error) -> bool {
    [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED]
        .iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_with_its_escapes_and_optional_fields() {
        let line = br"417 29 0:53 / /mnt/two\040words rw,nosuid shared:201 master:1 - fuse.bedplate /data/a\134b.img rw,user_id=0";
        let mount = parse(line).expect("the line is whole");
        assert_eq!(mount.dir, Path::new("/mnt/two words"));
        assert_eq!(mount.source, Path::new(r"/data/a\b.img"));
        assert!(mount.is_ours() && !mount.read_only && mount.device == "0:53");
    }

    #[test]
    fn lines_cut_short_are_skipped() {
        for line in [
            &b""[..],
            b"417 29 0:53 /",
            b"417 29 0:53 / /mnt rw -",
            b"417 29 0:53 / /mnt rw - fuse.bedplate",
        ] {
            assert_eq!(parse(line), None);
        }
        assert_eq!(unescape(br"end\04"), Path::new(r"end\04"));
    }
}
