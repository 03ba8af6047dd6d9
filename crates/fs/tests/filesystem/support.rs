//! Volumes in memory, random numbers from a seed, and a file as a vector of bytes.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice, Geometry, MemoryDevice};
use bedplate_fs::{FileSystem, FormatOptions, IoMode, MountOptions};

/// Random numbers (xorshift*), the same for the same seed everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A memory device with sectors of a size.
pub fn device(size_bytes: u64, sector: u32) -> Arc<dyn BlockDevice> {
    let geometry = Geometry {
        row_bytes: 0,
        logical_block_size: sector,
        physical_block_size: sector.max(4096),
        buffer_align: sector,
        untorn_unit: sector,
        volatile_cache: true,
        read_only: false,
    };
    MemoryDevice::with_geometry(size_bytes, geometry)
}

pub fn format(device: &Arc<dyn BlockDevice>, block_size: u32) {
    FileSystem::format(device, None, &FormatOptions { block_size, ..FormatOptions::default() })
        .expect("an empty device is formatted");
}

pub fn options(mode: IoMode) -> MountOptions {
    MountOptions { mode, sync_interval: Duration::from_secs(3600), ..MountOptions::default() }
}

pub fn mount_as(device: &Arc<dyn BlockDevice>, mode: IoMode) -> FileSystem {
    FileSystem::mount(Arc::clone(device), None, options(mode)).expect("a sound volume mounts")
}

/// A buffer whose address is `skew` bytes past an aligned one.
pub struct Skewed {
    buf: AlignedBuf,
    skew: usize,
}

impl Skewed {
    pub fn new(len: usize, skew: usize) -> Self {
        Self { buf: AlignedBuf::zeroed(len + skew), skew }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.buf[self.skew..]
    }
}
