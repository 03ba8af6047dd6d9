//! A device that acknowledges a flush and loses it: harmless once an honoured flush has made up for
//! it; until then a cut may take what was promised, and the least that is asked is that the remains
//! are judged without a panic (docs/faults.md, what a device must do).

use bedplate_block::{CrashChoice, Fault, FaultRule, FlushFault, FlushOutcome, Recorded, Trigger};
use serde::Serialize;

use crate::bed::fresh_bed;
use crate::judge::{Cut, judge};
use crate::run::record_on;
use crate::workload::{Setup, Step};

/// What lost flushes led to.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct LostTally {
    /// Flushes that were lost, one a run.
    pub lost: u64,
    /// Cuts after a flush had made up for the lost one: all promises were kept.
    pub made_up: u64,
    /// Cuts before, that broke no promise.
    pub harmless: u64,
    /// Cuts before, after which something promised was missing, or the volume was refused.
    pub broken: u64,
}

/// Runs steps again and again, with the first, second, third … flush lost.
///
/// # Errors
/// A promise that was broken although a later flush had been honoured.
pub fn try_lost_flushes(setup: &Setup, steps: &[Step]) -> Result<LostTally, String> {
    let mut tally = LostTally::default();
    for nth in 1.. {
        let bed = fresh_bed(setup, nth);
        bed.data().inject(FaultRule::new(Fault::Flush(FlushFault::Lose), Trigger::Nth(nth)));
        let history = record_on(bed, setup.block_size, None, steps)?;
        let operations = history.bed.data().operations();
        let flush = |wanted: FlushOutcome| move |operation: &Recorded| matches!(operation, Recorded::Flush { outcome, .. } if *outcome == wanted);
        let Some(lost) = operations.iter().position(flush(FlushOutcome::Lost)) else {
            return Ok(tally);
        };
        let made_up = operations
            .iter()
            .skip(lost)
            .position(flush(FlushOutcome::Honoured))
            .map_or(operations.len(), |at| lost + at + 1);
        tally.lost += 1;
        for choice in [CrashChoice::LoseAll, CrashChoice::Seeded(nth)] {
            let first = history.first_operation();
            for after in [lost + 1, made_up - 1, made_up, (made_up + operations.len()) / 2]
                .into_iter()
                .filter(|after| *after >= first)
            {
                let judged = judge(&history, &Cut { after, choice: choice.clone(), again: None });
                match judged {
                    Ok(()) if after < made_up => tally.harmless += 1,
                    Err(_) if after < made_up => tally.broken += 1,
                    Ok(()) => tally.made_up += 1,
                    Err(_) if made_up == operations.len() => tally.broken += 1,
                    Err(what) => {
                        return Err(format!(
                            "flush {nth} (operation {lost}) was lost, operation {} made up for it: \
                             {what}",
                            made_up - 1
                        ));
                    }
                }
            }
        }
    }
    unreachable!("no workload makes that many flushes")
}
