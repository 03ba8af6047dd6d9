//! Mounts after a crash, dead mounts, read-only mounts, logs on a device of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::fingerprint;
use super::bed::{Bed, Mounted};
use super::peer::pattern;

/// Writes a file on the mount and syncs it.
fn write_synced(mounted: &Mounted, name: &str, content: &str) -> Result<()> {
    let mut file =
        File::create(mounted.path(name)).with_context(|| format!("cannot create {name}"))?;
    file.write_all(content.as_bytes())?;
    file.sync_all().with_context(|| format!("cannot sync {name}"))
}

fn holds(mounted: &Mounted, name: &str, content: &str) -> Result<()> {
    let found = std::fs::read_to_string(mounted.path(name))
        .with_context(|| format!("{name} was synced and is gone"))?;
    ensure!(found == content, "{name} was synced and holds something else");
    Ok(())
}

/// S-1, S-2, S-37, S-45: the server dies; calls fail at once, the dead mount is explained and
/// cleared, and what was synced is there.
pub fn stale_mount(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "64M")?;
    let mut mounted = bed.mount(&image, "")?;
    write_synced(&mounted, "first", "written before the crash")?;
    mounted.crash()?;
    let error = std::fs::metadata(mounted.path("first")).expect_err("nothing serves it");
    ensure!(
        error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()),
        "a dead mount answers with: {error}"
    );
    let directory = mounted.directory.clone();
    bed.succeeds([OsStr::new("unmount"), directory.as_os_str()])
        .context("clearing the dead mount")?;
    mounted.clear()?;
    bed.check(&image)?;

    let mut mounted = bed.mount(&image, "")?;
    holds(&mounted, "first", "written before the crash")?;
    write_synced(&mounted, "second", "written after it")?;
    mounted.crash()?;
    // Mounting over a dead mount either clears it or says what to do; it never serves a directory
    // that cannot be reached.
    let again =
        bed.refuses([OsStr::new("mount"), image.as_os_str(), directory.as_os_str()], &["unmount"]);
    if again.is_err() {
        ensure!(
            std::fs::read_dir(&directory).is_ok(),
            "a mount over a dead one is neither refused nor alive: {again:?}"
        );
        // Returns when its server has let go of the volume.
        bed.succeeds([OsStr::new("unmount"), directory.as_os_str()])?;
    }
    mounted.clear()?;
    let mounted = bed.mount(&image, "")?;
    holds(&mounted, "first", "written before the crash")?;
    holds(&mounted, "second", "written after it")?;
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// S-3, S-14, S-15: a file is replaced again and again (write, sync, rename, sync of the directory)
/// while the server is killed: the name always leads to one whole version, and not to one older
/// than the last whose directory sync returned.
pub fn replaced_file(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.format("volume.img", "128M")?;
    let mut durable = 0;
    for round in 0..options.kills {
        let mut mounted =
            bed.mount(&image, ["mode=concurrent", "mode=cached"][round as usize % 2])?;
        let directory = mounted.directory.clone();
        let writer = std::thread::spawn(move || replace_until_dead(&directory, durable + 1));
        std::thread::sleep(Duration::from_millis(300 + u64::from(round) * 170));
        mounted.crash()?;
        durable = writer.join().expect("the writer does not panic");
        mounted.clear()?;
        bed.check(&image)?;
        let mounted = bed.mount(&image, "")?;
        let found = std::fs::read(mounted.path("file")).context("the replaced file is gone")?;
        let version = found
            .split(|byte| *byte == b' ')
            .next()
            .and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
        let version = version.context("the replaced file holds no version")?;
        ensure!(found == version_bytes(version), "version {version} is not whole");
        ensure!(
            version == durable || version == durable + 1,
            "version {version} is there, {durable} was durable"
        );
        durable = version;
        mounted.unmount(bed)?;
    }
    println!("    {} kills, {durable} versions", options.kills);
    bed.check(&image)
}

fn version_bytes(version: u64) -> Vec<u8> {
    let mut bytes = format!("{version} ").into_bytes();
    bytes.extend(pattern(version, 3000 + (version % 7) as usize * 4096));
    bytes
}

/// Replaces the file with version after version; returns the last one that is durable.
fn replace_until_dead(directory: &Path, first: u64) -> u64 {
    let replace = |version: u64| -> std::io::Result<()> {
        let (new, name) = (directory.join("file.new"), directory.join("file"));
        let mut file = File::create(&new)?;
        file.write_all(&version_bytes(version))?;
        file.sync_data()?;
        std::fs::rename(new, name)?;
        File::open(directory)?.sync_all()
    };
    (first..).find(|version| replace(*version).is_err()).map_or(first, |failed| failed - 1)
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
        ensure!(
            error.raw_os_error() == Some(rustix::io::Errno::ROFS.raw_os_error()),
            "a read-only mount answers with: {error}"
        );
    }
    mounted.unmount(bed)?;
    ensure!(fingerprint(&image)? == before, "a read-only mount wrote to the image");
    let mounted = bed.mount(&image, "")?;
    holds(&mounted, "file", "synced")?;
    mounted.unmount(bed)
}

/// S-37, S-40: the log on a device of its own; without it, or with another volume's, the mount is
/// refused.
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
        let mut words = vec![
            OsStr::new("mount").to_owned(),
            images[0].clone().into(),
            directory.clone().into(),
        ];
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
    bed.succeeds([
        OsStr::new("format"),
        image.as_os_str(),
        OsStr::new("--size"),
        OsStr::new("64M"),
        OsStr::new("--log"),
        log.as_os_str(),
    ])
}
