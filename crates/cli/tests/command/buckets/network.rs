//! A network that fails on command: connections are handed on, cut, stopped or answered in the
//! server's place.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What it does with connections.
#[derive(Debug, Clone, Copy)]
pub enum Weather {
    /// Of five connections one is answered with 500 and one is cut after some kilobytes.
    Bad,
    /// Every request is answered with 403 and this code.
    Refusing(&'static str),
    /// After so many bytes towards the server nothing moves any more.
    StopsAfter(u64),
}

struct Shared {
    server: SocketAddr,
    weather: Mutex<Weather>,
    connections: AtomicU64,
    failed: AtomicU64,
    sent: AtomicU64,
    ended: AtomicBool,
}

/// The network. Dropped, it takes no more connections.
pub struct Network {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Network {
    /// Leads to a server.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            weather: Mutex::new(Weather::Bad),
            connections: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap() = weather;
    }

    /// How many connections it let fail.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::SeqCst)
    }

    /// Waits until nothing moves any more.
    pub fn wait_until_stopped(&self) {
        let start = Instant::now();
        while self.failed() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the bytes do not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _wakes_it = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        let weather = *self.weather.lock().unwrap();
        match weather {
            Weather::Refusing(code) => self.answer(client, "403 Forbidden", code),
            Weather::Bad if number % 5 == 1 => {
                self.answer(client, "500 Internal Server Error", "InternalError");
            }
            Weather::Bad if number % 5 == 3 => self.hand_on(&client, Some(300_000)),
            Weather::Bad => self.hand_on(&client, None),
            Weather::StopsAfter(_) => self.hand_on(&client, None),
        }
    }

    /// Answers the first request itself.
    fn answer(&self, mut client: TcpStream, status: &str, code: &str) {
        self.failed.fetch_add(1, Ordering::SeqCst);
        let mut request = Vec::new();
        let mut buffer = [0; 1 << 16];
        let mut wanted = usize::MAX;
        while request.len() < wanted {
            let Ok(len @ 1..) = client.read(&mut buffer) else { return };
            request.extend_from_slice(&buffer[..len]);
            if let Some(end) = request
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .filter(|_| wanted == usize::MAX)
            {
                let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
                let body = head.lines().find_map(|line| {
                    line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok()
                });
                wanted = end + 4 + body.unwrap_or(0);
            }
        }
        let is_head = request.starts_with(b"HEAD");
        let text = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as the test \
             wants</Message></Error>"
        );
        let body = if is_head { "" } else { &text };
        let _gone = write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            text.len()
        );
    }

    /// Hands a connection on, for so many bytes either way.
    fn hand_on(&self, client: &TcpStream, bytes_max: Option<u64>) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let left = AtomicU64::new(bytes_max.unwrap_or(u64::MAX));
        std::thread::scope(|scope| {
            scope.spawn(|| self.copy(client, &server, &left, true));
            self.copy(&server, client, &left, false);
        });
    }

    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream, left: &AtomicU64, out: bool) {
        let mut buffer = [0; 1 << 14];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if let Weather::StopsAfter(bytes) = *self.weather.lock().unwrap()
                && out
                && self.sent.fetch_add(len as u64, Ordering::SeqCst) > bytes
            {
                self.failed.fetch_add(1, Ordering::SeqCst);
                while !self.ended.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                break;
            }
            if left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(len as u64)
                })
                .is_err()
            {
                self.failed.fetch_add(1, Ordering::SeqCst);
                let _gone = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _gone = to.shutdown(Shutdown::Write);
    }
}
