//! A device of which a few ranges alone can be written (I-ADO-2).

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{
    BlockDevice, DeviceCall, Error, ErrorKind, Hook, HookedDevice, Result as DeviceResult,
};

/// Refuses writes outside of the ranges.
#[derive(Debug)]
pub(crate) struct Fence {
    name: String,
    /// In order and apart.
    open: Vec<Range<u64>>,
}

/// Puts a fence before a device; `open` may be written.
pub(crate) fn fenced(
    device: Arc<dyn BlockDevice>,
    open: &[Range<u64>],
) -> Arc<HookedDevice<Fence>> {
    let mut open = open.to_vec();
    open.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in open {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    let name = device.name().to_owned();
    HookedDevice::new(device, Fence { name, open: joined })
}

impl Hook for Fence {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let changed = match call {
            DeviceCall::Write { offset, bytes } => Some((offset, bytes.len() as u64)),
            DeviceCall::WriteZeroes { offset, len } | DeviceCall::Discard { offset, len } => {
                Some((offset, len))
            }
            DeviceCall::Read { .. } | DeviceCall::Flush => None,
        };
        let lies_within = |(offset, len): (u64, u64)| {
            self.open.iter().any(|range| range.start <= offset && offset + len <= range.end)
        };
        if changed.is_none_or(lies_within) {
            return pass();
        }
        Err(Error {
            kind: ErrorKind::ReadOnly,
            operation: call.operation(),
            device: self.name.clone(),
            offset: changed.map(|(offset, _)| offset),
            detail: "I-ADO-2: this belongs to the old file system, which is not to be changed \
                     before the commit"
                .to_owned(),
            errno: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use bedplate_block::{AlignedBuf, MemoryDevice};

    use super::*;

    /// I-ADO-2
    #[test]
    fn i_ado_2_nothing_outside_of_the_ranges_is_written() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(1 << 20);
        let fence = fenced(Arc::clone(&device), &[8192..12288, 4096..8192, 65536..69632]);
        let bytes = AlignedBuf::from_slice(&[1; 8192]);
        fence.write_at(&bytes, 4096).unwrap();
        fence.write_at(&bytes[..4096], 65536).unwrap();
        for offset in [0, 8192, 61440, 65536, 69632] {
            let error = fence.write_at(&bytes, offset).unwrap_err();
            assert_eq!(error.kind, ErrorKind::ReadOnly, "I-ADO-2: byte {offset}");
            assert!(fence.write_zeroes(offset, 8192).is_err(), "I-ADO-2: byte {offset}");
            assert!(fence.discard(offset, 8192).is_err(), "I-ADO-2: byte {offset}");
        }
        let mut all = AlignedBuf::zeroed(1 << 20);
        fence.read_at(&mut all, 0).unwrap();
        assert_eq!(all.iter().filter(|byte| **byte == 1).count(), 12288);
    }
}
