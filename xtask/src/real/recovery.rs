//! Mounts after a crash, dead mounts, read-only mounts, logs on a device of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::fingerprint;
use super::bed::{Bed, Mounted};

/// Writes a file on the mount and syncs it.
fn write_synced(mounted: &Mounted, name: &str, content: &str) -> Result<()> {
    let mut file = File::create(mounted.path(name)).with_context(|| format!("cannot create {name}"))?;
    file.write_all(content.as_bytes())?;
    file.sync_all().with_context(|| format!("cannot sync {name}"))
}

fn holds(mounted: &Mounted, name: &str, content: &str) -> Result<()> {
    let found = std::fs::read_to_string(mounted.path(name)).with_context(|| format!("{name} was synced and is gone"))?;
    ensure!(found == content, "{name} was synced and holds something else");
    Ok(())
}

/// S-1, S-2, S-37, S-45: the server dies; calls fail at once, the dead mount is explained and cleared, and what was synced is there.
pub fn stale_mount(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "64M")?;
    let mut mounted = bed.mount(&image, "")?;
    write_synced(&mounted, "first", "written before the crash")?;
    mounted.crash()?;
    let error = std::fs::metadata(mounted.path("first")).expect_err("nobody serves it");
    ensure!(error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()), "a dead mount answers with: {error}");
    let directory = mounted.directory.clone();
    bed.succeeds([OsStr::new("unmount"), directory.as_os_str()]).context("clearing the dead mount")?;
    mounted.clear()?;
    bed.check(&image)?;

    let mut mounted = bed.mount(&image, "")?;
    holds(&mounted, "first", "written before the crash")?;
    write_synced(&mounted, "second", "written after it")?;
    mounted.crash()?;
    // Mounting over a dead mount either clears it or says what to do; it never serves a directory that nobody can reach.
    let again = bed.refuses([OsStr::new("mount"), image.as_os_str(), directory.as_os_str()], &["unmount"]);
    if again.is_err() {
        ensure!(std::fs::read_dir(&directory).is_ok(), "a mount over a dead one is neither refused nor alive: {again:?}");
    }
    mounted.clear()?;
    let mounted = bed.mount(&image, "")?;
    holds(&mounted, "first", "written before the crash")?;
    holds(&mounted, "second", "written after it")?;
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// S-38: a read-only mount of a crashed volume shows what recovery would make and writes nothing.
pub fn read_only_mount(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "64M")?;
    let mut mounted = bed.mount(&image, "")?;
    write_synced(&mounted, "file", "synced")?;
    mounted.crash()?;
    mounted.clear()?;
    let before = fingerprint(&image)?;
    let mounted = bed.mount(&image, "ro")?;
    holds(&mounted, "file", "synced")?;
    for error in [
        File::create(mounted.path("new")).map(drop).expect_err("it is read-only"),
        std::fs::remove_file(mounted.path("file")).expect_err("it is read-only"),
        std::fs::rename(mounted.path("file"), mounted.path("other")).expect_err("it is read-only"),
    ] {
        ensure!(error.raw_os_error() == Some(rustix::io::Errno::ROFS.raw_os_error()), "a read-only mount answers with: {error}");
    }
    mounted.unmount(bed)?;
    ensure!(fingerprint(&image)? == before, "a read-only mount wrote to the image");
    let mounted = bed.mount(&image, "")?;
    holds(&mounted, "file", "synced")?;
    mounted.unmount(bed)
}

/// S-37, S-40: the log on a device of its own; without it, or with another volume's, the mount is refused.
pub fn separate_log(bed: &mut Bed, _: &Options) -> Result<()> {
    let images = ["one", "two"].map(|name| bed.path(&format!("{name}.img")));
    let logs = ["one", "two"].map(|name| bed.path(&format!("{name}.log")));
    for (image, log) in images.iter().zip(&logs) {
        File::create(log)?.set_len(16 << 20)?;
        format_with_log(bed, image, log)?;
    }
    let options = |log: &Path| format!("log={}", log.display());
    let mut mounted = bed.mount(&images[0], &options(&logs[0]))?;
    write_synced(&mounted, "file", "synced")?;
    mounted.crash()?;
    mounted.clear()?;
    let directory = bed.make_directory("mnt")?;
    let mount = |option: &str| {
        let mut words = vec![OsStr::new("mount").to_owned(), images[0].clone().into(), directory.clone().into()];
        if !option.is_empty() {
            words.extend(["-o".into(), option.into()]);
        }
        words
    };
    bed.refuses(mount(""), &["log"])?;
    bed.refuses(mount(&options(&logs[1])), &["log"])?;
    let mounted = bed.mount(&images[0], &options(&logs[0]))?;
    holds(&mounted, "file", "synced")?;
    mounted.unmount(bed)
}

fn format_with_log(bed: &Bed, image: &Path, log: &Path) -> Result<String> {
    bed.succeeds([OsStr::new("format"), image.as_os_str(), OsStr::new("--size"), OsStr::new("64M"), OsStr::new("--log"), log.as_os_str()])
}
