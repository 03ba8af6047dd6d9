//! The rules by which the simulated device misbehaves.

use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

/// One way to misbehave, at the calls that its rule selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// At reads.
    Read(ReadFault),
    /// At writes. `write_zeroes` and `discard` are writes too; having no data, they are spared
    /// `FlipBit`, `Misdirect` and `Tear`.
    Write(WriteFault),
    /// At flushes.
    Flush(FlushFault),
    /// The queue hands the completion of a request out a second time, without its buffer.
    DuplicateCompletion,
}

/// How a read misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFault {
    /// Fails with `Io`.
    Fail,
    /// Succeeds with one bit turned, chosen by the seed; the medium is untouched.
    FlipBit,
    /// Succeeds with these bits of one byte turned, where the read covers it; the medium is
    /// untouched.
    Turn {
        /// Device offset of the byte.
        at: u64,
        /// The bits.
        mask: u8,
    },
    /// Succeeds with the bytes of another place, cut to fit the device.
    Misdirect {
        /// Device offset in bytes.
        to: u64,
    },
    /// Sleeps first.
    Delay(Duration),
}

/// How a write misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// Fails with `Io` after some of its sectors, chosen by the seed, have arrived.
    Fail,
    /// Fails with `NoSpace`; nothing arrives.
    NoSpace,
    /// Is acknowledged; nothing arrives.
    Lose,
    /// Is acknowledged; arrives with one bit turned, chosen by the seed.
    FlipBit,
    /// Is acknowledged; arrives at another place, cut to fit the device.
    Misdirect {
        /// Device offset in bytes.
        to: u64,
    },
    /// Is acknowledged; only a run of its sectors, chosen by the seed, arrives.
    Tear,
    /// Sleeps first.
    Delay(Duration),
}

/// How a flush misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushFault {
    /// Fails with `Io`, and what it should have made durable is in doubt for ever.
    Fail,
    /// Is acknowledged and not carried out.
    Lose,
    /// Sleeps first.
    Delay(Duration),
}

/// Which of the matching calls a rule strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The next so many.
    Next(u64),
    /// The so-manieth alone; 1 is the next.
    Nth(u64),
    /// The so-manieth and all after it.
    From(u64),
    /// All.
    Always,
    /// Each with a chance of one in so many, from the seed.
    OneIn(u32),
}

/// A fault, when it strikes and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// What happens.
    pub fault: Fault,
    /// Which of the matching calls are struck.
    pub trigger: Trigger,
    /// Only calls that touch this device range match; `None`: all, and flushes ignore it.
    pub range: Option<Range<u64>>,
}

impl FaultRule {
    /// Makes a rule for the whole device.
    #[must_use]
    pub fn new(fault: Fault, trigger: Trigger) -> Self {
        Self { fault, trigger, range: None }
    }

    /// Confines the rule to calls that touch a device range.
    #[must_use]
    pub fn within(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }
}

/// The kind of call a rule is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    WriteWithoutData,
    Flush,
    Completion,
}

/// The rules in force, each with the number of calls it has matched.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: Vec<(FaultRule, u64)>,
}

impl Faults {
    pub fn add(&mut self, rule: FaultRule) {
        self.rules.push((rule, 0));
    }

    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Asks which fault strikes a call. Every rule counts the calls it matches; the oldest that
    /// strikes wins.
    pub fn strike(
        &mut self,
        call: Call,
        range: &Range<u64>,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Option<Fault> {
        let mut struck = None;
        for (rule, matched) in self.rules.iter_mut().filter(|(rule, _)| matches(rule, call, range))
        {
            *matched += 1;
            let strikes = match rule.trigger {
                Trigger::Next(count) => *matched <= count,
                Trigger::Nth(nth) => *matched == nth,
                Trigger::From(first) => *matched >= first,
                Trigger::Always => true,
                Trigger::OneIn(chance) => rng.random_range(0..chance.max(1)) == 0,
            };
            if strikes && struck.is_none() {
                struck = Some(rule.fault);
            }
        }
        struck
    }
}

fn matches(rule: &FaultRule, call: Call, range: &Range<u64>) -> bool {
    let kind = match rule.fault {
        Fault::Read(_) => call == Call::Read,
        Fault::Write(WriteFault::FlipBit | WriteFault::Misdirect { .. } | WriteFault::Tear) => {
            call == Call::Write
        }
        Fault::Write(_) => call == Call::Write || call == Call::WriteWithoutData,
        Fault::Flush(_) => return call == Call::Flush,
        Fault::DuplicateCompletion => call == Call::Completion,
    };
    kind && rule.range.as_ref().is_none_or(|only| range.start < only.end && only.start < range.end)
}
