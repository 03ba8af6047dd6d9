//! The machine a run happened on.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Describes a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Hardware architecture.
    pub architecture: String,
    /// Model of the processor.
    pub cpu_model: String,
    /// Processors this process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The frequency governor; empty where there is none.
    pub governor: String,
    /// Whether it is a virtual machine.
    pub hypervisor: bool,
    /// Whether the system allows io_uring: `kernel.io_uring_disabled`.
    pub io_uring_disabled: String,
    /// Load of the last minute when the run began: what else was going on.
    pub load: String,
}

impl Machine {
    /// Reads what the system tells; what it does not tell stays empty.
    #[must_use]
    pub fn read() -> Self {
        let file =
            |path: &str| fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default();
        let cpuinfo = file("/proc/cpuinfo");
        let field = |name: &str| {
            cpuinfo
                .lines()
                .find(|l| l.starts_with(name))
                .and_then(|l| l.split_once(':'))
                .map(|(_, v)| v.trim().to_owned())
        };
        let meminfo = file("/proc/meminfo");
        let kib = meminfo
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:"))
            .and_then(|r| r.split_whitespace().next())
            .and_then(|v| v.parse::<u64>().ok());
        Self {
            kernel: file("/proc/sys/kernel/osrelease"),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: field("model name").or_else(|| field("Model")).unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: kib.unwrap_or(0) << 10,
            governor: file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            hypervisor: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            io_uring_disabled: file("/proc/sys/kernel/io_uring_disabled"),
            load: file("/proc/loadavg").split(' ').next().unwrap_or("").to_owned(),
        }
    }
}

/// Returns the present as `YYYY-MM-DDThh:mm:ssZ`.
pub(crate) fn utc_now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    utc(seconds)
}

/// Civil date from days since 1970 (Howard Hinnant's algorithm for the proleptic Gregorian
/// calendar).
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_795_192_767), "2026-11-20T16:39:27Z");
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::read();
        assert!(!machine.kernel.is_empty() && machine.memory_bytes > 0 && machine.cpus > 0);
    }
}
