//! A slot: the memory of one request and its answer, shared with the kernel.

use bedplate_block::AlignedBuf;

use crate::layout::{COMMIT_AT, HEADER_BYTES, OPERATION_AT, PAYLOAD_LEN_AT};
use crate::protocol::{HeaderIn, OPERATION_BYTES_MAX, Request, u32_at, u64_at, write_out_header};

/// The memory of a slot. It is on the heap: its place does not change when the slot moves.
///
/// I-RING-1: while the kernel has a slot, nothing here looks at its memory; a request that came and
/// its [`Reply`](crate::Reply) own it until it is given back.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Which of its lane's slots this is.
    pub(crate) index: usize,
    /// The header, in the first bytes.
    header: AlignedBuf,
    payload: AlignedBuf,
}

impl Slot {
    pub(crate) fn new(index: usize, payload_bytes: usize) -> Self {
        let header = AlignedBuf::zeroed(HEADER_BYTES);
        Self { index, header, payload: AlignedBuf::zeroed(payload_bytes) }
    }

    /// Returns where the kernel finds header and payload.
    pub(crate) fn vectors(&mut self) -> [libc::iovec; 2] {
        let vector = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        [vector(&mut self.header[..HEADER_BYTES]), vector(&mut self.payload)]
    }

    fn header(&self) -> &[u8; HEADER_BYTES] {
        self.header[..HEADER_BYTES].try_into().expect("a header is as long")
    }

    pub(crate) fn commit(&self) -> u64 {
        u64_at(self.header(), COMMIT_AT)
    }

    /// Returns the payload; what it holds is the request's, until an answer is written there.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        &mut self.payload
    }

    /// Returns what was asked for.
    pub(crate) fn request(&self) -> Request<'_> {
        let header = self.header();
        let len = (u32_at(header, PAYLOAD_LEN_AT) as usize).min(self.payload.len());
        Request {
            header: HeaderIn::read(header),
            operation: &header[OPERATION_AT..OPERATION_AT + OPERATION_BYTES_MAX],
            payload: &self.payload[..len],
        }
    }

    /// Writes an answer of `len` bytes, which are in the payload; or an error number, positive.
    pub(crate) fn answer(&mut self, error: i32, len: usize) {
        assert!(len <= self.payload.len(), "an answer is in the payload: {len} bytes");
        let (unique, len) =
            (HeaderIn::read(self.header()).unique, if error == 0 { len } else { 0 });
        write_out_header(&mut self.header, unique, error, len);
        let len = u32::try_from(len).expect("a payload is at most some MiB");
        self.header[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_the_kernel_never_says_passes_no_end() {
        let mut slot = Slot::new(0, 8192);
        slot.header[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(slot.request().payload.len(), 8192);
    }

    #[test]
    fn an_error_has_no_payload() {
        let mut slot = Slot::new(0, 8192);
        slot.answer(libc::EIO, 100);
        assert_eq!(u32_at(slot.header(), PAYLOAD_LEN_AT), 0);
        slot.answer(0, 100);
        assert_eq!(u32_at(slot.header(), PAYLOAD_LEN_AT), 100);
    }
}
