//! The threads that read requests from `/dev/fuse`.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::channel::Channel;
use crate::message::{Message, Received};
use crate::reply::{Reply, Serve};
use crate::serving::{Ended, join, now_serving};

/// What the names of the threads begin with.
const NAME: &str = "fuse-dev-";

/// The threads of a connection.
#[derive(Debug)]
pub struct Threads {
    threads: Vec<JoinHandle<Ended>>,
}

impl Threads {
    pub(crate) fn start(
        first: &Arc<Channel>,
        count: usize,
        payload_bytes: usize,
        serve: &Serve,
    ) -> io::Result<Self> {
        let mut threads = Vec::new();
        for number in 0..count.max(1) {
            let channel = if number == 0 { Arc::clone(first) } else { another(first) };
            let serve = Arc::clone(serve);
            let thread = move || run(&channel, payload_bytes, &serve);
            threads.push(Builder::new().name(format!("{NAME}{number}")).spawn(thread)?);
        }
        Ok(Self { threads })
    }

    /// Waits until the connection has ended.
    ///
    /// # Errors
    /// Of the first thread that ended otherwise.
    pub fn join(self) -> Ended {
        join(self.threads)
    }
}

/// Returns a channel of its own for a thread, or where that is not to be had (it needs the right to
/// open `/dev/fuse`) the one that there is.
fn another(first: &Arc<Channel>) -> Arc<Channel> {
    first.another().map_or_else(
        |error| {
            tracing::debug!("threads share a descriptor of /dev/fuse: {error}");
            Arc::clone(first)
        },
        Arc::new,
    )
}

/// Serves until the connection ends.
fn run(channel: &Arc<Channel>, payload_bytes: usize, serve: &Serve) -> Ended {
    now_serving();
    loop {
        let mut message = Message::new(channel, payload_bytes);
        if message.receive()? == Received::End {
            return Ok(());
        }
        if message.is_last() {
            message.answer(0, 0);
            return Ok(());
        }
        serve(Reply::to_message(message));
    }
}
