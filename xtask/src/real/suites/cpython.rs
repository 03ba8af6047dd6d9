//! CPython's own tests of files, descriptors, maps, subprocesses and SQLite: programs that open,
//! duplicate, inherit and close descriptors in every way there is.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::pjdfstest::last_line;
use super::results::{Results, Verdict};
use super::test_mount::{Ended, Runner};
use crate::real::needs;
use crate::sh;

/// The modules, and those of the short form.
const MODULES: [&str; 16] = [
    "test_fileio",
    "test_file",
    "test_mmap",
    "test_fcntl",
    "test_os",
    "test_posix",
    "test_io",
    "test_largefile",
    "test_subprocess",
    "test_shutil",
    "test_tempfile",
    "test_glob",
    "test_tarfile",
    "test_zipfile",
    "test_dbm_dumb",
    "test_sqlite3",
];
const QUICK: usize = 6;

/// Makes sure that the tests are there.
///
/// # Errors
/// When they are not, and cannot be installed.
pub fn prepare() -> Result<()> {
    let there = || {
        let asked = sh::finish(
            Command::new("python3").args(["-c", "import test.test_fileio"]),
            Duration::from_secs(60),
        );
        asked.is_ok_and(|done| done.status.success())
    };
    if !there() {
        needs::install_packages(&["python3", "libpython3-testsuite"])?;
    }
    ensure!(there(), "Python's own tests are not here: install libpython3-testsuite");
    Ok(())
}

/// Runs each module in `directory`, each within `limit`; `only` names modules.
pub fn tests(
    directory: &Path,
    runner: &Runner,
    quick: bool,
    only: &[String],
    limit: Duration,
) -> Result<Results> {
    let mut results = Results::default();
    let count = if quick { QUICK } else { MODULES.len() };
    for module in &MODULES[..count] {
        if !only.is_empty() && !only.iter().any(|prefix| module.starts_with(prefix.as_str())) {
            continue;
        }
        let place = directory.join(module);
        std::fs::create_dir(&place)?;
        let report = runner.logs.join(format!("{module}.xml"));
        drop(std::fs::remove_file(&report));
        let log = runner.logs.join(format!("{module}.log"));
        let mut command = Command::new("python3");
        command
            .args(["-m", "test", "--junit-xml"])
            .arg(&report)
            .arg("--tempdir")
            .arg(&place)
            .arg(module)
            .current_dir(&place)
            .env("TMPDIR", &place);
        let ended = runner.run(&mut command, &log, limit)?;
        judge(&mut results, module, &ended, &report)?;
        if ended.code == Some(0) {
            std::fs::remove_file(&log)?;
        }
        drop(std::fs::remove_dir_all(&place));
    }
    Ok(results)
}

/// Adds the verdicts of one module.
fn judge(results: &mut Results, module: &str, ended: &Ended, report: &Path) -> Result<()> {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    let verdicts = verdicts(&text);
    if ended.late || verdicts.is_empty() {
        // A module that is not for this system says so and makes no report.
        let skipped = ended.code == Some(0) || ended.text.contains("skipped");
        let said = last_line(&ended.text, ended.late);
        let whole =
            if skipped && !ended.late { Verdict::Skipped(said) } else { Verdict::Failed(said) };
        results.add(module, whole);
        return Ok(());
    }
    for (test, verdict) in verdicts {
        results.add(test, verdict);
    }
    if report.exists() {
        std::fs::remove_file(report).with_context(|| format!("{}", report.display()))?;
    }
    Ok(())
}

/// Reads the report of a module: `<testcase name="…" …>` with what it was told within.
fn verdicts(report: &str) -> Vec<(String, Verdict)> {
    let cases = report.split("<testcase ").skip(1).filter_map(|case| {
        let name = case.split_once("name=\"")?.1.split_once('"')?.0;
        let case = case.split_once("</testcase>").map_or(case, |(within, _)| within);
        let within = |tag: &str| {
            let from = case.split_once(&format!("<{tag}"))?.1;
            let text = from.split_once('>')?.1;
            let text = text.split_once("</").map_or(text, |(text, _)| text);
            Some(text.lines().next_back().unwrap_or_default().trim().to_owned())
        };
        let verdict = within("error")
            .or_else(|| within("failure"))
            .map(Verdict::Failed)
            .or_else(|| within("skipped").map(Verdict::Skipped))
            .unwrap_or(Verdict::Passed);
        Some((name.strip_prefix("test.").unwrap_or(name).to_owned(), verdict))
    });
    cases.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_what_passed_failed_and_was_skipped() {
        let report = "<testsuites tests=\"3\"><testsuite><testcase name=\"test.test_os.A.a\" \
                      status=\"run\" result=\"completed\" /><testcase name=\"test.test_os.A.b\" \
                      status=\"run\"><error type=\"OSError\">Traceback:\n  line 3\nOSError: no \
                      such file</error></testcase><testcase name=\"test.test_os.A.c\"><skipped>no \
                      root</skipped></testcase></testsuite></testsuites>";
        assert_eq!(
            verdicts(report),
            vec![
                ("test_os.A.a".to_owned(), Verdict::Passed),
                ("test_os.A.b".to_owned(), Verdict::Failed("OSError: no such file".to_owned())),
                ("test_os.A.c".to_owned(), Verdict::Skipped("no root".to_owned())),
            ]
        );
        assert!(verdicts("").is_empty());
    }
}
