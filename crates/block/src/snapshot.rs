//! The content of a device at one instant, shared until it changes.
//!
//! A radix tree of 4 KiB pages behind `Arc`: a clone is one reference, a change copies the page and
//! the few nodes above it. Crash tests make tens of thousands of images a minute from it.

use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const FAN_BITS: u32 = 5;
const FAN_OUT: usize = 1 << FAN_BITS;
const _: () = assert!(
    PAGE_BYTES.is_power_of_two() && FAN_BITS > 0,
    "a page has a path of bits from the root"
);

#[derive(Clone)]
enum Node {
    Inner(Box<[Option<Arc<Node>>; FAN_OUT]>),
    Page(Box<[u8]>),
}

/// The content of a device at one instant. Cloning takes constant time; holes read as zeros.
#[derive(Clone)]
pub struct Snapshot {
    root: Option<Arc<Node>>,
    /// Levels of inner nodes above the pages.
    levels: u32,
    size_bytes: u64,
}

impl Snapshot {
    /// Makes the content of a device that was never written.
    #[must_use]
    pub fn empty(size_bytes: u64) -> Self {
        let pages = size_bytes.div_ceil(PAGE_BYTES as u64).max(1);
        let bits = u64::BITS - (pages - 1).leading_zeros();
        Self { root: None, levels: bits.div_ceil(FAN_BITS), size_bytes }
    }

    /// Makes the content of a device that holds the same byte everywhere. Takes constant time and
    /// memory: all its pages are one.
    #[must_use]
    pub fn filled(size_bytes: u64, byte: u8) -> Self {
        let mut content = Self::empty(size_bytes);
        let mut node = Arc::new(Node::Page(vec![byte; PAGE_BYTES].into_boxed_slice()));
        for _ in 0..content.levels {
            node =
                Arc::new(Node::Inner(Box::new(std::array::from_fn(|_| Some(Arc::clone(&node))))));
        }
        content.root = Some(node);
        content
    }

    /// Returns the size of the device in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `buf` from `offset`, which need not be aligned.
    ///
    /// # Panics
    /// When the range passes the end.
    pub fn read(&self, mut buf: &mut [u8], offset: u64) {
        self.assert_holds(offset, buf.len() as u64);
        for (page, byte, len) in pieces(offset, buf.len() as u64) {
            let (part, rest) = buf.split_at_mut(len);
            match self.page(page) {
                Some(bytes) => part.copy_from_slice(&bytes[byte..byte + len]),
                None => part.fill(0),
            }
            buf = rest;
        }
    }

    /// Writes all of `buf` at `offset`, which need not be aligned.
    ///
    /// # Panics
    /// When the range passes the end.
    pub fn write(&mut self, mut buf: &[u8], offset: u64) {
        self.assert_holds(offset, buf.len() as u64);
        for (page, byte, len) in pieces(offset, buf.len() as u64) {
            let (part, rest) = buf.split_at(len);
            self.page_mut(page)[byte..byte + len].copy_from_slice(part);
            buf = rest;
        }
    }

    /// Zeroes a range and gives whole pages back, in time that does not depend on the length of
    /// holes.
    ///
    /// # Panics
    /// When the range passes the end.
    pub fn clear(&mut self, offset: u64, len: u64) {
        self.assert_holds(offset, len);
        let page = PAGE_BYTES as u64;
        let (first_whole, end_whole) = (offset.div_ceil(page), (offset + len) / page);
        if first_whole >= end_whole {
            return self.clear_bytes(offset, len);
        }
        self.clear_bytes(offset, first_whole * page - offset);
        clear_pages(&mut self.root, self.levels, first_whole, end_whole);
        self.clear_bytes(end_whole * page, offset + len - end_whole * page);
    }

    /// Returns the first byte at which two contents differ.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        if self.size_bytes != other.size_bytes {
            return Some(self.size_bytes.min(other.size_bytes));
        }
        difference(self.root.as_ref(), other.root.as_ref(), self.levels, 0)
    }

    /// Returns the pages that are not shared with an older content of the same size, as ranges of
    /// bytes: all that differs, and what was written over with the same bytes.
    #[must_use]
    pub fn pages_not_shared(&self, older: &Self) -> Vec<Range<u64>> {
        let mut pages = Vec::new();
        not_shared(self.root.as_ref(), older.root.as_ref(), self.levels, 0, &mut pages);
        let page = PAGE_BYTES as u64;
        pages
            .into_iter()
            .map(|number| number * page..((number + 1) * page).min(self.size_bytes))
            .collect()
    }

    fn assert_holds(&self, offset: u64, len: u64) {
        assert!(
            offset <= self.size_bytes && len <= self.size_bytes - offset,
            "{len} bytes at {offset} pass the end of the content"
        );
    }

    fn clear_bytes(&mut self, offset: u64, len: u64) {
        for (page, byte, len) in pieces(offset, len) {
            if self.page(page).is_some() {
                self.page_mut(page)[byte..byte + len].fill(0);
            }
        }
    }

    fn page(&self, page: u64) -> Option<&[u8]> {
        let mut node = self.root.as_deref()?;
        for level in (0..self.levels).rev() {
            let Node::Inner(children) = node else {
                unreachable!("pages lie below the last level")
            };
            node = children[child(page, level)].as_deref()?;
        }
        let Node::Page(bytes) = node else { unreachable!("only pages lie below the last level") };
        Some(bytes)
    }

    fn page_mut(&mut self, page: u64) -> &mut [u8] {
        let mut slot = &mut self.root;
        for level in (0..self.levels).rev() {
            let node = slot.get_or_insert_with(|| Arc::new(Node::Inner(Default::default())));
            let Node::Inner(children) = Arc::make_mut(node) else {
                unreachable!("pages lie below the last level")
            };
            slot = &mut children[child(page, level)];
        }
        let node = slot
            .get_or_insert_with(|| Arc::new(Node::Page(vec![0; PAGE_BYTES].into_boxed_slice())));
        let Node::Page(bytes) = Arc::make_mut(node) else {
            unreachable!("only pages lie below the last level")
        };
        bytes
    }
}

fn child(page: u64, level: u32) -> usize {
    (page >> (level * FAN_BITS)) as usize % FAN_OUT
}

/// Drops the pages `first..end`, counted from the first page below `slot`.
fn clear_pages(slot: &mut Option<Arc<Node>>, levels: u32, first: u64, end: u64) {
    let below = 1_u64 << (levels * FAN_BITS);
    if first == 0 && end >= below {
        *slot = None;
        return;
    }
    let Some(node) = slot else { return };
    let Node::Inner(children) = Arc::make_mut(node) else {
        unreachable!("a page is covered or not")
    };
    let span = below >> FAN_BITS;
    for (index, child) in children.iter_mut().enumerate() {
        let start = index as u64 * span;
        let (from, to) = (first.max(start), end.min(start + span));
        if from < to {
            clear_pages(child, levels - 1, from - start, to - start);
        }
    }
}

fn difference(
    left: Option<&Arc<Node>>,
    right: Option<&Arc<Node>>,
    levels: u32,
    first_page: u64,
) -> Option<u64> {
    match (left.map(|node| &**node), right.map(|node| &**node)) {
        (None, None) => None,
        (Some(left), Some(right)) if std::ptr::eq(left, right) => None,
        (Some(Node::Page(left)), Some(Node::Page(right))) => {
            byte_difference(left, right, first_page)
        }
        (Some(Node::Page(bytes)), None) | (None, Some(Node::Page(bytes))) => {
            byte_difference(bytes, &[0; PAGE_BYTES], first_page)
        }
        (left, right) => (0..FAN_OUT).find_map(|index| {
            let first = first_page + ((index as u64) << ((levels - 1) * FAN_BITS));
            difference(child_of(left, index), child_of(right, index), levels - 1, first)
        }),
    }
}

fn not_shared(
    left: Option<&Arc<Node>>,
    right: Option<&Arc<Node>>,
    levels: u32,
    first_page: u64,
    pages: &mut Vec<u64>,
) {
    match (left, right) {
        (None, None) => {}
        (Some(left), Some(right)) if Arc::ptr_eq(left, right) => {}
        _ if levels == 0 => pages.push(first_page),
        (left, right) => {
            for index in 0..FAN_OUT {
                let first = first_page + ((index as u64) << ((levels - 1) * FAN_BITS));
                not_shared(
                    child_of(left.map(|node| &**node), index),
                    child_of(right.map(|node| &**node), index),
                    levels - 1,
                    first,
                    pages,
                );
            }
        }
    }
}

fn child_of(node: Option<&Node>, index: usize) -> Option<&Arc<Node>> {
    match node {
        Some(Node::Inner(children)) => children[index].as_ref(),
        Some(Node::Page(_)) | None => None,
    }
}

fn byte_difference(left: &[u8], right: &[u8], page: u64) -> Option<u64> {
    left.iter()
        .zip(right)
        .position(|(l, r)| l != r)
        .map(|byte| page * PAGE_BYTES as u64 + byte as u64)
}

/// Splits a range into pieces that each lie within one page: page, byte in the page, length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    const PAGE: u64 = PAGE_BYTES as u64;
    let end = offset + len;
    let starts = std::iter::successors(Some(offset), |at| Some((at / PAGE + 1) * PAGE))
        .take_while(move |at| *at < end);
    starts
        .map(move |at| (at / PAGE, (at % PAGE) as usize, (end - at).min(PAGE - at % PAGE) as usize))
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} bytes)", self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 40 * PAGE_BYTES + 512;

    proptest! {
        #[test]
        fn behaves_as_a_plain_array_and_older_clones_stay(changes in prop::collection::vec((0..SIZE, 0..3 * PAGE_BYTES, any::<Option<u8>>()), 1..24)) {
            let (mut model, mut content) = (vec![0_u8; SIZE], Snapshot::empty(SIZE as u64));
            let mut clones = Vec::new();
            for (offset, len, fill) in changes {
                clones.push((content.clone(), model.clone()));
                let len = len.min(SIZE - offset);
                model[offset..offset + len].fill(fill.unwrap_or(0));
                match fill {
                    Some(byte) => content.write(&vec![byte; len], offset as u64),
                    None => content.clear(offset as u64, len as u64),
                }
            }
            clones.push((content.clone(), model.clone()));
            for (clone, then) in &clones {
                let mut bytes = vec![1; SIZE];
                clone.read(&mut bytes, 0);
                prop_assert!(bytes == *then);
                let expected = then.iter().zip(&model).position(|(l, r)| l != r).map(|at| at as u64);
                prop_assert_eq!(clone.first_difference(&content), expected);
            }
        }
    }

    #[test]
    fn a_filled_content_is_the_same_everywhere_until_it_is_changed() {
        let (mut content, mut model) = (Snapshot::filled(SIZE as u64, 7), vec![7_u8; SIZE]);
        content.write(&[1; 5000], 3000);
        model[3000..8000].fill(1);
        content.clear(20_000, 9000);
        model[20_000..29_000].fill(0);
        let mut bytes = vec![0; SIZE];
        content.read(&mut bytes, 0);
        assert!(bytes == model);
        assert_eq!(content.first_difference(&Snapshot::filled(SIZE as u64, 7)), Some(3000));
    }

    #[test]
    fn pages_that_were_written_are_not_shared() {
        let before = Snapshot::filled(SIZE as u64, 7);
        let mut content = before.clone();
        assert_eq!(content.pages_not_shared(&before), []);
        content.write(&[7; 10], 4090);
        content.clear(SIZE as u64 - 512, 512);
        assert_eq!(
            content.pages_not_shared(&before),
            [0..4096, 4096..8192, SIZE as u64 - 512..SIZE as u64]
        );
    }

    #[test]
    fn a_huge_hole_is_cleared_at_once() {
        let mut content = Snapshot::empty(100 << 40);
        content.write(&[1; 512], 70 << 40);
        content.clear(512, (100 << 40) - 1024);
        assert_eq!(content.first_difference(&Snapshot::empty(100 << 40)), None);
    }
}
