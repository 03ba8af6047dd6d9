//! What lies where in the memory that a slot shares with the kernel.

/// The least payload that the kernel takes (`FUSE_MIN_READ_BUFFER`).
pub const PAYLOAD_BYTES_MIN: usize = 8192;

/// Bytes of `struct fuse_uring_req_header`: the header of the message, that of the operation, and
/// what concerns the slot.
pub(crate) const HEADER_BYTES: usize = 288;
/// Where the operation's own header begins, and its longest.
pub(crate) const OPERATION_AT: usize = 128;
pub(crate) const OPERATION_BYTES: usize = 128;
/// `ring_ent_in_out.commit_id`, by which an answer names its request.
pub(crate) const COMMIT_AT: usize = 264;
/// `ring_ent_in_out.payload_sz`.
pub(crate) const PAYLOAD_LEN_AT: usize = 272;
/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: u32 = 16;

/// `enum fuse_uring_cmd`.
pub(crate) const REGISTER: u32 = 1;
pub(crate) const COMMIT_AND_FETCH: u32 = 2;

/// The header of a request (`struct fuse_in_header`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderIn {
    /// What is asked for (`enum fuse_opcode`).
    pub opcode: u32,
    /// By which the kernel knows the answer.
    pub unique: u64,
    /// The inode that is meant.
    pub node: u64,
    /// The caller.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The calling thread.
    pub pid: u32,
}

impl HeaderIn {
    pub(crate) fn read(header: &[u8; HEADER_BYTES]) -> Self {
        Self {
            opcode: u32_at(header, 4),
            unique: u64_at(header, 8),
            node: u64_at(header, 16),
            uid: u32_at(header, 24),
            gid: u32_at(header, 28),
            pid: u32_at(header, 32),
        }
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The command of an entry of the ring (`struct fuse_uring_cmd_req`).
pub(crate) fn command(queue: u16, commit: u64) -> [u8; 80] {
    let mut command = [0; 80];
    command[8..16].copy_from_slice(&commit.to_ne_bytes());
    command[16..18].copy_from_slice(&queue.to_ne_bytes());
    command
}

/// Writes the header of an answer (`struct fuse_out_header`) and the length of its payload.
pub(crate) fn write_answer(header: &mut [u8; HEADER_BYTES], unique: u64, error: i32, len: usize) {
    let len = u32::try_from(len).expect("a payload is at most some MiB");
    header[0..4].copy_from_slice(&(OUT_HEADER_BYTES + len).to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..16].copy_from_slice(&unique.to_ne_bytes());
    header[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_and_an_answer_written_where_the_kernel_has_them() {
        let mut header = [0; HEADER_BYTES];
        for (at, value) in [(4, 16_u32), (24, 1000), (28, 100), (32, 4711)] {
            header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(8, 77_u64), (16, 5)] {
            header[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let read = HeaderIn::read(&header);
        assert_eq!(
            read,
            HeaderIn { opcode: 16, unique: 77, node: 5, uid: 1000, gid: 100, pid: 4711 }
        );
        write_answer(&mut header, read.unique, 5, 8);
        assert_eq!(u32_at(&header, 0), 24);
        assert_eq!(u32_at(&header, 4).cast_signed(), -5);
        assert_eq!(u64_at(&header, 8), 77);
        assert_eq!(u32_at(&header, PAYLOAD_LEN_AT), 8);
    }

    #[test]
    fn a_command_names_its_queue_and_its_request() {
        let command = command(3, 0x0102_0304_0506_0708);
        assert_eq!(u64_at(&command, 8), 0x0102_0304_0506_0708);
        assert_eq!(u16::from_ne_bytes([command[16], command[17]]), 3);
        assert!(command[..8].iter().chain(&command[18..]).all(|byte| *byte == 0));
    }
}
