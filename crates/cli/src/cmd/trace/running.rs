//! What `/proc` says of running processes, their threads and descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bedplate_trace::{
    Call, Descriptor, Descriptors, KernelCall, LeadsTo, Numbers, Process, Task, TracedFile,
};
use rustix::time::{ClockId, clock_gettime};

/// The processes that are recorded.
pub struct Running {
    /// Those that were named.
    pub processes: BTreeSet<u32>,
    /// What they start is recorded too.
    pub with_children: bool,
}

/// Returns the threads of processes.
pub fn threads(processes: &BTreeSet<u32>) -> Vec<u32> {
    processes.iter().flat_map(|process| numbers_in(&format!("/proc/{process}/task"))).collect()
}

/// Returns a process and all that descend from it.
pub fn family(root: u32) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = numbers_in("/proc")
        .into_iter()
        .filter_map(|process| Some((process, status(process, "PPid:")?)))
        .collect();
    let mut family = BTreeSet::from([root]);
    loop {
        let before = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent));
        let children: Vec<u32> = children.map(|(process, _)| *process).collect();
        family.extend(children);
        if family.len() == before {
            return family;
        }
    }
}

/// Returns the open descriptors of a process.
pub fn descriptors(process: u32) -> Vec<u32> {
    numbers_in(&format!("/proc/{process}/fd"))
}

/// Tells whether a process is there.
pub fn is_alive(process: u32) -> bool {
    // One that has ended and was not waited for yet has no memory.
    Path::new(&format!("/proc/{process}")).exists() && status(process, "VmSize:").is_some()
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn status(process: u32, name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Descriptors for Running {
    fn descriptor(&mut self, process: u32, fd: u32) -> LeadsTo {
        let link = PathBuf::from(format!("/proc/{process}/fd/{fd}"));
        let now = clock_gettime(ClockId::Monotonic);
        let asked_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let Ok(meta) = fs::metadata(&link) else { return LeadsTo::Gone };
        let is_device = meta.file_type().is_block_device();
        if !meta.is_file() && !is_device {
            return LeadsTo::Other;
        }
        let info = fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).unwrap_or_default();
        let (Ok(path), Some((place, flags))) = (fs::read_link(&link), place_and_flags(&info))
        else {
            return LeadsTo::Gone;
        };
        let file = TracedFile {
            path: path.to_string_lossy().trim_end_matches(" (deleted)").to_owned(),
            device: if is_device { meta.rdev() } else { meta.dev() },
            inode: meta.ino(),
            size_bytes: meta.len(),
            is_device,
        };
        LeadsTo::File(Descriptor { file, place, flags, asked_ns })
    }

    fn task(&mut self, thread: u32) -> Option<Task> {
        let process = status(thread, "Tgid:")?;
        // The ring has the threads of these processes and what they start.
        Some(Task { process, is_wanted: self.with_children || self.processes.contains(&process) })
    }

    fn process(&mut self, process: u32) -> Process {
        let program = fs::read_link(format!("/proc/{process}/exe"));
        Process {
            pid: process,
            parent: status(process, "PPid:").unwrap_or(0),
            program: program.map_or_else(|_| String::new(), |path| path.display().to_string()),
        }
    }
}

fn place_and_flags(info: &str) -> Option<(u64, u32)> {
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((of("pos:")?.parse().ok()?, u32::from_str_radix(of("flags:")?, 8).ok()?))
}

/// Returns the system calls that are followed.
pub fn followed() -> Numbers {
    let io = |call, placed, vector| KernelCall::Io { call, placed, vector };
    let all = [
        (libc::SYS_read, io(Call::Read, false, false)),
        (libc::SYS_write, io(Call::Write, false, false)),
        (libc::SYS_pread64, io(Call::Read, true, false)),
        (libc::SYS_pwrite64, io(Call::Write, true, false)),
        (libc::SYS_readv, io(Call::Read, false, true)),
        (libc::SYS_writev, io(Call::Write, false, true)),
        (libc::SYS_preadv, io(Call::Read, true, true)),
        (libc::SYS_pwritev, io(Call::Write, true, true)),
        (libc::SYS_preadv2, io(Call::Read, true, true)),
        (libc::SYS_pwritev2, io(Call::Write, true, true)),
        (libc::SYS_fsync, io(Call::Sync, false, false)),
        (libc::SYS_fdatasync, io(Call::DataSync, false, false)),
        (libc::SYS_sync_file_range, io(Call::RangeSync, false, false)),
        (libc::SYS_syncfs, io(Call::FsSync, false, false)),
        (libc::SYS_ftruncate, io(Call::Truncate, false, false)),
        (libc::SYS_fallocate, io(Call::Allocate, false, false)),
        (libc::SYS_openat, KernelCall::Open),
        (libc::SYS_openat2, KernelCall::Open),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, KernelCall::Open),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, KernelCall::Open),
        (libc::SYS_close, KernelCall::Close),
        (libc::SYS_lseek, KernelCall::Seek),
        (libc::SYS_dup, KernelCall::Duplicate),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_dup2, KernelCall::Duplicate),
        (libc::SYS_dup3, KernelCall::Duplicate),
        (libc::SYS_fcntl, KernelCall::Control),
        (libc::SYS_mmap, KernelCall::Map),
        (libc::SYS_io_uring_setup, KernelCall::Ring),
    ];
    Numbers(all.into_iter().map(|(number, kind)| (number as u64, kind)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_454_a_descriptor_is_told_with_its_place() {
        use std::io::{Seek, SeekFrom};
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        file.seek(SeekFrom::Start(123)).unwrap();
        let mut running = Running { processes: BTreeSet::new(), with_children: false };
        let own = std::process::id();
        let found = match running.descriptor(own, file.as_raw_fd() as u32) {
            LeadsTo::File(found) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(running.descriptor(own, u32::MAX), LeadsTo::Gone);
        assert_eq!((found.place, found.file.size_bytes), (123, 5000));
        assert_eq!(found.file.inode, file.metadata().unwrap().ino());
        assert_eq!(running.task(own).unwrap(), Task { process: own, is_wanted: false });
        assert!(is_alive(own) && family(own).contains(&own));
        assert!(threads(&BTreeSet::from([own])).contains(&own));
    }

    #[test]
    fn places_and_flags_of_any_text() {
        let info = "pos:\t4096\nflags:\t0142002\nmnt_id:\t30\n";
        assert_eq!(place_and_flags(info), Some((4096, 0o142_002)));
        assert_eq!(place_and_flags("pos:\tx\nflags:\t0\n"), None);
        assert_eq!(place_and_flags(""), None);
    }
}
