//! Two result files side by side, with significance.

use std::fmt::Write;

use serde::Serialize;

use crate::measure::{Comparison, Spread, Verdict};
use crate::results::{Results, WorkloadResults};
use crate::summary::records_of;
use crate::units::format_number;
use crate::{Error, ErrorKind, Result};

/// One pair that both files hold.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// The workload.
    pub workload: String,
    /// The unit of the rates.
    pub unit: String,
    /// The case.
    pub case: String,
    /// The target's name in both files.
    pub target: String,
    /// The rates in A.
    pub a: Spread,
    /// The rates in B.
    pub b: Spread,
    /// B against A.
    pub comparison: Comparison,
}

/// Two files compared.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedFiles {
    /// What differs in the circumstances, one sentence each.
    pub differences: Vec<String>,
    /// What both files hold.
    pub pairs: Vec<Compared>,
    /// What only one of them holds.
    pub unmatched: Vec<String>,
}

/// Compares what two files have in common: the same workload, case and target name.
///
/// # Errors
/// `Results` when they have nothing in common.
pub fn compare(a: &Results, b: &Results) -> Result<ComparedFiles> {
    let (mut pairs, mut unmatched) = (Vec::new(), Vec::new());
    for (workload, case, target) in keys(a) {
        let name = || {
            format!(
                "{}: {} on {}",
                workload.name, workload.cases[case].name, workload.targets[target].label
            )
        };
        let rates_a = rates(workload, case, target);
        match find(b, workload, case, target)
            .and_then(|rates_b| Some((Comparison::of(&rates_a, &rates_b)?, rates_b)))
        {
            Some((comparison, rates_b)) => pairs.push(Compared {
                workload: workload.name.clone(),
                unit: workload.unit.clone(),
                case: workload.cases[case].name.clone(),
                target: workload.targets[target].label.clone(),
                a: Spread::of(&rates_a),
                b: Spread::of(&rates_b),
                comparison,
            }),
            None => unmatched.push(format!("only in A: {}", name())),
        }
    }
    for (workload, case, target) in keys(b) {
        if find(a, workload, case, target).is_none() {
            unmatched.push(format!(
                "only in B: {}: {} on {}",
                workload.name, workload.cases[case].name, workload.targets[target].label
            ));
        }
    }
    if pairs.is_empty() {
        return Err(Error::new(
            ErrorKind::Results,
            "the two results have no workload, case and target in common",
        ));
    }
    Ok(ComparedFiles { differences: differences(a, b), pairs, unmatched })
}

fn keys(results: &Results) -> impl Iterator<Item = (&WorkloadResults, usize, usize)> {
    results
        .workloads
        .iter()
        .flat_map(|w| {
            (0..w.cases.len())
                .flat_map(move |case| (0..w.targets.len()).map(move |target| (w, case, target)))
        })
        .filter(|&(w, case, target)| records_of(w, case, target).next().is_some())
}

fn rates(workload: &WorkloadResults, case: usize, target: usize) -> Vec<f64> {
    records_of(workload, case, target).map(|r| r.measurement.rate).collect()
}

fn find(results: &Results, like: &WorkloadResults, case: usize, target: usize) -> Option<Vec<f64>> {
    // One workload may have run several times, each with options of its own.
    results.workloads.iter().filter(|w| w.name == like.name).find_map(|workload| {
        let case = workload.cases.iter().position(|c| c.name == like.cases[case].name)?;
        let target = workload.targets.iter().position(|t| t.label == like.targets[target].label)?;
        Some(rates(workload, case, target)).filter(|rates| !rates.is_empty())
    })
}

/// What makes a comparison less than like with like.
fn differences(a: &Results, b: &Results) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, a: &str, b: &str| {
        if a != b {
            found.push(format!("{what} differs: {a} against {b}"));
        }
    };
    check("the version", &a.version, &b.version);
    check("the kernel", &a.machine.kernel, &b.machine.kernel);
    check("the processor", &a.machine.cpu_model, &b.machine.cpu_model);
    check("the number of processors", &a.machine.cpus.to_string(), &b.machine.cpus.to_string());
    for wa in &a.workloads {
        let named = |w: &&WorkloadResults| w.name == wa.name;
        let alike = b.workloads.iter().find(|w| named(w) && w.cases == wa.cases);
        let Some(wb) = alike.or_else(|| b.workloads.iter().find(named)) else { continue };
        for (name, value) in &wa.options {
            let other = wb.options.get(name).map_or("absent", String::as_str);
            check(&format!("{}'s {name}", wa.name), value, other);
        }
    }
    found
}

impl ComparedFiles {
    /// Returns the comparison as a table for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for line in &self.differences {
            let _ = writeln!(text, "note: {line}");
        }
        let name = |pair: &Compared| format!("{}: {} · {}", pair.workload, pair.case, pair.target);
        let width = self.pairs.iter().map(|pair| name(pair).chars().count()).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "{:width$}  {:>12}  {:>12}  {:>6}  {:<15}  {:>6}",
            "", "A", "B", "B/A", "95 % interval", "p"
        );
        for pair in &self.pairs {
            let c = &pair.comparison;
            let interval = format!("{:.3} … {:.3}", c.low, c.high);
            let (a, b) = (format_number(pair.a.median), format_number(pair.b.median));
            let _ = writeln!(
                text,
                "{:width$}  {a:>12}  {b:>12}  {:>6.3}  {interval:<15}  {:>6.3}  {}",
                name(pair),
                c.ratio,
                c.p,
                words(c.verdict)
            );
        }
        for line in &self.unmatched {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Higher => "B is higher",
        Verdict::Lower => "B is lower",
        Verdict::NoDifference => "no difference shown",
        Verdict::TooFewRounds => "too few rounds to tell",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::results;

    #[test]
    fn pairs_are_matched_by_name_and_judged() {
        let a = results(&[("raw", &[100.0, 101.0, 99.0, 100.5, 98.0]), ("gone", &[1.0])]);
        let mut b = results(&[("new", &[1.0]), ("raw", &[80.0, 81.0, 82.0, 79.5, 80.5])]);
        b.version = "9.9.9".into();
        let compared = compare(&a, &b).unwrap();
        assert_eq!(compared.pairs.len(), 1);
        assert_eq!(compared.pairs[0].comparison.verdict, Verdict::Lower);
        assert_eq!(compared.unmatched.len(), 2);
        assert!(compared.differences[0].contains("9.9.9"));
        let text = compared.table();
        assert!(
            text.contains("B is lower") && text.contains("only in A: mixed: only on gone"),
            "{text}"
        );
    }

    #[test]
    fn strangers_are_refused() {
        let message = compare(&results(&[("a", &[1.0])]), &results(&[("b", &[1.0])]))
            .unwrap_err()
            .to_string();
        assert!(message.contains("nothing") || message.contains("no workload"), "{message}");
    }
}
