//! Writes that a queue has pushed go out together: neighbours fill rows, and all of them share one flush of the log.

use block::{Completion, Request, Result, Segment};

use super::{Parity, Put};
use crate::core::Core;

/// A segment of a request.
struct Slice {
    at: u64,
    request: usize,
    from: usize,
    len: usize,
}

impl Core {
    /// Carries out writes that were checked. Which of two that overlap comes last is open, as everywhere in a queue.
    pub fn write_gathered(&self, parity: &Parity, requests: Vec<Request>) -> Vec<Completion> {
        let mut slices = slices(&requests);
        slices.sort_by_key(|slice| slice.at);
        let mut results: Vec<Result<()>> = requests.iter().map(|_| Ok(())).collect();
        let mut rest = &slices[..];
        while !rest.is_empty() {
            let overlap = rest.windows(2).position(|pair| pair[0].at + pair[0].len as u64 > pair[1].at);
            let (group, later) = rest.split_at(overlap.map_or(rest.len(), |at| at + 1));
            rest = later;
            if let Err(error) = self.write_group(parity, &requests, group) {
                group.iter().for_each(|slice| results[slice.request] = Err(error.clone()));
            }
        }
        let end = |(request, result): (Request, _)| Completion { token: request.token, result, buf: request.buf };
        requests.into_iter().zip(results).map(end).collect()
    }

    fn write_group(&self, parity: &Parity, requests: &[Request], group: &[Slice]) -> Result<()> {
        let put = |slice: &Slice| {
            let buf = requests[slice.request].buf.as_ref().expect("a write that was checked has a buffer");
            Put { at: slice.at, bytes: &buf[slice.from..slice.from + slice.len] }
        };
        let puts: Vec<Put<'_>> = group.iter().map(put).collect();
        let mut entered = 0;
        let mut result = Ok(());
        for put in &puts {
            result = self.enter(put.at, put.bytes.len() as u64);
            if result.is_err() {
                break;
            }
            entered += 1;
        }
        let result = result.and_then(|()| self.write_rows(parity, &puts));
        puts[..entered].iter().for_each(|put| self.leave(put.at, put.bytes.len() as u64));
        result
    }
}

fn slices(requests: &[Request]) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (request, asked) in requests.iter().enumerate() {
        let mut from = 0;
        for Segment { offset, len } in std::iter::once(&asked.first).chain(&asked.rest) {
            let len = *len as usize;
            if len > 0 {
                slices.push(Slice { at: *offset, request, from, len });
            }
            from += len;
        }
    }
    slices
}
