//! Making the volume beside the old file system.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bedplate_block::{
    BlockDevice, DeviceOptions, InPlaceHeader, InPlaceState, Watched, show_in_place,
};
use bedplate_fs::{AdoptedExtent, Adoption, FileKind, adopt};
use serde::Serialize;

use crate::device::{open, uuid_text, verify, when_free};
use crate::error::{Error, ErrorKind, Result, system};
use crate::fence::fenced;
use crate::mounted::{Mounted, give_up, in_private};
use crate::old::{HEAD_BYTES, Old, look, read};
use crate::places::{Split, part_shared, split};
use crate::room::{Placed, Room, Writer, layout, log_bytes, put};
use crate::scan::{self, Scan, scan};

/// Bytes that are left to the old file system for itself.
const MARGIN_BYTES: u64 = 1 << 20;
/// Bytes of a copy that are read at once.
const STEP_BYTES: u64 = 1 << 20;

/// What a conversion needs, and what it would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, pipes, sockets.
    pub others: u64,
    /// Bytes of data that stay where they lie.
    pub adopted_bytes: u64,
    /// Bytes that are reserved for files and stay so.
    pub reserved_bytes: u64,
    /// Bytes of data that are copied into free space.
    pub copied_bytes: u64,
    /// Files of which something is copied.
    pub copied_files: u64,
    /// Extended attributes that a volume does not keep.
    pub attributes_left_out: u64,
    /// Bytes that the metadata may take at first.
    pub metadata_bytes: u64,
    /// Bytes of the intent log.
    pub log_bytes: u64,
    /// Bytes of free space that are needed in all until the commit.
    pub needed_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// What would be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What the device holds.
    pub old: &'static str,
    /// Bytes of a block, of the old file system and of the volume.
    pub block_size: u32,
    /// What it needs.
    pub needs: Needs,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Made {
    /// What the device holds besides.
    pub old: &'static str,
    /// Identity of the volume.
    pub uuid: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// What it needed; `metadata_bytes` is what was used.
    pub needs: Needs,
}

impl Needs {
    /// Returns how many bytes are missing.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        (self.needed_bytes + MARGIN_BYTES).saturating_sub(self.free_bytes)
    }

    fn refuse_too_little(&self, name: &str) -> Result<()> {
        match self.missing_bytes() {
            0 => Ok(()),
            missing => Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{name}: the volume needs {} bytes of free space and {} are free: remove files of \
                     {missing} bytes, or convert it by copying, 'bedplate convert DIR --to MOUNTED_DIR'",
                    self.needed_bytes + MARGIN_BYTES,
                    self.free_bytes
                ),
            )),
        }
    }
}

/// Looks at a device, which must not be in use.
fn look_at(path: &Path, read_only: bool) -> Result<Old> {
    let options = DeviceOptions { read_only, ..DeviceOptions::default() };
    let device = bedplate_block::open(path, &options)?;
    let name = device.name().to_owned();
    if let Some(header) = InPlaceHeader::find(&*device)? {
        let what = match header.state {
            InPlaceState::Made => "is converted already: commit it or abandon it",
            InPlaceState::Committing => "has a commit that was cut short: commit it again",
        };
        return Err(Error::new(
            ErrorKind::Exists,
            format!("{name} {what}, with 'bedplate convert'"),
        ));
    }
    look(&*device)
}

/// Tells what a conversion would do. The old file system is mounted for reading meanwhile, where
/// nothing else sees it.
///
/// # Errors
/// Those of [`make`], but for too little space: [`Needs::missing_bytes`] tells it.
pub fn plan(path: &Path) -> Result<Plan> {
    let old = look_at(path, true)?;
    in_private(|| {
        let mounted = Mounted::mount(path, old.mount_type(), true)?;
        let mut found = Found::of(&mounted, &old)?;
        found.needs.free_bytes = mounted.free_bytes()?;
        mounted.unmount()?;
        Ok(Plan { old: old.name(), block_size: old.block_size, needs: found.needs })
    })
}

/// What the old file system has, and what becomes of it.
struct Found {
    scan: Scan,
    splits: Vec<Split>,
    needs: Needs,
}

impl Found {
    fn of(mounted: &Mounted, old: &Old) -> Result<Self> {
        let scan = scan(mounted.dir())?;
        let block = u64::from(old.block_size);
        let all = scan.inodes.iter().zip(&scan.extents);
        let mut splits: Vec<Split> =
            all.map(|(inode, extents)| split(extents, inode.size, block)).collect();
        part_shared(&mut splits);
        let needs = needs(&scan, &splits, old);
        Ok(Self { scan, splits, needs })
    }
}

fn needs(scan: &Scan, splits: &[Split], old: &Old) -> Needs {
    let block = u64::from(old.block_size);
    let mut needs = Needs {
        attributes_left_out: scan.left_out,
        log_bytes: log_bytes(old.size_bytes),
        ..Needs::default()
    };
    let (mut rows, mut extents) = (0, 0);
    for (inode, split) in scan.inodes.iter().zip(splits) {
        match inode.kind {
            FileKind::File => needs.files += 1,
            FileKind::Directory => needs.directories += 1,
            _ => needs.others += 1,
        }
        let names: usize = inode.names.iter().map(|(_, name)| name.len() + 64).sum();
        let values: usize =
            inode.attributes.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        rows += (256 + inode.target.len() + names + values) as u64;
        extents += (split.stays.len() + 2 * split.copies.len()) as u64;
        let bytes = |unwritten: bool| {
            let these = split.stays.iter().filter(|one| one.unwritten == unwritten);
            these.map(|one| one.blocks).sum::<u64>() * block
        };
        needs.adopted_bytes += bytes(false);
        needs.reserved_bytes += bytes(true);
        needs.copied_bytes += split.copied() * block;
        needs.copied_files += u64::from(!split.copies.is_empty());
    }
    // Pages of the tree are half full where rows come in any order, and its file doubles as it grows.
    let regions = old.size_bytes / block / 1024 * 8;
    needs.metadata_bytes =
        (4 * (rows + extents * 40 + regions) + (8 << 20)).next_multiple_of(1 << 20);
    let grain = bedplate_block::in_place_grain_bytes(old.size_bytes);
    let slack = 2 * grain.max(64 << 10) + (1 << 20);
    needs.needed_bytes = (needs.metadata_bytes + needs.log_bytes + needs.copied_bytes + slack)
        .next_multiple_of(1 << 20);
    needs
}

/// What was prepared while the old file system was mounted.
struct Prepared {
    adoption: Adoption,
    placed: Placed,
    /// What may be written.
    open: Vec<Range<u64>>,
    needs: Needs,
}

/// Makes a volume of the files on a device or in an image, beside their file system, which stays as
/// it is. `progress` is told how many bytes of how many are copied.
///
/// # Errors
/// `Exists` where a conversion was made already, `Unsupported` and `Damaged` where the old file system
/// cannot be converted, `NoSpace`, `Busy`, `NotPermitted`, those of the device. Nothing is left behind
/// then.
pub fn make(path: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Made> {
    let old = look_at(path, false)?;
    let prepared = in_private(|| {
        let mounted = Mounted::mount(path, old.mount_type(), false)?;
        let prepared = prepare(path, &mounted, &old, progress);
        if prepared.is_err() {
            let _removed = mounted.remove_file();
        }
        mounted.unmount()?;
        prepared
    })?;
    let made = when_free(path, || open(path)).and_then(|device| write(device, &old, &prepared));
    if made.is_err() {
        give_up(path, &old);
    }
    made
}

fn prepare(
    path: &Path,
    mounted: &Mounted,
    old: &Old,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Prepared> {
    // A conversion that was killed left it.
    mounted.remove_file()?;
    let Found { scan, splits, mut needs } = Found::of(mounted, old)?;
    needs.free_bytes = mounted.free_bytes()?;
    needs.refuse_too_little(&path.display().to_string())?;
    let file = mounted.make_file(needs.needed_bytes)?;
    let extents = mounted.file_extents(&file)?;
    let block = u64::from(old.block_size);
    let room = Room::of(&extents, block);
    let placed = room.place(old.size_bytes, needs.metadata_bytes, needs.copied_bytes)?;
    let writer = Writer { file: &file, extents: &extents };
    let copies =
        Copies { writer, mounted, scan: &scan, block, progress, total: needs.copied_bytes };
    let placed_extents = copies.carry_out(splits, &placed.copies)?;
    file.sync_all().map_err(system("write", path))?;
    if layout(&extents) != layout(&mounted.file_extents(&file)?) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: its file system moved blocks while they were written, so none can be relied on",
                path.display()
            ),
        ));
    }
    let open = extents.iter().map(|one| one.place..one.place + one.len).collect();
    let mut inodes = scan.inodes;
    for (inode, extents) in inodes.iter_mut().zip(placed_extents) {
        inode.extents = extents;
    }
    let adoption = Adoption {
        block_size: old.block_size,
        size_bytes: old.size_bytes / block * block,
        log: placed.log.clone(),
        metadata: placed.metadata.clone(),
        inodes,
    };
    Ok(Prepared { adoption, placed, open, needs })
}

/// Copies what cannot stay.
struct Copies<'a> {
    writer: Writer<'a>,
    mounted: &'a Mounted,
    scan: &'a Scan,
    block: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
    total: u64,
}

impl Copies<'_> {
    /// Copies into ranges of the device; returns all extents of each inode.
    fn carry_out(
        &self,
        splits: Vec<Split>,
        room: &[Range<u64>],
    ) -> Result<Vec<Vec<AdoptedExtent>>> {
        let mut all = Vec::with_capacity(splits.len());
        let mut room = room.to_vec();
        let mut done = 0;
        for (index, split) in splits.into_iter().enumerate() {
            let mut extents = split.stays;
            if !split.copies.is_empty() {
                let source = scan::open(self.mounted.dir(), self.scan, index)?;
                for blocks in split.copies {
                    done += (blocks.end - blocks.start) * self.block;
                    extents.extend(self.copy(&source, blocks, &mut room)?);
                    (self.progress)(done, self.total);
                }
            }
            extents.sort_by_key(|one| one.file_block);
            all.push(extents);
        }
        Ok(all)
    }

    fn copy(
        &self,
        source: &std::fs::File,
        blocks: Range<u64>,
        room: &mut Vec<Range<u64>>,
    ) -> Result<Vec<AdoptedExtent>> {
        let mut made = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let run = room.first_mut().expect("there is room for all that is copied");
            let step = ((blocks.end - at) * self.block)
                .min(run.end - run.start)
                .min(STEP_BYTES.max(self.block));
            let mut bytes = vec![0; step as usize];
            let read = read_up_to(source, &mut bytes, at * self.block);
            read.map_err(system("read a file of", self.mounted.dir()))?;
            let written = self.writer.write(&bytes, run.start);
            written.map_err(system("copy a file of", self.mounted.dir()))?;
            let len = step / self.block;
            let start = run.start / self.block;
            made.push(AdoptedExtent { file_block: at, start, blocks: len, unwritten: false });
            run.start += step;
            at += len;
            if run.is_empty() {
                room.remove(0);
            }
        }
        Ok(made)
    }
}

/// Fills a buffer as far as the file goes; zeros follow.
fn read_up_to(file: &std::fs::File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(())
}

/// Writes the metadata, what is kept elsewhere until the commit, and then the header.
fn write(device: Arc<dyn BlockDevice>, old: &Old, prepared: &Prepared) -> Result<Made> {
    if look(&*device)? != *old {
        let name = device.name();
        return Err(Error::new(
            ErrorKind::Changed,
            format!("{name}: its file system became another one meanwhile"),
        ));
    }
    let device: Arc<dyn BlockDevice> = fenced(device, &prepared.open);
    let volume = adopt(&device, &prepared.adoption)?;
    let placed = &prepared.placed;
    put(&*device, &volume.superblock, placed.superblock_at)?;
    put(&*device, &read(&*device, 0, HEAD_BYTES)?, placed.old_head_at)?;
    device.flush()?;
    let watched = old
        .watched
        .iter()
        .map(|range| Watched::of(&*device, range.start, range.end - range.start))
        .collect::<bedplate_block::Result<Vec<_>>>()?;
    let header = InPlaceHeader {
        volume: volume.uuid,
        sequence: 1,
        at: placed.header_at,
        size_bytes: device.size_bytes(),
        state: InPlaceState::Made,
        old: old.kind,
        superblock_at: placed.superblock_at,
        old_head_at: placed.old_head_at,
        watched,
    };
    verify(&device, &header)?;
    header.write(&*device)?;
    debug_assert!(
        show_in_place(String::new(), &device, &header).size_bytes() == device.size_bytes(),
        "what is shown is as large as the device"
    );
    let needs = Needs { metadata_bytes: volume.metadata_bytes, ..prepared.needs.clone() };
    Ok(Made { old: old.name(), uuid: uuid_text(volume.uuid), block_size: old.block_size, needs })
}
