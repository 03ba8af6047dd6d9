//! The superblock of XFS, in the first sector, and its log, as far as they say whether it was
//! unmounted. Big-endian.

use bedplate_block::{BlockDevice, OldKind};

use super::{COPY_INSTEAD, Old, damaged, read, unsupported};
use crate::error::Result;

/// Incompatible features: it is to be repaired; metadata has directories of its own; zones.
const NEEDS_REPAIR: u32 = 0x10;
const METADIR: u32 = 0x100;
const ZONED: u32 = 0x200;
/// Quotas of any kind are accounted for.
const QUOTA_ACCOUNTS: u16 = 0x1 | 0x8 | 0x40;

const RECORD_MAGIC: u32 = 0xfeed_babe;
/// An operation that says that the file system was unmounted.
const UNMOUNT: u8 = 0x20;
/// Bytes of the log that are looked at together.
const STEP_BYTES: u64 = 1 << 20;
/// The longest log that XFS has.
const LOG_BYTES_MAX: u64 = 2 << 30;

pub(super) fn is_one(head: &[u8]) -> bool {
    head.starts_with(b"XFSB")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn look(device: &dyn BlockDevice, head: &[u8]) -> Result<Old> {
    let name = device.name();
    let no = |what: &str, remedy: &str| Err(unsupported(name, "XFS", what, remedy));
    let (block_size, blocks) = (u32_at(head, 4), u64_at(head, 8));
    if u64_at(head, 16) != 0 {
        return no("has a realtime section, which lies elsewhere", COPY_INSTEAD);
    }
    let sector = u16_at(head, 102);
    if sector != 512 && sector != 4096 {
        return no(&format!("has sectors of {sector} bytes"), COPY_INSTEAD);
    }
    if u16_at(head, 100) & 0xf == 5 {
        let incompatible = u32_at(head, 216);
        if incompatible & NEEDS_REPAIR != 0 {
            let what = "its XFS file system is marked as damaged";
            return Err(damaged(name, what, &format!("run 'xfs_repair {name}' first")));
        }
        if incompatible & (METADIR | ZONED) != 0 {
            return no("has a realtime section or metadata directories", COPY_INSTEAD);
        }
    }
    if u16_at(head, 176) & QUOTA_ACCOUNTS != 0 {
        return no(
            "has quotas, which a volume has not",
            "mount it once with -o noquota, and unmount it",
        );
    }
    let log_at = u64_at(head, 48);
    if log_at == 0 {
        return no("has its log on another device", COPY_INSTEAD);
    }
    let bytes = u64::from(block_size);
    if block_size < super::HEAD_BYTES as u32 {
        // The caller refuses it.
        let (size_bytes, watched) = (u64::MAX, Vec::new());
        return Ok(Old { kind: OldKind::Xfs, block_size, size_bytes, watched });
    }
    let log = log_range(head, log_at, bytes).filter(|log| log.end <= device.size_bytes());
    let Some(log) = log.filter(|log| log.end - log.start <= LOG_BYTES_MAX) else {
        let what = "its XFS file system has a log that lies outside of it";
        return Err(damaged(name, what, &format!("run 'xfs_repair {name}' first")));
    };
    if !was_unmounted(device, &log)? {
        let what = "its XFS file system was not unmounted, and its log is to be replayed";
        return Err(damaged(name, what, "mount it and unmount it first"));
    }
    Ok(Old {
        kind: OldKind::Xfs,
        block_size,
        size_bytes: blocks.saturating_mul(bytes),
        watched: vec![0..super::HEAD_BYTES as u64, log],
    })
}

/// Returns where the log lies: its first block is told by its group and the block there.
fn log_range(head: &[u8], log_at: u64, block: u64) -> Option<std::ops::Range<u64>> {
    let (group_blocks, log_blocks) = (u64::from(u32_at(head, 84)), u64::from(u32_at(head, 96)));
    let shift = u32::from(head[124]);
    let (group, within) = (log_at.checked_shr(shift)?, log_at & (1_u64.checked_shl(shift)? - 1));
    let first = group.checked_mul(group_blocks)?.checked_add(within)?;
    let start = first.checked_mul(block)?;
    let end = log_blocks.checked_mul(block)?.checked_add(start)?;
    (start < end && (start | end).is_multiple_of(super::HEAD_BYTES as u64)).then_some(start..end)
}

/// Returns whether the last record of the log says that the file system was unmounted.
fn was_unmounted(device: &dyn BlockDevice, log: &std::ops::Range<u64>) -> Result<bool> {
    const SECTOR: usize = 512;
    let mut newest: Option<(u64, u64, Vec<u8>)> = None;
    let mut at = log.start;
    while at < log.end {
        let step = STEP_BYTES.min(log.end - at);
        let bytes = read(device, at, step as usize)?;
        for (index, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            let lsn = u64_at(sector, 16);
            let is_newer = newest.as_ref().is_none_or(|(known, ..)| lsn > *known);
            if u32_at(sector, 0) == RECORD_MAGIC && is_newer {
                newest = Some((lsn, at + (index * SECTOR) as u64, sector.to_vec()));
            }
        }
        at += step;
    }
    // A log without a record was never used.
    let Some((_, place, record)) = newest else { return Ok(true) };
    if u32_at(&record, 40) != 1 {
        return Ok(false);
    }
    // The header of a version 2 record has a sector for each 32 KiB that the record may have.
    let may_have = u64::from(u32_at(&record, 320));
    let sectors = if u32_at(&record, 8) & 2 == 0 { 1 } else { may_have.div_ceil(32 << 10).max(1) };
    let len = log.end - log.start;
    let data = log.start + (place - log.start + sectors * SECTOR as u64) % len;
    let block = super::HEAD_BYTES as u64;
    let bytes = read(device, data / block * block, super::HEAD_BYTES)?;
    Ok(bytes[(data % block) as usize + 9] & UNMOUNT != 0)
}

#[cfg(test)]
mod tests {
    use bedplate_block::{AlignedBuf, MemoryDevice};

    use super::*;
    use crate::ErrorKind;

    /// A device whose first sector and log say what XFS says of itself.
    fn device(
        change: &dyn Fn(&mut [u8]),
        record: Option<(u32, u8)>,
    ) -> std::sync::Arc<dyn BlockDevice> {
        let device: std::sync::Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
        let mut head = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"XFSB");
        put(4, &4096_u32.to_be_bytes());
        put(8, &16_384_u64.to_be_bytes());
        put(48, &(1 << 12 | 5_u64).to_be_bytes());
        put(84, &4096_u32.to_be_bytes());
        put(96, &1024_u32.to_be_bytes());
        put(100, &0xb4a5_u16.to_be_bytes());
        put(102, &512_u16.to_be_bytes());
        put(124, &[12]);
        change(&mut head);
        device.write_at(&AlignedBuf::from_slice(&head), 0).unwrap();
        if let Some((operations, flags)) = record {
            let mut log = vec![0; 4096];
            for (at, lsn, count) in [(0, 1 << 32 | 1_u64, 9), (1024, 2 << 32, operations)] {
                log[at..at + 4].copy_from_slice(&RECORD_MAGIC.to_be_bytes());
                log[at + 8..at + 12].copy_from_slice(&2_u32.to_be_bytes());
                log[at + 16..at + 24].copy_from_slice(&lsn.to_be_bytes());
                log[at + 40..at + 44].copy_from_slice(&count.to_be_bytes());
                log[at + 320..at + 324].copy_from_slice(&(64_u32 << 10).to_be_bytes());
            }
            log[2048 + 9] = flags;
            device.write_at(&AlignedBuf::from_slice(&log), (4096 + 5) * 4096).unwrap();
        }
        device
    }

    fn looked(device: &dyn BlockDevice) -> Result<Old> {
        look(device, &read(device, 0, 4096).unwrap())
    }

    #[test]
    fn one_that_was_unmounted_is_told_from_one_that_was_not() {
        let clean = looked(&*device(&|_| {}, Some((1, UNMOUNT)))).unwrap();
        assert_eq!((clean.block_size, clean.size_bytes), (4096, 64 << 20));
        assert_eq!(clean.watched, [0..4096, 4101 * 4096..5125 * 4096]);
        assert!(looked(&*device(&|_| {}, None)).is_ok(), "a new one");
        for record in [(2, UNMOUNT), (1, 0)] {
            let error = looked(&*device(&|_| {}, Some(record))).unwrap_err();
            assert!(
                error.kind == ErrorKind::Damaged && error.message.contains("mount it"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_a_volume_cannot_take_over_is_refused_by_its_name() {
        type Change<'a> = &'a dyn Fn(&mut [u8]);
        let cases: [(Change<'_>, ErrorKind, &str); 8] = [
            (&|head| head[23] = 1, ErrorKind::Unsupported, "realtime"),
            (&|head| head[102] = 4, ErrorKind::Unsupported, "sectors of 1024"),
            (&|head| head[219] = 0x10, ErrorKind::Damaged, "xfs_repair"),
            (&|head| head[218] = 2, ErrorKind::Unsupported, "realtime"),
            (&|head| head[177] = 1, ErrorKind::Unsupported, "quotas"),
            (&|head| head[48..56].fill(0), ErrorKind::Unsupported, "log on another device"),
            (&|head| head[48] = 0x80, ErrorKind::Damaged, "outside"),
            (&|head| head[124] = 64, ErrorKind::Damaged, "outside"),
        ];
        for (at, (change, kind, words)) in cases.into_iter().enumerate() {
            let error = looked(&*device(change, None)).unwrap_err();
            assert!(error.kind == kind && error.message.contains(words), "case {at}: {error}");
        }
    }
}
