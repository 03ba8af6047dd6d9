//! Log writes and records whose checksums are right.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice, Snapshot};
use bedplate_fs::forge;

use crate::checked::Watch;

/// Bytes of a ring.
const RING_BYTES: usize = 1 << 20;
const SECTOR: usize = 512;
/// The volume that the log writes belong to.
const VOLUME: [u8; 16] = [7; 16];

/// Decodes records.
pub fn records(data: &[u8]) {
    forge::decode_log_records(data);
}

/// Replays a ring. A sector that begins with `B` is the header of a log write of the right volume
/// at the right place.
pub fn ring(data: &[u8]) {
    let mut ring = data[..data.len().min(RING_BYTES)].to_vec();
    for at in (0..ring.len()).step_by(SECTOR) {
        if ring[at] == b'B' && ring.len() >= at + 56 {
            ring[at..at + 8].copy_from_slice(b"BEDPLOGW");
            ring[at + 16..at + 32].copy_from_slice(&VOLUME);
            ring[at + 48..at + 56].copy_from_slice(&(at as u64).to_le_bytes());
        }
    }
    let mut snapshot = Snapshot::empty(RING_BYTES as u64);
    snapshot.write(&ring, 0);
    let checked = Watch::over(&snapshot, Vec::new());
    let device: Arc<dyn BlockDevice> = checked.clone();
    if let Err(error) = forge::replay_ring(&device, VOLUME) {
        assert!(error.message.len() > 10, "{error:?} explains nothing");
    }
    checked.assert_obeyed();
}

/// Decodes the head of a log device.
pub fn head(data: &[u8]) {
    let mut snapshot = Snapshot::empty(RING_BYTES as u64);
    snapshot.write(&data[..data.len().min(4096)], 0);
    let device: Arc<dyn BlockDevice> =
        MemoryDevice::from_snapshot(&snapshot, MemoryDevice::GEOMETRY);
    forge::decode_log_head(&device);
}
