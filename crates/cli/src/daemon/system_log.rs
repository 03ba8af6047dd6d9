//! The system's log, where a daemon says what it has to say once its terminal is gone.
//!
//! Two sockets are known, both of datagrams: that of systemd's journal, whose entries have fields,
//! and `/dev/log`, where every syslog listens. The first of them that takes a message gets it;
//! [`VARIABLE`] names another place where a syslog listens, for containers that have it elsewhere.
//! Nothing ever waits for the log: a message that it does not take at once is dropped, and the next
//! one says how many were.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;

use crate::render::text;

/// The variable that names the socket of a syslog.
pub const VARIABLE: &str = "BEDPLATE_SYSLOG";
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
/// What programs of the background are to a syslog: the facility `daemon`.
const FACILITY: u8 = 3;
/// How long a message may be; what a syslog refuses is lost.
const BYTES_MAX: usize = 8000;

/// A way to the log.
#[derive(Debug)]
enum Place {
    Journal(PathBuf),
    Syslog(PathBuf),
}

/// The system's log for the messages of one mount.
#[derive(Debug)]
pub struct SystemLog {
    socket: UnixDatagram,
    places: Vec<Place>,
    /// Where the volume is mounted, which each message begins with.
    dir: String,
    lost: AtomicU64,
}

impl SystemLog {
    /// Finds the log for messages about the mount on `dir`.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn find(dir: &Path) -> io::Result<Self> {
        let places = match std::env::var_os(VARIABLE) {
            Some(path) => vec![Place::Syslog(path.into())],
            None => vec![Place::Journal(JOURNAL.into()), Place::Syslog(SYSLOG.into())],
        };
        Self::at(places, dir)
    }

    fn at(places: Vec<Place>, dir: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, places, dir: text::name(dir), lost: AtomicU64::new(0) })
    }

    /// Sends one message, without waiting.
    pub fn send(&self, level: Level, message: &str) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && !self.deliver(Level::WARN, &format!("{lost} messages before this are lost"))
        {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        } else if !self.deliver(level, message) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver(&self, level: Level, message: &str) -> bool {
        let line = text::one_line(message);
        let line = format!("{}: {}", self.dir, text::beginning(&line, BYTES_MAX));
        self.places.iter().any(|place| {
            let (path, datagram) = match place {
                Place::Journal(path) => (path, entry(level, &line, &self.dir)),
                Place::Syslog(path) => (path, record(level, &line)),
            };
            self.socket.send_to(datagram.as_bytes(), path).is_ok()
        })
    }
}

/// Returns the severity as the log counts it.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Writes a message for a syslog, which adds the time.
fn record(level: Level, line: &str) -> String {
    let priority = FACILITY << 3 | severity(level);
    format!("<{priority}>bedplate[{}]: {line}", std::process::id())
}

/// Writes a message for the journal: one field a line, none of which holds an end of line.
fn entry(level: Level, line: &str, dir: &str) -> String {
    format!(
        "MESSAGE={line}\nPRIORITY={}\nSYSLOG_FACILITY={FACILITY}\nSYSLOG_IDENTIFIER=bedplate\nSYSLOG_PID={}\nBEDPLATE_MOUNT={dir}\n",
        severity(level),
        std::process::id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = vec![0; 64 << 10];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    #[test]
    fn the_journal_gets_fields_and_a_syslog_a_line_where_there_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let places = || vec![Place::Journal(path("journal")), Place::Syslog(path("log"))];
        let syslog = UnixDatagram::bind(path("log")).unwrap();
        let log = SystemLog::at(places(), Path::new("/mnt/d\nb")).unwrap();
        log.send(Level::WARN, "the member\nfailed");
        let pid = std::process::id();
        assert_eq!(heard(&syslog), format!("<28>bedplate[{pid}]: /mnt/d\\nb: the member\\nfailed"));
        let journal = UnixDatagram::bind(path("journal")).unwrap();
        log.send(Level::ERROR, "read-only");
        let told = heard(&journal);
        assert!(told.starts_with("MESSAGE=/mnt/d\\nb: read-only\nPRIORITY=3\n"), "{told}");
        assert_eq!(told.lines().count(), 6, "{told}");
    }

    #[test]
    fn a_log_that_takes_nothing_is_not_waited_for_and_what_it_lost_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = SystemLog::at(vec![Place::Syslog(path.clone())], Path::new("/m")).unwrap();
        log.send(Level::WARN, "nothing listens");
        let syslog = UnixDatagram::bind(&path).unwrap();
        // More than the socket holds; a send that waited would never end.
        for number in 0..10_000 {
            log.send(Level::INFO, &format!("message {number}"));
        }
        assert!(heard(&syslog).ends_with("/m: 1 messages before this are lost"));
        assert!(heard(&syslog).ends_with("/m: message 0"));
        syslog.set_nonblocking(true).unwrap();
        while syslog.recv(&mut [0; 100]).is_ok() {}
        log.send(Level::INFO, &"é".repeat(BYTES_MAX));
        assert!(heard(&syslog).contains("messages before this are lost"));
        assert!(heard(&syslog).len() < BYTES_MAX + 100);
    }
}
