//! Traces of a real program: recorded, replayed, and tried on both file systems.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Options;
use super::bed::{Bed, is_mounted};
use crate::sh;

const SCRIPT: &str = "\
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
CREATE TABLE t(id INTEGER PRIMARY KEY, filler TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO t SELECT i, hex(randomblob(200)) FROM n;
";

/// S-448 to S-453: SQLite is traced, the trace is replayed in a directory, and the advice on it comes
/// from both file systems, claims what its rounds say, and leaves nothing behind.
pub fn of_sqlite(bed: &mut Bed, _: &Options) -> Result<()> {
    // The library has to lie beside the program.
    bed.lease_library()?;
    let (trace, database) = (bed.path("sqlite.trace"), bed.path("t.db"));
    let mut script = SCRIPT.to_owned();
    for i in 1..=60 {
        script.push_str(&format!("UPDATE t SET filler = hex(randomblob(200)) WHERE id = {i};\n"));
        script.push_str(&format!("SELECT count(*) FROM t WHERE id > {};\n", i * 20));
    }
    let file = bed.path("load.sql");
    std::fs::write(&file, script)?;
    let mut traced = bed.bedplate(["--json", "trace", "-o"]);
    traced.arg(&trace).args(["--", "sqlite3"]).arg(&database);
    traced.arg(format!(".read {}", file.display()));
    sh::output(&mut traced, Duration::from_secs(60))?;

    let place = bed.make_directory("place")?;
    let target = format!("path:{},buffered", place.display());
    let replayed =
        bed.json(["replay".as_ref(), trace.as_os_str(), "-t".as_ref(), target.as_ref()])?;
    let syncs = &replayed["targets"][0]["syncs"];
    ensure!(syncs["calls"].as_u64() >= Some(60), "{syncs}");

    let words = ["advise".as_ref(), trace.as_os_str(), "--on".as_ref(), place.as_os_str()];
    let told = bed.json(words.into_iter().chain(["--rounds".as_ref(), "2".as_ref()]))?;
    let standings = told["standings"].as_array().map_or(0, Vec::len);
    ensure!(standings >= 6, "{standings} candidates: {told}");
    let ruling = told["ruling"].as_str().unwrap_or_default();
    let sentence = told["advice"]["sentence"].as_str().unwrap_or_default();
    let begins = match ruling {
        "stay" => "stay on ",
        "unclear" => "unclear: ",
        _ => "",
    };
    ensure!(!sentence.is_empty() && sentence.starts_with(begins), "{ruling}: {sentence}");
    ensure!(std::fs::read_dir(&place)?.next().is_none(), "something stays in {}", place.display());
    ensure!(!is_mounted(&place), "something is mounted still");
    println!("    {sentence}");

    let sizes = bed.json(["advise".as_ref(), "size".as_ref(), trace.as_os_str()])?;
    ensure!(sizes["curve"]["read_pages"].as_u64().is_some(), "{sizes}");
    ensure!(sizes["layout"].as_array().is_some_and(|all| !all.is_empty()), "{sizes}");
    // What is no trace is refused in one sentence.
    let refused =
        Command::new(&bed.program).arg("advise").arg(&file).arg("--on").arg(&place).output()?;
    ensure!(!refused.status.success(), "a script is no trace");
    Ok(())
}
