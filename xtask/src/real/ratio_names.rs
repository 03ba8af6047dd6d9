//! Archives unpacked, repositories cloned, small files by themselves, and large files copied, on the
//! same loop device over a fully written file, interleaved: on Bedplate as a ratio to XFS.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::OFlags;

use super::Options;
use super::bed::Bed;
use super::peer::{pattern, with_aligned};
use super::ratio_programs::{Measured, compare};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(600);
const MIB: usize = 1 << 20;

/// Files of the archive: as many as the sources of a large program have.
const FILES: usize = 17_000;

/// Files in a directory of the archive.
const PER_DIRECTORY: usize = 25;

/// Files that are made, asked for and removed one by one.
const SMALL: usize = 20_000;

/// Measures the time of archives, clones and small files.
pub fn names(bed: &mut Bed, options: &Options) -> Result<()> {
    let sources = bed.make_directory("sources")?;
    make_sources(&sources)?;
    let mut tar = Command::new("tar");
    sh::output(
        tar.arg("-cf").arg(bed.path("sources.tar")).arg("-C").arg(&sources).arg("."),
        LIMIT,
    )?;
    for words in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "sources"]] {
        let names = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "gc.auto=0"];
        sh::output(Command::new("git").current_dir(&sources).args(names).args(words), LIMIT)?;
    }
    let what = ["files unpacked/s", "cloned/s", "written/s", "asked for/s", "removed/s"];
    compare(bed, options, &what, small_files)
}

/// Makes text files of 200 bytes to 24 KiB, most of them small.
fn make_sources(directory: &Path) -> Result<()> {
    for at in 0..FILES {
        let part = directory.join(format!("part-{}", at / PER_DIRECTORY));
        std::fs::create_dir_all(&part)?;
        let size = 200 + (at * 7919 % 155) * (at * 7919 % 155);
        let text: String = pattern(at as u64, size.div_ceil(2)).iter().map(hex).collect();
        std::fs::write(part.join(format!("file-{at}.c")), text)?;
    }
    Ok(())
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

fn small_files(bed: &Bed, _: &Options, place: &Path, _: bool) -> Result<Measured> {
    let unpacked = place.join("unpacked");
    std::fs::create_dir(&unpacked)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(bed.path("sources.tar")).arg("-C").arg(&unpacked);
    let unpack = rate(FILES, || sh::output(&mut tar, LIMIT).map(drop))?;

    let mut git = Command::new("git");
    git.args(["clone", "-q", "--no-local"]).arg(bed.path("sources")).arg(place.join("cloned"));
    let clone = rate(FILES, || sh::output(&mut git, LIMIT).map(drop))?;

    let directory = place.join("small");
    std::fs::create_dir(&directory)?;
    let paths: Vec<PathBuf> = (0..SMALL).map(|at| directory.join(at.to_string())).collect();
    let each = |work: fn(&Path) -> std::io::Result<()>| {
        rate(SMALL, || Ok(paths.iter().try_for_each(|path| work(path))?))
    };
    let write = each(|path| std::fs::write(path, [1; 1024]))?;
    let ask = each(|path| std::fs::metadata(path).map(drop))?;
    let remove = each(|path| std::fs::remove_file(path))?;
    Ok(vec![unpack, clone, write, ask, remove])
}

/// Bytes of each large file.
const LARGE: usize = 512 * MIB;

/// Measures copies, and reads and writes in sequence.
pub fn copies(bed: &mut Bed, options: &Options) -> Result<()> {
    let what =
        ["MiB/s copied", "written", "read", "written directly", "read directly", "copied within"];
    compare(bed, options, &what, large_files)
}

fn large_files(bed: &Bed, _: &Options, place: &Path, _: bool) -> Result<Measured> {
    let source = bed.path("large");
    if !source.exists() {
        super::ratio::fill(&source, LARGE as u64)?;
    }
    let whole = LARGE / MIB;
    let copy = place.join("copy");
    let mut cp = Command::new("cp");
    let copied = rate(whole, || {
        sh::output(cp.arg(&source).arg(&copy), LIMIT)?;
        Ok(File::open(&copy)?.sync_all()?)
    })?;
    let mut rates = vec![copied];
    for (flags, size) in [(OFlags::empty(), MIB), (OFlags::DIRECT, 8 * MIB)] {
        let file = place.join(format!("in-sequence-{size}"));
        rates.push(rate(whole, || in_sequence(&file, flags, size, true))?);
        drop_pages(&file)?;
        rates.push(rate(whole, || in_sequence(&file, flags, size, false))?);
    }
    // A copy for which XFS and a mount share blocks.
    let mut cp = Command::new("cp");
    rates.push(rate(whole, || {
        sh::output(cp.arg(&copy).arg(place.join("second")), LIMIT)?;
        Ok(File::open(place.join("second"))?.sync_all()?)
    })?);
    Ok(rates)
}

/// Writes a new file and syncs it, or reads one.
fn in_sequence(file: &Path, flags: OFlags, size: usize, is_write: bool) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let mut options = OpenOptions::new();
    options.read(true).write(is_write).create(is_write).custom_flags(flags.bits().cast_signed());
    let file = options.open(file)?;
    with_aligned(size, |buffer| {
        buffer.fill(1);
        for at in (0..LARGE).step_by(size) {
            if is_write {
                file.write_all_at(buffer, at as u64)?;
            } else {
                file.read_exact_at(buffer, at as u64)?;
            }
        }
        if is_write { file.sync_all() } else { Ok(()) }
    })
    .context("a file in sequence")
}

/// Takes a file out of the page cache, so that the next read asks the device.
fn drop_pages(file: &Path) -> Result<()> {
    let file = File::open(file)?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Returns how many of `count` things were done a second.
fn rate(count: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
