//! The kernel's file handles: names of files that hold across renames and remounts.

use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{SYS_name_to_handle_at, SYS_open_by_handle_at, c_int, c_uint, syscall};

/// The most bytes that a handle of the kernel has (`MAX_HANDLE_SZ`).
const BYTES_MAX: usize = 128;

/// What the kernel calls `struct file_handle`, with room for the longest.
#[repr(C)]
struct Raw {
    len: c_uint,
    kind: c_int,
    bytes: [u8; BYTES_MAX],
}

const _: () = assert!(offset_of!(Raw, bytes) == 8, "the kernel's struct has no gaps");

/// A file handle (`name_to_handle_at(2)`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// What the bytes mean, in the file system's own numbers.
    pub kind: i32,
    /// The bytes: at most 128.
    pub bytes: Vec<u8>,
}

impl FileHandle {
    /// Returns the handle of a name in a directory, or of the open file itself where the name is
    /// empty. A symbolic link is not followed.
    ///
    /// # Errors
    /// Those of the system: `EOPNOTSUPP` where the file system has no handles.
    pub fn of(dir: impl AsFd, name: &CStr) -> io::Result<Self> {
        let mut raw = Raw { len: BYTES_MAX as c_uint, kind: 0, bytes: [0; BYTES_MAX] };
        let mut mount: c_int = 0;
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        // SAFETY: the name ends with a zero byte, `raw` has the room that its length says, and both
        // outlive the call.
        let result = unsafe {
            syscall(
                SYS_name_to_handle_at,
                dir.as_fd().as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                flags,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let len = raw.len as usize;
        assert!(len <= BYTES_MAX, "the kernel keeps to the room that it was given: {len}");
        Ok(Self { kind: raw.kind, bytes: raw.bytes[..len].to_vec() })
    }

    /// Opens what the handle names, on the mount that `mount` lies on, with `O_PATH`: nothing is
    /// begun with the file. The process needs `CAP_DAC_READ_SEARCH`.
    ///
    /// # Errors
    /// `ESTALE` where there is no such file any more; those of the system.
    pub fn open(&self, mount: impl AsFd) -> io::Result<OwnedFd> {
        let mut raw = Raw { len: 0, kind: self.kind, bytes: [0; BYTES_MAX] };
        let Some(room) = raw.bytes.get_mut(..self.bytes.len()) else {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        };
        room.copy_from_slice(&self.bytes);
        raw.len = self.bytes.len() as c_uint;
        let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: `raw` outlives the call, and its length is that of bytes that it holds.
        let result = unsafe {
            syscall(SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw mut raw, flags)
        };
        let fd = c_int::try_from(result).unwrap_or(-1);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made the descriptor, and nothing else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_handle_leads_to_its_file_under_another_name_and_nowhere_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"content").unwrap();
        let root = File::open(dir.path()).unwrap();
        let handle = match FileHandle::of(&root, c"a") {
            Ok(handle) => handle,
            Err(error) => return println!("skipped: no file handles here: {error}"),
        };
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        match handle.open(&root) {
            Ok(found) => assert_eq!(FileHandle::of(&found, c"").unwrap(), handle),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return println!("skipped: needs CAP_DAC_READ_SEARCH");
            }
            Err(error) => panic!("{error}"),
        }
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(handle.open(&root).unwrap_err().raw_os_error(), Some(libc::ESTALE));
        let long = FileHandle { kind: 1, bytes: vec![0; BYTES_MAX + 1] };
        assert_eq!(long.open(&root).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
}
