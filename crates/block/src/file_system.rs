//! Whole file systems of the kernel.

use std::fs::File;
use std::io;

use rustix::io::Errno;

/// Makes all that was written to the file system of an open file durable.
///
/// The kernel keeps the error of what could not be written for the next that asks, and a kill that
/// cuts off a request of its process to a FUSE mount is such an error. That data nothing waits for:
/// what this call is about was written or not by what it says when it is asked again.
///
/// # Errors
/// Those of the system.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    asked_again(|| rustix::fs::syncfs(file))
}

fn asked_again(mut ask: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    /// An error is told once; more of them are from other kills meanwhile.
    const TRIES: usize = 16;
    let mut answers = std::iter::repeat_with(&mut ask).take(TRIES);
    let last = answers.find(|answer| *answer != Err(Errno::INTR));
    Ok(last.unwrap_or(Err(Errno::INTR))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_left_for_the_next_to_hear_is_no_error_of_a_sync() {
        let mut answers = vec![Ok(()), Err(Errno::INTR), Err(Errno::INTR)];
        asked_again(|| answers.pop().unwrap()).unwrap();
        let mut answers = vec![Ok(()), Err(Errno::IO), Err(Errno::INTR)];
        assert_eq!(
            asked_again(|| answers.pop().unwrap()).unwrap_err().raw_os_error(),
            Some(Errno::IO.raw_os_error())
        );
        assert!(asked_again(|| Err(Errno::INTR)).is_err(), "it is not asked for ever");
    }
}
