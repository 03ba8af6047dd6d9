//! The report as files.

use std::path::Path;

use crate::error::{Error, Result};
use crate::html;
use crate::report::Report;

/// Writes `crashlab.html` and `crashlab.json` into a directory, which is made where it does not
/// exist.
///
/// # Errors
/// Those of the system.
pub fn write(report: &Report, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)
        .map_err(|error| Error::system("make the directory", dir, &error))?;
    let json = serde_json::to_vec_pretty(report)
        .map_err(|error| Error::io("write the report as JSON", &error.into()))?;
    for (name, bytes) in
        [("crashlab.json", json), ("crashlab.html", html::page(report).into_bytes())]
    {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|error| Error::system("write", &path, &error))?;
    }
    Ok(())
}
