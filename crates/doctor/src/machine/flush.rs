//! Small durable writes: how long they take, and how many flushes of the disks they need.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate_block::AlignedBuf;
use rustix::fs::OFlags;

use super::{Named, failed, median_us};
use crate::system::{FlushTimes, Seen};

const BLOCK: usize = 4096;
/// Blocks of the file, each of which is written over again and again.
const BLOCKS: u64 = 64;
/// How often each kind of write is measured, if the time suffices.
const ROUNDS: usize = 40;
/// At least so often it is, however slow the disk.
const ROUNDS_MIN: usize = 5;
/// How long each kind is measured.
const TIME_MAX: Duration = Duration::from_millis(400);

pub fn measure(dir: &Path, disks: &[PathBuf]) -> Seen<FlushTimes> {
    let named = Named::new(dir)?;
    let direct = named.with(OFlags::DIRECT)?;
    let durable = named.with(OFlags::DIRECT | OFlags::DSYNC)?;
    let file = &named.without_name()?;
    let block = AlignedBuf::from_slice(&[0x5A; BLOCK]);
    for at in 0..BLOCKS {
        file.write_all_at(&block, at * BLOCK as u64).map_err(|error| failed(&error))?;
    }
    file.sync_all().map_err(|error| failed(&error))?;
    let write = |file: &File, at: u64| file.write_all_at(&block, at);
    let (write_us, _) = times(&[], |at| write(&direct, at))?;
    let (dsync_us, dsync_flushes) = times(disks, |at| write(&durable, at))?;
    let (fdatasync_us, fdatasync_flushes) = times(disks, |at| {
        write(file, at)?;
        file.sync_data()
    })?;
    Ok(FlushTimes { write_us, dsync_us, fdatasync_us, dsync_flushes, fdatasync_flushes })
}

/// Measures one kind of write; returns its median and the flushes for each.
fn times(
    disks: &[PathBuf],
    mut write: impl FnMut(u64) -> std::io::Result<()>,
) -> Seen<(f64, Option<f64>)> {
    let mut times = Vec::with_capacity(ROUNDS);
    let (start, before) = (Instant::now(), flushes(disks));
    while times.len() < ROUNDS && (times.len() < ROUNDS_MIN || start.elapsed() < TIME_MAX) {
        // In no order that a disk could put together.
        let at = (times.len() as u64 * 37 % BLOCKS) * BLOCK as u64;
        let began = Instant::now();
        write(at).map_err(|error| failed(&error))?;
        times.push(began.elapsed());
    }
    debug_assert!(
        (ROUNDS_MIN..=ROUNDS).contains(&times.len()),
        "a median is of enough writes: {}",
        times.len()
    );
    let sent = before.and_then(|before| flushes(disks)?.checked_sub(before));
    let each = sent.map(|sent| sent as f64 / times.len() as f64);
    Ok((median_us(&mut times), each))
}

/// Returns how many flushes disks were sent; `None` where the kernel does not count them.
fn flushes(disks: &[PathBuf]) -> Option<u64> {
    let counts = disks.iter().map(|disk| {
        let stat = std::fs::read_to_string(disk.join("stat")).ok()?;
        stat.split_whitespace().nth(15)?.parse::<u64>().ok()
    });
    let counts: Option<Vec<u64>> = counts.collect();
    counts.filter(|counts| !counts.is_empty()).map(|counts| counts.iter().sum())
}
