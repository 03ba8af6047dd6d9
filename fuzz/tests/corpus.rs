//! Replays every input that is kept, with a cap on memory.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::fs;
use std::path::{Path, PathBuf};

use cap::Cap;
use fuzz::TARGETS;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, fuzz::MEMORY_MAX);

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// One test, because a panic in a thread is told from that of another target by its time alone.
#[test]
fn what_was_found_once_stays_mended() {
    let mut broken = 0;
    for target in &TARGETS {
        let mut inputs: Vec<PathBuf> =
            fs::read_dir(corpus().join(target.name)).expect("every target has a corpus").map(|entry| entry.expect("it is listed").path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for input in inputs {
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
        assert!(TARGETS.iter().any(|target| name == target.name), "{} is no target", name.display());
    }
}
