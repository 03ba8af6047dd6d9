//! Requests about checkpoints and tunables that come as extended attributes of the root ([`crate::control`]).
//!
//! They are carried out by workers: the kernel keeps the root locked while it sets an attribute, and after a rollback it must be told to forget.
//!
//! | name | set | read |
//! | --- | --- | --- |
//! | `request.TOKEN` | begins the request that the value holds | |
//! | `request.TOKEN+N+TEXT` | | part N of a request, for a read-only mount, which the kernel lets nobody set attributes of; empty |
//! | `request.TOKEN=` | | begins the request that the parts hold; empty |
//! | `request.TOKEN@OFFSET` | | waits for the answer and gives some of it from a byte on; its end is empty, and then it is forgotten |
//!
//! What a request may change does not depend on how it came: the file system of a read-only mount changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::errno::{Answer, Errno};
use super::names::Caller;
use super::shared::Shared;
use crate::control::{self, Changed, Request};

/// The attribute's name behind its prefix, up to the token.
pub(super) const REQUEST: &[u8] = b"request.";

/// How many requests may wait to be fetched.
const WAITING_MAX: usize = 64;
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 64;

/// How many bytes of parts one request may have, and how many requests may come in parts at once.
const PARTS_BYTES_MAX: usize = 64 << 10;
const PARTED_MAX: usize = 16;
/// How many bytes of an answer are given at once: an attribute has 64 KiB at most.
const SLICE_BYTES: usize = 60 << 10;

/// What a caller calls his request.
type Token = Vec<u8>;
/// An answer as JSON; `None` while it is not there.
type Answered = Option<Arc<Vec<u8>>>;
/// Parts of a request by their numbers.
type Parts = BTreeMap<u16, Vec<u8>>;

/// Requests by token; `None` while one is carried out.
#[derive(Default)]
pub(super) struct Requests {
    answers: Mutex<HashMap<Token, Answered>>,
    answered: Condvar,
    /// Parts of requests that have not begun.
    parts: Mutex<HashMap<Token, Parts>>,
}

/// What the name of an attribute asks of a request.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    Part(u16, &'a [u8]),
    Begin,
    Answer(usize),
}

/// Splits what follows `request.`.
fn asked(name: &[u8]) -> Option<(&[u8], Asked<'_>)> {
    let at = name.iter().position(|byte| b"+=@".contains(byte))?;
    let (token, rest) = (&name[..at], &name[at + 1..]);
    let asked = match name[at] {
        b'=' if rest.is_empty() => Asked::Begin,
        b'@' => Asked::Answer(str::from_utf8(rest).ok()?.parse().ok()?),
        b'+' => {
            let end = rest.iter().position(|byte| *byte == b'+')?;
            Asked::Part(str::from_utf8(&rest[..end]).ok()?.parse().ok()?, &rest[end + 1..])
        }
        _ => return None,
    };
    Some((token, asked))
}

impl Shared {
    /// Begins a request.
    pub(super) fn take_request(self: &Arc<Self>, caller: Caller, token: &[u8], value: &[u8]) -> Answer<()> {
        self.need_manager(caller)?;
        let request: Request = serde_json::from_slice(value).map_err(|_| Errno::INVAL)?;
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let mut answers = self.requests.answers.lock();
        if answers.len() >= WAITING_MAX {
            // Whoever asked and never fetched makes room.
            answers.retain(|_, answer| answer.is_none());
        }
        if answers.len() >= WAITING_MAX || answers.contains_key(token) {
            return Err(Errno::AGAIN);
        }
        answers.insert(token.to_vec(), None);
        drop(answers);
        let token = token.to_vec();
        self.run_on_worker(move |shared| shared.carry_out(token, &request));
        Ok(())
    }

    fn carry_out(&self, token: Vec<u8>, request: &Request) {
        let answer = match request {
            Request::Mount { name, dir } => self.mount_checkpoint(name, dir).map_or_else(
                |error| control::Answer::Failed(format!("{:?}", error.kind), error.message),
                |dir| control::Answer::Done(serde_json::json!({ "mounted": dir })),
            ),
            _ => control::Answer::of(control::answer(&self.fs, request).map(|(value, changed)| {
                self.forget_changed(&changed);
                value
            })),
        };
        if matches!(request, Request::Tune(_)) {
            self.widen_read_ahead();
        }
        let answer = serde_json::to_vec(&answer).unwrap_or_default();
        self.requests.answers.lock().insert(token, Some(Arc::new(answer)));
        self.requests.answered.notify_all();
    }

    /// Makes the kernel forget what a request changed.
    fn forget_changed(&self, changed: &Changed) {
        for (dir, name) in &changed.names {
            self.kernel.drop_name(*dir, OsStr::from_bytes(name));
        }
        for ino in &changed.inodes {
            self.kernel.drop_pages(*ino, 0, 0);
        }
    }

    /// Answers what is read of a request by a name.
    pub(super) fn request_value(self: &Arc<Self>, caller: Caller, name: &[u8]) -> Answer<Vec<u8>> {
        self.need_manager(caller)?;
        let (token, asked) = asked(name).ok_or(Errno::NODATA)?;
        match asked {
            Asked::Part(number, text) => self.take_part(token, number, text)?,
            Asked::Begin => {
                let parts = self.requests.parts.lock().remove(token).ok_or(Errno::NODATA)?;
                self.take_request(caller, token, &parts.into_values().flatten().collect::<Vec<_>>())?;
            }
            Asked::Answer(offset) => return self.give_answer(token, offset),
        }
        Ok(Vec::new())
    }

    fn take_part(&self, token: &[u8], number: u16, text: &[u8]) -> Answer<()> {
        let mut all = self.requests.parts.lock();
        if all.len() >= PARTED_MAX && !all.contains_key(token) {
            // Whoever never began makes room.
            all.clear();
        }
        let parts = all.entry(token.to_vec()).or_default();
        if parts.values().map(Vec::len).sum::<usize>() + text.len() > PARTS_BYTES_MAX {
            all.remove(token);
            return Err(Errno::INVAL);
        }
        parts.insert(number, text.to_vec());
        Ok(())
    }

    /// Waits for the answer of a request and gives some of it; it is kept until its end was given, or others need the room.
    fn give_answer(&self, token: &[u8], offset: usize) -> Answer<Vec<u8>> {
        let mut answers = self.requests.answers.lock();
        loop {
            match answers.get(token) {
                None => return Err(Errno::NODATA),
                Some(None) => self.requests.answered.wait(&mut answers),
                Some(Some(answer)) if offset < answer.len() => return Ok(answer[offset..answer.len().min(offset + SLICE_BYTES)].to_vec()),
                Some(Some(_)) => {
                    answers.remove(token);
                    return Ok(Vec::new());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_requests_are_taken_apart() {
        assert_eq!(asked(b"7.1+12+{\"a+b=@\"}"), Some((&b"7.1"[..], Asked::Part(12, b"{\"a+b=@\"}"))));
        assert_eq!(asked(b"7.1="), Some((&b"7.1"[..], Asked::Begin)));
        assert_eq!(asked(b"7.1@61440"), Some((&b"7.1"[..], Asked::Answer(61440))));
        for wrong in [&b"7.1"[..], b"7.1=x", b"7.1@", b"7.1@-1", b"7.1+", b"7.1+1", b"7.1+x+y", b"7.1+70000+y", b"\xff"] {
            assert_eq!(asked(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
