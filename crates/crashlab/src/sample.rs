//! Which power cuts of a recording are tried: chosen by a seed, the same for the same recording
//! whatever their number.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use bedplate_block::{CrashChoice, CrashStep, Recording};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// What becomes of the writes that no flush had made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// None arrived.
    Nothing,
    /// All arrived.
    Everything,
    /// They arrived in the order in which they were made, and the last one was on its way: it may
    /// be torn.
    InOrder,
    /// Any of them arrived, any of these torn.
    Subset,
}

impl Pattern {
    /// Every pattern, in the order in which they are told.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Everything, Self::InOrder, Self::Subset];
}

/// One state that a power cut may leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashState {
    /// Its number among those of its seed, from 0.
    pub number: usize,
    /// The power went after so many operations of the recording.
    pub after: usize,
    /// What becomes of the unflushed writes.
    pub pattern: Pattern,
    /// What of them arrived.
    pub steps: Vec<CrashStep>,
}

/// What to choose from.
#[derive(Debug, Clone)]
pub struct Sampling<'a> {
    /// Everything follows from it.
    pub seed: u64,
    /// How many states.
    pub states: usize,
    /// The power goes after so many operations.
    pub cuts: RangeInclusive<usize>,
    /// Operations after which a line was acknowledged: the first at which it may be missed, tried
    /// more often than others.
    pub acknowledged: &'a [usize],
}

/// How often a choice that was made before is made again, before the recording is taken for
/// exhausted.
const ATTEMPTS: u64 = 64;

/// Chooses states, no two of them alike. Fewer than asked for come back when the recording has no
/// more.
///
/// State `n` of a seed is the same for every number of states above `n`.
///
/// # Panics
/// When a cut lies beyond the recording.
#[must_use]
pub fn sample(recording: &Recording, sampling: &Sampling) -> Vec<CrashState> {
    let mut known = HashSet::new();
    let mut states = Vec::new();
    for number in 0..sampling.states {
        let fresh = (0..ATTEMPTS).find_map(|attempt| {
            let state = choose(recording, sampling, number, attempt);
            let parts: Vec<_> =
                state.steps.iter().map(|step| (step.operation, step.parts.clone())).collect();
            known.insert((state.after, parts)).then_some(state)
        });
        let Some(state) = fresh else { break };
        states.push(state);
    }
    debug_assert!(
        states.iter().enumerate().all(|(at, state)| state.number == at),
        "state n is the nth of its seed, however many there are"
    );
    states
}

fn choose(recording: &Recording, sampling: &Sampling, number: usize, attempt: u64) -> CrashState {
    // Seeds, numbers and attempts are small and alike; the multipliers make neighbours differ.
    let mixed = sampling.seed
        ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (attempt + 1).wrapping_mul(0xd134_2543_de82_ef95);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(mixed);
    let (first, last) = (*sampling.cuts.start(), *sampling.cuts.end());
    let after = match sampling.acknowledged {
        acknowledged if !acknowledged.is_empty() && rng.random_bool(0.4) => {
            acknowledged[rng.random_range(0..acknowledged.len())].clamp(first, last)
        }
        _ => rng.random_range(first..=last),
    };
    let (pattern, choice) = match rng.random_range(0..12) {
        0 | 1 => (Pattern::Nothing, CrashChoice::LoseAll),
        2 => (Pattern::Everything, CrashChoice::KeepAll),
        3..6 => (Pattern::InOrder, CrashChoice::InOrder(rng.random())),
        _ => (Pattern::Subset, CrashChoice::Seeded(rng.random())),
    };
    debug_assert!(
        first <= after && after <= last,
        "the power goes within the recording: after {after} of {first} to {last}"
    );
    CrashState { number, after, pattern, steps: recording.crash_steps(after, &choice) }
}

#[cfg(test)]
mod tests {
    use bedplate_block::{AlignedBuf, BlockDevice, Geometry, MemoryDevice, RecordingDevice};

    use super::*;

    fn recording(writes: u64) -> Recording {
        let geometry = Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY };
        let spool = tempfile::tempfile().expect("a file without a name can be made");
        let device = RecordingDevice::over(MemoryDevice::new(1 << 20), geometry, spool);
        for number in 0..writes {
            device
                .write_at(&AlignedBuf::zeroed(4096), number % 16 * 4096)
                .expect("the device takes it");
            if number % 8 == 7 {
                device.flush().expect("a flush only counts");
            }
        }
        device.recording()
    }

    #[test]
    fn states_are_the_same_for_the_same_seed_whatever_their_number_and_no_two_are_alike() {
        let recording = recording(200);
        let sampling = Sampling { seed: 7, states: 300, cuts: 10..=200, acknowledged: &[20, 40] };
        let states = sample(&recording, &sampling);
        assert_eq!(states.len(), 300);
        assert_eq!(sample(&recording, &Sampling { states: 50, ..sampling.clone() }), states[..50]);
        assert_ne!(sample(&recording, &Sampling { seed: 8, ..sampling.clone() }), states);
        assert!(states.iter().all(|state| sampling.cuts.contains(&state.after)));
        assert!(states.iter().enumerate().all(|(at, state)| states[..at].iter().all(|other| (
            state.after,
            &state.steps
        )
            != (other.after, &other.steps))));
        for pattern in Pattern::ALL {
            assert!(states.iter().any(|state| state.pattern == pattern), "no {pattern:?}");
        }
        let acknowledged = states.iter().filter(|state| [20, 40].contains(&state.after)).count();
        assert!(
            acknowledged > 20,
            "where a line was acknowledged is tried more often: {acknowledged}"
        );
    }

    #[test]
    fn an_exhausted_record_gives_fewer_states() {
        let recording = recording(1);
        let states = sample(
            &recording,
            &Sampling { seed: 1, states: 10_000, cuts: 0..=1, acknowledged: &[] },
        );
        // Before the write there is one state, after it none of its eight sectors, all, or runs of
        // them.
        assert!((10..2000).contains(&states.len()), "{}", states.len());
    }
}
