//! Raw results as CSV: one line a measurement, for spreadsheets and scripts.

use std::fmt::Write;

use crate::results::{Results, WorkloadResults};

const HEAD: &str = "workload,case,curve,axis,x,target,role,round,unit,rate,elapsed_s,ops,bytes,\
     p50_us,p99_us,p999_us,max_us,user_percent,system_percent,idle_percent,iowait_percent,process_user_s,process_system_s,\
     waits_per_op,context_switches_per_s,device_reads,device_read_bytes,device_writes,device_written_bytes,device_flushes,page_cache_growth_bytes,devices_busy_percent,mean_us,p95_us,kib_per_s";

/// Returns all measurements.
#[must_use]
pub fn csv(results: &Results) -> String {
    let mut text = format!("{HEAD}\n");
    results.workloads.iter().for_each(|workload| push(&mut text, workload));
    text
}

fn push(text: &mut String, workload: &WorkloadResults) {
    for record in &workload.records {
        let (case, target, m) =
            (&workload.cases[record.case], &workload.targets[record.target], &record.measurement);
        let response = m.main_latency();
        let latency = response
            .map_or([String::new(), String::new(), String::new(), String::new()], |l| {
                [l.p50_us, l.p99_us, l.p999_us, l.max_us].map(|us| format!("{us:.2}"))
            });
        let device = m.device.map_or([const { String::new() }; 5], |d| {
            [d.reads, d.read_bytes, d.writes, d.written_bytes, d.flushes].map(|n| n.to_string())
        });
        let [mean, p95] = response.map_or([const { String::new() }; 2], |l| {
            [Some(l.mean_us), l.quantile_us(0.95)]
                .map(|us| us.map_or_else(String::new, |us| format!("{us:.2}")))
        });
        let role = serde_json::to_string(&target.role).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{:.3},{:.6},{},{},{},{:.2},{:.2},{:.2},{:.2},{:.2},{:.2},{:.4},{:.1},{},{},{},{mean},{p95},{:.1}",
            workload.name,
            quoted(&case.name),
            quoted(&case.curve),
            quoted(&case.axis),
            case.x,
            quoted(&target.label),
            role.trim_matches('"'),
            record.round,
            quoted(&workload.unit),
            m.rate,
            m.elapsed_s,
            m.ops,
            m.bytes,
            latency.join(","),
            m.cpu.user_percent,
            m.cpu.system_percent,
            m.cpu.idle_percent,
            m.cpu.iowait_percent,
            m.cpu.process_user_s,
            m.cpu.process_system_s,
            m.waits_per_op,
            m.context_switches_per_s,
            device.join(","),
            m.page_cache_growth_bytes,
            m.devices_busy_percent().map_or(String::new(), |busy| format!("{busy:.1}")),
            m.kib_per_s(),
        );
    }
}

/// Quotes a field that holds a comma, a quote or a line's end (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::{results, timed};

    #[test]
    fn every_line_has_every_column() {
        let text = csv(&results(&[("a", &[1.0, 2.0]), ("b", &[3.0, 4.0])]));
        let columns = HEAD.split(',').count();
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
    }

    #[test]
    fn s_543_a_line_ends_with_response_times_and_the_rate_in_kib() {
        let text = csv(&timed());
        assert!(text.lines().nth(2).unwrap().ends_with(",101.01,190.08,2.0"), "{text}");
    }

    #[test]
    fn commas_and_quotes_are_quoted() {
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
