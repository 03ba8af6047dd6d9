//! From rounds to a verdict: pure functions.

use serde::Serialize;

use crate::measure::Spread;

/// What the rounds allow to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// The best candidate was faster in every round.
    Move,
    /// Nothing was faster.
    Stay,
    /// The best candidate was faster in some rounds and not in others.
    Unclear,
}

/// A run that is faster by less than this is no reason to move.
const WORTH: f64 = 1.02;

/// How a run's time changes with the time in its calls, as a part of what it was (Amdahl).
///
/// `share` of the run waited for calls, and these now take `calls` times as long; the rest stays.
pub(crate) fn run_time(share: f64, calls: f64) -> f64 {
    1.0 - share + share * calls
}

/// How many times as fast as with the first the calls and the whole run are with the second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Faster {
    pub calls: f64,
    pub run: f64,
}

/// Compares the times in calls of one round; where the first waited for nothing, nothing changes.
pub(crate) fn faster(share: f64, base_s: f64, candidate_s: f64) -> Faster {
    if base_s <= 0.0 || candidate_s <= 0.0 {
        return Faster { calls: 1.0, run: 1.0 };
    }
    Faster { calls: base_s / candidate_s, run: 1.0 / run_time(share, candidate_s / base_s) }
}

/// Tells whether a candidate is worth another look: its median run was faster.
pub(crate) fn is_worth(run: &Spread) -> bool {
    run.median > WORTH
}

/// Rules on rounds that were made for this candidate alone.
pub(crate) fn rule(run: &Spread) -> Ruling {
    if !is_worth(run) {
        Ruling::Stay
    } else if run.min > WORTH {
        Ruling::Move
    } else {
        Ruling::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_449_only_what_waited_becomes_faster() {
        assert_eq!(run_time(0.0, 0.1), 1.0);
        assert_eq!(run_time(1.0, 0.5), 0.5);
        assert!((run_time(0.4, 0.5) - 0.8).abs() < 1e-12);
        let half = faster(0.5, 2.0, 1.0);
        assert_eq!(half.calls, 2.0);
        assert!((half.run - 1.0 / 0.75).abs() < 1e-12);
        assert_eq!(faster(0.5, 0.0, 1.0), Faster { calls: 1.0, run: 1.0 });
    }

    #[test]
    fn s_450_a_claim_needs_every_round() {
        let of = |rounds: &[f64]| rule(&Spread::of(rounds));
        assert_eq!(of(&[1.2, 1.3, 1.4]), Ruling::Move);
        assert_eq!(of(&[0.9, 1.3, 1.4]), Ruling::Unclear);
        assert_eq!(of(&[0.9, 1.0, 1.4]), Ruling::Stay);
        assert_eq!(of(&[1.01, 1.01, 1.01]), Ruling::Stay);
        assert_eq!(of(&[]), Ruling::Stay);
    }
}
