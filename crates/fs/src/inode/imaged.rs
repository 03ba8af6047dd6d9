//! Which extent rows of a file have an image in the newest checkpoint that holds it, so that a
//! redirected write need not ask the tables for each.

use std::collections::HashSet;

use crate::Epoch;

/// No more keys than this are remembered; beyond it the tables are asked.
const KEYS_MAX: usize = 1 << 20;

/// The file blocks whose rows changed since the newest checkpoint that holds the file was made.
/// Changed under the map's write lock.
#[derive(Debug, Default)]
pub(crate) struct Imaged {
    /// That checkpoint, 0 for none; `None` before the first look.
    held: Option<Epoch>,
    /// Nothing is missing among the keys.
    complete: bool,
    keys: HashSet<u64>,
}

impl Imaged {
    /// Takes over which checkpoint is the newest that holds the file. Every record of the file's
    /// extents comes after a call of this: a checkpoint newer than the one known was made since the
    /// last of them, and has no image of the file yet. An older one has got those of one that was
    /// deleted.
    pub(crate) fn follow(&mut self, held: Epoch) {
        if self.held != Some(held) {
            self.complete = self.held.is_some_and(|before| before < held);
            self.held = Some(held);
            self.keys = HashSet::new();
        }
    }

    pub(crate) fn note(&mut self, keys: impl Iterator<Item = u64>) {
        if self.complete {
            self.keys.extend(keys);
            self.complete = self.keys.len() <= KEYS_MAX;
        }
    }

    /// Returns the newest checkpoint that holds the file, as of the last call of
    /// [`follow`](Self::follow).
    pub(crate) fn held(&self) -> Epoch {
        self.held.unwrap_or_default()
    }

    /// Returns whether the row of a file block has an image; `None` where that is not known.
    pub(crate) fn has_image(&self, key: u64) -> Option<bool> {
        self.complete.then(|| self.keys.contains(&key))
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
