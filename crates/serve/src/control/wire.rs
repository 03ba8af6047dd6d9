//! One line of JSON each way. A line has an end: its length and the time for it are bounded (S-99).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bedplate_fs::{Error, ErrorKind};
use serde::Serialize;

use super::request::{Answer, Request};

/// The most bytes that a request may have: it holds some paths, or the epochs of all checkpoints.
pub const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// The most bytes that an answer may have: a difference of checkpoints names every file.
pub const ANSWER_BYTES_MAX: u64 = 1 << 30;
const _: () =
    assert!(REQUEST_BYTES_MAX <= ANSWER_BYTES_MAX, "an answer may be longer than what it answers");
/// How long all of a request may take to come.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the caller may take none of its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the request of a connection; `None` where its caller went away before it said anything
/// whole.
///
/// # Errors
/// `Invalid` and `Io`: the line is too long, too late or makes no sense.
pub fn hear(stream: &UnixStream) -> bedplate_fs::Result<Option<Request>> {
    read_request(&mut BufReader::new(Until { stream, end: Instant::now() + REQUEST_TIMEOUT }))
}

/// Reads a request; `None` where the input ends before the line does.
///
/// # Errors
/// As [`hear`].
pub fn read_request(input: &mut dyn BufRead) -> bedplate_fs::Result<Option<Request>> {
    let unreadable = |error: io::Error| {
        let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let why = if late { "it did not come in time".to_owned() } else { error.to_string() };
        Error::new(ErrorKind::Io, format!("cannot hear the request: {why}"))
    };
    let line = read_line(input, REQUEST_BYTES_MAX).map_err(unreadable)?;
    let parsed = line.map(|line| serde_json::from_slice(&line)).transpose();
    parsed.map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("the request does not parse: {error}; is the command of another version?"),
        )
    })
}

/// Sends an answer.
///
/// # Errors
/// The caller went away, or does not read.
pub fn tell(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    write(&mut &*stream, answer)
}

/// Reads an answer.
///
/// # Errors
/// There is none, or it makes no sense.
pub fn read_answer(input: &mut dyn BufRead) -> io::Result<Answer> {
    let ended = || {
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it was unmounted or killed meanwhile; ask again",
        )
    };
    let line = read_line(input, ANSWER_BYTES_MAX)?.ok_or_else(ended)?;
    serde_json::from_slice(&line).map_err(|error| {
        io::Error::other(format!("its answer makes no sense ({error}); is it of another version?"))
    })
}

/// Writes one line.
///
/// # Errors
/// The other side went away, or does not read.
pub fn write(out: &mut dyn Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Reads one line of at most `bytes_max` bytes; `None` where the input ends before it does.
fn read_line(input: &mut dyn BufRead, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(bytes_max + 1).read_until(b'\n', &mut line)?;
    if line.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line has more than {bytes_max} bytes"),
        ));
    }
    Ok(line.ends_with(b"\n").then_some(line))
}

/// Reads until a point in time, however slowly bytes come.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&*self.stream).read(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_99_a_line_without_end_is_refused() {
        let mut endless = BufReader::new(io::repeat(b' '));
        let refusal = read_request(&mut endless).unwrap_err();
        assert!(refusal.message.contains("more than 1048576 bytes"), "{refusal}");
        assert!(
            read_answer(&mut &b"{}"[..]).unwrap_err().to_string().contains("unmounted or killed")
        );
        assert!(
            read_answer(&mut &b"{}\n"[..]).unwrap_err().to_string().contains("another version")
        );
        assert!(
            read_request(&mut &b"{\"request\":\"info\"}"[..]).unwrap().is_none(),
            "S-99: the end is missing"
        );
        assert!(matches!(
            read_request(&mut &b"{\"request\":\"info\"}\n"[..]),
            Ok(Some(Request::Info))
        ));
    }

    #[test]
    fn s_99_bytes_that_drip_do_not_prolong_the_time_for_a_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(b"{\"request\":").unwrap();
        let mut input = BufReader::new(Until { stream: &ours, end: Instant::now() });
        assert!(
            read_request(&mut input).unwrap_err().message.contains("did not come in time"),
            "S-99"
        );
    }
}
