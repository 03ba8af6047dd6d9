//! Requests about checkpoints and tunables that come as extended attributes of the root ([`crate::control`]).
//!
//! They are carried out in a line of their own (`lines.rs`): the kernel keeps the root locked while it sets an attribute, and after a rollback it must be told
//! to forget. Nor does an event thread wait for an answer: whatever reads one that is not there yet is answered by the job, when it is.
//!
//! | name | set | read |
//! | --- | --- | --- |
//! | `request.TOKEN` | begins the request that the value holds | |
//! | `request.TOKEN+N+TEXT` | | part N of a request, for a read-only mount, of which the kernel lets no attributes be set; empty |
//! | `request.TOKEN=` | | begins the request that the parts hold; empty |
//! | `request.TOKEN@OFFSET` | | waits for the answer and gives some of it from a byte on; its end is empty, and then it is forgotten |
//!
//! What a request may change does not depend on how it came: the file system of a read-only mount changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::aliases::suffixed;
use super::errno::{Answer, Errno};
use super::names::Caller;
use super::shared::Shared;
use crate::control::{self, Changed, Request};

/// The attribute's name behind its prefix, up to the token.
pub(super) const REQUEST: &[u8] = b"request.";

/// How many requests may be under way or wait to be fetched, and how many readers may wait for the answer of one.
const WAITING_MAX: usize = 64;
const READERS_MAX: usize = 64;
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 64;

/// How many bytes of parts one request may have, and how many requests may come in parts at once.
const PARTS_BYTES_MAX: usize = 64 << 10;
const PARTED_MAX: usize = 16;
/// How many bytes of an answer are given at once: an attribute has 64 KiB at most.
const SLICE_BYTES: usize = 60 << 10;

/// The caller's name for a request.
type Token = Vec<u8>;
/// What gets some of an answer, from a byte on.
type Reader = (usize, Box<dyn FnOnce(Answer<Vec<u8>>) + Send>);

/// How far a request is.
enum Progress {
    /// It is carried out; these read its answer already.
    Running(Vec<Reader>),
    /// Its answer, as JSON.
    Answered(Arc<Vec<u8>>),
}
/// Parts of a request by their numbers.
type Parts = BTreeMap<u16, Vec<u8>>;

/// Requests by token.
#[derive(Default)]
pub(super) struct Requests {
    progress: Mutex<HashMap<Token, Progress>>,
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
    pub(super) fn take_request(
        self: &Arc<Self>,
        caller: Caller,
        token: &[u8],
        value: &[u8],
    ) -> Answer<()> {
        self.need_manager(caller)?;
        let request: Request = serde_json::from_slice(value).map_err(|_| Errno::INVAL)?;
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let mut progress = self.requests.progress.lock();
        if progress.len() >= WAITING_MAX {
            // Answers that were never fetched make room.
            progress.retain(|_, progress| matches!(progress, Progress::Running(_)));
        }
        if progress.len() >= WAITING_MAX || progress.contains_key(token) {
            return Err(Errno::AGAIN);
        }
        progress.insert(token.to_vec(), Progress::Running(Vec::new()));
        drop(progress);
        let token = token.to_vec();
        self.run_control(move |shared| shared.carry_out(&token, &request));
        Ok(())
    }

    fn carry_out(&self, token: &[u8], request: &Request) {
        let answer = self.run("request", || Ok(self.answer_to(request))).unwrap_or_else(|_| {
            let message =
                "a broken invariant was found: unmount, mount again to recover, and run a check";
            control::Answer::Failed("Io".into(), message.into())
        });
        if matches!(request, Request::Tune(_)) {
            self.widen_read_ahead();
        }
        let answer = Arc::new(serde_json::to_vec(&answer).unwrap_or_default());
        let before =
            self.requests.progress.lock().insert(token.to_vec(), Progress::Answered(answer));
        if let Some(Progress::Running(readers)) = before {
            readers
                .into_iter()
                .for_each(|(offset, reader)| self.give_answer(token, offset, reader));
        }
    }

    fn answer_to(&self, request: &Request) -> control::Answer {
        match request {
            Request::Mount { name, dir } => self.mount_checkpoint(name, dir).map_or_else(
                |error| control::Answer::Failed(format!("{:?}", error.kind), error.message),
                |dir| control::Answer::Done(serde_json::json!({ "mounted": dir })),
            ),
            _ => control::Answer::of(control::answer(&self.fs, request).map(|(value, changed)| {
                self.forget_changed(&changed);
                value
            })),
        }
    }

    /// Makes the kernel forget what a request changed.
    fn forget_changed(&self, changed: &Changed) {
        for (dir, name) in &changed.names {
            self.kernel.drop_name(*dir, OsStr::from_bytes(name));
            if !self.aliases.are_none() {
                suffixed(name).for_each(|name| self.kernel.drop_name(*dir, &name));
            }
        }
        // Before the pages: of those that are dirty beyond the end none may be written any more.
        self.tell_sizes(&changed.inodes);
        for ino in &changed.inodes {
            self.kernel.drop_pages(*ino, 0, 0);
        }
    }

    /// Answers what is read of a request by a name.
    pub(super) fn request_value(
        self: &Arc<Self>,
        caller: Caller,
        name: &[u8],
        answer: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        let asked = self.need_manager(caller).and(asked(name).ok_or(Errno::NODATA));
        match asked {
            Ok((token, Asked::Answer(offset))) => self.give_answer(token, offset, Box::new(answer)),
            Ok((token, Asked::Part(number, text))) => answer(
                self.run("getxattr", || self.take_part(token, number, text).map(|()| Vec::new())),
            ),
            Ok((token, Asked::Begin)) => answer(
                self.run("getxattr", || self.begin_parted(caller, token).map(|()| Vec::new())),
            ),
            Err(errno) => answer(Err(errno)),
        }
    }

    /// Begins the request that the parts hold.
    fn begin_parted(self: &Arc<Self>, caller: Caller, token: &[u8]) -> Answer<()> {
        let parts = self.requests.parts.lock().remove(token).ok_or(Errno::NODATA)?;
        self.take_request(caller, token, &parts.into_values().flatten().collect::<Vec<_>>())
    }

    fn take_part(&self, token: &[u8], number: u16, text: &[u8]) -> Answer<()> {
        let mut all = self.requests.parts.lock();
        if all.len() >= PARTED_MAX && !all.contains_key(token) {
            // Requests that never began make room.
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

    /// Gives some of the answer of a request, once it is there; the answer is kept until its end was given, or others need the room.
    fn give_answer(
        &self,
        token: &[u8],
        offset: usize,
        reader: Box<dyn FnOnce(Answer<Vec<u8>>) + Send>,
    ) {
        let mut all = self.requests.progress.lock();
        let some = match all.get_mut(token) {
            None => Err(Errno::NODATA),
            Some(Progress::Running(readers)) if readers.len() < READERS_MAX => {
                return readers.push((offset, reader));
            }
            Some(Progress::Running(_)) => Err(Errno::AGAIN),
            Some(Progress::Answered(answer)) if offset < answer.len() => {
                Ok(answer[offset..answer.len().min(offset + SLICE_BYTES)].to_vec())
            }
            Some(Progress::Answered(_)) => {
                all.remove(token);
                Ok(Vec::new())
            }
        };
        drop(all);
        reader(some);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_requests_are_taken_apart() {
        assert_eq!(
            asked(b"7.1+12+{\"a+b=@\"}"),
            Some((&b"7.1"[..], Asked::Part(12, b"{\"a+b=@\"}")))
        );
        assert_eq!(asked(b"7.1="), Some((&b"7.1"[..], Asked::Begin)));
        assert_eq!(asked(b"7.1@61440"), Some((&b"7.1"[..], Asked::Answer(61440))));
        for wrong in [
            &b"7.1"[..],
            b"7.1=x",
            b"7.1@",
            b"7.1@-1",
            b"7.1+",
            b"7.1+1",
            b"7.1+x+y",
            b"7.1+70000+y",
            b"\xff",
        ] {
            assert_eq!(asked(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
