//! The generic group of fstests: on the mount as a file system of FUSE, and on XFS what the mount
//! ran.
//!
//! Each test is a run of its own with a time limit, because the suite has none. A test that does
//! not end is killed with all it started, and the next begins on a fresh file system. The suite
//! calls mount(8), umount(8) and df(1); small scripts with these names, on its search path alone,
//! call `bedplate` for what is ours.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::results::{Results, Verdict};
use super::sources::Tree;
use super::test_mount::{Ended, Runner, Side, device};
use crate::cleanup::Guard;
use crate::real::bed::{Bed, LoopDevice, detach, kill};
use crate::real::needs::find_program;
use crate::sh;

const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The tests of the short form: of names, attributes, sizes, allocation, locks, direct reads and
/// writes, maps, and their combinations.
const QUICK: [u32; 40] = [
    1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 20, 23, 24, 28, 29, 30, 35, 37, 62, 69, 74, 80, 84, 86,
    87, 88, 91, 105, 112, 113, 123, 126, 130, 131, 169, 184, 221, 245, 257,
];

/// The users that tests act as.
const USERS: [&str; 3] = ["fsgqa", "fsgqa2", "123456-fsgqa"];

/// Builds the tree and returns it.
pub fn tree(path: &Path) -> Result<PathBuf> {
    Tree { path, mark: "tests/generic", built: "ltp/fsx", commands: "make" }.build()
}

/// Returns the tests that are asked for: those of the group `auto` that are not called dangerous.
pub fn tests(tree: &Path, quick: bool, only: &[String]) -> Result<Vec<String>> {
    let list = std::fs::read_to_string(tree.join("tests/generic/group.list"))
        .context("the tree is not built: it has no tests/generic/group.list")?;
    let named = |test: &String| {
        only.is_empty() || only.iter().any(|prefix| test.starts_with(prefix.as_str()))
    };
    let short = |test: &String| {
        !quick
            || !only.is_empty()
            || QUICK.iter().any(|number| *test == format!("generic/{number:03}"))
    };
    Ok(parse_groups(&list).into_iter().filter(named).filter(short).collect())
}

fn parse_groups(list: &str) -> Vec<String> {
    let tests = list.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let number =
            words.next().filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
        let groups: Vec<_> = words.collect();
        let wanted =
            groups.contains(&"auto") && !groups.iter().any(|group| group.starts_with("dangerous"));
        wanted.then(|| format!("generic/{number}"))
    });
    tests.collect()
}

/// Two devices, the suite's configuration for them, and what has to be undone.
struct Bench<'a> {
    bed: &'a Bed,
    side: &'a Side,
    tree: &'a Path,
    configuration: PathBuf,
    places: [PathBuf; 2],
    /// Ends whatever the suite started. Declared before the devices: it runs first.
    _processes: Guard,
    _devices: Vec<LoopDevice>,
}

/// Runs `tests` on `side`, each within `limit`, and returns their verdicts.
pub fn generic(
    bed: &Bed,
    side: &Side,
    tree: &Path,
    runner: &Runner,
    tests: &[String],
    limit: Duration,
) -> Result<Results> {
    let _users = USERS.iter().map(|name| user(name)).collect::<Result<Vec<_>>>()?;
    let mut results = Results::default();
    let mut bench = Bench::new(bed, side, tree)?;
    for test in tests {
        let log = runner.logs.join(format!("{}.log", test.replace('/', "-")));
        let ended = bench.run(runner, test, &log, limit)?;
        let verdict = if ended.late {
            Verdict::Failed(format!("it did not end within {} s", limit.as_secs()))
        } else {
            verdict(test, &ended)
        };
        println!("    {side}: {test} {}", describe(&verdict));
        if !matches!(verdict, Verdict::Failed(_)) {
            std::fs::remove_file(&log)?;
        }
        results.add(test, verdict);
        if ended.late {
            bench = bench.start_over()?;
        }
    }
    results.add_check(bench.end());
    Ok(results)
}

fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Failed(reason) => format!("FAILED: {reason}"),
        Verdict::Skipped(reason) => format!("skipped: {reason}"),
    }
}

impl<'a> Bench<'a> {
    fn new(bed: &'a Bed, side: &'a Side, tree: &'a Path) -> Result<Self> {
        let places = [bed.make_directory("test")?, bed.make_directory("scratch")?];
        let (test, test_loop) = device(bed, side, "test")?;
        let (scratch, scratch_loop) = device(bed, side, "scratch")?;
        let configuration = bed.path("local.config");
        std::fs::write(
            &configuration,
            configure(side, [&test, &scratch], &places, &bed.path("results")),
        )?;
        write_tools(bed)?;
        let (directory, mounts) = (bed.path(""), places.clone());
        let processes = Guard::new(move || {
            processes_with(&directory).into_iter().for_each(kill);
            mounts.iter().for_each(|place| detach(place));
        });
        Ok(Self {
            bed,
            side,
            tree,
            configuration,
            places,
            _processes: processes,
            _devices: test_loop.into_iter().chain(scratch_loop).collect(),
        })
    }

    fn run(&self, runner: &Runner, test: &str, log: &Path, limit: Duration) -> Result<Ended> {
        let tools = self.bed.path("tools");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(
            std::iter::once(tools)
                .chain(std::env::split_paths(&path))
                .chain(["/usr/sbin".into(), "/sbin".into()]),
        )?;
        let mut command = Command::new("./check");
        command
            .arg(test)
            .current_dir(self.tree)
            .env("PATH", path)
            .env("HOST_OPTIONS", &self.configuration);
        let ended = runner.run(&mut command, log, limit)?;
        Ok(ended)
    }

    /// A fresh file system after a test that was killed.
    fn start_over(self) -> Result<Self> {
        let Self { bed, side, tree, .. } = self;
        drop(self._processes);
        drop(self._devices);
        for name in ["test", "scratch"] {
            let image = bed.path(&side.image(name));
            std::fs::remove_file(&image)
                .with_context(|| format!("cannot remove {}", image.display()))?;
        }
        Self::new(bed, side, tree)
    }

    /// Unmounts what is mounted and checks both volumes.
    fn end(self) -> Result<()> {
        let checked = self.places.iter().zip(["test", "scratch"]).try_for_each(|(place, name)| {
            if super::super::bed::is_mounted(place) {
                sh::output(Command::new(self.bed.path("tools/umount")).arg(place), COMMAND_LIMIT)?;
            }
            let image = self.bed.path(&self.side.image(name));
            match self.side {
                // The suite checks what it wipes.
                Side::Xfs if !is_xfs(&image)? => Ok(()),
                Side::Xfs => sh::output(
                    Command::new("xfs_repair").args(["-n", "-f"]).arg(&image),
                    COMMAND_LIMIT,
                )
                .map(drop),
                Side::Mount(_) | Side::Leased => self.bed.check(&image),
            }
        });
        let images = ["test", "scratch"].map(|name| self.bed.path(&self.side.image(name)));
        drop(self);
        images.iter().for_each(|image| drop(std::fs::remove_file(image)));
        checked
    }
}

/// Tells whether an image still begins as XFS does.
fn is_xfs(image: &Path) -> Result<bool> {
    let mut magic = [0; 4];
    std::io::Read::read_exact(&mut std::fs::File::open(image)?, &mut magic)?;
    Ok(&magic == b"XFSB")
}

/// The suite's configuration, as shell.
fn configure(side: &Side, devices: [&Path; 2], places: &[PathBuf; 2], results: &Path) -> String {
    let mut text = String::new();
    let mut set = |name: &str, value: &str| {
        writeln!(text, "export {name}='{value}'").expect("a string takes everything");
    };
    let [test, scratch] = devices;
    set("TEST_DEV", &test.to_string_lossy());
    set("TEST_DIR", &places[0].to_string_lossy());
    set("SCRATCH_DEV", &scratch.to_string_lossy());
    set("SCRATCH_MNT", &places[1].to_string_lossy());
    set("RESULT_BASE", &results.to_string_lossy());
    match side {
        Side::Xfs => set("FSTYP", "xfs"),
        Side::Mount(_) | Side::Leased => {
            let options = format!("-o {}", side.mount_options());
            set("FSTYP", "fuse");
            set("FUSE_SUBTYP", ".bedplate");
            set("MOUNT_OPTIONS", &options);
            set("TEST_FS_MOUNT_OPTS", &options);
        }
    }
    text
}

/// mount(8) for what is ours; a change of a live mount is the kernel's business, without the helper
/// that fuse3 brings.
const MOUNT: &str = r#"#!/bin/sh
case " $* " in *" -t fuse.bedplate "*) ;; *) exec @mount@ "$@" ;; esac
case "$*" in *remount*) exec @mount@ -i "$@" ;; esac
options= places=
while [ $# -gt 0 ]; do
    case "$1" in
        -t) shift ;;
        -o) options="$options${options:+,}$2"; shift ;;
        -*) ;;
        *) places="$places $1" ;;
    esac
    shift
done
exec @bedplate@ mount $places ${options:+-o "$options"} > /dev/null
"#;

/// umount(8), which waits for the end of the process that served the mount; a bind mount has none.
const UMOUNT: &str = r#"#!/bin/sh
for last; do :; done
if [ $# = 1 ] && [ "$(@findmnt@ -rno FSTYPE,FSROOT "$last" | tail -n 1)" = "fuse.bedplate /" ]; then
    exec > /dev/null
    exec @bedplate@ unmount "$(@findmnt@ -rno TARGET "$last" | tail -n 1)"
fi
exec @umount@ "$@"
"#;

/// The suite knows no types with a dot.
const DF: &str = "#!/bin/sh\n@df@ \"$@\" | sed 's/ fuse\\.bedplate / fuse /'\n";

fn write_tools(bed: &Bed) -> Result<()> {
    let tools = bed.make_directory("tools")?;
    let bedplate = bed.program.to_string_lossy().into_owned();
    for (name, text) in [("mount", MOUNT), ("umount", UMOUNT), ("df", DF)] {
        let mut text = text.replace("@bedplate@", &bedplate);
        for program in ["mount", "umount", "findmnt", "df"] {
            let real =
                find_program(program).with_context(|| format!("{program} is not installed"))?;
            text = text.replace(&format!("@{program}@"), &real.to_string_lossy());
        }
        let path = tools.join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    }
    Ok(())
}

/// Adds a user with a group of that name where there is none; dropped, it is removed again.
fn user(name: &'static str) -> Result<Option<Guard>> {
    if sh::finish(Command::new("id").arg(name), COMMAND_LIMIT)?.status.success() {
        return Ok(None);
    }
    let guard = Guard::new(move || {
        // It may be there only in part, when adding it failed.
        for program in ["userdel", "groupdel"] {
            drop(sh::finish(Command::new(program).arg(name), COMMAND_LIMIT));
        }
    });
    // su(1) complains of a home that is not there, in what the tests print.
    let arguments = [
        "--badname",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        "/",
        "--shell",
        "/bin/bash",
        name,
    ];
    let added = sh::finish(Command::new("useradd").args(arguments), COMMAND_LIMIT)?;
    if !added.status.success() {
        bail!("cannot add the user {name}: {}", added.text().trim());
    }
    Ok(Some(guard))
}

/// Returns the processes whose environment or command line names `directory`: what the suite
/// started, in whatever group of processes.
fn processes_with(directory: &Path) -> Vec<u32> {
    let (own, wanted) =
        (std::process::id(), directory.to_string_lossy().trim_end_matches('/').as_bytes().to_vec());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let names = |file: &str| {
            std::fs::read(entry.path().join(file))
                .is_ok_and(|text| text.windows(wanted.len()).any(|part| part == wanted))
        };
        (pid != own && (names("environ") || names("cmdline"))).then_some(pid)
    });
    ours.collect()
}

/// Reads what `check` says of the one test that it ran.
fn verdict(test: &str, ended: &Ended) -> Verdict {
    let line = ended
        .text
        .lines()
        .rfind(|line| line.starts_with(test) && line.len() > test.len())
        .unwrap_or_default();
    let said = |mark: &str| line.split_once(mark).map(|(_, rest)| rest.trim().to_owned());
    if let Some(reason) = said("[not run]") {
        return Verdict::Skipped(reason);
    }
    if let Some(reason) = said("[expunged]") {
        return Verdict::Skipped(format!("left out: {reason}"));
    }
    if ended.code == Some(0) && ended.text.contains("Passed all 1 tests") {
        return Verdict::Passed;
    }
    // The first line that is there and should not be says most.
    let reason = ended
        .text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with('+') && !line.starts_with("+++"));
    let mismatch = said("- ").or_else(|| said("[failed")).filter(|words| !words.is_empty());
    let reason = reason
        .map(str::to_owned)
        .or(mismatch)
        .unwrap_or_else(|| super::pjdfstest::last_line(&ended.text, false));
    Verdict::Failed(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, code: i32) -> Verdict {
        verdict("generic/003", &Ended { code: Some(code), late: false, text: text.to_owned() })
    }

    #[test]
    fn what_check_says_of_a_test_is_read() {
        let head = "FSTYP         -- fuse\nPLATFORM      -- Linux\n\n";
        assert_eq!(
            of(
                &format!("{head}generic/003  10s ...  9s\nRan: generic/003\nPassed all 1 tests\n"),
                0
            ),
            Verdict::Passed
        );
        let skipped = format!(
            "{head}generic/003       [not run] this test requires quota\nRan: generic/003\nNot \
             run: generic/003\nPassed all 1 tests\n"
        );
        assert_eq!(of(&skipped, 0), Verdict::Skipped("this test requires quota".to_owned()));
        let failed = format!(
            "{head}generic/003  - output mismatch (see x)\n    --- tests/generic/003.out\n    +++ \
             results/003.out.bad\n    @@ -1 +1,2 @@\n    +ERROR: time\nFailures: \
             generic/003\nFailed 1 of 1 tests\n"
        );
        assert_eq!(of(&failed, 1), Verdict::Failed("+ERROR: time".to_owned()));
        assert_eq!(
            of(&format!("{head}common/config: Error: no such device\n"), 1),
            Verdict::Failed("common/config: Error: no such device".to_owned())
        );
    }

    #[test]
    fn the_group_auto_without_the_dangerous_ones() {
        let list =
            "# comment\n\n001 rw auto quick\n002 auto dangerous_fuzzers\n003 shutdown\n1234 auto\n";
        assert_eq!(parse_groups(list), vec!["generic/001", "generic/1234"]);
    }
}
