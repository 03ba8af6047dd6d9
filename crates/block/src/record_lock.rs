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

fn set(file: &File, kind: libc::c_int, bytes: &Range<u64>) -> io::Result<()> {
    let place = |at: u64| libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput);
    // A length of 0 would mean all bytes behind.
    if bytes.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `flock` is plain data, for which zeros are valid: no pid, as OFD locks demand.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = place(bytes.start)?;
    lock.l_len = place(bytes.end - bytes.start)?;
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
}
