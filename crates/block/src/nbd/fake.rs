//! A server for tests: it keeps bytes in memory, and does what it is told that servers should not.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::wire::{self, command, handshake, info, option, option_reply, transmission};

/// A request as the server heard it.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// Which connection it came on, from 0.
    pub connection: usize,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Act {
    Serve,
    Errno(u32),
    /// Sends these bytes and goes on.
    Raw(Vec<u8>),
    /// Sends these bytes and ends the connection.
    Last(Vec<u8>),
    /// Gives no answer.
    Silent,
}

type Decide = Box<dyn Fn(&Heard) -> Act + Send + Sync>;
type Answer = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What a server offers, and how it behaves.
pub struct Rules {
    pub size: u64,
    pub flags: u16,
    pub block_bytes: Option<[u32; 3]>,
    /// What it sends from its greeting on; nothing of its own then.
    pub instead: Option<Vec<u8>>,
    /// What it answers to `GO`.
    pub answer: Option<Answer>,
    pub decide: Decide,
}

/// Flags of an export that takes everything.
pub const ALL: u16 = transmission::HAS_FLAGS
    | transmission::SEND_FLUSH
    | transmission::SEND_TRIM
    | transmission::SEND_WRITE_ZEROES
    | transmission::SEND_FAST_ZERO;

impl Default for Rules {
    fn default() -> Self {
        Self {
            size: 16 << 20,
            flags: ALL,
            block_bytes: None,
            instead: None,
            answer: None,
            decide: Box::new(|_| Act::Serve),
        }
    }
}

struct Shared {
    rules: Rules,
    bytes: Mutex<Vec<u8>>,
    heard: Mutex<Vec<Heard>>,
    connections: AtomicUsize,
    ends: AtomicBool,
}

/// A server on a socket in a directory of its own.
pub struct Fake {
    shared: Arc<Shared>,
    dir: TempDir,
    listener: Option<JoinHandle<()>>,
}

impl Fake {
    pub fn start(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(dir.path().join("socket")).unwrap();
        let size = usize::try_from(rules.size).unwrap_or(0).min(64 << 20);
        let shared = Arc::new(Shared {
            rules,
            bytes: Mutex::new(vec![0; size]),
            heard: Mutex::default(),
            connections: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        });
        let inner = Arc::clone(&shared);
        let listener = std::thread::spawn(move || {
            for client in socket.incoming().map_while(Result::ok) {
                if inner.ends.load(SeqCst) {
                    break;
                }
                let number = inner.connections.fetch_add(1, SeqCst);
                let shared = Arc::clone(&inner);
                // It ends with its client.
                std::thread::spawn(move || shared.serve(client, number));
            }
        });
        Self { shared, dir, listener: Some(listener) }
    }

    pub fn uri(&self) -> PathBuf {
        format!("nbd+unix:///disk?socket={}", self.dir.path().join("socket").display()).into()
    }

    /// As [`uri`](Self::uri), with a server that may take a second.
    pub fn impatient_uri(&self) -> PathBuf {
        format!("{}&timeout=1", self.uri().display()).into()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.shared.bytes.lock().clone()
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.shared.heard.lock().clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        let _woken = UnixStream::connect(self.dir.path().join("socket"));
        let _ended = self.listener.take().map(JoinHandle::join);
    }
}

/// Makes a reply to the option.
pub fn option_answer(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend(option::GO.to_be_bytes());
    reply.extend(kind.to_be_bytes());
    reply.extend((data.len() as u32).to_be_bytes());
    reply.extend(data);
    reply
}

/// Makes the fact of what the export is.
pub fn export_fact(size: u64, flags: u16) -> Vec<u8> {
    let mut fact = info::EXPORT.to_be_bytes().to_vec();
    fact.extend(size.to_be_bytes());
    fact.extend(flags.to_be_bytes());
    option_answer(option_reply::INFO, &fact)
}

/// Makes the head of a reply.
pub fn reply(cookie: u64, errno: u32) -> Vec<u8> {
    let mut reply = wire::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend(errno.to_be_bytes());
    reply.extend(cookie.to_be_bytes());
    reply
}

/// What a server says first.
pub fn greeting() -> Vec<u8> {
    let mut greeting = wire::MAGIC.to_be_bytes().to_vec();
    greeting.extend(wire::OPTION_MAGIC.to_be_bytes());
    greeting.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    greeting
}

impl Shared {
    /// Serves a client until it goes; what it does not send any more ends that, too.
    fn serve(&self, mut client: UnixStream, connection: usize) {
        let _gone = self.talk(&mut client, connection);
    }

    fn talk(&self, client: &mut UnixStream, connection: usize) -> std::io::Result<()> {
        if let Some(bytes) = &self.rules.instead {
            client.write_all(bytes)?;
            // Until the client goes.
            return client.read_to_end(&mut Vec::new()).map(|_| ());
        }
        client.write_all(&greeting())?;
        client.read_exact(&mut [0; 4])?;
        let mut head = [0; wire::OPTION_BYTES];
        client.read_exact(&mut head)?;
        let len = u32::from_be_bytes(head[12..].try_into().unwrap());
        client.read_exact(&mut vec![0; len as usize])?;
        let mut answer = export_fact(self.rules.size, self.rules.flags);
        if let Some(blocks) = self.rules.block_bytes {
            let mut fact = info::BLOCK_SIZE.to_be_bytes().to_vec();
            blocks.iter().for_each(|bytes| fact.extend(bytes.to_be_bytes()));
            answer.extend(option_answer(option_reply::INFO, &fact));
        }
        answer.extend(option_answer(option_reply::ACK, &[]));
        client.write_all(&self.rules.answer.as_ref().map_or(answer, |answer| answer()))?;
        while self.request(client, connection)? {}
        Ok(())
    }

    fn request(&self, client: &mut UnixStream, connection: usize) -> std::io::Result<bool> {
        let mut head = [0; wire::REQUEST_BYTES];
        client.read_exact(&mut head)?;
        let heard = Heard {
            connection,
            kind: u16::from_be_bytes(head[6..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(head[8..16].try_into().unwrap()),
            offset: u64::from_be_bytes(head[16..24].try_into().unwrap()),
            len: u32::from_be_bytes(head[24..].try_into().unwrap()),
        };
        let mut data = vec![0; if heard.kind == command::WRITE { heard.len as usize } else { 0 }];
        client.read_exact(&mut data)?;
        self.heard.lock().push(heard);
        if heard.kind == command::DISC {
            return Ok(false);
        }
        match (self.rules.decide)(&heard) {
            Act::Serve => client.write_all(&self.carry_out(&heard, &data))?,
            Act::Errno(errno) => client.write_all(&reply(heard.cookie, errno))?,
            Act::Raw(bytes) => client.write_all(&bytes)?,
            Act::Silent => {}
            Act::Last(bytes) => {
                client.write_all(&bytes)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn carry_out(&self, heard: &Heard, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.lock();
        let range = heard.offset as usize..heard.offset as usize + heard.len as usize;
        let mut answer = reply(heard.cookie, 0);
        match heard.kind {
            command::READ => answer.extend(&bytes[range]),
            command::WRITE => bytes[range].copy_from_slice(data),
            command::WRITE_ZEROES => bytes[range].fill(0),
            _ => {}
        }
        answer
    }
}
