//! Content of files in the model: what writes and changes of ranges make of it.

use super::Refusal;
use crate::workload::{Change, pattern};

pub(super) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("workloads write small files")
}

pub(super) fn write(content: &mut Vec<u8>, offset: u64, len: u32, fill: u8) -> Result<(), Refusal> {
    let bytes = pattern(offset, len, fill);
    let end = index(offset) + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[index(offset)..end].copy_from_slice(&bytes);
    Ok(())
}

/// The bytes do not depend on where they go: an append learns that when it is carried out.
pub(super) fn append(content: &mut Vec<u8>, len: u32, fill: u8) -> Result<(), Refusal> {
    content.extend(pattern(0, len, fill));
    Ok(())
}

/// Copies up to a length of what a source holds from some offset on; `overlaps` says whether so many
/// bytes would be copied onto themselves.
pub(super) fn copy(
    content: &mut Vec<u8>,
    into: u64,
    source: &[u8],
    len: u32,
    overlaps: impl Fn(u64) -> bool,
) -> Result<(), Refusal> {
    let bytes = &source[..index(len.into()).min(source.len())];
    if bytes.is_empty() {
        return Ok(());
    }
    if overlaps(bytes.len() as u64) {
        return Err("the ranges overlap");
    }
    let end = index(into) + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[index(into)..end].copy_from_slice(bytes);
    Ok(())
}

pub(crate) fn allocate(
    content: &mut Vec<u8>,
    block: u64,
    change: Change,
    offset: u64,
    len: u64,
) -> Result<(), Refusal> {
    let (start, end, size) = (index(offset), index(offset + len), content.len());
    let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
    match change {
        Change::Preallocate => content.resize(size.max(end), 0),
        Change::PreallocateKeep => {}
        Change::Punch => content[start.min(size)..end.min(size)].fill(0),
        Change::Zero => {
            content[start.min(size)..end.min(size)].fill(0);
            content.resize(size.max(end), 0);
        }
        Change::Collapse if !aligned || end >= size => return Err("the range cannot be cut out"),
        Change::Collapse => drop(content.drain(start..end)),
        Change::Insert if !aligned || start >= size => return Err("nothing can be put in there"),
        Change::Insert => drop(content.splice(start..start, std::iter::repeat_n(0, end - start))),
    }
    Ok(())
}
