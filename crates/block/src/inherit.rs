//! What a program started from this process inherits.

use std::io;

/// Lets no program started from now on inherit a descriptor beyond the standard three, whatever
/// opened it.
///
/// A daemon must not keep a caller's descriptors: a lock file that a script holds would stay
/// locked, a pipe that it reads would never end. Descriptors opened later without `O_CLOEXEC` are
/// inherited again.
///
/// # Errors
/// The system's, on kernels before 5.11.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes three numbers and no memory. It sets a flag on descriptors and closes
    // none, so their owners keep them.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
