//! Locks of byte ranges of a file, as programs agree on them (`F_OFD_SETLKW`).
//!
//! They belong to the open file description: two opens of one file exclude each other, also within
//! a process, and a close gives everything back.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Waits for the lock of a range of bytes and takes it, shared with others or exclusively. Safe to
/// call from any thread; the bytes need not exist.
///
/// # Errors
/// What the system says, such as `EBADF` where the file was not opened for what the lock permits,
/// or `EDEADLK`.
pub fn lock_record(file: &File, bytes: Range<u64>, exclusive: bool) -> io::Result<()> {
    set(file, if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, &bytes)
}

/// Gives the lock of a range of bytes back.
///
/// # Errors
/// What the system says.
pub fn unlock_record(file: &File, bytes: Range<u64>) -> io::Result<()> {
    set(file, libc::F_UNLCK, &bytes)
}

/// Takes the lock of a range of bytes, shared with others or exclusively, where nothing holds it
/// against that. Returns whether it was taken.
///
/// # Errors
/// As [`lock_record`].
pub fn try_lock_record(file: &File, bytes: Range<u64>, exclusive: bool) -> io::Result<bool> {
    let lock = record(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, &bytes)?;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument is
    // the `flock` that this command reads.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match io::Error::last_os_error() {
        _ if done == 0 => Ok(true),
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        error => Err(error),
    }
}

/// A lock of a range of bytes that something holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRecord {
    /// Which bytes; up to [`RECORD_END`] where it has no end.
    pub bytes: Range<u64>,
    /// Nothing else holds any of them.
    pub exclusive: bool,
    /// The process that holds it, where the system tells one.
    pub process: Option<u32>,
}

/// Behind the last byte that a lock can have.
pub const RECORD_END: u64 = 1 << 63;

/// Returns a lock that keeps this open file from the lock of a range; `None` where there is none.
///
/// # Errors
/// As [`lock_record`].
pub fn find_record(
    file: &File,
    bytes: Range<u64>,
    exclusive: bool,
) -> io::Result<Option<HeldRecord>> {
    let mut lock = record(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, &bytes)?;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument is
    // the `flock` that this command reads and writes.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if libc::c_int::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = lock.l_start.cast_unsigned();
    let end = if lock.l_len == 0 { RECORD_END } else { start + lock.l_len.cast_unsigned() };
    Ok(Some(HeldRecord {
        bytes: start..end,
        exclusive: libc::c_int::from(lock.l_type) == libc::F_WRLCK,
        process: u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0),
    }))
}

/// Makes the system's words of a lock.
fn record(kind: libc::c_int, bytes: &Range<u64>) -> io::Result<libc::flock> {
    let place = |at: u64| libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput);
    // A length of 0 means all bytes behind.
    if bytes.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `flock` is plain data, for which zeros are valid: no pid, as OFD locks demand.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = place(bytes.start)?;
    lock.l_len = if bytes.end == RECORD_END { 0 } else { place(bytes.end - bytes.start)? };
    Ok(lock)
}

fn set(file: &File, kind: libc::c_int, bytes: &Range<u64>) -> io::Result<()> {
    let lock = record(kind, bytes)?;
    loop {
        // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument
        // is the `flock` that this command reads.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock) };
        match io::Error::last_os_error() {
            _ if done == 0 => return Ok(()),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_record_is_one_writers_and_its_neighbour_another_ones() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(named.path()).unwrap();
        let (first, second) = (open(), open());
        lock_record(&first, 0..8192, true).unwrap();
        lock_record(&second, 8192..16_384, true).unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                lock_record(&second, 4096..8192, false).unwrap();
                begin.elapsed()
            });
            std::thread::sleep(Duration::from_millis(60));
            unlock_record(&first, 0..8192).unwrap();
            assert!(waiter.join().unwrap() >= Duration::from_millis(50));
        });
        lock_record(&first, 4096..8192, false).unwrap();
        assert!(lock_record(&first, 5..5, true).is_err());
    }

    #[test]
    fn a_record_that_is_held_is_not_waited_for_and_told() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(named.path()).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock_record(&first, 100..RECORD_END, true).unwrap());
        assert!(!try_lock_record(&second, 0..101, false).unwrap());
        assert!(try_lock_record(&second, 0..100, false).unwrap());
        let found = find_record(&second, 50..200, false).unwrap();
        let held = HeldRecord { bytes: 100..RECORD_END, exclusive: true, process: None };
        assert_eq!(found, Some(held));
        assert_eq!(find_record(&second, 0..100, true).unwrap(), None, "its own");
        assert_eq!(find_record(&first, 0..10, false).unwrap(), None, "shared");
    }
}
