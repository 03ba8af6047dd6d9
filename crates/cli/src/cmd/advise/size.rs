//! `bedplate advise size TRACE`

use std::fmt;
use std::path::PathBuf;

use bedplate::format_size;
use bedplate_bench::write_sizing_page;
use bedplate_trace::{
    LayoutHint, Mix, ReuseCurve, Trace, layout_hints, mix, reuse_curve, summarized,
};
use clap::Args;
use serde::Serialize;

use crate::cmd::trace::cut_told;
use crate::failure::Result;
use crate::render::output::Output;
use crate::render::text::table;

const EXAMPLES: &str = "\
Examples:
  bedplate advise size load.trace
  bedplate advise size load.trace --html sizes.html";

/// Say how large a cache should be, and how a volume should be laid out, for a traced program
///
/// How much of what the trace reads a cache of each size would answer, which keeps the pages of
/// 4 KiB that were used last. A long trace is sampled. What the program's own buffers answer is not
/// in a trace: the cache is one beside them, or what they would have to grow by.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The trace
    trace: PathBuf,
    /// Write a page with the curve here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Serialize)]
struct Sizes {
    curve: ReuseCurve,
    mix: Mix,
    layout: Vec<LayoutHint>,
    /// Where the trace ends too soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let loaded = Trace::load(&arguments.trace)?;
    let curve = reuse_curve(&loaded.trace);
    let mix = mix(&loaded.trace, &summarized(&loaded.trace));
    let layout = layout_hints(&mix);
    if let Some(page) = &arguments.html {
        write_sizing_page(&curve, &layout, page)?;
    }
    output.show(&Sizes { curve, mix, layout, cut: loaded.cut.as_ref().map(cut_told) })
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let curve = &self.curve;
        writeln!(
            f,
            "{} pages read; the working set is {}",
            curve.read_pages,
            format_size(curve.working_set_bytes)
        )?;
        if curve.sampled < 1.0 {
            writeln!(f, "looked at: {:.1} % of the pages", curve.sampled * 100.0)?;
        }
        let mut rows = vec![["cache", "hits", ""].map(str::to_owned).to_vec()];
        rows.extend(curve.points.iter().map(|point| {
            let is_knee = curve.knee_bytes == Some(point.bytes);
            let hits = format!("{:.1} %", point.hit_rate * 100.0);
            let note = if is_knee { "the knee" } else { "" };
            vec![format_size(point.bytes), hits, note.to_owned()]
        }));
        write!(f, "\n{}", table(&rows, &[0, 1]))?;
        match curve.knee_bytes {
            Some(knee) => writeln!(
                f,
                "{} is the knee: behind it the same memory brings less",
                format_size(knee)
            )?,
            None => writeln!(f, "no cache answers anything: no page is read again")?,
        }
        if !self.layout.is_empty() {
            let heads = ["layout", "choose", "because"].map(str::to_owned).to_vec();
            let row = |hint: &LayoutHint| {
                vec![hint.about.to_owned(), hint.choose.clone(), hint.because.clone()]
            };
            let rows: Vec<_> = std::iter::once(heads).chain(self.layout.iter().map(row)).collect();
            write!(f, "\n{}", table(&rows, &[]))?;
        }
        match &self.cut {
            Some(cut) => writeln!(f, "{cut}"),
            None => Ok(()),
        }
    }
}
