//! Files of any file system, past the page cache (S-349).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::stage::{compiled, library, lines};

/// A directory on the file system of the build, and what processes report.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.0.path())
            .env("LD_PRELOAD", library())
            .env("BEDPLATE_DIRECT", "nothing:*.direct")
            .env("BEDPLATE_LEASE_REPORT", self.path("report"))
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", lines(&said));
        lines(&said)
    }

    /// What all processes counted of one kind.
    fn counted(&self, name: &str) -> u64 {
        let report = std::fs::read_to_string(self.path("report")).unwrap_or_default();
        let words = report.lines().filter(|line| line.starts_with("bedplate-direct:"));
        words
            .flat_map(str::split_whitespace)
            .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .map(|count| count.parse::<u64>().unwrap())
            .sum()
    }

    /// Tells whether files can be read and written directly here.
    fn takes_direct(&self) -> bool {
        let takes = self.counted("files") > 0 && self.counted("failed") == 0;
        if !takes {
            println!("skipped: the file system of the build takes no direct I/O");
        }
        takes
    }
}

#[test]
fn s_349_a_file_past_the_page_cache_is_as_one_through_it() {
    let Some(alike) = compiled("alike") else { return };
    let place = Place::new();
    for seed in 1..=12 {
        let said = place.run(&alike, &["a.direct", "b", &seed.to_string(), "300"]);
        assert_eq!(said, "alike", "seed {seed}");
        for name in ["a.direct", "b"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    }
    if place.takes_direct() {
        for name in ["reads", "writes", "bounced", "buffered-writes"] {
            assert!(place.counted(name) > 100, "{name}: {}", place.counted(name));
        }
    }
}

#[test]
fn s_349_whole_blocks_leave_nothing_in_the_page_cache() {
    let place = Place::new();
    place.run(Path::new("dd"), &["if=/dev/zero", "of=a.direct", "bs=1M", "count=8"]);
    place.run(Path::new("dd"), &["if=a.direct", "of=b", "bs=64K"]);
    if !place.takes_direct() {
        return;
    }
    assert_eq!((place.counted("reads"), place.counted("writes")), (128 + 1, 8));
    let cached = |name: &str| {
        let arguments = ["--bytes", "--noheadings", "--output", "RES", name];
        let output = Command::new("fincore").args(arguments).current_dir(place.0.path()).output();
        Some(lines(&output.ok().filter(|output| output.status.success())?.stdout))
    };
    match (cached("a.direct"), cached("b")) {
        (Some(direct), Some(other)) => {
            assert_eq!(direct, "0");
            assert_ne!(other, "0", "the other file is as without the library");
        }
        _ => println!("not counted: there is no fincore here"),
    }
}

#[test]
fn s_349_programs_see_nothing_of_the_second_descriptor() {
    let place = Place::new();
    std::fs::write(place.path("a.direct"), vec![b'x'; 10_000]).unwrap();
    let script = "exec 5<>a.direct; head -c 6000 <&5 >one; head -c 9000 <&5 >two; \
                  ls /proc/$$/fd | tr '\\n' ' '; exec 5>&-; ulimit -n 8; exec 6<a.direct 7<a.direct; \
                  cat a.direct one two | wc -c";
    let said = place.run(Path::new("bash"), &["-c", script]);
    assert!(said.ends_with("20000"), "{said}");
}
