//! The examples are documentation that runs: each of them checks by itself what it shows.
#![forbid(unsafe_code)]

#[path = "../examples/page_writers.rs"]
mod page_writers;
#[expect(
    dead_code,
    reason = "its main reads the arguments of the program, which are the harness's here"
)]
#[path = "../examples/path_length.rs"]
mod path_length;
#[path = "../examples/readme.rs"]
mod readme;
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

#[test]
fn path_length_runs_and_refuses_unknown_calls() {
    path_length::run(&path_length::KINDS, 4).unwrap();
    assert!(
        path_length::run(&["stroll"], 1)
            .unwrap_err()
            .to_string()
            .contains("read, write and append")
    );
}

/// The README's example failed as printed: nothing made the image, and a second run refused to
/// format it again.
#[test]
fn the_example_of_the_readme_runs_twice_as_printed() {
    let readme = include_str!("../../../README.md");
    let printed = readme
        .split("```rust,no_run\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the README has an example");
    assert_eq!(code(printed), code(include_str!("../examples/readme.rs")));

    // The other tests here name every file by its whole path.
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    readme::main().unwrap();
    readme::main().unwrap();
}

/// Returns the lines of code, as the README has them.
fn code(source: &str) -> Vec<String> {
    let lines = source
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with("#!") && !line.is_empty());
    lines.map(|line| line.replace("pub fn main", "fn main")).collect()
}
