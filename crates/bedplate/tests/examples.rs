//! The examples are documentation that runs: each of them checks by itself what it shows.
#![forbid(unsafe_code)]

#[path = "../examples/page_writers.rs"]
mod page_writers;
#[path = "../examples/ten_line_store.rs"]
mod ten_line_store;
#[path = "../examples/wal_group_commit.rs"]
mod wal_group_commit;

#[test]
fn ten_line_store_runs() {
    ten_line_store::main().unwrap();
}

#[test]
fn wal_group_commit_runs() {
    wal_group_commit::main().unwrap();
}

#[test]
fn page_writers_runs() {
    page_writers::main().unwrap();
}
