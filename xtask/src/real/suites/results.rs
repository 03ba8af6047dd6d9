//! What suites came to, side by side, and the differences that docs/proof.md names.

use std::collections::BTreeMap;
use std::fmt;

/// How one test of a suite ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The suite is content.
    Passed,
    /// The suite is not; the sentence is its own.
    Failed(String),
    /// The suite does not run it here; the reason is its own.
    Skipped(String),
}

impl Verdict {
    /// Returns the verdict's name.
    fn name(&self) -> &'static str {
        match self {
            Self::Passed => "passes",
            Self::Failed(_) => "fails",
            Self::Skipped(reason) if reason.is_empty() => "did not run",
            Self::Skipped(_) => "is skipped",
        }
    }

    /// Returns what the suite says about it; nothing of a test that passed.
    pub fn reason(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(reason) | Self::Skipped(reason) => reason,
        }
    }
}

/// The verdicts of one suite on one file system, by test.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Results(pub BTreeMap<String, Verdict>);

impl Results {
    /// Adds the verdict on a test.
    pub fn add(&mut self, test: impl Into<String>, verdict: Verdict) {
        self.0.insert(test.into(), verdict);
    }

    /// Adds the check of the volume after a suite: it counts where it found something.
    pub fn add_check(&mut self, checked: anyhow::Result<()>) {
        if let Err(error) = checked {
            self.add("volume check", Verdict::Failed(format!("{error:#}")));
        }
    }

    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.0.values().filter(|verdict| wanted(verdict)).count()
    }
}

/// The counts: passed, failed, skipped.
impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (
            self.count(|verdict| *verdict == Verdict::Passed),
            self.count(|verdict| matches!(verdict, Verdict::Failed(_))),
            self.count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        );
        f.pad(&format!("{}/{}/{}", counts.0, counts.1, counts.2))
    }
}

/// A test that ends otherwise on the mount than on XFS.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The test.
    pub test: &'a str,
    /// What XFS came to.
    pub there: &'a Verdict,
    /// What the mount came to.
    pub here: &'a Verdict,
}

impl Difference<'_> {
    /// Tells whether the mount fails where XFS does not.
    pub fn is_failure(&self) -> bool {
        matches!(self.here, Verdict::Failed(_))
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason =
            if self.here.reason().is_empty() { self.there.reason() } else { self.here.reason() };
        write!(f, "{} {}, on XFS it {}: {reason}", self.test, self.here.name(), self.there.name())
    }
}

/// What XFS came to where it has no such test.
static ABSENT: Verdict = Verdict::Skipped(String::new());

/// Returns the tests that ended otherwise, those among them that failed here and are not there at
/// all.
pub fn differences<'a>(there: &'a Results, here: &'a Results) -> Vec<Difference<'a>> {
    let all = here.0.iter().map(|(test, here)| Difference {
        test,
        there: there.0.get(test).unwrap_or(&ABSENT),
        here,
    });
    all.filter(|difference| {
        std::mem::discriminant(difference.there) != std::mem::discriminant(difference.here)
    })
    .filter(|difference| difference.is_failure() || *difference.there != ABSENT)
    .collect()
}

/// The heading in docs/proof.md under which the differences stand.
const HEADING: &str = "### Where the mount differs from XFS";

/// The differences that docs/proof.md names, each with its reason: by suite and test.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named(BTreeMap<(String, String), String>);

impl Named {
    /// Reads the rows `| suite | test, test | reason |` below the heading.
    pub fn parse(document: &str) -> Self {
        let section = document.split_once(HEADING).map_or("", |(_, rest)| rest);
        let rows = section
            .lines()
            .skip(1)
            .take_while(|line| !line.starts_with('#'))
            .filter(|line| line.starts_with('|'));
        let mut named = BTreeMap::new();
        for row in rows {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [suite, tests, reason] = cells[..] else { continue };
            for test in tests.split(',') {
                named.insert(
                    (suite.to_owned(), test.trim().trim_matches('`').to_owned()),
                    reason.to_owned(),
                );
            }
        }
        Self(named)
    }

    /// Returns the reason of a difference, if the document names it.
    pub fn reason(&self, suite: &str, test: &str) -> Option<&str> {
        self.0.get(&(suite.to_owned(), test.to_owned())).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(of: &[(&str, Verdict)]) -> Results {
        Results(of.iter().map(|(test, verdict)| ((*test).to_owned(), verdict.clone())).collect())
    }

    #[test]
    fn differences_are_tests_that_ended_otherwise_or_failed_here_alone() {
        let bad = || Verdict::Failed("wrong".to_owned());
        let skip = || Verdict::Skipped("no quota".to_owned());
        let there = results(&[
            ("a", Verdict::Passed),
            ("b", bad()),
            ("c", Verdict::Passed),
            ("d", Verdict::Passed),
            ("f", bad()),
        ]);
        let here = [
            ("a", Verdict::Passed),
            ("b", Verdict::Failed("else".to_owned())),
            ("c", bad()),
            ("d", skip()),
            ("e", bad()),
            ("g", Verdict::Passed),
        ];
        let here = results(&here);
        let found = differences(&there, &here);
        assert_eq!(
            found.iter().map(|one| (one.test, one.is_failure())).collect::<Vec<_>>(),
            vec![("c", true), ("d", false), ("e", true)]
        );
        assert_eq!(found[0].to_string(), "c fails, on XFS it passes: wrong");
        assert_eq!(found[2].to_string(), "e fails, on XFS it did not run: wrong");
        assert_eq!((there.to_string(), here.to_string()), ("3/2/0".to_owned(), "2/3/1".to_owned()));
    }

    #[test]
    fn a_check_counts_where_it_found_something() {
        let mut results = results(&[("a", Verdict::Passed)]);
        results.add_check(Ok(()));
        assert_eq!(results.to_string(), "1/0/0");
        results.add_check(Err(anyhow::anyhow!("lost")));
        assert_eq!(results.to_string(), "1/1/0");
    }

    #[test]
    fn the_document_names_differences_below_its_heading_alone() {
        let text = format!(
            "| fstests | generic/1 | not here |\n\n{HEADING}\n\nWords.\n\n| suite | tests | reason \
             |\n| --- | --- | --- |\n| fstests | `generic/2`, generic/3 | no quota |\n\n## Next\n| \
             fstests | generic/4 | not here |\n"
        );
        let named = Named::parse(&text);
        assert_eq!(named.reason("fstests", "generic/2"), Some("no quota"));
        assert_eq!(named.reason("fstests", "generic/3"), Some("no quota"));
        assert_eq!(
            (
                named.reason("fstests", "generic/1"),
                named.reason("fstests", "generic/4"),
                named.reason("ltp", "generic/2")
            ),
            (None, None, None)
        );
    }
}
