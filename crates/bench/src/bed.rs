//! A place to measure on when none is given: image files, and as root loop devices, an XFS and a
//! Bedplate mount.
//!
//! ```text
//!   directory ── raw.img ──── loop ── raw target
//!            ├── volume.img ─ loop ── volume targets (one volume, every mode)
//!            ├── kernel.img ─ loop ── XFS or ext4 ── path targets
//!            └── mount.img ── loop ── Bedplate mount ── path target
//! ```
//! Every image is written in full first, so that the file system below does no allocation while
//! something is measured. Without root the images are used as they are, and the directory's own
//! file system stands for the kernel's.

mod pair;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target::{TargetSpec, fill_pattern};
use crate::{Error, Result};
pub use pair::PairOptions;

/// What images are made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceClass {
    /// Shared memory: shows what the processor's part costs.
    Memory,
    /// Files on a disk.
    Disk,
}

/// How to make the place.
#[derive(Debug, Clone)]
pub struct BedOptions {
    /// What the images lie on.
    pub class: DeviceClass,
    /// Where the images go; `None`: `/dev/shm` or the directory for temporary files.
    pub directory: Option<PathBuf>,
    /// Size of each image in bytes.
    pub image_bytes: u64,
    /// The `bedplate` program, to make a mount with; `None`: no mount is measured.
    pub program: Option<PathBuf>,
}

/// The place. Everything it made goes away with it.
pub struct Bed {
    /// In the order of making; taken down in reverse.
    undo: Vec<Undo>,
    raw: PathBuf,
    volume: PathBuf,
    kernel: Option<(PathBuf, &'static str)>,
    mount: Option<PathBuf>,
    /// What could not be had, one sentence each.
    pub missing: Vec<String>,
}

enum Undo {
    Directory(PathBuf),
    Loop(PathBuf),
    Mount(PathBuf),
    BedplateMount { program: PathBuf, directory: PathBuf },
}

/// The parts that targets play; a workload picks some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The raw device.
    Raw,
    /// The volume, `concurrent`.
    Concurrent,
    /// The volume, `direct` with byte-range locks.
    Direct,
    /// The volume, `direct` with the whole-file lock.
    Whole,
    /// The volume, `cached`.
    Cached,
    /// The volume, `concurrent+cache`.
    ConcurrentCache,
    /// The kernel's file system with `O_DIRECT`.
    KernelDirect,
    /// The kernel's file system through the page cache.
    KernelBuffered,
    /// A Bedplate mount, `concurrent`, opened with `O_DIRECT`.
    Mount,
}

impl Bed {
    /// Makes the place.
    ///
    /// # Errors
    /// `Target` and `Io` when there is no room for the images or they cannot be written.
    pub fn make(options: &BedOptions) -> Result<Self> {
        let parent = options.directory.clone().unwrap_or_else(|| match options.class {
            DeviceClass::Memory => PathBuf::from("/dev/shm"),
            DeviceClass::Disk => std::env::temp_dir(),
        });
        let directory = parent.join(format!("bedplate-bench-bed-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|e| {
            Error::io(directory.display(), "cannot make the directory for images", e)
        })?;
        let mut bed = Self {
            undo: vec![Undo::Directory(directory.clone())],
            raw: directory.join("raw.img"),
            volume: directory.join("volume.img"),
            kernel: None,
            mount: None,
            missing: Vec::new(),
        };
        check_room(&directory, options.image_bytes * 4)?;
        for image in [&bed.raw, &bed.volume] {
            write_image(image, options.image_bytes)?;
        }
        if rustix::process::geteuid().is_root() {
            bed.as_root(&directory, options)?;
        } else {
            bed.missing.push(
                "without root there are no loop devices: image files are used as they are".into(),
            );
            bed.kernel = Some((directory, "files"));
        }
        Ok(bed)
    }

    fn as_root(&mut self, directory: &Path, options: &BedOptions) -> Result<()> {
        let (raw, volume) = (self.raw.clone(), self.volume.clone());
        match (self.attach(&raw), self.attach(&volume)) {
            (Ok(raw), Ok(volume)) => (self.raw, self.volume) = (raw, volume),
            (Err(e), _) | (_, Err(e)) => self
                .missing
                .push(format!("no loop device, so image files are used as they are: {e}")),
        }
        if let Err(e) = self.make_kernel(directory, options.image_bytes) {
            self.missing.push(format!(
                "no kernel file system of its own, so the directory's stands for it: {e}"
            ));
            self.kernel = Some((directory.to_path_buf(), "files"));
        }
        if let Some(program) = &options.program
            && let Err(e) = self.make_mount(directory, options.image_bytes, program)
        {
            self.missing.push(format!("no Bedplate mount: {e}"));
        }
        Ok(())
    }

    fn attach(&mut self, image: &Path) -> Result<PathBuf> {
        self.attach_part(image, &[])
    }

    /// Attaches a file or device, or the part of it that the arguments say.
    fn attach_part(&mut self, image: &Path, part: &[String]) -> Result<PathBuf> {
        // Sectors of 512 bytes show what small log writes cost; direct I/O keeps the host's page
        // cache out.
        let args = ["--find", "--show", "--direct-io=on", "--sector-size=512"];
        let mut losetup = Command::new("losetup");
        let device = PathBuf::from(call(losetup.args(args).args(part).arg(image))?.trim());
        self.undo.push(Undo::Loop(device.clone()));
        Ok(device)
    }

    fn make_kernel(&mut self, directory: &Path, image_bytes: u64) -> Result<()> {
        let image = directory.join("kernel.img");
        write_image(&image, image_bytes)?;
        let device = self.attach(&image)?;
        self.mount_kernel(directory, &device, &["xfs", "ext4"])
    }

    /// Makes the first of these file systems that can be made, and mounts it.
    fn mount_kernel(
        &mut self,
        directory: &Path,
        device: &Path,
        kinds: &[&'static str],
    ) -> Result<()> {
        let make = |kind: &'static str| -> Result<&'static str> {
            let arguments: &[&str] = match kind {
                "xfs" => &["-q", "-f", "-K"],
                _ => &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"],
            };
            let program = format!("mkfs.{kind}");
            call(Command::new(program).args(arguments).arg(device)).map(|_| kind)
        };
        let mut made = Err(Error::target("no file system was named"));
        for kind in kinds {
            made = make(kind);
            if made.is_ok() {
                break;
            }
        }
        let name = made?;
        let at = directory.join(name);
        fs::create_dir(&at)
            .map_err(|e| Error::io(at.display(), "cannot make the mount point", e))?;
        call(Command::new("mount").arg(device).arg(&at))?;
        self.undo.push(Undo::Mount(at.clone()));
        self.kernel = Some((at, name));
        Ok(())
    }

    fn make_mount(&mut self, directory: &Path, image_bytes: u64, program: &Path) -> Result<()> {
        let image = directory.join("mount.img");
        write_image(&image, image_bytes)?;
        let device = self.attach(&image)?;
        self.mount_bedplate(directory, &device, program, "mode=concurrent")
    }

    fn mount_bedplate(
        &mut self,
        directory: &Path,
        device: &Path,
        program: &Path,
        options: &str,
    ) -> Result<()> {
        let at = directory.join("mount");
        fs::create_dir(&at)
            .map_err(|e| Error::io(at.display(), "cannot make the mount point", e))?;
        call(Command::new(program).arg("format").arg(device).arg("--force"))?;
        call(Command::new(program).arg("mount").arg(device).arg(&at).args(["-o", options]))?;
        self.undo
            .push(Undo::BedplateMount { program: program.to_path_buf(), directory: at.clone() });
        self.mount = Some(at);
        Ok(())
    }

    /// Returns the targets that play these parts; a part that this place does not have is left out.
    ///
    /// # Errors
    /// `Usage` when none is left.
    pub fn targets(&self, parts: &[Part]) -> Result<Vec<TargetSpec>> {
        let texts: Vec<String> = parts.iter().filter_map(|&part| self.spec(part)).collect();
        if texts.is_empty() {
            return Err(Error::usage(
                "this place has none of the targets that the workload compares",
            ));
        }
        texts.iter().map(|text| text.parse()).collect()
    }

    fn spec(&self, part: Part) -> Option<String> {
        let volume = self.volume.display();
        Some(match part {
            Part::Raw => format!("raw=raw:{}", self.raw.display()),
            Part::Concurrent => format!("concurrent=volume:{volume}"),
            Part::Direct => format!("direct=volume:{volume},mode=direct"),
            Part::Whole => {
                format!("direct whole-lock=volume:{volume},mode=direct,inode-lock=whole")
            }
            Part::Cached => format!("cached=volume:{volume},mode=cached"),
            Part::ConcurrentCache => {
                format!("concurrent+cache=volume:{volume},mode=concurrent+cache")
            }
            Part::KernelDirect => self
                .kernel
                .as_ref()
                .map(|(at, name)| format!("{name} direct=path:{}", at.display()))?,
            Part::KernelBuffered => self
                .kernel
                .as_ref()
                .map(|(at, name)| format!("{name} buffered=path:{},buffered", at.display()))?,
            Part::Mount => self
                .mount
                .as_ref()
                .map(|at| format!("mount=path:{},mode=concurrent", at.display()))?,
        })
    }

    /// Returns whether a path lies in this place: what is here may be overwritten without asking.
    #[must_use]
    pub fn owns(&self, path: &Path) -> bool {
        path == self.raw || path == self.volume
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for undo in self.undo.drain(..).rev() {
            // What does not go away is in plain sight, and a drop cannot report it.
            let _ = match undo {
                Undo::Directory(path) => fs::remove_dir_all(&path)
                    .map_err(|e| Error::io(path.display(), "cannot remove", e)),
                Undo::Loop(device) => {
                    call(Command::new("losetup").arg("--detach").arg(device)).map(drop)
                }
                Undo::Mount(at) => call(Command::new("umount").arg(at)).map(drop),
                Undo::BedplateMount { program, directory } => {
                    call(Command::new(program).arg("unmount").arg(directory)).map(drop)
                }
            };
        }
    }
}

fn check_room(directory: &Path, needs: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(directory)
        .map_err(|e| Error::io(directory.display(), "cannot ask for free space", e))?;
    let has = stat.f_bavail * stat.f_frsize;
    if has >= needs {
        return Ok(());
    }
    let (has, needs) = (bedplate::format_size(has), bedplate::format_size(needs));
    Err(Error::target(format!(
        "{}: the images need {needs} and {has} are free: give --dir or a smaller --image-size",
        directory.display()
    )))
}

fn write_image(path: &Path, bytes: u64) -> Result<()> {
    let failed = |e| Error::io(path.display(), "cannot write the image", e);
    let mut file = File::create_new(path).map_err(failed)?;
    let mut piece = vec![0; 4 << 20];
    fill_pattern(&mut piece, bytes);
    let mut left = bytes;
    while left > 0 {
        let n = left.min(piece.len() as u64);
        file.write_all(&piece[..n as usize]).map_err(failed)?;
        left -= n;
    }
    file.sync_all().map_err(failed)
}

/// Runs a program and returns what it printed.
fn call(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Error::io(&name, "cannot run", e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Error::target(format!("{name} failed: {}", why.lines().next().unwrap_or("without a word"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path) -> BedOptions {
        BedOptions {
            class: DeviceClass::Disk,
            directory: Some(directory.to_path_buf()),
            image_bytes: 8 << 20,
            program: None,
        }
    }

    #[test]
    fn images_are_full_and_everything_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let bed = Bed::make(&BedOptions { image_bytes: 16 << 20, ..options(dir.path()) }).unwrap();
        let made: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(made.len(), 1);
        let targets = bed
            .targets(&[Part::Raw, Part::KernelDirect, Part::KernelBuffered, Part::Mount])
            .unwrap();
        assert_eq!(targets.len(), 3, "no program, no mount: {:?}", bed.missing);
        assert!(bed.owns(targets[0].overwrites()[0]));
        drop(bed);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn too_little_room_is_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let message = Bed::make(&BedOptions { image_bytes: 1 << 50, ..options(dir.path()) })
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("are free") && !message.contains('\n'), "{message}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
