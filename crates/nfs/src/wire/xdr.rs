//! XDR (RFC 4506), as far as the protocols here need it: big-endian words, and bytes that are
//! filled up to whole words.

/// What does not fit the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage;

/// What a message is read with: each length is compared with what there is before it is used.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Makes one of a message.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns what was not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Garbage> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads bytes of a fixed number, which are whole words.
    ///
    /// # Errors
    /// Where the message ends before.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        self.take(N)?.try_into().map_err(|_| Garbage)
    }

    /// Reads a word.
    ///
    /// # Errors
    /// Where the message ends before.
    pub fn u32(&mut self) -> Result<u32, Garbage> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Reads two words as one number.
    ///
    /// # Errors
    /// Where the message ends before.
    pub fn u64(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads yes or no.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn bool(&mut self) -> Result<bool, Garbage> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// Reads bytes of a length that comes before them, of at most `max`.
    ///
    /// # Errors
    /// Where there are more, or fewer than told.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], Garbage> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Garbage);
        }
        let bytes = self.take(len)?;
        self.take(padding(len))?;
        Ok(bytes)
    }

    /// Reads a value where there is one.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Garbage>,
    ) -> Result<Option<T>, Garbage> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// How many bytes fill `len` up to whole words.
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// What a message is written with.
#[derive(Debug, Clone, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Writes a word.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a number as two words.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes yes or no.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Writes bytes whose number the reader knows.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len() + padding(bytes.len()), 0);
    }

    /// Writes bytes behind their number.
    ///
    /// # Panics
    /// Where there are 4 GiB of them.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("what is told is shorter than 4 GiB"));
        self.fixed(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_lengths_are_compared_first() {
        let mut out = Writer::default();
        out.u32(7);
        out.u64(1 << 40);
        out.opaque(b"abcde");
        out.bool(true);
        assert_eq!(out.0.len(), 4 + 8 + 4 + 8 + 4);
        let mut reader = Reader::new(&out.0);
        assert_eq!((reader.u32(), reader.u64()), (Ok(7), Ok(1 << 40)));
        let mut short = reader;
        assert_eq!(reader.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!(short.opaque(4), Err(Garbage));
        assert_eq!((reader.bool(), reader.u32()), (Ok(true), Err(Garbage)));
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xfc]).opaque(usize::MAX), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).bool(), Err(Garbage));
    }
}
