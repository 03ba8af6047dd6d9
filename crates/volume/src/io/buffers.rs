//! Buffers that are used again.
//!
//! What is dealt out to members, or summed up, passes through buffers of our own. A fresh one costs
//! more than what is done with it: the system hands its pages out one by one and each is filled
//! with zeros first.

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Mutex, rank};

/// The smallest buffer; the others are a power of two times as long.
const SMALLEST: usize = 4096;
/// How many lengths there are: up to 8 MiB.
const CLASSES: usize = 12;
/// How many bytes of each length are kept.
const KEPT_BYTES: usize = 4 << 20;
const _: () = assert!(
    SMALLEST.is_power_of_two() && KEPT_BYTES >= SMALLEST,
    "lengths are powers of two, and the smallest is kept"
);

/// The idle buffers of a volume.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// By length. A leaf lock.
    classes: Mutex<[Vec<AlignedBuf>; CLASSES], { rank::VOLUME_LEAF }>,
}

impl Buffers {
    /// Returns a buffer of `len` bytes or more. What is in it may be anything.
    pub fn take(&self, len: usize) -> AlignedBuf {
        let Some(class) = class_of(len) else { return AlignedBuf::zeroed(len) };
        let kept = self.classes.lock()[class].pop();
        debug_assert!(len <= SMALLEST << class, "a buffer of class {class} holds {len} bytes");
        kept.unwrap_or_else(|| AlignedBuf::zeroed(SMALLEST << class))
    }

    /// Takes a buffer back.
    pub fn give(&self, buf: AlignedBuf) {
        if let Some(class) = class_of(buf.len()).filter(|class| buf.len() == SMALLEST << class) {
            let mut classes = self.classes.lock();
            if classes[class].len() <= KEPT_BYTES / buf.len() {
                classes[class].push(buf);
            }
        }
    }
}

/// Returns the length of buffer that holds so many bytes, as a power of two of the smallest; none
/// for nothing and for more than there is.
fn class_of(len: usize) -> Option<usize> {
    let class = len.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize;
    (len > 0 && class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_and_only_so_many_are_kept() {
        let buffers = Buffers::default();
        let mut buf = buffers.take(5000);
        assert_eq!(buf.len(), 8192);
        buf[0] = 7;
        buffers.give(buf);
        assert_eq!((buffers.take(4097)[0], buffers.take(8192)[0]), (7, 0));
        assert_eq!(
            (buffers.take(0).len(), buffers.take(1).len(), buffers.take((8 << 20) + 1).len()),
            (0, 4096, (8 << 20) + 1)
        );
        for _ in 0..5 {
            buffers.give(AlignedBuf::zeroed(8 << 20));
            buffers.give(AlignedBuf::zeroed(4 << 20));
            buffers.give(AlignedBuf::zeroed(5000));
        }
        let kept: Vec<usize> = buffers.classes.lock().iter().map(Vec::len).collect();
        assert_eq!(kept, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]);
    }
}
