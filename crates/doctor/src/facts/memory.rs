//! What the kernel does with memory, and how it waits.

use std::path::Path;
use std::time::Duration;

use crate::system::{Seen, System};

/// Memory and processors of the machine.
#[derive(Debug, Clone)]
pub struct Memory {
    /// All of it, in bytes.
    pub total_bytes: Seen<u64>,
    /// Dirty bytes now.
    pub dirty_now_bytes: Seen<u64>,
    /// Dirty bytes from which writers wait, as the kernel works them out now.
    pub dirty_bytes: Seen<u64>,
    /// Dirty bytes from which the kernel writes in the background.
    pub dirty_background_bytes: Seen<u64>,
    /// `vm.dirty_ratio`, `vm.dirty_bytes` and the two of the background, as they are set.
    pub dirty_settings: [Seen<i64>; 4],
    /// `vm.swappiness`.
    pub swappiness: Seen<i64>,
    /// Whether anything can be swapped out.
    pub has_swap: Seen<bool>,
    /// Pages that were swapped out since the start.
    pub swapped_out: Seen<u64>,
    /// `vm.zone_reclaim_mode`.
    pub zone_reclaim: Seen<i64>,
    /// What is chosen in `transparent_hugepage/enabled`.
    pub huge_enabled: Seen<String>,
    /// And in `transparent_hugepage/defrag`.
    pub huge_defrag: Seen<String>,
    /// How often a program waited for memory to be compacted since the start.
    pub compactions: Seen<u64>,
    /// Huge pages that are set aside.
    pub huge_pages: Seen<u64>,
    /// How large one is, in bytes.
    pub huge_page_bytes: Seen<u64>,
    /// `kernel.io_uring_disabled`.
    pub io_uring_disabled: Seen<i64>,
    /// The machine is virtual.
    pub is_virtual: Seen<bool>,
    /// What the processors do when they are idle.
    pub idle_driver: Seen<String>,
    /// For how many nanoseconds an idle processor polls before it halts, with the driver haltpoll.
    pub halt_poll_ns: Seen<i64>,
    /// How long a thread takes to wake.
    pub wake: Seen<Duration>,
}

/// What [`Memory::halt_poll_ns`] is set by.
pub const HALT_POLL_NS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// The names of what [`Memory::dirty_settings`] holds.
pub const DIRTY_SETTINGS: [&str; 4] =
    ["dirty_ratio", "dirty_bytes", "dirty_background_ratio", "dirty_background_bytes"];

impl Memory {
    /// Looks at the machine.
    #[must_use]
    pub fn of(system: &dyn System) -> Self {
        let info = system.read(Path::new("/proc/meminfo"));
        let stat = system.read(Path::new("/proc/vmstat"));
        let vm = |name: &str| system.number(&Path::new("/proc/sys/vm").join(name));
        let huge = Path::new("/sys/kernel/mm/transparent_hugepage");
        let chosen = |name: &str| Ok(chosen(&system.read(&huge.join(name))?).to_owned());
        let page_bytes = rustix::param::page_size() as u64;
        let pages =
            |name: &str| Ok(of_list(&stat, "/proc/vmstat", name)?.saturating_mul(page_bytes));
        Self {
            total_bytes: of_list(&info, "/proc/meminfo", "MemTotal").map(|kib| kib * 1024),
            dirty_now_bytes: pages("nr_dirty"),
            dirty_bytes: pages("nr_dirty_threshold"),
            dirty_background_bytes: pages("nr_dirty_background_threshold"),
            dirty_settings: DIRTY_SETTINGS.map(vm),
            swappiness: vm("swappiness"),
            has_swap: system
                .read(Path::new("/proc/swaps"))
                .map(|list| list.lines().skip(1).any(|line| !line.trim().is_empty())),
            swapped_out: of_list(&stat, "/proc/vmstat", "pswpout"),
            zone_reclaim: vm("zone_reclaim_mode"),
            huge_enabled: chosen("enabled"),
            huge_defrag: chosen("defrag"),
            compactions: of_list(&stat, "/proc/vmstat", "compact_stall"),
            huge_pages: of_list(&info, "/proc/meminfo", "HugePages_Total"),
            huge_page_bytes: of_list(&info, "/proc/meminfo", "Hugepagesize").map(|kib| kib * 1024),
            io_uring_disabled: system.number(Path::new("/proc/sys/kernel/io_uring_disabled")),
            is_virtual: system
                .read(Path::new("/proc/cpuinfo"))
                .map(|text| text.split_whitespace().any(|word| word == "hypervisor")),
            idle_driver: system.read(Path::new("/sys/devices/system/cpu/cpuidle/current_driver")),
            halt_poll_ns: system.number(Path::new(HALT_POLL_NS)),
            wake: system.wake_time(),
        }
    }
}

/// Returns the word in brackets: `always [madvise] never`.
#[must_use]
pub fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(word, _)| word)
}

/// Returns a number of a list with a name in each line: `MemTotal:  24684092 kB`.
fn of_list(list: &Seen<String>, path: &str, name: &str) -> Seen<u64> {
    let list = list.as_ref().map_err(Clone::clone)?;
    let mut lines = list.lines().map(|line| line.split([' ', ':', '\t']).filter(|w| !w.is_empty()));
    let mut line = lines
        .find_map(|mut words| (words.next() == Some(name)).then_some(words))
        .ok_or_else(|| format!("{path} tells no {name}"))?;
    let value = line.next().and_then(|word| word.parse().ok());
    value.ok_or_else(|| format!("{name} in {path} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read_by_name() {
        let list = Ok("MemTotal:       24684092 kB\nMemFree: 1 kB\n".to_owned());
        assert_eq!(of_list(&list, "l", "MemTotal"), Ok(24_684_092));
        assert_eq!(of_list(&list, "l", "Mem"), Err("l tells no Mem".to_owned()));
        let stat = Ok("pswpin 0\npswpout 17".to_owned());
        assert_eq!(of_list(&stat, "l", "pswpout"), Ok(17));
        assert_eq!(chosen("always [madvise] never"), "madvise");
    }
}
