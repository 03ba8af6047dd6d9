//! The answer to a request, from whichever thread and by whichever way it came.

use std::sync::Arc;

use crate::message::Message;
use crate::protocol::Request;
use crate::returns::Returns;
use crate::slot::Slot;

/// What serves a request, in any thread.
pub type Serve = Arc<dyn Fn(Reply) + Send + Sync>;

/// The right and duty to answer one request. Dropped without an answer, it answers with `EIO`. What
/// the kernel waits for no answer of is not answered.
#[derive(Debug)]
pub struct Reply {
    /// There until the answer.
    carrier: Option<Carrier>,
}

/// What a request came in.
#[derive(Debug)]
enum Carrier {
    Message(Message),
    Slot(Slot, Arc<Returns>),
}

impl Reply {
    pub(crate) fn to_message(message: Message) -> Self {
        Self { carrier: Some(Carrier::Message(message)) }
    }

    pub(crate) fn to_slot(slot: Slot, returns: &Arc<Returns>) -> Self {
        Self { carrier: Some(Carrier::Slot(slot, Arc::clone(returns))) }
    }

    /// Returns what was asked for.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        match self.carrier.as_ref().expect("it has not been answered") {
            Carrier::Message(message) => message.request(),
            Carrier::Slot(slot, _) => slot.request(),
        }
    }

    /// Returns the memory of the payload, in which an answer is made. What the request says may lie
    /// there too, and is overwritten.
    pub fn payload(&mut self) -> &mut [u8] {
        match self.carrier.as_mut().expect("it has not been answered") {
            Carrier::Message(message) => message.payload(),
            Carrier::Slot(slot, _) => slot.payload(),
        }
    }

    /// Answers with the first `len` bytes of the payload.
    ///
    /// # Panics
    /// When the payload is shorter.
    pub fn send(mut self, len: usize) {
        self.answer(0, len);
    }

    /// Answers with bytes that lie elsewhere, as many as the payload has room for at most.
    ///
    /// # Panics
    /// When there are more.
    pub fn send_bytes(mut self, bytes: &[u8]) {
        match self.carrier.take() {
            Some(Carrier::Message(mut message)) => {
                message.answer_with(bytes);
                message.end();
            }
            Some(Carrier::Slot(mut slot, returns)) => {
                slot.payload()[..bytes.len()].copy_from_slice(bytes);
                slot.answer(0, bytes.len());
                returns.take(slot);
            }
            None => {}
        }
    }

    /// Answers with an error number, positive.
    pub fn refuse(mut self, errno: i32) {
        self.answer(errno, 0);
    }

    fn answer(&mut self, error: i32, len: usize) {
        match self.carrier.take() {
            Some(Carrier::Message(mut message)) => {
                message.answer(error, len);
                message.end();
            }
            Some(Carrier::Slot(mut slot, returns)) => {
                slot.answer(error, len);
                returns.take(slot);
            }
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(libc::EIO, 0);
    }
}
