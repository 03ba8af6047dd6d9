//! What a program started from this process inherits.

use std::io;

/// Lets no program started from now on inherit a descriptor beyond the standard three, whoever opened it.
///
/// A daemon must not keep a caller's descriptors: a lock file that a script holds would stay locked, a pipe that it reads would never end.
/// Descriptors opened later without `O_CLOEXEC` are inherited again.
///
/// # Errors
/// The system's, on kernels before 5.11.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes three numbers and no memory. It sets a flag on descriptors and closes none, so whoever owns them keeps them.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_descriptor_open_for_inheritance_is_not_inherited_and_still_works() {
        let file = File::open("/proc/self/stat").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let inherited = || Command::new("test").args(["-e", &format!("/proc/self/fd/{}", file.as_raw_fd())]).status().unwrap().success();
        assert!(inherited());
        close_descriptors_on_exec().unwrap();
        assert!(!inherited());
        file.metadata().unwrap();
    }
}
