//! From a volume address to the file and offset that lie there, and what a database's page says of
//! itself.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bedplate::{
    FileKind, FileSystem, HEAD_BYTES, InodeNo, KeptExtent, OpenOptions, PageArbiter, Role,
    page_formats,
};

use crate::failure::Result;

/// How long the checksums of a block are looked for.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// How many names are read at once.
const PAGE: usize = 1024;

/// Where every file lies.
pub struct Names {
    fs: FileSystem,
    /// The unit in which files lie on the volume.
    block_bytes: u64,
    files: Vec<File>,
    /// By first volume address: file, and the place in its extents.
    by_address: BTreeMap<u64, (usize, usize)>,
    /// What only checkpoints have, by first volume address; some lie over each other.
    kept: Vec<KeptExtent>,
    /// The length of the longest of them.
    kept_bytes_max: u64,
    /// Names of checkpoints by their epoch.
    checkpoints: BTreeMap<u32, String>,
}

struct File {
    ino: InodeNo,
    path: String,
    /// File offset, volume offset, length.
    extents: Vec<(u64, u64, u64)>,
}

impl Names {
    /// Looks all files up.
    pub fn of(fs: &FileSystem) -> Result<Self> {
        let kept = fs.kept_extents()?;
        let named = fs.checkpoints().into_iter();
        let mut names = Self {
            fs: fs.clone(),
            block_bytes: fs.info().block_size.into(),
            files: Vec::new(),
            by_address: BTreeMap::new(),
            kept_bytes_max: kept.iter().map(|kept| kept.len).max().unwrap_or(0),
            kept,
            checkpoints: named
                .map(|one| (one.epoch.0, bedplate::readable_name(&one.name)))
                .collect(),
        };
        // What cannot be read of the metadata has no copy that is right: the scrub tells it.
        if let Err(error) = fs.learn_pages() {
            tracing::warn!("{error}");
        }
        let mut waiting = vec![(InodeNo::ROOT, String::new())];
        while let Some((dir, path)) = waiting.pop() {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let entries = fs.read_dir(dir, after.as_deref(), PAGE)?;
                let Some(last) = entries.last() else { break };
                after = Some(last.name.clone());
                for entry in entries {
                    let path = format!("{path}/{}", bedplate::readable_name(&entry.name));
                    match entry.kind {
                        FileKind::Directory => waiting.push((entry.ino, path)),
                        FileKind::File => names.add(fs, entry.ino, path)?,
                        _ => {}
                    }
                }
            }
        }
        Ok(names)
    }

    fn add(&mut self, fs: &FileSystem, ino: InodeNo, path: String) -> Result<()> {
        let file = fs.open_inode(ino, &OpenOptions { read: true, ..OpenOptions::default() })?;
        let written = file.extents()?.into_iter().filter(|extent| !extent.unwritten);
        let extents: Vec<(u64, u64, u64)> =
            written.map(|extent| (extent.file_offset, extent.volume_offset, extent.len)).collect();
        let number = self.files.len();
        self.by_address
            .extend(extents.iter().enumerate().map(|(at, (_, start, _))| (*start, (number, at))));
        self.files.push(File { ino, path, extents });
        Ok(())
    }

    /// Returns the extents at an address that only checkpoints have.
    fn kept_at(&self, address: u64) -> impl Iterator<Item = &KeptExtent> {
        let behind = self.kept.partition_point(|kept| kept.volume_offset <= address);
        let near = self.kept[..behind]
            .iter()
            .rev()
            .take_while(move |kept| kept.volume_offset + self.kept_bytes_max > address);
        near.filter(move |kept| address - kept.volume_offset < kept.len)
    }

    /// Returns path and offset of what lies at a volume address; `None` where no file does.
    pub fn at(&self, address: u64) -> Option<(&str, u64)> {
        let (start, (file, extent)) = self.by_address.range(..=address).next_back()?;
        let (offset, _, len) = self.files[*file].extents[*extent];
        (address - start < len).then(|| (self.files[*file].path.as_str(), offset + address - start))
    }

    /// Returns the runs of volume addresses that hold a range of the file at `address`.
    fn runs(&self, address: u64, mut range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let (_, (file, _)) = self.by_address.range(..=address).next_back()?;
        let mut runs = Vec::new();
        while !range.is_empty() {
            let extents = self.files[*file].extents.iter();
            let (offset, start, len) = *extents
                .clone()
                .find(|(offset, _, len)| (*offset..offset + len).contains(&range.start))?;
            let end = range.end.min(offset + len);
            runs.push(start + range.start - offset..start + end - offset);
            range.start = end;
        }
        Some(runs)
    }

    /// Returns what is told of what lies at an address of a volume: a page of a database by format,
    /// file and number, what only a checkpoint has, or what of the file system's own.
    pub fn told_at(&self, role: Role, address: u64) -> Option<String> {
        if let Some(own) = self.fs.own_at(role == Role::Log, address) {
            return Some(own.what().to_owned());
        }
        if role != Role::Data {
            return None;
        }
        self.page_at(address).or_else(|| {
            let kept = self.kept_at(address).next()?;
            let byte = kept.file_offset + (address - kept.volume_offset);
            let name = self.checkpoints.get(&kept.epoch.0).map_or("a deleted one", String::as_str);
            Some(format!("checkpoint '{name}', inode {}, byte {byte}", kept.ino.0))
        })
    }

    fn page_at(&self, address: u64) -> Option<String> {
        let (path, offset) = self.at(address)?;
        let head = self.head(address).unwrap_or_default();
        let format = page_formats()
            .into_iter()
            .find_map(|format| Some((format.name(), format.page_bytes(path, &head)?)));
        Some(match format {
            Some((name, page_bytes)) => {
                format!("{path}, byte {offset}, {name} page {}", offset / page_bytes)
            }
            None => format!("{path}, byte {offset}"),
        })
    }

    /// Returns the first bytes of the file at an address as the file system reads them.
    fn head(&self, address: u64) -> Option<Vec<u8>> {
        let (_, (file, _)) = self.by_address.range(..=address).next_back()?;
        let file = self
            .fs
            .open_inode(
                self.files[*file].ino,
                &OpenOptions { read: true, ..OpenOptions::default() },
            )
            .ok()?;
        let mut head = vec![0; HEAD_BYTES];
        let len = file.read_at(&mut head, 0).ok()?;
        head.truncate(len);
        Some(head)
    }

    /// Reads a range of the file at an address as one copy has it.
    fn read_copy(
        &self,
        address: u64,
        range: Range<u64>,
        copy: usize,
        read: &mut ReadCopy<'_>,
    ) -> Option<Vec<u8>> {
        let from = range.start / self.block_bytes * self.block_bytes;
        let to = range.end.next_multiple_of(self.block_bytes);
        let mut bytes = vec![0; usize::try_from(to - from).ok()?];
        let mut at = 0;
        for run in self.runs(address, from..to)? {
            let len = usize::try_from(run.end - run.start).ok()?;
            if !read(copy, run.start, &mut bytes[at..at + len]) {
                return None;
            }
            at += len;
        }
        let start = usize::try_from(range.start - from).ok()?;
        Some(bytes[start..start + usize::try_from(range.end - range.start).ok()?].to_vec())
    }
}

/// Fills a buffer from a copy, at a volume address, and says whether that worked.
type ReadCopy<'a> = dyn FnMut(usize, u64, &mut [u8]) -> bool + 'a;

/// Takes the copy for right whose block has its checksum, or whose database pages verify, where
/// those of all others do not.
impl PageArbiter for Names {
    fn judge(
        &self,
        role: Role,
        range: Range<u64>,
        copies: usize,
        read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        let mut address = range.start;
        let mut right: Option<usize> = None;
        while address < range.end {
            let (end, verdict) = self.judge_at(role, address, copies, read)?;
            // Every page of the range that differs has to name the same copy, and only that one.
            match (verdict, right) {
                (Some(copy), Some(before)) if copy != before => return None,
                (verdict, before) => right = verdict.or(before),
            }
            address = end;
        }
        // Where they differ in what is not needed, the first counts, so that they become alike.
        right.or(Some(0))
    }

    fn lies_at(&self, role: Role, address: u64) -> Option<String> {
        self.told_at(role, address)
    }
}

/// Where something ends on the volume, and which copy of it is right: none where all are the same.
type Verdict = (u64, Option<usize>);

impl Names {
    /// Returns what is known of the copies of what lies at an address.
    fn judge_at(
        &self,
        role: Role,
        address: u64,
        copies: usize,
        read: &mut ReadCopy<'_>,
    ) -> Option<Verdict> {
        let of_log = role == Role::Log;
        if let Some(own) = self.aside(move |fs| fs.own_at(of_log, address)).flatten() {
            return own.right_copy(address, copies, read);
        }
        if role != Role::Data {
            return None;
        }
        let Some((path, offset)) = self.at(address) else {
            return self.judge_kept(address, copies, read);
        };
        match self.judge_block(address, copies, read) {
            Some(said) => Some(said),
            None => {
                let (end, right) = self.judge_page(address, (path, offset), copies, read)?;
                Some((address + (end - offset), right))
            }
        }
    }

    /// Judges the block of a file by the checksum that the file system keeps. Nothing where it keeps
    /// none, or no copy has it.
    fn judge_block(&self, address: u64, copies: usize, read: &mut ReadCopy<'_>) -> Option<Verdict> {
        let (start, (file, extent)) = self.by_address.range(..=address).next_back()?;
        let file = &self.files[*file];
        let place = address - (address - start) % self.block_bytes;
        let (ino, offset) = (file.ino, file.extents[*extent].0);
        let blocks = self.blocks_at(place, copies, read)?;
        self.judge_sum(place, &blocks, move |fs, bytes| {
            fs.is_as_written(ino, (offset, place), bytes).ok().flatten()
        })
    }

    /// As [`judge_block`](Self::judge_block), of a block that only checkpoints have.
    fn judge_kept(&self, address: u64, copies: usize, read: &mut ReadCopy<'_>) -> Option<Verdict> {
        self.kept_at(address).copied().find_map(|kept| {
            let place = address - (address - kept.volume_offset) % self.block_bytes;
            let blocks = self.blocks_at(place, copies, read)?;
            self.judge_sum(place, &blocks, move |fs, bytes| {
                fs.is_as_kept(&kept, place, bytes).ok().flatten()
            })
        })
    }

    /// Reads a block as each copy has it.
    fn blocks_at(
        &self,
        place: u64,
        copies: usize,
        read: &mut ReadCopy<'_>,
    ) -> Option<Vec<Option<Vec<u8>>>> {
        let len = usize::try_from(self.block_bytes).ok()?;
        Some(
            (0..copies)
                .map(|copy| {
                    let mut bytes = vec![0; len];
                    read(copy, place, &mut bytes).then_some(bytes)
                })
                .collect(),
        )
    }

    fn judge_sum(
        &self,
        place: u64,
        blocks: &[Option<Vec<u8>>],
        is_right: impl Fn(&FileSystem, &[u8]) -> Option<bool> + Send + 'static,
    ) -> Option<Verdict> {
        let looked_at = blocks.to_vec();
        let right: Vec<bool> = self.aside(move |fs| {
            let is_right = |bytes: &Option<Vec<u8>>| match bytes {
                Some(bytes) => is_right(fs, bytes),
                None => Some(false),
            };
            looked_at.iter().map(is_right).collect::<Option<Vec<bool>>>()
        })??;
        Some((place + self.block_bytes, bedplate::right_of(blocks, &right)?))
    }

    /// Asks the file system on a thread of its own. The scrub that asks keeps a region or a row of a
    /// RAID-5 to itself, in which the metadata may have to be read while a member fails: so what is
    /// not found in time is not known.
    fn aside<T: Send + 'static>(
        &self,
        look: impl FnOnce(&FileSystem) -> T + Send + 'static,
    ) -> Option<T> {
        let (fs, (answer, answered)) = (self.fs.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let found = look(&fs);
            drop(fs);
            // Nothing waits for it any more where it came too late.
            answer.send(found).unwrap_or_default();
        });
        answered.recv_timeout(LOOK_TIME).ok()
    }

    /// Returns where the page at an address ends in its file, and which copy of it is the only one
    /// that is whole: none where all are the same. Nothing when that cannot be told. The head of
    /// the file may be what differs, so every copy's own is believed in turn.
    fn judge_page(
        &self,
        address: u64,
        place: (&str, u64),
        copies: usize,
        read: &mut ReadCopy<'_>,
    ) -> Option<(u64, Option<usize>)> {
        let (path, offset) = place;
        let mut tried: Vec<(&str, u64)> = Vec::new();
        for copy in 0..copies {
            let head =
                self.read_copy(address, 0..HEAD_BYTES as u64, copy, read).unwrap_or_default();
            let told = page_formats()
                .into_iter()
                .find_map(|format| Some((format, format.page_bytes(path, &head)?)));
            let Some((format, page_bytes)) =
                told.filter(|(format, bytes)| !tried.contains(&(format.name(), *bytes)))
            else {
                continue;
            };
            tried.push((format.name(), page_bytes));
            let start = offset / page_bytes * page_bytes;
            let pages: Vec<Option<Vec<u8>>> = (0..copies)
                .map(|copy| self.read_copy(address, start..start + page_bytes, copy, read))
                .collect();
            let first = pages.first()?;
            if first.is_some() && pages.iter().all(|page| page == first) {
                return Some((start + page_bytes, None));
            }
            let is_whole = |copy: &usize| {
                pages[*copy].as_ref().is_some_and(|page| format.is_whole(path, start, page))
            };
            let whole: Vec<usize> = (0..copies).filter(is_whole).collect();
            if let [copy] = whole[..] {
                return Some((start + page_bytes, Some(copy)));
            }
        }
        None
    }
}
