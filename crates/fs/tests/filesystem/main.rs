//! The file system through its public interface, on devices in memory.

mod common;
mod mounting;
mod names;
