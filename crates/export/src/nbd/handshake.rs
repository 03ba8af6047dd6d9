//! The beginning of a connection: what the client wants, and on what terms.
//!
//! ```text
//!   greeting ─► flags ─► option ─┬─► reply ─► option …
//!                                ├─ GO, EXPORT_NAME ─► requests
//!                                └─ ABORT ───────────► end
//! ```

use std::sync::Arc;

use super::exports::{Export, Exports};
use super::options;
use super::peer::{End, Peer};
use super::request::{DATA_BYTES_MAX, Terms};
use super::tls::Tls;
use super::wire::{self, allocation, handshake, info, option, option_reply as reply, transmission};

/// The longest data of an option that is looked at: the longest name, and some queries.
const DATA_LEN_MAX: u32 = 32 << 10;
/// The longest that is received at all.
const SKIPPED_LEN_MAX: u32 = 1 << 20;
/// The smallest request.
const BYTES_MIN: u32 = 1;

/// What a server offers one client.
#[derive(Debug)]
pub struct Offer<'a> {
    pub exports: &'a Exports,
    pub tls: Option<&'a Tls>,
    /// Nothing is told before the connection is encrypted.
    pub needs_tls: bool,
}

/// What was agreed on.
#[derive(Debug)]
pub struct Session {
    pub export: Arc<Export>,
    pub terms: Terms,
}

struct Talk<'a> {
    peer: &'a mut Peer,
    offer: &'a Offer<'a>,
    /// Whether the client goes without the zeros at the end of the old way to begin.
    no_zeroes: bool,
    structured: bool,
    /// The export whose allocation the client wants to be told of.
    allocation_of: Option<Arc<Export>>,
}

/// Speaks with a client until it uses an export; `None` where it does not want to.
pub fn agree(peer: &mut Peer, offer: &Offer<'_>) -> Result<Option<Session>, End> {
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(wire::MAGIC.to_be_bytes());
    greeting.extend(wire::OPTION_MAGIC.to_be_bytes());
    greeting.extend(flags.to_be_bytes());
    peer.tell(&greeting)?;
    let answered = u32::from_be_bytes(peer.hear_array()?);
    if answered & !u32::from(flags) != 0 {
        return Err(End::Protocol("the client answered the greeting with unknown flags"));
    }
    let no_zeroes = answered & u32::from(handshake::NO_ZEROES) != 0;
    let mut talk = Talk { peer, offer, no_zeroes, structured: false, allocation_of: None };
    loop {
        match talk.option()? {
            Next::Option => {}
            Next::Requests(session) => return Ok(Some(session)),
            Next::End => return Ok(None),
        }
    }
}

/// What comes behind an option.
enum Next {
    Option,
    Requests(Session),
    End,
}

impl Talk<'_> {
    fn option(&mut self) -> Result<Next, End> {
        let head: [u8; wire::OPTION_BYTES] = self.peer.hear_array()?;
        let (magic, rest) = head.split_at(8);
        if magic != wire::OPTION_MAGIC.to_be_bytes() {
            return Err(End::Protocol("the client sent no option where one was due"));
        }
        let (option, len) = rest.split_at(4);
        let option = u32::from_be_bytes(option.try_into().expect("four bytes"));
        let len = u32::from_be_bytes(len.try_into().expect("four bytes"));
        if len > SKIPPED_LEN_MAX {
            return Err(End::Protocol("the client sent an option of more than a megabyte"));
        }
        if len > DATA_LEN_MAX {
            self.peer.skip(len as usize)?;
            if option == option::EXPORT_NAME {
                return Err(End::Protocol("the client sent a name that is too long"));
            }
            return self.refuse(option, reply::ERR_TOO_BIG, "the option is too long");
        }
        let mut data = vec![0; len as usize];
        self.peer.hear(&mut data)?;
        if self.offer.needs_tls && !self.peer.transport.is_encrypted() {
            match option {
                option::EXPORT_NAME => {
                    return Err(End::Protocol("the client asks for an export before TLS"));
                }
                option::STARTTLS | option::ABORT => {}
                _ => return self.refuse(option, reply::ERR_TLS_REQD, "begin TLS first"),
            }
        }
        match option {
            option::EXPORT_NAME => self.begin_old(&data),
            option::ABORT => {
                // The client may be gone already.
                let _told = self.reply(option, reply::ACK, &[]);
                Ok(Next::End)
            }
            option::LIST => self.list(&data),
            option::INFO | option::GO => self.begin(option, &data),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, reply::ACK, &[])
            }
            option::STRUCTURED_REPLY => {
                self.refuse(option, reply::ERR_INVALID, "this option has no data")
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, &data),
            option::STARTTLS => self.begin_tls(&data),
            _ => self.refuse(option, reply::ERR_UNSUP, "this option is not served"),
        }
    }

    fn begin_tls(&mut self, data: &[u8]) -> Result<Next, End> {
        let option = option::STARTTLS;
        if !data.is_empty() || self.peer.transport.is_encrypted() {
            return self.refuse(option, reply::ERR_INVALID, "TLS begins once, and has no data");
        }
        let Some(tls) = self.offer.tls else {
            return self.refuse(option, reply::ERR_POLICY, "TLS is not set up on this server");
        };
        self.reply(option, reply::ACK, &[])?;
        self.peer.begin_tls(tls)?;
        // What was agreed on before was not encrypted, and may be another's.
        self.structured = false;
        self.allocation_of = None;
        Ok(Next::Option)
    }

    fn list(&mut self, data: &[u8]) -> Result<Next, End> {
        if !data.is_empty() {
            return self.refuse(option::LIST, reply::ERR_INVALID, "this option has no data");
        }
        for export in self.offer.exports.all() {
            let mut payload = (export.name.len() as u32).to_be_bytes().to_vec();
            payload.extend(export.name.as_bytes());
            payload.extend(export.description.as_bytes());
            self.reply(option::LIST, reply::SERVER, &payload)?;
        }
        self.reply(option::LIST, reply::ACK, &[])
    }

    /// The way to begin that has no answer but the end of the connection.
    fn begin_old(&mut self, name: &[u8]) -> Result<Next, End> {
        let Some(export) = self.offer.exports.find(name).map(Arc::clone) else {
            return Err(End::Protocol("the client wants an export that there is not"));
        };
        let session = self.session(export)?;
        let mut payload = session.terms.size.to_be_bytes().to_vec();
        payload.extend(session.terms.flags().to_be_bytes());
        if !self.no_zeroes {
            payload.extend([0; 124]);
        }
        self.peer.tell(&payload)?;
        Ok(Next::Requests(session))
    }

    fn begin(&mut self, option: u32, data: &[u8]) -> Result<Next, End> {
        let Some((name, asked)) = options::information(data) else {
            return self.refuse(option, reply::ERR_INVALID, "the option's data has no such form");
        };
        let Some(export) = self.offer.exports.find(name).map(Arc::clone) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "there is no export of this name");
        };
        let session = self.session(Arc::clone(&export))?;
        let mut payload = info::EXPORT.to_be_bytes().to_vec();
        payload.extend(session.terms.size.to_be_bytes());
        payload.extend(session.terms.flags().to_be_bytes());
        self.reply(option, reply::INFO, &payload)?;
        let mut payload = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for bytes in [BYTES_MIN, export.disk.preferred_bytes(), DATA_BYTES_MAX] {
            payload.extend(bytes.to_be_bytes());
        }
        self.reply(option, reply::INFO, &payload)?;
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if asked.contains(&kind) {
                let mut payload = kind.to_be_bytes().to_vec();
                payload.extend(text.as_bytes());
                self.reply(option, reply::INFO, &payload)?;
            }
        }
        self.reply(option, reply::ACK, &[])?;
        Ok(if option == option::GO { Next::Requests(session) } else { Next::Option })
    }

    fn session(&self, export: Arc<Export>) -> Result<Session, End> {
        let disk = &export.disk;
        let allocation =
            self.allocation_of.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, &export));
        let terms = Terms {
            size: disk.size_bytes().map_err(End::Disk)?,
            read_only: disk.is_read_only(),
            zeroes_fast: disk.zeroes_fast(),
            structured: self.structured,
            allocation: allocation && self.structured,
        };
        Ok(Session { export, terms })
    }

    fn contexts(&mut self, option: u32, data: &[u8]) -> Result<Next, End> {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.allocation_of = None;
        }
        let Some((name, queries)) = options::contexts(data) else {
            return self.refuse(option, reply::ERR_INVALID, "the option's data has no such form");
        };
        if !self.structured {
            return self.refuse(option, reply::ERR_INVALID, "ask for structured replies first");
        }
        let Some(export) = self.offer.exports.find(name).map(Arc::clone) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "there is no export of this name");
        };
        let wanted = queries
            .iter()
            .any(|query| *query == allocation::NAME.as_bytes() || !sets && *query == b"base:");
        if wanted || !sets && queries.is_empty() {
            let id = if sets { allocation::ID } else { 0 };
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend(allocation::NAME.as_bytes());
            self.reply(option, reply::META_CONTEXT, &payload)?;
            self.allocation_of = if sets { Some(export) } else { self.allocation_of.take() };
        }
        self.reply(option, reply::ACK, &[])
    }

    fn refuse(&mut self, option: u32, kind: u32, text: &str) -> Result<Next, End> {
        self.reply(option, kind, text.as_bytes())
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> Result<Next, End> {
        let mut message = Vec::with_capacity(20 + data.len());
        message.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
        message.extend(option.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.peer.tell(&message)?;
        Ok(Next::Option)
    }
}

impl Terms {
    /// Returns what the client is told that the export can do.
    ///
    /// Several connections may share one, because a flush on one covers what was answered on all.
    fn flags(&self) -> u16 {
        use transmission::{
            CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH, SEND_FUA,
            SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let all = HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN;
        let framing = if self.structured { SEND_DF } else { 0 };
        let changes = if self.read_only {
            READ_ONLY
        } else {
            let fast = if self.zeroes_fast { SEND_FAST_ZERO } else { 0 };
            SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | fast
        };
        all | framing | changes
    }
}
