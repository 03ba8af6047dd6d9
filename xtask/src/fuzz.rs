//! `cargo xtask fuzz`: builds the fuzzers with coverage counters, runs them, keeps what they found,
//! and says what was tried.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::sh;

/// What the compiler is asked for: counters for libFuzzer, and every assertion that a debug build
/// has.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=yes \
                     -Coverflow-checks=yes";
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// The longest input that is worth trying, in bytes.
const INPUT_MAX: usize = 4096;
/// How many new inputs of a target `--keep` adds at most, and how long each may be.
const KEPT_MAX: usize = 24;
const KEPT_BYTES_MAX: u64 = 2048;

/// What to fuzz.
#[derive(Args)]
pub struct Options {
    /// Decoders to fuzz; all of them when none is named.
    targets: Vec<String>,
    /// How long each is fuzzed.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only names the decoders.
    #[arg(long)]
    list: bool,
    /// Adds a small selection of what reached new code to the corpus.
    #[arg(long)]
    keep: bool,
}

/// Fuzzes and returns whether nothing was found.
///
/// # Errors
/// When the fuzzers do not build or do not run.
pub fn run(options: &Options) -> Result<bool> {
    let known = targets()?;
    if options.list {
        known.iter().for_each(|name| println!("{name}"));
        return Ok(true);
    }
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(name)) {
        bail!("there is no decoder '{unknown}': 'cargo xtask fuzz --list' names them");
    }
    let program = build()?;
    let mut runs = Vec::new();
    for name in
        known.iter().filter(|name| options.targets.is_empty() || options.targets.contains(name))
    {
        runs.push(fuzz(&program, name, options.seconds)?);
        if options.keep {
            keep(&program, name)?;
        }
    }
    println!(
        "| decoder | inputs tried | processor time | inputs that reach different code | |\n| --- | \
         --- | --- | --- | --- |"
    );
    runs.iter().for_each(|run| println!("{}", run.row()));
    Ok(runs.iter().all(|run| run.sound))
}

/// The decoders: each has a directory of inputs.
fn targets() -> Result<Vec<String>> {
    let corpus = std::fs::read_dir("fuzz/corpus").context("cannot list fuzz/corpus")?;
    let mut names = corpus
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A target is named so that build scripts and macros are compiled without the counters.
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--release",
        "--config",
        "profile.release.lto=\"off\"",
        "--target",
        &machine,
        "--target-dir",
        "target/fuzz",
    ]);
    command.args(["-p", "bedplate-fuzz", "--features", "driver"]).env("RUSTFLAGS", FLAGS);
    if !sh::passes(&mut command, BUILD_LIMIT)? {
        bail!("the fuzzers do not build; see above");
    }
    Ok(Path::new("target/fuzz").join(machine).join("release/bedplate-fuzz"))
}

/// Where inputs of a target that reached new code are gathered.
fn work(name: &str) -> Result<PathBuf> {
    let work = Path::new("target/fuzz/work").join(name);
    std::fs::create_dir_all(&work)?;
    std::fs::create_dir_all("target/fuzz/found")?;
    Ok(work)
}

/// What fuzzing one decoder came to.
struct Run {
    name: String,
    tried: u64,
    processor_ms: u64,
    gathered: usize,
    sound: bool,
}

impl Run {
    /// A row of a table.
    fn row(&self) -> String {
        let Self { name, tried, processor_ms, gathered, sound } = self;
        let verdict = if *sound { "" } else { "see target/fuzz/found" };
        format!(
            "| `{name}` | {tried} | {}.{:03} s | {gathered} | {verdict} |",
            processor_ms / 1000,
            processor_ms % 1000
        )
    }
}

fn fuzz(program: &Path, name: &str, seconds: u64) -> Result<Run> {
    println!("== {name}: {seconds} s");
    let mut command = Command::new(program);
    command.env("BEDPLATE_FUZZ", name).args([
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        "-verbosity=0",
        "-len_control=0",
    ]);
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={INPUT_MAX}"),
        format!("-artifact_prefix=target/fuzz/found/{name}-"),
    ]);
    let work = work(name)?;
    command.arg(&work).arg(Path::new("fuzz/corpus").join(name));
    let before = children_ms()?;
    let finished = sh::finish(&mut command, Duration::from_secs(seconds + 600))?;
    let (sound, text) = (finished.status.success(), finished.text());
    if !sound {
        println!("{text}");
    }
    let gathered = std::fs::read_dir(&work)?.count();
    Ok(Run {
        name: name.to_owned(),
        tried: executed(&text).unwrap_or(0),
        processor_ms: children_ms()? - before,
        gathered,
        sound,
    })
}

/// How many inputs a fuzzer says that it tried.
fn executed(text: &str) -> Option<u64> {
    text.lines()
        .rev()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok())
}

/// Processor time, in milliseconds, of the programs that were run and have ended.
fn children_ms() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    children_ticks(&stat)
        .map(|ticks| ticks * 1000 / rustix::param::clock_ticks_per_second())
        .context("/proc/self/stat has fewer fields than it had")
}

/// The sum of the fields `cutime` and `cstime`; the name of the program before them may hold
/// anything.
fn children_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Adds the smallest inputs that cover what the corpus does not.
fn keep(program: &Path, name: &str) -> Result<()> {
    let (fresh, corpus) =
        (Path::new("target/fuzz/fresh").join(name), Path::new("fuzz/corpus").join(name));
    drop(std::fs::remove_dir_all(&fresh));
    std::fs::create_dir_all(&fresh)?;
    for entry in std::fs::read_dir(&corpus)? {
        let path = entry?.path();
        std::fs::copy(&path, fresh.join(path.file_name().context("a file has a name")?))?;
    }
    let mut command = Command::new(program);
    command
        .env("BEDPLATE_FUZZ", name)
        .args(["-merge=1", "-verbosity=0"])
        .args([&fresh, &work(name)?]);
    if !sh::passes(&mut command, Duration::from_secs(1800))? {
        bail!("the inputs of {name} cannot be merged");
    }
    let new =
        std::fs::read_dir(&fresh)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut new: Vec<(u64, PathBuf)> =
        new.into_iter().filter_map(|path| Some((path.metadata().ok()?.len(), path))).collect();
    new.retain(|(len, path)| {
        *len <= KEPT_BYTES_MAX && path.file_name().is_some_and(|file| !corpus.join(file).exists())
    });
    new.sort();
    for (_, path) in new.iter().take(KEPT_MAX) {
        std::fs::copy(path, corpus.join(path.file_name().context("a file has a name")?))?;
    }
    println!("{name}: {} inputs kept", new.len().min(KEPT_MAX));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_came_to_is_read_from_what_programs_and_the_system_say() {
        assert_eq!(
            executed(
                "INFO: seed\nstat::number_of_executed_units: 1234\nstat::new_units_added:          \
                 5\n"
            ),
            Some(1234)
        );
        assert_eq!(executed("it crashed"), None);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 8 0 0 3 2 40 17 20 0 1 0 99 1 1 1 1";
        assert_eq!(children_ticks(stat), Some(57));
        assert!(children_ms().is_ok());
        let run =
            Run { name: "rows".into(), tried: 7, processor_ms: 61_005, gathered: 3, sound: true };
        assert_eq!(run.row(), "| `rows` | 7 | 61.005 s | 3 |  |");
    }
}
