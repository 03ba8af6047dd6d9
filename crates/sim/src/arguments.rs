//! What the judge is asked for on its command line, and the command that asks for it again.

use std::path::PathBuf;

use bedplate_sim::{Cuts, DIRECTED, Directed, Effort};
use clap::Parser;

/// How the judge is started.
const COMMAND: &str = "cargo run --release -p bedplate-sim --";

/// Cuts the power of simulated devices under workloads and judges what recovery makes of it.
#[derive(Parser, Clone)]
#[command(version)]
pub struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds; 0: until the time is over or the states are reached.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Seconds after which no new seed is begun; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub seconds: u64,
    /// Distinct crash states after which no new seed is begun; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub states: u64,
    /// Threads, each with seeds of its own.
    #[arg(long, default_value_t = 1)]
    pub jobs: u64,
    /// Steps of each random workload.
    #[arg(long, default_value_t = 40)]
    pub steps: usize,
    /// Power cuts for each seed.
    #[arg(long, default_value_t = 60)]
    pub cuts: usize,
    /// Cuts after every operation of the device instead, in so many ways.
    #[arg(long, default_value_t = 0)]
    pub every: usize,
    /// Runs the directed workloads instead of random ones, each with every seed.
    #[arg(long, group = "of_directed")]
    pub directed: bool,
    /// Lets every call of the directed workloads fail, one after the other, once and for ever,
    /// instead of cutting the power.
    #[arg(long, group = "of_directed")]
    pub failing: bool,
    /// Runs random workloads of scattered files in which one step comes in the middle of another,
    /// instead of the plain ones.
    #[arg(long, conflicts_with = "of_directed")]
    pub interleaved: bool,
    /// With `--interleaved`: all of them on groups of devices, else two in five.
    #[arg(long, requires = "interleaved")]
    pub groups: bool,
    /// Runs random workloads of a program on a real mount of the simulated devices; nothing where
    /// that is impossible.
    #[arg(long, conflicts_with_all = ["of_directed", "interleaved"])]
    pub mounted: bool,
    /// Runs each long change with each other step in the middle of it, at every so many-th point of
    /// the change; 0: not.
    #[arg(long, value_name = "STRIDE", default_value_t = 0, conflicts_with_all = ["of_directed",
        "interleaved"])]
    pub pairs: u16,
    /// With `--directed` or `--failing`: only workloads of this name, or whose names contain it;
    /// may be given several times.
    #[arg(long = "workload", value_name = "NAME", requires = "of_directed")]
    pub workloads: Vec<String>,
    /// Lists the names of the directed workloads.
    #[arg(long)]
    pub list: bool,
    /// Runs workloads of so many threads at once instead, and cuts the power under them.
    #[arg(long, default_value_t = 0)]
    pub threads: u8,
    /// With `--threads`: where the devices are kept as a cut left them that broke a promise; the
    /// order of threads does not repeat.
    #[arg(long, default_value = "target/judge")]
    pub keep: PathBuf,
    /// With `--failing`: only every so many-th call fails.
    #[arg(long, default_value_t = 1)]
    pub stride: u64,
    /// Goes on after a violation, tells each in one line, and makes none small.
    #[arg(long)]
    pub survey: bool,
    /// Prints the failing workload as it is, without making it small.
    #[arg(long)]
    pub no_shrink: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// How much is tried with one seed.
    pub fn effort(&self) -> Effort {
        let cuts = match self.every {
            0 if self.interleaved || self.pairs > 0 || self.directed => Cuts::Around(self.cuts),
            0 => Cuts::Random(self.cuts),
            ways => Cuts::Every(ways),
        };
        Effort { steps: self.steps, cuts, ..Effort::default() }
    }

    /// The directed workloads that are asked for: all, or those named.
    ///
    /// # Errors
    /// One sentence about a name that none has.
    pub fn picked(&self) -> Result<Vec<&'static Directed>, String> {
        if self.workloads.is_empty() {
            return Ok(DIRECTED.iter().collect());
        }
        let mut picked = vec![false; DIRECTED.len()];
        for name in &self.workloads {
            let named = |directed: &Directed| directed.name == name;
            let found: Vec<usize> = match DIRECTED.iter().position(named) {
                Some(at) => vec![at],
                None => (0..DIRECTED.len())
                    .filter(|at| DIRECTED[*at].name.to_lowercase().contains(&name.to_lowercase()))
                    .collect(),
            };
            if found.is_empty() || name.is_empty() {
                let known: Vec<_> =
                    DIRECTED.iter().map(|directed| format!("'{}'", directed.name)).collect();
                return Err(format!(
                    "no directed workload is called '{name}': there are {}",
                    known.join(", ")
                ));
            }
            found.into_iter().for_each(|at| picked[at] = true);
        }
        Ok(DIRECTED
            .iter()
            .zip(picked)
            .filter(|(_, picked)| *picked)
            .map(|(directed, _)| directed)
            .collect())
    }

    /// The command that runs one seed again, of a directed workload where one is named.
    pub fn again(&self, seed: u64, directed: Option<&Directed>) -> String {
        let ways = if self.every > 0 {
            format!("--every {}", self.every)
        } else {
            format!("--cuts {}", self.cuts)
        };
        let kind = match directed {
            Some(directed) => format!("--directed --workload '{}'", directed.name),
            None if self.pairs > 0 => format!("--pairs {}", self.pairs),
            None if self.mounted => format!("--mounted --steps {}", self.steps),
            None if self.interleaved => format!(
                "--interleaved{} --steps {}",
                if self.groups { " --groups" } else { "" },
                self.steps
            ),
            None => format!("--steps {}", self.steps),
        };
        format!("{COMMAND} --seed {seed} {kind} {ways}")
    }

    /// The command that lets the calls of a directed workload fail again; of formatting where none
    /// is named.
    pub fn fail_again(&self, directed: Option<&Directed>) -> String {
        let which =
            directed.map(|directed| format!(" --workload '{}'", directed.name)).unwrap_or_default();
        let stride =
            if self.stride > 1 { format!(" --stride {}", self.stride) } else { String::new() };
        format!("{COMMAND} --failing{which}{stride}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, workloads: &[&str]) -> Result<Arguments, clap::Error> {
        let named = workloads.iter().flat_map(|name| ["--workload", name]);
        Arguments::try_parse_from(["judge"].into_iter().chain(line.split_whitespace()).chain(named))
    }

    fn names(arguments: &Arguments) -> Vec<&'static str> {
        arguments.picked().expect("they are known").iter().map(|directed| directed.name).collect()
    }

    #[test]
    fn workloads_are_picked_by_name() {
        let picked =
            |workloads: &[&str]| names(&parse("--directed", workloads).expect("it is a command"));
        assert_eq!(picked(&[]).len(), DIRECTED.len());
        assert_eq!(
            picked(&["growth in FLIGHT", "overwrite in place"]),
            ["overwrite in place", "growth in flight"],
            "in the order in which they are listed"
        );
        assert_eq!(
            picked(&["overwrite"]),
            ["overwrite of what was just exposed", "overwrite in place"]
        );
        assert!(
            DIRECTED.iter().all(|directed| picked(&[directed.name]) == [directed.name]),
            "a whole name is one workload"
        );
        for unknown in ["nothing like it", ""] {
            let refused = parse("--failing", &[unknown])
                .expect("it is a command")
                .picked()
                .expect_err("it is not known");
            assert!(
                refused.contains(&format!("'{unknown}'")) && refused.contains("'growth in flight'"),
                "{refused}"
            );
        }
        assert!(parse("", &["growth in flight"]).is_err(), "random workloads have no names");
    }

    #[test]
    fn what_repeats_a_failure_is_a_command_that_picks_it() {
        let directed = DIRECTED
            .iter()
            .find(|directed| directed.name == "growth in flight")
            .expect("it is one of them");
        let words = |command: String| {
            let command =
                command.strip_prefix(COMMAND).expect("it is one of this program").to_owned();
            let mut quoted = command.split('\'');
            let (before, name, after) = (
                quoted.next().unwrap_or_default(),
                quoted.next(),
                quoted.next().unwrap_or_default(),
            );
            let words = before
                .split_whitespace()
                .chain(name)
                .chain(after.split_whitespace())
                .map(str::to_owned);
            Arguments::try_parse_from(std::iter::once("judge".to_owned()).chain(words))
                .expect("it is a command")
        };
        let every = words(
            parse("--directed --every 6", &[]).expect("it is a command").again(7, Some(directed)),
        );
        assert_eq!(
            (every.seed, every.seeds, every.every, every.directed, names(&every)),
            (7, 1, 6, true, vec![directed.name])
        );
        let failing = words(
            parse("--failing --stride 5", &[]).expect("it is a command").fail_again(Some(directed)),
        );
        assert_eq!(
            (failing.failing, failing.stride, names(&failing)),
            (true, 5, vec![directed.name])
        );
        let random =
            words(parse("--steps 30 --cuts 9", &[]).expect("it is a command").again(8, None));
        assert_eq!((random.seed, random.steps, random.cuts, random.directed), (8, 30, 9, false));
    }
}
