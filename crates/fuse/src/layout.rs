//! What lies where in the memory that a slot shares with the kernel.

/// Bytes of `struct fuse_uring_req_header`: the header of the message, that of the operation, and
/// what concerns the slot.
pub(crate) const HEADER_BYTES: usize = 288;
/// Where the operation's own header begins.
pub(crate) const OPERATION_AT: usize = 128;
/// `ring_ent_in_out.commit_id`, by which an answer names its request.
pub(crate) const COMMIT_AT: usize = 264;
/// `ring_ent_in_out.payload_sz`.
pub(crate) const PAYLOAD_LEN_AT: usize = 272;
/// `enum fuse_uring_cmd`.
pub(crate) const REGISTER: u32 = 1;
pub(crate) const COMMIT_AND_FETCH: u32 = 2;

/// The command of an entry of the ring (`struct fuse_uring_cmd_req`).
pub(crate) fn command(queue: u16, commit: u64) -> [u8; 80] {
    let mut command = [0; 80];
    command[8..16].copy_from_slice(&commit.to_ne_bytes());
    command[16..18].copy_from_slice(&queue.to_ne_bytes());
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::u64_at;

    #[test]
    fn a_command_names_its_queue_and_its_request() {
        let command = command(3, 0x0102_0304_0506_0708);
        assert_eq!(u64_at(&command, 8), 0x0102_0304_0506_0708);
        assert_eq!(u16::from_ne_bytes([command[16], command[17]]), 3);
        assert!(command[..8].iter().chain(&command[18..]).all(|byte| *byte == 0));
    }
}
