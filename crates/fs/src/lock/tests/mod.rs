//! Tests of the locks: by threads, and by a checker that tries orders of threads.

mod inode_lock;
mod model;
mod range_lock;
