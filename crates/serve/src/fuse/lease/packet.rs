//! The socket's packets: one request, one answer, with descriptors where a client attaches.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bedplate_lease::Reason;
use bedplate_lease::wire::{ANSWER_BYTES, ATTACH_DESCRIPTORS, Answer, REQUEST_BYTES, Request};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};

/// How many connections wait to be taken.
const BACKLOG: i32 = 128;

/// Makes the socket that clients attach to, by a name that is no path.
pub(super) fn listen_on(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes a connection; `None` where none waits any more.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What came of hearing a client.
#[derive(Debug)]
pub(super) enum Heard {
    /// A packet, whatever it says.
    Request(Result<Request, Reason>),
    Nothing,
    /// The client has closed its end.
    End,
}

/// Hears one packet, if there is one.
pub(super) fn hear(socket: impl AsFd) -> Heard {
    // One byte more than a request has: a longer packet is none.
    let mut bytes = [0; REQUEST_BYTES + 1];
    match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Heard::End,
        Ok((_, len)) => Heard::Request(Request::decode(&bytes[..len.min(REQUEST_BYTES + 1)])),
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(_) => Heard::End,
    }
}

/// Answers, with at most [`ATTACH_DESCRIPTORS`] descriptors. A client that does not take it is cut off.
pub(super) fn tell(
    socket: impl AsFd,
    answer: &Answer,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes: [u8; ANSWER_BYTES] = answer.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACH_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
