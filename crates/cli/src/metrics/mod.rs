//! The metrics of a mount, for Prometheus: asked for by the mount option `metrics=`, answered over
//! HTTP on a socket of this machine.
//!
//! ```text
//!   GET /metrics ── server: sockets, patience ── http: bytes to bytes ── families: one pass over counters ── text (prometheus-client)
//! ```
//!
//! Only addresses of this machine are listened on, and a socket in the file system is the mounter's
//! alone: what files are called and how they are used concerns no other part.

mod families;
mod http;
mod server;
mod states;
#[cfg(test)]
mod tests;
mod threads;
pub mod turns;

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use bedplate::{FileSystem, Group};
use bedplate_serve::fuse::ServingThreads;
use prometheus_client::registry::Registry;

use self::families::Source;
#[cfg(feature = "forge")]
pub use self::http::answer as http_answer;
use self::server::{Listener, Server};
use crate::failure::{Failure, Result};

/// The most files with metrics of their own: each costs Prometheus a dozen series.
const FILES_MAX: usize = 1000;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of a loopback address.
    Tcp(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self> {
        let usage = |why: &str| Failure::usage(format!("mount option 'metrics={text}': {why}"));
        if let Some(path) = text.strip_prefix("unix:") {
            let path = std::path::absolute(path).map_err(|_| usage("write unix:PATH"))?;
            return Ok(Self::Unix(path));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            usage("write unix:PATH or an address of this machine, as in 127.0.0.1:9180")
        })?;
        if address.ip().is_loopback() {
            Ok(Self::Tcp(address))
        } else {
            Err(usage(
                "others could reach that address; take 127.0.0.1 or [::1], and let a proxy that \
                 knows who may ask stand before it",
            ))
        }
    }
}

/// Reads how many files get metrics of their own.
pub fn files(text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|number| *number <= FILES_MAX);
    number.ok_or_else(|| {
        Failure::usage(format!(
            "mount option 'metrics-files={text}': write a number from 0 to {FILES_MAX}"
        ))
    })
}

impl std::fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Answers until it is dropped. Its thread is not waited for: a client that does not read its
/// answer must not keep the daemon from ending.
pub struct Serving {
    server: Arc<Server>,
    socket: Option<PathBuf>,
    threads: Arc<OnceLock<Arc<ServingThreads>>>,
}

impl Serving {
    /// Tells of the threads that serve the mount from now on.
    pub fn tell_of(&self, threads: Arc<ServingThreads>) {
        self.threads.get_or_init(|| threads);
    }
}

/// Begins to answer; `files` of the busiest files get metrics of their own.
pub fn serve(
    place: &MetricsAddress,
    files: usize,
    dir: &Path,
    fs: &FileSystem,
    group: Option<&Group>,
) -> Result<Serving> {
    let refused = |error: io::Error| {
        Failure::new(
            "io",
            format!("cannot listen for metrics on {place}: {}", crate::failure::plain(&error)),
        )
    };
    let (listener, socket) = match place {
        MetricsAddress::Tcp(address) => (Listener::tcp(address).map_err(refused)?, None),
        MetricsAddress::Unix(path) => (bind(path).map_err(refused)?, Some(path.clone())),
    };
    let mount = bedplate::readable_name(dir.as_os_str().as_encoded_bytes());
    let source = Source::new(fs.clone(), group.map(Group::downgrade), files, mount);
    let threads = source.serving();
    let registry = families::registry(source);
    let answer = move |input: &mut dyn Read| http::answer(input, || tell(&registry));
    let server = Server::start(listener, Arc::new(answer)).map_err(refused)?;
    Ok(Serving { server, socket, threads })
}

/// Takes a socket's place; what a killed daemon left there is no obstacle, a socket that is
/// answered is.
fn bind(path: &Path) -> io::Result<Listener> {
    let left = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if left
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Listener::unix(path)
}

fn tell(registry: &Registry) -> Option<String> {
    let mut text = String::new();
    // It fails where the volume is going away, and nowhere else.
    prometheus_client::encoding::text::encode(&mut text, registry).ok().map(|()| text)
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.end();
        if let Some(socket) = &self.socket
            && let Err(error) = std::fs::remove_file(socket)
        {
            tracing::debug!("the socket {} stays: {error}", socket.display());
        }
    }
}
