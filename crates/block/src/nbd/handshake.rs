//! The beginning of a connection: what the server offers of an export. Nothing that it says is
//! believed before it was checked.

use std::io;
use std::time::Instant;

use super::socket::Socket;
use super::wire::{self, handshake, info, option, option_reply as reply, transmission};
use super::{Refusal, words};
use crate::ErrorKind;

/// The longest data of a reply to an option that is received.
const DATA_BYTES_MAX: u32 = 64 << 10;
/// More replies than any server has facts to tell.
const REPLIES_MAX: usize = 64;
/// How much of a server's words is told.
const WORDS_MAX: usize = 300;

/// An export as a server describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Export {
    pub size_bytes: u64,
    /// Those of [`transmission`].
    pub flags: u16,
    /// The smallest, the preferred and the largest request in bytes.
    pub block_bytes: [u32; 3],
}

impl Export {
    /// Returns whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Refuses what no export can be.
    fn check(self) -> Result<Self, Refusal> {
        let [least, _, most] = self.block_bytes;
        let wrong = |detail: String| Err(Refusal::io(detail));
        if !self.has(transmission::HAS_FLAGS) {
            return wrong("the server tells no flags of the export".to_owned());
        }
        if i64::try_from(self.size_bytes).is_err() {
            return wrong(format!("the server tells a size of {} bytes", self.size_bytes));
        }
        if !least.is_power_of_two() || least > 64 << 10 || most < least {
            return wrong(format!(
                "the server tells requests of {least} to {most} bytes, which cannot be"
            ));
        }
        Ok(self)
    }
}

struct Talk<'a> {
    socket: &'a Socket,
    deadline: Instant,
}

/// Asks for an export, and returns what it is; requests may follow.
pub(super) fn agree(socket: &Socket, name: &[u8], deadline: Instant) -> Result<Export, Refusal> {
    let talk = Talk { socket, deadline };
    talk.greet()?;
    talk.ask(name)?;
    let mut export: Option<(u64, u16)> = None;
    // What holds where a server tells nothing of it.
    let mut block_bytes = [512, 4096, 32 << 20];
    for _ in 0..REPLIES_MAX {
        let (kind, data) = talk.reply()?;
        match kind {
            reply::INFO => match fact(&data)? {
                Fact::Export(size, flags) => export = Some((size, flags)),
                Fact::Blocks(told) => block_bytes = told,
                Fact::Other => {}
            },
            reply::ACK => {
                let (size_bytes, flags) = export.ok_or_else(|| {
                    Refusal::io("the server agreed without telling what the export is")
                })?;
                return Export { size_bytes, flags, block_bytes }.check();
            }
            _ => return Err(refusal(kind, &data)),
        }
    }
    Err(Refusal::io("the server does not come to an end with its answers"))
}

impl Talk<'_> {
    fn failed(error: &io::Error) -> Refusal {
        match error.kind() {
            io::ErrorKind::TimedOut => Refusal::io("the server did not answer in time"),
            _ => Refusal::io(words(error)),
        }
    }

    fn hear<const N: usize>(&self) -> Result<[u8; N], Refusal> {
        let mut bytes = [0; N];
        self.socket.hear(&mut bytes, Some(self.deadline)).map_err(|error| Self::failed(&error))?;
        Ok(bytes)
    }

    fn tell(&self, bytes: &[u8]) -> Result<(), Refusal> {
        self.socket.tell(bytes, &[], self.deadline).map_err(|error| Self::failed(&error))
    }

    fn greet(&self) -> Result<(), Refusal> {
        if u64::from_be_bytes(self.hear()?) != wire::MAGIC {
            return Err(Refusal::io("what answers there is no NBD server"));
        }
        let old = || Refusal::new(ErrorKind::Unsupported, "the server speaks an old NBD only");
        if u64::from_be_bytes(self.hear()?) != wire::OPTION_MAGIC {
            return Err(old());
        }
        let offered = u16::from_be_bytes(self.hear()?);
        if offered & handshake::FIXED_NEWSTYLE == 0 {
            return Err(old());
        }
        let taken = offered & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.tell(&u32::from(taken).to_be_bytes())
    }

    fn ask(&self, name: &[u8]) -> Result<(), Refusal> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend(1_u16.to_be_bytes());
        data.extend(info::BLOCK_SIZE.to_be_bytes());
        let mut message = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend(option::GO.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.tell(&message)
    }

    /// Hears one reply: its kind and its data.
    fn reply(&self) -> Result<(u32, Vec<u8>), Refusal> {
        let head: [u8; wire::OPTION_REPLY_BYTES] = self.hear()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let magic = u64::from(word(0)) << 32 | u64::from(word(4));
        if magic != wire::OPTION_REPLY_MAGIC || word(8) != option::GO {
            return Err(Refusal::io("the server answered what was not asked"));
        }
        let (kind, len) = (word(12), word(16));
        if len > DATA_BYTES_MAX {
            return Err(Refusal::io(format!("the server sent an answer of {len} bytes")));
        }
        let mut data = vec![0; len as usize];
        self.socket.hear(&mut data, Some(self.deadline)).map_err(|error| Self::failed(&error))?;
        Ok((kind, data))
    }
}

enum Fact {
    Export(u64, u16),
    Blocks([u32; 3]),
    Other,
}

fn fact(data: &[u8]) -> Result<Fact, Refusal> {
    let short = || Refusal::io("the server told a fact of the export that is cut off");
    let (kind, rest) = data.split_first_chunk::<2>().ok_or_else(short)?;
    Ok(match u16::from_be_bytes(*kind) {
        info::EXPORT => {
            let (size, flags) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            let flags = <[u8; 2]>::try_from(flags).map_err(|_| short())?;
            Fact::Export(u64::from_be_bytes(*size), u16::from_be_bytes(flags))
        }
        info::BLOCK_SIZE => {
            let words: [u8; 12] = rest.try_into().map_err(|_| short())?;
            let word = |at: usize| {
                u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
            };
            Fact::Blocks([word(0), word(4), word(8)])
        }
        _ => Fact::Other,
    })
}

/// Says why the server does not serve the export.
fn refusal(kind: u32, data: &[u8]) -> Refusal {
    let (kind, detail) = match kind {
        reply::ERR_UNKNOWN => (ErrorKind::NotFound, "the server has no export of this name"),
        reply::ERR_TLS_REQD => {
            (ErrorKind::Unsupported, "the server wants TLS, which is not offered for a device")
        }
        reply::ERR_POLICY => (ErrorKind::Permission, "the server does not let this client in"),
        reply::ERR_UNSUP => (ErrorKind::Unsupported, "the server speaks an old NBD only"),
        kind if kind >> 31 == 1 => (ErrorKind::Io, "the server refused the export"),
        _ => (ErrorKind::Io, "the server answered what was not asked"),
    };
    // What is a server's goes to a terminal: one line of it, and nothing that steers.
    let said: String = String::from_utf8_lossy(data)
        .chars()
        .filter(|letter| !letter.is_control())
        .take(WORDS_MAX)
        .collect();
    let said = if said.is_empty() { said } else { format!(" ({said})") };
    Refusal::new(kind, format!("{detail}{said}"))
}
