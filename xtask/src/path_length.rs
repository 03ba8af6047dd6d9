//! Instructions for one 8 KiB read, write and durable append of the library, against a budget.
//!
//! They are counted under callgrind, so a figure is the same on a busy machine and on a quiet one:
//! a path that got longer is found by a test, and not by a benchmark that some machine may run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{released, sh};

/// What one call costs, and how many percent more it may cost before that has to be said here: a
/// newer compiler shifts the figures a little, and so does another processor's library of C.
const BUDGETS: [Budget; 3] = [
    Budget { kind: "read", instructions: 435 },
    Budget { kind: "write", instructions: 570 },
    Budget { kind: "append", instructions: 32_500 },
];
const SLACK_PERCENT: u64 = 5;

/// The calls of the two runs whose difference is counted. Metadata commits at the end of a run do not
/// cost the same each time, which is spread over them.
const CALLS: [u64; 2] = [1000, 16_000];

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(1200);

struct Budget {
    kind: &'static str,
    instructions: u64,
}

impl Budget {
    fn max(&self) -> u64 {
        self.instructions * (100 + SLACK_PERCENT) / 100
    }

    /// Says that a figure passes the budget, if it does.
    fn fault(&self, counted: u64) -> Option<String> {
        let (kind, max) = (self.kind, self.max());
        (counted > max).then(|| {
            format!(
                "one {kind} takes {counted} instructions, more than {max}: shorten its path, or \
                 say the new figure in xtask/src/path_length.rs and why in the commit"
            )
        })
    }
}

/// Builds the example, counts and prints one line for each kind of call.
///
/// # Errors
/// When valgrind or the build fails, and when a call takes more instructions than its budget
/// allows.
pub fn check() -> Result<()> {
    let program = released::build()?.join("examples/path_length");
    let mut faults = Vec::new();
    for budget in &BUDGETS {
        let [few, many] = CALLS.map(|calls| count(&program, budget.kind, calls));
        let counted = many?.saturating_sub(few?) / (CALLS[1] - CALLS[0]);
        println!(
            "    {:<6} {counted:>6} instructions, budget {} + {SLACK_PERCENT} %",
            budget.kind, budget.instructions
        );
        faults.extend(budget.fault(counted));
    }
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(())
}

/// Counts the instructions of a whole run.
fn count(program: &Path, kind: &str, calls: u64) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(program).args([kind, &calls.to_string()]);
    let finished = sh::finish(&mut valgrind, LIMIT)?;
    ensure!(
        finished.status.success(),
        "callgrind ended with {}: {}",
        finished.status,
        finished.text()
    );
    collected(&finished.stderr)
        .with_context(|| format!("callgrind told no count: {}", finished.text()))
}

/// Finds the count in what callgrind prints.
fn collected(told: &str) -> Option<u64> {
    let (_, count) = told.lines().find_map(|line| line.split_once("Collected :"))?;
    count.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_among_the_lines_of_callgrind() {
        let told = "==7== Events    : Ir\n==7== Collected : 268435456\n==7==\n";
        assert_eq!(collected(told), Some(268_435_456));
        assert_eq!(collected("==7== Process terminating\n"), None);
    }

    #[test]
    fn a_path_that_passes_its_budget_is_a_fault() {
        let budget = Budget { kind: "read", instructions: 400 };
        assert!([0, 400, 420].into_iter().all(|counted| budget.fault(counted).is_none()));
        assert!(budget.fault(421).is_some_and(|fault| fault.contains("421 instructions, more")));
    }
}
