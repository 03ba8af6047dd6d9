//! Reads an input as a list of small instructions; when it runs out, everything is 0.

/// An input that is read front to back.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Begins at the front.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// Takes a number of `N` bytes.
    fn number<const N: usize>(&mut self) -> u64 {
        self.bytes(N).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> u8 {
        u8::try_from(self.number::<1>()).expect("one byte was read")
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::try_from(self.number::<2>()).expect("two bytes were read")
    }

    /// Takes three bytes: an offset within a region.
    pub fn u24(&mut self) -> u64 {
        self.number::<3>()
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> u64 {
        self.number::<8>()
    }

    /// Takes what is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
