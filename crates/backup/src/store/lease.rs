//! Claims of a bucket: objects below `claims/`, because nothing there can be locked.
//!
//! ```text
//!   put claims/KIND.ID ─► list claims/ ─► one that excludes this one, and is alive? ─ yes ─► remove own, busy
//!                                                    │ no
//!      put again every minute, by a task ◄───────────┘
//! ```
//!
//! A command first puts its claim and then lists all claims; a claim that was put is listed. So of
//! two that exclude each other at least one sees the other. A claim that was not put again for
//! [`ALIVE`] by the store's clock is dead: its command was killed. A command that could not renew
//! its own for a shorter time does nothing more that relies on it.
//!
//! - I-LEASE-1: nothing is removed, and no backup is added, later than [`TRUSTED`] after the claim
//!   was put last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::ObjectStoreExt;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::objects::Bucket;
use crate::error::{Error, ErrorKind, Result};
use crate::store::CLAIMS;

/// How often a claim is put again.
const RENEWED: Duration = Duration::from_secs(60);
/// How long its command relies on it; what it began then has ended when the claim dies, because no
/// request is repeated for as long as that.
const TRUSTED: Duration = Duration::from_secs(5 * 60);
/// How long others take it for alive.
const ALIVE: Duration = Duration::from_secs(10 * 60);

// A claim is renewed long before its command distrusts it, and distrusted before others bury it.
const _: () = assert!(2 * RENEWED.as_secs() < TRUSTED.as_secs());
const _: () = assert!(TRUSTED.as_secs() < ALIVE.as_secs());

/// What a command has left, when it distrusts its claim, until others take that for dead.
pub const GRACE_SECONDS: u64 = ALIVE.as_secs() - TRUSTED.as_secs();

/// A claim; dropping it gives it up.
pub struct Lease {
    bucket: Arc<Bucket>,
    runtime: Arc<Runtime>,
    key: String,
    /// When it was put last, in milliseconds.
    put_ms: Arc<AtomicU64>,
    renewal: AbortHandle,
}

/// Milliseconds of a clock that cannot be set, and that goes on while the machine sleeps.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

fn trusted(put_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(put_ms) < TRUSTED.as_millis() as u64
}

impl Lease {
    /// Claims the bucket: `alone`, or beside other claims that are not exclusive.
    pub fn take(bucket: Arc<Bucket>, runtime: Arc<Runtime>, alone: bool) -> Result<Self> {
        Self::take_among(bucket, runtime, alone, ALIVE)
    }

    /// As [`take`](Self::take), among claims that are dead when they were not put again for
    /// `alive`.
    fn take_among(
        bucket: Arc<Bucket>,
        runtime: Arc<Runtime>,
        alone: bool,
        alive: Duration,
    ) -> Result<Self> {
        let kind = if alone { "alone" } else { "shared" };
        let key = format!("{CLAIMS}/{kind}.{}", uuid::Uuid::new_v4());
        let (put_ms, begun) = (Arc::new(AtomicU64::new(0)), now_ms());
        runtime.block_on(bucket.put(&key, Vec::new()))?;
        put_ms.store(begun, Ordering::SeqCst);
        let renewal = runtime
            .spawn(renew(Arc::clone(&bucket), key.clone(), Arc::clone(&put_ms)))
            .abort_handle();
        let lease = Self { bucket, runtime, key, put_ms, renewal };
        // Dropped on the way out, it is given up.
        lease.look(alone, alive)?;
        Ok(lease)
    }

    /// Refuses to go on beside claims that exclude this one; removes dead ones.
    fn look(&self, alone: bool, alive: Duration) -> Result<()> {
        let own = self.bucket.path(&self.key)?;
        let claims = self.runtime.block_on(self.bucket.list(CLAIMS))?;
        let Some(now) =
            claims.iter().find(|claim| claim.location == own).map(|claim| claim.last_modified)
        else {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{} does not list what was put there a moment ago: it cannot hold backups",
                    self.bucket.url
                ),
            ));
        };
        for claim in claims.iter().filter(|claim| claim.location != own) {
            let age = (now - claim.last_modified).to_std().unwrap_or_default();
            if age > alive {
                // Another process may have removed it first.
                let _gone = self.runtime.block_on(self.bucket.store.delete(&claim.location));
            } else if alone
                || claim.location.filename().is_some_and(|name| name.starts_with("alone."))
            {
                let left = (alive - age).as_secs().div_ceil(60);
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "{} is in use by another backup command: wait for its end or, if it was \
                         killed, {left} minutes",
                        self.bucket.url
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Checks that no excluded claim has been put meanwhile.
    pub fn need(&self) -> Result<()> {
        // I-LEASE-1: what is done next is done while the claim is trusted.
        if trusted(self.put_ms.load(Ordering::SeqCst), now_ms()) {
            return Ok(());
        }
        let message = format!(
            "the claim of {} could not be renewed for {} minutes: repeat the command",
            self.bucket.url,
            TRUSTED.as_secs() / 60
        );
        Err(Error::new(ErrorKind::Busy, message))
    }
}

async fn renew(bucket: Arc<Bucket>, key: String, put_ms: Arc<AtomicU64>) {
    loop {
        tokio::time::sleep(RENEWED).await;
        let begun = now_ms();
        // Once it was not renewed in time it may count as dead, and others may have come: it stays
        // as it is.
        if !trusted(put_ms.load(Ordering::SeqCst), begun) {
            return;
        }
        if bucket.put(&key, Vec::new()).await.is_ok() {
            put_ms.store(begun, Ordering::SeqCst);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
        let Ok(path) = self.bucket.path(&self.key) else { return };
        if let Err(error) = self.runtime.block_on(self.bucket.store.delete(&path)) {
            tracing::warn!(
                "{}/{} could not be removed and dies by itself: {error}",
                self.bucket.url,
                self.key
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::store::objects::Objects;

    /// S-101, I-LEASE-1: a claim that was not renewed is not relied on, long before others take it
    /// for dead.
    #[test]
    fn an_old_claim_is_not_relied_on() {
        assert!(trusted(1000, 1000) && trusted(1000, 300_999) && !trusted(1000, 301_000));
        assert!(TRUSTED + 2 * RENEWED + Duration::from_secs(120) < ALIVE);
        let objects =
            Objects::over(Bucket::new("memory://".to_owned(), Box::new(InMemory::new()), ""))
                .unwrap();
        let lease = Lease::take(Arc::clone(&objects.bucket), objects.runtime(), false).unwrap();
        assert!(lease.need().is_ok());
        lease.put_ms.store(now_ms() - 400_000, Ordering::SeqCst);
        assert_eq!(lease.need().unwrap_err().kind, ErrorKind::Busy);
    }

    /// S-101: the claim of a killed command expires, and is removed.
    #[test]
    fn a_dead_claim_is_taken_away() {
        let objects =
            Objects::over(Bucket::new("memory://".to_owned(), Box::new(InMemory::new()), ""))
                .unwrap();
        let take =
            |alive| Lease::take_among(Arc::clone(&objects.bucket), objects.runtime(), true, alive);
        let killed = take(ALIVE).unwrap();
        killed.renewal.abort();
        std::mem::forget(killed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(take(ALIVE).err().map(|failure| failure.kind), Some(ErrorKind::Busy));
        drop(take(Duration::from_millis(10)).unwrap());
        assert!(objects.runtime().block_on(objects.bucket.list(CLAIMS)).unwrap().is_empty());
        assert!(take(ALIVE).is_ok());
    }

    /// S-101
    #[test]
    fn claims_exclude_each_other_until_they_are_given_up() {
        let objects = Objects::over(Bucket::new(
            "memory://".to_owned(),
            Box::new(InMemory::new()),
            "deep/prefix",
        ))
        .unwrap();
        let take = |alone| Lease::take(Arc::clone(&objects.bucket), objects.runtime(), alone);
        let (one, two) = (take(false).unwrap(), take(false).unwrap());
        assert_eq!(take(true).err().map(|failure| failure.kind), Some(ErrorKind::Busy));
        drop(one);
        assert!(take(true).is_err(), "one is left");
        drop(two);
        let alone = take(true).unwrap();
        assert!(take(false).is_err() && take(true).is_err());
        drop(alone);
        assert!(take(false).is_ok(), "a refused one leaves nothing behind");
    }
}
