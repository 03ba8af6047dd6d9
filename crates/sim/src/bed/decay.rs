//! Blocks that have a checksum, of files and of the volume's own, as one member of a mirror holds them.

use bedplate_fs::{FileKind, FileSystem, InodeNo, OpenOptions};
use bedplate_volume::Config;

/// Returns where on a member a block of a file begins that has a checksum, and is what was written: the
/// so-manieth of them, counted round.
pub(super) fn block(
    fs: &FileSystem,
    config: &Config,
    member: usize,
    number: usize,
    read: &dyn Fn(u64, &mut [u8]),
) -> Option<u64> {
    let layout = &config.volumes.first()?.layout;
    let len = u64::from(fs.info().block_size);
    let mut bytes = vec![0; usize::try_from(len).expect("64 KiB at most")];
    let mut found = Vec::new();
    for ino in files(fs, InodeNo::ROOT) {
        let options = OpenOptions::read_only();
        let extents = fs.open_inode(ino, &options).and_then(|file| file.extents()).ok()?;
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            for skip in (0..extent.len).step_by(bytes.len()) {
                let place = extent.volume_offset + skip;
                let run = layout.locate(place);
                let own = run.copies().iter().find(|copy| usize::from(copy.member) == member);
                let Some(copy) = own.filter(|_| run.len >= len) else { continue };
                read(copy.offset, &mut bytes);
                let at = (extent.file_offset, place);
                if fs.is_as_written(ino, at, &bytes).is_ok_and(|said| said == Some(true)) {
                    found.push(copy.offset);
                }
            }
        }
    }
    found.get(number % found.len().max(1)).copied()
}

/// Returns where on a member a block of the volume's own begins that is in use: the so-manieth of
/// them, counted round.
pub(super) fn own(fs: &FileSystem, config: &Config, member: usize, number: usize) -> Option<u64> {
    let layout = &config.volumes.first()?.layout;
    let (info, mut found) = (fs.info(), Vec::new());
    let mut at = 0;
    while at < info.size_bytes {
        let own = fs.own_at(false, at);
        let run = own
            .as_ref()
            .and_then(|own| own.runs.iter().find(|run| (run.start..run.end()).contains(&at)));
        let end = run.map_or(at, |run| run.end()).max(at + 1);
        if own.is_some_and(|own| own.is_needed()) {
            found.push(at);
        }
        at = end.next_multiple_of(u64::from(info.block_size));
    }
    let address = *found.get(number % found.len().max(1))?;
    let run = layout.locate(address);
    let copy = run.copies().iter().find(|copy| usize::from(copy.member) == member)?;
    Some(copy.offset)
}

/// The files in a directory and below it.
fn files(fs: &FileSystem, dir: InodeNo) -> Vec<InodeNo> {
    let entries = fs.read_dir(dir, None, usize::MAX).unwrap_or_default();
    entries
        .into_iter()
        .flat_map(|entry| match entry.kind {
            FileKind::Directory => files(fs, entry.ino),
            FileKind::File => vec![entry.ino],
            _ => Vec::new(),
        })
        .collect()
}
