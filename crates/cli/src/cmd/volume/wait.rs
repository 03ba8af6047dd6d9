//! `bedplate volume wait`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bedplate::parse_duration;
use clap::Args;

use super::show;
use crate::daemon::control;
use crate::device::group;
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;

/// How often it is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Wait until the daemon of a group has nothing left to rebuild, resynchronize or relayout, and
/// show the group
///
/// Ends with exit code 0 where the group is whole then, 1 where it is degraded, 4 where it is
/// broken or refused. Returns at once where no process has the group open, because nothing changes
/// then.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// Fail when it is not done in this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let began = Instant::now();
    let located = group::named(&arguments.group)?;
    while control::ask_if_open(&located).is_some_and(|status| status.is_busy()) {
        if arguments.timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
            let message = format!(
                "group {} is still being worked on: 'bedplate volume show' tells how far that is",
                located.config.name
            );
            return Err(Failure::new("timeout", message));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    show::shown(&arguments.group, output)
}
