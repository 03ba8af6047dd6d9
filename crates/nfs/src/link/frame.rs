//! A call as bytes: kept until it is answered, so that it can be made again.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::wire::record::LAST;
use crate::wire::rpc::Calling;
use crate::wire::xdr::{Writer, padding};

/// Bytes that calls share with what keeps them.
pub type Bytes = Arc<[u8]>;

/// A message with its mark: what stands before the data of a write, and the data.
#[derive(Debug)]
pub struct Frame {
    head: Vec<u8>,
    data: Option<(Bytes, Range<usize>)>,
}

/// Where the number of a call stands in its message.
const XID_AT: usize = 4;

impl Frame {
    /// Makes the message of a call. The data comes last in its arguments, without its length.
    pub fn new(call: &Calling<'_>, arguments: &[u8], data: Option<(Bytes, Range<usize>)>) -> Self {
        let mut out = Writer(Vec::with_capacity(96 + arguments.len()));
        // The mark, once the length is known; the number, once the call has one.
        out.u32(0);
        call.write(&mut out, 0);
        out.0.extend_from_slice(arguments);
        let data_bytes = data.as_ref().map_or(0, |(_, range)| range.len() + padding(range.len()));
        let len = out.0.len() - XID_AT + data_bytes;
        let len = u32::try_from(len).ok().filter(|len| len & LAST == 0);
        let mark = LAST | len.expect("a call is no longer than the longest write");
        out.0[..XID_AT].copy_from_slice(&mark.to_be_bytes());
        Self { head: out.0, data }
    }

    /// Gives the call its number, which it has whenever it is made.
    pub fn number(&mut self, xid: u32) {
        self.head[XID_AT..XID_AT + 4].copy_from_slice(&xid.to_be_bytes());
    }

    /// Returns the number.
    pub fn xid(&self) -> u32 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| self.head[XID_AT + at]);
        u32::from_be_bytes([a, b, c, d])
    }

    /// Adds what is to be sent.
    pub fn add_to<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) {
        slices.push(IoSlice::new(&self.head));
        if let Some((bytes, range)) = &self.data {
            slices.push(IoSlice::new(&bytes[range.clone()]));
            slices.push(IoSlice::new(&[0; 3][..padding(range.len())]));
        }
    }
}
