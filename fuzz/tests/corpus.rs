//! Replays every input that is kept, with a cap on memory, and with lengths and counts that are too
//! large.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cap::Cap;
use fuzz::TARGETS;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, fuzz::MEMORY_MAX);

/// A panic in a thread is told from that of another target, and memory of one input from that of
/// another, by its time alone.
static TURN: Mutex<()> = Mutex::new(());

/// Decoders whose memory depends on nothing but their input.
const PLAIN: [&str; 10] = [
    "superblock",
    "label",
    "table",
    "log_head",
    "log_records",
    "rows",
    "pack",
    "sizes",
    "mount_options",
    "names",
];
/// What one of them may take for an input of at most 4 KiB, in bytes. A length or a count that is
/// believed takes more.
const PLAIN_BYTES_MAX: usize = 4 << 20;
/// What lengths, counts and offsets claim.
const CLAIMS: [u64; 4] = [u64::MAX, i64::MAX as u64, u32::MAX as u64, 0x00ff_ffff_00ff_ffff];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let mut inputs: Vec<PathBuf> = fs::read_dir(corpus().join(target))
        .expect("every target has a corpus")
        .map(|entry| entry.expect("it is listed").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{target} has no corpus");
    inputs
}

/// Every field of every input that is kept claims the most there is: no decoder allocates by what
/// it was told.
#[test]
fn lengths_and_counts_that_are_too_large_take_no_memory() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut tried = 0_u64;
    for name in PLAIN {
        let target = fuzz::Target::find(name).expect("it is in the list");
        for input in inputs(name) {
            let mut data = fs::read(&input).expect("it is there");
            data.resize(data.len().clamp(512, 4096), 0);
            for at in 0..data.len().min(512) - 8 {
                for claim in CLAIMS {
                    let mut data = data.clone();
                    data[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                    ALLOCATOR
                        .set_limit(ALLOCATOR.allocated() + PLAIN_BYTES_MAX)
                        .expect("more than what is taken");
                    let outcome = target.try_run(&data);
                    ALLOCATOR.set_limit(fuzz::MEMORY_MAX).expect("more than what is taken");
                    assert_eq!(outcome, Ok(()), "{} with {claim:#x} at {at}", input.display());
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 10_000, "only {tried} inputs");
}

#[test]
fn what_was_found_once_stays_mended() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut broken = 0;
    for target in &TARGETS {
        for input in inputs(target.name) {
            if let Err(why) = target.try_run(&fs::read(&input).expect("it is there")) {
                // Panics are noted, not printed, so the assertion's own text would be lost.
                println!("{}: {why}", input.display());
                broken += 1;
            }
        }
    }
    assert_eq!(broken, 0, "inputs above");
}

#[test]
fn every_corpus_belongs_to_a_target() {
    for entry in fs::read_dir(corpus()).expect("the corpus is there") {
        let name = entry.expect("it is listed").file_name();
        assert!(
            TARGETS.iter().any(|target| name == target.name),
            "{} is no target",
            name.display()
        );
    }
}
