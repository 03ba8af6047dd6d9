//! Devices that really fail: loop devices over files for which there is no room, as the kernel
//! makes them fail.
//!
//! ```text
//!  writes fail     volume ─► loop ─► sparse file ─► tmpfs, full
//!  flushes fail    volume ─► loop ─► sparse file ─► ext2 ─► loop ─► sparse file ─► tmpfs, full
//! ```
//! In the second the writes end in the page cache above ext2, and only the flush finds out that
//! there is no room below.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;

use super::Options;
use super::bed::{Bed, LoopDevice, Mounted, detach};
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(60);
const FIRST: &str = "acknowledged before the device failed";

/// S-33: after a failed write of the log no sync succeeds again, the mount is read-only, and what
/// was acknowledged is there after the next mount.
pub fn write_fails(bed: &mut Bed, _: &Options) -> Result<()> {
    let small = Small::make(bed, "64M")?;
    let device = LoopDevice::attach(&sparse(&small.directory.join("disk.img"), 256)?, &[])?;
    fails(bed, &device.path, &small, |_| Ok(()))
}

/// S-33: the same after a failed flush.
pub fn flush_fails(bed: &mut Bed, _: &Options) -> Result<()> {
    let small = Small::make(bed, "64M")?;
    let below = LoopDevice::attach(&sparse(&small.directory.join("disk.img"), 512)?, &[])?;
    sh::output(Command::new("mkfs.ext2").args(["-q", "-E", "nodiscard"]).arg(&below.path), LIMIT)?;
    let directory = bed.make_directory("above")?;
    let mount = Mount::make(&below.path, &directory, &["-t", "ext2"])?;
    let device = LoopDevice::attach(&sparse(&directory.join("volume.img"), 256)?, &[])?;
    let result = fails(bed, &device.path, &small, |said| {
        ensure!(said.contains("flush"), "the flush did not fail, but something else: {said}");
        Ok(())
    });
    drop(device);
    drop(mount);
    result
}

fn fails(bed: &Bed, device: &Path, small: &Small, told: impl Fn(&str) -> Result<()>) -> Result<()> {
    bed.succeeds([Path::new("format"), device])?;
    let mounted = bed.mount(device, "mode=concurrent")?;
    let mut first = File::create(mounted.path("first"))?;
    first.write_all(FIRST.as_bytes())?;
    first.sync_all().context("syncing while there is room")?;

    small.fill()?;
    let failed = write_until_it_fails(&mounted)?;
    // From here on no sync succeeds, of any file, also when there is room again.
    for room in [false, true] {
        if room {
            small.empty()?;
        }
        for _ in 0..3 {
            ensure!(
                first.sync_all().is_err(),
                "S-33: a sync succeeds after one had failed ({failed}), room again: {room}"
            );
            ensure!(
                first.sync_data().is_err(),
                "S-33: a data sync succeeds after one had failed ({failed}), room again: {room}"
            );
        }
        refuses_changes(&mounted)?;
    }
    let mut read = String::new();
    File::open(mounted.path("first"))?.read_to_string(&mut read).context("S-33: reads go on")?;
    ensure!(read == FIRST, "S-33: a read after the failure shows something else");
    told(&said(&mounted)?)?;
    drop(first);
    let mut mounted = mounted;
    mounted.crash()?;
    mounted.clear()?;

    let mounted = bed.mount(device, "")?;
    ensure!(
        std::fs::read_to_string(mounted.path("first"))? == FIRST,
        "what was acknowledged is gone"
    );
    let mut again = File::create(mounted.path("again"))?;
    again.write_all(b"the device works again")?;
    again.sync_all().context("syncing after the next mount")?;
    drop(again);
    mounted.unmount(bed)?;
    bed.check(device)
}

/// Makes small files until a sync of what had been acknowledged fails; returns how.
fn write_until_it_fails(mounted: &Mounted) -> Result<std::io::Error> {
    let data = vec![0x5a; 4096];
    for number in 0..20_000 {
        // A write of data that fails is that write's own failure; each sync takes the log further,
        // until it meets the full device.
        let written = File::create(mounted.path(&format!("later{number}"))).and_then(|mut file| {
            let written = file.write_all(&data);
            file.sync_all().and(written)
        });
        if written.is_err()
            && let Err(latched) = File::open(mounted.path("first")).and_then(|file| file.sync_all())
        {
            return Ok(latched);
        }
    }
    bail!("20,000 files were made and synced on a device without room")
}

/// What the server says of it, at the latest when its daemon next looks.
fn said(mounted: &Mounted) -> Result<String> {
    let start = Instant::now();
    loop {
        let said = mounted.said();
        if said.contains("unmount") && said.contains("mount again") {
            return Ok(said);
        }
        ensure!(start.elapsed() < LIMIT, "it was not told what to do: {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn refuses_changes(mounted: &Mounted) -> Result<()> {
    let error = File::create(mounted.path("late"))
        .err()
        .context("S-33: a file can be made after a failed sync")?;
    ensure!(
        error.raw_os_error() == Some(Errno::ROFS.raw_os_error()),
        "S-33: making a file is refused with: {error}"
    );
    let opened = OpenOptions::new()
        .write(true)
        .open(mounted.path("first"))
        .and_then(|mut file| file.write_all(b"x"));
    ensure!(opened.is_err(), "S-33: a write succeeds after a failed sync");
    Ok(())
}

/// Makes a sparse file of so many MiB.
fn sparse(path: &Path, mib: u64) -> Result<PathBuf> {
    File::create(path)?.set_len(mib << 20)?;
    Ok(path.to_owned())
}

/// A file system that the test mounted.
pub struct Mount {
    guard: Option<Guard>,
    directory: PathBuf,
}

impl Mount {
    /// Mounts `source` with further arguments of `mount`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn make(source: &Path, directory: &Path, arguments: &[&str]) -> Result<Self> {
        sh::output(Command::new("mount").args(arguments).arg(source).arg(directory), LIMIT)?;
        let place = directory.to_owned();
        Ok(Self {
            guard: Some(Guard::new(move || detach(&place))),
            directory: directory.to_owned(),
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        detach(&self.directory);
        self.guard.take().into_iter().for_each(Guard::done);
    }
}

/// A file system in memory that is easily filled.
struct Small {
    directory: PathBuf,
    _mount: Mount,
}

impl Small {
    fn make(bed: &Bed, size: &str) -> Result<Self> {
        let directory = bed.make_directory("small")?;
        let mount = Mount::make(
            Path::new("tmpfs"),
            &directory,
            &["-t", "tmpfs", "-o", &format!("size={size}")],
        )?;
        Ok(Self { directory, _mount: mount })
    }

    /// Leaves no page free.
    fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.directory.join("filler"))?;
        let page = [0; 4096];
        loop {
            match filler.write_all(&page) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.directory.join("filler"))?)
    }
}
