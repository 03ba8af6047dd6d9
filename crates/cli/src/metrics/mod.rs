//! The metrics of a mount, for Prometheus: asked for by the mount option `metrics=`, answered over HTTP on a socket of this machine.
//!
//! ```text
//!   GET /metrics ── server (tiny_http, a thread) ── families: one pass over counters ── text (prometheus-client)
//! ```
//!
//! Only addresses of this machine are listened on, and a socket in the file system is the mounter's alone: what files are called and how they are used
//! concerns nobody else.

mod families;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bedplate::{FileSystem, Group};
use prometheus_client::registry::Registry;
use tiny_http::{Header, Listener, Method, Request, Response, Server};

use self::families::Source;
use crate::failure::{Failure, Result};

/// What OpenMetrics text calls itself.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The most files with metrics of their own: each costs Prometheus a dozen series.
const FILES_MAX: usize = 1000;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of a loopback address.
    Tcp(SocketAddr),
}

impl FromStr for Place {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self> {
        let usage = |why: &str| Failure::usage(format!("mount option 'metrics={text}': {why}"));
        if let Some(path) = text.strip_prefix("unix:") {
            let path = std::path::absolute(path).map_err(|_| usage("write unix:PATH"))?;
            return Ok(Self::Unix(path));
        }
        let address: SocketAddr = text.parse().map_err(|_| usage("write unix:PATH or an address of this machine, as in 127.0.0.1:9180"))?;
        if address.ip().is_loopback() {
            Ok(Self::Tcp(address))
        } else {
            Err(usage("others could reach that address; take 127.0.0.1 or [::1], and let a proxy that knows who may ask stand before it"))
        }
    }
}

/// Reads how many files get metrics of their own.
pub fn files(text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|number| *number <= FILES_MAX);
    number.ok_or_else(|| Failure::usage(format!("mount option 'metrics-files={text}': write a number from 0 to {FILES_MAX}")))
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Answers until it is dropped. Its thread is not waited for: somebody who does not read his answer must not keep the daemon from ending.
pub struct Serving {
    server: Arc<Server>,
    socket: Option<PathBuf>,
}

/// Begins to answer; `files` of the busiest files get metrics of their own.
pub fn serve(place: &Place, files: usize, fs: &FileSystem, group: Option<&Group>) -> Result<Serving> {
    let refused = |error: &dyn std::fmt::Display| Failure::new("io", format!("cannot listen for metrics on {place}: {error}"));
    let (listener, socket): (Listener, _) = match place {
        Place::Tcp(address) => (TcpListener::bind(address).map_err(|error| refused(&crate::failure::plain(&error)))?.into(), None),
        Place::Unix(path) => (bind(path).map_err(|error| refused(&crate::failure::plain(&error)))?.into(), Some(path.clone())),
    };
    let server = Arc::new(Server::from_listener(listener, None).map_err(|error| refused(&error))?);
    let source = Source::new(fs.clone(), group.map(Group::downgrade), files);
    let registry = families::registry(source);
    let served = Arc::clone(&server);
    let answer_all = move || answer_all(&served, &registry);
    std::thread::Builder::new().name("bedplate-metrics".into()).spawn(answer_all).map_err(|error| refused(&error))?;
    Ok(Serving { server, socket })
}

fn answer_all(server: &Server, registry: &Registry) {
    loop {
        match server.recv() {
            Ok(request) => answer(request, registry),
            // Dropping `Serving` ends it so.
            Err(error) if error.kind() == ErrorKind::Other => return,
            Err(error) => return tracing::error!("metrics are not answered any more, until the next mount: {error}"),
        }
    }
}

/// Takes a socket's place; what a killed daemon left there is no obstacle, what somebody answers on is.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    let left = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if left && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn answer(request: Request, registry: &Registry) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, body) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let mut text = String::new();
            match prometheus_client::encoding::text::encode(&mut text, registry) {
                Ok(()) => (200, text),
                Err(_) => (503, "the volume is being unmounted\n".to_owned()),
            }
        }
        (Method::Get | Method::Head, _) => (404, "there is nothing but /metrics here\n".to_owned()),
        _ => (405, "GET /metrics is all that is answered\n".to_owned()),
    };
    let kind = if status == 200 { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let header = Header::from_bytes("Content-Type", kind).expect("the names of the types are ASCII");
    // Who asked and went away is not told.
    let _told = request.respond(Response::from_string(body).with_status_code(status).with_header(header));
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(socket) = &self.socket
            && let Err(error) = std::fs::remove_file(socket)
        {
            tracing::debug!("the socket {} stays: {error}", socket.display());
        }
    }
}
