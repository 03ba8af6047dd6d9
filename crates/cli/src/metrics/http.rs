//! As much of HTTP as a question for metrics needs: one request a connection, no body, an answer
//! whose length is told.
//!
//! Every process of this machine may send anything to a port, and this runs in the process that
//! serves a database's files. So a request has at most [`REQUEST_BYTES_MAX`], and nothing in it is
//! believed or stored.

use std::io::{self, Read};

/// The most bytes that a request may have up to its empty line.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// What OpenMetrics text calls itself.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads one request and returns the bytes of the answer; `tell` makes the metrics, unless the
/// volume is going away.
///
/// # Errors
/// Those of `input`, and `UnexpectedEof` where it ends before the request does: no answer is
/// awaited then.
pub fn answer(input: &mut dyn Read, tell: impl FnOnce() -> Option<String>) -> io::Result<Vec<u8>> {
    let Some(head) = head(input)? else {
        return Ok(written(
            "431 Request Header Fields Too Large",
            PLAIN,
            "a request for metrics is shorter\n",
            true,
        ));
    };
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Ok(bad()) };
    if !version.starts_with(b"HTTP/1.")
        || method.is_empty()
        || !line.iter().all(|byte| (0x20..0x7f).contains(byte))
    {
        return Ok(bad());
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let with_body = method == b"GET";
    Ok(match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => match tell() {
            Some(text) => written("200 OK", OPEN_METRICS, &text, with_body),
            None => written(
                "503 Service Unavailable",
                PLAIN,
                "the volume is being unmounted\n",
                with_body,
            ),
        },
        (b"GET" | b"HEAD", _) => {
            written("404 Not Found", PLAIN, "there is nothing but /metrics here\n", with_body)
        }
        _ => written(
            "405 Method Not Allowed\r\nAllow: GET, HEAD",
            PLAIN,
            "GET /metrics is all that is answered\n",
            true,
        ),
    })
}

/// Reads up to the empty line; `None` where that does not come in time.
fn head(input: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let len = match input.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        // The end may lie across two pieces.
        let seen = head.len().saturating_sub(3);
        head.extend_from_slice(&piece[..len]);
        if let Some(end) = end(&head[seen..]) {
            head.truncate(seen + end);
            return Ok((head.len() <= REQUEST_BYTES_MAX).then_some(head));
        }
        if head.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Returns where the empty line ends; a bare line feed counts as the end of a line.
fn end(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find_map(|at| {
        [&b"\n\n"[..], b"\n\r\n"]
            .iter()
            .find(|end| bytes[at..].starts_with(end))
            .map(|end| at + end.len())
    })
}

fn bad() -> Vec<u8> {
    written("400 Bad Request", PLAIN, "this is no request of HTTP/1.0 or 1.1\n", true)
}

fn written(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: \
         close\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    if with_body {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out a byte at a time.
    struct Slowly<'a>(&'a [u8]);

    impl Read for Slowly<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(&mut buf[..1])
        }
    }

    fn asked(request: &[u8]) -> String {
        let whole = answer(&mut &request[..], || Some("m 1\n".into())).unwrap();
        assert_eq!(
            whole,
            answer(&mut Slowly(request), || Some("m 1\n".into())).unwrap(),
            "the pieces in which it comes change nothing"
        );
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn requests_are_answered_with_what_they_ask_for_or_why_not() {
        let full = asked(b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n");
        assert!(
            full.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text")
                && full.ends_with("\r\n\r\nm 1\n"),
            "{full}"
        );
        assert!(asked(b"GET /metrics?x=1 HTTP/1.0\n\n").starts_with("HTTP/1.1 200"));
        let head = asked(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(
            head.starts_with("HTTP/1.1 200")
                && head.contains("Content-Length: 4\r\n")
                && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n", "405"),
            (b"GET /metrics HTTP/2.0\r\n\r\n", "400"),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\xff /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
        ] {
            assert!(
                asked(request).starts_with(&format!("HTTP/1.1 {status} ")),
                "{} gets {}",
                request.escape_ascii(),
                asked(request)
            );
        }
        let gone = answer(&mut &b"GET /metrics HTTP/1.1\r\n\r\n"[..], || None).unwrap();
        assert!(gone.starts_with(b"HTTP/1.1 503"));
    }

    /// Requests without end once filled the daemon's memory: the library that read them stored
    /// whatever came.
    #[test]
    fn s_99_a_request_without_end_is_cut_off_and_one_that_is_cut_short_gets_nothing() {
        let mut endless = io::repeat(b'x');
        assert!(answer(&mut endless, || None).unwrap().starts_with(b"HTTP/1.1 431"));
        let mut lines = b"GET /metrics HTTP/1.1\r\n".chain(io::repeat(b'\r'));
        assert!(answer(&mut lines, || None).unwrap().starts_with(b"HTTP/1.1 431"));
        for request in [&b""[..], b"GET /metrics HTTP/1.1\r\n", b"GET"] {
            assert_eq!(
                answer(&mut &request[..], || None).unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof
            );
        }
    }
}
