//! Reading and writing the fields of labels and logs; nothing is read past the end.

use bedplate_block::{LeReader, Short};

/// A field that does not parse: where it stands and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub offset: usize,
    pub what: String,
}

impl Fault {
    pub fn new(offset: usize, what: impl Into<String>) -> Self {
        Self { offset, what: what.into() }
    }
}

/// A [`LeReader`] whose faults name the field.
pub(crate) struct Reader<'a>(LeReader<'a>);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(LeReader::new(bytes))
    }

    /// Returns where the next field begins.
    pub fn at(&self) -> usize {
        self.0.at()
    }

    /// Reads one field; one that passes the end is a fault and is not consumed.
    fn field<T>(
        &mut self,
        field: &str,
        read: impl FnOnce(&mut LeReader<'a>) -> Result<T, Short>,
    ) -> Result<T, Fault> {
        read(&mut self.0)
            .map_err(|short| Fault::new(short.offset, format!("{field} passes the end")))
    }

    pub fn take(&mut self, len: usize, field: &str) -> Result<&'a [u8], Fault> {
        self.field(field, |reader| reader.take(len))
    }

    pub fn u8(&mut self, field: &str) -> Result<u8, Fault> {
        self.field(field, LeReader::u8)
    }

    pub fn u16(&mut self, field: &str) -> Result<u16, Fault> {
        self.field(field, LeReader::u16)
    }

    pub fn u32(&mut self, field: &str) -> Result<u32, Fault> {
        self.field(field, LeReader::u32)
    }

    pub fn u64(&mut self, field: &str) -> Result<u64, Fault> {
        self.field(field, LeReader::u64)
    }

    pub fn id(&mut self, field: &str) -> Result<crate::Id, Fault> {
        self.field(field, LeReader::array).map(crate::Id)
    }

    /// Takes a text that is preceded by its length.
    pub fn text(&mut self, field: &str) -> Result<String, Fault> {
        let len = self.u16(field)?;
        let at = self.at();
        let bytes = self.take(len.into(), field)?;
        String::from_utf8(bytes.to_vec())
            .map_err(|_| Fault::new(at, format!("{field} is not UTF-8")))
    }
}

/// Appends a text behind its length; one that is too long is cut at a character.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(1024);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.extend((len as u16).to_le_bytes());
    out.extend(&text.as_bytes()[..len]);
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    // The low half: the crate returns every checksum as 64 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_past_the_end() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u16("a").unwrap(), 0x201);
        assert_eq!(reader.u16("b").unwrap_err(), Fault::new(2, "b passes the end"));
        assert_eq!(reader.u8("c").unwrap(), 3);
        assert!(Reader::new(&[5, 0, b'a']).text("name").is_err());
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_text_comes_back_and_is_cut_at_a_character() {
        let long = "é".repeat(600);
        for text in ["", "name", "größe", &long] {
            let mut bytes = Vec::new();
            put_text(&mut bytes, text);
            let back = Reader::new(&bytes).text("name").unwrap();
            assert!(text.starts_with(&back) && (text.len() > 1024 || back == text));
        }
    }
}
