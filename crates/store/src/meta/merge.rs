//! One ordered view over the tree and the memtables above it.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::ops::ControlFlow;

use crate::Result;
use crate::bytes::Bytes;
use crate::planted::{PlantedBug, planted};

type Overlay<'a> = Peekable<Box<dyn Iterator<Item = (&'a Bytes, &'a Option<Bytes>)> + 'a>>;

/// In which order keys are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// From the least to the greatest.
    Up,
    /// From the greatest to the least.
    Down,
}

impl Walk {
    /// Compares two keys as they come.
    pub(super) fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            Self::Up => one.cmp(other),
            Self::Down => other.cmp(one),
        }
    }

    /// Takes the next item of an iterator.
    pub(super) fn next<I: DoubleEndedIterator>(self, items: &mut I) -> Option<I::Item> {
        match self {
            Self::Up => items.next(),
            Self::Down => items.next_back(),
        }
    }
}

/// Walks keys in order; a layer further up hides the same key below, and its `None` hides it
/// altogether.
pub(super) fn merge(
    walk: Walk,
    mut layers: Vec<Overlay<'_>>,
    mut below: impl FnMut() -> Result<Option<(Vec<u8>, Vec<u8>)>>,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut base = below()?;
    loop {
        let keys = layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| *key));
        let least = keys.min_by(|one, other| walk.compare(one.as_slice(), other.as_slice()));
        let flow = match (least, &base) {
            (None, None) => return Ok(()),
            (Some(key), base_row)
                if base_row
                    .as_ref()
                    .is_none_or(|(base_key, _)| walk.compare(key.as_slice(), base_key).is_le()) =>
            {
                let hides = base_row
                    .as_ref()
                    .is_some_and(|(base_key, _)| base_key.as_slice() == key.as_slice());
                let top = pop(&mut layers, key);
                if hides && !planted(PlantedBug::HiddenRowShown) {
                    base = below()?;
                }
                top.as_ref().map_or(Ok(ControlFlow::Continue(())), |value| visit(key, value))?
            }
            (_, Some((key, value))) => {
                let flow = visit(key, value)?;
                base = below()?;
                flow
            }
            (Some(_), None) => {
                unreachable!("the second arm takes every overlay key when the tree is exhausted")
            }
        };
        if flow.is_break() {
            return Ok(());
        }
    }
}

/// Takes `key` from every layer that has it and returns the topmost value.
fn pop(layers: &mut [Overlay<'_>], key: &[u8]) -> Option<Bytes> {
    debug_assert!(!layers.is_empty(), "I-META-4: a row stands in a layer");
    let mut top = None;
    for layer in layers {
        if let Some((_, value)) = layer.next_if(|(k, _)| k.as_slice() == key)
            && (top.is_none() || planted(PlantedBug::LowestLayerWins))
        {
            top = Some(value.clone());
        }
    }
    top.flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn layer(map: &BTreeMap<Bytes, Option<Bytes>>) -> Overlay<'_> {
        let iter: Box<dyn Iterator<Item = _>> = Box::new(map.iter());
        iter.peekable()
    }

    #[test]
    fn upper_layers_hide_lower_ones() {
        let value = |n: u8| Some(Bytes::from([n]));
        let active = BTreeMap::from([([1].into(), value(11)), ([3].into(), None)]);
        let frozen = BTreeMap::from([
            ([1].into(), value(21)),
            ([3].into(), value(23)),
            ([5].into(), value(25)),
        ]);
        let mut tree =
            [(vec![1], vec![31]), (vec![2], vec![32]), (vec![3], vec![33]), (vec![4], vec![34])]
                .into_iter();
        let mut seen = Vec::new();
        merge(
            Walk::Up,
            vec![layer(&active), layer(&frozen)],
            || Ok(tree.next()),
            |key, value| {
                seen.push((key[0], value[0]));
                Ok(ControlFlow::Continue(()))
            },
        )
        .unwrap();
        assert_eq!(seen, [(1, 11), (2, 32), (4, 34), (5, 25)]);
    }

    #[test]
    fn upper_layers_hide_lower_ones_downwards_too() {
        let value = |n: u8| Some(Bytes::from([n]));
        let active = BTreeMap::from([([1].into(), value(11)), ([3].into(), None)]);
        let frozen = BTreeMap::from([([3].into(), value(23)), ([5].into(), value(25))]);
        let down = |map: &BTreeMap<Bytes, Option<Bytes>>| -> Vec<_> {
            map.iter().rev().map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let (active, frozen) = (down(&active), down(&frozen));
        let layer = |rows: &'static [(Bytes, Option<Bytes>)]| -> Overlay<'static> {
            let iter: Box<dyn Iterator<Item = _>> = Box::new(rows.iter().map(|(k, v)| (k, v)));
            iter.peekable()
        };
        let layers = [active, frozen].map(|rows| layer(Box::leak(rows.into_boxed_slice())));
        let mut tree = [4_u8, 3, 2, 1].map(|key| (vec![key], vec![key + 30])).into_iter();
        let mut seen = Vec::new();
        merge(
            Walk::Down,
            layers.into(),
            || Ok(tree.next()),
            |key, value| {
                seen.push((key[0], value[0]));
                Ok(ControlFlow::Continue(()))
            },
        )
        .unwrap();
        assert_eq!(seen, [(5, 25), (4, 34), (2, 32), (1, 11)]);
    }

    #[test]
    fn a_break_ends_the_walk() {
        let mut tree = [(vec![1], vec![1]), (vec![2], vec![2])].into_iter();
        let mut count = 0;
        merge(
            Walk::Up,
            vec![],
            || Ok(tree.next()),
            |_, _| {
                count += 1;
                Ok(ControlFlow::Break(()))
            },
        )
        .unwrap();
        assert_eq!(count, 1);
    }
}
