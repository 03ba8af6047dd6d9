//! How results reach people and programs.

pub mod counters;
pub mod output;
pub mod progress;
pub mod text;
