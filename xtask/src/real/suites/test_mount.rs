//! Where a suite runs: a fresh volume behind the mount, in one I/O mode, or XFS on a loop device of
//! the same size.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cleanup::Guard;
use crate::real::bed::{Bed, LoopDevice, Mounted, detach};
use crate::real::leased::Leased;
use crate::sh::{self, Family};

/// How large the file systems are, as programs are told it, and in bytes.
const SIZE: (&str, u64) = ("12G", 12 << 30);
const LIMIT: Duration = Duration::from_secs(300);
/// The word for programs with leases, beside the I/O modes.
pub const LEASED: &str = "leased";

/// A file system that suites run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// The kernel's, to compare with.
    Xfs,
    /// The mount, in this I/O mode.
    Mount(String),
    /// The mount in `concurrent` mode, its programs with leases.
    Leased,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Xfs => "XFS",
            Self::Mount(mode) => mode,
            Self::Leased => LEASED,
        })
    }
}

impl Side {
    /// Returns the side that a word of the command line names.
    pub fn of(word: &str) -> Self {
        if word == LEASED { Self::Leased } else { Self::Mount(word.to_owned()) }
    }

    /// The options of a mount: every user may use it, as with XFS.
    pub fn mount_options(&self) -> String {
        match self {
            Self::Xfs => String::new(),
            Self::Mount(mode) => format!("mode={mode},allow_other,dev,suid"),
            Self::Leased => "mode=concurrent,lease=owner,allow_other,dev,suid".to_owned(),
        }
    }

    /// The name of an image of this side.
    pub fn image(&self, name: &str) -> String {
        format!("{}-{name}.img", self.to_string().to_lowercase().replace('+', "-"))
    }
}

/// Makes what a file system of `side` is mounted from, and formats it: an image, or a loop device
/// over one.
pub fn device(bed: &Bed, side: &Side, name: &str) -> Result<(PathBuf, Option<LoopDevice>)> {
    let image = bed.path(&side.image(name));
    if *side != Side::Xfs {
        return Ok((bed.format(&side.image(name), SIZE.0)?, None));
    }
    File::create(&image)?.set_len(SIZE.1)?;
    let device = LoopDevice::attach(&image, &[])?;
    sh::output(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&device.path), LIMIT)?;
    Ok((device.path.clone(), Some(device)))
}

/// A mounted file system of one side. Dropped, it is unmounted.
pub struct TestMount {
    /// Where the suite may work.
    pub directory: PathBuf,
    source: PathBuf,
    held: Held,
}

enum Held {
    Xfs(Guard, LoopDevice),
    Mount(Mounted),
}

impl TestMount {
    /// Makes a fresh file system and mounts it.
    ///
    /// # Errors
    /// When it cannot be made or mounted.
    pub fn new(bed: &Bed, side: &Side) -> Result<Self> {
        let (source, device) = device(bed, side, "suite")?;
        let (directory, held) = match device {
            Some(device) => {
                let directory = bed.make_directory("xfs")?;
                sh::output(
                    Command::new("mount").args(["-t", "xfs"]).arg(&source).arg(&directory),
                    LIMIT,
                )?;
                let place = directory.clone();
                (directory, Held::Xfs(Guard::new(move || detach(&place)), device))
            }
            None => {
                let mounted = bed.mount(&source, &side.mount_options())?;
                (mounted.directory.clone(), Held::Mount(mounted))
            }
        };
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777))?;
        Ok(Self { directory, source, held })
    }

    /// Unmounts and checks the file system, and removes its image; of programs with leases it is
    /// told what they did by themselves.
    ///
    /// # Errors
    /// When it cannot be unmounted, or is not clean.
    pub fn end(self, bed: &Bed, side: &Side) -> Result<()> {
        if *side == Side::Leased {
            println!("    {}", Leased::of(bed, &self.directory)?);
        }
        match self.held {
            Held::Mount(mounted) => {
                mounted.unmount(bed)?;
                bed.check(&self.source)?;
                std::fs::remove_file(&self.source)?;
            }
            Held::Xfs(mount, device) => {
                sh::output(Command::new("umount").arg(&self.directory), LIMIT)?;
                mount.done();
                sh::output(Command::new("xfs_repair").arg("-n").arg(&device.path), LIMIT)?;
                device.detach()?;
                std::fs::remove_file(bed.path(&Side::Xfs.image("suite")))?;
            }
        }
        Ok(())
    }
}

/// How a program of a suite ended.
pub struct Ended {
    /// Its exit status; none where a signal or the time limit ended it.
    pub code: Option<i32>,
    /// Whether it ran out of time.
    pub late: bool,
    /// What it printed, as far as it came.
    pub text: String,
}

/// Runs the programs of suites.
pub struct Runner {
    /// Where the output of what failed is kept.
    pub logs: PathBuf,
    /// The library that goes in front of their calls.
    library: Option<PathBuf>,
}

impl Runner {
    /// Makes the directory for what programs on `side` print, and finds the library that they get.
    ///
    /// # Errors
    /// When the one cannot be made or the other is not there.
    pub fn new(bed: &Bed, side: &Side) -> Result<Self> {
        let logs = sh::target_directory()?.join("suites/log").join(side.to_string());
        std::fs::create_dir_all(&logs)?;
        let library = (*side == Side::Leased).then(|| bed.lease_library()).transpose()?;
        Ok(Self { logs, library })
    }

    /// Runs a program of a suite within `limit`; what it prints goes to `log`, so that it is there
    /// also of one that hangs.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&self, command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        let output = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut family = Family::start(
            command.stdout(Stdio::from(output.try_clone()?)).stderr(Stdio::from(output)),
        )?;
        let status = family.wait(limit);
        let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        Ok(Ended {
            code: status.as_ref().ok().and_then(std::process::ExitStatus::code),
            late: status.is_err(),
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_that_hangs_has_printed_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        let runner = Runner { logs: directory.path().to_owned(), library: None };
        let ended = runner
            .run(
                Command::new("sh").args(["-c", "echo first; sleep 600"]),
                &log,
                Duration::from_secs(2),
            )
            .expect("sh runs");
        assert_eq!((ended.code, ended.late, ended.text.as_str()), (None, true, "first\n"));
        let ended = runner
            .run(Command::new("sh").args(["-c", "echo out; exit 3"]), &log, Duration::from_secs(60))
            .expect("sh runs");
        assert_eq!((ended.code, ended.late, ended.text.as_str()), (Some(3), false, "out\n"));
    }
}
