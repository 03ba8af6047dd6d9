//! Buckets of a histogram whose width grows with the value: the scale of every histogram of times.
//!
//! ```text
//!   sub_bits 2:   0 1 2 3 4 5 6 7 | 8 10 12 14 | 16 20 24 28 | 32 40 …      each octave has 4 buckets, the first two as many as values
//! ```

/// A scale of buckets. A bucket is 1/2^`sub_bits` of its octave wide at most, so that is how
/// exactly values are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogScale {
    /// The binary logarithm of the buckets to an octave.
    pub sub_bits: u32,
    /// The width of the last buckets, as a binary logarithm. Values behind the last bucket are
    /// counted in it.
    pub shift_max: u32,
}

impl LogScale {
    /// Returns how many buckets there are.
    #[must_use]
    pub const fn buckets(self) -> usize {
        (self.shift_max as usize + 2) << self.sub_bits
    }

    /// Returns the bucket of a value.
    #[inline]
    #[must_use]
    pub fn bucket_of(self, value: u64) -> usize {
        let shift =
            (63 - (value | 1).leading_zeros()).saturating_sub(self.sub_bits).min(self.shift_max);
        let bucket =
            (u64::from(shift) << self.sub_bits) + (value >> shift).min((2 << self.sub_bits) - 1);
        debug_assert!((bucket as usize) < self.buckets(), "every value has a bucket: {value}");
        bucket as usize
    }

    /// Returns the first value of a bucket, and how many it has.
    #[must_use]
    pub fn bounds_of(self, bucket: u32) -> (u64, u64) {
        debug_assert!(
            (bucket as usize) < self.buckets(),
            "bucket {bucket} is one of {}",
            self.buckets()
        );
        let shift = (u64::from(bucket) >> self.sub_bits).saturating_sub(1);
        ((u64::from(bucket) - (shift << self.sub_bits)) << shift, 1 << shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for scale in
            [LogScale { sub_bits: 2, shift_max: 25 }, LogScale { sub_bits: 4, shift_max: 32 }]
        {
            let mut last = 0;
            for value in
                (0..5000).chain((13..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]))
            {
                let bucket = scale.bucket_of(value);
                assert!(last <= bucket && bucket < scale.buckets(), "{value}");
                last = bucket;
                let (start, width) = scale.bounds_of(bucket as u32);
                assert!(
                    start <= value && (value - start < width || bucket == scale.buckets() - 1),
                    "{value}: {bucket} from {start}, {width} wide"
                );
                assert!(
                    width == 1 || width << scale.sub_bits <= start,
                    "one part in 2^{}",
                    scale.sub_bits
                );
            }
            assert_eq!(last, scale.buckets() - 1, "values without an end share the last");
            let ends = (1..scale.buckets() as u32)
                .map(|bucket| scale.bounds_of(bucket - 1))
                .map(|(start, width)| start + width);
            assert!(
                ends.eq((1..scale.buckets() as u32).map(|bucket| scale.bounds_of(bucket).0)),
                "no gaps"
            );
        }
    }
}
