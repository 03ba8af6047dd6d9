//! Which processes may still write to the files of a directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::scan::scan;
use crate::error::{Result, system};

/// The bits of the flags of an open file that say what it is open for.
const ACCESS_MODE: u64 = 0o3;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Processes, as `postgres (1234)`.
    pub(super) processes: Vec<String>,
    /// Processes that this user may not look into.
    pub(super) unseen: usize,
}

/// How long is waited between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// As [`writers`], of those that still have a file open when it was looked so many times: a program
/// that is being started holds what its parent has open for a moment, and one that was stopped may
/// take some to end.
///
/// # Errors
/// As [`writers`].
pub(super) fn writers_that_stay(directory: &Path, looks: usize) -> Result<Writers> {
    let mut found = writers(directory)?;
    for _ in 1..looks {
        if found.processes.is_empty() {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
        found = writers(directory)?;
    }
    Ok(found)
}

/// Looks for processes, other than this one, that have files below a directory open for writing, or
/// mapped so.
///
/// # Errors
/// When the directory or `/proc` cannot be read.
pub(super) fn writers(directory: &Path) -> Result<Writers> {
    let entries = scan(directory)?;
    let files = entries.iter().filter(|entry| entry.is.is_file());
    let files = Files(files.map(|entry| (entry.is.ino(), entry.is.dev())).collect());
    let proc = Path::new("/proc");
    let own = std::process::id().to_string();
    let mut found = Writers::default();
    for process in std::fs::read_dir(proc).map_err(system("read", proc))?.flatten() {
        let (name, path) = (process.file_name(), process.path());
        let name = name.to_string_lossy();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) || name == own {
            continue;
        }
        match writes(&path, directory, &files) {
            Some(true) => {
                let program = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
                found.processes.push(format!("{} ({name})", program.trim()));
            }
            Some(false) => {}
            None => found.unseen += 1,
        }
    }
    Ok(found)
}

/// Files by inode number and device.
struct Files(HashMap<u64, u64>);

impl Files {
    /// Returns whether a path leads to one of the files, whose inode number was told to be `ino`.
    /// Only a file with such a number is asked itself: one of another mount may not answer.
    fn holds(&self, path: &Path, ino: Option<u64>) -> bool {
        ino.is_none_or(|ino| self.0.contains_key(&ino))
            && std::fs::metadata(path).is_ok_and(|is| self.0.get(&is.ino()) == Some(&is.dev()))
    }
}

/// Returns whether a process has one of the files open or mapped for writing; `None` where it may
/// not be looked into.
fn writes(process: &Path, directory: &Path, files: &Files) -> Option<bool> {
    let open = match std::fs::read_dir(process.join("fd")) {
        Ok(open) => open,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
        // It ended.
        Err(_) => return Some(false),
    };
    let is_written = |fd: &Path| {
        if !std::fs::read_link(fd).is_ok_and(|path| path.is_absolute()) {
            return false;
        }
        let info = fd.file_name().map(|name| process.join("fdinfo").join(name));
        let info = info.and_then(|info| std::fs::read_to_string(info).ok()).unwrap_or_default();
        is_for_writing(&info) && files.holds(fd, number(&info, "ino:", 10))
    };
    if open.flatten().any(|fd| is_written(&fd.path())) {
        return Some(true);
    }
    let maps = std::fs::read(process.join("maps")).unwrap_or_default();
    Some(
        maps.split(|byte| *byte == b'\n')
            .filter_map(shared_writable)
            .any(|(path, ino)| path.starts_with(directory) || files.holds(&path, Some(ino))),
    )
}

/// Reads a number that `/proc/PID/fdinfo/FD` tells.
fn number(info: &str, name: &str, radix: u32) -> Option<u64> {
    let value = info.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(value.trim(), radix).ok()
}

/// Reads what a file is open for; what cannot be read counts as open for writing.
fn is_for_writing(info: &str) -> bool {
    number(info, "flags:", 8).is_none_or(|flags| flags & ACCESS_MODE != 0)
}

/// Returns the file of a line of `/proc/PID/maps` that may be changed through the mapping, and its
/// inode number.
fn shared_writable(line: &[u8]) -> Option<(PathBuf, u64)> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let rights = fields.nth(1)?;
    let ino = std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok()?;
    let path = line.iter().position(|byte| *byte == b'/')?;
    (rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b's'))
        .then(|| (PathBuf::from(OsStr::from_bytes(&line[path..])), ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_for_writing_is_told_from_what_is_read() {
        assert!(is_for_writing("pos:\t0\nflags:\t0100002\nmnt_id:\t29\n"));
        assert!(is_for_writing("flags:\t02001\n"));
        assert!(!is_for_writing("pos:\t0\nflags:\t0100000\n"));
        assert!(is_for_writing("nothing known"));
        let line = b"7f00-7f01 rw-s 00000000 08:01 77   /srv/a b";
        assert_eq!(shared_writable(line), Some((PathBuf::from("/srv/a b"), 77)));
        assert_eq!(shared_writable(b"7f00-7f01 r--s 00000000 08:01 77 /srv/a"), None);
        assert_eq!(shared_writable(b"7f00-7f01 rw-p 00000000 08:01 77 /srv/a"), None);
        assert_eq!(shared_writable(b"7f00-7f01 rw-s 00000000 00:01 77"), None);
    }
}
