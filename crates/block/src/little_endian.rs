//! Reads little-endian fields off bytes that are not to be trusted.

/// A field that passes the end of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Where the field begins.
    pub offset: usize,
    /// How many bytes it has.
    pub wanted: usize,
    /// How many are there.
    pub left: usize,
}

/// Reads fields front to back. A field that passes the end is an error and is not consumed.
#[derive(Debug, Clone)]
pub struct LeReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> LeReader<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns where the next field begins.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns what has not been read.
    #[must_use]
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Reads so many bytes.
    ///
    /// # Errors
    /// `Short` when there are fewer, here as in all that follow.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let taken = self.rest().get(..len).ok_or(Short {
            offset: self.at,
            wanted: len,
            left: self.rest().len(),
        })?;
        self.at += len;
        Ok(taken)
    }

    /// Reads an array.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        Ok(self.take(N)?.try_into().expect("take returned N bytes"))
    }

    /// Reads a byte.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of 16 bits.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a number of 32 bits.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a number of 64 bits.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a signed number of 64 bits.
    #[expect(clippy::missing_errors_doc, reason = "as take")]
    #[inline]
    pub fn i64(&mut self) -> Result<i64, Short> {
        Ok(i64::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_none_passes_the_end() {
        let bytes: Vec<u8> = (1..=24).collect();
        let mut reader = LeReader::new(&bytes);
        assert_eq!((reader.u8(), reader.u16(), reader.u32()), (Ok(1), Ok(0x0302), Ok(0x0706_0504)));
        assert_eq!((reader.u64(), reader.at()), (Ok(0x0f0e_0d0c_0b0a_0908), 15));
        assert_eq!(reader.array(), Ok([16, 17]));
        let short = Short { offset: 17, wanted: 8, left: 7 };
        assert_eq!(
            (reader.i64(), reader.take(usize::MAX).map_err(|short| short.wanted)),
            (Err(short), Err(usize::MAX))
        );
        assert_eq!(
            (reader.take(7).map(<[u8]>::len), reader.rest().len(), reader.u8().is_err()),
            (Ok(7), 0, true)
        );
        assert_eq!(LeReader::new(&[255; 8]).i64(), Ok(-1));
    }
}
