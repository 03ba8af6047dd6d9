//! A ring of events of the kernel, of this program's own: an instance of tracefs.
//!
//! Whatever ends the recording, the instance goes: it is removed when the value is dropped, and one
//! that a killed program left behind when the next recording begins.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Result};

/// Where the kernel's tracepoints are.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// What instances of this program are called; the number of its process follows.
const NAME: &str = "bedplate-trace-";
/// Memory of all processors' rings together, and of each at the least.
const RING_KIB: u64 = 64 << 10;
const PROCESSOR_KIB_MIN: u64 = 1 << 10;

/// The ring.
pub struct Ring {
    instance: PathBuf,
    pipe: Option<File>,
    /// What was read of a line whose end is still to come.
    begun: Vec<u8>,
    /// The instance is in it, so it goes last.
    _tracefs: Tracefs,
}

/// The place of the tracepoints; where nothing was mounted, by a mount of its own.
struct Tracefs {
    at: PathBuf,
    is_own: bool,
}

impl Tracefs {
    fn find() -> Result<Self> {
        let is_there = |at: &&&str| Path::new(at).join("instances").is_dir();
        if let Some(at) = PLACES.iter().find(is_there) {
            return Ok(Self { at: at.into(), is_own: false });
        }
        let at = std::env::temp_dir().join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&at).map_err(|error| Failure::system("make", &at, &error))?;
        let mounted = Self { at, is_own: true };
        let output =
            Command::new("mount").args(["-t", "tracefs", "nodev"]).arg(&mounted.at).output();
        match output {
            Ok(output) if output.status.success() => Ok(mounted),
            _ => Err(refused("they cannot be mounted (tracefs)")),
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        // What was never mounted cannot be unmounted; the directory shows whether it worked.
        let _output = Command::new("umount").arg(&self.at).output();
        if let Err(error) = fs::remove_dir(&self.at) {
            tracing::warn!("{} stays: {error}", self.at.display());
        }
    }
}

fn refused(why: &str) -> Failure {
    Failure::new(
        "not_permitted",
        format!(
            "the kernel's tracepoints may not be used here: {why}; run this as root outside of a \
             container, or record the program from its start with bedplate trace -- PROGRAM"
        ),
    )
}

impl Ring {
    /// Makes a ring for both ends of these system calls, of these threads and all that they start.
    pub fn open(numbers: &[u64], threads: &[u32]) -> Result<Self> {
        let tracefs = Tracefs::find()?;
        let instances = tracefs.at.join("instances");
        remove_stale(&instances);
        let instance = instances.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&instance).map_err(|error| refused(&format!("{error}")))?;
        let mut ring = Self { instance, pipe: None, begun: Vec::new(), _tracefs: tracefs };
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let size = (RING_KIB / processors).max(PROCESSOR_KIB_MIN);
        ring.set("tracing_on", "0")?;
        ring.set("buffer_size_kb", &size.to_string())?;
        ring.set("trace_clock", "mono")?;
        ring.set("options/event-fork", "1")?;
        let filter: Vec<String> = numbers.iter().map(|number| format!("id == {number}")).collect();
        for event in ["sys_enter", "sys_exit"] {
            ring.set(&format!("events/raw_syscalls/{event}/filter"), &filter.join(" || "))?;
        }
        for thread in threads {
            ring.add("set_event_pid", &thread.to_string())?;
        }
        for event in ["sys_enter", "sys_exit"] {
            ring.set(&format!("events/raw_syscalls/{event}/enable"), "1")?;
        }
        let pipe = ring.instance.join("trace_pipe");
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        ring.pipe = Some(opened.map_err(|error| Failure::system("open", &pipe, &error))?);
        ring.set("tracing_on", "1")?;
        Ok(ring)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value).map_err(|error| Failure::system("write", &path, &error))
    }

    fn add(&self, name: &str, value: &str) -> Result<()> {
        let path = self.instance.join(name);
        let added = OpenOptions::new().append(true).open(&path);
        match added.and_then(|mut file| file.write_all(format!("{value} ").as_bytes())) {
            // A thread that has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result.map_err(|error| Failure::system("write", &path, &error)),
        }
    }

    /// Gives out the lines that are there, and tells whether there were any.
    pub fn read(&mut self, mut line: impl FnMut(&str)) -> Result<bool> {
        let mut any = false;
        let mut bytes = vec![0; 256 << 10];
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        loop {
            let got = match pipe.read(&mut bytes) {
                Ok(0) => return Ok(any),
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::new("io", format!("cannot read the events: {error}")));
                }
            };
            any = true;
            self.begun.extend_from_slice(&bytes[..got]);
            let mut rest = &self.begun[..];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                line(&String::from_utf8_lossy(&rest[..end]));
                rest = &rest[end + 1..];
            }
            let whole = self.begun.len() - rest.len();
            self.begun.drain(..whole);
        }
    }

    /// Ends the recording; what is in the ring can still be read.
    pub fn stop(&self) -> Result<()> {
        self.set("tracing_on", "0")
    }

    /// Returns how many events were written over before they were read, or found no room.
    pub fn overruns(&self) -> u64 {
        let Ok(processors) = fs::read_dir(self.instance.join("per_cpu")) else { return 0 };
        processors
            .flatten()
            .filter_map(|one| fs::read_to_string(one.path().join("stats")).ok())
            .map(|stats| overruns_of(&stats))
            .sum()
    }
}

fn overruns_of(stats: &str) -> u64 {
    let counted = |line: &str| {
        let (name, count) = line.split_once(": ")?;
        let is_lost = matches!(name, "overrun" | "commit overrun" | "dropped events");
        count.trim().parse::<u64>().ok().filter(|_| is_lost)
    };
    stats.lines().filter_map(counted).sum()
}

impl Drop for Ring {
    fn drop(&mut self) {
        // An instance that is read from cannot be removed.
        self.pipe = None;
        for event in ["sys_enter", "sys_exit"] {
            let _off = self.set(&format!("events/raw_syscalls/{event}/enable"), "0");
        }
        if let Err(error) = fs::remove_dir(&self.instance) {
            tracing::warn!("{} stays: {error}", self.instance.display());
        }
    }
}

/// Removes instances of programs that were killed.
fn remove_stale(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists())
            && let Err(error) = fs::remove_dir(entry.path())
        {
            tracing::warn!("{} stays: {error}", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_455_what_the_ring_lost_is_counted() {
        let stats = "entries: 3\noverrun: 40\ncommit overrun: 1\nbytes: 99\noldest event ts:  \
                     5.0\nnow ts: 6.0\ndropped events: 2\nread events: 7\n";
        assert_eq!(overruns_of(stats), 43);
        assert_eq!(overruns_of("no stats"), 0);
    }
}
