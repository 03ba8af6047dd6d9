//! `bedplate advise TRACE --on PLACE`, `bedplate advise size TRACE`

mod shown;
mod size;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bedplate_bench::{AdviseOptions, Advised, Step, advise};
use bedplate_trace::Trace;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::bench::Consent;
use super::trace::cut_told;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use shown::Sentence;

const EXAMPLES: &str = "\
Examples:
  bedplate advise load.trace --on /srv/scratch
  bedplate advise load.trace --on /dev/sdx --destroy=/dev/sdx --rounds 5
  bedplate --json advise load.trace --on /srv/scratch";

/// Say whether a traced program would be faster on Bedplate, and in which modes: measured
///
/// The trace is replayed on the kind of file system that the traced files lie on and on a Bedplate
/// mount, with each mode, logs apart, and caches of several sizes, all in turns. The best one is
/// measured again against the file system before anything is claimed. A Bedplate mount that is not
/// faster is not recommended.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// The trace
    trace: Option<PathBuf>,
    /// Where to try: a directory for two scratch images, or a device, whose content is lost. Best on
    /// the disk that the files are meant for
    #[arg(long, value_name = "PLACE")]
    on: Option<PathBuf>,
    /// Replay so many times on each, and as often again on the best
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: usize,
    /// Make each call as soon as the one before has ended, without the pauses of the trace: takes
    /// less time, and tells of calls alone
    #[arg(long)]
    fast: bool,
    /// Leave in caches what the making of the files put there
    #[arg(long)]
    warm: bool,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, Subcommand)]
enum What {
    Size(size::Arguments),
}

/// All that is told.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    advised: Advised,
    /// The advice in one sentence, and commands that set it.
    advice: Sentence,
    /// Where the trace ends too soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    if let Some(What::Size(arguments)) = &arguments.what {
        return size::run(arguments, output);
    }
    let (Some(trace), Some(on)) = (&arguments.trace, &arguments.on) else {
        return Err(Failure::usage(
            "name a trace and a place to try on: bedplate advise TRACE --on PLACE",
        ));
    };
    let loaded = Trace::load(trace)?;
    let is_device = {
        use std::os::unix::fs::FileTypeExt;
        let meta = std::fs::metadata(on).map_err(|e| Failure::system("look at", on, &e))?;
        meta.file_type().is_block_device()
    };
    if is_device && !arguments.consent.given(on) {
        let name = on.display();
        return Err(Failure::usage(format!(
            "{name}: its content would be overwritten: give --destroy={name} if it may be"
        )));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::new("io", format!("cannot find this program: {error}")))?;
    let options = AdviseOptions {
        on: on.clone(),
        program,
        rounds: arguments.rounds,
        is_fast: arguments.fast,
        is_warm: arguments.warm,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::new("io", format!("cannot watch for signals: {error}")))?;
    }
    let bar = bar(output);
    let advised = advise(&loaded.trace, &options, &stop, &mut |step: &Step| {
        bar.set_length(step.turns as u64);
        bar.set_position(step.done as u64);
        bar.set_message(step.label.clone());
    });
    bar.finish_and_clear();
    let advised = advised?;
    let advice = Sentence::of(&advised);
    output.show(&Told { advised, advice, cut: loaded.cut.as_ref().map(cut_told) })
}

/// Tells on a terminal which replay is running.
fn bar(output: &Output) -> ProgressBar {
    let wanted = !output.is_json() && io::stderr().is_terminal();
    let bar = if wanted { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(
        ProgressStyle::with_template("{msg:40!} {bar:24} {pos}/{len}")
            .expect("the template is a constant that parses"),
    );
    bar
}
