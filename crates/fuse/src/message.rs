//! A request that was read from `/dev/fuse`, and its answer, in one piece of memory.
//!
//! ```text
//!   0                         4016            4096                                payload_bytes + 4096
//!   │ unused                  │ 40: header    │                                                      │
//!   │                         │ 40: of a WRITE│ its data, aligned                                    │
//!   │                         │ header, operation, names and values of any other request ──►         │
//!   │                    4080 │ 16: header of the answer │ its payload, aligned ──►                   │
//! ```
//!
//! One `read` takes a request, whole and in one piece whatever it is, and the data of a WRITE begins
//! at a page: the two headers before it are always as long. One `write` sends the answer.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::protocol::{
    HeaderIn, IN_HEADER_BYTES, OUT_HEADER_BYTES, Request, opcode, operation_bytes, u32_at,
    write_out_header,
};
use crate::serving::is_serving;

/// Where payloads begin.
const PAYLOAD_AT: usize = AlignedBuf::ALIGN;
/// Where requests begin: so that the data of a WRITE is a payload.
const REQUEST_AT: usize = PAYLOAD_AT - IN_HEADER_BYTES - 40;
const ANSWER_AT: usize = PAYLOAD_AT - OUT_HEADER_BYTES;

thread_local! {
    /// The memory of the request that this thread answered last.
    static SPARE: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// What came of waiting for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Request,
    /// The connection is gone.
    End,
}

/// A request and its answer.
#[derive(Debug)]
pub(crate) struct Message {
    channel: Arc<Channel>,
    memory: AlignedBuf,
    /// Bytes of the request.
    len: usize,
    header: HeaderIn,
}

impl Message {
    /// Makes room for a request of a channel, in memory that was used before where there is any.
    pub(crate) fn new(channel: &Arc<Channel>, payload_bytes: usize) -> Self {
        let spare = SPARE.take().or_else(|| channel.take_spare());
        let memory = spare.filter(|memory| memory.len() == PAYLOAD_AT + payload_bytes);
        Self {
            channel: Arc::clone(channel),
            memory: memory.unwrap_or_else(|| AlignedBuf::zeroed(PAYLOAD_AT + payload_bytes)),
            len: 0,
            header: HeaderIn { opcode: 0, unique: 0, node: 0, uid: 0, gid: 0, pid: 0 },
        }
    }

    /// Waits for a request and reads it. One that is shorter than its kind is refused here.
    ///
    /// # Errors
    /// When the connection breaks, and when what comes is no request.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        loop {
            self.len = match rustix::io::read(&self.channel, &mut self.memory[REQUEST_AT..]) {
                // The other end of a socket is closed.
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::End),
                Ok(len) => len,
                // A request was taken back before it was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let message = &self.memory[REQUEST_AT..REQUEST_AT + self.len];
            if self.len < IN_HEADER_BYTES || u32_at(message, 0) as usize != self.len {
                let len = self.len;
                let message = format!("a message of {len} bytes from the kernel is no request");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.header = HeaderIn::read(message);
            if self.len >= IN_HEADER_BYTES + operation_bytes(self.header.opcode) {
                return Ok(Received::Request);
            }
            self.answer(libc::EINVAL, 0);
        }
    }

    /// Returns what was asked for.
    pub(crate) fn request(&self) -> Request<'_> {
        let body = &self.memory[REQUEST_AT + IN_HEADER_BYTES..REQUEST_AT + self.len];
        let (operation, payload) = body.split_at(operation_bytes(self.header.opcode));
        Request { header: self.header, operation, payload }
    }

    /// Returns the room for an answer, which is where the request is.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        &mut self.memory[PAYLOAD_AT..]
    }

    /// Answers with `len` bytes of the payload, or an error number, positive.
    pub(crate) fn answer(&mut self, error: i32, len: usize) {
        assert!(len <= self.payload().len(), "an answer is in the payload: {len} bytes");
        if !self.header.wants_answer() {
            return;
        }
        let len = if error == 0 { len } else { 0 };
        let (unique, answer) = (self.header.unique, &mut self.memory[ANSWER_AT..PAYLOAD_AT + len]);
        write_out_header(answer, unique, error, len);
        let written = rustix::io::write(&self.channel, answer);
        self.is_taken(written);
    }

    /// Answers with bytes that lie elsewhere.
    pub(crate) fn answer_with(&mut self, bytes: &[u8]) {
        let (unique, header) = (self.header.unique, &mut self.memory[ANSWER_AT..PAYLOAD_AT]);
        write_out_header(header, unique, 0, bytes.len());
        let answer = [IoSlice::new(header), IoSlice::new(bytes)];
        let written = rustix::io::writev(&self.channel, &answer);
        self.is_taken(written);
    }

    /// Says where the kernel did not take an answer.
    fn is_taken(&self, written: rustix::io::Result<usize>) {
        match written {
            Ok(_) => {}
            // The caller has gone, or the mount has.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(errno) => {
                let code = self.header.opcode;
                tracing::debug!(
                    "the kernel did not take the answer to a request ({code}): {errno}"
                );
            }
        }
    }

    /// Leaves the memory to the next request: of this thread if it takes any.
    pub(crate) fn end(self) {
        if is_serving() {
            SPARE.set(Some(self.memory));
        } else {
            self.channel.keep_spare(self.memory);
        }
    }

    /// Returns whether the kernel says goodbye.
    pub(crate) fn is_last(&self) -> bool {
        self.header.opcode == opcode::DESTROY
    }
}
