//! pjdfstest, in both its forms: the one in Rust, a crate, and the older one in C, a tree of shell
//! scripts that print TAP.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::results::{Results, Verdict};
use super::sources::Tree;
use super::test_mount::Runner;

/// The longest that all tests of the Rust form may take, and one script of the other.
const LIMIT: Duration = Duration::from_secs(1800);
const SCRIPT_LIMIT: Duration = Duration::from_secs(300);

/// Users that every Debian has; nothing is added to the system. Without `features` tests of file
/// flags and the like are skipped.
const CONFIGURATION: &str = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = \
                             {}\nutimensat = {}\nstat_st_birthtime = {}\n\n[settings]\nnaptime = \
                             0.02\n\n[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], \
                             [\"daemon\", \"daemon\"]]\n";

/// Runs the Rust form in `directory`.
pub fn in_rust(
    program: &Path,
    directory: &Path,
    runner: &Runner,
    only: &[String],
) -> Result<Results> {
    let configuration = runner.logs.join("pjdfstest.toml");
    std::fs::write(&configuration, CONFIGURATION)?;
    let mut command = Command::new(program);
    command.env("NO_COLOR", "1").arg("-c").arg(&configuration).arg("-p").arg(directory).args(only);
    let ended = runner.run(&mut command, &runner.logs.join("pjdfstest.log"), LIMIT)?;
    let mut results = rust_verdicts(&ended.text);
    if ended.late || results.0.is_empty() {
        results.add("the whole run", Verdict::Failed(last_line(&ended.text, ended.late)));
    }
    Ok(results)
}

/// Builds the tree of the C form and returns it.
pub fn tree(path: &Path) -> Result<PathBuf> {
    Tree {
        path,
        mark: "pjdfstest.c",
        built: "pjdfstest",
        commands: "autoreconf -ifs && ./configure && make pjdfstest",
    }
    .build()
}

/// Runs the scripts of the C form; a test is one assertion of a script.
pub fn in_c(tree: &Path, directory: &Path, runner: &Runner, only: &[String]) -> Result<Results> {
    let mut results = Results::default();
    for script in scripts(&tree.join("tests"))? {
        let name = script
            .strip_prefix(tree.join("tests"))
            .context("a script lies in its tree")?
            .to_string_lossy()
            .into_owned();
        if !only.is_empty() && !only.iter().any(|prefix| name.starts_with(prefix.as_str())) {
            continue;
        }
        let log = runner.logs.join(format!("pjdfstest-c-{}.log", name.replace('/', "-")));
        let ended = runner.run(
            Command::new("sh").arg(&script).current_dir(directory),
            &log,
            SCRIPT_LIMIT,
        )?;
        let verdicts = tap_verdicts(&name, &ended.text);
        if ended.late {
            results.add(&name, Verdict::Failed(last_line(&ended.text, true)));
        }
        let sound = !ended.late
            && verdicts.0.values().all(|verdict| !matches!(verdict, Verdict::Failed(_)));
        results.0.extend(verdicts.0);
        if sound {
            std::fs::remove_file(&log)?;
        }
    }
    Ok(results)
}

/// All scripts below a directory, in order.
fn scripts(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(scripts(&path)?);
        } else if path.extension().is_some_and(|suffix| suffix == "t") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the last line of what was printed, as a reason.
pub fn last_line(text: &str, late: bool) -> String {
    let last =
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").trim();
    if late { format!("it did not end in time; last: {last}") } else { last.to_owned() }
}

/// Reads `NAME ok`, `NAME FAILED` and `NAME skipped`, each with an indented reason behind it.
fn rust_verdicts(text: &str) -> Results {
    let mut results = Results::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, verdict)) = line.trim_end().rsplit_once(' ') else { continue };
        if line.starts_with(char::is_whitespace)
            || !name.contains("::")
            || name.trim_end().contains(char::is_whitespace)
        {
            continue;
        }
        let reason = lines
            .peek()
            .filter(|next| next.starts_with(char::is_whitespace))
            .map_or("no reason is given", |next| next.trim())
            .to_owned();
        let verdict = match verdict {
            "ok" => Verdict::Passed,
            "skipped" => Verdict::Skipped(reason),
            "FAILED" => Verdict::Failed(reason),
            _ => continue,
        };
        results.add(name.trim_end(), verdict);
    }
    results
}

/// Reads TAP: the plan, and `ok N` or `not ok N` for each assertion. What was planned and did not
/// come has failed.
fn tap_verdicts(script: &str, text: &str) -> Results {
    let mut results = Results::default();
    let mut planned = None;
    for line in text.lines() {
        if let Some(plan) = line.strip_prefix("1..") {
            let (count, reason) = plan.split_once('#').unwrap_or((plan, ""));
            planned = count.trim().parse::<u32>().ok();
            if planned == Some(0) {
                results.add(script, Verdict::Skipped(reason.trim().to_owned()));
            }
            continue;
        }
        let (good, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let (number, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let Ok(number) = number.parse::<u32>() else { continue };
        let directive = words.split_once('#').map(|(_, directive)| directive.trim());
        let verdict = match directive {
            Some(directive) if directive.to_lowercase().starts_with("skip") => {
                Verdict::Skipped(directive.to_owned())
            }
            Some(directive) if !good && directive.to_lowercase().starts_with("todo") => {
                Verdict::Skipped(directive.to_owned())
            }
            _ if good => Verdict::Passed,
            _ => Verdict::Failed(words.trim_start_matches('-').trim().to_owned()),
        };
        results.add(format!("{script}#{number}"), verdict);
    }
    let missing = (1..=planned.unwrap_or(0))
        .find(|number| !results.0.contains_key(&format!("{script}#{number}")));
    if planned.is_none() || missing.is_some() {
        let reason = missing.map_or("it printed no plan".to_owned(), |number| {
            format!("assertion {number} was planned and did not come")
        });
        results.add(script, Verdict::Failed(reason));
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(results: &Results) -> Vec<(&str, Verdict)> {
        results.0.iter().map(|(test, verdict)| (test.as_str(), verdict.clone())).collect()
    }

    #[test]
    fn verdicts_of_the_rust_form_carry_their_reasons() {
        let text = "chmod::ctime                                          ok\nopen::flags          \
                    skipped\n\trequires features: chflags\nlink::x   FAILED\n\tassertion failed: a \
                    :: ok\nnoise ok\n\nSummary: 1 failed, 1 skipped, 1 passed, 3 total\n";
        let expected = vec![
            ("chmod::ctime", Verdict::Passed),
            ("link::x", Verdict::Failed("assertion failed: a :: ok".to_owned())),
            ("open::flags", Verdict::Skipped("requires features: chflags".to_owned())),
        ];
        assert_eq!(of(&rust_verdicts(text)), expected);
    }

    #[test]
    fn what_tap_planned_and_did_not_come_has_failed() {
        let text =
            "1..4\nok 1\nnot ok 2 - tried 'mkdir a', expected 0, got EIO\nnot ok 3 # todo later\n";
        let expected = vec![
            ("m/00.t", Verdict::Failed("assertion 4 was planned and did not come".to_owned())),
            ("m/00.t#1", Verdict::Passed),
            ("m/00.t#2", Verdict::Failed("tried 'mkdir a', expected 0, got EIO".to_owned())),
            ("m/00.t#3", Verdict::Skipped("todo later".to_owned())),
        ];
        assert_eq!(of(&tap_verdicts("m/00.t", text)), expected);
        assert_eq!(
            of(&tap_verdicts("a", "1..0 # SKIP no flags\n")),
            vec![("a", Verdict::Skipped("SKIP no flags".to_owned()))]
        );
        assert_eq!(
            of(&tap_verdicts("a", "sh: not found\n")),
            vec![("a", Verdict::Failed("it printed no plan".to_owned()))]
        );
    }
}
