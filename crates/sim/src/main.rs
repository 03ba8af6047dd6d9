//! Runs seeds until a time is over or a promise is broken.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use sim::{Effort, Tally, shrink, try_seed};

/// Cuts the power of simulated devices under random workloads and judges what recovery makes of it.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds; 0: until the time is over.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Seconds after which no new seed is begun; 0: no limit.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Steps of each workload.
    #[arg(long, default_value_t = 40)]
    steps: usize,
    /// Power cuts for each seed.
    #[arg(long, default_value_t = 60)]
    cuts: usize,
    /// Prints the failing workload as it is, without making it small.
    #[arg(long)]
    no_shrink: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let effort = Effort { steps: arguments.steps, cuts: arguments.cuts, ..Effort::default() };
    let started = Instant::now();
    let mut total = Tally::default();
    let mut seed = arguments.seed;
    let seeds_done = |seed: u64| arguments.seeds > 0 && seed >= arguments.seed.saturating_add(arguments.seeds);
    let time_over = || arguments.seconds > 0 && started.elapsed() >= Duration::from_secs(arguments.seconds);
    while !seeds_done(seed) && !time_over() {
        match try_seed(seed, &effort) {
            Ok(tally) => {
                total.states += tally.states;
                total.second_cuts += tally.second_cuts;
                total.operations += tally.operations;
            }
            Err(violation) => {
                let violation = if arguments.no_shrink { violation } else { shrink(violation, &effort) };
                eprintln!("{violation}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    if arguments.json {
        println!("{}", serde_json::json!({ "seeds": seed - arguments.seed, "tally": total, "minutes": minutes, "violations": 0 }));
    } else {
        let rate = total.states as f64 / minutes;
        println!(
            "{} seeds, {} crash states ({} during recovery), {rate:.0} a minute, 0 violations",
            seed - arguments.seed,
            total.states,
            total.second_cuts
        );
    }
    ExitCode::SUCCESS
}
