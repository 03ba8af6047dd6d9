//! The coverage-guided driver: libFuzzer around the target that `BEDPLATE_FUZZ` names.
#![no_main]

use std::alloc::System;
use std::sync::OnceLock;

use cap::Cap;
use fuzz::Target;
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, fuzz::MEMORY_MAX);

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("BEDPLATE_FUZZ").unwrap_or_default();
        Target::find(&name).unwrap_or_else(|| panic!("BEDPLATE_FUZZ={name} names no target"))
    })
}

fuzz_target!(|data: &[u8]| {
    if let Err(why) = target().try_run(data) {
        eprintln!("{why}");
        std::process::abort();
    }
});
