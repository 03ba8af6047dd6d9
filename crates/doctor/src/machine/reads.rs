//! Reads of a file that no cache holds: how long they take, and how much the device is read for
//! them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bedplate_block::{AlignedBuf, touch_mapped};
use rustix::fs::{Advice, OFlags, fadvise};

use super::{Named, failed};
use crate::system::{ReadTimes, Seen};

const FILE_BYTES: u64 = 64 << 20;
const LARGE: usize = 1 << 20;
const PAGE: usize = 8192;
const RANDOM_READS: u64 = 64;
/// Each may read a whole window of read-ahead.
const TOUCHES: u64 = 8;

pub fn measure(dir: &Path) -> Seen<ReadTimes> {
    let named = Named::new(dir)?;
    let direct = named.with(OFlags::DIRECT)?;
    of_file(&named.without_name()?, &direct).map_err(|error| failed(&error))
}

fn of_file(file: &File, direct: &File) -> io::Result<ReadTimes> {
    let large = AlignedBuf::from_slice(&[0x5A; LARGE]);
    let began = Instant::now();
    for at in (0..FILE_BYTES).step_by(LARGE) {
        direct.write_all_at(&large, at)?;
    }
    let write_bps = FILE_BYTES as f64 / began.elapsed().as_secs_f64();
    file.sync_all()?;
    // A multiplication by an odd number is a walk through all pages in no order.
    let pages = FILE_BYTES / PAGE as u64;
    let random = |at: u64| (at * 2_654_435_761 + 977) % pages * PAGE as u64;
    debug_assert!(
        (0..RANDOM_READS).all(|at| random(at) + PAGE as u64 <= FILE_BYTES),
        "every read lies in the file"
    );
    let mut page = AlignedBuf::zeroed(PAGE);
    let mut read_each = |file: &File| {
        (0..RANDOM_READS).try_for_each(|at| file.read_exact_at(&mut page, random(at)))
    };
    forget(file)?;
    let before = device_bytes()?;
    let began = Instant::now();
    read_each(file)?;
    let random_cached_us = began.elapsed().as_secs_f64() * 1e6 / RANDOM_READS as f64;
    let random_device_bytes = (device_bytes()? - before) as f64 / RANDOM_READS as f64;
    forget(file)?;
    let began = Instant::now();
    read_each(direct)?;
    let random_direct_us = began.elapsed().as_secs_f64() * 1e6 / RANDOM_READS as f64;
    let mut touched = 0;
    for at in 0..TOUCHES {
        forget(file)?;
        let before = device_bytes()?;
        touch_mapped(file, &[random(at)])?;
        touched += device_bytes()? - before;
    }
    Ok(ReadTimes {
        write_bps,
        random_cached_us,
        random_direct_us,
        random_device_bytes,
        mapped_device_bytes: touched as f64 / TOUCHES as f64,
        sequential_cached_bps: sequential(file, file)?,
        sequential_direct_bps: sequential(file, direct)?,
    })
}

/// Takes a file out of the page cache.
fn forget(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn sequential(file: &File, reader: &File) -> io::Result<f64> {
    forget(file)?;
    let mut large = AlignedBuf::zeroed(LARGE);
    let began = Instant::now();
    for at in (0..FILE_BYTES).step_by(LARGE) {
        reader.read_exact_at(&mut large, at)?;
    }
    Ok(FILE_BYTES as f64 / began.elapsed().as_secs_f64())
}

/// Returns how many bytes this process made the system read from devices.
fn device_bytes() -> io::Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.trim().parse().ok())
        .ok_or_else(|| io::Error::other("/proc/self/io tells no read_bytes"))
}
