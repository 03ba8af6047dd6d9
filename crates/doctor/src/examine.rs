//! Runs the checks and puts together what they say.

use serde::{Serialize, Serializer};

use crate::checks::{self, Check};
use crate::facts::{Facts, Question};
use crate::report::{Finding, Mend, Outcome, Rule};
use crate::system::System;

/// A finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The check.
    pub rule: Rule,
    /// What it found.
    pub finding: Finding,
}

impl Serialize for Found {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let Self { rule, finding } = self;
        let (undo, keep) = match &finding.mend {
            Mend::Settings { undo, keep, .. } => (
                Some(undo.iter().map(crate::report::Setting::command).collect::<Vec<_>>()),
                Some(keep),
            ),
            Mend::ByHand(_) => (None, None),
        };
        let mut document = serializer.serialize_struct("Found", 10)?;
        document.serialize_field("check", rule.name)?;
        document.serialize_field("at", &finding.at)?;
        document.serialize_field("sure", &finding.sure)?;
        document.serialize_field("measured", &finding.measured)?;
        document.serialize_field("costs", &finding.costs)?;
        document.serialize_field("mend", &finding.mend.commands())?;
        document.serialize_field("runs_with_fix", &undo.is_some())?;
        document.serialize_field("undo", &undo)?;
        document.serialize_field("keep", &keep)?;
        document.serialize_field("source", rule.source)?;
        document.end()
    }
}

/// What a check says beside findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// The check.
    pub check: &'static str,
    /// What was seen, or why nothing was.
    pub told: String,
}

/// What all checks say.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// What is wrong, the surest first.
    pub findings: Vec<Found>,
    /// What could not be looked at, and why.
    pub unseen: Vec<Told>,
    /// What is as it should be.
    pub fine: Vec<Told>,
}

impl Report {
    /// Keeps what checks of some names say.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.findings.retain(|found| is_kept(found.rule.name));
        self.unseen.retain(|told| is_kept(told.check));
        self.fine.retain(|told| is_kept(told.check));
    }
}

/// Looks at a machine and judges what it sees.
#[must_use]
pub fn examine(system: &dyn System, question: Question) -> Report {
    judge(&Facts::gather(system, question))
}

/// Judges what was seen.
#[must_use]
pub fn judge(facts: &Facts) -> Report {
    let mut report = Report::default();
    for Check { rule, judge } in checks::all() {
        for outcome in judge(facts) {
            let told = |told| Told { check: rule.name, told };
            match outcome {
                Outcome::Found(finding) => report.findings.push(Found { rule, finding }),
                Outcome::Unseen(why) if report.unseen.contains(&told(why.clone())) => {}
                Outcome::Unseen(why) => report.unseen.push(told(why)),
                Outcome::Fine(what) => report.fine.push(told(what)),
            }
        }
    }
    report.findings.sort_by_key(|found| found.finding.sure);
    report
}

/// Returns the table of checks.
#[must_use]
pub fn rules() -> Vec<Rule> {
    checks::all().into_iter().map(|check| check.rule).collect()
}
