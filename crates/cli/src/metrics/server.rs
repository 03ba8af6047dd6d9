//! The sockets that metrics are asked for on.
//!
//! A connection has [`CONNECTION_TIMEOUT`] for everything, and there are at most [`AT_ONCE_MAX`]: a
//! client that asks slowly, does not read its answer, or asks a thousand times at once costs the
//! daemon no more than that, and keeps no other client waiting longer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

/// How long one connection may take, from the first byte of the request to the last of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections are served at once; more are closed without an answer.
const AT_ONCE_MAX: usize = 8;
/// How long nothing is accepted after the system refused (no descriptors left, for example).
const PAUSE: Duration = Duration::from_millis(100);

/// Turns what is read into what is written.
pub type Answer = Arc<dyn Fn(&mut dyn Read) -> io::Result<Vec<u8>> + Send + Sync>;

/// Where connections come from.
pub enum Listener {
    /// A socket in the file system.
    Unix(UnixListener),
    /// A port.
    Tcp(TcpListener),
}

/// A client.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    /// Listens on a socket in the file system that at no time another user than its owner can
    /// connect to.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // The name gets the permissions that the socket has.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(Self::Unix(socket.into()))
    }

    pub fn tcp(address: &SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Self::Tcp)
    }

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A connection that gives up when its time is over.
struct Connection {
    stream: Stream,
    until: Instant,
}

impl Connection {
    /// Returns how long the next call may take.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Connection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buf)),
            Stream::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buf)),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(buf)),
            Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(buf)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Accepts until [`end`](Self::end).
pub struct Server {
    listener: Listener,
    ended: AtomicBool,
    at_once: AtomicUsize,
}

impl Server {
    /// Begins to answer, in threads of its own.
    pub fn start(listener: Listener, answer: Answer) -> io::Result<Arc<Self>> {
        let server = Arc::new(Self {
            listener,
            ended: AtomicBool::new(false),
            at_once: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&server);
        spawn(move || accepting.accept(&answer))?;
        Ok(server)
    }

    /// Accepts no client any more. Answers under way are not waited for: a client that does not
    /// read must not keep the daemon from ending.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        if let Err(error) = rustix::net::shutdown(&self.listener, Shutdown::Both) {
            tracing::debug!("the metrics listen on: {error}");
        }
    }

    fn accept(self: &Arc<Self>, answer: &Answer) {
        while !self.ended.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok(stream) => self.serve(stream, Arc::clone(answer)),
                Err(_) if self.ended.load(Ordering::Acquire) => return,
                Err(error) => {
                    tracing::debug!("metrics cannot be asked for now: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, stream: Stream, answer: Answer) {
        if self.at_once.fetch_add(1, Ordering::AcqRel) >= AT_ONCE_MAX {
            self.at_once.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let server = Arc::clone(self);
        let started = spawn(move || {
            let mut connection = Connection { stream, until: Instant::now() + CONNECTION_TIMEOUT };
            // A client that went away, or took too long, is not told.
            let _told = answer(&mut connection).and_then(|bytes| connection.write_all(&bytes));
            server.at_once.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            self.at_once.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("bedplate-metrics".into()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::http;
    use super::*;

    fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// A client that sent nothing, or did not read, once kept all others waiting for ever.
    #[test]
    fn s_99_who_says_nothing_and_who_reads_nothing_keeps_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Larger than what sockets hold.
        let tell = || Some("x".repeat(32 << 20));
        let server = Server::start(
            Listener::Tcp(listener),
            Arc::new(move |input: &mut dyn Read| http::answer(input, tell)),
        )
        .unwrap();
        let silent: Vec<TcpStream> =
            (0..AT_ONCE_MAX / 2).map(|_| TcpStream::connect(address).unwrap()).collect();
        let deaf: Vec<TcpStream> =
            (0..AT_ONCE_MAX / 2 - 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        deaf.iter()
            .for_each(|mut stream| stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap());
        assert!(ask(address).len() > 32 << 20);
        // One more than are served at once is closed.
        let last = TcpStream::connect(address).unwrap();
        let mut refused = TcpStream::connect(address).unwrap();
        assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
        drop((silent, deaf, last));
        server.end();
        assert!((0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            TcpStream::connect(address).is_err()
        }));
    }
}
