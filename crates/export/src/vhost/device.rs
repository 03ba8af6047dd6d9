//! The disk as a guest sees it: features and configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};

use super::request::{RANGE_SECTORS_MAX, RANGES_MAX, SECTOR_BYTES, Serial, Terms};
use crate::buffers::{Budget, CONNECTION_BYTES_MAX};
use crate::{Disk, Error, Result};

/// Buffers of one request that a driver is told of: with a header and a status they fit into the
/// queue that QEMU and others make.
const SEG_MAX: u32 = 126;
/// The longest of them: together they stay below the largest request.
const SIZE_MAX: u32 = 256 << 10;
/// What all queues of a guest may hold together.
const ALL_BYTES_MAX: usize = 4 * CONNECTION_BYTES_MAX;
/// As much of the configuration as the protocol carries; all beyond what is known is zero.
const CONFIG_BYTES: usize = 256;
/// What devices and file systems write in one, and what partitions are aligned to.
const PHYSICAL_BYTES: u32 = 4096;

/// A disk, and what its guest has agreed on.
#[derive(Debug)]
pub struct Device {
    pub disk: Arc<dyn Disk>,
    pub terms: Terms,
    pub budget: Arc<Budget>,
    queues_max: u16,
    /// Writes are durable once they are answered, as a guest without flushes needs it.
    through: AtomicBool,
}

impl Device {
    /// Makes a device of a disk as large as it is now.
    pub fn new(disk: &Arc<dyn Disk>, serial: Serial, queues_max: u16) -> Result<Self> {
        let size_bytes = disk.size_bytes()? / SECTOR_BYTES * SECTOR_BYTES;
        Ok(Self {
            terms: Terms { size_bytes, read_only: disk.is_read_only(), serial },
            disk: Arc::clone(disk),
            budget: Budget::new(ALL_BYTES_MAX),
            queues_max,
            through: AtomicBool::new(true),
        })
    }

    /// Returns the features of virtio that are offered.
    pub fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_MQ,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_F_VERSION_1,
        ];
        match self.terms.read_only {
            true => bits.push(VIRTIO_BLK_F_RO),
            false => bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]),
        }
        bits.into_iter().map(|bit| 1 << bit).sum()
    }

    /// Takes what the guest chose of them.
    pub fn choose(&self, features: u64) {
        self.through.store(features & (1 << VIRTIO_BLK_F_FLUSH) == 0, SeqCst);
    }

    /// Returns whether writes are durable once they are answered.
    pub fn writes_through(&self) -> bool {
        self.through.load(SeqCst)
    }

    /// Returns the configuration: the fields of `struct virtio_blk_config`.
    pub fn config(&self) -> [u8; CONFIG_BYTES] {
        let preferred = self.disk.preferred_bytes().max(PHYSICAL_BYTES);
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.terms.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SIZE_MAX.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &(SECTOR_BYTES as u32).to_le_bytes());
        let sectors = PHYSICAL_BYTES / SECTOR_BYTES as u32;
        put(24, &[sectors.ilog2() as u8, 0]);
        put(26, &(sectors as u16).to_le_bytes());
        put(28, &(preferred / SECTOR_BYTES as u32).to_le_bytes());
        put(34, &self.queues_max.to_le_bytes());
        if !self.terms.read_only {
            put(36, &RANGE_SECTORS_MAX.to_le_bytes());
            put(40, &(RANGES_MAX as u32).to_le_bytes());
            put(44, &sectors.to_le_bytes());
            put(48, &RANGE_SECTORS_MAX.to_le_bytes());
            put(52, &(RANGES_MAX as u32).to_le_bytes());
            put(56, &[1]);
        }
        config
    }
}

/// Makes a serial number of a text.
///
/// # Errors
/// `Usage` where it is longer than virtio carries, or holds what is no printable ASCII.
pub fn serial(text: &str) -> Result<Serial> {
    let mut serial = Serial::default();
    let fits = text.len() <= serial.len() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !fits {
        return Err(Error::Usage(format!(
            "the serial number '{}' is not one of at most {} printable ASCII characters: choose \
             such a one",
            text.escape_debug(),
            serial.len()
        )));
    }
    serial[..text.len()].copy_from_slice(text.as_bytes());
    Ok(serial)
}
