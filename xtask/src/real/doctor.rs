//! `bedplate doctor` on devices and a server that were made with mistakes.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::bed::{Bed, LoopDevice};
use super::failing_device::Mount;
use super::mariadb::MariaDb;
use super::needs::postgres_programs;
use super::postgres::Cluster;
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns what `doctor` finds, by the names of the checks.
fn found(told: &Value) -> Vec<&str> {
    let findings = told["findings"].as_array().map_or(&[][..], Vec::as_slice);
    findings.iter().filter_map(|finding| finding["check"].as_str()).collect()
}

fn finding<'a>(told: &'a Value, check: &str) -> Result<&'a Value> {
    let findings = told["findings"].as_array().map_or(&[][..], Vec::as_slice);
    findings
        .iter()
        .find(|finding| finding["check"] == check)
        .with_context(|| format!("{check} is not among what was found: {told:#}"))
}

/// The first partition of a loop device. The kernel is told of it, because one that reads no
/// partition tables knows partitions all the same; dropped, it is told that there is none.
struct Partition {
    path: PathBuf,
    _guard: Guard,
}

impl Partition {
    /// Makes one that begins at a sector of 512 bytes.
    fn make(device: &LoopDevice, start_sectors: u32) -> Result<Self> {
        let start = start_sectors.to_string();
        sh::output(Command::new("addpart").arg(&device.path).args(["1", &start, "65536"]), LIMIT)?;
        let disk = device.path.clone();
        let guard = Guard::new(move || {
            if let Err(error) = sh::output(Command::new("delpart").arg(&disk).arg("1"), LIMIT) {
                eprintln!("xtask: {error:#}");
            }
        });
        let path = PathBuf::from(format!("{}p1", device.path.display()));
        let partition = Self { path, _guard: guard };
        let start = Instant::now();
        while !partition.path.exists() {
            ensure!(start.elapsed() < LIMIT, "{} does not appear", partition.path.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(partition)
    }
}

/// S-351, S-353: on a disk with blocks of 4 KiB a partition that begins within one and a loop device
/// with smaller blocks are found, and on the same devices made well they are not; far read-ahead is
/// found, mended by `--fix`, and not found again.
pub fn devices(bed: &mut Bed, _: &Options) -> Result<()> {
    let below = bed.path("disk.img");
    File::create(&below)?.set_len(256 << 20)?;
    let disk = LoopDevice::attach(&below, &["--sector-size", "4096"])?;
    sh::output(Command::new("mkfs.ext4").arg("-q").arg(&disk.path), LIMIT)?;
    let directory = bed.make_directory("disk")?;
    let mount = Mount::make(&disk.path, &directory, &["-t", "ext4"])?;

    let image = directory.join("above.img");
    File::create(&image)?.set_len(64 << 20)?;
    let bad = LoopDevice::attach(&image, &[])?;
    let partition = Partition::make(&bad, 63)?;
    let told = bed.json([OsStr::new("doctor"), partition.path.as_os_str()])?;
    let alignment = finding(&told, "alignment")?;
    ensure!(alignment["sure"] == "certain", "{alignment:#}");
    let said = alignment["measured"].as_str().unwrap_or_default();
    ensure!(said.contains("3584 bytes behind"), "{said}");
    finding(&told, "log-block")?;
    drop(partition);
    bad.detach()?;

    let good = LoopDevice::attach(&image, &["--sector-size", "4096"])?;
    let partition = Partition::make(&good, 2048)?;
    let told = bed.json([OsStr::new("doctor"), partition.path.as_os_str()])?;
    ensure!(!found(&told).iter().any(|name| ["alignment", "log-block"].contains(name)), "{told:#}");

    let name = good.path.file_name().context("a device has a name")?;
    let setting = Path::new("/sys/block").join(name).join("queue/read_ahead_kb");
    std::fs::write(&setting, "4096")?;
    let told = bed.json([OsStr::new("doctor"), good.path.as_os_str()])?;
    finding(&told, "read-ahead")?;
    mended(bed, &good.path, &setting)?;
    drop(partition);
    drop(good);
    drop(mount);
    drop(disk);
    Ok(())
}

/// Reads ahead far, and is mended by `--fix` of that check alone: the others are of the machine.
fn mended(bed: &Bed, device: &Path, setting: &Path) -> Result<()> {
    let run = |last: &[&str]| {
        let device = device.display().to_string();
        let words = ["doctor", &device, "--check", "read-ahead", "--fix"];
        bed.json(words.into_iter().chain(last.iter().copied()))
    };
    let value = || Ok::<_, anyhow::Error>(std::fs::read_to_string(setting)?.trim().to_owned());
    run(&["--dry-run"])?;
    ensure!(value()? == "4096", "a dry run changed something");
    let told = run(&[])?;
    ensure!(value()? == "128" && told["fix"][0]["done"] == true, "{told:#}");
    let undo = told["fix"][0]["undo"][0].as_str().context("it is told how to undo it")?;
    sh::output(Command::new("sh").args(["-c", undo]), LIMIT)?;
    ensure!(value()? == "4096", "{undo} does not undo it");
    run(&[])?;
    let told = run(&[])?;
    ensure!(found(&told).is_empty(), "it is found once it is mended: {told:#}");
    Ok(())
}

/// Runs `doctor` on a cluster.
fn examined(bed: &Bed) -> Result<Value> {
    let outside = bed.path("outside");
    let address = format!("postgresql:///postgres?host={}&user=postgres", outside.display());
    let mut command = bed.bedplate(["--json", "doctor", "--all", "--postgres", &address]);
    let programs = postgres_programs().context("PostgreSQL is not installed")?;
    let others = std::env::var_os("PATH").unwrap_or_default();
    command.env(
        "PATH",
        std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&others)))?,
    );
    let done = sh::finish(&mut command, LIMIT)?;
    ensure!(matches!(done.status.code(), Some(0 | 1)), "{}", done.text());
    serde_json::from_str(&done.stdout).with_context(|| done.text())
}

/// S-351, S-352: a live cluster. Pages that are in its buffers and in the page cache are counted
/// once the extension is there, and are gone when the page cache is emptied; full page writes that
/// are off are found until they are on.
pub fn server(bed: &mut Bed, _: &Options) -> Result<()> {
    let data = bed.path("cluster");
    let cluster = Cluster::at(bed, data.clone(), "outside")?;
    cluster.initialise(16)?;
    let settings = ["shared_buffers=160MB", "full_page_writes=off", "checkpoint_flush_after=0"];
    let server = cluster.start(&settings)?;
    cluster.fill(6)?;
    cluster.sql("SELECT sum(abalance) FROM pgbench_accounts")?;

    let told = examined(bed)?;
    let unseen = told["unseen"].as_array().map_or(&[][..], Vec::as_slice);
    let asks = |row: &&Value| row["told"].as_str().is_some_and(|t| t.contains("CREATE EXTENSION"));
    ensure!(unseen.iter().any(|row| asks(&row)), "without the extension nothing is said: {told:#}");
    let off = finding(&told, "full-page-writes")?;
    ensure!(off["sure"] == "certain", "{off:#}");

    // Of small tables buffers are read in a ring, and not kept; prewarming keeps them.
    cluster.sql("CREATE EXTENSION pg_buffercache")?;
    cluster.sql("CREATE EXTENSION pg_prewarm")?;
    cluster.sql("SELECT pg_prewarm('pgbench_accounts')")?;
    cluster.sql("CHECKPOINT")?;
    let told = examined(bed)?;
    let doubled = finding(&told, "double-cache")?;
    println!("    {}", doubled["measured"].as_str().unwrap_or_default());

    let files = Command::new("find").arg(data.join("base")).args(["-type", "f"]).output()?;
    for file in String::from_utf8_lossy(&files.stdout).lines() {
        // Writes nothing, and takes the file out of the page cache.
        let of = format!("of={file}");
        let words = ["if=/dev/null", &of, "oflag=nocache", "conv=notrunc,fdatasync", "count=0"];
        sh::output(Command::new("dd").args(words), LIMIT)?;
    }
    let told = examined(bed)?;
    ensure!(!found(&told).contains(&"double-cache"), "an empty page cache holds copies: {told:#}");
    server.stop()?;

    let server = cluster.start(&["full_page_writes=on"])?;
    let told = examined(bed)?;
    ensure!(!found(&told).contains(&"full-page-writes"), "{told:#}");
    server.stop()
}

fn examined_server(server: &MariaDb, bed: &Bed) -> Result<Value> {
    let address = format!("mysql://root@?socket={}", server.socket());
    bed.json(["doctor", "--all", "--mysql", &address])
}

/// S-351: a live server of MariaDB whose files go through the page cache, without its doublewrite
/// buffer, and one as it is set up.
pub fn mariadb(bed: &mut Bed, _: &Options) -> Result<()> {
    let directory = bed.make_directory("mariadb")?;
    let mut server = MariaDb::install(bed, directory.join("data"))?;
    server.start(&["--innodb-flush-method=fsync", "--innodb-doublewrite=OFF"])?;
    server.sql(
        "CREATE DATABASE app; USE app; CREATE TABLE t(n int PRIMARY KEY, payload varchar(1000)); \
         INSERT INTO t SELECT seq, repeat('x', 1000) FROM seq_1_to_100000",
    )?;
    server.sql("SET GLOBAL innodb_max_dirty_pages_pct = 0; FLUSH TABLES app.t FOR EXPORT")?;
    let told = examined_server(&server, bed)?;
    let direct = finding(&told, "innodb-direct")?;
    println!("    {}", direct["measured"].as_str().unwrap_or_default());
    ensure!(finding(&told, "innodb-doublewrite")?["sure"] == "certain", "{told:#}");
    server.stop()?;

    server.start(&[])?;
    let told = examined_server(&server, bed)?;
    let wrong: Vec<_> =
        found(&told).into_iter().filter(|name| name.starts_with("innodb")).collect();
    ensure!(wrong.is_empty(), "as it is set up {wrong:?} are found: {told:#}");
    server.stop()
}
