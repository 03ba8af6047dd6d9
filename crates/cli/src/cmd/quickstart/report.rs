//! The small table at the end of the tour, and what to type next.

use std::fmt;
use std::path::PathBuf;

use bedplate::{IoMode, format_duration, format_size};
use bedplate_bench::{WorkloadResults, format_number, summarize};
use serde::Serialize;

use super::{Arguments, PAGE_BYTES};
use crate::render::text;

/// What one way of using a volume reached, mode by mode; the raw device first.
pub struct Column {
    engine: String,
    figures: Vec<(String, Figure)>,
}

/// The median rate, and the median of the ratios to the raw device in the same round.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figure {
    iops: f64,
    ratio: f64,
}

impl Column {
    /// Takes the medians of what was measured.
    pub fn new(engine: String, measured: &WorkloadResults) -> Self {
        let figures = summarize(measured)
            .into_iter()
            .map(|row| (row.label, Figure { iops: row.rate.median, ratio: row.ratio.median }));
        Self { engine, figures: figures.collect() }
    }

    fn figure(&self, label: &str) -> Option<Figure> {
        self.figures.iter().find(|(found, _)| found == label).map(|(_, figure)| *figure)
    }
}

/// The result of the tour.
#[derive(Serialize)]
pub struct Report {
    page_bytes: u64,
    file_bytes: u64,
    threads: u64,
    rounds: u64,
    time_ms: u64,
    engine: String,
    rows: Vec<Row>,
    /// Why nothing was mounted.
    no_mount: Option<String>,
    /// The image, where it was kept.
    kept: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    target: String,
    library: Option<Figure>,
    mount: Option<Figure>,
}

impl Report {
    /// Puts both columns side by side.
    pub fn new(
        file_bytes: u64,
        arguments: &Arguments,
        library: &Column,
        mount: Option<&Column>,
        no_mount: Option<String>,
        kept: Option<PathBuf>,
    ) -> Self {
        let targets = std::iter::once("raw").chain(IoMode::ALL.map(IoMode::name));
        let rows = targets.map(|target| Row {
            target: target.to_owned(),
            library: library.figure(target),
            mount: mount.and_then(|mount| mount.figure(target)),
        });
        Self {
            page_bytes: PAGE_BYTES,
            file_bytes,
            threads: arguments.threads,
            rounds: arguments.rounds,
            time_ms: u64::try_from(arguments.time.as_millis()).unwrap_or(u64::MAX),
            engine: library.engine.clone(),
            rows: rows.collect(),
            no_mount,
            kept,
        }
    }

    fn table(&self) -> String {
        let cells = |figure: Option<Figure>| match figure {
            Some(figure) => [format_number(figure.iops), format!("{:.2}", figure.ratio)],
            None => ["-".to_owned(), "-".to_owned()],
        };
        let head = ["", "library IOPS", "ratio", "mount IOPS", "ratio"].map(str::to_owned).to_vec();
        let rows = self.rows.iter().map(|row| {
            let name =
                if row.target == "raw" { "raw device".to_owned() } else { row.target.clone() };
            std::iter::once(name).chain(cells(row.library)).chain(cells(row.mount)).collect()
        });
        let columns = if self.no_mount.is_some() { 3 } else { 5 };
        let rows = std::iter::once(head)
            .chain(rows)
            .map(|row: Vec<String>| row.into_iter().take(columns).collect());
        text::table(&rows.collect::<Vec<Vec<String>>>(), &[1, 2, 3, 4])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (page, file) = (format_size(self.page_bytes), format_size(self.file_bytes));
        writeln!(
            f,
            "{page} pages, half read and half written at random, {} on one file of {file}, engine \
             {}",
            text::count(self.threads, "thread"),
            self.engine
        )?;
        let each = format_duration(std::time::Duration::from_millis(self.time_ms));
        writeln!(
            f,
            "medians of {} of {each}; ratios to the raw device in the same round\n",
            text::count(self.rounds, "round")
        )?;
        writeln!(f, "{}", self.table())?;
        if let Some(reason) = &self.no_mount {
            writeln!(f, "not mounted: {reason}\n")?;
        }
        if let Some(image) = &self.kept {
            writeln!(f, "kept: {}\n", image.display())?;
        }
        writeln!(f, "next:\n  bedplate format disk.img --size 10G")?;
        writeln!(
            f,
            "  bedplate mount disk.img DIR                       # then put a database there"
        )?;
        writeln!(
            f,
            "  bedplate stat DIR/FILE                            # how its I/O is served, and why \
             not otherwise"
        )?;
        write!(f, "  bedplate unmount DIR")
    }
}
