//! The rows of checkpoints: what one is, what it keeps of the past, and what belongs to one of
//! named files.
//!
//! | table        | key                              | value                                                     |
//! | ------------ | -------------------------------- | --------------------------------------------------------- |
//! | `checkpoint` | epoch                            | [`CheckpointRow`]                                         |
//! | `before`     | epoch, table, key of that table  | 0, or 1 and the row as it was when the checkpoint was made |
//! | `scope`      | epoch, inode                     | empty: the inode belongs to the checkpoint                |

use crate::bytes::Bytes;
use crate::decode::Reader;
use crate::row::{ExtentRow, RowChange, Table};
use crate::{Epoch, Error, InodeNo, Result, Timestamp};

/// What a checkpoint is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRow {
    /// Its name.
    pub name: Vec<u8>,
    /// When it was made.
    pub created: Timestamp,
    /// Inodes from this number on did not exist yet.
    pub ino_end: InodeNo,
    /// It was made by a rollback or a schedule, not by a person.
    pub automatic: bool,
    /// Neither retention nor a full volume removes it.
    pub kept: bool,
    /// It is being deleted: nothing shows it, and a part of what it kept may be gone.
    pub deleting: bool,
    /// The paths that were asked for; none: everything.
    pub paths: Vec<Vec<u8>>,
}

const AUTOMATIC: u8 = 1;
const KEPT: u8 = 2;
const DELETING: u8 = 4;

impl CheckpointRow {
    /// How the names of passing checkpoints begin.
    pub const PASSING: &[u8] = b".clone-";

    /// Returns whether it is only there for a clone of the present that is being made of it. No list
    /// shows it, also where it could not be deleted with the clone and waits for that.
    pub fn is_passing(&self) -> bool {
        self.automatic && self.kept && self.name.starts_with(Self::PASSING)
    }

    /// Encodes the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.name.len());
        out.extend_from_slice(&self.created.0.to_le_bytes());
        out.extend_from_slice(&self.ino_end.0.to_le_bytes());
        let flag = |set: bool, flag: u8| u8::from(set) * flag;
        out.push(
            flag(self.automatic, AUTOMATIC) | flag(self.kept, KEPT) | flag(self.deleting, DELETING),
        );
        put_bytes(&mut out, &self.name);
        for path in &self.paths {
            put_bytes(&mut out, path);
        }
        out
    }

    /// Decodes a row; `Corrupt` for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "a checkpoint");
        let (created, ino_end, flags) = (Timestamp(r.i64()?), InodeNo(r.u64()?), r.u8()?);
        if flags & !(AUTOMATIC | KEPT | DELETING) != 0 {
            return Err(Error::corrupt(format!("a checkpoint has unknown flags {flags:#x}")));
        }
        let name = take_bytes(&mut r)?;
        crate::name::check_name(&name)
            .map_err(|e| Error::corrupt(format!("the name of a checkpoint: {e}")))?;
        let mut paths = Vec::new();
        while !r.is_empty() {
            paths.push(take_bytes(&mut r)?);
        }
        Ok(Self {
            name,
            created,
            ino_end,
            automatic: flags & AUTOMATIC != 0,
            kept: flags & KEPT != 0,
            deleting: flags & DELETING != 0,
            paths,
        })
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(
        &u16::try_from(bytes.len()).expect("names and paths are shorter than 64 KiB").to_le_bytes(),
    );
    out.extend_from_slice(bytes);
}

fn take_bytes(r: &mut Reader<'_>) -> Result<Vec<u8>> {
    let len = r.u16()?;
    Ok(r.take(len.into())?.to_vec())
}

/// The key of a checkpoint's row.
pub fn checkpoint_key(epoch: Epoch) -> Vec<u8> {
    epoch.0.to_be_bytes().to_vec()
}

/// Takes the key of a checkpoint's row apart.
pub fn split_checkpoint_key(key: &[u8]) -> Result<Epoch> {
    let epoch = key.try_into().map_err(|_| {
        Error::corrupt(format!("the key of a checkpoint has {} bytes instead of 4", key.len()))
    })?;
    Ok(Epoch(u32::from_be_bytes(epoch)))
}

/// The key of the row that says that an inode belongs to a checkpoint.
pub fn scope_key(epoch: Epoch, ino: InodeNo) -> Vec<u8> {
    let mut key = checkpoint_key(epoch);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

/// Takes such a key apart.
pub fn split_scope_key(key: &[u8]) -> Result<(Epoch, InodeNo)> {
    let wrong = || Error::corrupt(format!("a scope key has {} bytes instead of 12", key.len()));
    let (epoch, ino) = key.split_at_checked(4).ok_or_else(wrong)?;
    Ok((
        split_checkpoint_key(epoch)?,
        InodeNo(u64::from_be_bytes(ino.try_into().map_err(|_| wrong())?)),
    ))
}

/// The key of the image that checkpoint `epoch` keeps of a row.
pub fn before_key(epoch: Epoch, table: Table, key: &[u8]) -> Bytes {
    Bytes::join(&[&epoch.0.to_be_bytes(), &[table as u8], key])
}

/// Takes the key of a before-image apart.
pub fn split_before_key(key: &[u8]) -> Result<(Epoch, Table, &[u8])> {
    let short = || Error::corrupt(format!("a before-image has a key of {} bytes", key.len()));
    let (epoch, rest) = key.split_at_checked(4).ok_or_else(short)?;
    let (table, rest) = rest.split_first().ok_or_else(short)?;
    let table = Table::from_code(*table)?;
    if !has_before_images(table) {
        return Err(Error::corrupt(format!(
            "a before-image of the table {table:?}, which checkpoints do not keep"
        )));
    }
    Ok((split_checkpoint_key(epoch)?, table, rest))
}

/// Returns whether checkpoints keep the past of a table.
pub fn has_before_images(table: Table) -> bool {
    matches!(table, Table::Inode | Table::Dentry | Table::Extent | Table::Xattr | Table::Orphan)
}

/// A row as it was, or that it was not there.
pub fn encode_image(row: Option<&[u8]>) -> Bytes {
    Bytes::join(&[&[u8::from(row.is_some())], row.unwrap_or_default()])
}

/// Returns the row that a before-image holds; `None`: there was none.
pub fn decode_image(bytes: &[u8]) -> Result<Option<&[u8]>> {
    match bytes.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, row)) => Ok(Some(row)),
        _ => Err(Error::corrupt(format!(
            "a before-image of {} bytes says neither that a row was there nor that it was not",
            bytes.len()
        ))),
    }
}

/// Returns the change that adds a before-image.
pub fn put_image(epoch: Epoch, table: Table, key: &[u8], row: Option<&[u8]>) -> RowChange {
    RowChange::put(Table::Before, before_key(epoch, table, key), encode_image(row))
}

/// The extent that a before-image holds, if it is one of an extent that was there.
pub fn image_extent(table: Table, image: &[u8]) -> Result<Option<ExtentRow>> {
    if table != Table::Extent {
        return Ok(None);
    }
    decode_image(image)?.map(ExtentRow::decode).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_encoding() {
        let row = CheckpointRow {
            name: b"nightly \xff".to_vec(),
            created: Timestamp(-5),
            ino_end: InodeNo(77),
            automatic: true,
            kept: false,
            deleting: true,
            paths: vec![b"/db".to_vec(), b"/wal/1".to_vec()],
        };
        assert_eq!(CheckpointRow::decode(&row.encode()).unwrap(), row);
        let key = before_key(Epoch(7), Table::Dentry, b"abcdefgh.");
        assert_eq!(split_before_key(&key).unwrap(), (Epoch(7), Table::Dentry, &b"abcdefgh."[..]));
        assert_eq!(
            split_scope_key(&scope_key(Epoch(3), InodeNo(9))).unwrap(),
            (Epoch(3), InodeNo(9))
        );
        assert_eq!(decode_image(&encode_image(None)).unwrap(), None);
        assert_eq!(decode_image(&encode_image(Some(b"x"))).unwrap(), Some(&b"x"[..]));
    }

    #[test]
    fn hostile_rows_are_refused() {
        for bytes in [&[][..], &[0; 16], &[0; 19], &[255; 40]] {
            assert!(CheckpointRow::decode(bytes).is_err());
        }
        assert!(split_before_key(&[0, 0, 0, 1, 6, 1]).is_err(), "settings have no past");
        assert!(split_before_key(&[0, 0, 0]).is_err());
        assert!(split_scope_key(&[0; 13]).is_err());
        assert!(
            decode_image(&[]).is_err()
                && decode_image(&[0, 1]).is_err()
                && decode_image(&[2]).is_err()
        );
    }
}
