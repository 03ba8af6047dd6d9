//! The one table that turns errors of the file system into error numbers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_fs::ErrorKind;

/// How often a full file system is told: programs try again and again.
const FULL_INTERVAL: Duration = Duration::from_secs(600);

/// When a full file system was last told.
static FULL_LOGGED: LogInterval = LogInterval(AtomicU64::new(0));
/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time of the last message of a kind: seconds since [`START`] and 1; 0: there was none.
struct LogInterval(AtomicU64);

impl LogInterval {
    /// Returns whether it is time to tell again, to one caller for each time.
    fn is_due(&self) -> bool {
        let now = START.elapsed().as_secs() + 1;
        let due = |last: u64| {
            (last == 0 || now.saturating_sub(last) >= FULL_INTERVAL.as_secs()).then_some(now)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}

/// An error number for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

/// What an operation answers.
pub(crate) type Answer<T> = Result<T, Errno>;

impl Errno {
    pub(crate) const EXIST: Self = Self(libc::EEXIST);
    pub(crate) const BADF: Self = Self(libc::EBADF);
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const NOENT: Self = Self(libc::ENOENT);
    pub(crate) const NOSYS: Self = Self(libc::ENOSYS);
    pub(crate) const NOTTY: Self = Self(libc::ENOTTY);
    pub(crate) const STALE: Self = Self(libc::ESTALE);
    pub(crate) const NXIO: Self = Self(libc::ENXIO);
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const OVERFLOW: Self = Self(libc::EOVERFLOW);
    pub(crate) const RANGE: Self = Self(libc::ERANGE);

    /// Makes one of a number, positive.
    pub(crate) fn of_code(code: i32) -> Self {
        Self(code)
    }

    /// Returns the number, positive.
    pub(crate) fn code(self) -> i32 {
        self.0
    }
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Self {
        Self(match kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::Invalid | ErrorKind::NotAVolume | ErrorKind::NewerFormat => libc::EINVAL,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::TooLarge => libc::EFBIG,
            ErrorKind::TooManyLinks => libc::EMLINK,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::NoAttribute => libc::ENODATA,
            ErrorKind::Range => libc::ERANGE,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::Io => libc::EIO,
            ErrorKind::Corrupt => libc::EUCLEAN,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::NotPermitted => libc::EPERM,
        })
    }
}

impl From<bedplate_fs::Error> for Errno {
    fn from(error: bedplate_fs::Error) -> Self {
        // The kernel passes on a number only; the sentence of a failing device or medium must not
        // be lost.
        match error.kind {
            ErrorKind::Io | ErrorKind::Corrupt => tracing::error!("{error}"),
            ErrorKind::NoSpace if FULL_LOGGED.is_due() => {
                tracing::warn!(event = "full", "the file system is full: {error}");
            }
            _ => {}
        }
        Self::from(error.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_told_once_in_a_while() {
        let told = LogInterval(AtomicU64::new(0));
        assert!(told.is_due() && !told.is_due() && !told.is_due());
    }

    #[test]
    fn the_numbers_are_those_a_program_expects() {
        for (kind, code) in [
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::NoSpace, libc::ENOSPC),
            (ErrorKind::NoAttribute, libc::ENODATA),
            (ErrorKind::ReadOnly, libc::EROFS),
            (ErrorKind::Corrupt, libc::EUCLEAN),
        ] {
            assert_eq!(Errno::from(bedplate_fs::Error::new(kind, "x")).code(), code);
        }
    }
}
