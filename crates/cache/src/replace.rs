//! Which page leaves when room is needed: S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues
//! are all you need for cache eviction", SOSP 2023).
//!
//! ```text
//!   new ──► small (a tenth) ──touched twice──► main ──touched──► back to its head, once for each touch (up to 3)
//!              │  ├ read ahead and not yet used ──► back to the head of small, once; then gone
//!              │  └ else ──► ghost (names only) ──asked for again──► main        └ else ──► gone
//!              └─ a page that is dirty or being written is pinned: in neither queue, back to the head of its own when clean
//! ```
//!
//! A table scan passes through `small` and leaves the hot set in `main` alone. A touch is one
//! relaxed store under the shard's *shared* lock: nothing moves on a hit. The paper counts every
//! request; a reader that takes a page in small steps would then look like many readers. So an
//! access that begins where the last access of that page ended counts as the same touch (the
//! *correlated reference* of LRU-K and 2Q), whatever else happens in between.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// No frame.
pub(super) const NONE: u32 = u32::MAX;

const FREQUENCY_MAX: u8 = 3;
/// Touches in `small` (beyond the first use) that bring a page to `main`.
const TOUCHES_TO_STAY: u8 = 2;
const _: () =
    assert!(TOUCHES_TO_STAY <= FREQUENCY_MAX, "a page can be touched often enough to stay");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Place {
    /// Free, or pinned by its owner.
    #[default]
    Out,
    Small,
    Main,
}

/// What the replacement knows of one frame.
#[derive(Debug)]
pub(super) struct Node {
    prev: u32,
    next: u32,
    place: Place,
    /// Where a pinned frame goes back to.
    home: Place,
    touches: AtomicU8,
    /// Read ahead, and let through `small` once more because it had not been read yet.
    spared: bool,
    /// Offset within the page at which the last access ended.
    cursor: AtomicU32,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            prev: NONE,
            next: NONE,
            place: Place::Out,
            home: Place::Out,
            touches: AtomicU8::new(0),
            spared: false,
            cursor: AtomicU32::new(0),
        }
    }
}

impl Node {
    /// Notes an access of bytes `start..end` of the page.
    #[inline]
    pub(super) fn touch(&self, start: usize, end: usize) {
        if self.cursor.load(Relaxed) != start as u32 {
            let touches = self.touches.load(Relaxed);
            if touches < FREQUENCY_MAX {
                self.touches.store(touches + 1, Relaxed);
            }
        }
        self.cursor.store(end as u32, Relaxed);
    }

    /// Notes uses by other processes.
    pub(super) fn used(&mut self, times: u8) {
        let touches = self.touches.get_mut();
        *touches = touches.saturating_add(times).min(FREQUENCY_MAX);
    }

    /// Returns whether the page would outlive a scan also without its last use, which may have been
    /// the scan's.
    pub(super) fn is_hot(&self) -> bool {
        let touches = self.touches.load(Relaxed).saturating_sub(1);
        touches >= TOUCHES_TO_STAY || (self.place == Place::Main && touches > 0)
    }

    /// Returns whether the page was read ahead and not used.
    fn is_unused(&mut self) -> bool {
        *self.touches.get_mut() == 0 && *self.cursor.get_mut() == 0
    }
}

/// Frames that carry a [`Node`].
pub(super) trait Nodes {
    fn node(&self, frame: u32) -> &Node;
    fn node_mut(&mut self, frame: u32) -> &mut Node;
    /// A hash of the name of the page in the frame.
    fn name_hash(&self, frame: u32) -> u64;
    /// Has the node of a frame hear of uses that are noted elsewhere.
    fn note_uses(&mut self, frame: u32);
}

#[derive(Debug)]
struct Fifo {
    head: u32,
    tail: u32,
    len: usize,
}

impl Fifo {
    const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    fn push(&mut self, nodes: &mut impl Nodes, frame: u32) {
        let old = self.head;
        let node = nodes.node_mut(frame);
        (node.prev, node.next) = (NONE, old);
        if old == NONE {
            self.tail = frame;
        } else {
            nodes.node_mut(old).prev = frame;
        }
        self.head = frame;
        self.len += 1;
    }

    /// A node that stands in the queue has got another number.
    fn renumbered(&mut self, nodes: &mut impl Nodes, frame: u32) {
        let (prev, next) = (nodes.node(frame).prev, nodes.node(frame).next);
        if prev == NONE {
            self.head = frame;
        } else {
            nodes.node_mut(prev).next = frame;
        }
        if next == NONE {
            self.tail = frame;
        } else {
            nodes.node_mut(next).prev = frame;
        }
    }

    fn unlink(&mut self, nodes: &mut impl Nodes, frame: u32) {
        let (prev, next) = (nodes.node(frame).prev, nodes.node(frame).next);
        if prev == NONE {
            self.head = next;
        } else {
            nodes.node_mut(prev).next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            nodes.node_mut(next).prev = prev;
        }
        self.len -= 1;
    }
}

#[derive(Debug)]
pub(super) struct Replacer {
    small: Fifo,
    main: Fifo,
    small_target: usize,
    ghost: Ghost,
}

impl Replacer {
    /// For `frames` frames at most.
    pub(super) fn new(frames: usize) -> Self {
        let small_target = (frames / 10).max(1);
        Self {
            small: Fifo::EMPTY,
            main: Fifo::EMPTY,
            small_target,
            ghost: Ghost::new(frames - small_target.min(frames - 1)),
        }
    }

    /// Goes over to another number of frames. What left is forgotten: it left a cache of another
    /// size.
    pub(super) fn resize(&mut self, frames: usize) {
        let Self { small_target, ghost, .. } = Self::new(frames);
        (self.small_target, self.ghost) = (small_target, ghost);
    }

    /// What was known of a frame stands in another one now.
    pub(super) fn moved(&mut self, nodes: &mut impl Nodes, to: u32) {
        match nodes.node(to).place {
            Place::Small => self.small.renumbered(nodes, to),
            Place::Main => self.main.renumbered(nodes, to),
            Place::Out => {}
        }
    }

    /// Takes a frame in whose name has just been set. `first_use` is the range of the page that it
    /// was fetched for (empty: read ahead).
    pub(super) fn admit(&mut self, nodes: &mut impl Nodes, frame: u32, first_use_end: usize) {
        let home =
            if self.ghost.recall(nodes.name_hash(frame)) { Place::Main } else { Place::Small };
        let node = nodes.node_mut(frame);
        node.touches = AtomicU8::new(0);
        node.spared = false;
        node.cursor = AtomicU32::new(first_use_end as u32);
        self.enter(nodes, frame, home);
    }

    fn enter(&mut self, nodes: &mut impl Nodes, frame: u32, place: Place) {
        assert_eq!(
            nodes.node(frame).place,
            Place::Out,
            "I-CACHE-7: a frame is in one queue at most"
        );
        nodes.node_mut(frame).place = place;
        match place {
            Place::Small => self.small.push(nodes, frame),
            Place::Main => self.main.push(nodes, frame),
            Place::Out => {}
        }
    }

    /// Takes a frame out of its queue; remembers which.
    pub(super) fn pin(&mut self, nodes: &mut impl Nodes, frame: u32) {
        let place = std::mem::take(&mut nodes.node_mut(frame).place);
        match place {
            Place::Small => self.small.unlink(nodes, frame),
            Place::Main => self.main.unlink(nodes, frame),
            Place::Out => return,
        }
        nodes.node_mut(frame).home = place;
    }

    /// Puts a pinned frame back.
    pub(super) fn unpin(&mut self, nodes: &mut impl Nodes, frame: u32) {
        let home = nodes.node(frame).home;
        self.enter(nodes, frame, home);
    }

    /// Chooses a frame to empty and takes it out; `None` when all are pinned.
    pub(super) fn evict(&mut self, nodes: &mut impl Nodes) -> Option<u32> {
        loop {
            if self.small.len > self.small_target || self.main.len == 0 {
                let frame = self.small.tail;
                if frame == NONE {
                    return None;
                }
                self.pin(nodes, frame);
                nodes.note_uses(frame);
                let node = nodes.node_mut(frame);
                if node.is_unused() {
                    // A page about to be read is worth more than one that was read once. And it is
                    // no page that was asked for: it leaves no name behind that would bring it to
                    // `main` when the reader does come.
                    if std::mem::replace(&mut node.spared, true) {
                        return Some(frame);
                    }
                    self.enter(nodes, frame, Place::Small);
                    continue;
                }
                if *node.touches.get_mut() < TOUCHES_TO_STAY {
                    self.ghost.remember(nodes.name_hash(frame));
                    return Some(frame);
                }
                *nodes.node_mut(frame).touches.get_mut() = 0;
                self.enter(nodes, frame, Place::Main);
            } else {
                let frame = self.main.tail;
                self.pin(nodes, frame);
                nodes.note_uses(frame);
                let touches = nodes.node_mut(frame).touches.get_mut();
                if *touches == 0 {
                    return Some(frame);
                }
                *touches -= 1;
                self.enter(nodes, frame, Place::Main);
            }
        }
    }
}

/// Names of pages that left `small` not long ago: a fingerprint and the time of leaving, in buckets
/// of four, so that it costs 8 bytes a page and no list.
#[derive(Debug)]
struct Ghost {
    buckets: Box<[[GhostEntry; 4]]>,
    /// Pages remembered so far, wrapping.
    clock: u32,
    /// How many younger names a name survives.
    reach: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct GhostEntry {
    /// 0: none.
    fingerprint: u32,
    at: u32,
}

impl Ghost {
    fn new(reach: usize) -> Self {
        let buckets = reach.div_ceil(3).next_power_of_two();
        Self {
            buckets: vec![[GhostEntry::default(); 4]; buckets].into_boxed_slice(),
            clock: 0,
            reach: reach as u32,
        }
    }

    fn split(&self, hash: u64) -> (usize, u32) {
        (hash as usize & (self.buckets.len() - 1), (hash >> 32) as u32 | 1)
    }

    fn remember(&mut self, hash: u64) {
        let (bucket, fingerprint) = self.split(hash);
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let age =
            |e: &GhostEntry| if e.fingerprint == 0 { u32::MAX } else { clock.wrapping_sub(e.at) };
        let oldest = self.buckets[bucket]
            .iter_mut()
            .max_by_key(|e| age(e))
            .expect("a bucket has four entries");
        *oldest = GhostEntry { fingerprint, at: clock };
    }

    /// Returns whether the name is remembered, and forgets it.
    fn recall(&mut self, hash: u64) -> bool {
        let (bucket, fingerprint) = self.split(hash);
        let (clock, reach) = (self.clock, self.reach);
        let found = self.buckets[bucket]
            .iter_mut()
            .find(|e| e.fingerprint == fingerprint && clock.wrapping_sub(e.at) < reach);
        found.map(|e| e.fingerprint = 0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Frames(Vec<(u64, Node)>);

    impl Nodes for Frames {
        fn note_uses(&mut self, _: u32) {}
        fn node(&self, frame: u32) -> &Node {
            &self.0[frame as usize].1
        }
        fn node_mut(&mut self, frame: u32) -> &mut Node {
            &mut self.0[frame as usize].1
        }
        fn name_hash(&self, frame: u32) -> u64 {
            self.0[frame as usize]
                .0
                .wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        }
    }

    fn full(frames: u32) -> (Replacer, Frames) {
        let mut nodes = Frames((0..frames).map(|i| (u64::from(i), Node::default())).collect());
        let mut replacer = Replacer::new(frames as usize);
        (0..frames).for_each(|f| replacer.admit(&mut nodes, f, 4096));
        (replacer, nodes)
    }

    #[test]
    fn untouched_pages_leave_in_order() {
        let (mut replacer, mut nodes) = full(20);
        let left: Vec<_> = (0..20).map(|_| replacer.evict(&mut nodes).expect("a frame")).collect();
        assert_eq!(left, (0..20).collect::<Vec<_>>());
        assert_eq!(replacer.evict(&mut nodes), None);
    }

    #[test]
    fn a_page_touched_twice_outlives_a_scan() {
        let (mut replacer, mut nodes) = full(20);
        nodes.node(3).touch(0, 4096);
        nodes.node(3).touch(0, 4096);
        for name in 100..200 {
            let frame = replacer.evict(&mut nodes).expect("a frame");
            assert_ne!(frame, 3, "the scan evicted the hot page");
            nodes.0[frame as usize].0 = name;
            replacer.admit(&mut nodes, frame, 4096);
        }
    }

    #[test]
    fn small_steps_through_a_page_are_one_touch() {
        let (_, nodes) = full(1);
        let node = nodes.node(0);
        for pass in 1..=2 {
            (0..4096).for_each(|at| node.touch(at, at + 1));
            assert_eq!(node.touches.load(Relaxed), pass);
        }
    }

    #[test]
    fn a_page_asked_for_again_soon_goes_to_main() {
        let (mut replacer, mut nodes) = full(20);
        let frame = replacer.evict(&mut nodes).expect("a frame");
        replacer.admit(&mut nodes, frame, 4096);
        assert_eq!(nodes.node(frame).place, Place::Main);
    }

    #[test]
    fn a_page_read_ahead_outlives_one_that_was_read_once_and_leaves_no_name() {
        let (mut replacer, mut nodes) = full(20);
        for frame in 0..3 {
            assert_eq!(replacer.evict(&mut nodes), Some(frame));
            nodes.0[frame as usize].0 = u64::from(100 + frame);
            replacer.admit(&mut nodes, frame, 0);
        }
        let left: Vec<_> = (0..20).map(|_| replacer.evict(&mut nodes).expect("a frame")).collect();
        assert_eq!(left, (3..20).chain(0..3).collect::<Vec<_>>());
        replacer.admit(&mut nodes, 0, 4096);
        replacer.admit(&mut nodes, 3, 4096);
        assert_eq!((nodes.node(0).place, nodes.node(3).place), (Place::Small, Place::Main));
    }

    /// I-CACHE-7
    #[test]
    fn pinned_pages_are_not_chosen_and_come_back() {
        let (mut replacer, mut nodes) = full(4);
        (0..4).for_each(|f| replacer.pin(&mut nodes, f));
        assert_eq!(replacer.evict(&mut nodes), None);
        replacer.unpin(&mut nodes, 2);
        assert_eq!(replacer.evict(&mut nodes), Some(2));
    }
}
