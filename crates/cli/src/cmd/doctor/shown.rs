//! What was found, for people and as a document.

use std::fmt;

use bedplate_doctor::{Fixed, Found, Mend, Place, Report, Rule, Setting, Sure, Told};
use serde::Serialize;

use super::Arguments;
use crate::render::text::{self, Name, count};

/// How wide what is told becomes.
const COLUMNS: usize = 100;

/// What the command tells.
#[derive(Serialize)]
pub struct Examined {
    place: Name,
    findings: Vec<Found>,
    unseen: Vec<Told>,
    /// Only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    fine: Option<Vec<Told>>,
    fine_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<Vec<Fix>>,
    #[serde(skip)]
    dry_run: bool,
}

impl Examined {
    /// Puts it together.
    pub fn new(
        place: &Place,
        report: Report,
        fix: Option<Vec<Fix>>,
        arguments: &Arguments,
    ) -> Self {
        let (Place::Directory(path) | Place::Device(path)) = place;
        let Report { findings, unseen, fine } = report;
        Self {
            place: path.clone().into(),
            findings,
            unseen,
            fine_count: fine.len(),
            fine: arguments.all.then_some(fine),
            fix,
            dry_run: arguments.dry_run,
        }
    }
}

/// What mends a finding, and what was done of it.
#[derive(Serialize)]
pub struct Fix {
    commands: Vec<String>,
    /// They are left to be run by hand.
    by_hand: bool,
    /// They were run, all of them.
    done: bool,
    /// Why one was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// What takes them back.
    undo: Vec<String>,
    /// How they are kept over a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<String>,
}

impl Fix {
    /// A command that is left to people.
    pub fn by_hand(command: &str) -> Self {
        Self {
            commands: vec![command.to_owned()],
            by_hand: true,
            done: false,
            refused: None,
            undo: Vec::new(),
            keep: None,
        }
    }

    /// Settings, and what became of those that were written.
    pub fn settings(mend: &Mend, undo: &[Setting], keep: &str, fixed: &[Fixed]) -> Self {
        let refused = fixed.iter().find_map(|fixed| {
            let why = fixed.refused.as_ref()?;
            Some(format!("cannot write {}: {why}", fixed.setting.path.display()))
        });
        // In a dry run it is told what would take them back.
        let wrote = fixed.iter().any(|fixed| fixed.refused.is_none()) || fixed.is_empty();
        Self {
            commands: mend.commands(),
            by_hand: false,
            done: !fixed.is_empty() && refused.is_none(),
            refused,
            // Of what was refused there is nothing to take back.
            undo: if wrote { undo.iter().map(Setting::command).collect() } else { Vec::new() },
            keep: wrote.then(|| keep.to_owned()),
        }
    }
}

fn sure(sure: Sure) -> &'static str {
    match sure {
        Sure::Certain => "certain",
        Sure::Likely => "likely",
        Sure::Possible => "possible",
    }
}

/// Writes a line with its label; one that is long goes on below itself.
fn line(f: &mut fmt::Formatter<'_>, label: &str, told: &str) -> fmt::Result {
    let wrapped = text::wrapped(&text::one_line(told), 12, COLUMNS);
    writeln!(f, "  {label:<10}{}", wrapped.trim_start())
}

/// Writes a command, which stays whole.
fn command(f: &mut fmt::Formatter<'_>, label: &str, command: &str) -> fmt::Result {
    writeln!(f, "  {label:<10}{}", text::one_line(command))
}

impl Examined {
    fn finding(&self, f: &mut fmt::Formatter<'_>, at: usize) -> fmt::Result {
        let Found { rule: Rule { name, source, .. }, finding } = &self.findings[at];
        writeln!(f, "{name} ({}): {}", sure(finding.sure), text::one_line(&finding.at))?;
        line(f, "measured", &finding.measured)?;
        line(f, "costs", &finding.costs)?;
        match self.fix.as_ref().and_then(|fix| fix.get(at)) {
            Some(fix) => self.fix(f, fix)?,
            None => {
                for mend in finding.mend.commands() {
                    command(f, "mend", &mend)?;
                }
            }
        }
        line(f, "source", source)?;
        writeln!(f)
    }

    fn fix(&self, f: &mut fmt::Formatter<'_>, fix: &Fix) -> fmt::Result {
        let label = match (fix.by_hand, self.dry_run, fix.done) {
            (true, ..) => "by hand",
            (_, true, _) => "would run",
            (_, _, true) => "ran",
            _ => "failed",
        };
        for told in &fix.commands {
            command(f, label, told)?;
        }
        if let Some(why) = &fix.refused {
            line(f, "why", why)?;
        }
        for told in &fix.undo {
            command(f, "undo", told)?;
        }
        fix.keep.as_ref().map_or(Ok(()), |keep| line(f, "to keep", keep))
    }
}

impl fmt::Display for Examined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}, {} as they should be, {} not seen\n",
            self.place,
            count(self.findings.len() as u64, "finding"),
            self.fine_count,
            self.unseen.len()
        )?;
        for at in 0..self.findings.len() {
            self.finding(f, at)?;
        }
        for of_one in self.unseen.chunk_by(|one, next| one.told == next.told) {
            let checks: Vec<&str> = of_one.iter().map(|told| told.check).collect();
            line(f, "not seen", &format!("{}: {}", checks.join(", "), of_one[0].told))?;
        }
        for Told { check, told } in self.fine.iter().flatten() {
            line(f, "fine", &format!("{check}: {told}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_told_how_to_take_back() {
        let mend = Mend::setting("/proc/sys/vm/swappiness", &10, &60);
        let Mend::Settings { set, undo, keep } = &mend else { panic!("it is a setting") };
        let fixed = |refused: Option<&str>| {
            let refused = refused.map(str::to_owned);
            Fix::settings(&mend, undo, keep, &[Fixed { setting: set[0].clone(), refused }])
        };
        let done = fixed(None);
        assert!(done.done && done.undo == ["echo 60 > /proc/sys/vm/swappiness"]);
        let refused = fixed(Some("Permission denied"));
        assert!(!refused.done && refused.undo.is_empty() && refused.keep.is_none());
        let why = "cannot write /proc/sys/vm/swappiness: Permission denied";
        assert_eq!(refused.refused.as_deref(), Some(why));
        let dry = Fix::settings(&mend, undo, keep, &[]);
        assert!(!dry.done && dry.undo.len() == 1);
    }
}
