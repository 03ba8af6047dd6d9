//! Bad input: each is refused with its one clear sentence, and nothing is lost.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::{Bed, COMMAND_LIMIT, LoopDevice};
use super::peer::pattern;
use super::superblock::{self, COPIES};
use crate::sh;

const SIZE: &str = "64M";

/// Returns a hash of a file's content: what was refused must not have been changed.
pub fn fingerprint(path: &Path) -> Result<u64> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = DefaultHasher::new();
    let mut part = vec![0; 1 << 20];
    loop {
        let len = file.read(&mut part)?;
        if len == 0 {
            return Ok(hasher.finish());
        }
        hasher.write(&part[..len]);
    }
}

/// Makes a volume that holds one file, written through the library.
fn volume_with_file(bed: &Bed) -> Result<PathBuf> {
    let image = bed.format("volume.img", SIZE)?;
    let file = bed.path("content");
    std::fs::write(&file, content())?;
    bed.succeeds([OsStr::new("put"), image.as_os_str(), file.as_os_str(), OsStr::new("/kept")])?;
    Ok(image)
}

fn content() -> Vec<u8> {
    (0..100_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// The file that [`volume_with_file`] put there is whole.
fn kept(bed: &Bed, image: &Path) -> Result<()> {
    let copy = bed.path("copy");
    bed.succeeds([OsStr::new("get"), image.as_os_str(), OsStr::new("/kept"), copy.as_os_str()])?;
    ensure!(std::fs::read(&copy)? == content(), "the file is not what it was");
    std::fs::remove_file(copy)?;
    Ok(())
}

/// Every command that opens a volume refuses `image` with `words` and leaves it as it is.
fn refused_unchanged(bed: &Bed, image: &Path, words: &[&str]) -> Result<()> {
    let before = fingerprint(image)?;
    let directory = bed.make_directory("mnt")?;
    bed.refuses([OsStr::new("mount"), image.as_os_str(), directory.as_os_str()], words)?;
    bed.refuses([OsStr::new("ls"), image.as_os_str()], words)?;
    let check =
        sh::finish(&mut bed.bedplate([OsStr::new("check"), image.as_os_str()]), COMMAND_LIMIT)?;
    // Newer than this software is not broken; it only cannot be looked at.
    ensure!(
        matches!(check.status.code(), Some(4 | 8)),
        "check ended with {}: {}",
        check.status,
        check.text().trim()
    );
    for word in words {
        ensure!(
            check.text().contains(word),
            "check does not name '{word}': {}",
            check.text().trim()
        );
    }
    ensure!(
        fingerprint(image)? == before,
        "{} was changed by commands that refused it",
        image.display()
    );
    Ok(())
}

/// S-40: something that is not a volume.
pub fn not_a_volume(bed: &mut Bed, _: &Options) -> Result<()> {
    let text = bed.path("letter.txt");
    std::fs::write(&text, "Dear reader, this is no volume.\n".repeat(4 << 20))?;
    refused_unchanged(bed, &text, &["no Bedplate superblock"])?;
    let empty = bed.path("empty");
    std::fs::File::create(&empty)?;
    refused_unchanged(bed, &empty, &["not a Bedplate volume"])?;
    let nothing = bed.path("nothing");
    bed.refuses([OsStr::new("ls"), nothing.as_os_str()], &["nothing"])?;
    Ok(())
}

/// S-40: a format newer than this software.
pub fn newer_format(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    superblock::set_version(&image, 7)?;
    refused_unchanged(bed, &image, &["version 7", "newer"])?;
    superblock::set_version(&image, 1)?;
    kept(bed, &image)
}

/// S-40: an image shorter than its superblock says; whole again, it is a volume again.
pub fn truncated(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    let whole = std::fs::read(&image)?;
    std::fs::OpenOptions::new().write(true).open(&image)?.set_len(48 << 20)?;
    refused_unchanged(bed, &image, &["48", "64"])?;
    let mut file = std::fs::OpenOptions::new().write(true).open(&image)?;
    file.write_all(&whole)?;
    drop(file);
    kept(bed, &image)
}

/// S-39: copy A is damaged; copy B is used, that is said, and the next mount finds both whole.
pub fn superblock_a(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    superblock::corrupt(&image, COPIES[0])?;
    let mounted = bed.mount(&image, "")?;
    ensure!(std::fs::read(mounted.path("kept"))? == content(), "the file is not what it was");
    let info = bed.json([OsStr::new("info"), mounted.directory.as_os_str()])?;
    ensure!(
        find(&info, "second_superblock") == Some(&serde_json::Value::Bool(true)),
        "info does not say that the second copy was used: {info}"
    );
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// Returns the first value under `key` at any depth.
pub fn find<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(map) => {
            map.get(key).or_else(|| map.values().find_map(|inner| find(inner, key)))
        }
        serde_json::Value::Array(list) => list.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}

/// S-39, S-40: copy B alone damaged is mended; with both damaged the volume is refused, with the
/// place.
pub fn superblocks(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    superblock::corrupt(&image, COPIES[1])?;
    kept(bed, &image)?;
    let whole = std::fs::read(&image)?;
    for copy in COPIES {
        superblock::corrupt(&image, copy)?;
    }
    let directory = bed.make_directory("mnt")?;
    let before = fingerprint(&image)?;
    bed.refuses(
        [OsStr::new("mount"), image.as_os_str(), directory.as_os_str()],
        &["superblock", "byte"],
    )?;
    ensure!(fingerprint(&image)? == before, "a refused mount changed the image");
    std::fs::write(&image, whole)?;
    kept(bed, &image)
}

/// A device below the smallest volume is refused at format.
pub fn too_small(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.path("small.img");
    std::fs::write(&image, vec![7; 1 << 20])?;
    let before = fingerprint(&image)?;
    bed.refuses([OsStr::new("format"), image.as_os_str()], &["32"])?;
    ensure!(fingerprint(&image)? == before, "a refused format changed the image");
    let fresh = bed.path("fresh.img");
    bed.refuses(
        [OsStr::new("format"), fresh.as_os_str(), OsStr::new("--size"), OsStr::new("1M")],
        &["32"],
    )?;
    ensure!(!fresh.exists(), "a refused format left {} behind", fresh.display());
    Ok(())
}

/// S-41: a volume is not formatted over without `--force`.
pub fn formatted_twice(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    let before = fingerprint(&image)?;
    bed.refuses([OsStr::new("format"), image.as_os_str()], &["--force"])?;
    bed.refuses(
        [OsStr::new("format"), image.as_os_str(), OsStr::new("--size"), OsStr::new(SIZE)],
        &["--force"],
    )?;
    ensure!(fingerprint(&image)? == before, "a refused format changed the image");
    kept(bed, &image)?;
    bed.succeeds([OsStr::new("format"), image.as_os_str(), OsStr::new("--force")])?;
    bed.check(&image)
}

/// A device that refuses writes: formatting says so, mounting says so or mounts read-only when
/// asked to (S-38).
pub fn read_only_device(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    let before = fingerprint(&image)?;
    let device = LoopDevice::attach(&image, &["--read-only"])?;
    let directory = bed.make_directory("mnt")?;
    bed.refuses(
        [OsStr::new("format"), device.path.as_os_str(), OsStr::new("--force")],
        &["read-only"],
    )?;
    bed.refuses(
        [OsStr::new("mount"), device.path.as_os_str(), directory.as_os_str()],
        &["read-only"],
    )?;
    if super::needs::Need::Fuse.missing().is_none() {
        let mounted = bed.mount(&device.path, "ro")?;
        ensure!(std::fs::read(mounted.path("kept"))? == content(), "the file is not what it was");
        ensure!(
            std::fs::write(mounted.path("new"), "x").is_err(),
            "a read-only mount took a write"
        );
        mounted.unmount(bed)?;
    }
    ensure!(fingerprint(&image)? == before, "a read-only device was changed");
    Ok(())
}

/// S-40: a device in use, by a mount of ours or of the kernel's, is refused.
pub fn busy_device(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = volume_with_file(bed)?;
    let mounted = bed.mount(&image, "")?;
    let second = bed.make_directory("second")?;
    bed.refuses([OsStr::new("mount"), image.as_os_str(), second.as_os_str()], &["use"])?;
    bed.refuses([OsStr::new("format"), image.as_os_str(), OsStr::new("--force")], &["use"])?;
    bed.refuses([OsStr::new("check"), image.as_os_str()], &["use"])?;
    ensure!(std::fs::read(mounted.path("kept"))? == content(), "the file is not what it was");
    mounted.unmount(bed)?;
    bed.check(&image)?;
    kept(bed, &image)
}

/// A block size below the device's sector is refused at format.
pub fn block_below_sector(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.path("sector.img");
    std::fs::File::create(&image)?.set_len(64 << 20)?;
    let device = LoopDevice::attach(&image, &["--sector-size", "4096"])?;
    bed.refuses(
        [
            OsStr::new("format"),
            device.path.as_os_str(),
            OsStr::new("--block-size"),
            OsStr::new("512"),
        ],
        &["512", "4096"],
    )?;
    bed.succeeds([OsStr::new("format"), device.path.as_os_str()])?;
    bed.check(&device.path)
}

/// Returns a volume's image with noise in some of its sectors.
fn garble(seed: u64, whole: &[u8], sectors: &[usize]) -> Result<Vec<u8>> {
    let mut bytes = whole.to_vec();
    let noise = pattern(seed, 16 << 10);
    for (hit, word) in noise.chunks_exact(16).take(1 + seed as usize % 32).enumerate() {
        let random = u64::from_le_bytes(word[..8].try_into()?) as usize;
        let sector = sectors[random % sectors.len()];
        let len = 1 << (random >> 40 & 7);
        let at = sector * 512 + (random >> 48) % (512 - len);
        bytes[at..at + len].copy_from_slice(&noise[hit * 16 + 64..][..len]);
    }
    Ok(bytes)
}

/// S-36: whatever the bytes are, commands that read a volume end with an answer, not with a panic
/// or a signal; and a check writes nothing.
pub fn garbled(bed: &mut Bed, _: &Options) -> Result<()> {
    const SEEDS: u64 = 24;
    let volume = bed.format("volume.img", "32M")?;
    let file = bed.path("content");
    std::fs::write(&file, "few bytes, so that nearly all that is there is metadata")?;
    for name in ["/one", "/two", "/three"] {
        bed.succeeds([OsStr::new("put"), volume.as_os_str(), file.as_os_str(), OsStr::new(name)])?;
    }
    let whole = std::fs::read(volume)?;
    // Where the volume keeps what it knows: everything that is not zero.
    let interesting: Vec<usize> = (0..whole.len() / 512)
        .filter(|sector| whole[sector * 512..][..512].iter().any(|byte| *byte != 0))
        .collect();
    let image = bed.path("garbled.img");
    let mut broken = 0;
    for seed in 0..SEEDS {
        let bytes = garble(seed, &whole, &interesting)?;
        std::fs::write(&image, &bytes)?;
        let ends = |words: &[&OsStr], codes: &[i32]| -> Result<i32> {
            let done = sh::finish(&mut bed.bedplate(words), COMMAND_LIMIT)?;
            let code = done.status.code().filter(|code| codes.contains(code));
            code.with_context(|| {
                let (status, said) = (done.status, done.text());
                format!("seed {seed}: {words:?} ended with {status}: {}", said.trim())
            })
        };
        let check = ends(&[OsStr::new("check"), image.as_os_str()], &[0, 4, 8])?;
        ensure!(
            std::fs::read(&image)? == bytes,
            "seed {seed}: a check without --repair changed the image"
        );
        broken += u64::from(check != 0);
        for command in ["ls", "info"] {
            ends(&[OsStr::new(command), image.as_os_str()], &[0, 1, 4])?;
        }
        let repair = [OsStr::new("check"), image.as_os_str(), OsStr::new("--repair")];
        ends(&repair, &[0, 1, 4, 8])?;
    }
    println!("    {SEEDS} garbled volumes, {broken} of them named broken");
    Ok(())
}
