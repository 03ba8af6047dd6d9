//! The `bedplate` command; everything it does is in the library of this crate, where fuzzers reach
//! it too.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bedplate_cli::run()
}
