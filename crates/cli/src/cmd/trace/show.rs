//! `bedplate trace show FILE`

use std::path::PathBuf;

use bedplate_bench::write_trace_page;
use bedplate_trace::{Cut, Trace, summarized};
use clap::Args;

use super::shown::Shown;
use crate::failure::Result;
use crate::render::output::Output;

/// Show what a trace says: a table by file, syncs, failures; or a page with pictures
///
/// Sizes are those asked for most. "in order" are calls that begin where one of the last calls on the
/// file ended, "aligned" those whose place and size are multiples of 4096. The depth is how many
/// reads and writes of the file were under way when one began, on average and at the most.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The trace
    file: PathBuf,
    /// Write a page with pictures here: offsets over time, sizes, syncs
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Tell of so many files, and of so many failures
    #[arg(long, value_name = "N", default_value = "20")]
    top: usize,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let loaded = Trace::load(&arguments.file)?;
    let summary = summarized(&loaded.trace);
    let cut = loaded.cut.as_ref().map(told);
    if let Some(page) = &arguments.html {
        write_trace_page(&loaded.trace, &summary, cut.as_deref(), page)?;
    }
    output.show(&Shown { summary, cut, top: arguments.top })
}

/// Says where a trace ends too soon.
pub fn told(cut: &Cut) -> String {
    format!("the trace is not whole: {} behind byte {}", cut.why, cut.at_bytes)
}
