//! Processor time of the machine (`/proc/stat`) and of this process (`/proc/self/stat`).

use std::fs;

/// Processor time in seconds since boot, summed over all processors, and context switches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CpuTimes {
    pub user_s: f64,
    pub system_s: f64,
    pub idle_s: f64,
    pub iowait_s: f64,
    pub steal_s: f64,
    /// User and system time of this process alone: what a mount's daemon or the kernel's workers
    /// burn is not in it.
    pub process_user_s: f64,
    pub process_system_s: f64,
    pub context_switches: u64,
}

/// Clock ticks a second in `/proc`: the kernel's user interface fixes it at 100 on every
/// architecture Linux runs on today.
const TICKS_PER_S: f64 = 100.0;

impl CpuTimes {
    /// Reads both files; a missing one (a container may hide it) counts as zeros.
    pub(crate) fn now() -> Self {
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let process = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let mut times = parse_machine(&machine);
        (times.process_user_s, times.process_system_s) = parse_process(&process);
        times
    }

    /// Returns what passed since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            user_s: self.user_s - earlier.user_s,
            system_s: self.system_s - earlier.system_s,
            idle_s: self.idle_s - earlier.idle_s,
            iowait_s: self.iowait_s - earlier.iowait_s,
            steal_s: self.steal_s - earlier.steal_s,
            process_user_s: self.process_user_s - earlier.process_user_s,
            process_system_s: self.process_system_s - earlier.process_system_s,
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
        }
    }
}

fn parse_machine(text: &str) -> CpuTimes {
    let mut times = CpuTimes::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("cpu ") {
            let ticks: Vec<f64> =
                rest.split_whitespace().map(|t| t.parse().unwrap_or(0.0)).collect();
            let at = |i: usize| ticks.get(i).copied().unwrap_or(0.0) / TICKS_PER_S;
            times.user_s = at(0) + at(1);
            times.system_s = at(2) + at(5) + at(6);
            times.idle_s = at(3);
            times.iowait_s = at(4);
            times.steal_s = at(7);
        } else if let Some(rest) = line.strip_prefix("ctxt ") {
            times.context_switches = rest.trim().parse().unwrap_or(0);
        }
    }
    times
}

/// Fields 14 and 15, counted after the command's name, which may itself hold spaces and
/// parentheses.
fn parse_process(text: &str) -> (f64, f64) {
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name
        .split_whitespace()
        .skip(11)
        .map(|t| t.parse::<f64>().unwrap_or(0.0) / TICKS_PER_S);
    (fields.next().unwrap_or(0.0), fields.next().unwrap_or(0.0))
}

/// Returns how often the calling thread gave up its processor of its own accord: each is a wait for
/// a device, a lock or a hand-off.
pub(crate) fn thread_waits() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_line_is_split_into_classes() {
        let times = parse_machine("cpu  100 50 200 1000 30 10 5 7 0 0\ncpu0 1 1 1 1\nctxt 4242\n");
        assert_eq!(times.user_s, 1.5);
        assert_eq!(times.system_s, 2.15);
        assert_eq!(times.idle_s, 10.0);
        assert_eq!(times.iowait_s, 0.3);
        assert_eq!(times.steal_s, 0.07);
        assert_eq!(times.context_switches, 4242);
    }

    #[test]
    fn process_line_survives_a_name_with_parentheses() {
        let line = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 99";
        assert_eq!(parse_process(line), (2.5, 0.5));
    }

    #[test]
    fn nonsense_counts_as_zero() {
        assert_eq!(parse_machine("hello"), CpuTimes::default());
        assert_eq!(parse_process(""), (0.0, 0.0));
    }

    #[test]
    fn the_live_clock_advances() {
        let before = CpuTimes::now();
        let until = std::time::Instant::now() + std::time::Duration::from_millis(60);
        while std::time::Instant::now() < until {
            std::hint::black_box(0);
        }
        let passed = CpuTimes::now().since(&before);
        assert!(passed.process_user_s + passed.process_system_s >= 0.0);
        assert!(
            passed.user_s + passed.system_s + passed.idle_s + passed.iowait_s + passed.steal_s
                > 0.0
        );
    }
}
