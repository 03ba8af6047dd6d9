//! How the devices of a volume are kept in a file: what is not zero, compressed.
//!
//! ```text
//! zlib of: number of devices u32, then of each
//!     name (length u16, UTF-8), size u64, number of runs u32
//!     runs: offset u64, length u32, bytes
//! ```

use std::sync::Arc;

use bedplate::{AlignedBuf, BlockDevice, MemoryDevice};

/// What is zero throughout a piece of so many bytes is not kept.
const PIECE_BYTES: usize = 512;

/// A device with the name that it is kept under.
pub type Named = (String, Arc<dyn BlockDevice>);

/// Returns everything that a device holds.
pub fn content(device: &Arc<dyn BlockDevice>) -> Vec<u8> {
    let mut all = AlignedBuf::zeroed(device.size_bytes() as usize);
    device.read_at(&mut all, 0).expect("a device in memory is read");
    all.to_vec()
}

/// Returns a device in memory that holds these bytes.
pub fn device_of(content: &[u8]) -> Arc<dyn BlockDevice> {
    let device = MemoryDevice::new(content.len() as u64);
    device.write_at(&AlignedBuf::from_slice(content), 0).expect("a device in memory is written");
    device
}

/// Returns copies that share nothing with the devices.
pub fn copies(devices: &[Named]) -> Vec<Named> {
    devices.iter().map(|(name, device)| (name.clone(), device_of(&content(device)))).collect()
}

/// Packs devices into the bytes of a file.
#[allow(dead_code, reason = "the test only reads what the example packed")]
pub fn pack(devices: &[Named]) -> Vec<u8> {
    let mut out = (devices.len() as u32).to_le_bytes().to_vec();
    for (name, device) in devices {
        let all = content(device);
        let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
        for (at, piece) in all.chunks(PIECE_BYTES).enumerate() {
            let at = at * PIECE_BYTES;
            match runs.last_mut() {
                _ if piece.iter().all(|byte| *byte == 0) => {}
                Some((start, run)) if *start + run.len() == at => run.extend(piece),
                _ => runs.push((at, piece.to_vec())),
            }
        }
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(name.bytes());
        out.extend((all.len() as u64).to_le_bytes());
        out.extend((runs.len() as u32).to_le_bytes());
        for (at, run) in runs {
            out.extend((at as u64).to_le_bytes());
            out.extend((run.len() as u32).to_le_bytes());
            out.extend(run);
        }
    }
    miniz_oxide::deflate::compress_to_vec_zlib(&out, 10)
}

/// Unpacks what [`pack`] packed.
#[allow(dead_code, reason = "the example only packs")]
pub fn unpack(packed: &[u8]) -> Vec<Named> {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed).expect("a kept file is whole");
    let mut rest = &bytes[..];
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at(len);
        rest = left;
        taken
    };
    let count = u32::from_le_bytes(take(4).try_into().unwrap());
    let mut devices = Vec::new();
    for _ in 0..count {
        let len = u16::from_le_bytes(take(2).try_into().unwrap());
        let name = String::from_utf8(take(len.into()).to_vec()).unwrap();
        let size = u64::from_le_bytes(take(8).try_into().unwrap());
        let mut all = vec![0; size as usize];
        for _ in 0..u32::from_le_bytes(take(4).try_into().unwrap()) {
            let at = u64::from_le_bytes(take(8).try_into().unwrap()) as usize;
            let len = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            all[at..at + len].copy_from_slice(take(len));
        }
        devices.push((name, device_of(&all)));
    }
    devices
}
