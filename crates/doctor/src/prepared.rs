//! Prepared machines for tests: a tree of the files of `/sys`, `/proc` and `/dev`, and what its
//! measurements would give.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::facts::{Place, Question};
use crate::report::Outcome;
use crate::system::{FlushTimes, ReadTimes, Seen, System};
use crate::{Report, examine};

/// A machine in a directory.
pub struct Prepared {
    root: TempDir,
    pub flush: Seen<FlushTimes>,
    pub wake: Seen<Duration>,
    pub reads: Seen<ReadTimes>,
    /// How many pages of each file are in the page cache, from its start.
    pub cached_pages: usize,
}

/// Where the database lies on it.
pub const DIR: &str = "/var/lib/db";

impl Prepared {
    /// A machine with nothing to find: a SCSI disk with blocks of 4 KiB, a partition at 1 MiB,
    /// ext4.
    pub fn clean() -> Self {
        let root = tempfile::tempdir().unwrap();
        let flush = FlushTimes {
            write_us: 60.0,
            dsync_us: 900.0,
            fdatasync_us: 950.0,
            dsync_flushes: Some(1.0),
            fdatasync_flushes: Some(1.0),
        };
        let reads = ReadTimes {
            write_bps: 500e6,
            random_cached_us: 110.0,
            random_direct_us: 90.0,
            random_device_bytes: 8192.0,
            mapped_device_bytes: 131_072.0,
            sequential_cached_bps: 1e9,
            sequential_direct_bps: 1e9,
        };
        let wake = Ok(Duration::from_micros(8));
        let machine = Self { root, flush: Ok(flush), wake, reads: Ok(reads), cached_pages: 0 };
        machine.disk("sda", "8:0");
        machine.partition("sda", 1, "8:1", 2048);
        machine.mount("8:1", "ext4", "/dev/sda1", "rw,relatime", "rw");
        machine.superblock_of_ext4("sda1", 4096, 0);
        machine.memory();
        machine
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let at = self.at(Path::new(path));
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, content).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let at = self.at(Path::new(path));
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        let up = "../".repeat(Path::new(path).components().count() - 2);
        symlink(format!("{up}{}", to.trim_start_matches('/')), at).unwrap();
    }

    /// Adds a device's directory, found by number and name as in sysfs.
    fn device(&self, dir: &str, number: &str) {
        let name = dir.rsplit('/').next().unwrap();
        self.write(&format!("{dir}/dev"), number);
        self.write(&format!("{dir}/alignment_offset"), "0\n");
        self.link(&format!("/sys/dev/block/{number}"), dir);
        self.link(&format!("/sys/class/block/{name}"), dir);
    }

    fn queue(&self, dir: &str, settings: &[(&str, &str)]) {
        let usual = [
            ("logical_block_size", "512"),
            ("physical_block_size", "4096"),
            ("minimum_io_size", "4096"),
            ("optimal_io_size", "0"),
            ("write_cache", "write back"),
            ("rotational", "0"),
            ("scheduler", "[none] mq-deadline bfq"),
            ("read_ahead_kb", "128"),
            ("nr_requests", "256"),
            ("atomic_write_unit_max_bytes", "0"),
        ];
        for (name, value) in usual.iter().chain(settings) {
            self.write(&format!("{dir}/queue/{name}"), format!("{value}\n"));
        }
    }

    pub fn disk(&self, name: &str, number: &str) {
        let dir = format!("/sys/devices/pci0/block/{name}");
        self.device(&dir, number);
        self.queue(&dir, &[]);
        let scsi = format!("{dir}/device/scsi_disk/0:0:0:0");
        self.write(&format!("{scsi}/cache_type"), "write back\n");
    }

    pub fn set(&self, disk: &str, setting: &str, value: &str) {
        let dir = format!("/sys/devices/pci0/block/{disk}");
        let dir = if self.at(Path::new(&dir)).exists() {
            dir
        } else {
            format!("/sys/devices/virtual/block/{disk}")
        };
        self.write(&format!("{dir}/queue/{setting}"), value);
    }

    pub fn partition(&self, disk: &str, at: u32, number: &str, start_sectors: u64) {
        let dir = format!("/sys/devices/pci0/block/{disk}/{disk}{at}");
        if !self.at(Path::new(&dir)).exists() {
            self.device(&dir, number);
        }
        self.write(&format!("{dir}/partition"), format!("{at}\n"));
        self.write(&format!("{dir}/start"), format!("{start_sectors}\n"));
    }

    /// Adds a virtual device over others: RAID, LUKS, LVM.
    pub fn over(&self, name: &str, number: &str, below: &[&str], files: &[(&str, &str)]) {
        let dir = format!("/sys/devices/virtual/block/{name}");
        self.device(&dir, number);
        self.queue(&dir, &[]);
        for name in below {
            let to = std::fs::read_link(self.at(&Path::new("/sys/class/block").join(name)));
            let to = format!("/{}", to.unwrap().display().to_string().trim_start_matches("../"));
            self.link(&format!("{dir}/slaves/{name}"), &to);
        }
        for (path, content) in files {
            self.write(&format!("{dir}/{path}"), content);
        }
    }

    pub fn mount(&self, number: &str, kind: &str, source: &str, flags: &str, options: &str) {
        let list = format!(
            "20 1 8:99 / / rw,relatime - ext4 /dev/sdz rw\n\
             30 20 {number} / {DIR} {flags} shared:1 - {kind} {source} {options}\n"
        );
        self.write("/proc/self/mountinfo", list);
    }

    pub fn superblock_of_ext4(&self, device: &str, block_bytes: u32, stride_blocks: u16) {
        let mut bytes = vec![0; 4096];
        let shift = (block_bytes / 1024).ilog2();
        bytes[1024 + 0x18..][..4].copy_from_slice(&shift.to_le_bytes());
        bytes[1024 + 0x38..][..2].copy_from_slice(&0xEF53_u16.to_le_bytes());
        bytes[1024 + 0x164..][..2].copy_from_slice(&stride_blocks.to_le_bytes());
        self.write(&format!("/dev/{device}"), bytes);
    }

    pub fn superblock_of_xfs(&self, device: &str, log_sector: u16) {
        let mut bytes = vec![0; 4096];
        bytes[..4].copy_from_slice(b"XFSB");
        bytes[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        bytes[194..196].copy_from_slice(&log_sector.to_be_bytes());
        self.write(&format!("/dev/{device}"), bytes);
    }

    fn memory(&self) {
        for (path, content) in [
            ("/proc/meminfo", "MemTotal: 65536000 kB\nHugePages_Total: 0\nHugepagesize: 2048 kB\n"),
            ("/proc/swaps", "Filename Type Size Used Priority\n"),
            ("/proc/sys/vm/dirty_ratio", "0\n"),
            ("/proc/sys/vm/dirty_bytes", "1073741824\n"),
            ("/proc/sys/vm/dirty_background_ratio", "0\n"),
            ("/proc/sys/vm/dirty_background_bytes", "268435456\n"),
            ("/proc/sys/vm/swappiness", "60\n"),
            ("/proc/sys/vm/zone_reclaim_mode", "0\n"),
            ("/proc/sys/kernel/io_uring_disabled", "0\n"),
            ("/proc/cpuinfo", "flags : fpu sse\n"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
        ] {
            self.write(path, content);
        }
        self.counts(1 << 30, 256 << 20, 0, 0);
    }

    /// Writes the counts of the kernel, dirty limits in bytes.
    pub fn counts(&self, dirty: u64, background: u64, swapped_out: u64, compactions: u64) {
        let page = rustix::param::page_size() as u64;
        let (dirty, background) = (dirty / page, background / page);
        self.write(
            "/proc/vmstat",
            format!(
                "nr_dirty 0\nnr_dirty_threshold {dirty}\nnr_dirty_background_threshold {background}\n\
                 pswpout {swapped_out}\ncompact_stall {compactions}\n"
            ),
        );
    }

    pub fn question() -> Question {
        Question::new(Place::Directory(DIR.into()))
    }

    pub fn examine(&self) -> Report {
        examine(self, Self::question())
    }
}

impl System for Prepared {
    fn root(&self) -> &Path {
        self.root.path()
    }

    fn flush_times(&self, _dir: &Path, _disks: &[PathBuf]) -> Seen<FlushTimes> {
        self.flush.clone()
    }

    fn wake_time(&self) -> Seen<Duration> {
        self.wake.clone()
    }

    fn read_times(&self, _dir: &Path) -> Seen<ReadTimes> {
        self.reads.clone()
    }

    fn block_bytes(&self, _dir: &Path) -> Seen<u64> {
        Ok(4096)
    }

    fn cached_pages(&self, _file: &Path) -> Seen<Vec<bool>> {
        Ok((0..1 << 16).map(|page| page < self.cached_pages).collect())
    }

    fn cached_bytes(&self, _file: &Path) -> Seen<u64> {
        Ok((self.cached_pages * rustix::param::page_size()) as u64)
    }
}

/// Returns the names of the checks that found something.
pub fn found(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|found| found.rule.name).collect()
}

/// Tells a report, for the message of a test that fails.
pub fn told(report: &Report) -> String {
    let told = |outcome: &crate::Told| format!("{}: {}\n", outcome.check, outcome.told);
    let findings = report
        .findings
        .iter()
        .map(|found| format!("{}: {:?}\n", found.rule.name, Outcome::Found(found.finding.clone())));
    let unseen: String = report.unseen.iter().map(told).collect();
    let fine: String = report.fine.iter().map(told).collect();
    format!("findings\n{}unseen\n{unseen}fine\n{fine}", findings.collect::<String>())
}
