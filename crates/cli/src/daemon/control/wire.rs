//! One line of JSON each way, between a command and the process that has a group open, and when each believes the other.
//!
//! Every process of this machine can take the name of an abstract socket, and call it. So neither side believes the other before the system has said which process
//! that is, and a line has an end: its length and the time for it are bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::UCred;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Reply, Request};
use crate::device::group::holder;
use crate::failure::{Failure, Result};

/// The most bytes that a request may have: it holds a path or two.
pub const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// The most bytes that an answer may have: a scrub names every difference.
pub const REPLY_BYTES_MAX: u64 = 64 << 20;
/// How long a command that connected may think.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a request, if the process that sends it may ask.
pub fn hear(stream: &UnixStream) -> Result<Request> {
    let peer = holder::peer_of(stream)
        .map_err(|error| Failure::new("io", format!("cannot tell who asks: {error}")))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Failure::new(
            "not_permitted",
            "the group is open in a process of another user: only that user and root may ask",
        ));
    }
    let unheard = |error: io::Error| {
        Failure::new("io", format!("cannot hear the request: {}", crate::failure::plain(&error)))
    };
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).map_err(unheard)?;
    read_request(&mut BufReader::new(stream))
}

/// Reads a request.
pub fn read_request(input: &mut dyn BufRead) -> Result<Request> {
    let line = line(input, REQUEST_BYTES_MAX)
        .map_err(|error| Failure::new("io", format!("cannot hear the request: {error}")))?;
    parse(&line).map_err(|error| Failure::new("io", format!("the request does not parse: {error}")))
}

/// Sends a request, and reads the answer of a process that is believed.
pub fn ask(mut stream: UnixStream, members: &[PathBuf], request: &Request) -> Result<Reply> {
    let unheard = |error: io::Error| {
        Failure::new(
            "io",
            format!(
                "the process that has the group open does not answer: {}",
                crate::failure::plain(&error)
            ),
        )
    };
    let peer = holder::peer_of(&stream).map_err(unheard)?;
    if !is_believed(peer, members) {
        let (pid, uid) = (peer.pid.as_raw_nonzero(), peer.uid.as_raw());
        return Err(Failure::new(
            "not_permitted",
            format!(
                "process {pid} of user {uid} answers for the group, and is neither yours nor has its members open for writing: it is not believed"
            ),
        ));
    }
    write(&mut stream, request).map_err(unheard)?;
    read_reply(&mut BufReader::new(stream))
}

/// Reads an answer.
pub fn read_reply(input: &mut dyn BufRead) -> Result<Reply> {
    let line = line(input, REPLY_BYTES_MAX).map_err(|error| {
        Failure::new("io", format!("the process that has the group open does not answer: {error}"))
    })?;
    if !line.ends_with(b"\n") {
        return Err(Failure::new(
            "io",
            "the process that has the group open gave no answer: it was unmounted or killed meanwhile; ask again",
        ));
    }
    match parse(&line) {
        Ok(Reply::Failed(failure)) => Err(failure),
        Ok(reply) => Ok(reply),
        Err(_) => Err(Failure::new(
            "io",
            "the process that has the group open gave no answer: is it of another version?",
        )),
    }
}

/// Writes one line.
pub fn write(out: &mut dyn Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Reads one line of at most `bytes_max` bytes.
fn line(input: &mut dyn BufRead, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(bytes_max + 1).read_until(b'\n', &mut line)?;
    if line.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line has more than {bytes_max} bytes"),
        ));
    }
    Ok(line)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line)
}

/// Says whether an answer counts: that of root, of the own user, or of a process that has a member open for writing, and so may change it anyway.
fn is_believed(peer: UCred, members: &[PathBuf]) -> bool {
    peer.uid.is_root()
        || peer.uid == rustix::process::geteuid()
        || members.iter().any(|member| writes_to(peer.pid.as_raw_nonzero().get(), member))
}

/// Says whether a process has a file or device open for writing.
fn writes_to(pid: i32, path: &Path) -> bool {
    let Some(wanted) = path.metadata().ok().map(|meta| place(&meta)) else { return false };
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_it = |entry: &std::fs::DirEntry| {
        entry.path().metadata().is_ok_and(|meta| place(&meta) == wanted)
    };
    descriptors.filter(is_it).any(|entry| is_for_writing(pid, &entry.file_name().to_string_lossy()))
}

/// Returns what tells a file or a block device from all others.
fn place(meta: &std::fs::Metadata) -> (bool, u64, u64) {
    if meta.file_type().is_block_device() {
        (true, meta.rdev(), 0)
    } else {
        (false, meta.dev(), meta.ino())
    }
}

/// Reads the flags of a descriptor, in octal digits; the lowest two bits say how it was opened.
fn is_for_writing(pid: i32, descriptor: &str) -> bool {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:")?.trim().chars().last());
    flags.and_then(|digit| digit.to_digit(8)).is_some_and(|digit| digit & 3 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_99_a_line_without_end_is_refused() {
        let mut endless = BufReader::new(io::repeat(b' '));
        let refusal = read_request(&mut endless).unwrap_err();
        assert!(refusal.message.contains("more than 65536 bytes"), "{refusal}");
        assert!(read_reply(&mut &b"{}"[..]).unwrap_err().message.contains("unmounted or killed"));
        assert!(read_reply(&mut &b"{}\n"[..]).unwrap_err().message.contains("another version"));
        assert!(matches!(
            read_request(&mut &b"{\"Scrub\":{\"repair\":true}}\n"[..]),
            Ok(Request::Scrub { repair: true })
        ));
    }

    /// The name of the socket is free for all while no process has the group open: a process that took it once told root what it liked.
    #[test]
    fn s_99_a_stranger_is_believed_only_with_a_member_open_for_writing() {
        let member = tempfile::NamedTempFile::new().unwrap();
        let members = [member.path().to_owned()];
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let me = holder::peer_of(&ours).unwrap();
        assert!(is_believed(me, &[]), "the own user");
        let pid = me.pid.as_raw_nonzero().get();
        assert!(writes_to(pid, member.path()), "this process has it open");
        let (_file, path) = member.into_parts();
        drop(_file);
        let _reading = std::fs::File::open(&path).unwrap();
        assert!(!writes_to(pid, &path), "for reading anybody may open it");
        let stranger = UCred {
            uid: rustix::process::Uid::from_raw(rustix::process::geteuid().as_raw() + 4711),
            ..me
        };
        assert_eq!(is_believed(stranger, &members), me.uid.is_root() && stranger.uid.is_root());
        let _writing = std::fs::File::options().write(true).open(&path).unwrap();
        assert!(is_believed(stranger, &members));
    }
}
