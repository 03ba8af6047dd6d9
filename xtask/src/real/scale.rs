//! Mount and recovery with many files and extents, and what they cost in memory. Printed, not
//! asserted: times are the machine's.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Options;
use super::bad_input::find;
use super::bed::{Bed, Mounted};

/// Allocation unit: every second block of a file is preallocated, so that each is an extent of its
/// own.
const BLOCK: u64 = 4096;
const FILES_A_DIRECTORY: u64 = 1000;
/// Files made between the last sync of everything and the crash.
const LATE_FILES: u64 = 1000;

/// S-37, S-194: the volume recovers with everything on it, and no mount reads its extents; prints
/// time to mount after a crash and after an unmount, and memory.
pub fn measure(bed: &mut Bed, options: &Options) -> Result<()> {
    let per_file = (options.extents / options.files).max(1);
    let extents = per_file * options.files;
    let size = format!(
        "{}M",
        256 + extents * BLOCK / (1 << 20) + extents * 1024 / (1 << 20) * 2 + options.files / 100
    );
    let image = bed.format("volume.img", &size)?;
    let mut mounted = bed.mount(&image, "mode=concurrent")?;
    let start = Instant::now();
    for file in 0..options.files {
        make(&mounted.path(&name("full", file)), per_file)?;
        make(&mounted.path(&name("empty", file)), 0)?;
    }
    let root = File::open(&mounted.directory)?;
    root.sync_all().context("syncing the root directory")?;
    // Something for the log to replay, however often the metadata was committed on the way.
    for file in 0..LATE_FILES {
        make(&mounted.path(&name("late", file)), 0)?;
    }
    root.sync_all().context("syncing the root directory")?;
    drop(root);
    println!(
        "    {} files, {extents} extents made in {:.1} s",
        2 * options.files,
        start.elapsed().as_secs_f64()
    );
    mounted.crash()?;
    mounted.clear()?;
    let mounted = timed(bed, &image, "after a crash")?;
    mounted.unmount(bed)?;
    all_there(bed, &image, extents)?;
    let mounted = timed(bed, &image, "after an unmount")?;
    memory(&mounted, options, extents)?;
    mounted.unmount(bed)
}

fn name(kind: &str, file: u64) -> String {
    format!("{kind}{}/f{file}", file / FILES_A_DIRECTORY)
}

fn make(path: &Path, extents: u64) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    for extent in 0..extents {
        fallocate(&file, FallocateFlags::empty(), extent * 2 * BLOCK, BLOCK)
            .context("preallocating a block")?;
    }
    Ok(())
}

/// Mounts and prints how long it took, by the clock and by its own account.
fn timed(bed: &Bed, image: &Path, what: &str) -> Result<Mounted> {
    let start = Instant::now();
    let mounted = bed.mount(image, "mode=concurrent")?;
    let elapsed = start.elapsed();
    let info = bed.json([OsStr::new("info"), mounted.directory.as_os_str()])?;
    let recovery = find(&info, "recovery").context("info tells nothing of recovery")?;
    println!(
        "    mount {what}: {:.0} ms, {} KiB resident; {recovery}",
        elapsed.as_secs_f64() * 1e3,
        resident_kib(mounted.pid())?
    );
    let read = find(recovery, "extents").and_then(serde_json::Value::as_u64);
    ensure!(read == Some(0), "S-194: the mount {what} read {read:?} extents for the free space");
    Ok(mounted)
}

/// Has the volume checked, its kept free space against its extents among it, and counts these.
fn all_there(bed: &Bed, image: &Path, extents: u64) -> Result<()> {
    bed.check(image)?;
    let checked = bed.json([OsStr::new("check"), image.as_os_str()])?;
    let found = find(&checked, "extents").and_then(serde_json::Value::as_u64);
    ensure!(found == Some(extents), "the check found {found:?} extents, {extents} were made");
    Ok(())
}

/// Opens every file at once and prints what an open file and a million extents cost.
fn memory(mounted: &Mounted, options: &Options, extents: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let count = options.files as f64;
    let before = resident_kib(mounted.pid())?;
    let empty = open_all(mounted, "empty", options.files)?;
    let opened = resident_kib(mounted.pid())?;
    // One kind after the other, because a process may not have all of them open at once.
    drop(empty);
    let full = open_all(mounted, "full", options.files)?;
    let mapped = resident_kib(mounted.pid())?;
    let a_file = (opened - before) as f64 * 1024.0 / count;
    let a_million = (mapped - opened) as f64 / 1024.0 / extents as f64 * 1e6;
    println!(
        "    {} files open at once: {a_file:.0} bytes each; a million extents in open files: \
         {a_million:.0} MiB",
        full.len()
    );
    Ok(())
}

/// Opens files and makes the server look at their maps.
fn open_all(mounted: &Mounted, kind: &str, files: u64) -> Result<Vec<File>> {
    let open = |file: u64| -> Result<File> {
        let opened = File::open(mounted.path(&name(kind, file)))
            .with_context(|| format!("opening file {file}"))?;
        // A file without data answers with an error; the map was looked at.
        let _found = seek(&opened, SeekFrom::Data(0));
        Ok(opened)
    };
    (0..files).map(open).collect()
}

fn resident_kib(pid: u32) -> Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    line.trim().trim_end_matches(" kB").parse().context("VmRSS is a number")
}
