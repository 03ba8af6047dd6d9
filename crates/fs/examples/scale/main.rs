//! What a volume with very many extents costs: makes one, and prints a table of mounts, memory,
//! writes, checkpoints, defragmentation, allocation and check.
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example scale --features forge -- /var/tmp/scale.img
//! cargo run --release -p bedplate-fs --example scale --features forge -- /dev/shm/scale.img \
//!     --units 100000000 --files 1000000 --size-tib 100 --sums --steps make,bytes,mount
//! ```
//!
//! Units of 8 KiB lie at random places of a sparse image, each an extent of its own. The metadata are
//! made at once, not by writing; the data is not there and what is written of it is forgotten, so the
//! image takes a gigabyte for 10^8 units. Only the step `depth` writes data, to 2 GiB behind the volume.
//! Each step is a process of its own, so that its memory is what it says. The image is removed before
//! and stays behind.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

mod deletion;
mod depth;
mod folded;
mod forgetful;
mod steps;

use std::process::Command;

/// What is carried out, and how.
type Step = (&'static str, fn(&Asked));

/// What is measured, in this order; a later step sees what earlier ones left.
const STEPS: [Step; 15] = [
    ("make", steps::make),
    ("bytes", steps::bytes),
    ("mount", steps::mounts),
    ("crash", steps::crashes),
    // Two parts of the one before.
    ("fill", steps::fill),
    ("remount", steps::remount),
    ("touch", steps::touch),
    ("depth", depth::depth),
    ("allocate", steps::allocate),
    ("defrag", steps::defragment),
    ("checkpoints", steps::checkpoints),
    ("deletion", deletion::deletion),
    // Two parts of the one before.
    ("cut", deletion::cut),
    ("resume", deletion::resume),
    ("check", steps::check),
];

/// What the command line asks for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The image.
    pub image: String,
    /// Units of all files.
    pub units: u64,
    /// Files.
    pub files: u64,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Places for units, in percent of these; 0: all that there is room for.
    pub slots_percent: u64,
    /// Whether blocks have checksums.
    pub sums: bool,
    /// What is measured.
    pub steps: Vec<String>,
    /// Carried out in this process.
    pub step: Option<String>,
}

fn asked() -> Asked {
    let all = STEPS.iter().map(|(name, _)| *name);
    let mut asked = Asked {
        image: String::new(),
        units: 100_000_000,
        files: 1,
        size_bytes: 1 << 40,
        slots_percent: 0,
        sums: false,
        steps: all
            .filter(|name| !["fill", "remount", "cut", "resume"].contains(name))
            .map(str::to_owned)
            .collect(),
        step: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match word.as_str() {
            "--units" => asked.units = number(),
            "--files" => asked.files = number(),
            "--size-tib" => asked.size_bytes = number() << 40,
            "--size-gib" => asked.size_bytes = number() << 30,
            "--slots-percent" => asked.slots_percent = number(),
            "--sums" => asked.sums = true,
            "--steps" => {
                asked.steps = words.next().unwrap().split(',').map(str::to_owned).collect();
            }
            "--step" => asked.step = words.next(),
            _ => asked.image = word,
        }
    }
    assert!(!asked.image.is_empty(), "name the image to make");
    asked
}

fn main() {
    let asked = asked();
    if let Some(step) = &asked.step {
        let (_, carry_out) = STEPS.iter().find(|(name, _)| name == step).unwrap();
        return carry_out(&asked);
    }
    println!(
        "{} units in {} files, {} GiB{}",
        asked.units,
        asked.files,
        asked.size_bytes >> 30,
        if asked.sums { ", with checksums" } else { "" }
    );
    for step in &asked.steps {
        assert!(again(step), "step {step} failed");
    }
}

/// Carries out a step in a process of its own; returns whether it ended well.
pub fn again(step: &str) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args().skip(1)).args(["--step", step]).status().unwrap().success()
}
