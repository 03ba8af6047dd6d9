//! The programs that tests run as they are shipped: built together, because another selection of
//! packages would compile what all of them use once more, with other features.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::sh;

/// How long the build may take.
const LIMIT: Duration = Duration::from_secs(1200);

const WHAT: [&str; 10] = [
    "-p",
    "bedplate-cli",
    "-p",
    "bedplate-preload",
    "-p",
    "bedplate",
    "--bin=bedplate",
    "--lib",
    "--example",
    "path_length",
];

/// Builds the command, the library that programs load, and the example of which instructions are
/// counted; returns the directory in which they are.
///
/// # Errors
/// When they do not build.
pub fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet"]).args(WHAT);
    ensure!(sh::passes(&mut command, LIMIT)?, "the release binaries do not build");
    Ok(sh::target_directory()?.join("release"))
}
