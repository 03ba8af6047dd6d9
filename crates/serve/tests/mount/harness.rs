//! A volume in memory mounted on a temporary directory, unmounted whatever happens; and a second
//! process that serves one.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::{FileSystem, FormatOptions};
use bedplate_serve::control::{Answer, Request};
use bedplate_serve::fuse::{Mount, MountSettings, Transport};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

/// Size of the volumes: more than the tests write, less than the machine has.
const VOLUME_BYTES: u64 = 512 << 20;

/// Environment that has the tests be served over io_uring.
pub const OVER_RING: &str = "BEDPLATE_TEST_OVER_RING";

/// Environment of a child process that serves: the directory, the mount options.
const CHILD_DIRECTORY: &str = "BEDPLATE_TEST_SERVE_ON";
const CHILD_OPTIONS: &str = "BEDPLATE_TEST_SERVE_WITH";

pub const NOBODY: u32 = 65534;

/// A mounted volume. Dropping it unmounts, by force if need be.
pub struct Mounted {
    pub mount: Mount,
    pub device: Arc<dyn BlockDevice>,
    dir: TempDir,
}

impl Mounted {
    /// Mounts a fresh volume; `None`, with the reason printed, where that is impossible.
    pub fn new(options: &str) -> Option<Self> {
        available().then(|| Self::on(format_memory(), options))
    }

    /// Mounts a formatted device.
    pub fn on(device: Arc<dyn BlockDevice>, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = parse(options);
        let fs =
            FileSystem::mount(Arc::clone(&device), None, settings.file_system.clone()).unwrap();
        let mount = Mount::start(fs, dir.path(), &settings).unwrap();
        Self { mount, device, dir }
    }

    /// Unmounts cleanly and mounts the same volume again.
    pub fn again(self, options: &str) -> Self {
        self.mount.unmount().unwrap();
        let device = Arc::clone(&self.device);
        drop(self);
        Self::on(device, options)
    }

    /// Unmounts cleanly and has the volume checked.
    pub fn finish(self) {
        self.mount.unmount().unwrap();
        let device = Arc::clone(&self.device);
        drop(self);
        let report = FileSystem::check(&device, None, false).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert!(report.clean_unmount);
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Reads mount options; over io_uring where the environment says so.
fn parse(options: &str) -> MountSettings {
    let mut settings = MountSettings::parse(options).unwrap();
    if std::env::var_os(OVER_RING).is_some() {
        assert!(bedplate_fuse::offered().is_none(), "the kernel has to offer io_uring");
        settings.transport = Transport::IoUring;
    }
    settings
}

pub fn format_memory() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME_BYTES);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    FileSystem::format(&device, None, &FormatOptions { uid, gid, ..FormatOptions::default() })
        .unwrap();
    device
}

/// Has the mount carry out a request of a command, and returns its answer.
pub fn ask(root: &Path, request: &Request) -> Answer {
    bedplate_serve::control::ask(root, request).unwrap()
}

/// As [`ask`], for a request that must succeed.
pub fn done(m: &Mounted, request: &Request) {
    match ask(m.root(), request) {
        Answer::Done(_) => {}
        failed => panic!("{request:?}: {failed:?}"),
    }
}

pub fn checkpoint(name: &str) -> Request {
    Request::Create { name: name.into(), paths: Vec::new(), keep: false, automatic: false }
}

pub fn forced_rollback(name: &str, path: Option<&str>) -> Request {
    Request::Rollback { name: name.into(), path: path.map(Into::into), force: true }
}

/// Tells whether a volume can be mounted here, and prints why not.
pub fn available() -> bool {
    let why_not = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !is_root() && !runs("fusermount3", &["-V"]) {
        "ordinary users need fusermount3"
    } else {
        return true;
    };
    println!("skipped: {why_not}");
    false
}

/// Tells whether a program is installed, and prints when not.
pub fn has_program(name: &str) -> bool {
    let found = runs(name, &["--version"]) || runs(name, &["-V"]);
    if !found {
        println!("skipped: {name} is not installed");
    }
    found
}

/// Tells whether the tests run as root, and prints when not.
pub fn needs_root() -> bool {
    if !is_root() {
        println!("skipped: needs root");
    }
    is_root()
}

/// Tells whether users other than root may mount, and prints when not.
pub fn ordinary_users_may_mount() -> bool {
    let open_to_all = Path::new("/dev/fuse")
        .metadata()
        .is_ok_and(|device| device.permissions().mode() & 0o006 == 0o006);
    if !open_to_all {
        println!("skipped: only root may open /dev/fuse");
    }
    open_to_all && has_program("fusermount3")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Runs a shell script as a user, with `$M` the mount; returns whether it succeeded and what it
/// printed.
pub fn shell_as(uid: u32, mounted: &Mounted, script: &str) -> (bool, String) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).env("M", mounted.root()).current_dir("/").stdin(Stdio::null());
    if uid != rustix::process::geteuid().as_raw() {
        command.uid(uid).gid(uid);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

/// Runs a shell script as this user; panics with what it printed when it fails.
pub fn shell(mounted: &Mounted, script: &str) -> String {
    let (success, said) = shell_as(rustix::process::geteuid().as_raw(), mounted, script);
    assert!(success, "{script}\n{said}");
    said
}

/// A process of its own that serves a volume; killed when dropped, and what it leaves is taken
/// away.
pub struct Server {
    pub process: Child,
    pub dir: TempDir,
    /// Kept open while the server runs: it writes to it when it ends.
    said: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts a server as user `uid` and waits until its mount is live.
    pub fn start(uid: u32, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
        let mut command = server_command(uid, options, dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let live = said.any(|line| line.unwrap().ends_with("live"));
        let server = Self { process, dir, said };
        assert!(live, "the server did not start");
        server
    }

    /// Waits for the server to end after its mount was taken away; returns whether it ended well.
    pub fn wait(&mut self) -> bool {
        self.said.by_ref().for_each(drop);
        self.process.wait().unwrap().success()
    }
}

/// Returns the command of a server as user `uid` on `directory`.
pub fn server_command(uid: u32, options: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "harness::serve_as_a_child", "--nocapture"]);
    command.env(CHILD_DIRECTORY, directory).env(CHILD_OPTIONS, options).current_dir("/");
    if uid != rustix::process::geteuid().as_raw() {
        command.uid(uid).gid(uid);
    }
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail where the server has ended and left nothing, as it should.
        drop(self.process.kill());
        drop(self.process.wait());
        // Only root may do it itself, and only root may lack fusermount3 here.
        if rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH).is_err() {
            let by_helper = ["-u", "-z", "-q"];
            drop(Command::new("fusermount3").args(by_helper).arg(self.dir.path()).output());
        }
    }
}

/// Not a test of its own: what [`Server`] runs. Without the environment that the server sets there
/// is nothing to serve.
#[test]
fn serve_as_a_child() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let settings = parse(&std::env::var(CHILD_OPTIONS).unwrap());
    let fs = FileSystem::mount(format_memory(), None, settings.file_system.clone()).unwrap();
    let mount = Mount::start(fs, Path::new(&directory), &settings).unwrap();
    println!("live");
    mount.wait().unwrap();
}

/// Bytes that tell where they belong: `seed` and the offset decide each.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((offset + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 56) as u8)
        .collect()
}

/// A small generator of numbers: the same seed gives the same test.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Asserts that an operation failed because the server is dead. Over io_uring the kernel ends the
/// connection some moments after the process, and cancels what is asked meanwhile.
pub fn is_cut_off<T: std::fmt::Debug>(result: std::io::Result<T>) {
    let errno = errno(result);
    let in_the_moment = [libc::ECANCELED, libc::ECONNABORTED].contains(&errno);
    let may_be = std::env::var_os(OVER_RING).is_some() && in_the_moment;
    assert!(errno == libc::ENOTCONN || may_be, "S-45: {errno}");
}

/// Returns the error number of a failed operation.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}
