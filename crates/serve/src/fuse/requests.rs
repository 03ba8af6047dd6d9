//! Requests about checkpoints and tunables that come as extended attributes of the root ([`crate::control`]).
//!
//! They are carried out by workers: the kernel keeps the root locked while it sets an attribute, and after a rollback it must be told to forget.

use std::collections::HashMap;
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

/// Requests by token; `None` while one is carried out.
#[derive(Default)]
pub(super) struct Requests {
    answers: Mutex<HashMap<Vec<u8>, Option<Vec<u8>>>>,
    answered: Condvar,
}

impl Shared {
    /// Begins a request.
    pub(super) fn take_request(self: &Arc<Self>, caller: Caller, token: &[u8], value: &[u8]) -> Answer<()> {
        if caller.uid != 0 && caller.uid != rustix::process::getuid().as_raw() {
            return Err(Errno::PERM);
        }
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
        self.requests.answers.lock().insert(token, Some(answer));
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

    /// Waits for the answer of a request. It is kept until others need the room: the kernel may ask twice, for the size first.
    pub(super) fn give_answer(&self, token: &[u8]) -> Answer<Vec<u8>> {
        let mut answers = self.requests.answers.lock();
        loop {
            match answers.get(token) {
                None => return Err(Errno::NODATA),
                Some(None) => self.requests.answered.wait(&mut answers),
                Some(Some(answer)) => return Ok(answer.clone()),
            }
        }
    }
}
