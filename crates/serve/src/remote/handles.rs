//! What the kernel has open, by the number that it was given.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fuse::errno::{Answer, Errno};

/// Things by numbers that are given once.
#[derive(Debug)]
pub(super) struct Handles<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    open: HashMap<u64, Arc<T>>,
    last: u64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { open: HashMap::new(), last: 0 }) }
    }
}

impl<T> Handles<T> {
    pub(super) fn insert(&self, value: T) -> u64 {
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Arc::new(value));
        number
    }

    pub(super) fn get(&self, number: u64) -> Answer<Arc<T>> {
        self.table.lock().open.get(&number).map(Arc::clone).ok_or(Errno::BADF)
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.table.lock().open.remove(&number)
    }

    /// Takes all.
    pub(super) fn drain(&self) -> Vec<Arc<T>> {
        self.table.lock().open.drain().map(|(_, value)| value).collect()
    }
}
