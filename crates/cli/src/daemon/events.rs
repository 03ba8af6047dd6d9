//! What happens to a mount, told to a program of the administrator (`on-event=`).
//!
//! ```text
//!   a message with a field `event` ──> EventLayer, a layer of the log ──> queue of QUEUE_MAX ──> one thread ──> PROGRAM, one at a time
//!                                          never waits: what finds the queue full is counted, and the next document says so
//! ```
//!
//! The program finds one JSON document on its standard input, no output, the root directory as its
//! own, and may run for [`TIME_MAX`]; then its process group is killed.

use std::fmt;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::failure::{Failure, Result};
use crate::render::text;

/// The field by which a message is an event, whose value names it.
pub const FIELD: &str = "event";
/// How many events wait for the program.
const QUEUE_MAX: usize = 64;
/// How long the program may run.
const TIME_MAX: Duration = Duration::from_secs(30);
/// How long the end of the mount waits for the events that are still to be told; then the program
/// is killed.
const END_MAX: Duration = Duration::from_secs(5);
/// How often the end of the program is looked for.
const STEP: Duration = Duration::from_millis(10);
/// How long a value may be; together with the others it fits a pipe, so that a program that reads
/// nothing holds nothing up.
const VALUE_BYTES_MAX: usize = 2000;
/// How many fields a document has at most.
const FIELDS_MAX: usize = 20;

/// What the thread takes.
enum Word {
    Event(Map<String, Value>),
    End,
}

/// The way to the program of this process's mount.
struct Queue {
    sender: SyncSender<Word>,
    lost: AtomicU64,
    /// What every document has: where the mount is, what is mounted, by which process.
    common: Map<String, Value>,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// The thread that runs the program.
pub struct Events {
    thread: JoinHandle<()>,
    /// No event is told any more.
    over: Arc<AtomicBool>,
}

/// Refuses what is no program that can be run.
pub fn check(program: &Path) -> Result<PathBuf> {
    let wrong = |what: &str| {
        let told = format!(
            "mount option 'on-event': {} {what}: name a program that can be run",
            program.display()
        );
        Failure::usage(told)
    };
    let program = std::path::absolute(program).map_err(|error| wrong(&error.to_string()))?;
    let meta = program.metadata().map_err(|_| wrong("does not exist"))?;
    let runs = rustix::fs::access(&program, rustix::fs::Access::EXEC_OK).is_ok();
    if meta.is_file() && runs { Ok(program) } else { Err(wrong("cannot be run")) }
}

/// Tells events of the mount to `program` from now on.
pub fn start(program: &Path, dir: &Path, volume: &str) -> Events {
    let (sender, receiver) = sync_channel(QUEUE_MAX);
    let common = json!({
        "mount": bedplate::readable_name(dir.as_os_str().as_encoded_bytes()),
        "volume": volume, "pid": std::process::id(),
    });
    let Value::Object(common) = common else { unreachable!("an object is written above") };
    let program = program.to_owned();
    let set = QUEUE.set(Queue { sender, lost: AtomicU64::new(0), common });
    assert!(set.is_ok(), "a process serves one mount");
    let over = Arc::new(AtomicBool::new(false));
    let limits = Limits { time_max: TIME_MAX, over: Arc::clone(&over) };
    Events { thread: std::thread::spawn(move || serve(&program, &receiver, &limits)), over }
}

impl Events {
    /// Waits until what happened so far is told, but no longer than [`END_MAX`].
    pub fn end(self) {
        let deadline = Instant::now() + END_MAX;
        let ended = || {
            matches!(
                QUEUE.get().map(|queue| queue.sender.try_send(Word::End)),
                Some(Ok(()) | Err(TrySendError::Disconnected(_))) | None
            )
        };
        while !ended() && Instant::now() < deadline {
            std::thread::sleep(STEP);
        }
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(STEP);
        }
        self.over.store(true, Ordering::Release);
        if self.thread.join().is_err() {
            tracing::debug!("the thread that tells events died");
        }
    }
}

/// How long the program may run.
struct Limits {
    time_max: Duration,
    over: Arc<AtomicBool>,
}

fn serve(program: &Path, receiver: &Receiver<Word>, limits: &Limits) {
    while let Ok(Word::Event(document)) = receiver.recv() {
        if limits.over.load(Ordering::Acquire) {
            return;
        }
        if let Err(why) = tell(program, &Value::Object(document).to_string(), limits) {
            tracing::warn!("{} of on-event= {why}", program.display());
        }
    }
}

/// Runs the program for one event.
fn tell(program: &Path, document: &str, limits: &Limits) -> std::result::Result<(), String> {
    let mut child = Command::new(program)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot be started: {}", crate::failure::plain(&error)))?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not want to know ends before it has read.
        let _read = writeln!(input, "{document}");
    }
    let deadline = Instant::now() + limits.time_max;
    loop {
        let may_run = || Instant::now() < deadline && !limits.over.load(Ordering::Acquire);
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("ended with {status}")),
            Ok(None) if may_run() => std::thread::sleep(STEP),
            Ok(None) => {
                kill(&mut child);
                return Err(format!(
                    "was killed: it ran longer than {}, or than the mount",
                    bedplate::format_duration(limits.time_max)
                ));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

fn kill(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = kill_process_group(pid, Signal::KILL)
    {
        tracing::debug!("the program of an event is gone already: {error}");
    }
    // Killed or gone: it leaves no process behind that nothing waits for.
    let _status = child.wait();
}

/// Returns whether a message is an event.
pub fn is_event(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.fields().field(FIELD).is_some()
}

/// The layer of the log that takes events out of it.
pub struct EventLayer;

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(queue) = QUEUE.get() else { return };
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let mut document = fields.0;
        document.insert("time".into(), bedplate::format_time(Timestamp::now()).into());
        let level = severity(*event.metadata().level());
        document.entry("severity").or_insert_with(|| level.into());
        document.extend(queue.common.clone());
        let lost = queue.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            document.insert("lost".into(), lost.into());
        }
        if queue.sender.try_send(Word::Event(document)).is_err() {
            queue.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        _ => "info",
    }
}

/// The fields of a message as a document.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        if self.0.len() < FIELDS_MAX {
            self.0.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, text::beginning(value, VALUE_BYTES_MAX).into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn limits(time_max: Duration) -> Limits {
        Limits { time_max, over: Arc::new(AtomicBool::new(false)) }
    }

    fn script(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_program_gets_the_document_and_one_that_hangs_is_killed_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let program = script(dir.path(), &format!("cat > {}", out.display()));
        tell(&program, "{\"event\":\"x\"}", &limits(TIME_MAX)).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"event\":\"x\"}\n");
        let fails = script(dir.path(), "exit 3");
        assert!(tell(&fails, "{}", &limits(TIME_MAX)).unwrap_err().contains("exit status: 3"));
        let hangs = script(dir.path(), &format!("sleep 1000 & echo $! > {}; wait", out.display()));
        let why = tell(&hangs, "{}", &limits(Duration::from_millis(500))).unwrap_err();
        assert!(why.contains("was killed"), "{why}");
        let pid = std::fs::read_to_string(&out).unwrap();
        let gone = || match std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let began = Instant::now();
        while !gone() {
            assert!(began.elapsed() < TIME_MAX, "what the program started goes on");
            std::thread::sleep(STEP);
        }
    }

    #[test]
    fn a_document_fits_a_pipe_that_nothing_reads() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "exec < /dev/null; exit 0");
        let document = "x".repeat(VALUE_BYTES_MAX * FIELDS_MAX);
        assert!(document.len() < 64 << 10);
        tell(&program, &document, &limits(TIME_MAX)).unwrap();
    }

    #[test]
    fn what_cannot_be_run_is_refused_at_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        for wrong in [dir.path().join("none"), dir.path().to_owned(), file] {
            let failure = check(&wrong).unwrap_err();
            assert!(failure.message.contains("'on-event'"), "{failure}");
        }
        assert!(check(&script(dir.path(), "true")).is_ok());
    }
}
