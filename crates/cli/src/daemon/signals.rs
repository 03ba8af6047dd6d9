//! What signals ask of the daemon of a mount.
//!
//! ```text
//!   SIGTERM, SIGINT ──> unmounts; while programs use the mount it names them and waits ──> unmounted
//!                          │ a second one, SIGQUIT, or stop-timeout= is over
//!                          └──> cuts them off, after what was written is durable      ──> unmounted
//!   SIGHUP ──> opens the log file again
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_serve::fuse::Mount;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::spawn;
use crate::failure::{Failure, Result};

/// How long a daemon that waits for the programs on its mount waits between two attempts.
const RETRY: Duration = Duration::from_millis(500);

/// Takes the signals from now on, so that none that comes during recovery kills the daemon halfway.
pub fn take() -> Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT])
        .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))
}

/// What a signal is about.
pub struct Subject {
    /// The mount.
    pub mount: Arc<Mount>,
    /// Where a daemon in the background writes what it has to say.
    pub log_file: Option<PathBuf>,
    /// How long an end waits for the programs on the mount before it cuts them off; `None`: until a
    /// second signal.
    pub stop_timeout: Option<Duration>,
}

/// The thread that answers signals.
pub struct Watcher {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Answers signals until [`end`](Self::end).
    pub fn start(subject: Subject, mut signals: Signals) -> Self {
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            let mut ending: Option<Sender<()>> = None;
            for signal in signals.forever() {
                if signal == SIGHUP {
                    subject.open_log_again();
                    continue;
                }
                let force = signal == SIGQUIT || ending.is_some();
                let cut = ending.get_or_insert_with(|| subject.begin_end());
                if force {
                    // A mount that has ended meanwhile needs nothing.
                    let _ended = cut.send(());
                }
            }
        });
        Self { handle, thread }
    }

    /// Answers no more signals.
    pub fn end(self) -> Result<()> {
        self.handle.close();
        self.thread.join().map_err(|_| Failure::new("io", "the thread that takes signals died"))
    }
}

impl Subject {
    fn open_log_again(&self) {
        let Some(path) = &self.log_file else { return };
        match spawn::open_log(path).and_then(|log| spawn::silence(Some(&log))) {
            Ok(()) => tracing::info!("{} opened again", path.display()),
            Err(failure) => tracing::warn!("{}", failure.message),
        }
    }

    /// Begins to unmount; what is sent then cuts programs off that are still there.
    fn begin_end(&self) -> Sender<()> {
        let (sender, cut) = channel();
        let (mount, stop_timeout) = (Arc::clone(&self.mount), self.stop_timeout);
        std::thread::spawn(move || {
            let began = Instant::now();
            let mut told = false;
            while let Err(error) = mount.unmount() {
                if !mount.is_live() {
                    return;
                }
                if !told {
                    tracing::warn!(
                        "{error}; the mount stays until they end, and a second signal cuts them off"
                    );
                    told = true;
                }
                let late = stop_timeout.is_some_and(|timeout| began.elapsed() >= timeout);
                if late || cut.recv_timeout(RETRY) != Err(RecvTimeoutError::Timeout) {
                    return cut_off(&mount);
                }
            }
        });
        sender
    }
}

/// Unmounts although programs use the mount: what was written is made durable, and their calls fail
/// from then on.
fn cut_off(mount: &Mount) {
    tracing::warn!("{} is unmounted although it is in use", mount.mountpoint().display());
    if let Err(error) = mount.force_unmount() {
        tracing::error!("{error}");
    }
}
