//! Which file a device write belongs to: what a developer asks first about a write that was lost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{BlockDevice, FileKind, FileSystem, InodeNo, MountOptions, OpenOptions};

use crate::error::Result;

/// A run of a file on the volume.
#[derive(Debug, Clone)]
struct Run {
    end: u64,
    path: Arc<PathBuf>,
    /// Where it begins in the file, in bytes.
    file_offset: u64,
}

/// Where every file of a volume lies.
#[derive(Debug, Default)]
pub struct Layout {
    runs: BTreeMap<u64, Run>,
}

impl Layout {
    /// Reads it from a volume, which is recovered for that in memory alone.
    pub fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let fs = FileSystem::mount(
            device,
            None,
            MountOptions { read_only: true, ..MountOptions::default() },
        )?;
        let mut layout = Self::default();
        layout.walk(&fs, fs.resolve("/")?.ino, Path::new("/"))?;
        fs.unmount()?;
        Ok(layout)
    }

    fn walk(&mut self, fs: &FileSystem, dir: InodeNo, path: &Path) -> Result<()> {
        const PAGE: usize = 1024;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let entries = fs.read_dir(dir, after.as_deref(), PAGE)?;
            for entry in &entries {
                let path = path.join(String::from_utf8_lossy(&entry.name).as_ref());
                match entry.kind {
                    FileKind::Directory => self.walk(fs, entry.ino, &path)?,
                    FileKind::File => self.add(fs, entry.ino, path)?,
                    _ => {}
                }
            }
            let Some(last) = entries.last() else { return Ok(()) };
            after = Some(last.name.clone());
        }
    }

    fn add(&mut self, fs: &FileSystem, ino: InodeNo, path: PathBuf) -> Result<()> {
        let path = Arc::new(path);
        for extent in fs.open_inode(ino, &OpenOptions::read_only())?.extents()? {
            let run = Run {
                end: extent.volume_offset + extent.len,
                path: Arc::clone(&path),
                file_offset: extent.file_offset,
            };
            self.runs.insert(extent.volume_offset, run);
        }
        Ok(())
    }

    /// Names the file and the place in it where a range of the device begins; `None` where no file
    /// is.
    pub fn name(&self, range: &Range<u64>) -> Option<String> {
        let (start, run) =
            self.runs.range(..range.end).next_back().filter(|(_, run)| run.end > range.start)?;
        let (from, to) = (range.start.max(*start), range.end.min(run.end));
        debug_assert!(from < to, "the run that was found overlaps the range: {range:?}");
        Some(format!(
            "{} {}..{}",
            run.path.display(),
            run.file_offset + from - start,
            run.file_offset + to - start
        ))
    }
}
