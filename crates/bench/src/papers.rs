//! What the papers measured, set beside what was measured here.
//!
//! Only ratios are comparable: the machines lie twenty years apart. So each line is a ratio of two
//! rates, of two response times or of two processor shares, and "here" is the same ratio from the
//! targets that play the same parts. Where a part is missing, or only one round was run, there is no
//! line.

use serde::Serialize;

use crate::results::{Case, WorkloadResults};
use crate::summary::Row;
use crate::target::Role;

/// One line: the same figure in the paper and here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperLine {
    /// What is compared.
    pub what: String,
    /// The paper's figure.
    pub paper: f64,
    /// The figure here.
    pub here: f64,
    /// The case it was taken from.
    pub case: String,
    /// The targets it was taken from.
    pub targets: String,
}

/// A paper's table or figure, and the lines that can be set beside it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paper {
    /// Where the figures stand.
    pub source: &'static str,
    /// What it says, in its own numbers.
    pub says: &'static str,
    /// The figures.
    pub lines: Vec<PaperLine>,
}

/// What a claim compares.
#[derive(Clone, Copy)]
enum Figure {
    Rate,
    /// The mean response time.
    Response,
    /// Busy processors.
    Busy,
}

/// A ratio that a paper states: a figure of the first role over that of the second, in the cases
/// that `case` accepts.
struct Claim {
    figure: Figure,
    what: &'static str,
    of: &'static [Role],
    over: &'static [Role],
    paper: f64,
    case: Cases,
}

#[derive(Clone, Copy)]
enum Cases {
    /// Those with no word before the number of clients: 8 KiB pages, files in one piece.
    Plain,
    /// Only the last: the most threads, the smallest cache.
    Last,
    /// Those whose curve position is this.
    At(f64),
    /// Those whose name is this, or begins with it.
    Named(&'static str),
}

const BUFFERED: &[Role] = &[Role::Buffered];
const RAW: &[Role] = &[Role::Raw];
/// Direct I/O as the papers had it is the whole-file lock; where that was not measured, the
/// kernel's own direct I/O takes its place.
const DIRECT: &[Role] = &[Role::DirectWhole, Role::Direct];
const CONCURRENT: &[Role] = &[Role::Concurrent];

const fn claim(
    what: &'static str,
    of: &'static [Role],
    over: &'static [Role],
    paper: f64,
    case: Cases,
) -> Claim {
    Claim { figure: Figure::Rate, what, of, over, paper, case }
}

impl Claim {
    const fn by(self, figure: Figure) -> Self {
        Self { figure, ..self }
    }
}

/// Returns what the papers say about a workload, beside what `rows` say.
#[must_use]
pub fn paper(workload: &WorkloadResults, rows: &[Row]) -> Option<Paper> {
    if workload.name == "copy" {
        return Some(copy_paper(workload, rows));
    }
    let (source, says, claims) = said_of(&workload.name)?;
    Some(Paper {
        source,
        says,
        lines: claims.iter().flat_map(|claim| lines(workload, rows, claim)).collect(),
    })
}

/// Returns the source that speaks of a workload, what it says, and what can be held against it.
fn said_of(workload: &str) -> Option<(&'static str, &'static str, &'static [Claim])> {
    Some(match workload {
        "increments" => (
            "JFS2 paper, table 2",
            "1 B over 1 MB: 1.59 s cached, 185.27 s direct (1,036 and 4,194,320 KB read); 4 KiB \
             over 1 GB: 21.18 and 104.31 s; 10 MB over 1 GB: 20.59 and 6.81 s",
            INCREMENTS,
        ),
        "oltp" => (
            "JFS2 paper, table 5",
            "raw 710.19 tps at 0.06 s, direct 219.69 at 0.12 s, concurrent 652.12 at 0.07 s",
            OLTP,
        ),
        "mixed" => (
            "NFS paper, figures 8 to 10",
            "what its program sio did is the workload sio; this one has no locks, and queues too",
            &[],
        ),
        "sio" => (
            "NFS paper, figures 8 to 13",
            "at 100 % writes concurrent gives over 200 % more than buffered or direct; KB/s (figure \
             9), rates scaled by processor (10), user, system and idle time (11 to 13)",
            SIO,
        ),
        "pipe" => ("the papers' gzip through pipes", "ends of 8 MiB give 16 % and 5 % more", &[]),
        "sequential" => (
            "AIX guide, eight disks",
            "cached 17,892, direct 30,062, raw 32,165 KB/s at 98.3, 54.4 and 24.5 % CPU",
            SEQUENTIAL,
        ),
        "cached" => (
            "VERITAS Quick I/O paper, figure 1",
            "Cached Quick I/O reaches up to 2.8 times raw and 5.8 to 7 times UFS direct",
            CACHED,
        ),
        "writers" => {
            ("NFS paper, figure 7", "concurrent is first, buffered near it, direct last", &[])
        }
        "redo" => (
            "JFS2 paper, section 3.2",
            "a log on a file system with 512-byte blocks costs 4 %, with larger blocks much more",
            REDO,
        ),
        _ => return None,
    })
}

const INCREMENTS: &[Claim] = &[
    claim("cached / direct, 1 B steps", BUFFERED, DIRECT, 185.27 / 1.59, Cases::At(1.0)),
    claim("cached / direct, 4 KiB steps", BUFFERED, DIRECT, 104.31 / 21.18, Cases::At(4096.0)),
    claim("cached / direct, 10 MiB steps", BUFFERED, DIRECT, 6.81 / 20.59, Cases::At(10_485_760.0)),
];
const OLTP: &[Claim] = &[
    claim("concurrent / raw", CONCURRENT, RAW, 652.12 / 710.19, Cases::Plain),
    claim("direct / raw", DIRECT, RAW, 219.69 / 710.19, Cases::Plain),
    claim("concurrent / direct", CONCURRENT, DIRECT, 652.12 / 219.69, Cases::Plain),
    claim("response time, concurrent / raw", CONCURRENT, RAW, 0.07 / 0.06, Cases::Plain)
        .by(Figure::Response),
    claim("response time, direct / raw", DIRECT, RAW, 0.12 / 0.06, Cases::Plain)
        .by(Figure::Response),
];
const SIO: &[Claim] = &[
    claim("concurrent / direct, 100 % writes", CONCURRENT, DIRECT, 3.0, Cases::At(100.0)),
    claim("concurrent / buffered, 100 % writes", CONCURRENT, BUFFERED, 3.0, Cases::At(100.0)),
];
const SEQUENTIAL: &[Claim] = &[
    claim("cached / raw", BUFFERED, RAW, 17_892.0 / 32_165.0, Cases::Last),
    claim("direct / raw", UNCACHED, RAW, 30_062.0 / 32_165.0, Cases::Last),
    claim("CPU, cached / raw", BUFFERED, RAW, 98.3 / 24.5, Cases::Last).by(Figure::Busy),
    claim("CPU, direct / raw", UNCACHED, RAW, 54.4 / 24.5, Cases::Last).by(Figure::Busy),
];
const UNCACHED: &[Role] = &[Role::Direct, Role::Concurrent];
const CACHED: &[Claim] = &[
    claim("concurrent+cache / raw", &[Role::ConcurrentCache], RAW, 2.8, Cases::Last),
    claim("concurrent+cache / direct", &[Role::ConcurrentCache], DIRECT, 5.8, Cases::Last),
];
const REDO: &[Claim] = &[claim(
    "concurrent / raw, written log",
    CONCURRENT,
    RAW,
    0.96,
    Cases::Named("written, 512 B, 1 committer"),
)];

fn lines(workload: &WorkloadResults, rows: &[Row], claim: &Claim) -> Vec<PaperLine> {
    let cases = workload.cases.iter().enumerate().filter(|(i, case)| match claim.case {
        Cases::Plain => !case.name.contains(','),
        Cases::Last => i + 1 == workload.cases.len(),
        Cases::At(x) => case.x == x,
        Cases::Named(name) => case.name.starts_with(name),
    });
    cases
        .flat_map(|(i, case)| {
            pairs(workload, rows, i, claim)
                .into_iter()
                .filter_map(|(of, over)| line(claim, case, of, over))
        })
        .collect()
}

fn line(claim: &Claim, case: &Case, of: &Row, over: &Row) -> Option<PaperLine> {
    let here = match claim.figure {
        Figure::Rate => of.ratio.median / over.ratio.median,
        Figure::Response => of.response_us?[0] / over.response_us?[0],
        Figure::Busy => of.busy_percent / over.busy_percent,
    };
    let targets = format!("{} / {}", of.label, over.label);
    here.is_finite().then(|| PaperLine {
        what: claim.what.into(),
        paper: claim.paper,
        here,
        case: case.name.clone(),
        targets,
    })
}

/// Pairs the targets of both parts: each kind of target with its own kind, or with the raw device.
fn pairs<'a>(
    workload: &WorkloadResults,
    rows: &'a [Row],
    case: usize,
    claim: &Claim,
) -> Vec<(&'a Row, &'a Row)> {
    let kind = |row: &Row| workload.targets[row.target].kind.as_str();
    let playing = |roles: &[Role]| -> Vec<&'a Row> {
        let with = |role: &Role| {
            rows.iter().filter(|row| row.case == case && row.role == *role).collect::<Vec<_>>()
        };
        roles.iter().map(with).find(|found| !found.is_empty()).unwrap_or_default()
    };
    let over = playing(claim.over);
    let partner = |of: &Row| {
        let own_kind = over.iter().find(|row| kind(row) == kind(of) || kind(row) == "raw");
        // A path's partner is another path; a volume stands beside whatever there is.
        own_kind.or_else(|| over.first().filter(|_| kind(of) != "path")).copied()
    };
    playing(claim.of).into_iter().filter_map(|of| Some((of, partner(of)?))).collect()
}

/// The copy's ratio is between two cases of one target, not between two targets of one case.
fn copy_paper(workload: &WorkloadResults, rows: &[Row]) -> Paper {
    let at = |bytes: f64| workload.cases.iter().position(|case| case.x == bytes);
    let mut lines = Vec::new();
    if let (Some(small), Some(large)) = (at(4096.0), at(8_388_608.0)) {
        for row in rows.iter().filter(|row| row.case == small && row.role != Role::Buffered) {
            let Some(other) =
                rows.iter().find(|other| other.case == large && other.target == row.target)
            else {
                continue;
            };
            lines.push(PaperLine {
                what: "8 MiB / 4 KiB requests".into(),
                paper: 521.0 / 23.9,
                here: other.rate.median / row.rate.median,
                case: "direct".into(),
                targets: row.label.clone(),
            });
        }
    }
    Paper {
        source: "the papers' copy of 1 GB",
        says: "8 min 41 s with 4 KiB direct requests, 23.9 s with 8 MiB",
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::summarize;
    use crate::summary::tests::results;

    #[test]
    fn a_ratio_of_roles_stands_beside_the_papers() {
        let mut results =
            results(&[("raw", &[100.0, 100.0]), ("whole", &[40.0, 50.0]), ("conc", &[99.0, 97.0])]);
        let workload = &mut results.workloads[0];
        workload.name = "oltp".into();
        workload.targets[1].role = Role::DirectWhole;
        workload.targets[2].role = Role::Concurrent;
        let paper = paper(workload, &summarize(workload)).unwrap();
        assert_eq!(paper.lines.len(), 3);
        assert!(
            (paper.lines[0].here - 0.98).abs() < 1e-9
                && (paper.lines[0].paper - 0.918).abs() < 1e-3
        );
        assert!((paper.lines[2].here - 0.98 / 0.45).abs() < 1e-9);
    }

    #[test]
    fn without_the_parts_there_is_no_line() {
        let mut results = results(&[("raw", &[100.0])]);
        results.workloads[0].name = "oltp".into();
        let workload = &results.workloads[0];
        assert!(paper(workload, &summarize(workload)).unwrap().lines.is_empty());
        results.workloads[0].name = "unknown".into();
        let workload = &results.workloads[0];
        assert!(paper(workload, &summarize(workload)).is_none());
    }
}
