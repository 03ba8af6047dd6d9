//! Requests under way, and callers that are killed meanwhile.
//!
//! A request waits for the server as long as the client has patience, and the kernel has its caller
//! wait with it, also one that is killed. Of a signal the kernel tells by INTERRUPT; where it ends
//! the caller, the request is answered at once, and what the server answers later goes nowhere. Any
//! other signal waits, as it does on a disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use bedplate_fuse::Reply;
use parking_lot::Mutex;

/// How often it is looked whether a caller was killed.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the close of a file by a process that ends waits for the server: what is not durable
/// by then goes on without it.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// `PF_EXITING`, among the flags of `/proc/PID/stat`.
const EXITING: u64 = 4;

/// A request under way.
#[derive(Debug)]
pub(super) struct Ticket {
    /// There until the answer.
    reply: Mutex<Option<Reply>>,
    thread: u32,
    begun: Instant,
    /// A signal came for the caller.
    is_signaled: AtomicBool,
}

impl Ticket {
    /// Takes the right to answer; `None` where it was answered already.
    pub(super) fn take(&self) -> Option<Reply> {
        self.reply.lock().take()
    }

    /// Returns whether a signal came, or the answer goes nowhere: what may wait for ever ends then.
    pub(super) fn gives_up(&self) -> bool {
        self.is_signaled.load(Relaxed) || self.is_over()
    }

    fn is_over(&self) -> bool {
        self.reply.lock().is_none()
    }

    /// Answers where the caller will not see the answer any more.
    fn end_if_dying(&self) {
        let told = |name| std::fs::read_to_string(format!("/proc/{}/{name}", self.thread));
        let killed = || told("status").is_ok_and(|status| is_killed(&status));
        let exiting = || told("stat").is_ok_and(|stat| is_exiting(&stat));
        let is_late = self.begun.elapsed() >= CLOSE_MAX;
        if (self.is_signaled.load(Relaxed) && killed() || is_late && exiting())
            && let Some(reply) = self.take()
        {
            reply.refuse(libc::EINTR);
        }
    }
}

/// Requests under way, by the kernel's number.
#[derive(Debug)]
pub(super) struct Tickets {
    under_way: Mutex<HashMap<u64, Arc<Ticket>>>,
    watched: Sender<Arc<Ticket>>,
}

impl Tickets {
    /// Begins with none.
    pub(super) fn start() -> std::io::Result<Self> {
        let (watched, arrivals) = channel();
        Builder::new().name("bedplate-nfs-i".into()).spawn(move || watch(&arrivals))?;
        Ok(Self { under_way: Mutex::default(), watched })
    }

    pub(super) fn enter(&self, reply: Reply) -> Arc<Ticket> {
        let header = reply.request().header;
        let (reply, begun) = (Mutex::new(Some(reply)), Instant::now());
        let is_signaled = AtomicBool::new(false);
        let ticket = Arc::new(Ticket { reply, thread: header.pid, begun, is_signaled });
        self.under_way.lock().insert(header.unique, Arc::clone(&ticket));
        ticket
    }

    pub(super) fn leave(&self, unique: u64) {
        self.under_way.lock().remove(&unique);
    }

    /// Notes a signal to a caller. Returns whether its request is known.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let Some(ticket) = self.under_way.lock().get(&unique).map(Arc::clone) else {
            return false;
        };
        ticket.is_signaled.store(true, Relaxed);
        self.watch(&ticket);
        true
    }

    /// Has a request end with its caller.
    pub(super) fn watch(&self, ticket: &Arc<Ticket>) {
        // The thread ends after all that could send.
        let _sent = self.watched.send(Arc::clone(ticket));
    }
}

fn watch(arrivals: &Receiver<Arc<Ticket>>) {
    let mut watched: Vec<Arc<Ticket>> = Vec::new();
    loop {
        let arrived = match watched.is_empty() {
            true => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => arrivals.recv_timeout(INTERVAL),
        };
        match arrived {
            Ok(ticket) => watched.push(ticket),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        watched.retain(|ticket| !ticket.is_over());
        watched.iter().for_each(|ticket| ticket.end_if_dying());
    }
}

/// Tells by a thread's status whether it was killed: by whichever signal, the kernel then has
/// SIGKILL wait for each of its threads.
fn is_killed(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let pending = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
    ["SigPnd:", "ShdPnd:"]
        .into_iter()
        .filter_map(pending)
        .any(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & KILL != 0))
}

/// Tells by `/proc/PID/stat` whether a process ends.
fn is_exiting(stat: &str) -> bool {
    // The name, in brackets, may hold anything.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let flags = rest.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_caller_is_told_from_one_with_another_signal() {
        let status = |own: &str, all: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{all}\n");
        assert!(is_killed(&status("0000000000000100", "0")));
        assert!(is_killed(&status("0", "0000000000000102")));
        assert!(!is_killed(&status("0000000000000202", "0000000000004000")), "others wait");
        assert!(!is_killed("Name:\tx\n"));
    }

    #[test]
    fn a_process_that_ends_is_told_by_its_flags() {
        assert!(is_exiting("7 (a) b) D 1 7 7 0 -1 4194308 1 0"));
        assert!(!is_exiting("7 (4) S 1 7 7 0 -1 4194304 1 0") && !is_exiting(""));
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(!is_exiting(&own), "{own}");
    }
}
