//! How requests come from the kernel: through `/dev/fuse`, or over io_uring.

use bedplate_fuse::{offered, processors};

use super::settings::{MountSettings, Transport};

/// The fewest threads of a processor: each waits for its own device I/O.
const THREADS_EACH_MIN: usize = 4;
/// More processors would take more threads, each with two descriptors, than a process may have.
const PROCESSORS_MAX: u16 = 64;

/// Returns whether a mount is served over io_uring: where its settings ask for it and the kernel
/// offers it.
pub(super) fn is_possible(settings: &MountSettings) -> bool {
    if settings.transport == Transport::Device {
        return false;
    }
    let refusal = refusal(settings);
    if let Some(why) = &refusal {
        tracing::warn!("requests come through /dev/fuse and not over io_uring: {why}");
    }
    refusal.is_none()
}

fn refusal(settings: &MountSettings) -> Option<String> {
    if settings.auto_unmount {
        // fusermount3 asks the mount once, as the process ends. Over io_uring the kernel ends the
        // connection some moments later.
        return Some("'auto_unmount' would leave the mount where it is".to_owned());
    }
    match processors() {
        Ok(count) if count > PROCESSORS_MAX => Some(format!(
            "there may be {count} processors, and threads for {PROCESSORS_MAX} are the most"
        )),
        Ok(_) => offered().map(|refusal| refusal.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns how many threads a processor has, of so many for all of them.
pub(super) fn threads_each(threads: usize) -> usize {
    let processors = processors().map_or(1, usize::from).max(1);
    threads.div_ceil(processors).max(THREADS_EACH_MIN)
}
