//! What a write newly makes readable.

use bedplate_store::{BlockNo, Crc32c, Exposure, LoggedData, RowChange, crc32c, put_sums};

/// Collects the bytes that one record exposes, in the order they are written.
pub(crate) struct Exposing {
    /// `None` once there are too many: then a barrier takes the checksum's place.
    crc: Option<Crc32c>,
    segments: Vec<(u64, u32)>,
    bytes: u64,
    /// The checksums of blocks; `None` where none gets one.
    sums: Option<Summing>,
    /// The data itself, which the record carries; `None`: the device has it.
    logged: Option<LoggedData>,
}

/// The size of a block, and the blocks that get a checksum.
struct Summing {
    block: u64,
    sums: Vec<(u64, u32)>,
}

impl Summing {
    fn add(&mut self, offset: u64, bytes: &[u8]) {
        debug_assert!(
            offset.is_multiple_of(self.block) && (bytes.len() as u64).is_multiple_of(self.block),
            "I-SUM-1: whole blocks have checksums: {} bytes at {offset}",
            bytes.len()
        );
        let parts = bytes.chunks(self.block as usize).map(crc32c);
        self.sums.extend((offset / self.block..).zip(parts));
    }
}

impl Exposing {
    /// Begins; `bytes_expected` saves the checksum of what will need a barrier anyway.
    #[inline]
    pub(crate) fn new(bytes_expected: u64) -> Self {
        Self {
            crc: (bytes_expected <= Exposure::BYTES_MAX).then(Crc32c::new),
            segments: Vec::new(),
            bytes: 0,
            sums: None,
            logged: None,
        }
    }

    /// Has the record carry the data. What is written of it goes to [`log_write`](Self::log_write),
    /// and not to the device.
    pub(crate) fn set_logged(&mut self) {
        debug_assert!(self.is_empty() && !self.sums(), "all of it is carried, or nothing");
        self.logged = Some(LoggedData::default());
    }

    /// Returns whether the record carries the data.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.logged.is_some()
    }

    /// Takes a write of whole sectors that is not made now.
    pub(crate) fn log_write(&mut self, at: u64, sectors: &[u8]) {
        let logged = self.logged.as_mut().expect("the record carries the data");
        logged.writes.push((at, sectors.to_vec()));
    }

    /// Has the blocks get checksums.
    pub(crate) fn set_summing(&mut self, block: u64) {
        self.sums = Some(Summing { block, sums: Vec::new() });
    }

    /// Returns whether the blocks get checksums.
    #[inline]
    pub(crate) fn sums(&self) -> bool {
        self.sums.is_some()
    }

    /// Adds the checksums of whole blocks that were written at a device offset.
    #[inline]
    pub(crate) fn sum(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(summing) = &mut self.sums {
            summing.add(offset, bytes);
        }
    }

    /// Returns how many blocks got a checksum.
    pub(crate) fn sum_count(&self) -> u64 {
        self.sums.as_ref().map_or(0, |summing| summing.sums.len() as u64)
    }

    /// Returns the rows of the record that have the checksums.
    pub(crate) fn sum_rows(&self) -> Vec<RowChange> {
        let Some(Summing { block, sums }) = &self.sums else { return Vec::new() };
        debug_assert!(
            self.bytes >= sums.len() as u64 * block,
            "I-SUM-3: {} blocks with checksums are exposed as a whole: {} bytes",
            sums.len(),
            self.bytes
        );
        sums.chunk_by(|one, two| one.0 + 1 == two.0)
            .map(|run| put_sums(BlockNo(run[0].0), run.iter().map(|(_, sum)| *sum)))
            .collect()
    }

    /// Adds whole blocks that were written at a device offset, with their checksums where blocks
    /// get them. The bytes are looked at once.
    pub(crate) fn push_blocks(&mut self, offset: u64, bytes: &[u8]) {
        let Some(mut summing) = self.sums.take() else { return self.push(offset, bytes) };
        let before = summing.sums.len();
        summing.add(offset, bytes);
        self.expose(offset, bytes.len(), |crc| {
            summing.sums[before..].iter().for_each(|(_, sum)| crc.join(*sum, summing.block));
        });
        self.sums = Some(summing);
    }

    /// Adds bytes that were written at a device offset.
    #[inline]
    pub(crate) fn push(&mut self, offset: u64, bytes: &[u8]) {
        self.expose(offset, bytes.len(), |crc| crc.update(bytes));
        if let Some(logged) = &mut self.logged {
            logged.bytes.extend_from_slice(bytes);
        }
    }

    fn expose(&mut self, offset: u64, len: usize, add: impl FnOnce(&mut Crc32c)) {
        if len == 0 {
            return;
        }
        self.bytes += len as u64;
        let Some(crc) = self.crc.as_mut().filter(|_| self.bytes <= Exposure::BYTES_MAX) else {
            self.crc = None;
            return;
        };
        debug_assert!(
            offset.checked_add(len as u64).is_some(),
            "what is exposed lies on the device: {len} bytes at {offset}"
        );
        add(crc);
        let len = u32::try_from(len).expect("at most 1 MiB");
        match self.segments.last_mut() {
            Some((last, last_len)) if *last + u64::from(*last_len) == offset => *last_len += len,
            _ => self.segments.push((offset, len)),
        }
        if self.segments.len() > Exposure::SEGMENTS_MAX {
            self.crc = None;
        }
    }

    /// Returns whether nothing was exposed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.sum_count() == 0
    }

    /// Returns the exposure; `None` when the record needs a barrier.
    pub(crate) fn finish(self) -> Option<Exposure> {
        let (segments, logged) = (self.segments, self.logged);
        debug_assert!(
            self.crc.is_none()
                || segments.iter().map(|(_, len)| u64::from(*len)).sum::<u64>() == self.bytes,
            "a checksum vouches for all that is exposed: {} bytes",
            self.bytes
        );
        debug_assert!(
            logged.as_ref().is_none_or(|it| it.bytes.len() as u64 == self.bytes),
            "a record carries all that it exposes: {} bytes",
            self.bytes
        );
        self.crc.map(|crc| Exposure { segments, crc: crc.finish(), logged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_store::crc32c;

    #[test]
    fn contiguous_bytes_are_one_segment_with_one_checksum() {
        let mut exposing = Exposing::new(8);
        exposing.push(100, b"1234");
        exposing.push(104, b"");
        exposing.push(104, b"567");
        exposing.push(900, b"89");
        let exposure = exposing.finish().expect("it is small");
        assert_eq!(exposure.segments, [(100, 7), (900, 2)]);
        assert_eq!(exposure.crc, crc32c(b"123456789"));
    }

    #[test]
    fn checksums_of_blocks_vouch_for_all_of_them_in_the_log_too() {
        let bytes: Vec<u8> = (0..10_u32 * 512).map(|at| (at / 3) as u8).collect();
        let mut exposing = Exposing::new(8);
        exposing.set_summing(512);
        exposing.push_blocks(1024, &bytes[..3 * 512]);
        exposing.push_blocks(8192, &bytes[3 * 512..]);
        assert_eq!((exposing.sum_count(), exposing.sum_rows().len()), (10, 2));
        let exposure = exposing.finish().expect("it is small");
        assert_eq!(exposure.segments, [(1024, 3 * 512), (8192, 7 * 512)]);
        assert_eq!(exposure.crc, crc32c(&bytes));
    }

    #[test]
    fn too_much_needs_a_barrier() {
        assert!(Exposing::new(Exposure::BYTES_MAX + 1).finish().is_none());
        let mut large = Exposing::new(0);
        large.push(0, &vec![0; 1 << 20]);
        large.push(1 << 20, &[0]);
        assert!(large.finish().is_none());
        let mut scattered = Exposing::new(0);
        (0..=Exposure::SEGMENTS_MAX as u64).for_each(|i| scattered.push(i * 10, &[1]));
        assert!(scattered.finish().is_none());
    }
}
