//! How much memory this process may have.

use std::path::Path;

use crate::heap::memory_bytes;

/// Where control groups are.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Returns how much memory this process may have, in bytes: the machine's, or the least that its
/// control group, or one above it, is limited to; 0 where the system does not say. Any thread may
/// ask; each call asks the system again.
#[must_use]
pub fn memory_limit_bytes() -> u64 {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&own).into_iter().filter_map(|file| {
        let told = std::fs::read_to_string(Path::new(CONTROL_GROUPS).join(file)).ok()?;
        limit(&told)
    });
    match (memory_bytes(), limits.min()) {
        (0, limit) => limit.unwrap_or(0),
        (memory, limit) => limit.unwrap_or(memory).min(memory),
    }
}

/// Returns the files that limit a process, below the mount of the control groups: those of its own
/// group and of all above it, of which a container sees only its own part.
fn limit_files(own: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => {
                ("memory/", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let groups = Path::new(group.trim_start_matches('/')).ancestors();
        files.extend(groups.map(|group| match group.to_string_lossy() {
            top if top.is_empty() => format!("{root}{name}"),
            group => format!("{root}{group}/{name}"),
        }));
    }
    files
}

/// Reads a limit; `None` where there is none.
fn limit(told: &str) -> Option<u64> {
    // `max`, or in earlier kernels a number near 2^63.
    told.trim().parse().ok().filter(|bytes| (1..1 << 62).contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_all_groups_above_are_asked() {
        assert_eq!(
            limit_files("0::/system.slice/db.service\n"),
            ["system.slice/db.service/memory.max", "system.slice/memory.max", "memory.max"]
        );
        assert_eq!(limit_files("0::/\n"), ["memory.max"]);
        assert_eq!(
            limit_files("12:cpu,cpuacct:/a\n9:memory:/a\n0::/\nodd\n"),
            ["memory/a/memory.limit_in_bytes", "memory/memory.limit_in_bytes", "memory.max"]
        );
    }

    #[test]
    fn a_limit_is_a_number_that_memory_can_have() {
        assert_eq!(limit("8589934592\n"), Some(8 << 30));
        for none in ["max\n", "9223372036854771712\n", "0", "", "-1"] {
            assert_eq!(limit(none), None, "{none}");
        }
        let memory = memory_limit_bytes();
        assert!(memory > 0 && memory <= memory_bytes(), "{memory}");
    }
}
