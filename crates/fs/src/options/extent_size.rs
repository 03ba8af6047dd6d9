//! Which sizes extents can have.

/// The largest size in bytes; also of the volume's.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// Says whether extents can have such a size; 0: none is wanted.
pub(crate) fn is_possible(bytes: u64, block_size: u64) -> bool {
    bytes.is_multiple_of(block_size) && bytes <= BYTES_MAX
}

/// Returns why they cannot.
pub(crate) fn refusal(bytes: u64, block_size: u64) -> String {
    format!(
        "{bytes} bytes cannot be the size of extents: choose a multiple of the block size \
         {block_size}, at most 1 GiB"
    )
}
