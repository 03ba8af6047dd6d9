//! Warnings and, on request, more: to standard error, so that results stay alone on standard
//! output, and of a daemon without a log file to the system's log.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate::Timestamp;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt as lines, registry};

use crate::daemon::events;
use crate::daemon::system_log::SystemLog;

/// The variable that sets the level (`warn`, `info`, `debug`, `trace`, or per room as in
/// `fs=debug`); it wins over `--verbose`.
const VARIABLE: &str = "BEDPLATE_LOG";

/// Whether each line begins with the time.
static TIMES: AtomicBool = AtomicBool::new(false);

/// Begins each line with the time from now on: the lines go to a file, not to a terminal.
pub fn add_times() {
    TIMES.store(true, Ordering::Relaxed);
}

/// The system's log, once messages go there.
static SYSTEM: OnceLock<SystemLog> = OnceLock::new();

/// Sends messages to the system's log from now on, as those of the mount on `dir`.
pub fn to_system(dir: &Path) -> io::Result<()> {
    // A second mount of this process says what it has to say under the first one's name.
    let _first = SYSTEM.set(SystemLog::find(dir)?);
    Ok(())
}

/// Takes each line to where messages go.
struct Target;

/// The way of one line.
struct Line(Level);

impl<'a> MakeWriter<'a> for Target {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Level::WARN)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line(*metadata.level())
    }
}

impl io::Write for Line {
    /// Takes a whole line: it is written in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match SYSTEM.get() {
            Some(log) => log.send(self.0, String::from_utf8_lossy(line).trim_end()),
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The rooms by the names that people know, and by those that the compiler gave them.
const ROOMS: [(&str, &str); 5] = [
    ("block", "bedplate_block"),
    ("volume", "bedplate_volume"),
    ("fs", "fs"),
    ("serve", "bedplate_serve"),
    ("cli", "bedplate_cli"),
];

/// Turns `block=debug` into what the filter understands.
fn with_rooms(wanted: &str) -> String {
    let known =
        |name: &str| ROOMS.iter().find(|(room, _)| *room == name).map(|(_, target)| *target);
    let directives = wanted.split(',').map(|directive| match directive.split_once('=') {
        Some((name, level)) => format!("{}={level}", known(name).unwrap_or(name)),
        None => directive.to_owned(),
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Starts logging: warnings, with `-v` what is done, with `-vv` how, with `-vvv` everything.
pub fn start(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| level.to_owned());
    let (filter, refused) = match EnvFilter::try_new(with_rooms(&wanted)) {
        Ok(filter) => (filter, false),
        Err(_) => (EnvFilter::new(level), true),
    };
    // Events are told whatever the log leaves out.
    let events = events::EventLayer
        .with_filter(filter_fn(events::is_event).with_max_level_hint(LevelFilter::INFO));
    registry()
        .with(lines::layer().with_writer(Target).event_format(Lines).with_filter(filter))
        .with(events)
        .init();
    if refused {
        tracing::warn!(
            "{VARIABLE}='{wanted}' is no log filter and is ignored: write warn, info, debug, trace \
             or room=level"
        );
    }
}

/// Keeps what the metadata tree says about damaged pages off standard error: the file system
/// catches its panics and reports them as damage, in one sentence. Every other panic is a fault of
/// this program and is shown in full.
pub fn quiet_tree() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let in_tree = panic.location().is_some_and(|place| place.file().contains("/redb-"));
        if in_tree {
            tracing::debug!("the metadata tree met damage: {panic}");
        } else if let Some(log) = SYSTEM.get() {
            log.send(Level::ERROR, &panic.to_string());
        } else {
            loud(panic);
        }
    }));
}

/// One line an event in the manner of all messages: `bedplate: warning: …`.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        // The system's log adds the time, the program and the level itself.
        if SYSTEM.get().is_none() {
            if TIMES.load(Ordering::Relaxed) {
                write!(line, "{} ", bedplate::format_time(Timestamp::now()))?;
            }
            write!(line, "bedplate: {level}: ")?;
        }
        let mut fields = Fields { line: &mut line, rest: String::new(), result: Ok(()) };
        event.record(&mut fields);
        let (rest, result) = (fields.rest, fields.result);
        result?;
        writeln!(line, "{rest}")
    }
}

/// Writes the message first and the other fields behind it in brackets.
struct Fields<'a, 'b> {
    line: &'a mut Writer<'b>,
    rest: String,
    result: fmt::Result,
}

impl Visit for Fields<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.result = write!(self.line, "{value:?}");
        } else if field.name() != events::FIELD {
            self.rest.push_str(&format!(" [{}={value:?}]", field.name()));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_called_by_their_names() {
        assert_eq!(
            with_rooms("warn,block=debug,other=info"),
            "warn,bedplate_block=debug,other=info"
        );
        let own = module_path!();
        assert!(ROOMS.iter().any(|(_, target)| own.starts_with(target)), "{own}");
    }
}
