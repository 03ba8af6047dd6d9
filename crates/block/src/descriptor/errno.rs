//! The one table that turns an errno into an error of this crate.

use std::io;

use crate::{Error, ErrorKind, Operation};

/// Makes the error of a failed system call on a device.
#[cold]
pub(crate) fn from_io(
    name: &str,
    operation: Operation,
    offset: Option<u64>,
    source: &io::Error,
) -> Error {
    match source.raw_os_error() {
        Some(errno) => from_errno(name, operation, offset, errno),
        None => Error {
            kind: ErrorKind::Io,
            operation,
            device: name.to_owned(),
            offset,
            detail: source.to_string(),
            errno: None,
        },
    }
}

/// Makes the error of a failed system call on a device.
#[cold]
pub(crate) fn from_errno(
    name: &str,
    operation: Operation,
    offset: Option<u64>,
    errno: i32,
) -> Error {
    let kind = kind_of(operation, errno);
    let system = words(errno);
    let detail = match (kind, errno) {
        (ErrorKind::NoSpace, _) => {
            format!("the file system or pool that holds it is full ({system})")
        }
        (ErrorKind::ReadOnly, _) => format!("the device refuses writes ({system})"),
        (ErrorKind::NotFound, _) => "there is no such file or device".to_owned(),
        (ErrorKind::Permission, _) => {
            format!("not permitted; check the owner and mode of the path ({system})")
        }
        (ErrorKind::Unsupported, _) => format!("not offered by this kind of device ({system})"),
        (_, libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM | libc::ESHUTDOWN) => {
            format!("the device is gone ({system})")
        }
        (_, libc::EINVAL) => format!(
            "the system refused the transfer; its alignment may have changed since the device was \
             opened ({system})"
        ),
        (_, libc::EIO | libc::EREMOTEIO | libc::EILSEQ | libc::ENODATA) => {
            format!("the medium failed ({system})")
        }
        _ => system,
    };
    Error { kind, operation, device: name.to_owned(), offset, detail, errno: Some(errno) }
}

/// Returns the system's words for an errno; the number itself explains nothing.
fn words(errno: i32) -> String {
    without_errno(&io::Error::from_raw_os_error(errno).to_string()).to_owned()
}

/// Returns the words of a system's error without the number that the standard library appends to
/// them.
#[must_use]
pub fn without_errno(text: &str) -> &str {
    text.split_once(" (os error").map_or(text, |(words, _)| words)
}

fn kind_of(operation: Operation, errno: i32) -> ErrorKind {
    let changes = matches!(operation, Operation::Write | Operation::Discard | Operation::Resize);
    match errno {
        libc::ENOSPC | libc::EDQUOT => ErrorKind::NoSpace,
        libc::EROFS => ErrorKind::ReadOnly,
        libc::EPERM if changes => ErrorKind::ReadOnly,
        libc::EPERM | libc::EACCES => ErrorKind::Permission,
        libc::ENOENT => ErrorKind::NotFound,
        libc::EBUSY | libc::ETXTBSY => ErrorKind::Busy,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_means_what_the_operation_makes_of_it() {
        let kind = |operation, errno| from_errno("d", operation, Some(4096), errno).kind;
        assert_eq!(kind(Operation::Write, libc::ENOSPC), ErrorKind::NoSpace);
        assert_eq!(kind(Operation::Write, libc::EDQUOT), ErrorKind::NoSpace);
        assert_eq!(kind(Operation::Write, libc::EPERM), ErrorKind::ReadOnly);
        assert_eq!(kind(Operation::Open, libc::EPERM), ErrorKind::Permission);
        assert_eq!(kind(Operation::Open, libc::EROFS), ErrorKind::ReadOnly);
        assert_eq!(kind(Operation::Read, libc::EIO), ErrorKind::Io);
        let gone = from_errno("/dev/x", Operation::Read, Some(4096), libc::ENXIO);
        assert_eq!(gone.kind, ErrorKind::Io);
        assert!(
            gone.to_string().starts_with("/dev/x: read at byte 4096: the device is gone")
                && !gone.to_string().contains("os error"),
            "{gone}"
        );
    }
}
