//! A mount for the time of one command: the volume's own where it is mounted, else one in a
//! directory that only this user may enter, which ends with the command, also by a signal.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::cmd::{mount, unmount};
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::reach::{Reach, Target};

/// A volume that is mounted as long as this exists.
pub struct Passing {
    mount: Mount,
    own: Option<Own>,
}

/// A mount of the command's own.
struct Own {
    dir: PathBuf,
    signals: Handle,
    watcher: JoinHandle<()>,
}

impl Passing {
    /// Finds the mount of a volume, or makes one with these options.
    ///
    /// # Errors
    /// Those of a mount.
    pub fn new(target: &Target, options: &[&str]) -> Result<Self> {
        let volume = match target.reach()? {
            Reach::Mounted(mount) => return Ok(Self { mount, own: None }),
            Reach::Alone(volume) => volume,
        };
        let dir = std::env::temp_dir().join(format!("bedplate-backup-{}", std::process::id()));
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700).create(&dir).map_err(|error| Failure::system("make", &dir, &error))?;
        let own = Own::new(dir)?;
        let mounted = mount::start_with(&volume, options, &own.dir)
            .and_then(|()| live::require_mount(&own.dir));
        match mounted {
            Ok(mount) => Ok(Self { mount, own: Some(own) }),
            Err(failure) => {
                // The failure that counts is the first; an empty directory is left at the worst.
                let _ended = own.end();
                Err(failure)
            }
        }
    }

    /// Returns the mount.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Ends the mount, if it was made for the command.
    ///
    /// # Errors
    /// It cannot be ended, or not all of it is durable.
    pub fn end(self) -> Result<()> {
        self.own.map_or(Ok(()), Own::end)
    }
}

impl Own {
    /// Answers signals from now on, so that none leaves a mount behind.
    fn new(dir: PathBuf) -> Result<Self> {
        let mut taken = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
        let signals = taken.handle();
        let place = dir.clone();
        let watcher = std::thread::spawn(move || {
            if let Some(signal) = taken.forever().next() {
                cut_off(&place);
                std::process::exit(128 + signal);
            }
        });
        Ok(Self { dir, signals, watcher })
    }

    fn end(self) -> Result<()> {
        let Self { dir, signals, watcher } = self;
        let unmounted = unmount::end(&dir);
        signals.close();
        if watcher.join().is_err() {
            return Err(Failure::new("internal", "the thread that waits for signals panicked"));
        }
        unmounted?;
        std::fs::remove_dir(&dir).map_err(|error| Failure::system("remove", &dir, &error))
    }
}

/// Ends a mount whose files are still open: what was written is made durable.
fn cut_off(dir: &Path) {
    let daemon = || Pid::from_raw(live::process(&live::require_mount(dir).ok()?).ok()??);
    if let Some(daemon) = daemon() {
        let _ended_already = kill_process(daemon, Signal::QUIT);
    }
    // The daemon unmounts at its end; then the directory can be removed. One that is just starting
    // finds no directory, and ends.
    for _ in 0..200 {
        if std::fs::remove_dir(dir).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    tracing::warn!("{} is left: 'bedplate unmount' ends what is mounted there", dir.display());
}
