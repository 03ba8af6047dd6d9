//! The mount that a directory lies on, and what its file system has written of itself.

use std::path::{Path, PathBuf};

use bedplate_block::MountEntry;

use super::device::Stack;
use crate::system::{Seen, System};

/// What a superblock tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Superblock {
    /// Size of a block of the file system in bytes.
    pub block_bytes: u64,
    /// Size of a block of its log in bytes; `None` where it is that of the file system.
    pub log_block_bytes: Option<u64>,
    /// The stripe unit that it places files by, in bytes; 0: it knows of none.
    pub stripe_unit_bytes: u64,
}

/// The mount of a directory.
#[derive(Debug, Clone)]
pub struct Mounted {
    /// As the kernel lists it.
    pub entry: MountEntry,
    /// What its superblock tells, of ext4 and XFS.
    pub superblock: Seen<Superblock>,
    /// Size of a block in bytes.
    pub block_bytes: Seen<u64>,
    /// The file of the read-ahead that the file system has of its own, and its value in KiB; `None`
    /// where that of the device counts.
    pub read_ahead: Option<(PathBuf, i64)>,
}

impl Mounted {
    /// Returns whether an option is set.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        let all = self.entry.flags.split(',').chain(self.entry.options.split(','));
        all.into_iter().any(|set| set == option)
    }
}

/// Finds the mount that a directory lies on.
///
/// # Errors
/// Where the list of mounts cannot be read.
pub fn of_dir(system: &dyn System, dir: &Path) -> Seen<MountEntry> {
    let mounts = system.mounts()?;
    MountEntry::above(&mounts, dir)
        .cloned()
        .ok_or_else(|| format!("{} lies on no mount that is listed", dir.display()))
}

/// Looks at the file system of a mount.
#[must_use]
pub fn look(system: &dyn System, entry: MountEntry, dir: &Path, stack: &Seen<Stack>) -> Mounted {
    let superblock = match (entry.kind.as_str(), stack) {
        (kind @ ("ext4" | "xfs"), Ok(stack)) => superblock(system, kind, stack),
        (_, Err(why)) => Err(why.clone()),
        (kind, _) => Err(format!("superblocks of {kind} are not read")),
    };
    let known = superblock.as_ref().map(|superblock| superblock.block_bytes);
    let block_bytes = known.map_or_else(|_| system.block_bytes(dir), Ok);
    let read_ahead = Path::new("/sys/class/bdi").join(&entry.device).join("read_ahead_kb");
    let read_ahead = system.number(&read_ahead).ok().map(|kb| (read_ahead, kb));
    Mounted { entry, superblock, block_bytes, read_ahead }
}

fn superblock(system: &dyn System, kind: &str, stack: &Stack) -> Seen<Superblock> {
    let top = stack.top().ok_or("the stack of devices is empty")?;
    let found = match kind {
        "xfs" => xfs(&system.bytes(&top.node(), 0, 512)?),
        _ => ext4(&system.bytes(&top.node(), 1024, 1024)?),
    };
    found.ok_or_else(|| format!("{} does not begin as {kind} does", top.node().display()))
}

/// Reads the superblock of XFS, which is big-endian (`struct xfs_dsb`).
fn xfs(bytes: &[u8]) -> Option<Superblock> {
    let u16_at = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if bytes.get(..4)? != b"XFSB" {
        return None;
    }
    let block_bytes = u64::from(u32_at(4)?);
    // 0 stands for the smallest.
    let log = u64::from(u16_at(194)?).max(512);
    Some(Superblock {
        block_bytes,
        log_block_bytes: Some(log),
        stripe_unit_bytes: u64::from(u32_at(184)?) * block_bytes,
    })
}

/// Reads the superblock of ext4, which is little-endian (`struct ext4_super_block`).
fn ext4(bytes: &[u8]) -> Option<Superblock> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let shift = u32_at(0x18)?;
    if u16_at(0x38)? != 0xEF53 || shift > 6 {
        return None;
    }
    let block_bytes = 1024 << shift;
    Some(Superblock {
        block_bytes,
        log_block_bytes: None,
        stripe_unit_bytes: u64::from(u16_at(0x164)?) * block_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_superblock_are_none() {
        for bytes in [&[][..], b"XFSB", &[0; 512], &[0xFF; 1024]] {
            assert_eq!((xfs(bytes), ext4(bytes)), (None, None));
        }
        let mut made = vec![0; 1024];
        made[0x18] = 2;
        made[0x38..0x3A].copy_from_slice(&0xEF53_u16.to_le_bytes());
        made[0x164] = 16;
        let found = ext4(&made).unwrap();
        assert_eq!((found.block_bytes, found.stripe_unit_bytes), (4096, 65536));
    }
}
