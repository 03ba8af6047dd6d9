//! The papers' tables and figures, each with the command that makes its counterpart here, the
//! paper's number, ours, and why they differ: `docs/papers.md` is made of this.
//!
//! Only what is known of the papers stands here. Where a paper has a figure whose numbers are not
//! known, it says so.

use std::fmt::Write;

use crate::papers::paper;
use crate::results::{Results, WorkloadResults};
use crate::summary::{Row, summarize};
use crate::units::{format_micros, format_number};

/// A paper's table or figure and its counterpart here.
#[derive(Debug, Clone, Copy)]
pub struct Counterpart {
    /// The paper.
    pub paper: &'static str,
    /// The table, figure or section.
    pub item: &'static str,
    /// The command that makes the counterpart, as it is typed; devices and directories are
    /// examples.
    pub command: &'static str,
    /// The paper's number.
    pub says: &'static str,
    /// Why ours differs.
    pub differs: &'static str,
    /// The workload that it comes from.
    pub workload: &'static str,
    ours: Ours,
}

/// What is taken from the results.
#[derive(Debug, Clone, Copy)]
enum Ours {
    /// The ratios that the papers state, where their name begins with this.
    Ratios(&'static str),
    /// A figure of every target in the last case.
    Each(Cell),
    /// For each target its rates by the first word of the case.
    ByFirstWord,
    /// For each target the rate of scattered files over that of files in one piece.
    Scattered,
    /// The rate with a log on a device of its own over that without, by case.
    OwnLog,
    /// For each target the rate of the largest requests over that of the smallest.
    Requests,
}

/// A figure of a row.
#[derive(Debug, Clone, Copy)]
enum Cell {
    Response,
    KibPerS,
    PerProcessor,
    Shares,
    Rate,
}

const JFS2: &str = "JFS2 (database I/O)";
const NFS: &str = "NFS (concurrent I/O)";
const AIX: &str = "AIX guide";
const VERITAS: &str = "VERITAS Quick I/O";
const COPIES: &str = "The papers' copies";
const NOT_STATED: &str = "Not stated here.";
const AGE: &str = "The machines lie twenty years apart: ours waits less for its device, so what a \
                   lock costs weighs differently.";
const OLTP: &str = "bedplate bench oltp -t raw=raw:/dev/sdx --destroy=/dev/sdx -t volume:/dev/sdy -t \
                    whole=volume:/dev/sdy,mode=direct,inode-lock=whole";
const SIO: &str = "bedplate bench sio -t raw=raw:/dev/sdx --destroy=/dev/sdx -t volume:/dev/sdy -t \
                   whole=volume:/dev/sdy,mode=direct,inode-lock=whole -t \
                   buffered=path:/mnt/xfs,buffered";
const SEQUENTIAL: &str = "bedplate bench sequential -t raw:/dev/sda+/dev/sdb --destroy=/dev/sda \
                          --destroy=/dev/sdb -t volume:/dev/sdc+/dev/sdd,mode=direct -t \
                          cached=volume:/dev/sdc+/dev/sdd,mode=cached --streams 1,2,4,8";

const fn entry(
    paper: &'static str,
    item: &'static str,
    command: &'static str,
    (says, differs): (&'static str, &'static str),
    (workload, ours): (&'static str, Ours),
) -> Counterpart {
    Counterpart { paper, item, command, says, differs, workload, ours }
}

const JFS2_ENTRIES: [Counterpart; 4] = [
    entry(
        JFS2,
        "table 2",
        "bedplate bench increments -t cached=path:/mnt/xfs,buffered -t direct=path:/mnt/xfs \
         --steps 1:1M,4K:1G,10M:1G",
        (
            "1 B over 1 MB: 1.59 s cached, 185.27 s direct; 4 KiB over 1 GB: 21.18 and 104.31 s; 10 \
             MB over 1 GB: 20.59 and 6.81 s.",
            "A byte past the cache costs a request of a sector in both; today's devices answer it a \
             thousand times sooner.",
        ),
        ("increments", Ours::Ratios("cached / direct")),
    ),
    entry(
        JFS2,
        "table 5, transactions",
        OLTP,
        ("raw 710.19, direct 219.69, concurrent 652.12 tps.", AGE),
        ("oltp", Ours::Ratios("c")),
    ),
    entry(
        JFS2,
        "table 5, response times",
        OLTP,
        (
            "raw 0.06, direct 0.12, concurrent 0.07 s.",
            "Ours are means in the order of milliseconds: clients have no time to think.",
        ),
        ("oltp", Ours::Each(Cell::Response)),
    ),
    entry(
        JFS2,
        "section 3.2",
        "bedplate bench redo -t raw=raw:/dev/sdx --destroy=/dev/sdx -t volume:/dev/sdy --append \
         512,4K --state written",
        (
            "A log on blocks of 512 bytes costs 4 %, on larger blocks much more.",
            "A volume writes sectors whatever the size of its blocks, so there is no larger price.",
        ),
        ("redo", Ours::Ratios("concurrent / raw")),
    ),
];

const NFS_ENTRIES: [Counterpart; 5] = [
    entry(
        NFS,
        "figure 7",
        "bedplate bench writers -t volume:/dev/sdy -t \
         whole=volume:/dev/sdy,mode=direct,inode-lock=whole -t buffered=path:/mnt/xfs,buffered",
        (
            "Concurrent is first, buffered near it, direct last; the numbers are not stated here.",
            AGE,
        ),
        ("writers", Ours::Each(Cell::Rate)),
    ),
    entry(
        NFS,
        "figure 8",
        SIO,
        (
            "At 100 % writes concurrent gives over 200 % more than buffered or direct: 3.00.",
            "Without a network the buffered files answer from memory until they are written back.",
        ),
        ("sio", Ours::Ratios("concurrent /")),
    ),
    entry(
        NFS,
        "figure 9, KB/s",
        SIO,
        (NOT_STATED, "Ours is in KiB a second, of the case named."),
        ("sio", Ours::Each(Cell::KibPerS)),
    ),
    entry(
        NFS,
        "figure 10, scaled by processor",
        SIO,
        (NOT_STATED, "Ours is the rate for each processor that was busy, kernel threads included."),
        ("sio", Ours::Each(Cell::PerProcessor)),
    ),
    entry(
        NFS,
        "figures 11 to 13, user, system and idle",
        SIO,
        (NOT_STATED, "Ours are user, system, idle and waiting in percent; series in the report."),
        ("sio", Ours::Each(Cell::Shares)),
    ),
];

const AIX_ENTRIES: [Counterpart; 3] = [
    entry(
        AIX,
        "sequential reads, eight disks",
        SEQUENTIAL,
        (
            "cached 17,892, direct 30,062, raw 32,165 KB/s.",
            "One modern device is faster than memory was then, so the copy into a cache costs more.",
        ),
        ("sequential", Ours::Each(Cell::KibPerS)),
    ),
    entry(
        AIX,
        "sequential reads, %CPU",
        SEQUENTIAL,
        (
            "98.3 % cached, 54.4 % direct, 24.5 % raw.",
            "Ours are shares of all processors, of which a stream keeps one busy.",
        ),
        ("sequential", Ours::Each(Cell::Shares)),
    ),
    entry(
        AIX,
        "sequential reads, fewer disks",
        SEQUENTIAL,
        (NOT_STATED, "Ours has a row for each number of streams, one to a device."),
        ("sequential", Ours::Ratios("")),
    ),
];

const VERITAS_ENTRIES: [Counterpart; 4] = [
    entry(
        VERITAS,
        "figure 1, Cached Quick I/O",
        "bedplate bench cached -t raw=raw:/dev/sdx --destroy=/dev/sdx -t \
         volume:/dev/sdy,mode=concurrent+cache -t volume:/dev/sdy,mode=direct",
        (
            "Up to 2.8 times raw, and 5.8 to 7 times UFS direct.",
            "Hits are worth what a read of the device costs, which is less today.",
        ),
        ("cached", Ours::Ratios("concurrent+cache /")),
    ),
    entry(
        VERITAS,
        "size of a page",
        "bedplate bench oltp --page 2K,4K,8K -t raw=raw:/dev/sdx --destroy=/dev/sdx -t \
         volume:/dev/sdy,block=2K -t buffered=path:/mnt/xfs,buffered",
        (
            "2 KiB is best with Quick I/O, 8 KiB with buffered files.",
            "A page below the page cache's 4 KiB is read before it is written there, past it not.",
        ),
        ("oltp", Ours::ByFirstWord),
    ),
    entry(
        VERITAS,
        "indirect extents",
        "bedplate bench oltp --layout contiguous,scattered -t volume:/dev/sdy -t \
         direct=path:/mnt/xfs",
        (
            "A file in many extents costs 5 to 8 %.",
            "Extent maps are in memory here, and most devices have no arms to move.",
        ),
        ("oltp", Ours::Scattered),
    ),
    entry(
        VERITAS,
        "QuickLog, checkpoints included",
        "bedplate bench oltp --checkpoints=0,4 -t volume:/dev/sdx -t \
         log=volume:/dev/sdy,log=/dev/sdz --destroy=/dev/sdz",
        (
            "A log on a device of its own gives 5 to 20 %.",
            "Transactions that overwrite files log nothing of the file system, so only checkpoints \
             and growth can gain.",
        ),
        ("oltp", Ours::OwnLog),
    ),
];

const COPY_ENTRIES: [Counterpart; 2] = [
    entry(
        COPIES,
        "1 GB, 4 KiB and 8 MiB direct requests",
        "bedplate bench copy -t direct=path:/mnt/xfs -t volume:/dev/sdy --requests 4K:1,8M:1",
        (
            "8 min 41 s with 4 KiB requests, 23.9 s with 8 MiB: 21.8 times as fast.",
            "A request costs microseconds here, and was a turn of a disk there.",
        ),
        ("copy", Ours::Ratios("8 MiB / 4 KiB")),
    ),
    entry(
        COPIES,
        "gzip with pipe ends of 8 MiB",
        "bedplate bench pipe --requests 4K,8M -t cached=path:/mnt/xfs,buffered -t \
         direct=path:/mnt/xfs -t volume:/dev/sdy",
        (
            "16 % and 5 % faster.",
            "The compressor is zstd at level 1, which leaves more of the time to the ends than gzip.",
        ),
        ("pipe", Ours::Requests),
    ),
];

/// Returns every table and figure that something is known of, by paper.
pub fn counterparts() -> impl Iterator<Item = &'static Counterpart> {
    JFS2_ENTRIES
        .iter()
        .chain(&NFS_ENTRIES)
        .chain(&AIX_ENTRIES)
        .chain(&VERITAS_ENTRIES)
        .chain(&COPY_ENTRIES)
}

impl Counterpart {
    /// Returns what the results say; empty where they have nothing to say.
    #[must_use]
    pub fn ours(&self, runs: &[Results]) -> Vec<String> {
        let workloads = runs.iter().flat_map(|run| &run.workloads);
        workloads
            .filter(|workload| workload.name == self.workload)
            .flat_map(|workload| self.ours.of(workload, &summarize(workload)))
            .collect()
    }
}

impl Ours {
    fn of(self, workload: &WorkloadResults, rows: &[Row]) -> Vec<String> {
        match self {
            Self::Ratios(what) => ratios(workload, rows, what),
            Self::Each(cell) => each(workload, rows, cell),
            Self::ByFirstWord => by_first_word(workload, rows),
            Self::Scattered => scattered(workload, rows),
            Self::OwnLog => own_log(workload, rows),
            Self::Requests => requests(workload, rows),
        }
    }
}

fn ratios(workload: &WorkloadResults, rows: &[Row], what: &str) -> Vec<String> {
    let lines = paper(workload, rows).map(|paper| paper.lines).unwrap_or_default();
    lines
        .iter()
        .filter(|line| line.what.starts_with(what))
        .map(|line| format!("{} {:.2} ({}, {})", line.what, line.here, line.targets, line.case))
        .collect()
}

/// The last case is the one with the most load.
fn each(workload: &WorkloadResults, rows: &[Row], cell: Cell) -> Vec<String> {
    let Some(case) = rows.iter().map(|row| row.case).max() else { return Vec::new() };
    let told = rows.iter().filter(|row| row.case == case).filter_map(|row| {
        let value = match cell {
            Cell::Response => format_micros(row.response_us?[0]),
            Cell::KibPerS => format!("{} KiB/s", format_number(row.kib_per_s)),
            Cell::PerProcessor => format_number(row.rate_per_busy_cpu),
            Cell::Shares => row.cpu_percent.map(|share| format!("{share:.0}")).join("/") + " %",
            Cell::Rate => format!("{} {}", format_number(row.rate.median), workload.unit),
        };
        Some(format!("{} {value}", row.label))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        told
    } else {
        vec![format!("{}: {}", workload.cases[case].name, told.join(", "))]
    }
}

/// Rates of one target, case by case, where cases are told apart by what stands before a comma.
fn by_first_word(workload: &WorkloadResults, rows: &[Row]) -> Vec<String> {
    let paged = |row: &&Row| workload.cases[row.case].name.contains(" pages, ");
    let of_target = |target: usize| {
        let rates = rows.iter().filter(paged).filter(|row| row.target == target).map(|row| {
            format!("{} {}", workload.cases[row.case].name, format_number(row.rate.median))
        });
        let rates: Vec<String> = rates.collect();
        let label = &workload.targets[target].label;
        (!rates.is_empty()).then(|| format!("{label}: {} {}", rates.join(", "), workload.unit))
    };
    (0..workload.targets.len()).filter_map(of_target).collect()
}

fn scattered(workload: &WorkloadResults, rows: &[Row]) -> Vec<String> {
    let case = |row: &Row| workload.cases[row.case].name.as_str();
    let pair = |row: &Row| {
        let name = case(row).replace("scattered", "contiguous");
        let whole = rows
            .iter()
            .find(|other| other.target == row.target && case(other) == name && name != case(row))?;
        let ratio = row.rate.median / whole.rate.median;
        Some(format!("{} {ratio:.2} ({})", row.label, case(row)))
    };
    rows.iter().filter_map(pair).collect()
}

fn own_log(workload: &WorkloadResults, rows: &[Row]) -> Vec<String> {
    let logged = |row: &Row| workload.targets[row.target].spec.contains(",log=");
    let pair = |row: &Row| {
        let volume = |other: &&Row| workload.targets[other.target].kind == "volume";
        let without = rows
            .iter()
            .filter(volume)
            .find(|other| other.case == row.case && other.role == row.role && !logged(other))?;
        let ratio = row.rate.median / without.rate.median;
        Some(format!(
            "{} / {} {ratio:.2} ({})",
            row.label, without.label, workload.cases[row.case].name
        ))
    };
    rows.iter().filter(|row| logged(row)).filter_map(pair).collect()
}

fn requests(workload: &WorkloadResults, rows: &[Row]) -> Vec<String> {
    let of_target = |target: usize| {
        let mut of = rows.iter().filter(|row| row.target == target);
        let first = of.next()?;
        let last = of.next_back()?;
        let [small, large] = [first, last].map(|row| workload.cases[row.case].name.as_str());
        let ratio = last.rate.median / first.rate.median;
        Some(format!("{} {ratio:.2} ({large} / {small})", first.label))
    };
    (0..workload.targets.len()).filter_map(of_target).collect()
}

/// Returns the table as Markdown, with what the results of these runs say.
#[must_use]
pub fn papers_markdown(runs: &[Results]) -> String {
    let mut text = String::from(
        "# The papers beside this software\n\nMade by `bedplate bench papers [REPORT…]`; not edited \
         by hand. Each table and figure of the papers this software starts from, the command that \
         makes its counterpart, the paper's number and ours. Devices and directories in the commands \
         are examples; a device that is named in `--destroy=` is overwritten. “Not stated here”: the \
         paper has the figure, and its numbers are not at hand. All our figures are in \
         [Measured results](results.md); how they are measured says [Measuring](guide/measuring.md).\n",
    );
    for run in runs {
        let machine = &run.machine;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\nOurs: {}, {} × {}, Linux {}.\n",
            run.started, machine.cpus, machine.cpu_model, machine.kernel
        );
    }
    text.push_str(
        "\n| paper | table or figure | command | the paper's number | ours | where they differ |\n| \
         --- | --- | --- | --- | --- | --- |\n",
    );
    for entry in counterparts() {
        let ours = entry.ours(runs);
        let ours = if ours.is_empty() { "not measured".into() } else { ours.join("; ") };
        let _ = writeln!(text, "{} {ours} | {} |", head(entry), entry.differs);
    }
    text
}

/// The cells of a row before ours.
fn head(entry: &Counterpart) -> String {
    format!("| {} | {} | `{}` | {} |", entry.paper, entry.item, entry.command, entry.says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Case;
    use crate::summary::tests::results;

    fn said(workload: &str, item: &str, run: &Results) -> String {
        let entry = counterparts()
            .find(|entry| entry.workload == workload && entry.item.starts_with(item))
            .unwrap();
        entry.ours(std::slice::from_ref(run)).join("; ")
    }

    #[test]
    fn the_page_has_every_table_and_figure() {
        let page = include_str!("../../../docs/papers.md");
        for entry in counterparts() {
            assert!(page.contains(&head(entry)), "'bedplate bench papers' says: {}", head(entry));
            assert!(entry.differs.ends_with('.') && entry.differs.matches(". ").count() == 0);
        }
        let empty = papers_markdown(&[]);
        assert_eq!(empty.matches("not measured").count(), counterparts().count());
        let cells = empty.lines().filter(|l| l.starts_with("| ")).map(|l| l.matches(" | ").count());
        assert!(cells.into_iter().all(|cells| cells == 5), "{empty}");
    }

    #[test]
    fn ours_comes_from_the_results() {
        let mut run = results(&[("plain", &[100.0, 100.0]), ("logged", &[110.0, 112.0])]);
        let workload = &mut run.workloads[0];
        workload.name = "oltp".into();
        workload.targets.iter_mut().for_each(|target| target.kind = "volume".into());
        workload.targets[1].spec = "volume:/dev/y,log=/dev/z".into();
        workload.cases[0].name = "8 KiB pages, contiguous, 16 clients".into();
        let other =
            Case { name: "8 KiB pages, scattered, 16 clients".into(), ..workload.cases[0].clone() };
        workload.cases.push(other);
        let mut again: Vec<_> = workload.records.clone();
        for record in &mut again {
            record.case = 1;
            record.measurement.rate *= 0.9;
        }
        workload.records.extend(again);
        assert_eq!(
            said("oltp", "QuickLog", &run).split("; ").next(),
            Some("logged / plain 1.11 (8 KiB pages, contiguous, 16 clients)")
        );
        assert!(said("oltp", "indirect", &run).starts_with("plain 0.90 (8 KiB pages, scattered"));
        assert!(said("oltp", "size of a page", &run).contains("16 clients 100, 8 KiB pages"));
        assert_eq!(said("sio", "figure 8", &run), "");
        run.workloads[0].name = "sio".into();
        assert!(said("sio", "figures 11", &run).contains("scattered, 16 clients: plain 0/0/0/0 %"));
        run.workloads[0].name = "pipe".into();
        assert!(said("pipe", "gzip", &run).starts_with("plain 0.90 (8 KiB pages, scattered"));
    }
}
