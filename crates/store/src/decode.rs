//! Explicit little-endian readers and writers: bytes from a medium are hostile until they came
//! through here.

use bedplate_block::{LeReader, Short};

use crate::{Error, Result};

/// Reads a byte slice front to back; running out is `Corrupt`, never a panic.
pub struct Reader<'a> {
    fields: LeReader<'a>,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// `what` names the structure in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { fields: LeReader::new(bytes), what }
    }

    fn read<T>(
        &mut self,
        field: impl FnOnce(&mut LeReader<'a>) -> std::result::Result<T, Short>,
    ) -> Result<T> {
        field(&mut self.fields).map_err(|short| ends_early(self.what, short))
    }

    /// Takes so many bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        self.read(|fields| fields.take(len))
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> Result<u8> {
        self.read(LeReader::u8)
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> Result<u16> {
        self.read(LeReader::u16)
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        self.read(LeReader::u32)
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        self.read(LeReader::u64)
    }

    /// Takes eight bytes, signed.
    pub fn i64(&mut self) -> Result<i64> {
        self.read(LeReader::i64)
    }

    /// Returns what was not taken.
    pub fn rest(self) -> &'a [u8] {
        self.fields.rest()
    }

    /// Returns whether all bytes were taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many bytes were not taken.
    pub fn len(&self) -> usize {
        self.fields.rest().len()
    }

    /// Requires that nothing is left.
    pub fn end(self) -> Result<()> {
        let left = self.len();
        if left == 0 {
            Ok(())
        } else {
            Err(Error::corrupt(format!("{} has {left} bytes too many", self.what)))
        }
    }
}

#[cold]
fn ends_early(what: &str, Short { wanted, left, .. }: Short) -> Error {
    Error::corrupt(format!("{what} ends early: {wanted} more bytes were expected, {left} are left"))
}
