//! `fio --verify`: every block carries a checksum and its own address; what is read back must be
//! what was written there, also after a remount.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::fingerprint;
use super::bed::Bed;
use crate::sh;

/// One workload: what fio writes and how.
pub struct Job {
    name: &'static str,
    arguments: &'static [&'static str],
}

/// Page-sized random writes from several processes, a list of them in flight, and sizes that fit
/// nothing.
pub const JOBS: [Job; 4] = [
    Job {
        name: "pages",
        arguments: &["--rw=randwrite", "--bs=8k", "--ioengine=psync", "--numjobs=3", "--fsync=64"],
    },
    Job {
        name: "mixed",
        arguments: &[
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--ioengine=psync",
            "--numjobs=2",
            "--fdatasync=32",
        ],
    },
    Job {
        name: "list",
        arguments: &[
            "--rw=randwrite",
            "--bs=16k",
            "--ioengine=libaio",
            "--iodepth=16",
            "--numjobs=2",
        ],
    },
    Job {
        name: "append",
        arguments: &[
            "--rw=write",
            "--bsrange=4k-128k",
            "--ioengine=psync",
            "--numjobs=2",
            "--fallocate=none",
        ],
    },
];

/// Not aligned to anything; no `O_DIRECT`.
const UNALIGNED: Job = Job {
    name: "unaligned",
    arguments: &[
        "--rw=write",
        "--bsrange=300-9000",
        "--bs_unaligned",
        "--ioengine=psync",
        "--fallocate=none",
    ],
};

/// Through a shared mapping, which is the page cache's.
const MAPPED: Job = Job {
    name: "mapped",
    arguments: &["--rw=randwrite", "--bs=4k", "--ioengine=mmap", "--fsync=128"],
};

/// Runs `job` on `directory`: writes, reads back, compares.
pub fn run(job: &Job, directory: &Path, direct: bool) -> Result<()> {
    let mut command = Command::new("fio");
    command
        .arg(format!("--name={}", job.name))
        .arg(format!("--directory={}", directory.display()))
        .args(job.arguments);
    command.args([
        "--size=8M",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=4711",
    ]);
    command.args(["--group_reporting", "--minimal"]).arg(format!("--direct={}", u8::from(direct)));
    sh::output(&mut command, Duration::from_secs(120))
        .map(drop)
        .with_context(|| format!("fio {}", job.name))
}

/// Runs every workload on a mount with `options`; after a remount every file is what it was.
///
/// # Errors
/// When fio finds a block that is not what was written there, or a file changed over the remount.
pub fn verify(bed: &Bed, options: &str, direct: bool, more: &[&Job]) -> Result<()> {
    let image = bed.format("volume.img", "256M")?;
    let mounted = bed.mount(&image, options)?;
    for job in JOBS.iter().chain(more.iter().copied()) {
        run(job, &mounted.directory, direct)?;
    }
    let before = fingerprints(&mounted.directory)?;
    mounted.unmount(bed)?;
    bed.check(&image)?;
    let mounted = bed.mount(&image, options)?;
    let after = fingerprints(&mounted.directory)?;
    for (name, fingerprint) in &before {
        ensure!(
            after.get(name) == Some(fingerprint),
            "{name} is not what it was before the remount"
        );
    }
    mounted.unmount(bed)
}

fn fingerprints(directory: &Path) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), fingerprint(&entry.path())?);
    }
    ensure!(!found.is_empty(), "fio left no files");
    Ok(found)
}

/// S-20, S-43: the kernel's page cache with write-back, and shared mappings.
pub fn cached(bed: &mut Bed, _: &Options) -> Result<()> {
    verify(bed, "mode=cached", false, &[&UNALIGNED, &MAPPED])
}

/// S-20, S-31: direct.
pub fn direct(bed: &mut Bed, _: &Options) -> Result<()> {
    verify(bed, "mode=direct", false, &[&UNALIGNED])
}

/// S-20, S-31: concurrent.
pub fn concurrent(bed: &mut Bed, _: &Options) -> Result<()> {
    verify(bed, "mode=concurrent", false, &[&UNALIGNED])
}

/// S-20, S-24, S-31: concurrent with cached reads.
pub fn concurrent_cache(bed: &mut Bed, _: &Options) -> Result<()> {
    verify(bed, "mode=concurrent+cache", false, &[&UNALIGNED])
}

/// S-27: `O_DIRECT` opens of files that are cached otherwise.
pub fn o_direct(bed: &mut Bed, _: &Options) -> Result<()> {
    verify(bed, "mode=cached", true, &[])
}
