//! Requests: what their bytes say, and whether it can be done.

use super::wire::{self, command, errno, flag};
use crate::Zeroing;

/// The largest read or write.
pub const DATA_BYTES_MAX: u32 = 32 << 20;

/// A request as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read,
    Write { durable: bool },
    Flush,
    Trim { durable: bool },
    Zero { zeroing: Zeroing, durable: bool },
    Status { one: bool },
}

/// Why a request is not carried out: an error number and a line for the client's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub errno: u32,
    pub text: &'static str,
}

/// What was agreed on, and what the export can do.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Bytes of the export, as the client was told.
    pub size: u64,
    pub read_only: bool,
    pub zeroes_fast: bool,
    /// Replies are structured.
    pub structured: bool,
    /// The client asked to be told how ranges are allocated.
    pub allocation: bool,
}

impl Request {
    /// Reads a request; `None` where it does not begin as one.
    pub fn parse(bytes: &[u8; wire::REQUEST_BYTES]) -> Option<Self> {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().expect("the range has the length")
        }
        (u32::from_be_bytes(part(bytes, 0)) == wire::REQUEST_MAGIC).then(|| Self {
            flags: u16::from_be_bytes(part(bytes, 4)),
            kind: u16::from_be_bytes(part(bytes, 6)),
            cookie: u64::from_be_bytes(part(bytes, 8)),
            offset: u64::from_be_bytes(part(bytes, 16)),
            len: u32::from_be_bytes(part(bytes, 24)),
        })
    }

    /// Returns how many bytes follow the request.
    pub fn payload_len(&self) -> u32 {
        if self.kind == command::WRITE { self.len } else { 0 }
    }

    /// Returns whether the answer is in chunks, where such were agreed on; all others are simple.
    pub fn is_told_in_chunks(&self) -> bool {
        matches!(self.kind, command::READ | command::BLOCK_STATUS)
    }

    /// Decides what a request asks for.
    pub fn command(&self, terms: &Terms) -> Result<Command, Refused> {
        let durable = self.flags & flag::FUA != 0;
        let (command, flags) = match self.kind {
            command::READ => (Command::Read, if terms.structured { flag::DF } else { 0 }),
            command::WRITE => (Command::Write { durable }, 0),
            command::FLUSH => (Command::Flush, 0),
            command::TRIM => (Command::Trim { durable }, 0),
            command::WRITE_ZEROES => {
                let keep = self.flags & flag::NO_HOLE != 0;
                let zeroing = if keep { Zeroing::KeepBlocks } else { Zeroing::MayPunch };
                let fast = if terms.zeroes_fast { flag::FAST_ZERO } else { 0 };
                (Command::Zero { zeroing, durable }, flag::NO_HOLE | fast)
            }
            command::BLOCK_STATUS if terms.allocation => {
                (Command::Status { one: self.flags & flag::REQ_ONE != 0 }, flag::REQ_ONE)
            }
            _ => return Err(refused(errno::EINVAL, "this request was not agreed on")),
        };
        if self.flags & !(flags | flag::FUA) != 0 {
            return Err(refused(errno::EINVAL, "the request has flags that it cannot have"));
        }
        command.check(self, terms)?;
        debug_assert!(
            command == Command::Flush || self.offset + u64::from(self.len) <= terms.size,
            "what is carried out lies in the export: {self:?}"
        );
        Ok(command)
    }
}

impl Command {
    fn changes(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Trim { .. } | Self::Zero { .. })
    }

    /// Returns whether its effect is to be durable before the reply.
    pub fn is_durable(self) -> bool {
        matches!(
            self,
            Self::Write { durable: true }
                | Self::Trim { durable: true }
                | Self::Zero { durable: true, .. }
        )
    }

    /// Returns whether it moves data, and so has a buffer.
    pub fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }

    /// Checks the range, and whether it may be written to.
    fn check(self, request: &Request, terms: &Terms) -> Result<(), Refused> {
        if self == Self::Flush {
            return Ok(());
        }
        if self.changes() && terms.read_only {
            return Err(refused(errno::EPERM, "the export is read-only"));
        }
        if request.len == 0 {
            return Err(refused(errno::EINVAL, "the range is empty"));
        }
        let end = request.offset.checked_add(request.len.into());
        if end.is_none_or(|end| end > terms.size) {
            let grows = matches!(self, Self::Write { .. } | Self::Zero { .. });
            let errno = if grows { errno::ENOSPC } else { errno::EINVAL };
            return Err(refused(errno, "the range reaches beyond the end of the export"));
        }
        if self.has_data() && request.len > DATA_BYTES_MAX {
            return Err(refused(errno::EINVAL, "the request is larger than 32 MiB"));
        }
        Ok(())
    }
}

fn refused(errno: u32, text: &'static str) -> Refused {
    Refused { errno, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        size: 1 << 30,
        read_only: false,
        zeroes_fast: false,
        structured: true,
        allocation: false,
    };

    fn errno_of(kind: u16, flags: u16, offset: u64, len: u32, terms: &Terms) -> u32 {
        let request = Request { flags, kind, cookie: 1, offset, len };
        request.command(terms).map_or_else(|refused| refused.errno, |_| 0)
    }

    #[test]
    fn what_was_not_agreed_on_is_refused() {
        let simple = Terms { structured: false, ..TERMS };
        assert_eq!(errno_of(command::READ, flag::DF, 0, 1, &TERMS), 0);
        assert_eq!(errno_of(command::READ, flag::DF, 0, 1, &simple), errno::EINVAL);
        assert_eq!(errno_of(command::BLOCK_STATUS, 0, 0, 1, &TERMS), errno::EINVAL);
        assert_eq!(errno_of(command::WRITE_ZEROES, flag::FAST_ZERO, 0, 1, &TERMS), errno::EINVAL);
        assert_eq!(errno_of(8, 0, 0, 1, &TERMS), errno::EINVAL);
    }

    #[test]
    fn a_range_ends_within_the_export() {
        for (kind, errno) in [
            (command::READ, errno::EINVAL),
            (command::TRIM, errno::EINVAL),
            (command::WRITE, errno::ENOSPC),
            (command::WRITE_ZEROES, errno::ENOSPC),
        ] {
            assert_eq!(errno_of(kind, 0, (1 << 30) - 512, 512, &TERMS), 0);
            assert_eq!(errno_of(kind, 0, (1 << 30) - 511, 512, &TERMS), errno);
            assert_eq!(errno_of(kind, 0, u64::MAX, 512, &TERMS), errno);
            assert_eq!(errno_of(kind, 0, 0, 0, &TERMS), errno::EINVAL);
        }
        assert_eq!(errno_of(command::READ, 0, 0, DATA_BYTES_MAX + 1, &TERMS), errno::EINVAL);
        assert_eq!(errno_of(command::TRIM, 0, 0, DATA_BYTES_MAX + 1, &TERMS), 0);
    }
}
