//! What a name may be.

use crate::{Error, ErrorKind, Result};

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Refuses names that no directory may hold.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("a name of {} bytes is longer than {NAME_BYTES_MAX}", name.len()),
        ));
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("'{}' cannot be a name", told_name(name)),
        ));
    }
    Ok(())
}

/// Returns a name or path as text. Bytes that are no UTF-8 become `\xff`, so that different names
/// stay different.
#[must_use]
pub fn readable_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Returns a name for a sentence: as people wrote it, on one line, and so that it does nothing to a
/// terminal. Bytes that are no text are escaped.
#[must_use]
pub fn told_name(name: impl AsRef<[u8]>) -> String {
    let name = readable_name(name.as_ref());
    // Nearly always; and each look-up of a name that is not there makes such a sentence.
    if !name.contains(char::is_control) {
        return name;
    }
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once a checkpoint 'Über Nacht' was told as '\\xc3\\x9cber Nacht'.
    #[test]
    fn a_name_is_told_as_it_was_written_and_on_one_line() {
        assert_eq!(told_name("Über Nacht"), "Über Nacht");
        assert_eq!(told_name(b"a\nb\x1b[2J\xff"), r"a\nb\u{1b}[2J\xff");
    }

    #[test]
    fn names_that_differ_are_read_differently() {
        assert_eq!(readable_name("ümläut\n".as_bytes()), "ümläut\n");
        assert_eq!([b"a\xff", b"a\xfe"].map(|name| readable_name(name)), ["a\\xff", "a\\xfe"]);
    }
}
