//! A server of one file in memory, which may break every rule.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bedplate_nfs::wire::attr::{Attr, Kind};
use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::wire::rpc::{self, Call, Head};
use bedplate_nfs::wire::xdr::{Reader, Writer};
use bedplate_nfs::{Client, File, Mode, OpenOptions, Url};

pub const ROOT: &[u8] = b"root";
pub const FILE: &[u8] = b"file";
pub const FILE_BYTES: usize = 1 << 20;

/// A call that came.
#[derive(Debug, Clone)]
pub struct Heard {
    pub connection: usize,
    pub xid: u32,
    pub program: u32,
    pub procedure: u32,
    pub offset: u64,
    pub count: u32,
    pub stable: u32,
    pub data: Vec<u8>,
}

/// What is done about it.
pub enum Act {
    Serve,
    /// It is carried out, and the connection ends without a reply.
    Lose,
    /// No reply, until [`Server::release`].
    Hold,
    Silent,
    /// It is answered twice.
    Twice,
    /// An answer with this result.
    Body(Vec<u8>),
    /// These bytes, as they are.
    Raw(Vec<u8>),
    /// These bytes, and the end of the connection.
    Last(Vec<u8>),
}

type Decide = dyn Fn(&Heard) -> Act + Send + Sync;

struct State {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    verifier: u64,
    /// How often the file was changed, as its times tell.
    changes: u32,
    heard: Vec<Heard>,
    open: Vec<TcpStream>,
    held: Vec<(TcpStream, Vec<u8>)>,
}

struct Shared {
    state: Mutex<State>,
    decide: Box<Decide>,
    ends: AtomicBool,
    connections: AtomicUsize,
}

pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(decide: impl Fn(&Heard) -> Act + Send + Sync + 'static) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), decide)
    }

    pub fn start_at(
        address: SocketAddr,
        decide: impl Fn(&Heard) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                durable: content.clone(),
                bytes: content,
                verifier: 1,
                changes: 0,
                heard: Vec::new(),
                open: Vec::new(),
                held: Vec::new(),
            }),
            decide: Box::new(decide),
            ends: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accept(&listener, &own));
        Self { address, shared, thread: Some(thread) }
    }

    /// Returns an address of the server. A client waits a minute for an answer, unless the
    /// options say otherwise: on a slow machine no call is made twice that was to be made once.
    pub fn url(&self, options: &str) -> Url {
        let port = self.address.port();
        let text = format!(
            "nfs://127.0.0.1/x?version=3&nfsport={port}&mountport={port}&timeo=600&{options}"
        );
        text.parse().unwrap()
    }

    pub fn client(&self, options: &str) -> Client {
        Client::connect(&self.url(options)).unwrap().0
    }

    pub fn file(&self, options: &str) -> File {
        let open = OpenOptions::create(Mode::Concurrent);
        self.client(options).open(b"file", &open).unwrap()
    }

    /// Loses what is not durable, as a machine that starts again.
    pub fn crash(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.bytes = state.durable.clone();
        state.verifier += 1;
        state.held.clear();
        for stream in state.open.drain(..) {
            let _shut = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn release(&self) {
        let held = std::mem::take(&mut self.shared.state.lock().unwrap().held);
        for (mut stream, reply) in held {
            stream.write_all(&reply).unwrap();
        }
    }

    pub fn held(&self) -> usize {
        self.shared.state.lock().unwrap().held.len()
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.shared.state.lock().unwrap().heard.clone()
    }

    pub fn count(&self, procedure: u32) -> usize {
        let heard = self.heard();
        heard.iter().filter(|heard| heard.program == n::NFS && heard.procedure == procedure).count()
    }

    pub fn durable(&self) -> Vec<u8> {
        self.shared.state.lock().unwrap().durable.clone()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.shared.state.lock().unwrap().bytes.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        self.crash();
        let _woken = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    loop {
        let (stream, _) = listener.accept().unwrap();
        if shared.ends.load(SeqCst) {
            break;
        }
        let own = Arc::clone(shared);
        shared.state.lock().unwrap().open.push(stream.try_clone().unwrap());
        threads.push(std::thread::spawn(move || {
            let connection = own.connections.fetch_add(1, SeqCst);
            // The client may go at any moment.
            let _ended = serve(&own, stream, connection);
        }));
    }
    shared.state.lock().unwrap().open.clear();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn serve(shared: &Shared, mut stream: TcpStream, connection: usize) -> std::io::Result<()> {
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mut message = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        stream.read_exact(&mut message)?;
        let mut from = Reader::new(&message);
        let Ok(Head::Call(call)) = Head::read(&mut from) else { panic!("the client calls") };
        let heard = hear(&call, from, connection);
        let act = (shared.decide)(&heard);
        let mut state = shared.state.lock().unwrap();
        state.heard.push(heard.clone());
        let mut answer = || record(&state.carry_out(&heard));
        match act {
            Act::Serve => {
                let answer = answer();
                drop(state);
                stream.write_all(&answer)?;
            }
            Act::Twice => {
                let answer = answer();
                drop(state);
                stream.write_all(&[&answer[..], &answer[..]].concat())?;
            }
            Act::Lose => {
                answer();
                drop(state);
                return stream.shutdown(Shutdown::Both);
            }
            Act::Hold => {
                let answer = answer();
                state.held.push((stream.try_clone()?, answer));
            }
            Act::Silent => {}
            Act::Body(body) => {
                drop(state);
                stream.write_all(&record(&accepted(heard.xid, &body)))?;
            }
            Act::Raw(bytes) => {
                drop(state);
                stream.write_all(&bytes)?;
            }
            Act::Last(bytes) => {
                drop(state);
                stream.write_all(&bytes)?;
                return stream.shutdown(Shutdown::Both);
            }
        }
    }
}

pub fn record(message: &[u8]) -> Vec<u8> {
    let mut record = (message.len() as u32 | 1 << 31).to_be_bytes().to_vec();
    record.extend(message);
    record
}

pub fn accepted(xid: u32, body: &[u8]) -> Vec<u8> {
    let mut out = rpc::accepted(xid);
    out.0.extend(body);
    out.0
}

fn hear(call: &Call, mut from: Reader<'_>, connection: usize) -> Heard {
    let mut heard = Heard {
        connection,
        xid: call.xid,
        program: call.program,
        procedure: call.procedure,
        offset: 0,
        count: 0,
        stable: 0,
        data: Vec::new(),
    };
    if call.program == n::NFS && matches!(call.procedure, n::READ | n::WRITE) {
        assert_eq!(from.opaque(64), Ok(FILE));
        heard.offset = from.u64().unwrap();
        heard.count = from.u32().unwrap();
        if call.procedure == n::WRITE {
            heard.stable = from.u32().unwrap();
            heard.data = from.opaque(1 << 20).unwrap().to_vec();
            assert_eq!(heard.data.len(), heard.count as usize);
            assert!(from.rest().is_empty(), "nothing follows the data");
        }
    }
    heard
}

pub fn attr(kind: Kind, size: u64) -> Attr {
    Attr {
        kind,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        device: [0, 0],
        fsid: 1,
        number: 2,
        atime: [0, 0],
        mtime: [0, 0],
        ctime: [0, 0],
    }
}

impl State {
    fn carry_out(&mut self, heard: &Heard) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(0);
        if heard.program == n::MOUNT {
            out.opaque(ROOT);
            out.u32(1);
            out.u32(1);
            return accepted(heard.xid, &out.0);
        }
        let size = self.bytes.len() as u64;
        let offset = heard.offset as usize;
        match heard.procedure {
            n::GETATTR => {
                let mtime = [self.changes, 0];
                Attr { mtime, ..attr(Kind::File, size) }.write(&mut out);
            }
            n::LOOKUP => {
                out.opaque(FILE);
                out.bool(true);
                attr(Kind::File, size).write(&mut out);
                out.bool(false);
            }
            n::ACCESS => {
                out.bool(false);
                out.u32(0x3f);
            }
            n::READ => {
                let end = (offset + heard.count as usize).min(self.bytes.len());
                let data = &self.bytes[offset.min(end)..end];
                out.bool(false);
                out.u32(data.len() as u32);
                out.bool(end == self.bytes.len());
                out.opaque(data);
            }
            n::WRITE => {
                self.changes += 1;
                let end = offset + heard.data.len();
                if self.bytes.len() < end {
                    self.bytes.resize(end, 0);
                }
                self.bytes[offset..end].copy_from_slice(&heard.data);
                if heard.stable != n::UNSTABLE {
                    if self.durable.len() < end {
                        self.durable.resize(end, 0);
                    }
                    self.durable[offset..end].copy_from_slice(&heard.data);
                }
                self.no_change(&mut out);
                out.u32(heard.count);
                out.u32(heard.stable);
                out.u64(self.verifier);
            }
            n::COMMIT => {
                self.durable = self.bytes.clone();
                self.no_change(&mut out);
                out.u64(self.verifier);
            }
            n::SETATTR => self.no_change(&mut out),
            n::FSINFO => {
                out.bool(false);
                for word in [1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20, 4096, 1 << 16] {
                    out.u32(word);
                }
                out.u64(1 << 60);
                [0, 1, 0x1b].iter().for_each(|word| out.u32(*word));
            }
            other => panic!("the client calls procedure {other}"),
        }
        accepted(heard.xid, &out.0)
    }

    fn no_change(&self, out: &mut Writer) {
        out.bool(false);
        out.bool(false);
    }
}
