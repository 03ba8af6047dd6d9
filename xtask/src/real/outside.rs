//! Faults that no simulator makes: the daemon is killed, the host is full, the medium is cut short,
//! fails or goes, and a second daemon comes.
//!
//! Every test asks the same: what fails says so in one sentence, nothing is called durable that is
//! not, and what was is there when the medium is back.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;

use super::Options;
use super::bed::{Bed, COMMAND_LIMIT, LoopDevice, Mounted, detach};
use super::peer::pattern;
use crate::cleanup::Guard;
use crate::sh;

const MIB: usize = 1 << 20;

/// Files that were written and synced: by their numbers, from 0.
struct Synced(u64);

impl Synced {
    /// Writes and syncs one more file.
    fn add(&mut self, mounted: &Mounted, bytes: usize) -> std::io::Result<()> {
        let mut file = File::create(mounted.path(&format!("synced.{}", self.0)))?;
        file.write_all(&pattern(self.0, bytes))?;
        file.sync_all()?;
        self.0 += 1;
        Ok(())
    }

    /// Writes until it fails and returns why.
    fn add_until_refused(
        &mut self,
        mounted: &Mounted,
        bytes: usize,
        most: u64,
    ) -> Result<std::io::Error> {
        for _ in 0..most {
            if let Err(error) = self.add(mounted, bytes) {
                return Ok(error);
            }
        }
        bail!("{most} writes succeeded, and should have failed")
    }

    /// Every one is there and whole.
    fn verify(&self, mounted: &Mounted, bytes: usize) -> Result<()> {
        for number in 0..self.0 {
            let name = format!("synced.{number}");
            let found = std::fs::read(mounted.path(&name))
                .with_context(|| format!("{name} was synced and is gone"))?;
            ensure!(found == pattern(number, bytes), "{name} was synced and holds something else");
        }
        Ok(())
    }
}

/// After the failure: no sync succeeds, changes are refused as on a read-only file system, reads go
/// on, and the mount says why in one sentence.
fn is_latched(bed: &Bed, mounted: &Mounted, readable: &str, words: &[&str]) -> Result<()> {
    for _ in 0..3 {
        ensure!(
            File::open(&mounted.directory)?.sync_all().is_err(),
            "a sync succeeded after the failure"
        );
    }
    let refused = File::create(mounted.path("later"))
        .map(drop)
        .expect_err("a file was made after the failure");
    ensure!(
        refused.raw_os_error() == Some(Errno::ROFS.raw_os_error()),
        "a change after the failure ends with: {refused}"
    );
    std::fs::read(mounted.path(readable)).context("a read after the failure")?;
    let info = bed.json([OsStr::new("info"), mounted.directory.as_os_str()])?;
    let failed = info["failed"]
        .as_str()
        .with_context(|| format!("the mount does not say that it failed: {info}"))?
        .to_owned();
    println!("    says: {failed}");
    for word in words.iter().chain(&["unmount and mount again"]) {
        ensure!(failed.contains(word), "the reason lacks '{word}': {failed}");
    }
    ensure!(
        !failed.contains('\n') && !failed.contains("os error"),
        "not one clear sentence: {failed}"
    );
    ensure!(mounted.said().contains(&failed), "the daemon did not say it: {}", mounted.said());
    Ok(())
}

/// The medium failed; or the sync daemon was quicker to find that out, and the file system is
/// read-only already.
fn is_clean_failure(error: &std::io::Error) -> bool {
    [Errno::IO, Errno::ROFS].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The unmount of a failed mount is no success; it says that the next mount recovers.
fn unmount_failed(bed: &Bed, mounted: Mounted) -> Result<()> {
    bed.refuses(
        [OsStr::new("unmount"), mounted.directory.as_os_str()],
        &["could not make everything durable", "the next mount recovers"],
    )?;
    mounted.ended_badly()
}

/// Mounts again, verifies, and finds the volume sound.
fn is_whole_again(bed: &Bed, device: &Path, synced: &mut Synced, bytes: usize) -> Result<()> {
    let mounted = bed.mount(device, "")?;
    synced.verify(&mounted, bytes)?;
    synced.add(&mounted, bytes).context("a write after the medium came back")?;
    mounted.unmount(bed)?;
    bed.check(device)
}

/// S-1, S-2, S-3, S-6, S-37: the daemon is killed under load, again and again, and keeps every
/// acknowledged append, overwrite and name.
pub fn killed_in_a_loop(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.format("volume.img", "256M")?;
    let modes = ["mode=concurrent", "mode=cached", "mode=direct", "mode=concurrent+cache"];
    let rounds = options.kills * 4;
    let mut acknowledged = [0_u64; 3];
    for round in 0..rounds {
        let mut mounted = bed.mount(&image, modes[round as usize % modes.len()])?;
        let directory = mounted.directory.clone();
        let works: [Work; 3] = [append, overwrite, make];
        let stop = AtomicBool::new(false);
        let told: Vec<u64> = std::thread::scope(|scope| {
            let (directory, stop) = (&directory, &stop);
            let start = |(work, from): (Work, u64)| {
                scope.spawn(move || work_until_dead(directory, from, work, stop))
            };
            let workers: Vec<_> = works.into_iter().zip(acknowledged).map(start).collect();
            std::thread::sleep(Duration::from_millis(150 + u64::from(round) * 37 % 200));
            let crashed = mounted.crash();
            stop.store(true, Ordering::Release);
            let told = workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker does not panic"))
                .collect();
            crashed.map(|()| told)
        })?;
        mounted.clear()?;
        bed.check(&image)?;
        acknowledged.copy_from_slice(&told);
        let mounted = bed.mount(&image, "")?;
        verify_works(&mounted, acknowledged)
            .with_context(|| format!("after kill {}", round + 1))?;
        mounted.unmount(bed)?;
    }
    let [appends, overwrites, names] = acknowledged;
    println!(
        "    {rounds} kills, {appends} appends, {overwrites} overwrites and {names} names \
         acknowledged, none missing"
    );
    ensure!(acknowledged.iter().all(|count| *count > 0), "a worker did nothing");
    bed.check(&image)
}

/// One piece of work, by its number, acknowledged when it returns.
type Work = fn(&Path, u64) -> std::io::Result<()>;

/// Does pieces of work in their order until one fails; returns how many were acknowledged in all.
fn work_until_dead(directory: &Path, from: u64, work: Work, stop: &AtomicBool) -> u64 {
    (from..)
        .find(|number| stop.load(Ordering::Acquire) || work(directory, *number).is_err())
        .unwrap_or(from)
}

const APPEND_BYTES: usize = 3000;
const PAGES: u64 = 64;

fn append(directory: &Path, number: u64) -> std::io::Result<()> {
    // At the place of its number: what was on its way when the daemon died is written again.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join("appended"))?;
    file.write_all_at(&pattern(number, APPEND_BYTES), number * APPEND_BYTES as u64)?;
    file.sync_all()
}

fn overwrite(directory: &Path, number: u64) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DSYNC.bits() as i32;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(directory.join("overwritten"))?;
    file.write_all_at(&pattern(number, 4096), number % PAGES * 4096)
}

/// One name comes, and the one eight before it goes.
fn make(directory: &Path, number: u64) -> std::io::Result<()> {
    File::create(directory.join(format!("name.{number}")))?;
    if let Some(old) = number.checked_sub(8) {
        match std::fs::remove_file(directory.join(format!("name.{old}"))) {
            // It was on its way when the daemon died.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    File::open(directory)?.sync_all()
}

fn verify_works(mounted: &Mounted, [appends, overwrites, names]: [u64; 3]) -> Result<()> {
    let appended = std::fs::read(mounted.path("appended")).context("the appended file is gone")?;
    for number in 0..appends {
        let at = number as usize * APPEND_BYTES;
        ensure!(
            appended.get(at..at + APPEND_BYTES) == Some(&*pattern(number, APPEND_BYTES)),
            "append {number} was acknowledged and is not there"
        );
    }
    let overwritten =
        std::fs::read(mounted.path("overwritten")).context("the overwritten file is gone")?;
    for number in overwrites.saturating_sub(PAGES)..overwrites {
        let at = (number % PAGES) as usize * 4096;
        let page = overwritten.get(at..at + 4096);
        // The next one to the same page may have been on its way, any sector of it.
        let next = (number + PAGES == overwrites).then(|| pattern(overwrites, 4096));
        let expected = pattern(number, 4096);
        let whole = page.is_some_and(|page| {
            page.chunks(512).enumerate().all(|(sector, bytes)| {
                let range = sector * 512..sector * 512 + 512;
                *bytes == expected[range.clone()]
                    || next.as_ref().is_some_and(|next| *bytes == next[range])
            })
        });
        ensure!(whole, "overwrite {number} was acknowledged and is not there");
    }
    let exists = |number: u64| mounted.path(&format!("name.{number}")).exists();
    for number in names.saturating_sub(7)..names {
        ensure!(exists(number), "name {number} was acknowledged and is not there");
    }
    for number in 0..names.saturating_sub(8) {
        ensure!(!exists(number), "the removal of name {number} was acknowledged and it is there");
    }
    Ok(())
}

/// A small host file system in memory. Dropped, it is unmounted.
struct Host {
    directory: PathBuf,
    _guard: Guard,
}

impl Host {
    fn mount(bed: &Bed, mebibytes: u32) -> Result<Self> {
        let directory = bed.make_directory("host")?;
        let size = std::ffi::CString::new(format!("size={mebibytes}m"))?;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("bedplate-host", &directory, "tmpfs", flags, Some(size.as_c_str()))
            .context("cannot mount a small host")?;
        let place = directory.clone();
        Ok(Self { directory, _guard: Guard::new(move || detach(&place)) })
    }

    fn grow(&self, mebibytes: u32) -> Result<()> {
        let size = format!("remount,size={mebibytes}m");
        sh::output(Command::new("mount").args(["-o", &size]).arg(&self.directory), COMMAND_LIMIT)
            .map(drop)
    }
}

/// S-33, S-34, S-244: the host's file system runs full under a sparse image, and that is told
/// before.
pub fn full_host(bed: &mut Bed, _: &Options) -> Result<()> {
    let host = Host::mount(bed, 40)?;
    let image = bed.format("host/volume.img", "256M")?;
    let mounted = bed.mount(&image, "mode=concurrent")?;
    is_told_before(bed, &mounted)?;
    let mut synced = Synced(0);
    let error = synced.add_until_refused(&mounted, MIB, 64)?;
    ensure!(
        error.kind() == std::io::ErrorKind::StorageFull || is_clean_failure(&error),
        "a full host gives: {error}"
    );
    ensure!(synced.0 > 20, "only {} files fitted", synced.0);
    println!(
        "    after {} files: {error}; after names: {}",
        synced.0,
        add_names_until_refused(&mounted)?
    );
    is_latched(bed, &mounted, "synced.0", &["that holds it is full", "make room there"])?;
    unmount_failed(bed, mounted)?;
    host.grow(400)?;
    is_whole_again(bed, &image, &mut synced, MIB)
}

/// S-244: that the host has no room for what the image may take is said before it is full: by the
/// daemon, by `info` and by `status`, which ends with 1.
fn is_told_before(bed: &Bed, mounted: &Mounted) -> Result<()> {
    let words = "make room on it";
    let start = std::time::Instant::now();
    while !mounted.said().contains(words) {
        ensure!(start.elapsed() < COMMAND_LIMIT, "the daemon did not say: {}", mounted.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    let shown = bed.succeeds([OsStr::new("info"), mounted.directory.as_os_str()])?;
    ensure!(shown.contains("volume.img may take") && shown.contains(words), "info says: {shown}");
    let mut status = bed.bedplate([OsStr::new("status"), mounted.directory.as_os_str()]);
    let done = sh::finish(&mut status, COMMAND_LIMIT)?;
    ensure!(
        done.status.code() == Some(1) && done.stdout.contains("host filling"),
        "status ends with {}: {}",
        done.status,
        done.text()
    );
    println!("    told before: {}", done.stdout.lines().last().unwrap_or_default().trim());
    Ok(())
}

/// Makes names and syncs them until that fails: the log finds no place on the host.
fn add_names_until_refused(mounted: &Mounted) -> Result<std::io::Error> {
    for number in 0..4000 {
        let made = File::create(mounted.path(&format!("name.{number}")))
            .and_then(|_| File::open(&mounted.directory)?.sync_all());
        if let Err(error) = made {
            return Ok(error);
        }
    }
    bail!("thousands of names were synced onto a full host")
}

/// The end of a medium that was taken away, to be put back.
struct Cut {
    path: PathBuf,
    at: u64,
    rest: Vec<u8>,
}

impl Cut {
    fn make(path: &Path, at: u64) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut rest = vec![0; usize::try_from(file.metadata()?.len() - at)?];
        file.read_exact_at(&mut rest, at)?;
        file.set_len(at)?;
        Ok(Self { path: path.to_owned(), at, rest })
    }

    fn undo(&self) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.write_all_at(&self.rest, self.at)?;
        file.sync_all().context("the medium cannot be put back")
    }
}

/// S-33, S-35, S-40: the image is cut short while it is mounted, and whole again later.
pub fn image_cut_short(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "44M")?;
    let mounted = bed.mount(&image, "mode=concurrent")?;
    let mut synced = Synced(0);
    for _ in 0..24 {
        synced.add(&mounted, MIB)?;
    }
    let cut = Cut::make(&image, 20 << 20)?;
    let last = format!("synced.{}", synced.0 - 1);
    let error = std::fs::read(mounted.path(&last)).expect_err("the end of the image is gone");
    ensure!(
        error.raw_os_error() == Some(Errno::IO.raw_os_error()),
        "a read of what is gone ends with: {error}"
    );
    // The host makes the file longer again with a write behind its end; no sync may take that for
    // good.
    let error = synced.add_until_refused(&mounted, MIB, 1)?;
    ensure!(is_clean_failure(&error), "a sync on a cut image ends with: {error}");
    is_latched(
        bed,
        &mounted,
        "synced.0",
        &["cut short while it was in use", "restore the missing end"],
    )?;
    bed.refuses([OsStr::new("unmount"), mounted.directory.as_os_str()], &[])?;
    mounted.ended_badly()?;
    let directory = bed.make_directory("mnt")?;
    bed.refuses(
        [OsStr::new("mount"), image.as_os_str(), directory.as_os_str()],
        &["truncated", "restore the missing end"],
    )?;
    cut.undo()?;
    is_whole_again(bed, &image, &mut synced, MIB)
}

/// S-33, S-35: a block device loses its end while it is mounted, and gets it back.
pub fn device_cut_short(bed: &mut Bed, _: &Options) -> Result<()> {
    let backing = bed.path("backing");
    File::create(&backing)?.set_len(44 << 20)?;
    let device = LoopDevice::attach(&backing, &[])?;
    bed.succeeds([OsStr::new("format"), device.path.as_os_str()])?;
    let mounted = bed.mount(&device.path, "mode=concurrent")?;
    let mut synced = Synced(0);
    for _ in 0..24 {
        synced.add(&mounted, MIB)?;
    }
    let cut = Cut::make(&backing, 20 << 20)?;
    let take_size_over = || {
        sh::output(Command::new("losetup").arg("--set-capacity").arg(&device.path), COMMAND_LIMIT)
    };
    take_size_over()?;
    let error = synced.add_until_refused(&mounted, MIB, 1)?;
    ensure!(is_clean_failure(&error), "a write behind the end of a device ends with: {error}");
    is_latched(bed, &mounted, "synced.0", &["cut short while it was in use"])?;
    bed.refuses(
        [OsStr::new("unmount"), mounted.directory.as_os_str()],
        &["truncated", "restore the missing end"],
    )?;
    mounted.ended_badly()?;
    bed.refuses(
        [OsStr::new("mount"), device.path.as_os_str(), bed.make_directory("mnt")?.as_os_str()],
        &["truncated", "restore the missing end"],
    )?;
    cut.undo()?;
    take_size_over()?;
    is_whole_again(bed, &device.path, &mut synced, MIB)
}

/// S-1, S-49: a loop device is detached while it is mounted: the kernel waits with that for its
/// last user, and nothing is lost.
pub fn device_detached(bed: &mut Bed, _: &Options) -> Result<()> {
    let backing = bed.path("backing");
    File::create(&backing)?.set_len(44 << 20)?;
    let device = LoopDevice::attach(&backing, &[])?;
    bed.succeeds([OsStr::new("format"), device.path.as_os_str()])?;
    let mounted = bed.mount(&device.path, "mode=concurrent")?;
    let mut synced = Synced(0);
    synced.add(&mounted, MIB)?;
    device.detach()?;
    for _ in 0..8 {
        synced.add(&mounted, MIB).context("a write after the device was detached")?;
    }
    mounted.unmount(bed)?;
    // The image is free now, and whole.
    is_whole_again(bed, &backing, &mut synced, MIB)
}

/// Starts a mount and does not wait for it; the guard detaches it.
fn start_mount(bed: &Bed, image: &Path, directory: &Path) -> Result<(Child, Guard)> {
    let mut command = bed.bedplate([OsStr::new("mount"), image.as_os_str(), directory.as_os_str()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let place = directory.to_owned();
    let guard = Guard::new(move || detach(&place));
    Ok((command.spawn()?, guard))
}

/// S-40: of many daemons that want a volume at once one gets it, and after its death the next.
pub fn two_daemons(bed: &mut Bed, _: &Options) -> Result<()> {
    const DAEMONS: usize = 5;
    let image = bed.format("volume.img", "64M")?;
    let link = bed.path("link.img");
    std::fs::hard_link(&image, &link)?;
    for round in 0..3 {
        let directories: Vec<PathBuf> = (0..DAEMONS)
            .map(|number| bed.make_directory(&format!("mnt-{number}")))
            .collect::<Result<_>>()?;
        let started: Vec<_> = directories
            .iter()
            .zip([&image, &link].into_iter().cycle())
            .map(|(directory, image)| start_mount(bed, image, directory))
            .collect::<Result<_>>()?;
        let mut mounted = Vec::new();
        for ((child, guard), directory) in started.into_iter().zip(&directories) {
            let done = child.wait_with_output()?;
            if done.status.success() {
                mounted.push((directory.clone(), guard));
                continue;
            }
            let said = String::from_utf8_lossy(&done.stderr);
            ensure!(said.trim().lines().count() == 1, "a daemon that came too late said: {said}");
            ensure!(
                said.contains("in use by") || said.contains("is mounted at"),
                "a daemon that came too late said: {said}"
            );
            if round == 0 && mounted.len() == 1 {
                println!("    refused: {}", said.trim());
            }
        }
        ensure!(mounted.len() == 1, "{} daemons mounted one volume at once", mounted.len());
        let (directory, guard) = mounted.remove(0);
        File::create(directory.join(format!("round-{round}")))?.sync_all()?;
        kill_daemon_of(&directory)?;
        // The dead mount is still there; the volume is free all the same.
        let next = bed.make_directory("mnt-next")?;
        let second = bed.mount_at(&image, &next, "")?;
        for earlier in 0..=round {
            ensure!(
                second.path(&format!("round-{earlier}")).exists(),
                "what was synced in round {earlier} is gone"
            );
        }
        second.unmount(bed)?;
        drop(guard);
        bed.check(&image)?;
    }
    Ok(())
}

/// Kills the daemon that serves a mount and waits until it is gone.
fn kill_daemon_of(directory: &Path) -> Result<()> {
    let mut value = [0; 32];
    let len = rustix::fs::getxattr(directory, "user.bedplate.pid", &mut value)
        .context("the mount does not say who serves it")?;
    let pid: i32 = std::str::from_utf8(&value[..len])?.trim().parse()?;
    let pid = rustix::process::Pid::from_raw(pid).context("a process has a number")?;
    let end = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let ended = rustix::event::poll(
        &mut [rustix::event::PollFd::new(&end, rustix::event::PollFlags::IN)],
        Some(&limit),
    )?;
    ensure!(ended == 1, "a killed daemon lives on");
    Ok(())
}
