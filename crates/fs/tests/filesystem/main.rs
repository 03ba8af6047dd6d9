//! The file system through its public interface, on devices in memory.

mod common;
mod cost;
mod cut;
mod data;
mod mounting;
mod names;
mod parallel;
mod support;
