//! A connection, as the client behind it matters: which client's locks its requests stand under.
//!
//! A client says on each of its connections which client it is, before anything else. Its locks are
//! taken from it only after all these connections have ended and none of their requests is under way.
//! So what comes from it afterwards comes over a new connection, on which it has learned that first.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::locks::SessionId;
use super::tree::Attached;

/// A connection.
#[derive(Debug)]
pub struct Link {
    pub peer: IpAddr,
    bound: Mutex<Option<Bound>>,
    /// Shared by requests under way; whether no more are taken.
    has_ended: RwLock<bool>,
}

/// A connection's client, on one mount.
#[derive(Debug, Clone)]
pub struct Bound {
    pub client: SessionId,
    pub name: Vec<u8>,
    /// The mount that the client's locks are of.
    pub mount: u64,
    live: Weak<Attached>,
}

impl Link {
    pub fn new(peer: IpAddr) -> Arc<Self> {
        Arc::new(Self { peer, bound: Mutex::default(), has_ended: RwLock::new(false) })
    }

    /// Begins a request; `None` where none is taken any more.
    pub fn begin(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(self.has_ended.read()).filter(|has_ended| !**has_ended)
    }

    /// Ends it: waits for requests under way, and takes no more.
    fn end(&self) {
        *self.has_ended.write() = true;
    }

    pub fn bound(&self) -> Option<Bound> {
        self.bound.lock().clone()
    }

    /// Returns the mount that the client's locks are of.
    pub fn mount(&self) -> Option<u64> {
        self.bound.lock().as_ref().map(|bound| bound.mount)
    }

    /// Makes it a connection of a client. Returns the client's state; nothing where it is one
    /// already.
    pub fn bind(
        &self,
        live: &Arc<Attached>,
        client: SessionId,
        name: &[u8],
    ) -> std::io::Result<Option<u32>> {
        let mut bound = self.bound.lock();
        if bound.is_some() {
            return Ok(None);
        }
        let state = live.locks.join(client)?;
        let live_weak = Arc::downgrade(live);
        *bound = Some(Bound { client, name: name.to_vec(), mount: live.number, live: live_weak });
        Ok(Some(state))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(bound) = self.bound.get_mut()
            && let Some(live) = bound.live.upgrade()
        {
            live.locks.leave(bound.client);
        }
    }
}

/// The connections of clients, by their places.
#[derive(Debug, Default)]
pub struct Links(Mutex<HashMap<(SessionId, u32), Weak<Link>>>);

impl Links {
    /// Puts a connection in its place. What stood there has ended then: a request that the client
    /// has made again is not carried out once more behind it.
    pub fn put(&self, link: &Arc<Link>, client: SessionId, place: u32) {
        let mut links = self.0.lock();
        links.retain(|_, link| link.strong_count() > 0);
        let before = links.insert((client, place), Arc::downgrade(link));
        drop(links);
        if let Some(before) = before.and_then(|link| link.upgrade())
            && !Arc::ptr_eq(&before, link)
        {
            before.end();
        }
    }
}
