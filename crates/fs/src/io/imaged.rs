//! Which extent rows of a file have an image in the newest checkpoint that holds it, so that a redirected write need not ask the tables for each.

use std::collections::HashSet;

use super::Io;
use crate::Epoch;
use crate::checkpoint::{Known, KnownRow};
use crate::extent::{Extent, ExtentChange};

/// No more keys than this are remembered; beyond it the tables are asked.
const KEYS_MAX: usize = 1 << 20;

/// The file blocks whose rows changed since the newest checkpoint that holds the file was made. Changed under the map's write lock.
#[derive(Debug, Default)]
pub(super) struct Imaged {
    /// That checkpoint, 0 for none; `None` before anybody looked.
    held: Option<Epoch>,
    /// Nothing is missing among the keys.
    complete: bool,
    keys: HashSet<u64>,
}

impl Imaged {
    /// Takes over which checkpoint is the newest that holds the file. Every record of the file's extents comes after a call of this: a checkpoint newer
    /// than the one known was made since the last of them, and has no image of the file yet. An older one has got those of one that was deleted.
    fn follow(&mut self, held: Epoch) {
        if self.held != Some(held) {
            self.complete = self.held.is_some_and(|before| before < held);
            self.held = Some(held);
            self.keys = HashSet::new();
        }
    }

    fn note(&mut self, keys: impl Iterator<Item = u64>) {
        if self.complete {
            self.keys.extend(keys);
            self.complete = self.keys.len() <= KEYS_MAX;
        }
    }
}

impl Io<'_> {
    /// Begins to remember: the map was just read. What was known before may be wrong: the rows may have changed below it.
    pub(super) fn begin_imaged(self) {
        let mut imaged = Imaged::default();
        imaged.follow(self.floors().0);
        *self.state().imaged.lock() = imaged;
    }

    /// What is known of rows that are about to change from `old`, and that they have an image from then on. The map's write lock is held.
    pub(super) fn known(self, changes: &[ExtentChange], old: &[Option<Extent>]) -> Known {
        let mut imaged = self.state().imaged.lock();
        imaged.follow(self.floors().0);
        let rows = changes.iter().zip(old).map(|(change, old)| KnownRow {
            old: old.map(super::mapping::encode),
            imaged: imaged.complete.then(|| imaged.keys.contains(&change.at().0)),
        });
        let known = Known { epoch: imaged.held.unwrap_or_default(), rows: rows.collect() };
        imaged.note(changes.iter().map(|change| change.at().0));
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_checkpoint_made_since_is_known_to_have_no_images() {
        let mut imaged = Imaged::default();
        imaged.follow(Epoch(3));
        assert!(!imaged.complete, "who knows what changed since it was made");
        imaged.note([1].into_iter());
        imaged.follow(Epoch(4));
        assert!(imaged.complete && imaged.keys.is_empty());
        imaged.note([1, 2].into_iter());
        imaged.follow(Epoch(4));
        assert!(imaged.keys.contains(&1) && imaged.keys.contains(&2) && !imaged.keys.contains(&3));
        imaged.follow(Epoch(3));
        assert!(!imaged.complete, "it has got the images of the one that was deleted");
        imaged.follow(Epoch(5));
        imaged.note(0..=KEYS_MAX as u64);
        assert!(!imaged.complete, "too many to remember");
    }
}
