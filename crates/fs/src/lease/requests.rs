//! Asynchronous requests of processes with leases: I/O that no thread waits for.
//!
//! - I-LEA-8: a file that was taken back is touched only when no request on it is in flight, of any
//!   process, whether that lives or not. The kernel says so and not the process: it has counted as
//!   many ends as there were begun, or it has taken the memory of the process apart, which it does
//!   after the last of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_lease::Holder;
use bedplate_store::{PlantedBug, planted};

use super::client::LeaseClient;
use super::{Leases, Wait};

/// What the kernel says of the asynchronous requests of a process.
pub trait LeaseRequests: Send + Sync {
    /// Returns how many have ended by now, or fewer.
    fn ended(&self) -> u64;

    /// Returns whether none can be in flight: the memory that the process had when it began its
    /// requests is gone.
    fn is_over(&self) -> bool;
}

/// As long as it exists, a process begins no requests.
struct Pause<'a>(&'a LeaseClient);

impl<'a> Pause<'a> {
    fn of(client: &'a LeaseClient) -> Self {
        client.slots.pause();
        Self(client)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.slots.resume();
    }
}

impl LeaseClient {
    /// Says what counts the ends of this process's requests, which begins none before; at most once.
    pub fn set_requests(&self, requests: impl LeaseRequests + 'static) {
        let is_first = self.requests.set(Box::new(requests)).is_ok();
        debug_assert!(is_first, "I-LEA-8: the requests of a process are counted in one place");
    }

    /// Returns whether asynchronous requests of the process may be in flight. A process that has
    /// ended may have left some behind.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        let Some(requests) = self.requests.get() else { return false };
        self.slots.has_requests(|| requests.ended()) && !requests.is_over()
    }

    /// The same of requests on one file, or on any.
    fn has_requests_on(&self, entry: Option<u32>) -> bool {
        entry.is_none_or(|entry| self.slots.may_have_requests(entry)) && self.has_requests()
    }
}

impl Leases {
    /// Waits until no request on a file that is revoked, or on any, is in flight. No slot holds it.
    pub(super) fn drain_requests(
        &self,
        clients: &[Arc<LeaseClient>],
        entry: Option<u32>,
        wait: &mut Wait<'_>,
        help: &mut dyn FnMut(),
    ) {
        if planted(PlantedBug::LeaseRequestsNotDrained) {
            return;
        }
        for client in clients {
            if client.has_requests_on(entry) {
                self.request_waits.fetch_add(1, Ordering::Relaxed);
                let _pause = Pause::of(client);
                let entry_seen = entry.unwrap_or(u32::MAX);
                let holder =
                    Holder { slot: usize::MAX, thread: 0, entry: entry_seen, writes: true };
                while client.has_requests_on(entry) {
                    wait.step(client, &holder, help);
                }
            }
            // The process notes a write when it collects it: what it has not collected is noted here.
            if let Some(entry) = entry.filter(|&entry| client.slots.may_have_requests(entry)) {
                client.slots.touch(entry);
            }
        }
    }
}
