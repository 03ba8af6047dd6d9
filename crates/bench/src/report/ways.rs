//! What an operation costs by each way: processor time of those that take part, and the rest that the
//! machine spent.

use super::devices::Figure;
use super::plot::{Bar, CPU_COLOURS, bars};
use super::verdict::{self, verdict};
use crate::results::WorkloadResults;
use crate::summary::Row;
use crate::units::format_number;

/// One chart a case.
pub(super) fn cost_plots(workload: &WorkloadResults, rows: &[Row]) -> Vec<Figure> {
    (0..workload.cases.len())
        .map(|case| {
            let drawn: Vec<Bar> = rows.iter().filter(|row| row.case == case).map(bar).collect();
            let title = format!(
                "CPU µs per operation (client and servers, rest of the machine): {}",
                workload.cases[case].name
            );
            let said = verdict(workload, case, &verdict::FEWEST, |m| m.cpu_us_per_op);
            (said, bars(&title, &drawn, None))
        })
        .collect()
}

fn bar(row: &Row) -> Bar {
    let own = row.cpu_us_per_op.unwrap_or(0.0);
    let rest = (row.machine_us_per_op - own).max(0.0);
    let note = format!("{} + {}", format_number(own), format_number(rest));
    let parts = [own, rest].into_iter().zip(CPU_COLOURS).map(|(us, (ink, _))| (us, ink)).collect();
    Bar { name: row.label.clone(), parts, note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{summarize, tests::results};

    #[test]
    fn a_chart_a_case_shows_both_parts() {
        let mut results = results(&[("library", &[100.0]), ("NBD", &[50.0])]);
        let workload = &mut results.workloads[0];
        for record in &mut workload.records {
            record.measurement.cpu_us_per_op = Some(12.0);
            record.measurement.cpu.user_percent = 0.2;
            record.measurement.cpu.cpus = 1.0;
        }
        let plots = cost_plots(workload, &summarize(workload));
        assert_eq!(plots.len(), 1);
        // 0.2 % of a second for 100 operations, and for 50.
        assert!(plots[0].1.contains("12.0 + 8.00"), "{}", plots[0].1);
        assert!(plots[0].1.contains("12.0 + 28.0") && plots[0].1.contains("NBD"));
    }
}
