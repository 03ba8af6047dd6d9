//! The ground a test stands on: a directory of its own, images, loop devices and mounts, all gone
//! afterwards.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::cleanup::Guard;
use crate::sh;

/// How long any one command of `bedplate` may take.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The library that a program with leases has in front of its calls.
const LEASE_LIBRARY: &str = "libbedplate_lease.so";

/// A directory of its own, and how `bedplate` is started in it.
pub struct Bed {
    directory: PathBuf,
    _removal: Guard,
    /// The `bedplate` under test.
    pub program: PathBuf,
    /// Program and arguments that start `bedplate`: an ordinary user's, or without io_uring.
    pub launcher: Vec<OsString>,
}

impl Bed {
    /// Makes the directory, readable by every user, because some programs under test refuse to be
    /// root.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(program: &Path) -> Result<Self> {
        // Not the temporary directory: that may be in memory, and too small for a database.
        let place = Path::new("/var/tmp");
        let directory = tempfile::Builder::new()
            .prefix("bedplate-")
            .tempdir_in(place)
            .context("cannot make a directory in /var/tmp")?
            .keep();
        let path = directory.clone();
        let removal = Guard::new(move || {
            // A command that should have refused may have left a mount in the background.
            processes_of(&path).into_iter().for_each(kill);
            mounts_below(&path).iter().for_each(|mount| detach(mount));
            if let Err(error) = std::fs::remove_dir_all(&path) {
                eprintln!("xtask: cannot remove {}: {error}", path.display());
            }
        });
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self {
            directory,
            _removal: removal,
            program: program.to_path_buf(),
            launcher: Vec::new(),
        })
    }

    /// Returns the path of `name` in the bed.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes and returns an empty directory in the bed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make_directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Copies the program under test into the bed, where every user may run it, with the library
    /// of leases that lies beside it.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn use_copy_of_program(&mut self) -> Result<()> {
        let copy = self.path("bedplate");
        std::fs::copy(&self.program, &copy)?;
        if let Ok(library) = self.lease_library() {
            std::fs::copy(&library, self.path(LEASE_LIBRARY))?;
        }
        self.program = copy;
        Ok(())
    }

    /// Returns the library of leases that lies beside the program under test.
    ///
    /// # Errors
    /// When it is not there.
    pub fn lease_library(&self) -> Result<PathBuf> {
        let library = self.program.with_file_name(LEASE_LIBRARY);
        ensure!(library.exists(), "there is no {}", library.display());
        Ok(library)
    }

    /// Returns the search path of programs that call `bedplate` themselves.
    ///
    /// # Errors
    /// When the program's directory has a colon in its name.
    pub fn path_with_program(&self) -> Result<OsString> {
        let here = self.program.parent().map(Path::to_path_buf);
        let others = std::env::var_os("PATH").unwrap_or_default();
        std::env::join_paths(here.into_iter().chain(std::env::split_paths(&others)))
            .context("no search path can name the program's directory")
    }

    /// Returns the command `bedplate ARGUMENTS`, through the launcher.
    pub fn bedplate<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut words =
            self.launcher.iter().map(OsString::as_os_str).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(arguments).current_dir(&self.directory);
        command
    }

    /// Runs `bedplate ARGUMENTS`, which has to succeed, and returns its standard output.
    ///
    /// # Errors
    /// When it fails or does not end.
    pub fn succeeds<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        sh::output(&mut self.bedplate(arguments), COMMAND_LIMIT)
    }

    /// Runs `bedplate ARGUMENTS --json` and returns the document, of a healthy volume or not.
    ///
    /// # Errors
    /// When it fails, does not end, or prints something else.
    pub fn json<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<serde_json::Value> {
        let mut command = self.bedplate(arguments);
        command.arg("--json");
        let finished = sh::finish(&mut command, COMMAND_LIMIT)?;
        // Commands that tell health end with 1 or 4 where something is not whole (S-182).
        if !matches!(finished.status.code(), Some(0 | 1 | 4)) {
            bail!("{} ended with {}: {}", sh::describe(&command), finished.status, finished.text());
        }
        serde_json::from_str(&finished.stdout).with_context(|| {
            let what = sh::describe(&command);
            format!("{what} did not print one JSON document: {}", finished.text())
        })
    }

    /// Runs `bedplate ARGUMENTS`, which has to refuse with one sentence that holds all of `words`,
    /// and returns the sentence.
    ///
    /// # Errors
    /// When it succeeds, panics, says nothing, says more than a line, or says something else.
    pub fn refuses<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        words: &[&str],
    ) -> Result<String> {
        let mut command = self.bedplate(arguments);
        let what = sh::describe(&command);
        let done = sh::finish(&mut command, COMMAND_LIMIT)?;
        ensure!(
            !done.status.success(),
            "{what} succeeded, and should have refused: {}",
            done.text().trim()
        );
        ensure!(
            done.status.code().is_some_and(|code| code != 101),
            "{what} ended with {}: {}",
            done.status,
            done.text().trim()
        );
        let sentence = done.stderr.trim().to_owned();
        ensure!(!sentence.is_empty(), "{what} refused and did not say why");
        ensure!(
            sentence.lines().count() == 1,
            "{what} refused with more than one sentence: {sentence}"
        );
        for word in words {
            ensure!(
                sentence.to_lowercase().contains(&word.to_lowercase()),
                "{what} refused without the word '{word}': {sentence}"
            );
        }
        println!("    refused: {sentence}");
        Ok(sentence)
    }

    /// Makes an image file of `size` (as people write it), formats it and returns its path.
    ///
    /// # Errors
    /// When it cannot be formatted.
    pub fn format(&self, name: &str, size: &str) -> Result<PathBuf> {
        let image = self.path(name);
        self.succeeds([
            OsStr::new("format"),
            image.as_os_str(),
            OsStr::new("--size"),
            OsStr::new(size),
        ])?;
        Ok(image)
    }

    /// Checks an unmounted volume, which has to be clean.
    ///
    /// # Errors
    /// With what the check prints when it is not.
    pub fn check(&self, image: &Path) -> Result<()> {
        let mut command = self.bedplate([OsStr::new("check"), image.as_os_str()]);
        let done = sh::finish(&mut command, COMMAND_LIMIT)?;
        ensure!(
            done.status.code() == Some(0),
            "the check of {} ended with {}: {}",
            image.display(),
            done.status,
            done.text().trim()
        );
        Ok(())
    }

    /// Mounts `source` with a server of our own in the foreground, so that it can be killed and its
    /// end can be awaited.
    ///
    /// # Errors
    /// When the mount does not appear; with what the server said.
    pub fn mount(&self, source: &Path, options: &str) -> Result<Mounted> {
        let name = source.file_name().and_then(OsStr::to_str).unwrap_or("volume");
        let directory = self.make_directory(&format!("mnt-{name}"))?;
        self.mount_at(source, &directory, options)
    }

    /// As [`mount`](Self::mount), on a directory that exists.
    ///
    /// # Errors
    /// As there.
    pub fn mount_at(&self, source: &Path, directory: &Path, options: &str) -> Result<Mounted> {
        let log = self.path("server.log");
        let output = File::create(&log)?;
        let mut command = self.bedplate([
            OsStr::new("mount"),
            source.as_os_str(),
            directory.as_os_str(),
            OsStr::new("--foreground"),
        ]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let what = sh::describe(&command);
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let pid = child.id();
        let place = directory.to_path_buf();
        // The list runs newest first: the process ends before its mount is detached.
        let mount = Guard::new(move || detach(&place));
        let process = Some(Guard::new(move || kill(pid)));
        let mut mounted =
            Mounted { child, directory: directory.to_path_buf(), log, process, mount };
        mounted.wait_until_there().with_context(|| what)?;
        Ok(mounted)
    }
}

/// A mount with its serving process. Dropped, it is killed and detached.
pub struct Mounted {
    child: Child,
    /// Where it is mounted.
    pub directory: PathBuf,
    log: PathBuf,
    /// Kills the process; gone once it was waited for, because its number may then be another's.
    /// Dropped before `mount`.
    process: Option<Guard>,
    mount: Guard,
}

impl Mounted {
    fn wait_until_there(&mut self) -> Result<()> {
        let start = Instant::now();
        while !is_mounted(&self.directory) {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status} instead of mounting: {}", self.said());
            }
            ensure!(
                start.elapsed() < COMMAND_LIMIT,
                "nothing was mounted within {} s: {}",
                COMMAND_LIMIT.as_secs(),
                self.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the path of `name` on the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the serving process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the serving process printed.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Kills the serving process as a crash would, and leaves the dead mount behind.
    ///
    /// # Errors
    /// When it had ended by itself before, which is a crash of its own.
    pub fn crash(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the serving process ended by itself with {status}: {}", self.said());
        }
        self.child.kill()?;
        self.child.wait()?;
        self.process.take().into_iter().for_each(Guard::done);
        Ok(())
    }

    /// Clears the dead mount that [`crash`](Self::crash) left.
    ///
    /// # Errors
    /// When the directory is still a mount.
    pub fn clear(self) -> Result<()> {
        detach(&self.directory);
        ensure!(!is_mounted(&self.directory), "{} is still mounted", self.directory.display());
        self.mount.done();
        Ok(())
    }

    /// Unmounts with `bedplate unmount` and waits until the server has ended well.
    ///
    /// # Errors
    /// When either fails or takes too long.
    pub fn unmount(mut self, bed: &Bed) -> Result<()> {
        bed.succeeds([OsStr::new("unmount"), self.directory.as_os_str()])?;
        let status = sh::wait(&mut self.child, COMMAND_LIMIT)
            .context("the serving process after the unmount")?;
        self.process.take().into_iter().for_each(Guard::done);
        ensure!(status.success(), "the serving process ended with {status}: {}", self.said());
        ensure!(!is_mounted(&self.directory), "{} is still mounted", self.directory.display());
        self.mount.done();
        Ok(())
    }
}

impl Mounted {
    /// Waits for the end of a server that was unmounted after a failure, which it has to tell.
    ///
    /// # Errors
    /// When it ends well, or is still mounted.
    pub fn ended_badly(mut self) -> Result<()> {
        let status = sh::wait(&mut self.child, COMMAND_LIMIT)
            .context("the serving process after the unmount")?;
        self.process.take().into_iter().for_each(Guard::done);
        ensure!(
            status.code().is_some_and(|code| code != 0 && code != 101),
            "the server of a failed mount ended with {status}: {}",
            self.said()
        );
        ensure!(!is_mounted(&self.directory), "{} is still mounted", self.directory.display());
        self.mount.done();
        Ok(())
    }
}

/// A loop device over a file. Dropped, it is detached.
pub struct LoopDevice {
    /// Its node.
    pub path: PathBuf,
    guard: Guard,
}

impl LoopDevice {
    /// Attaches `file` with further arguments of `losetup`.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn attach(file: &Path, arguments: &[&str]) -> Result<Self> {
        let limit = Duration::from_secs(60);
        let printed = sh::output(
            Command::new("losetup").args(["--find", "--show"]).args(arguments).arg(file),
            limit,
        )?;
        let path = PathBuf::from(printed.trim());
        let device = path.clone();
        let guard = Guard::new(move || {
            if let Err(error) =
                sh::output(Command::new("losetup").arg("--detach").arg(&device), limit)
            {
                eprintln!("xtask: {error:#}");
            }
        });
        Ok(Self { path, guard })
    }

    /// Detaches it now; while it is in use the kernel waits for the last user's end.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn detach(self) -> Result<()> {
        sh::output(
            Command::new("losetup").arg("--detach").arg(&self.path),
            Duration::from_secs(60),
        )?;
        self.guard.done();
        Ok(())
    }
}

/// Tells whether something is mounted exactly at `directory`.
pub fn is_mounted(directory: &Path) -> bool {
    mounts_below(directory).iter().any(|place| place == directory)
}

/// Returns what is mounted at or below `directory`.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|place| place.starts_with(directory))
        .collect()
}

/// Returns the processes, other than this one, that have `path` or something below it on their
/// command line. Within a bed they are the test's own.
pub fn processes_of(path: &Path) -> Vec<u32> {
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let names = |word: &[u8]| Path::new(OsStr::from_bytes(word)).starts_with(path);
            (pid != own && line.split(|byte| *byte == 0).any(names)).then_some(pid)
        })
        .collect()
}

/// Detaches whatever is mounted at `directory`, dead or alive, until nothing is.
pub fn detach(directory: &Path) {
    for _ in 0..4 {
        if !is_mounted(directory) {
            return;
        }
        if rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH).is_err() {
            // Not root: the helper of FUSE may.
            let helper = sh::output(
                Command::new("fusermount3").arg("-uz").arg(directory),
                Duration::from_secs(60),
            );
            if let Err(error) = helper {
                eprintln!("xtask: {error:#}");
            }
        }
    }
}

/// Sends SIGKILL to a process that we started and have not waited for.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended already, which is what is wanted.
        let _ended_already = kill_process(pid, Signal::KILL);
    }
}
