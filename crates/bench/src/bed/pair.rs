//! The kernel's file system and a Bedplate mount side by side, on images or on halves of a device.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bed, Undo, call, check_room, write_image};
use crate::{Error, Result};

/// How to make the two.
#[derive(Debug, Clone)]
pub struct PairOptions {
    /// A directory for images, or a device, whose content is lost.
    pub on: PathBuf,
    /// Size of each of the two images in bytes; of a device each gets a half.
    pub image_bytes: u64,
    /// The kernel's file system; where it is none of `xfs` and `ext4`, `xfs`.
    pub kind: String,
    /// The `bedplate` program.
    pub program: PathBuf,
}

impl Bed {
    /// Makes a kernel's file system and a Bedplate mount.
    ///
    /// # Errors
    /// `Target` and `Io` when there is no room, no loop device on a device, or no Bedplate mount.
    pub fn pair(options: &PairOptions) -> Result<Self> {
        let on_device = fs::metadata(&options.on)
            .map_err(|e| Error::io(options.on.display(), "cannot look at", e))?
            .file_type()
            .is_block_device();
        let parent = if on_device { std::env::temp_dir() } else { options.on.clone() };
        let directory = parent.join(format!("bedplate-advise-{}", std::process::id()));
        fs::create_dir(&directory)
            .map_err(|e| Error::io(directory.display(), "cannot make the directory", e))?;
        let mut bed = Self {
            undo: vec![Undo::Directory(directory.clone())],
            raw: PathBuf::new(),
            volume: PathBuf::new(),
            kernel: None,
            mount: None,
            missing: Vec::new(),
        };
        let (kernel, volume) = if on_device {
            bed.halves(&options.on)?
        } else {
            bed.images(&directory, options.image_bytes)?
        };
        let kinds = if options.kind == "ext4" { ["ext4", "xfs"] } else { ["xfs", "ext4"] };
        match kernel {
            Some(device) => bed.mount_kernel(&directory, &device, &kinds)?,
            None => bed.kernel = Some((directory.clone(), "files")),
        }
        bed.mount_bedplate(&directory, &volume, &options.program, "mode=cached")?;
        Ok(bed)
    }

    /// Takes a device in two.
    fn halves(&mut self, device: &Path) -> Result<(Option<PathBuf>, PathBuf)> {
        const UNIT: u64 = 1 << 20;
        let size = call(Command::new("blockdev").arg("--getsize64").arg(device))?;
        let size: u64 = size.trim().parse().map_err(|_| {
            Error::target(format!("{}: the system does not tell its size", device.display()))
        })?;
        let half = size / 2 / UNIT * UNIT;
        let mut part = |offset: u64| {
            self.attach_part(device, &[format!("--offset={offset}"), format!("--sizelimit={half}")])
        };
        Ok((Some(part(0)?), part(half)?))
    }

    /// Makes two images, on loop devices where those are to be had.
    fn images(&mut self, directory: &Path, bytes: u64) -> Result<(Option<PathBuf>, PathBuf)> {
        check_room(directory, bytes * 2)?;
        let volume = directory.join("mount.img");
        write_image(&volume, bytes)?;
        if !rustix::process::geteuid().is_root() {
            self.missing.push(
                "without root there are no loop devices: the directory's own file system stands \
                 for the kernel's, and what reaches the devices is not counted"
                    .into(),
            );
            return Ok((None, volume));
        }
        let kernel = directory.join("kernel.img");
        write_image(&kernel, bytes)?;
        match (self.attach(&kernel), self.attach(&volume)) {
            (Ok(kernel), Ok(volume)) => Ok((Some(kernel), volume)),
            (Err(e), _) | (_, Err(e)) => {
                self.missing.push(format!(
                    "no loop device, so the directory's own file system stands for the kernel's: {e}"
                ));
                Ok((None, volume))
            }
        }
    }

    /// Returns the directory of the kernel's file system, and what that is.
    pub(crate) fn kernel(&self) -> Option<(&Path, &'static str)> {
        self.kernel.as_ref().map(|(at, name)| (at.as_path(), *name))
    }

    /// Returns the directory of the Bedplate mount.
    pub(crate) fn mount(&self) -> Option<&Path> {
        self.mount.as_deref()
    }

    /// Changes a tunable of the Bedplate mount until its end.
    pub(crate) fn tune(&self, program: &Path, setting: &str) -> Result<()> {
        let Some(mount) = &self.mount else { return Ok(()) };
        call(Command::new(program).arg("tune").arg(mount).arg(setting).arg("--live")).map(drop)
    }
}
