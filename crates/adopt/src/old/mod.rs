//! What the old file system is, as far as its superblock says. Nothing in it is trusted: figures are
//! checked before they are used.

mod ext4;
mod xfs;

use std::ops::Range;

use bedplate_block::{AlignedBuf, BlockDevice, OldKind};

use crate::error::{Error, ErrorKind, Result};

/// Bytes at the beginning of the device that are looked at.
pub(crate) const HEAD_BYTES: usize = 4096;

/// What is known of an old file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Old {
    pub kind: OldKind,
    /// Bytes of a block: a power of two, 4,096 to 65,536.
    pub block_size: u32,
    /// Bytes that it has of the device.
    pub size_bytes: u64,
    /// Bytes of the device that change whenever it is mounted for writing, in 4 KiB.
    pub watched: Vec<Range<u64>>,
}

impl Old {
    /// Returns its name.
    pub fn name(&self) -> &'static str {
        kind_name(self.kind)
    }

    /// Returns the type by which the system mounts it.
    pub fn mount_type(&self) -> &'static str {
        match self.kind {
            OldKind::Ext4 => "ext4",
            OldKind::Xfs => "xfs",
        }
    }
}

/// Returns the name of a kind.
pub(crate) fn kind_name(kind: OldKind) -> &'static str {
    match kind {
        OldKind::Ext4 => "ext4",
        OldKind::Xfs => "XFS",
    }
}

/// Reads bytes of a device, in whole blocks of 4 KiB.
pub(crate) fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Result<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(len);
    device.read_at(&mut buf, offset)?;
    Ok(buf)
}

/// Recognizes what lies on a device, by its first bytes.
pub(crate) fn kind_of(head: &[u8]) -> Option<OldKind> {
    if xfs::is_one(head) {
        return Some(OldKind::Xfs);
    }
    ext4::is_one(head).then_some(OldKind::Ext4)
}

/// Looks at the file system on a device, and refuses what cannot be converted in place.
///
/// # Errors
/// `Unsupported`, `Damaged` with what to do, or those of the device.
pub(crate) fn look(device: &dyn BlockDevice) -> Result<Old> {
    let name = device.name();
    if device.size_bytes() < SIZE_MIN {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{name} has {} bytes, a volume needs 32 MiB", device.size_bytes()),
        ));
    }
    let head = read(device, 0, HEAD_BYTES)?;
    let old = match kind_of(&head) {
        Some(OldKind::Xfs) => xfs::look(device, &head)?,
        Some(OldKind::Ext4) => ext4::look(name, &head)?,
        None => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{name} holds neither an ext4 nor an XFS file system: 'bedplate convert DIR --to \
                     MOUNTED_DIR' copies any other"
                ),
            ));
        }
    };
    // In shorter ones the first 4 KiB hold more than superblocks and heads of groups.
    let is_possible = (4096..=65536).contains(&old.block_size) && old.block_size.is_power_of_two();
    if !is_possible {
        return Err(unsupported(
            name,
            old.name(),
            &format!("has blocks of {} bytes, and only 4 KiB and more can be", old.block_size),
            COPY_INSTEAD,
        ));
    }
    if old.size_bytes < SIZE_MIN || old.size_bytes > device.size_bytes() {
        return Err(damaged(
            name,
            &format!(
                "its {} file system has {} bytes, the device {}",
                old.name(),
                old.size_bytes,
                device.size_bytes()
            ),
            "check it with its own tools",
        ));
    }
    Ok(old)
}

/// The smallest volume.
const SIZE_MIN: u64 = 32 << 20;

fn damaged(name: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("{name}: {what}: {remedy}"))
}

fn unsupported(name: &str, kind: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{name}: its {kind} file system {what}: {remedy}"))
}

/// What copies a file system that cannot be converted in place.
const COPY_INSTEAD: &str = "convert it by copying, 'bedplate convert DIR --to MOUNTED_DIR'";
