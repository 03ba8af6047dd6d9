//! The rules every access must keep, checked in one place for all engines.

use crate::{Error, ErrorKind, Geometry, Operation, Request, RequestKind, Result};

/// What an access is checked against: a device's geometry, and its size at this moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub geometry: &'a Geometry,
    pub size_bytes: u64,
}

impl Limits<'_> {
    /// Checks a transfer between the device and memory at address `addr`.
    #[inline]
    pub fn transfer(
        &self,
        name: &str,
        operation: Operation,
        offset: u64,
        len: usize,
        addr: usize,
    ) -> Result<()> {
        let misaligned = (offset | len as u64) & (u64::from(self.geometry.logical_block_size) - 1)
            != 0
            || addr & (self.geometry.buffer_align as usize - 1) != 0;
        if misaligned
            || !self.holds(offset, len as u64)
            || (operation != Operation::Read && self.geometry.read_only)
        {
            return self.refuse(name, operation, offset, len as u64, addr);
        }
        Ok(())
    }

    /// Checks a change of a range that involves no memory.
    #[inline]
    pub fn range(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        let misaligned = (offset | len) & (u64::from(self.geometry.logical_block_size) - 1) != 0;
        if misaligned || !self.holds(offset, len) || self.geometry.read_only {
            return self.refuse(name, Operation::Discard, offset, len, 0);
        }
        Ok(())
    }

    /// Checks a request's shape and every one of its segments.
    #[inline]
    pub fn request(&self, name: &str, request: &Request) -> Result<()> {
        match &request.buf {
            // The common case by a short way.
            Some(buf)
                if request.kind != RequestKind::Flush
                    && request.rest.is_empty()
                    && request.first.len as usize <= buf.len() =>
            {
                self.transfer(
                    name,
                    operation_of(request.kind),
                    request.first.offset,
                    request.first.len as usize,
                    buf.as_ptr() as usize,
                )
            }
            _ => self.any_request(name, request),
        }
    }

    fn any_request(&self, name: &str, request: &Request) -> Result<()> {
        let operation = operation_of(request.kind);
        if request.kind == RequestKind::Flush {
            if request.buf.is_some() || request.first.len != 0 || !request.rest.is_empty() {
                return Err(error(
                    name,
                    ErrorKind::Unsupported,
                    operation,
                    None,
                    "a flush takes neither buffer nor segments".into(),
                ));
            }
            return Ok(());
        }
        let Some(buf) = &request.buf else {
            return Err(error(
                name,
                ErrorKind::Unsupported,
                operation,
                Some(request.first.offset),
                "the request has no buffer".into(),
            ));
        };
        let mut start = 0_usize;
        for segment in std::iter::once(&request.first).chain(&request.rest) {
            self.transfer(
                name,
                operation,
                segment.offset,
                segment.len as usize,
                buf.as_ptr() as usize + start,
            )?;
            start += segment.len as usize;
        }
        if start > buf.len() {
            let detail =
                format!("the segments hold {start} bytes and the buffer only {}", buf.len());
            return Err(error(
                name,
                ErrorKind::OutOfRange,
                operation,
                Some(request.first.offset),
                detail,
            ));
        }
        Ok(())
    }

    #[inline]
    fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.size_bytes && len <= self.size_bytes - offset
    }

    /// Finds the words for a refusal, unless all that is wrong is the address of no bytes at all;
    /// off the hot path.
    #[cold]
    fn refuse(
        &self,
        name: &str,
        operation: Operation,
        offset: u64,
        len: u64,
        addr: usize,
    ) -> Result<()> {
        let block = self.geometry.logical_block_size;
        let align = self.geometry.buffer_align;
        let (kind, detail) = if self.geometry.read_only && operation != Operation::Read {
            (ErrorKind::ReadOnly, "the device is read-only".to_owned())
        } else if (offset | len) & (u64::from(block) - 1) != 0 {
            (
                ErrorKind::Unaligned,
                format!(
                    "offset and length ({len} bytes) must be multiples of the device's block of \
                     {block} bytes"
                ),
            )
        } else if !self.holds(offset, len) {
            (
                ErrorKind::OutOfRange,
                format!(
                    "{len} bytes from there pass the end of the device at byte {}",
                    self.size_bytes
                ),
            )
        } else if len == 0 {
            return Ok(());
        } else {
            (
                ErrorKind::Unaligned,
                format!("the buffer's address {addr:#x} is not a multiple of {align} bytes"),
            )
        };
        Err(error(name, kind, operation, Some(offset), detail))
    }
}

/// Names the operation of a request for messages.
pub(crate) fn operation_of(kind: RequestKind) -> Operation {
    match kind {
        RequestKind::Read => Operation::Read,
        RequestKind::Write => Operation::Write,
        RequestKind::Flush => Operation::Flush,
    }
}

/// Makes an error without an errno.
pub(crate) fn error(
    name: &str,
    kind: ErrorKind,
    operation: Operation,
    offset: Option<u64>,
    detail: String,
) -> Error {
    Error { kind, operation, device: name.to_owned(), offset, detail, errno: None }
}

/// Checks that a geometry keeps its own rules; engines assert it when they are made.
pub(crate) fn assert_geometry(geometry: &Geometry) {
    assert!(
        geometry.logical_block_size.is_power_of_two(),
        "the logical block size is a power of two"
    );
    assert!(
        geometry.physical_block_size.is_power_of_two(),
        "the physical block size is a power of two"
    );
    assert!(geometry.buffer_align.is_power_of_two(), "the buffer alignment is a power of two");
    assert!(
        geometry.physical_block_size >= geometry.logical_block_size,
        "a physical block holds at least one logical block"
    );
    assert!(geometry.untorn_unit >= geometry.logical_block_size, "a logical block is never torn");
}
