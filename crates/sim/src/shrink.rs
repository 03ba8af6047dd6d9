//! Makes a failing workload small.

use crate::judge::Violation;
use crate::{Cuts, Effort, try_steps};

/// Leaves out steps as long as the rest still fails; each try searches all its cuts anew. Returns
/// the smallest failure found.
#[must_use]
pub fn shrink(violation: Box<Violation>, effort: &Effort) -> Box<Violation> {
    let mut best = violation;
    let cuts = match effort.cuts {
        Cuts::Random(count) => Cuts::Random(count * 4),
        Cuts::Around(count) => Cuts::Around(count * 4),
        every @ Cuts::Every(_) => every,
    };
    let effort = Effort { cuts, ..*effort };
    let mut chunk = best.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < best.steps.len() {
            let mut steps = best.steps.clone();
            steps.drain(at..(at + chunk).min(steps.len()));
            match try_steps(best.seed, &best.setup, &steps, &effort) {
                Err(smaller) => best = smaller,
                Ok(_) => at += chunk,
            }
        }
        chunk /= 2;
    }
    best
}
