//! The crash lab with the recipes of the guide, word for word: what is sound passes, and bugs that
//! are planted are found.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::bed::Bed;
use super::needs::is_root;
use crate::sh;

const GUIDE: &str = include_str!("../../../docs/guide/crash-lab.md");
const LIMIT: Duration = Duration::from_secs(300);

/// Writes the scripts of sections of the guide, which name themselves in their first comment, into
/// a directory.
fn scripts(bed: &Bed, sections: &[&str]) -> Result<PathBuf> {
    let dir = bed.make_directory("scripts")?;
    for section in sections {
        let heading = format!("\n## {section}\n");
        let (_, behind) = GUIDE
            .split_once(&heading)
            .with_context(|| format!("the chapter has no section {section}"))?;
        let text = behind.split("\n## ").next().unwrap_or(behind);
        for block in text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let name = block.lines().find_map(|line| {
                line.strip_prefix("# ")?
                    .split([':', ' '])
                    .next()
                    .filter(|name| name.ends_with(".sh"))
            });
            if let Some(name) = name {
                let path = dir.join(name);
                std::fs::write(&path, block)?;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(dir)
}

/// The scripts of the shrink, which the guide does not have.
const SHRINK: [(&str, &str); 3] = [
    ("setup.sh", include_str!("scripts/shrink-setup.sh")),
    ("write.sh", include_str!("scripts/shrink-write.sh")),
    ("verify.sh", include_str!("scripts/shrink-verify.sh")),
];

/// One run of the lab.
struct Lab<'a> {
    bed: &'a Bed,
    scripts: &'a Path,
    arguments: Vec<String>,
    check: &'static str,
    states: u32,
}

impl Lab<'_> {
    /// Runs the lab and returns how many states there were, and how many failed.
    fn verdicts(&self, program: &[&str]) -> Result<(u64, u64)> {
        let mut command = self.bed.bedplate([
            "crashlab",
            "--json",
            "--dir",
            &self.bed.path("").display().to_string(),
        ]);
        command
            .args(["--states", &self.states.to_string()])
            .args(&self.arguments)
            .args(["--check", self.check, "--"])
            .args(program);
        command
            .current_dir(self.scripts)
            .env("LAB", self.scripts)
            .env("PATH", self.bed.path_with_program()?);
        let done = sh::finish(&mut command, LIMIT)?;
        let report: Value = serde_json::from_str(&done.stdout)
            .with_context(|| format!("the lab printed no report: {}", done.text()))?;
        let count = |name: &str| {
            report[name].as_u64().with_context(|| format!("the lab failed: {}", done.text()))
        };
        let (states, failed) = (count("states")?, count("failed")?);
        ensure!(
            done.status.code() == Some(if failed == 0 { 0 } else { 4 }),
            "{failed} states failed, and the lab ended with {}",
            done.status
        );
        let shown = report["results"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|result| result["verdict"] != "passed");
        let first = shown
            .map(|result| format!(", the first of them: {}", result["said"]))
            .unwrap_or_default();
        println!(
            "    {}: seed {}, {states} states, {failed} failed{first}",
            program.join(" "),
            report["seed"]
        );
        Ok((states, failed))
    }

    /// Every state has to pass, and there are as many as were asked for.
    fn passes(&self, program: &[&str]) -> Result<()> {
        let (states, failed) = self.verdicts(program)?;
        ensure!(failed == 0, "{program:?} lost what it had acknowledged");
        ensure!(states == u64::from(self.states), "only {states} states were tried");
        Ok(())
    }

    /// The planted bug has to be found. What never syncs may write nothing before it ends, and then
    /// there is one state.
    fn is_found_out(&self, program: &[&str]) -> Result<()> {
        ensure!(
            self.verdicts(program)?.1 > 0,
            "{program:?} does not sync what it acknowledges, and the lab did not notice"
        );
        Ok(())
    }
}

/// S-1, S-3, S-5, S-7: SQLite keeps what it acknowledged where it syncs, and only there.
pub fn sqlite(bed: &mut Bed, _: &Options) -> Result<()> {
    let scripts = scripts(bed, &["SQLite"])?;
    for (journal, sound, careless) in [("WAL", "FULL", "OFF"), ("DELETE", "EXTRA", "FULL")] {
        let setup = format!(
            r#"sqlite3 "$BEDPLATE_DIR/db" "PRAGMA journal_mode={journal}; CREATE TABLE t(n INTEGER PRIMARY KEY, payload BLOB)""#
        );
        let lab = Lab {
            bed,
            scripts: &scripts,
            arguments: vec!["--setup".into(), setup],
            check: "./verify.sh",
            states: 80,
        };
        lab.passes(&["./insert.sh", sound]).with_context(|| format!("journal mode {journal}"))?;
        lab.is_found_out(&["./insert.sh", careless])
            .with_context(|| format!("journal mode {journal}"))?;
    }
    Ok(())
}

/// S-1, S-3, S-5, S-7: PostgreSQL recovers from every cut, and loses what it acknowledged where
/// `fsync` is off.
pub fn postgres(bed: &mut Bed, _: &Options) -> Result<()> {
    let scripts = scripts(bed, &["PostgreSQL"])?;
    let lab = Lab {
        bed,
        scripts: &scripts,
        arguments: with_server("./setup.sh"),
        check: "./verify.sh",
        states: 24,
    };
    lab.passes(&["./insert.sh"])?;
    lab.is_found_out(&["./insert.sh", "-c fsync=off"])
}

/// The options of a lab with a server, which refuses to be root.
fn with_server(setup: &str) -> Vec<String> {
    let options = if is_root() { "allow_other,mode=concurrent" } else { "mode=concurrent" };
    ["-o", options, "--setup", setup, "--timeout", "5m"].map(str::to_owned).to_vec()
}

/// S-58: PostgreSQL that logs no whole pages has no torn page after any cut where they are written
/// untorn, and has them elsewhere.
pub fn postgres_untorn(bed: &mut Bed, options: &Options) -> Result<()> {
    let scripts = scripts(bed, &["PostgreSQL", "PostgreSQL without full_page_writes"])?;
    let lab = |setup, states| Lab {
        bed,
        scripts: &scripts,
        arguments: with_server(setup),
        check: "./verify-pages.sh",
        states,
    };
    lab("./setup-pages.sh 8k", options.states).passes(&["./update.sh"])?;
    // A tear hits some states in a hundred: the chance to miss it in so many is nil.
    lab("./setup-pages.sh none", options.states.max(60)).is_found_out(&["./update.sh"])
}

/// S-58 promises pages, not transactions: SQLite without a journal loses parts of them on untorn
/// pages, and nothing with its log.
pub fn sqlite_untorn(bed: &mut Bed, _: &Options) -> Result<()> {
    let scripts = scripts(bed, &["SQLite without a journal"])?;
    let table = "CREATE TABLE t(n INTEGER PRIMARY KEY, v INTEGER NOT NULL, payload TEXT); \
                 INSERT INTO t SELECT value, 0, hex(randomblob(300)) FROM generate_series(0, 499)";
    let setup =
        format!(r#"bedplate untorn "$BEDPLATE_DIR" 4k >&2; sqlite3 "$BEDPLATE_DIR/db" "{table}""#);
    let arguments = ["-o", "mode=concurrent", "--setup", &setup].map(str::to_owned).to_vec();
    let lab = Lab { bed, scripts: &scripts, arguments, check: "./verify-rows.sh", states: 120 };
    lab.passes(&["./update-rows.sh", "WAL"])?;
    lab.is_found_out(&["./update-rows.sh", "OFF"])
}

/// S-372, S-373, S-374, S-376: a file system that becomes less than half as large while fio writes
/// files with checksums keeps, after every cut, what fio was told is durable, and what a checkpoint
/// shares with the present.
pub fn shrink(bed: &mut Bed, _: &Options) -> Result<()> {
    let scripts = bed.make_directory("scripts")?;
    for (name, text) in SHRINK {
        std::fs::write(scripts.join(name), text)?;
        std::fs::set_permissions(scripts.join(name), std::fs::Permissions::from_mode(0o755))?;
    }
    let arguments = ["--size", "256M", "--setup", "./setup.sh"].map(str::to_owned).to_vec();
    let lab = Lab { bed, scripts: &scripts, arguments, check: "./verify.sh", states: 40 };
    lab.passes(&["./write.sh", "--direct=1", "--end_fsync=1"])?;
    lab.is_found_out(&["./write.sh", "--end_fsync=0"])
}
