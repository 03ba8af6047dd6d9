//! Processor time of this process and of others, in more than ticks.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time in seconds of this process and of those with these numbers, since
/// each began; `None` where one of them is gone, or the system keeps no account of its threads.
///
/// Threads of others that have ended are no longer counted; those of this process are.
pub(crate) fn processor_s(others: &[u32]) -> Option<f64> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
    let tasks = |pid: &u32| threads_s(&PathBuf::from(format!("/proc/{pid}/task")));
    others.iter().map(tasks).try_fold(own, |sum, one| Some(sum + one?))
}

/// Sums the threads of a process up. The account is in nanoseconds, where `stat` has ticks.
fn threads_s(tasks: &Path) -> Option<f64> {
    let mut sum_ns = None;
    for task in fs::read_dir(tasks).ok()? {
        // One that ends meanwhile has no account any more.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        *sum_ns.get_or_insert(0) += ran_ns(&text)?;
    }
    Some(sum_ns? as f64 / 1e9)
}

/// Reads how long a thread ran: the first of three numbers.
fn ran_ns(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn time_is_counted_of_this_process_and_of_others() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let others = [busy.id()];
        let begun = Instant::now();
        let mut counted = (false, false);
        while counted != (true, true) && begun.elapsed() < Duration::from_secs(60) {
            let (own, all) = (processor_s(&[]).unwrap(), processor_s(&others).unwrap());
            counted = (own > 0.0, all - processor_s(&[]).unwrap() > 0.01);
        }
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(counted, (true, true));
        assert_eq!(processor_s(&others), None, "it is gone");
    }

    #[test]
    fn an_account_is_three_numbers() {
        assert_eq!(ran_ns("1500000 7 3\n"), Some(1_500_000));
        assert_eq!(ran_ns(""), None);
        assert_eq!(ran_ns("x 1 2"), None);
    }
}
