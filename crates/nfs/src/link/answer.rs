//! What becomes of a call, for the thread or the task that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
struct Cell<T> {
    state: Mutex<(Option<T>, Option<Waker>)>,
    here: Condvar,
}

/// A call's result that is to come: waited for by a thread, or as a future by any executor.
///
/// Dropped, it does not end the call.
#[derive(Debug)]
pub struct Answer<T>(Arc<Cell<T>>);

/// The other end of an [`Answer`].
#[derive(Debug)]
pub struct Promise<T>(Arc<Cell<T>>);

/// Makes both ends.
pub fn promise<T>() -> (Promise<T>, Answer<T>) {
    let cell = Arc::new(Cell { state: Mutex::new((None, None)), here: Condvar::new() });
    (Promise(Arc::clone(&cell)), Answer(cell))
}

impl<T> Promise<T> {
    /// Tells the result.
    pub fn keep(self, value: T) {
        let waker = {
            let mut state = self.0.state.lock();
            state.0 = Some(value);
            state.1.take()
        };
        self.0.here.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Answer<T> {
    /// Waits for the result. Every call is told one: an answer, or why there is none.
    #[must_use]
    pub fn wait(self) -> T {
        let mut state = self.0.state.lock();
        loop {
            match state.0.take() {
                Some(value) => return value,
                None => self.0.here.wait(&mut state),
            }
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.state.lock();
        match state.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
