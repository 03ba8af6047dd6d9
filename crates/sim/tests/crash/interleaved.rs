//! Long changes of a file of ten extents, on a volume where a record takes four of them, with another operation in the middle; members of groups that
//! vanish; processes that die in the middle of a step.

use fs::PlantedBug;
use sim::{Cuts, Effort, Setup, Step, Violation, pair, try_pair};

/// More crash states than this are not looked at for one mistake.
const STATES_MAX: u64 = 2_000;

fn effort(steps: usize, cuts: usize) -> Effort {
    Effort { steps, cuts: Cuts::Around(cuts), second_cut_every: 4, second_life_every: 3 }
}

/// The number of the first pair whose change and whose other step are these.
fn number(change: &Step, other: &Step) -> usize {
    let is = |number: &usize| {
        pair(*number, &[1]).iter().any(|step| matches!(step, Step::During(first, second, _) if (&**first, &**second) == (change, other)))
    };
    (0..sim::pair_count()).find(is).expect("there is such a pair")
}

/// Plants a mistake and looks for a broken promise in workloads one after the other.
fn finds(bug: PlantedBug, mut next: impl FnMut(u64) -> Result<u64, Box<Violation>>) {
    fs::plant(Some(bug));
    let mut states = 0;
    for seed in 1.. {
        match next(seed) {
            Ok(found) => states += found,
            Err(violation) => return println!("{bug:?}: found in state {}: {}", states + violation.states + 1, violation.what),
        }
        assert!(states < STATES_MAX, "{bug:?} went unnoticed in {states} states");
    }
}

/// S-11: a power cut between two records of a truncation leaves blocks behind the end, and what was removed is there when the file grows again.
#[test]
fn a_truncation_that_is_not_marked_is_found() {
    let number = number(&Step::Truncate(0, 0, 3000), &Step::Sync);
    finds(PlantedBug::TruncationNotMarked, |seed| Ok(try_pair(seed, number, &Setup::SMALL, 1, &effort(0, 6))?.states));
}
