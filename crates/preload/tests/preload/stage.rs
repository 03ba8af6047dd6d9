//! Everything together: device, daemon, mount, and the program under the library.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use super::daemon::{DEVICE_BYTES, Daemon};
use super::filesystem::Mounted;

pub struct Stage {
    // Fields are dropped in this order: the mount before the directory that it is in.
    pub mount: Mounted,
    pub daemon: Arc<Daemon>,
    pub device: File,
    pub directory: tempfile::TempDir,
}

/// The library, which cargo puts beside the tests.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let test = std::env::current_exe().unwrap();
            let profile = test.parent().and_then(Path::parent).unwrap();
            let library = profile.join("libbedplate_lease.so");
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "bedplate-preload", "--lib"]);
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success());
            assert!(library.exists(), "{} was not built", library.display());
            library
        })
        .clone()
}

/// A program that lies beside the tests, compiled by the first that asks: it cannot be written while
/// another runs it. Nothing where there is no compiler.
pub fn compiled(name: &'static str) -> Option<PathBuf> {
    static BUILT: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    BUILT.lock().unwrap().entry(name).or_insert_with(|| compile(name)).clone()
}

fn compile(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/preload/{name}.c"));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lease-{name}"));
    let mut compile = Command::new("cc");
    compile.args(["-w", "-O1", "-pthread", "-o"]).arg(&made).arg(source);
    let is_made = compile.status().is_ok_and(|status| status.success());
    if !is_made {
        println!("skipped: needs a C compiler");
    }
    is_made.then_some(made)
}

impl Stage {
    /// Nothing where this machine has no FUSE or no C compiler.
    pub fn new() -> Option<Self> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = directory.path().join("device");
        std::fs::write(&path, vec![b'D'; DEVICE_BYTES as usize]).unwrap();
        let device = File::options().read(true).write(true).open(&path).unwrap();
        device.sync_all().unwrap();
        let daemon = Daemon::new(&path);
        let mount = Mounted::new(&directory.path().join("mnt"), &daemon);
        let Some(mount) = mount.filter(|_| compiled("probe").is_some()) else {
            println!("skipped: needs FUSE, root and a C compiler");
            return None;
        };
        Some(Self { mount, daemon, device, directory })
    }

    /// The program under the library, with this script: words, `@` for the leased file and `@@` for
    /// the other.
    pub fn command(&self, script: &str) -> Command {
        let path = |name| self.mount.path.join(name).into_os_string();
        let mut command = Command::new(compiled("probe").unwrap());
        for word in script.split_whitespace() {
            match word {
                "@" => command.arg(path("data")),
                "@@" => command.arg(path("other")),
                word => command.arg(word),
            };
        }
        command.env("LD_PRELOAD", library());
        command.env("BEDPLATE_LEASE_REPORT", self.directory.path().join("report"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs it, and returns what it printed, its lines joined by commas.
    pub fn run(&self, script: &str) -> String {
        let output = self.command(script).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {} {errors}", output.status);
        lines(&output.stdout)
    }

    /// The letter at a place of the device.
    pub fn on_device(&self, at: u64) -> char {
        let mut byte = [0];
        self.device.read_exact_at(&mut byte, at).unwrap();
        byte[0] as char
    }

    /// The letter at a place of the file, as the mount has it.
    pub fn on_mount(&self, at: usize) -> char {
        self.mount.seen.bytes.lock().unwrap()[0][at] as char
    }

    /// The lines that processes left when they ended.
    pub fn report(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("report")).unwrap_or_default()
    }
}

pub fn lines(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim().replace('\n', ", ")
}
