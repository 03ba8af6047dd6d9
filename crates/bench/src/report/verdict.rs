//! One sentence over a figure: which target is ahead, by how much, and whether the noise of the
//! rounds allows saying so.

use crate::measure::{Comparison, Spread, Verdict};
use crate::results::{Measurement, Record, WorkloadResults};
use crate::summary::records_of;
use crate::units::format_number;

/// Below this a difference is not worth a word.
const ALIKE: f64 = 1.005;

/// What is compared, in words around the names.
pub(super) struct Contest {
    /// Whether more is better.
    pub more: bool,
    /// What stands behind the name of the one that is ahead.
    pub ahead: &'static str,
    /// What all are where they do not differ.
    pub alike: &'static str,
}

pub(super) const RATE: Contest =
    Contest { more: true, ahead: "is fastest", alike: "All are as fast" };
pub(super) const TAIL: Contest = Contest {
    more: false,
    ahead: "has the shortest 99th percentile",
    alike: "All have the same 99th percentile",
};
pub(super) const EFFORT: Contest = Contest {
    more: true,
    ahead: "does most for each busy processor",
    alike: "All do as much for each busy processor",
};
pub(super) const FEWEST: Contest =
    Contest { more: false, ahead: "needs fewest", alike: "All need as many" };
pub(super) const LEAST: Contest =
    Contest { more: false, ahead: "has least", alike: "All have as much" };

/// A target with its values, one a round.
struct Entrant<'a> {
    label: &'a str,
    values: Vec<f64>,
    median: f64,
}

/// Says it of a case; nothing where fewer than two targets have values.
pub(super) fn verdict(
    workload: &WorkloadResults,
    case: usize,
    contest: &Contest,
    value: impl Fn(&Measurement) -> Option<f64>,
) -> String {
    let entrant = |target: usize| {
        let of_record = |record: &Record| value(&record.measurement);
        let values: Vec<f64> = records_of(workload, case, target).filter_map(of_record).collect();
        let median = Spread::of(&values).median;
        let label = workload.targets[target].label.as_str();
        (median > 0.0).then_some(Entrant { label, values, median })
    };
    let mut all: Vec<Entrant<'_>> = (0..workload.targets.len()).filter_map(entrant).collect();
    all.sort_by(|a, b| {
        let (a, b) = if contest.more { (b, a) } else { (a, b) };
        a.median.total_cmp(&b.median)
    });
    let [first, second, ..] = &all[..] else { return String::new() };
    sentence(contest, first, second)
}

fn sentence(contest: &Contest, first: &Entrant<'_>, second: &Entrant<'_>) -> String {
    let Contest { ahead, alike, .. } = contest;
    debug_assert!(
        (first.median >= second.median) == contest.more || first.median == second.median,
        "the first is ahead: {} and {}",
        first.median,
        second.median
    );
    let factor = (first.median / second.median).max(second.median / first.median);
    if factor < ALIKE {
        return format!("{alike}, as far as {} and {} go.", first.label, second.label);
    }
    format!(
        "{} {ahead}: {} against {} of {}, {factor:.2} times; {}.",
        first.label,
        format_number(first.median),
        format_number(second.median),
        second.label,
        noise(&first.values, &second.values)
    )
}

/// Says whether two targets differ by more than their rounds do.
fn noise(first: &[f64], second: &[f64]) -> String {
    let rounds = first.len().min(second.len());
    let count = if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") };
    let (a, b) = (Spread::of(first), Spread::of(second));
    let apart = a.min > b.max || b.min > a.max;
    match Comparison::of(second, first) {
        Some(Comparison { verdict: Verdict::Higher | Verdict::Lower, p, .. }) => {
            format!("the noise of {count} does not explain it (p = {p:.3})")
        }
        Some(Comparison { verdict: Verdict::TooFewRounds, .. }) if rounds > 1 && apart => {
            format!("no round of one reaches the other, but {count} are too few to be sure")
        }
        Some(Comparison { verdict: Verdict::TooFewRounds, .. }) if rounds == 1 => {
            "one round says nothing of the noise".to_owned()
        }
        _ => format!("that is within the noise of {count}, so it says nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::results;

    fn of_rates(rates: &[(&str, &[f64])]) -> String {
        verdict(&results(rates).workloads[0], 0, &RATE, |m| Some(m.rate))
    }

    #[test]
    fn a_figure_says_what_is_ahead_and_whether_that_is_more_than_noise() {
        let raw: &[f64] = &[100.0, 101.0, 99.0, 100.5, 98.0];
        let sure = of_rates(&[("raw", raw), ("new", &[125.0, 126.0, 124.0, 127.0, 124.5])]);
        assert!(sure.starts_with("new is fastest: 125 against 100"), "{sure}");
        assert!(sure.contains("of raw, 1.25 times; the noise"), "{sure}");
        assert!(sure.contains("does not explain it"), "{sure}");
        let unsure = of_rates(&[("raw", raw), ("new", &[120.0, 90.0, 119.0, 95.0, 101.0])]);
        assert!(unsure.contains("within the noise of 5 rounds"), "{unsure}");
        let few = of_rates(&[("raw", &[100.0, 101.0]), ("new", &[120.0, 121.0])]);
        assert!(few.contains("2 rounds are too few"), "{few}");
        let once = of_rates(&[("raw", &[100.0]), ("new", &[120.0])]);
        assert!(once.contains("one round says nothing"), "{once}");
        let alike = of_rates(&[("raw", raw), ("new", raw)]);
        assert_eq!(alike, "All are as fast, as far as raw and new go.");
        assert_eq!(of_rates(&[("raw", raw)]), "", "alone it is ahead of nothing");
    }

    #[test]
    fn fewer_is_better_where_that_is_so() {
        let results = results(&[("a", &[9.0, 9.0, 9.0]), ("b", &[3.0, 3.0, 3.0])]);
        let told = verdict(&results.workloads[0], 0, &FEWEST, |m| Some(m.rate));
        assert!(told.starts_with("b needs fewest: 3.00 against 9.00 of a, 3.00 times"), "{told}");
    }
}
