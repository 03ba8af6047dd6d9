//! fio's libaio engine under a lease, and without one on the same file, beside everything that takes
//! the lease back.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Options;
use super::bed::Bed;
use super::leased::Leased;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

/// The parts of the file: two that fio verifies, and a tail that comes and goes.
const PART: u64 = 16 * MIB;
const TAIL: u64 = 8 * MIB;

/// Writes all blocks of a part at random with a list in flight, and reads them back, again and
/// again.
fn fio(mut command: Command, file: &Path, part: u64, seconds: u64) -> Result<sh::Family> {
    command
        .arg(format!("--name=part{part}"))
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--offset={}", part * PART))
        .arg(format!("--size={PART}"))
        .args(["--rw=randwrite", "--bs=8k", "--ioengine=libaio", "--iodepth=16", "--direct=1"])
        .args(["--iodepth_batch_submit=4", "--verify=crc32c", "--verify_fatal=1"])
        .args(["--do_verify=1", "--verify_state_save=0", "--overwrite=1", "--minimal"])
        .arg(format!("--loops={}", 4 * seconds))
        .stdout(std::process::Stdio::null());
    sh::Family::start(&mut command)
}

/// Blocks that the tail gives up are another file's for a while, which nothing else may change.
fn cut_and_grow(file: &File, other: &Path, round: u8) -> Result<()> {
    file.set_len(2 * PART)?;
    let bytes = vec![round; TAIL as usize];
    std::fs::write(other, &bytes)?;
    File::open(other)?.sync_all()?;
    file.write_all_at(&bytes, 2 * PART)?;
    file.sync_all()?;
    ensure!(std::fs::read(other)? == bytes, "a file changed that nothing writes");
    Ok(())
}

/// S-360, S-361, S-362: what fio wrote, under a lease and without one, it reads back, beside
/// truncations, checkpoints and defragmentation.
pub fn libaio(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.format("volume.img", "256M")?;
    let mounted = bed.mount(&image, "mode=concurrent,lease=owner,sync=200ms")?;
    let (path, other) = (mounted.path("data"), mounted.path("other"));
    std::fs::write(&path, vec![1; (2 * PART + TAIL) as usize])?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    file.sync_all()?;
    std::thread::sleep(Duration::from_millis(700));
    let mut leased = Command::new(&bed.program);
    leased.args(["run", "--", "fio"]);
    let mut jobs = vec![
        fio(leased, &path, 0, options.seconds)?,
        fio(Command::new("fio"), &path, 1, options.seconds)?,
    ];
    let directory = mounted.directory.as_os_str();
    let (start, mut round) = (Instant::now(), 0_u8);
    while jobs.iter_mut().any(|job| matches!(job.child.try_wait(), Ok(None))) {
        ensure!(start.elapsed() < LIMIT, "fio does not end");
        round = round.wrapping_add(1);
        cut_and_grow(&file, &other, round)?;
        bed.succeeds(["checkpoint".as_ref(), "create".as_ref(), directory, "c".as_ref()])?;
        bed.succeeds(["defrag".as_ref(), path.as_os_str(), "--unshare".as_ref()])?;
        bed.succeeds(["checkpoint".as_ref(), "delete".as_ref(), directory, "c".as_ref()])?;
    }
    for job in &mut jobs {
        let status = job.wait(LIMIT)?;
        ensure!(status.success(), "fio found what it did not write: it ended with {status}");
    }
    let told = Leased::of(bed, &mounted.directory)?;
    println!("    {round} rounds beside fio; {told}");
    ensure!(told.writes > 1000 && told.reads > 1000, "hardly anything went {told}");
    drop(file);
    mounted.unmount(bed)?;
    bed.check(&image)
}
