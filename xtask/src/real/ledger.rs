//! A client that logs its commits: it inserts numbers one by one into a database and remembers,
//! outside the volume, which ones were acknowledged.
//!
//! The database's own shell is the client: it gets a statement on its input and answers `ack N`
//! once the statement is committed. After a crash every acknowledged number has to be there; the
//! one after the last may be.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::bed::kill;
use crate::cleanup::Guard;

/// How long a client thinks between two transactions. Databases that poll for a lock, as SQLite
/// does ten times a second, let a client that never pauses keep the others out for longer than any
/// time-out.
const THINK: Duration = Duration::from_millis(4);

/// A client at work on a thread of its own.
pub struct Client {
    /// The first number it inserts.
    pub first: u64,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    process: Guard,
    said: Arc<Mutex<String>>,
}

/// What a client was told.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged {
    /// The first number that it inserted.
    pub first: u64,
    /// How many were acknowledged: `first .. first + count`.
    pub count: u64,
}

impl Client {
    /// Starts `shell` and inserts `first`, `first + 1` … with what `statement` says, until the
    /// shell ends or [`finish`](Self::finish) is called.
    ///
    /// # Errors
    /// When the shell cannot be started.
    pub fn start(
        shell: &mut Command,
        first: u64,
        statement: impl Fn(u64) -> String + Send + 'static,
    ) -> Result<Self> {
        let mut child = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a database's shell")?;
        let pid = child.id();
        let process = Guard::new(move || kill(pid));
        let (next, stop) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicBool::new(false)));
        let (count, stopped) = (Arc::clone(&next), Arc::clone(&stop));
        let said = listen(&mut child);
        let thread = std::thread::spawn(move || {
            talk(&mut child, &count, &stopped, statement);
            // It may have ended already; what counts is what it acknowledged.
            let _ended = child.kill();
            let _status = child.wait();
        });
        Ok(Self { first, next, stop, thread, process, said })
    }

    /// Returns how many were acknowledged so far.
    pub fn count(&self) -> u64 {
        self.next.load(Ordering::Acquire) - self.first
    }

    /// Waits until at least `count` were acknowledged.
    ///
    /// # Errors
    /// When the client ends before, or it takes longer than a minute.
    pub fn wait_for(&self, count: u64) -> Result<()> {
        let start = Instant::now();
        while self.count() < count {
            if self.thread.is_finished() {
                // What it said last may still be on its way.
                std::thread::sleep(Duration::from_millis(200));
            }
            ensure!(
                !self.thread.is_finished(),
                "a client ended after {} commits: {}",
                self.count(),
                self.said.lock().expect("not poisoned").trim()
            );
            ensure!(
                start.elapsed() < Duration::from_secs(60),
                "a client made only {} commits in a minute",
                self.count()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends the client after the statement it is at, or at once when its database is dead, and
    /// returns what it was told.
    pub fn finish(self) -> Acknowledged {
        self.stop.store(true, Ordering::Release);
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.thread.is_finished() {
            self.process.done();
        } else {
            drop(self.process);
        }
        self.thread.join().expect("a client's thread does not panic");
        Acknowledged { first: self.first, count: self.next.load(Ordering::Acquire) - self.first }
    }
}

/// Collects what the shell says on its standard error: the reason, should it end early.
fn listen(child: &mut Child) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    if let Some(errors) = child.stderr.take() {
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(std::result::Result::ok) {
                let mut text = heard.lock().expect("not poisoned");
                if text.len() < 4096 {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        });
    }
    said
}

fn talk(child: &mut Child, next: &AtomicU64, stop: &AtomicBool, statement: impl Fn(u64) -> String) {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return };
    let mut lines = BufReader::new(output).lines();
    while !stop.load(Ordering::Acquire) {
        let number = next.load(Ordering::Acquire);
        if writeln!(input, "{}", statement(number)).is_err() {
            return;
        }
        let expected = format!("ack {number}");
        // Other lines are the answers of settings.
        if !lines.by_ref().map_while(std::result::Result::ok).any(|line| line == expected) {
            return;
        }
        next.store(number + 1, Ordering::Release);
        std::thread::sleep(THINK);
    }
}
