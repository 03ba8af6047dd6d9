//! The superblock of ext2, ext3 and ext4: 1,024 bytes from byte 1,024 on, little-endian.

use bedplate_block::OldKind;

use super::{COPY_INSTEAD, HEAD_BYTES, Old, damaged, unsupported};
use crate::error::Result;

const AT: usize = 1024;
const HAS_JOURNAL: u32 = 0x4;
/// Incompatible features: the journal is to be replayed; the device is a journal; files are encrypted;
/// names are folded.
const RECOVER: u32 = 0x4;
const JOURNAL_DEVICE: u32 = 0x8;
const ENCRYPT: u32 = 0x1_0000;
const CASEFOLD: u32 = 0x2_0000;
/// Features that are compatible for reading: quotas; files share blocks; files are verified.
const QUOTA: u32 = 0x100;
const SHARED_BLOCKS: u32 = 0x4000;
const VERITY: u32 = 0x8000;

pub(super) fn is_one(head: &[u8]) -> bool {
    head.get(AT + 56..AT + 58) == Some(&[0x53, 0xef])
}

fn u16_at(head: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(head[AT + at..AT + at + 2].try_into().expect("two bytes"))
}

fn u32_at(head: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(head[AT + at..AT + at + 4].try_into().expect("four bytes"))
}

pub(super) fn look(name: &str, head: &[u8]) -> Result<Old> {
    let (compatible, incompatible, read_only) =
        (u32_at(head, 92), u32_at(head, 96), u32_at(head, 100));
    let shift = u32_at(head, 24);
    let block_size = if shift <= 6 { 1024 << shift } else { 0 };
    let blocks = u64::from(u32_at(head, 4))
        | if incompatible & 0x80 == 0 { 0 } else { u64::from(u32_at(head, 336)) << 32 };
    refuse_features(name, head, (compatible, incompatible, read_only))?;
    let state = u16_at(head, 58);
    let remedy = format!("run 'e2fsck -f {name}' first");
    if state & 2 != 0 {
        return Err(damaged(name, "its ext4 file system is marked as damaged", &remedy));
    }
    if incompatible & RECOVER != 0 {
        let what = "its ext4 file system was not unmounted, and its journal is to be replayed";
        return Err(damaged(name, what, "mount it and unmount it first"));
    }
    if state & 1 == 0 {
        return Err(damaged(name, "its ext4 file system was not unmounted", &remedy));
    }
    let first = HEAD_BYTES as u64;
    Ok(Old {
        kind: OldKind::Ext4,
        block_size,
        size_bytes: blocks.saturating_mul(u64::from(block_size)),
        watched: std::iter::once(0..first).collect(),
    })
}

fn refuse_features(
    name: &str,
    head: &[u8],
    (compatible, incompatible, read_only): (u32, u32, u32),
) -> Result<()> {
    let no = |what: &str, remedy: &str| Err(unsupported(name, "ext4", what, remedy));
    if incompatible & JOURNAL_DEVICE != 0 {
        return no("is the journal of another one", "name the device with the files");
    }
    if incompatible & ENCRYPT != 0 {
        return no("may have encrypted files, which a volume has not", COPY_INSTEAD);
    }
    if incompatible & CASEFOLD != 0 {
        return no("may have directories that fold case, which a volume has not", COPY_INSTEAD);
    }
    if read_only & VERITY != 0 {
        return no("may have files with fs-verity, which a volume has not", COPY_INSTEAD);
    }
    if read_only & SHARED_BLOCKS != 0 {
        return no("has files that share blocks for reading only", COPY_INSTEAD);
    }
    if read_only & QUOTA != 0 {
        return no(
            "has quotas, which a volume has not",
            &format!("turn them off with 'tune2fs -O ^quota {name}'"),
        );
    }
    // The journal's inode, which is 0 where it is on another device.
    if compatible & HAS_JOURNAL != 0 && u32_at(head, 224) == 0 {
        return no(
            "has its journal on another device",
            "give it one of its own with tune2fs first",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// An image of `blocks` blocks of 4 KiB, as far as its superblock says.
    fn head() -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        let mut put =
            |at: usize, bytes: &[u8]| head[AT + at..AT + at + bytes.len()].copy_from_slice(bytes);
        put(4, &20_000_u32.to_le_bytes());
        put(24, &2_u32.to_le_bytes());
        put(56, &[0x53, 0xef]);
        put(58, &1_u16.to_le_bytes());
        put(92, &HAS_JOURNAL.to_le_bytes());
        put(96, &0x2c2_u32.to_le_bytes());
        put(224, &8_u32.to_le_bytes());
        head
    }

    #[test]
    fn a_clean_one_is_recognized() {
        let head = head();
        assert!(is_one(&head) && !is_one(&[0; HEAD_BYTES]) && !is_one(&[]));
        let old = look("x", &head).unwrap();
        assert_eq!((old.block_size, old.size_bytes), (4096, 20_000 * 4096));
        assert_eq!((old.watched.len(), &old.watched[0]), (1, &(0..4096)));
    }

    #[test]
    fn each_feature_that_a_volume_lacks_is_refused_by_its_name() {
        let word = |at: usize, bits: u32| (at, bits.to_le_bytes().to_vec());
        let cases = [
            (word(96, 0x2c2 | RECOVER), ErrorKind::Damaged, "mount it and unmount it first"),
            ((58, vec![0, 0]), ErrorKind::Damaged, "not unmounted"),
            ((58, vec![3, 0]), ErrorKind::Damaged, "e2fsck"),
            (word(96, JOURNAL_DEVICE), ErrorKind::Unsupported, "journal of another"),
            (word(96, ENCRYPT), ErrorKind::Unsupported, "encrypted"),
            (word(96, CASEFOLD), ErrorKind::Unsupported, "fold case"),
            (word(100, VERITY), ErrorKind::Unsupported, "fs-verity"),
            (word(100, SHARED_BLOCKS), ErrorKind::Unsupported, "share blocks"),
            (word(100, QUOTA), ErrorKind::Unsupported, "tune2fs"),
            (word(224, 0), ErrorKind::Unsupported, "another device"),
        ];
        for ((at, bytes), kind, words) in cases {
            let mut head = head();
            head[AT + at..AT + at + bytes.len()].copy_from_slice(&bytes);
            let error = look("x", &head).unwrap_err();
            assert!(error.kind == kind && error.message.contains(words), "{error}");
        }
        let mut huge = head();
        huge[AT + 24] = 40;
        assert_eq!(look("x", &huge).unwrap().block_size, 0, "the caller refuses it");
    }
}
