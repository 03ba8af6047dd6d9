//! Pages that MariaDB and SQLite wrote, on a mirror one of whose copies is damaged page by page:
//! the scrub believes the other by the database's own checksum.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::Bed;
use super::volumes::DATA_START;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(120);

/// S-64, S-96: tablespaces of MariaDB with either checksum that it writes, and a database of
/// SQLite.
pub fn page_checksums(bed: &mut Bed, _options: &Options) -> Result<()> {
    for (page_kib, algorithm) in [(16, "full_crc32"), (4, "crc32"), (64, "full_crc32")] {
        let data = bed.make_directory(&format!("innodb-{page_kib}"))?;
        let mut install = Command::new("mariadb-install-db");
        install.args([
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        install
            .arg(format!("--user={}", sh::output(Command::new("id").arg("-un"), LIMIT)?.trim()))
            .arg(format!("--datadir={}", data.display()));
        install.args([
            format!("--innodb-page-size={page_kib}k"),
            format!("--innodb-checksum-algorithm={algorithm}"),
        ]);
        sh::output(&mut install, LIMIT)?;
        damaged(
            bed,
            &data.join("mysql/innodb_index_stats.ibd"),
            page_kib << 10,
            &format!("InnoDB page ({algorithm}, {page_kib} KiB)"),
        )?;
        std::fs::remove_dir_all(&data)?;
    }
    damaged(bed, &sqlite(bed)?, 4096, "SQLite page")
}

/// Makes a database that keeps eight bytes of every page free, and puts the checksums there, as the
/// checksum VFS does when it writes a page.
fn sqlite(bed: &Bed) -> Result<PathBuf> {
    let path = bed.path("sums.db");
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
                INSERT INTO t SELECT i, hex(randomblob(200)) FROM n;";
    let shell = |words: &[&str]| sh::output(Command::new("sqlite3").arg(&path).args(words), LIMIT);
    shell(&[
        "PRAGMA page_size=4096; CREATE TABLE t(n INTEGER PRIMARY KEY, payload TEXT);",
        fill,
        ".filectrl reserve_bytes 8",
        "VACUUM;",
    ])?;
    let mut all = std::fs::read(&path)?;
    ensure!(all[20] == 8, "SQLite did not keep 8 bytes of every page free");
    for page in all.chunks_exact_mut(4096) {
        let (mut first, mut second) = (0_u32, 0_u32);
        for pair in page[..4088].as_chunks::<8>().0 {
            let word = |at: usize| {
                u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]])
            };
            first = first.wrapping_add(word(0)).wrapping_add(second);
            second = second.wrapping_add(word(4)).wrapping_add(first);
        }
        page[4088..4092].copy_from_slice(&first.to_le_bytes());
        page[4092..].copy_from_slice(&second.to_le_bytes());
    }
    std::fs::write(&path, &all)?;
    ensure!(
        shell(&["PRAGMA integrity_check;"])?.trim() == "ok",
        "SQLite does not take the database with checksums"
    );
    Ok(path)
}

/// Puts a file on a mirror, turns a bit in every page of one copy that holds anything, and expects
/// every one found, judged and mended.
fn damaged(bed: &Bed, file: &Path, page_bytes: usize, what: &str) -> Result<()> {
    let content = std::fs::read(file)?;
    let (left, right) = (bed.path("left.img"), bed.path("right.img"));
    let words = ["volume", "create", "pages", "--size", "40M", "--force"].map(std::ffi::OsStr::new);
    bed.succeeds(words.into_iter().chain([left.as_os_str(), right.as_os_str()]))?;
    bed.succeeds(["format".as_ref(), left.as_os_str()])?;
    bed.succeeds(["put".as_ref(), left.as_os_str(), file.as_os_str(), "/file.ibd".as_ref()])?;
    let image = OpenOptions::new().read(true).write(true).open(&left)?;
    let extents = bed.json(["stat", &format!("{}:/file.ibd", left.display()), "--extents"])?;
    let mut pages = 0;
    for (number, page) in content
        .chunks_exact(page_bytes)
        .enumerate()
        .filter(|(_, page)| page.iter().any(|byte| *byte != 0))
    {
        let within = (number * 37 + 41) % (page_bytes - 16);
        let place = DATA_START + volume_offset(&extents, (number * page_bytes + within) as u64)?;
        image.write_all_at(&[page[within] ^ 1], place)?;
        pages += 1;
    }
    image.sync_all()?;
    drop(image);
    let found =
        bed.succeeds(["volume".as_ref(), "scrub".as_ref(), "--repair".as_ref(), left.as_os_str()])?;
    let kind = what.split(" (").next().unwrap_or(what);
    ensure!(
        found.contains(kind) && found.contains(", 0 left") && !found.contains("left.img is right"),
        "{what}: the scrub says {found}"
    );
    ensure!(
        found.lines().filter(|line| line.contains("right.img is right")).count() > 0,
        "{what}: nothing was judged: {found}"
    );
    bed.succeeds([
        "get".as_ref(),
        left.as_os_str(),
        "/file.ibd".as_ref(),
        bed.path("back").as_os_str(),
    ])?;
    ensure!(std::fs::read(bed.path("back"))? == content, "{what}: the file is not what it was");
    println!(
        "    {what}: a bit turned in each of {pages} pages of one copy, all mended from the other"
    );
    for path in [left, right, bed.path("back")] {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Returns where on the volume a byte of a file lies.
fn volume_offset(told: &serde_json::Value, at: u64) -> Result<u64> {
    let number = |extent: &serde_json::Value, field: &str| extent[field].as_u64();
    let extents = told["extents"].as_array().context("the file has no extents")?;
    let last = extents.iter().filter_map(|extent| {
        Some((number(extent, "file_offset")?, number(extent, "volume_offset")?))
    });
    let (file, volume) = last
        .filter(|(file, _)| *file <= at)
        .max()
        .with_context(|| format!("byte {at} of the file is nowhere: {told}"))?;
    Ok(volume + at - file)
}
