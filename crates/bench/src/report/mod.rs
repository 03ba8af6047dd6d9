//! The report: one HTML page that needs nothing else, and the raw results beside it.

mod devices;
mod page;
mod plot;
mod processors;
mod section;
mod sizing;
mod traced;
mod verdict;
mod ways;

use std::fs;
use std::path::{Path, PathBuf};

pub use sizing::write_sizing_page;
pub use traced::write_trace_page;

use crate::results::Results;
use crate::{Error, Result};

/// Writes `report.html`, `results.json` and `results.csv` into a directory; returns the page's
/// path.
///
/// # Errors
/// `Io`.
pub fn write_report(results: &Results, directory: &Path) -> Result<PathBuf> {
    results.save(directory)?;
    let page = directory.join("report.html");
    let table = directory.join("results.csv");
    fs::write(&page, page::html(results))
        .map_err(|e| Error::io(page.display(), "cannot write", e))?;
    fs::write(&table, crate::csv(results))
        .map_err(|e| Error::io(table.display(), "cannot write", e))?;
    Ok(page)
}

/// The style of every page that this program writes.
pub const STYLE: &str = include_str!("style.css");

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::results;

    #[test]
    fn the_directory_holds_page_json_and_csv() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("new");
        let page =
            write_report(&results(&[("raw <&>", &[100.0, 110.0]), ("xfs", &[90.0, 95.0])]), &into)
                .unwrap();
        let html = fs::read_to_string(page).unwrap();
        assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
        assert!(
            html.contains("raw &lt;&amp;&gt;") && !html.contains("raw <&>"),
            "names are escaped"
        );
        assert!(
            !html.contains("http://")
                || html.matches("http://").all(|_| html.contains("http://www.w3.org/2000/svg")),
            "nothing is fetched"
        );
        assert!(html.contains("<svg"));
        assert!(into.join("results.json").exists() && into.join("results.csv").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_is_one_sentence() {
        let message = write_report(&results(&[("a", &[1.0])]), Path::new("/proc/none"))
            .unwrap_err()
            .to_string();
        assert!(message.contains("/proc/none") && !message.contains('\n'));
    }
}
