//! Progress of anything that takes longer than a second, on a terminal only.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::render::output::Output;

/// How long something may take before its progress is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A bar over bytes that shows itself once it is worth it.
pub struct Bytes {
    label: String,
    total: u64,
    done: u64,
    started: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Bytes {
    /// Starts counting towards `total` bytes.
    pub fn new(output: &Output, label: impl Into<String>, total: u64) -> Self {
        Self {
            label: label.into(),
            total,
            done: 0,
            started: Instant::now(),
            wanted: is_wanted(output),
            bar: None,
        }
    }

    /// Counts bytes that are done, of `total`.
    pub fn reach(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (0, total);
        self.advance(done);
    }

    /// Counts bytes that are done.
    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.bar.is_none() && self.wanted && self.started.elapsed() > SHOWN_AFTER {
            let style = ProgressStyle::with_template(
                "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            );
            let bar = ProgressBar::new(self.total)
                .with_message(self.label.clone())
                .with_elapsed(self.started.elapsed());
            bar.set_style(style.expect("the template is a constant that parses"));
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows after a second that something is going on, until it is dropped.
pub struct Spinner {
    /// Ends the thread when it is dropped, be it by a panic.
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// Starts waiting for the second.
    pub fn start(output: &Output, label: &str) -> Self {
        if !is_wanted(output) {
            return Self { done: None, thread: None };
        }
        let (done, wait) = channel::<()>();
        let label = label.to_owned();
        let thread = std::thread::spawn(move || {
            if wait.recv_timeout(SHOWN_AFTER) == Err(RecvTimeoutError::Timeout) {
                let spinner = ProgressBar::new_spinner()
                    .with_message(format!("{label} …"))
                    .with_elapsed(SHOWN_AFTER);
                spinner.set_style(
                    ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                        .expect("the template is a constant that parses"),
                );
                spinner.enable_steady_tick(Duration::from_millis(200));
                let _closed = wait.recv();
                spinner.finish_and_clear();
            }
        });
        Self { done: Some(done), thread: Some(thread) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            // A spinner that panicked hides nothing of the work.
            let _ended = thread.join();
        }
    }
}

/// Does `work` and, when it takes longer than a second, shows that something is going on.
pub fn during<T>(output: &Output, label: &str, work: impl FnOnce() -> T) -> T {
    let _spinner = Spinner::start(output, label);
    work()
}

fn is_wanted(output: &Output) -> bool {
    !output.is_json() && std::io::stderr().is_terminal()
}

/// A bar over steps of unequal length, each with a name.
pub struct Steps {
    started: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Steps {
    /// Starts counting.
    pub fn new(output: &Output) -> Self {
        Self { started: Instant::now(), wanted: is_wanted(output), bar: None }
    }

    /// Says which step comes next.
    pub fn at(&mut self, done: usize, total: usize, next: &str) {
        if !self.wanted || self.started.elapsed() < SHOWN_AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(total as u64).with_elapsed(SHOWN_AFTER);
            bar.set_style(
                ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}")
                    .expect("the template is a constant that parses"),
            );
            bar
        });
        bar.set_position(done as u64);
        bar.set_message(next.to_owned());
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
