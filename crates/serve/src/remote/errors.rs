//! The one table that turns errors of a server into error numbers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use bedplate_nfs::{Error, ErrorKind, Status};

use crate::fuse::errno::Errno;

/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The second in which a failure was last told, and 1.
static TOLD: AtomicU64 = AtomicU64::new(0);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        let code = code_of(&error);
        // The kernel passes on a number only; the sentence must not be lost. A loop of a program
        // tells it once a second.
        if matches!(code, libc::EIO | libc::ESTALE | libc::ETIMEDOUT | libc::ENOSPC) {
            let now = START.elapsed().as_secs() + 1;
            if TOLD.swap(now, Relaxed) != now {
                tracing::error!("{error}");
            }
        }
        Self::of_code(code)
    }
}

fn code_of(error: &Error) -> i32 {
    if let Some(status) = error.status {
        return code_of_status(status);
    }
    match error.kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Permission => libc::EACCES,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::NotDirectory => libc::ENOTDIR,
        ErrorKind::IsDirectory => libc::EISDIR,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::NoLocks => libc::ENOLCK,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::Usage | ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Unreached | ErrorKind::Protocol | ErrorKind::Io | ErrorKind::Closed => libc::EIO,
    }
}

fn code_of_status(status: Status) -> i32 {
    match status {
        Status::NotOwner => libc::EPERM,
        Status::NotFound => libc::ENOENT,
        Status::NoDevice => libc::ENXIO,
        Status::Access => libc::EACCES,
        Status::Exists => libc::EEXIST,
        Status::CrossDevice => libc::EXDEV,
        Status::NotDirectory => libc::ENOTDIR,
        Status::IsDirectory => libc::EISDIR,
        Status::Invalid | Status::BadCookie => libc::EINVAL,
        Status::TooLarge => libc::EFBIG,
        Status::NoSpace => libc::ENOSPC,
        Status::ReadOnly => libc::EROFS,
        Status::TooManyLinks => libc::EMLINK,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::Quota => libc::EDQUOT,
        Status::Stale | Status::BadHandle => libc::ESTALE,
        Status::NotSupported | Status::BadType => libc::EOPNOTSUPP,
        Status::Jukebox => libc::ETIMEDOUT,
        Status::Io | Status::NotSynced | Status::TooSmall | Status::ServerFault => libc::EIO,
    }
}
