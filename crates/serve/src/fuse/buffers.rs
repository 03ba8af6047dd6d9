//! One aligned buffer per event thread, used for one request at a time.
//!
//! Reads and writes need none: their data lies in the memory of the request. Copies within the file
//! system go through it.

use std::cell::RefCell;

use bedplate_block::AlignedBuf;

/// The largest payload of one request in bytes: what the kernel sends and asks for at most
/// (`fs.fuse.max_pages_limit` by default).
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(
    PAYLOAD_BYTES_MAX.is_power_of_two(),
    "the longest payload is whole blocks of every device"
);

thread_local! {
    static BUFFER: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(0));
}

/// Lends the thread's buffer, `len` bytes of it; what it holds is left over from earlier requests.
pub(super) fn with_buffer<T>(len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            *buffer = AlignedBuf::zeroed(len.max(PAYLOAD_BYTES_MAX));
        }
        debug_assert!(buffer.len() >= len, "a buffer holds what is asked for: {len}");
        use_it(&mut buffer[..len])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_aligned_reused_and_grows() {
        let first = with_buffer(4096, |buf| buf.as_ptr() as usize);
        assert_eq!(first % AlignedBuf::ALIGN, 0);
        assert_eq!(with_buffer(PAYLOAD_BYTES_MAX, |buf| buf.as_ptr() as usize), first);
        assert_eq!(with_buffer(PAYLOAD_BYTES_MAX + 1, |buf| buf.len()), PAYLOAD_BYTES_MAX + 1);
    }
}
