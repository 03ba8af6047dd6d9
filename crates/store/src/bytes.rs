//! Bytes of keys and rows: short ones are stored inline, so that comparing keys follows no pointer
//! and making one allocates nothing.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// As long as the longest key and row of an extent and its image are; makes 24 bytes in all.
const SHORT_MAX: usize = 22;

/// Bytes that do not change.
#[derive(Clone)]
pub struct Bytes(Repr);

#[derive(Clone)]
enum Repr {
    Short(u8, [u8; SHORT_MAX]),
    Long(Arc<[u8]>),
}

impl Bytes {
    /// Joins parts.
    pub fn join(parts: &[&[u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > SHORT_MAX {
            return Self(Repr::Long(parts.concat().into()));
        }
        let (mut bytes, mut at) = ([0; SHORT_MAX], 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Self(Repr::Short(len as u8, bytes))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Short(len, bytes) => &bytes[..usize::from(*len)],
            Repr::Long(bytes) => bytes,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self::join(&[bytes])
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_slice().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_they_were_made_of_and_sort_like_it() {
        let all: Vec<u8> = (0..=255).collect();
        for len in 0..=2 * SHORT_MAX {
            for cut in 0..=len {
                assert_eq!(Bytes::join(&[&all[..cut], &all[cut..len]]).as_slice(), &all[..len]);
            }
        }
        let mut slices: Vec<&[u8]> = (0..50)
            .flat_map(|from| (0..40).map(move |len| (from, len)))
            .map(|(from, len)| &all[from..from + len])
            .collect();
        let mut made: Vec<Bytes> = slices.iter().map(|bytes| Bytes::from(*bytes)).collect();
        slices.sort_unstable();
        made.sort_unstable();
        assert!(made.iter().map(Bytes::as_slice).eq(slices));
        assert_eq!((size_of::<Bytes>(), size_of::<Option<Bytes>>()), (24, 24));
    }
}
