//! What the data of an option says.

/// The metadata queries of one option; more are refused.
const QUERIES_MAX: u32 = 64;
/// The pieces of information that one option may ask for; more are refused.
const INFORMATION_MAX: u16 = 64;

/// Reads the data of an option.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    /// Returns a value once all is read.
    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Returns the name of an export and what is asked about it (`INFO`, `GO`); `None` for other bytes.
pub fn information(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u16().filter(|count| *count <= INFORMATION_MAX)?;
    let asked = (0..count).map(|_| reader.u16()).collect::<Option<_>>()?;
    reader.end((name, asked))
}

/// Returns the name of an export and the metadata contexts that are asked for (`LIST_META_CONTEXT`,
/// `SET_META_CONTEXT`); `None` for other bytes.
pub fn contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u32().filter(|count| *count <= QUERIES_MAX)?;
    let queries = (0..count).map(|_| reader.string()).collect::<Option<_>>()?;
    reader.end((name, queries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_lie_are_refused() {
        let good = [0, 0, 0, 1, b'a', 0, 1, 0, 3];
        assert_eq!(information(&good), Some((&b"a"[..], vec![3])));
        for cut in 0..good.len() {
            assert_eq!(information(&good[..cut]), None);
        }
        assert_eq!(information(&[0xff; 64]), None);
        let mut longer = good.to_vec();
        longer.push(0);
        assert_eq!(information(&longer), None);
        let queries = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, b'b', b':'];
        assert_eq!(contexts(&queries), Some((&b""[..], vec![&b"b:"[..]])));
        assert_eq!(contexts(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
