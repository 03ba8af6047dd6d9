//! Runs the binary in a directory that is gone afterwards, with everything that was mounted in it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::mount::UnmountFlags;
use serde_json::Value;
use tempfile::TempDir;

/// How large the volumes of these tests are: twice the smallest.
pub const SIZE: &str = "64M";

/// A directory for one test. Dropping it, also by a failed test, unmounts what is mounted below and
/// removes it.
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("bedplate-cli-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Makes a directory and returns its path.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Formats an image and returns its path.
    pub fn image(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        bedplate(["format", path.to_str().unwrap(), "--size", SIZE]).succeeds();
        path
    }

    /// Formats an image, mounts it with `options` and returns both places.
    pub fn mounted(&self, options: &str) -> (PathBuf, PathBuf) {
        let (image, dir) = (self.image("volume.img"), self.directory("mnt"));
        let mut arguments = vec!["mount".as_ref(), image.as_os_str(), dir.as_os_str()];
        if !options.is_empty() {
            arguments.extend(["-o".as_ref(), OsStr::new(options)]);
        }
        bedplate(arguments).succeeds();
        (image, dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let base = self.path("");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for dir in table
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(4))
            .map(Path::new)
            .filter(|dir| dir.starts_with(&base))
        {
            if rustix::mount::unmount(dir, UnmountFlags::DETACH).is_err() {
                // A test that fails as an ordinary user must not leave its mount behind either;
                // there is nothing left to do when this fails too.
                let _helped = Command::new("fusermount3").args(["-u", "-z"]).arg(dir).status();
            }
        }
    }
}

/// One run of the binary.
pub struct Run {
    line: String,
    output: Output,
}

pub fn bedplate<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Run {
    run(command(arguments))
}

/// Returns the binary with arguments, to be run in a special way.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
    // What the daemons of tests say is not for the log of this machine.
    command.args(arguments).env_remove("BEDPLATE_LOG").env("BEDPLATE_SYSLOG", "/dev/null");
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Run {
    let line = command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    Run { line, output: command.output().unwrap() }
}

impl Run {
    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub fn stdout_bytes(&self) -> &[u8] {
        &self.output.stdout
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn told(&self) -> String {
        format!(
            "bedplate {}\nexit code {}\nstandard output:\n{}\nstandard error:\n{}",
            self.line,
            self.code(),
            self.stdout(),
            self.stderr()
        )
    }

    pub fn succeeds(self) -> Self {
        assert_eq!(self.code(), 0, "{}", self.told());
        self
    }

    /// Asserts the exit code of a command that tells health.
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}", self.told());
        self
    }

    /// Asserts the exit code and that standard error is one sentence of ours with `part` in it.
    pub fn fails(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code(), code, "{}", self.told());
        let stderr = self.stderr();
        let sentences: Vec<&str> =
            stderr.lines().filter(|line| !line.starts_with("bedplate: warning:")).collect();
        assert_eq!(sentences.len(), 1, "one sentence\n{}", self.told());
        assert!(
            sentences[0].starts_with("bedplate: ") && sentences[0].contains(part),
            "'{part}' is missing\n{}",
            self.told()
        );
        assert!(
            !sentences[0].contains("os error"),
            "an error number is no explanation\n{}",
            self.told()
        );
        self
    }

    /// Asserts that text of standard output contains `part`.
    pub fn says(self, part: &str) -> Self {
        assert!(self.stdout().contains(part), "'{part}' is missing\n{}", self.told());
        self
    }

    /// Returns standard output, which has to be one JSON document and nothing else.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.told()))
    }
}

/// Returns whether volumes can be mounted here; says why a test is skipped where not.
pub fn can_mount(test: &str) -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("skipped: {test}: there is no /dev/fuse here");
    }
    can
}

/// Returns bytes that no two blocks of which are alike.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 512 * 31 + at) % 251).unwrap()).collect()
}

/// Returns the string of a path.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
