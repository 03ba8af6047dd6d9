//! From a volume address to the file and offset that lie there, and what a database's page says of itself.

use std::collections::BTreeMap;
use std::ops::Range;

use bedplate::{FileKind, FileSystem, InodeNo, Judge, OpenOptions, PageFormat, Postgres, Role};

use crate::failure::Result;

/// How many names are read at once.
const PAGE: usize = 1024;

/// Where every file lies.
pub struct Names {
    files: Vec<File>,
    /// By first volume address: file, and the place in its extents.
    by_address: BTreeMap<u64, (usize, usize)>,
}

struct File {
    path: String,
    /// File offset, volume offset, length.
    extents: Vec<(u64, u64, u64)>,
}

impl Names {
    /// Looks all files up.
    pub fn of(fs: &FileSystem) -> Result<Self> {
        let mut names = Self { files: Vec::new(), by_address: BTreeMap::new() };
        let mut waiting = vec![(InodeNo::ROOT, String::new())];
        while let Some((dir, path)) = waiting.pop() {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let entries = fs.read_dir(dir, after.as_deref(), PAGE)?;
                let Some(last) = entries.last() else { break };
                after = Some(last.name.clone());
                for entry in entries {
                    let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
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
        let extents: Vec<(u64, u64, u64)> = written.map(|extent| (extent.file_offset, extent.volume_offset, extent.len)).collect();
        let number = self.files.len();
        self.by_address.extend(extents.iter().enumerate().map(|(at, (_, start, _))| (*start, (number, at))));
        self.files.push(File { path, extents });
        Ok(())
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
            let (offset, start, len) = *extents.clone().find(|(offset, _, len)| (*offset..offset + len).contains(&range.start))?;
            let end = range.end.min(offset + len);
            runs.push(start + range.start - offset..start + end - offset);
            range.start = end;
        }
        Some(runs)
    }

    /// Returns what is told of the page that lies at an address: format, file and page number.
    pub fn page_at(&self, address: u64) -> Option<String> {
        let (path, offset) = self.at(address)?;
        let format = formats().into_iter().find_map(|format| Some((format.name(), format.page_bytes(path)?)));
        Some(match format {
            Some((name, page_bytes)) => format!("{path}, byte {offset}, {name} page {}", offset / page_bytes),
            None => format!("{path}, byte {offset}"),
        })
    }
}

fn formats() -> [Box<dyn PageFormat>; 1] {
    [Box::new(Postgres)]
}

/// Takes the copy for right whose database pages verify where those of all others do not.
pub struct NamesJudge<'a>(pub &'a Names);

impl Judge for NamesJudge<'_> {
    fn judge(&self, role: Role, range: Range<u64>, copies: usize, read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool) -> Option<usize> {
        if role != Role::Data {
            return None;
        }
        let mut address = range.start;
        let mut right: Option<usize> = None;
        while address < range.end {
            let (path, offset) = self.0.at(address)?;
            let (format, page_bytes) = formats().into_iter().find_map(|format| format.page_bytes(path).map(|bytes| (format, bytes)))?;
            let start = offset / page_bytes * page_bytes;
            let runs = self.0.runs(address, start..start + page_bytes)?;
            let whole: Vec<usize> = (0..copies)
                .filter(|copy| read_page(&runs, page_bytes, *copy, read).is_some_and(|page| format.is_whole(path, start, &page)))
                .collect();
            // Every page of the range has to name the same copy, and only that one.
            match (whole[..].first(), whole.len(), right) {
                (Some(copy), 1, None) => right = Some(*copy),
                (Some(copy), 1, Some(before)) if *copy == before => {}
                _ => return None,
            }
            address += page_bytes - (offset - start);
        }
        right
    }
}

fn read_page(runs: &[Range<u64>], page_bytes: u64, copy: usize, read: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool) -> Option<Vec<u8>> {
    let mut page = vec![0; usize::try_from(page_bytes).ok()?];
    let mut from = 0;
    for run in runs {
        let len = usize::try_from(run.end - run.start).ok()?;
        if !read(copy, run.start, &mut page[from..from + len]) {
            return None;
        }
        from += len;
    }
    Some(page)
}
