//! What was found right where copies are unlike and may not be made alike: while a group is only
//! looked at. Plain reads take it from here, so that whatever was judged by its checksum is what is
//! read afterwards, as if the copies had been written over (S-38).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::sync::{Mutex, rank};

/// Blocks by their address in the volume.
#[derive(Debug, Default)]
pub(crate) struct ChosenBlocks {
    any: AtomicBool,
    /// A leaf. Each has the length that all are kept in.
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>, { rank::VOLUME_LEAF }>,
}

impl ChosenBlocks {
    /// Returns whether there are any.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Keeps a block; one that is kept already is as right, and goes.
    pub fn keep(&self, address: u64, block: &[u8]) {
        let mut blocks = self.blocks.lock();
        debug_assert!(
            address.is_multiple_of(block.len() as u64)
                && blocks.values().next().is_none_or(|other| other.len() == block.len()),
            "blocks are kept in one length: {} bytes at {address}",
            block.len()
        );
        blocks.insert(address, block.into());
        self.any.store(true, Ordering::Release);
    }

    /// Puts the blocks that lie in a range over what was read of it, whole blocks from `address` on.
    pub fn overlay(&self, buf: &mut [u8], address: u64) {
        let end = address + buf.len() as u64;
        for (at, block) in self.blocks.lock().range(address..end) {
            let from = (at - address) as usize;
            buf[from..from + block.len()].copy_from_slice(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_38_what_was_found_right_lies_over_what_is_read() {
        let chosen = ChosenBlocks::default();
        assert!(!chosen.any());
        chosen.keep(1024, &[7; 512]);
        chosen.keep(2048, &[8; 512]);
        chosen.keep(2048, &[9; 512]);
        let mut buf = [1; 1024];
        chosen.overlay(&mut buf, 512);
        assert!(chosen.any() && buf[..512] == [1; 512] && buf[512..] == [7; 512]);
        chosen.overlay(&mut buf, 2048);
        assert!(buf[..512] == [9; 512] && buf[512..] == [7; 512]);
        chosen.overlay(&mut buf, 8192);
        assert!(buf[..512] == [9; 512], "nothing lies there");
    }
}
