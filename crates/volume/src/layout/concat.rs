//! Concatenated: one part behind the other.

use super::{Layout, Run};

/// Parts, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concat {
    parts: Vec<Layout>,
    /// Where each part ends in the address space.
    ends: Vec<u64>,
}

impl Concat {
    /// Puts parts behind each other.
    #[must_use]
    pub fn new(parts: Vec<Layout>) -> Self {
        let ends = parts.iter().scan(0_u64, |end, part| {
            *end = end.saturating_add(part.size_bytes());
            Some(*end)
        });
        Self { ends: ends.collect(), parts }
    }

    /// Returns the parts.
    #[must_use]
    pub fn parts(&self) -> &[Layout] {
        &self.parts
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn locate(&self, at: u64) -> Run {
        let index = self.ends.partition_point(|end| *end <= at);
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        debug_assert!(
            at >= start && at < self.ends[index],
            "address {at} lies in part {index}, from {start} to {}",
            self.ends[index]
        );
        self.parts[index].locate(at - start)
    }
}
