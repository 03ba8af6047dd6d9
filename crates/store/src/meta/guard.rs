//! Damaged pages of the tree are errors, also where redb meets them with a panic.
//!
//! redb checks what it reads against checksums only where it repairs or is asked to; a damaged page
//! that it merely reads can break one of its own assertions. Every call into it therefore runs
//! under [`guarded`]. Nothing else does: a panic of ours is a broken invariant and stays one.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::Database;

use crate::{Error, Result};

/// Runs one call into redb; its panic is the tree's damage.
///
/// # Errors
/// What `call` returns; `Corrupt` where it panics. The tree may then be half changed in memory: a
/// write that meets it latches.
pub fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(Error::corrupt(format!("the metadata tree is damaged: {}", text(&*panic))))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it contradicts itself")
}

/// An open tree whose end is guarded too: redb writes when it is closed.
pub struct Tree {
    /// Taken only by the drop.
    database: Option<Database>,
    pub(super) cache_bytes: u64,
}

impl Tree {
    pub(super) fn new(database: Database, cache_bytes: u64) -> Self {
        Self { database: Some(database), cache_bytes }
    }
}

impl Deref for Tree {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.database.as_ref().expect("taken only by the drop")
    }
}

impl DerefMut for Tree {
    fn deref_mut(&mut self) -> &mut Database {
        self.database.as_mut().expect("taken only by the drop")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let database = self.database.take();
        // What closing writes is for a quicker next open only; everything that counts was
        // committed.
        if let Err(error) = guarded(|| {
            drop(database);
            Ok(())
        }) {
            tracing::warn!("closing the metadata tree: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn s_36_a_panic_inside_the_tree_is_corruption() {
        let error = guarded::<()>(|| panic!("page {} is odd", 7)).expect_err("it panicked");
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.ends_with("page 7 is odd"), "{error}");
        assert_eq!(guarded(|| Ok(3)).expect("it did not"), 3);
    }
}
