//! A server's edges: few descriptors, a device that stands still.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::Options;
use super::bed::Bed;
use super::peer::pattern;
use crate::cleanup::Guard;

/// Files that are open at once.
const FILES: u64 = 10_000;
/// Descriptors that the daemon may have.
const DESCRIPTORS: u32 = 1024;

/// S-245: programs have ten times as many files open as the daemon may have descriptors.
pub fn few_descriptors(bed: &mut Bed, _: &Options) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let most = limit.maximum.map_or(FILES, |maximum| maximum.saturating_sub(100));
    let files = FILES.min(most);
    ensure!(files > 2 * u64::from(DESCRIPTORS), "a process may have {most} files open here");
    let image = bed.format("volume.img", "256M")?;
    bed.launcher = vec!["prlimit".into(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}").into()];
    let mounted = bed.mount(&image, "")?;
    bed.launcher.clear();
    let name = |file: u64| mounted.path(&format!("f{file}"));
    let open = |file: u64| -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(name(file))
            .with_context(|| format!("opening file {file}"))
    };
    let opened = (0..files).map(open).collect::<Result<Vec<File>>>()?;
    for (number, file) in (0..).zip(&opened) {
        file.write_all_at(&pattern(number, 100), 0).with_context(|| format!("file {number}"))?;
    }
    for (number, file) in (0..).zip(&opened) {
        let mut found = [0; 100];
        file.read_exact_at(&mut found, 0)?;
        ensure!(found[..] == pattern(number, 100), "file {number} holds something else");
    }
    opened[0].sync_all()?;
    let held = std::fs::read_dir(format!("/proc/{}/fd", mounted.pid()))?.count();
    println!("    {files} files open, the daemon has {held} descriptors of {DESCRIPTORS}");
    drop(opened);
    mounted.unmount(bed)?;
    bed.check(&image)
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process has a number")?;
    Ok(kill_process(pid, signal)?)
}

/// S-247: a device that stands still holds up what needs it and nothing else; the mount tells of
/// itself meanwhile, and goes on when the device does.
///
/// The device is an image on another mount, whose daemon is stopped.
pub fn device_stands_still(bed: &mut Bed, _: &Options) -> Result<()> {
    let host_image = bed.format("host.img", "256M")?;
    let host = bed.mount(&host_image, "")?;
    let image = host.path("volume.img");
    bed.succeeds([OsStr::new("format"), image.as_os_str(), "--size".as_ref(), "96M".as_ref()])?;
    let directory = bed.make_directory("upper")?;
    let mounted = bed.mount_at(&image, &directory, "")?;
    std::fs::write(mounted.path("before"), pattern(1, 4096))?;
    File::open(mounted.path("before"))?.sync_all()?;

    signal(host.pid(), Signal::STOP)?;
    let (stopped, path) = (host.pid(), mounted.path("during"));
    let resumed = Guard::new(move || drop(signal(stopped, Signal::CONT)));
    let writer = std::thread::spawn(move || -> Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(&pattern(2, 1 << 20))?;
        Ok(file.sync_all()?)
    });
    // Long enough for the sync to reach the device that stands still.
    std::thread::sleep(Duration::from_millis(500));
    ensure!(!writer.is_finished(), "a sync ended although the device stands still");
    let read = std::fs::read(mounted.path("before"))?;
    ensure!(read == pattern(1, 4096), "what is in memory reads as something else");
    let info = bed.json([OsStr::new("info"), mounted.directory.as_os_str()])?;
    ensure!(info["failed"].is_null(), "waiting is no failure: {info}");
    drop(resumed);
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    let read = std::fs::read(mounted.path("during"))?;
    ensure!(read == pattern(2, 1 << 20), "what was synced late holds something else");
    println!("    the mount answered while its device stood still, and went on with it");
    mounted.unmount(bed)?;
    bed.check(&image)?;
    host.unmount(bed)?;
    bed.check(&host_image)
}
