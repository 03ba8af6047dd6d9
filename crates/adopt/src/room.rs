//! The blocks that the volume may write before it is committed: those of one file of the old file
//! system, and what is put where in them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bedplate_block::{
    AlignedBuf, BlockDevice, FileExtent, IN_PLACE_CONTENT_BYTES, IN_PLACE_HEADER_BYTES,
    in_place_grain_bytes,
};
use bedplate_fs::METADATA_RUNS_MAX;

use crate::error::{Error, ErrorKind, Result};
use crate::places::fixed;

/// What addresses are multiples of, whatever the block size: a page of the metadata tree.
const PAGE_BYTES: u64 = 4096;
/// The shortest and the longest log, in bytes.
const LOG_BYTES: Range<u64> = 1 << 20..128 << 20;

/// Ranges of the device that are free for the volume, in bytes, apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room(Vec<Range<u64>>);

/// Where the volume's own things lie, in bytes of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub header_at: u64,
    pub superblock_at: u64,
    pub old_head_at: u64,
    pub log: Range<u64>,
    pub metadata: Vec<Range<u64>>,
    /// What is copied goes here.
    pub copies: Vec<Range<u64>>,
}

/// Returns the length of the log of a volume.
pub(crate) fn log_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 256 / LOG_BYTES.start * LOG_BYTES.start).clamp(LOG_BYTES.start, LOG_BYTES.end)
}

fn no_room(missing: &str) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "the free space of the old file system is in too many pieces for {missing}: remove \
             files, or convert it by copying, 'bedplate convert DIR --to MOUNTED_DIR'"
        ),
    )
}

impl Room {
    /// Takes what a file has of the device, without the places of the superblock.
    pub fn of(extents: &[FileExtent], block: u64) -> Self {
        let unit = block.max(PAGE_BYTES);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for extent in extents.iter().filter(|extent| extent.is_plain) {
            runs.push(extent.place..extent.place + extent.len);
        }
        runs.sort_by_key(|run| run.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for run in runs {
            match joined.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => joined.push(run),
            }
        }
        for taken in fixed() {
            joined = joined.into_iter().flat_map(|run| without(&run, &taken)).collect();
        }
        let whole = |run: Range<u64>| run.start.next_multiple_of(unit)..run.end / unit * unit;
        Self(joined.into_iter().map(whole).filter(|run| !run.is_empty()).collect())
    }

    /// Returns how many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    fn take(&mut self, taken: &Range<u64>) {
        self.0 = self.0.iter().flat_map(|run| without(run, taken)).collect();
    }

    /// Takes the place that is divisible by the largest power of two: there a search looks first.
    fn take_most_divisible(&mut self, len: u64, grain: u64) -> Option<u64> {
        let mut step = 1_u64 << 62;
        while step >= grain {
            let place = self.0.iter().find_map(|run| {
                let at = run.start.checked_next_multiple_of(step)?;
                (at > 0 && at.checked_add(len)? <= run.end).then_some(at)
            });
            if let Some(at) = place {
                self.take(&(at..at + len));
                return Some(at);
            }
            step /= 2;
        }
        None
    }

    /// Takes a run of so many bytes, or the longest that has at least `least`.
    fn take_run(&mut self, wanted: u64, least: u64) -> Option<Range<u64>> {
        let longest = self.0.iter().max_by_key(|run| run.end - run.start)?;
        let len = wanted.min(longest.end - longest.start);
        let run = longest.start..longest.start + len;
        (len >= least).then(|| {
            self.take(&run);
            run
        })
    }

    /// Puts everything somewhere; `metadata` and `copies` are lengths in bytes.
    pub fn place(mut self, size_bytes: u64, metadata: u64, copies: u64) -> Result<Placed> {
        let unit = PAGE_BYTES.max(64 << 10);
        let grain = in_place_grain_bytes(size_bytes);
        let header = 2 * IN_PLACE_HEADER_BYTES as u64 + 2 * IN_PLACE_CONTENT_BYTES as u64;
        // In whole 64 KiB, which every block size divides.
        let header_at = self.take_most_divisible(header.next_multiple_of(unit), grain.max(unit));
        let header_at = header_at.ok_or_else(|| no_room("a header that is found again"))?;
        let superblock_at = header_at + 2 * IN_PLACE_HEADER_BYTES as u64;
        let old_head_at = superblock_at + IN_PLACE_CONTENT_BYTES as u64;
        let log = self.take_run(log_bytes(size_bytes), LOG_BYTES.start);
        let log = log.ok_or_else(|| no_room("a log of 1 MiB"))?;
        // The metadata gets the longest runs, what is copied any.
        let (mut runs, mut missing) = (Vec::new(), metadata.next_multiple_of(unit));
        while missing > 0 {
            let run = (runs.len() < METADATA_RUNS_MAX).then(|| self.take_run(missing, unit));
            let run = run.flatten().ok_or_else(|| no_room("the metadata"))?;
            let len = (run.end - run.start) / unit * unit;
            runs.push(run.start..run.start + len);
            missing = missing.saturating_sub(len);
        }
        if self.bytes() < copies {
            return Err(no_room("what is to be copied"));
        }
        Ok(Placed { header_at, superblock_at, old_head_at, log, metadata: runs, copies: self.0 })
    }
}

/// Returns what is left of a run without a part of it.
fn without(run: &Range<u64>, part: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = run.start..run.end.min(part.start);
    let behind = run.start.max(part.end)..run.end;
    [before, behind].into_iter().filter(|rest| rest.start < rest.end)
}

/// A volume's copies of data are written through the file, as long as the old file system is
/// mounted.
pub(crate) struct Writer<'a> {
    pub file: &'a File,
    pub extents: &'a [FileExtent],
}

impl Writer<'_> {
    /// Writes bytes that belong to a place of the device.
    pub fn write(&self, bytes: &[u8], place: u64) -> std::io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = place + done as u64;
            let inside = |one: &&FileExtent| one.place <= at && at < one.place + one.len;
            let extent =
                self.extents.iter().find(inside).expect("a place in the room is the file's");
            let len = (bytes.len() - done).min((extent.place + extent.len - at) as usize);
            self.file
                .write_all_at(&bytes[done..done + len], extent.offset + (at - extent.place))?;
            done += len;
        }
        Ok(())
    }
}

/// Returns where a file lies, whatever of it is written: runs in order of the file.
pub(crate) fn layout(extents: &[FileExtent]) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for one in extents {
        match runs.last_mut() {
            Some((offset, place, len))
                if *offset + *len == one.offset && *place + *len == one.place =>
            {
                *len += one.len;
            }
            _ => runs.push((one.offset, one.place, one.len)),
        }
    }
    runs
}

/// Writes 4 KiB to the device.
pub(crate) fn put(device: &dyn BlockDevice, bytes: &[u8], at: u64) -> Result<()> {
    Ok(device.write_at(&AlignedBuf::from_slice(bytes), at)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn extent(offset: u64, place: u64, len: u64) -> FileExtent {
        FileExtent { offset, place, len, unwritten: true, is_plain: true }
    }

    #[test]
    fn everything_gets_a_place_of_its_own_outside_of_those_of_the_superblock() {
        let extents = [
            extent(0, 4096, 2 * MIB),
            extent(2 * MIB, 7 * MIB + 4096, 3 * MIB),
            extent(5 * MIB, 100 * MIB + 8192, 30 * MIB),
        ];
        let room = Room::of(&extents, 4096);
        assert!(room.bytes() < 35 * MIB && room.bytes() > 34 * MIB);
        let placed = room.clone().place(256 * MIB, 20 * MIB, 4 * MIB).unwrap();
        let mut all = vec![placed.header_at..placed.old_head_at + 4096, placed.log.clone()];
        all.extend(placed.metadata.iter().cloned());
        all.extend(placed.copies.iter().cloned());
        assert_eq!(placed.header_at, 128 * MIB, "the most divisible place");
        let fixed = fixed();
        for (index, one) in all.iter().enumerate() {
            let apart = |other: &Range<u64>| one.end <= other.start || other.end <= one.start;
            assert!(fixed.iter().all(apart) && all[index + 1..].iter().all(apart), "{one:?}");
            let within = |e: &FileExtent| e.place <= one.start && one.end <= e.place + e.len;
            assert!(extents.iter().any(within), "{one:?}");
        }
        assert!(placed.metadata.iter().map(|run| run.end - run.start).sum::<u64>() >= 20 * MIB);
        for (metadata, copies) in [(40 * MIB, 0), (20 * MIB, 14 * MIB)] {
            let error = room.clone().place(256 * MIB, metadata, copies).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NoSpace);
        }
    }

    #[test]
    fn a_log_and_a_header_need_a_run() {
        let pieces: Vec<FileExtent> =
            (0..400).map(|at| extent(at * 65536, (100 + at) * MIB, 65536)).collect();
        assert!(Room::of(&pieces, 4096).place(1 << 30, 4096, 0).is_err());
        let one = [extent(0, 3 * MIB + 4096, 3 * MIB)];
        assert!(Room::of(&one, 4096).place(64 * MIB, 65536, 0).is_ok());
        assert!(Room::of(&one, 4096).place(1 << 45, 65536, 0).is_err(), "no place is divisible");
    }

    #[test]
    fn what_is_written_through_the_file_arrives_at_its_places() {
        let extents = [extent(0, 1000, 100), extent(100, 5000, 50), extent(150, 1100, 50)];
        let file = tempfile::tempfile().unwrap();
        let writer = Writer { file: &file, extents: &extents };
        writer.write(&[7; 110], 1040).unwrap();
        let mut bytes = vec![0; 200];
        let read = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(read, 200);
        let written: Vec<usize> = (0..200).filter(|at| bytes[*at] == 7).collect();
        let expected: Vec<usize> = (40..100).chain(150..200).collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn a_layout_does_not_ask_what_is_written() {
        let before = [extent(0, 1000, 100), extent(100, 5000, 50)];
        let written = FileExtent { unwritten: false, ..extent(0, 1000, 30) };
        let after = [written, extent(30, 1030, 70), extent(100, 5000, 50)];
        assert_eq!(layout(&before), layout(&after));
        assert_ne!(layout(&before), layout(&[extent(0, 1000, 100), extent(100, 5100, 50)]));
    }
}
