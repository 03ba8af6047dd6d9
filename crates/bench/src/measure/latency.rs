//! Latencies: one histogram a thread, merged once at the end.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The quantiles kept in results, dense where the tail is.
const QUANTILES: [f64; 17] =
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0];

/// Longest latency told apart; longer ones count as this.
const NS_MAX: u64 = 100_000_000_000;

/// A recording histogram of nanoseconds: three significant digits, 1 ns to 100 s, no allocation
/// while recording.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u32>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, NS_MAX, 3).expect("the bounds are constants and valid"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(NS_MAX);
        self.0.saturating_record(ns.max(1));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Returns the summary; `None` when nothing was recorded.
    pub(crate) fn summary(&self) -> Option<LatencySummary> {
        if self.0.is_empty() {
            return None;
        }
        let at = |q: f64| self.0.value_at_quantile(q) as f64 / 1000.0;
        debug_assert!(
            at(0.5) <= at(0.99) && at(0.99) <= at(0.999) && at(0.999) <= at(1.0),
            "rarer latencies are longer: {:?}",
            [at(0.5), at(0.99), at(0.999), at(1.0)]
        );
        Some(LatencySummary {
            count: self.0.len(),
            mean_us: self.0.mean() / 1000.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max() as f64 / 1000.0,
            quantiles_us: QUANTILES.iter().map(|&q| (q, at(q))).collect(),
        })
    }
}

/// A latency distribution in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// How many were recorded.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Pairs of quantile (0 to 1) and microseconds.
    pub quantiles_us: Vec<(f64, f64)>,
}

impl LatencySummary {
    /// Returns a quantile (0 to 1) in microseconds; `None` where it was not kept.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        self.quantiles_us.iter().find(|(kept, _)| (kept - quantile).abs() < 1e-9).map(|(_, us)| *us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_thousandth() {
        let mut a = Latencies::new();
        let mut b = Latencies::new();
        for i in 1..=1000u64 {
            let half = if i % 2 == 0 { &mut a } else { &mut b };
            half.record(Duration::from_micros(i));
        }
        a.merge(&b);
        let s = a.summary().unwrap();
        assert_eq!(s.count, 1000);
        assert!((s.p50_us - 500.0).abs() < 1.0, "{}", s.p50_us);
        assert!((s.p99_us - 990.0).abs() < 1.5, "{}", s.p99_us);
        assert!(
            (s.quantile_us(0.95).unwrap() - 950.0).abs() < 1.5 && s.quantile_us(0.42).is_none()
        );
        assert!((s.max_us - 1000.0).abs() < 1.0);
        assert!(s.quantiles_us.windows(2).all(|w| w[0].1 <= w[1].1));
    }

    #[test]
    fn what_is_too_long_counts_as_the_longest() {
        let mut l = Latencies::new();
        assert!(l.summary().is_none());
        l.record(Duration::from_secs(1000));
        assert!(l.summary().unwrap().max_us >= 1e8);
    }
}
