//! The Linux Test Project's tests of system calls on files. Tests that make a file system of their
//! own say nothing of the mount and are left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::pjdfstest::last_line;
use super::results::{Results, Verdict};
use super::sources::Tree;
use super::test_mount::{Ended, Runner};

/// The system calls on files: the directories of their tests below testcases/kernel/syscalls.
const CALLS: &str = "access chdir chmod chown close copy_file_range creat faccessat faccessat2 \
                     fadvise fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl \
                     fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatat \
                     fstatfs fsync ftruncate futimesat getcwd getdents getxattr lchown lgetxattr \
                     link linkat listxattr llistxattr llseek lremovexattr lseek lstat mkdir \
                     mkdirat mknod mknodat mmap msync name_to_handle_at open open_by_handle_at \
                     openat openat2 pread preadv preadv2 pwrite pwritev pwritev2 read readahead \
                     readdir readlink readlinkat readv removexattr rename renameat renameat2 rmdir \
                     sendfile setxattr splice stat statfs statvfs statx symlink symlinkat sync \
                     sync_file_range syncfs truncate umask unlink unlinkat utime utimensat utimes \
                     write writev";

/// Words in a test's source that say that it makes a file system of its own.
const OWN: [&str; 5] =
    [".all_filesystems", ".mount_device", ".needs_device", ".format_device", "tst_acquire_device"];

/// Builds what is needed of the tree and returns it.
pub fn tree(path: &Path) -> Result<PathBuf> {
    let commands = format!(
        "[ -f configure ] || make autotools; [ -f include/mk/config.mk ] || ./configure \
         --disable-metadata --without-tirpc; make -j$(nproc) lib-all libs-all; for call in \
         {CALLS}; do make -k -j$(nproc) -C testcases/kernel/syscalls/$call || true; done; touch \
         .bedplate-built"
    );
    Tree { path, mark: "runtest/syscalls", built: ".bedplate-built", commands: &commands }.build()
}

/// One line of a list of tests.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    program: String,
    arguments: Vec<String>,
}

/// Runs the tests in `directory`, each within `limit`.
pub fn syscalls(
    tree: &Path,
    directory: &Path,
    runner: &Runner,
    quick: bool,
    only: &[String],
    limit: Duration,
) -> Result<Results> {
    let list = std::fs::read_to_string(tree.join("runtest/syscalls"))
        .context("the tree has no runtest/syscalls")?;
    let mut results = Results::default();
    // The short form is every fourth test.
    for (number, test) in parse_list(&list).into_iter().enumerate() {
        let wanted = if only.is_empty() {
            !quick || number.is_multiple_of(4)
        } else {
            only.iter().any(|prefix| test.name.starts_with(prefix.as_str()))
        };
        let Some(home) = home(tree, &test.program).filter(|_| wanted) else { continue };
        let log = runner.logs.join(format!("ltp-{}.log", test.name));
        let place = directory.join(&test.name);
        std::fs::create_dir(&place)?;
        std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(
            [home.clone(), tree.join("testcases/lib")]
                .into_iter()
                .chain(std::env::split_paths(&path)),
        )?;
        // Some tests open as many files as they may; with the limit of a service that is a million.
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 1024; exec \"$@\"", "sh"])
            .arg(home.join(&test.program))
            .args(&test.arguments)
            .current_dir(&home)
            .env("PATH", path)
            .env("TMPDIR", &place)
            .env("LTPROOT", tree);
        command.env("LTP_COLORIZE_OUTPUT", "n").env("LTP_DATAROOT", &home);
        let ended = runner.run(&mut command, &log, limit)?;
        let verdict = verdict(&ended);
        if !matches!(verdict, Verdict::Failed(_)) {
            std::fs::remove_file(&log)?;
        }
        results.add(test.name, verdict);
        // What a test leaves is its own; the next has a directory of its own.
        drop(std::fs::remove_dir_all(&place));
    }
    Ok(results)
}

/// Where a program lies, if it belongs to one of the calls and works on the file system that it is
/// given.
fn home(tree: &Path, program: &str) -> Option<PathBuf> {
    let place = tree.join("testcases/kernel/syscalls");
    let home = CALLS
        .split_whitespace()
        .map(|call| place.join(call))
        .find(|home| home.join(program).is_file())?;
    let plain = program.trim_end_matches("_64").trim_end_matches("_16");
    let source = std::fs::read_to_string(home.join(format!("{plain}.c"))).unwrap_or_default();
    (!OWN.iter().any(|word| source.contains(word))).then_some(home)
}

/// Reads `NAME PROGRAM ARGUMENT…`; lines that a shell would have to read are left out.
fn parse_list(list: &str) -> Vec<Test> {
    let lines = list.lines().map(str::trim).filter(|line| {
        !line.is_empty() && !line.starts_with('#') && !line.contains(['$', ';', '|', '"', '\''])
    });
    let tests = lines.filter_map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some(Test { name: words.next()?, program: words.next()?, arguments: words.collect() })
    });
    tests.collect()
}

/// The bits of an exit status.
const FAILED: i32 = 1 | 2 | 4;
const NOT_HERE: i32 = 32;

fn verdict(ended: &Ended) -> Verdict {
    let said = |words: &[&str]| {
        let line = ended.text.lines().find(|line| words.iter().any(|word| line.contains(word)));
        line.map_or_else(|| last_line(&ended.text, ended.late), |line| line.trim().to_owned())
    };
    match ended.code {
        Some(0) => Verdict::Passed,
        Some(code) if code & FAILED == 0 && code & NOT_HERE != 0 => {
            Verdict::Skipped(said(&["TCONF"]))
        }
        _ if ended.late => Verdict::Failed(last_line(&ended.text, true)),
        _ => Verdict::Failed(said(&["TFAIL", "TBROK", "TWARN"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tests_is_read_without_what_a_shell_would_have_to_read() {
        let list = "#DESCRIPTION:Kernel system calls\nabort01 abort01\n\nfsx01 fsx -l 5\ngf12 \
                    mkfifo $TMPDIR/x; growfiles\n";
        let plain = |name: &str, program: &str, arguments: &[&str]| Test {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
        };
        assert_eq!(
            parse_list(list),
            vec![plain("abort01", "abort01", &[]), plain("fsx01", "fsx", &["-l", "5"])]
        );
    }

    #[test]
    fn the_exit_status_says_what_happened_and_the_output_why() {
        let text =
            "open.c:3: TINFO: x\nopen.c:4: TFAIL: wrong mode\nopen.c:5: TCONF: no O_TMPFILE\n";
        let of = |code, late| verdict(&Ended { code, late, text: text.to_owned() });
        assert_eq!(of(Some(0), false), Verdict::Passed);
        assert_eq!(
            of(Some(32), false),
            Verdict::Skipped("open.c:5: TCONF: no O_TMPFILE".to_owned())
        );
        assert_eq!(of(Some(33), false), Verdict::Failed("open.c:4: TFAIL: wrong mode".to_owned()));
        assert_eq!(
            of(None, true),
            Verdict::Failed(
                "it did not end in time; last: open.c:5: TCONF: no O_TMPFILE".to_owned()
            )
        );
    }
}
