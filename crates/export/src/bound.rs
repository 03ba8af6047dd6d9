//! Sockets in the file system that a server listens on.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The name of a socket; gone with this.
#[derive(Debug)]
pub struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        // It may be removed already.
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// Listens on a socket that at no time another user than its owner can connect to; takes the place
/// of one that a server left behind which was killed.
pub fn listen(path: &Path) -> io::Result<(UnixListener, Bound)> {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| is_left_behind(&error)) {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The name gets the permissions that the socket has.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok((socket.into(), Bound(path.to_owned())))
}

fn is_left_behind(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
