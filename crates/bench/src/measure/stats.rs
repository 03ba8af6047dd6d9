//! Small statistics: the middle and the ends of a few rounds, and whether two sets of rounds
//! differ.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// The middle and the ends of a few values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many values.
    pub n: usize,
    /// Median; the mean of the two middle ones when `n` is even.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Describes `values`; all zeros when there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        let median = median_of_sorted(&sorted);
        debug_assert!(
            values.iter().any(|value| !value.is_finite()) || (min <= median && median <= max),
            "the middle lies between the ends: {min}, {median}, {max}"
        );
        Self { n: sorted.len(), median, min, max }
    }

    /// Returns the noise: half of what lies between the ends, as a part of the median.
    #[must_use]
    pub fn noise(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / (2.0 * self.median.abs()) }
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let mid = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[mid] } else { f64::midpoint(sorted[mid - 1], sorted[mid]) }
}

/// What a comparison of two sets of rounds says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is higher, at the 5 % level.
    Higher,
    /// B is lower, at the 5 % level.
    Lower,
    /// The difference is within what chance explains.
    NoDifference,
    /// So few rounds that no difference, however large, could be significant.
    TooFewRounds,
}

/// A comparison of two sets of rounds, B against A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Median of B over median of A.
    pub ratio: f64,
    /// Lower end of the 95 % interval of the ratio (bootstrap over rounds).
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
    /// Two-sided p-value of the Mann-Whitney U test.
    pub p: f64,
    /// What follows from it.
    pub verdict: Verdict,
}

/// The level below which a p-value counts as a difference.
const LEVEL: f64 = 0.05;

impl Comparison {
    /// Compares two sets of rounds; `None` when one is empty or A's median is zero.
    #[must_use]
    pub fn of(a: &[f64], b: &[f64]) -> Option<Self> {
        let (median_a, median_b) = (Spread::of(a).median, Spread::of(b).median);
        if a.is_empty() || b.is_empty() || median_a == 0.0 {
            return None;
        }
        let p = mann_whitney_p(a, b);
        let (low, high) = bootstrap_ratio(a, b);
        let verdict = if smallest_p(a.len(), b.len()) > LEVEL {
            Verdict::TooFewRounds
        } else if p > LEVEL {
            Verdict::NoDifference
        } else if median_b > median_a {
            Verdict::Higher
        } else {
            Verdict::Lower
        };
        Some(Self { ratio: median_b / median_a, low, high, p, verdict })
    }
}

/// The smallest two-sided p-value that samples of these sizes are able to give.
fn smallest_p(n: usize, m: usize) -> f64 {
    // 2 / C(n + m, n)
    let combinations = (1..=n).fold(1.0, |c, i| c * (m + i) as f64 / i as f64);
    (2.0 / combinations).min(1.0)
}

/// The largest sample for which U's distribution is counted out instead of approximated.
const EXACT_MAX: usize = 20;

fn mann_whitney_p(a: &[f64], b: &[f64]) -> f64 {
    let u: f64 = a
        .iter()
        .map(|x| {
            b.iter()
                .map(|y| if x > y { 1.0 } else { f64::from(u8::from(x == y)) / 2.0 })
                .sum::<f64>()
        })
        .sum();
    let (n, m) = (a.len() as f64, b.len() as f64);
    debug_assert!((0.0..=n * m).contains(&u), "U counts pairs: {u} of {n} times {m}");
    let u_low = u.min(n * m - u);
    let ties = tie_term(a, b);
    if ties == 0.0 && a.len() <= EXACT_MAX && b.len() <= EXACT_MAX {
        return exact_p(a.len(), b.len(), u_low);
    }
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (n * m / 2.0 - u_low - 0.5).max(0.0) / variance.sqrt();
    normal_two_sided(z)
}

/// Sum of t³ − t over groups of equal values.
fn tie_term(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    all.chunk_by(|x, y| x == y).map(|group| (group.len() as f64).powi(3) - group.len() as f64).sum()
}

/// Probability that U is at most `u`, twice: counts[k] is the number of orders of n + m values that
/// give U = k.
fn exact_p(n: usize, m: usize, u: f64) -> f64 {
    let mut counts = vec![0.0f64; n * m + 1];
    counts[0] = 1.0;
    // Gaussian binomial coefficient: multiply by (1 − q^(m+i)), divide by (1 − q^i).
    for i in 1..=n {
        for k in (m + i..counts.len()).rev() {
            counts[k] -= counts[k - m - i];
        }
        for k in i..counts.len() {
            counts[k] += counts[k - i];
        }
    }
    let total: f64 = counts.iter().sum();
    let tail: f64 = counts.iter().take(u.floor() as usize + 1).sum();
    debug_assert!(
        tail > 0.0 && tail <= total,
        "of all orders some give at most this: {tail} of {total}"
    );
    (2.0 * tail / total).min(1.0)
}

/// Two-sided tail of the normal distribution (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
fn normal_two_sided(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736
                + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    (poly * (-x * x).exp()).clamp(0.0, 1.0)
}

const BOOTSTRAP_ROUNDS: usize = 4000;

fn bootstrap_ratio(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(0x00be_d91a_7e00);
    let mut resampled_median = |values: &[f64]| {
        let mut picked: Vec<f64> =
            values.iter().map(|_| values[rng.random_range(0..values.len())]).collect();
        picked.sort_by(f64::total_cmp);
        median_of_sorted(&picked)
    };
    let mut ratios: Vec<f64> = (0..BOOTSTRAP_ROUNDS)
        .map(|_| resampled_median(b) / resampled_median(a))
        .filter(|ratio| ratio.is_finite())
        .collect();
    ratios.sort_by(f64::total_cmp);
    if ratios.is_empty() {
        return (0.0, 0.0);
    }
    let at = |q: f64| ratios[((ratios.len() - 1) as f64 * q).round() as usize];
    (at(0.025), at(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_few_values() {
        let s = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((s.n, s.median, s.min, s.max), (3, 2.0, 1.0, 3.0));
        assert_eq!(s.noise(), 0.5);
        assert_eq!(Spread::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::default().noise(), 0.0);
    }

    #[test]
    fn exact_p_agrees_with_published_tables() {
        // Two samples of 5 without overlap: p = 2/252. U = 2 for n = m = 5 gives 2 · 4/252
        // (critical value at 5 % is 2).
        assert!((exact_p(5, 5, 0.0) - 2.0 / 252.0).abs() < 1e-12);
        assert!((exact_p(5, 5, 2.0) - 8.0 / 252.0).abs() < 1e-12);
        assert!(exact_p(5, 5, 3.0) > 0.05);
        assert!((exact_p(3, 3, 0.0) - 0.1).abs() < 1e-12);
        assert_eq!(exact_p(4, 4, 8.0), 1.0);
    }

    #[test]
    fn normal_tail_at_known_points() {
        assert!((normal_two_sided(1.959_964) - 0.05).abs() < 1e-5);
        assert!((normal_two_sided(0.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_clear_difference_is_seen_and_noise_is_not() {
        let a = [100.0, 101.0, 99.0, 100.5, 99.5];
        let faster = a.map(|x| x * 1.1 + 0.01);
        let c = Comparison::of(&a, &faster).unwrap();
        assert_eq!(c.verdict, Verdict::Higher);
        assert!(c.low > 1.05 && c.high < 1.15, "{c:?}");
        assert_eq!(Comparison::of(&faster, &a).unwrap().verdict, Verdict::Lower);
        let shuffled = [99.9, 100.4, 101.1, 99.1, 100.1];
        assert_eq!(Comparison::of(&a, &shuffled).unwrap().verdict, Verdict::NoDifference);
    }

    #[test]
    fn three_rounds_prove_nothing() {
        let c = Comparison::of(&[1.0, 1.1, 1.2], &[9.0, 9.1, 9.2]).unwrap();
        assert_eq!(c.verdict, Verdict::TooFewRounds);
        assert!(Comparison::of(&[], &[1.0]).is_none());
        assert!(Comparison::of(&[0.0], &[1.0]).is_none());
    }

    #[test]
    fn ties_do_not_break_the_test() {
        let same = [5.0; 6];
        assert_eq!(Comparison::of(&same, &same).unwrap().verdict, Verdict::NoDifference);
        let a = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
        let b = [11.0, 11.0, 12.0, 12.0, 13.0, 13.0];
        assert_eq!(Comparison::of(&a, &b).unwrap().verdict, Verdict::Higher);
    }
}
