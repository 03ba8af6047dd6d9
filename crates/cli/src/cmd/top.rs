//! `bedplate top [FILE|DIR …]`

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::iostat::{self, Report};
use crate::failure::{Failure, Result};
use crate::mount::defragmenter::{self, Looked};
use crate::mount::leases;
use crate::mount::threads;
use crate::mount::watch::{self, Layout, Scope, Seen, SortKey};
use crate::render::output::Output;

/// Watch the busiest files of live mounts, refreshed until 'q'; without a terminal prints reports
/// one after the other
///
/// Counts are per second. Keys: q ends; o, r, w, b, a, p, h, m, s, n sort by operations, reads,
/// writes, bytes, average and p99 of reads, hit ratio, misaligned, syncs, name; l more columns; z
/// counts anew; a blank refreshes at once.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Files, or directories below which to look, on mounts; none: all mounts of this machine
    paths: Vec<PathBuf>,
    /// Time between refreshes
    #[arg(short, long, value_name = "DURATION", value_parser = iostat::interval, default_value = "2s")]
    interval: Duration,
    /// End after this many refreshes; without a terminal 1 by default
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Sort by this at first
    #[arg(long, value_name = "KEY", value_enum, default_value = "ops")]
    sort: SortKey,
    /// Tell of so many files; on a terminal as many as fit by default
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// More columns
    #[arg(short, long)]
    long: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let scope = Scope::new(&arguments.paths)?;
    let mut watch = Watch {
        layout: Layout {
            long: arguments.long,
            per: 1.0,
            block_size: iostat::block_size(&scope)?,
            name_columns: None,
        },
        sort: arguments.sort,
        scope,
    };
    let interactive =
        !output.is_json() && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if interactive {
        on_terminal(&mut watch, arguments)
    } else {
        plainly(&watch, arguments, output)
    }
}

/// What is shown and how.
struct Watch {
    scope: Scope,
    layout: Layout,
    sort: SortKey,
}

/// What was to be seen at one moment.
struct Look {
    files: Seen,
    moved: Looked,
    leased: leases::Looked,
    served: threads::Looked,
    at: Instant,
}

impl Watch {
    fn look(&self) -> Result<Look> {
        Ok(Look {
            files: self.scope.look()?,
            moved: defragmenter::look(&self.scope.mounts()?)?,
            leased: leases::look(&self.scope.mounts()?)?,
            served: threads::look(&self.scope.mounts()?)?,
            at: Instant::now(),
        })
    }

    /// Returns what came between two looks, per second.
    fn report(&self, before: &Look, now: &Look, top: Option<usize>) -> Report {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
        let rows = watch::between(&before.files, &now.files)
            .into_iter()
            .filter(watch::Row::is_active)
            .collect();
        let (rows, moved) = (
            watch::sorted(rows, self.sort, top),
            defragmenter::between(&before.moved, &now.moved, Some(seconds)),
        );
        Report {
            seconds: Some(seconds),
            rows,
            moved,
            leased: leases::between(&before.leased, &now.leased, Some(seconds)),
            served: threads::between(&before.served, &now.served),
            layout: Layout { per: seconds, ..self.layout },
        }
    }
}

/// Prints report after report.
fn plainly(watch: &Watch, arguments: &Arguments, output: &Output) -> Result<()> {
    let mut before = watch.look()?;
    for _ in 0..arguments.count.unwrap_or(1) {
        if output.reader_is_gone() {
            break;
        }
        std::thread::sleep(arguments.interval);
        let now = watch.look()?;
        let report = watch.report(&before, &now, arguments.top);
        if output.is_json() {
            output.line(&report)?;
        } else {
            output.show(&report).and_then(|()| output.gap())?;
        }
        before = now;
    }
    Ok(())
}

/// A terminal that gives keys at once and shows another page; as it was when dropped.
struct Screen {
    saved: Termios,
}

impl Screen {
    fn take() -> Result<Self> {
        let saved = tcgetattr(std::io::stdin()).map_err(|error| terminal(&error.into()))?;
        let mut raw = saved.clone();
        // Interrupts come as keys too, so that the terminal is put right after each of them.
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw)
            .map_err(|error| terminal(&error.into()))?;
        let screen = Self { saved };
        screen.put("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    fn put(&self, text: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| terminal(&error))
    }

    /// Rows and columns; a terminal that does not say has the usual ones.
    fn size(&self) -> (usize, usize) {
        let size =
            tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
    }

    /// Returns the key pressed within a time.
    fn key(&self, within: Duration) -> Result<Option<u8>> {
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: within.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(terminal(&error.into())),
        }
        let mut key = [0];
        let read = rustix::io::read(&stdin, &mut key).map_err(|error| terminal(&error.into()))?;
        // The end of input: the terminal is gone.
        Ok(Some(if read == 0 { b'q' } else { key[0] }))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be put right, and need not be.
        let _put = self.put("\x1b[?25h\x1b[?1049l");
        let _restored = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.saved);
    }
}

fn terminal(error: &std::io::Error) -> Failure {
    Failure::new("io", format!("cannot use the terminal: {}", crate::failure::plain(error)))
}

fn on_terminal(watch: &mut Watch, arguments: &Arguments) -> Result<()> {
    let screen = Screen::take()?;
    let mut before = watch.look()?;
    let mut shown = watch.report(&before, &before, None);
    let mut left = arguments.count.unwrap_or(u64::MAX);
    loop {
        screen.put(&page(&shown, watch, &screen, arguments.top))?;
        let wait = arguments.interval.saturating_sub(before.at.elapsed());
        match screen.key(wait)? {
            Some(b'q' | 3 | 4 | 27) => return Ok(()),
            Some(b'l') => watch.layout.long = !watch.layout.long,
            Some(b'z') => watch.scope.reset()?,
            Some(b' ') | None => {
                let now = watch.look()?;
                shown = watch.report(&before, &now, None);
                before = now;
                left -= 1;
                if left == 0 {
                    return Ok(());
                }
            }
            Some(key) => watch.sort = sort_key(key).unwrap_or(watch.sort),
        }
        shown.rows = watch::sorted(std::mem::take(&mut shown.rows), watch.sort, None);
        shown.layout.long = watch.layout.long;
    }
}

fn sort_key(key: u8) -> Option<SortKey> {
    let keys = [
        (b'o', SortKey::Ops),
        (b'r', SortKey::Reads),
        (b'w', SortKey::Writes),
        (b'b', SortKey::Bytes),
        (b'a', SortKey::ReadAvg),
        (b'p', SortKey::ReadP99),
        (b'h', SortKey::Hit),
        (b'm', SortKey::Misaligned),
        (b's', SortKey::Syncs),
        (b'n', SortKey::Name),
    ];
    keys.into_iter().find(|(other, _)| *other == key).map(|(_, sort)| sort)
}

/// Returns what fills the screen: a line of state, how busy the threads are that serve, what
/// background defragmentation does, what went past the mount under leases, the table, all cut at the
/// edges.
fn page(report: &Report, watch: &Watch, screen: &Screen, top: Option<usize>) -> String {
    let (rows, columns) = screen.size();
    let sort = watch
        .sort
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    let state = format!(
        "bedplate top: per second, sorted by {sort}; {} active; q ends, o r w b a p h m s n sort, \
         l long, z reset",
        report.rows.len()
    );
    let served = report.served.iter().map(ToString::to_string);
    let moved = report.moved.iter().map(ToString::to_string);
    let leased = report.leased.iter().map(ToString::to_string);
    let lines: Vec<String> = served.chain(moved).chain(leased).collect();
    let fitting =
        report.rows.len().min(top.unwrap_or(usize::MAX)).min(rows.saturating_sub(3 + lines.len()));
    let layout = Layout { name_columns: Some((columns / 3).max(16)), ..report.layout };
    let table = watch::table(&report.rows[..fitting], layout);
    let mut page = "\x1b[H".to_owned();
    for line in std::iter::once(state.as_str())
        .chain(lines.iter().map(String::as_str))
        .chain([""])
        .chain(table.lines())
        .take(rows.saturating_sub(1))
    {
        page.extend(line.chars().filter(|c| !c.is_control()).take(columns));
        page.push_str("\x1b[K\r\n");
    }
    page + "\x1b[J"
}
