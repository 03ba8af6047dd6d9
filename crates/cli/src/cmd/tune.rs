//! `bedplate tune VOLUME|DIR [NAME=VALUE …] [--live] [--reset [NAME …]]`

use std::fmt;

use bedplate::{Takes, Tunable, TunableState, TuneOptions, TunedBy};
use bedplate_serve::control::Request;
use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::reach::Target;
use crate::render::output::Output;
use crate::render::text;

/// Show the tunables of a volume, or set them: at once where it is mounted, and for every later
/// mount
///
/// A mount option goes before what the volume holds. Without changes all tunables are shown, or
/// those named.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// What to set, as in cache=256M; a name alone shows that one
    #[arg(value_name = "NAME[=VALUE]")]
    changes: Vec<String>,
    /// Only until the unmount: the volume keeps what it holds
    #[arg(long)]
    live: bool,
    /// Back to the default: the tunables named, or all; with --live back to what the volume holds
    #[arg(long)]
    reset: bool,
}

/// How wide a terminal is at least.
const COLUMNS: usize = 80;

/// Tunables as they stand.
struct Tunables {
    tunables: Vec<TunableState>,
    /// Those that were changed.
    changed: Vec<Tunable>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let (shown, changes) = arguments.wanted()?;
    let reach = arguments.target.reach()?;
    if arguments.live && !reach.is_mounted() {
        return Err(Failure::usage(
            "--live is for a volume that is mounted: name the directory, or leave --live away",
        ));
    }
    let changed: Vec<Tunable> = changes.iter().map(|(tunable, _)| *tunable).collect();
    let mut tunables: Vec<TunableState> = if changes.is_empty() {
        reach.ask(&Request::Tunables, Access::ReadOnly, output)?
    } else {
        reach.ask(
            &Request::Tune(TuneOptions { changes, live_only: arguments.live }),
            Access::ReadWrite,
            output,
        )?
    };
    let shown = if changed.is_empty() { shown } else { changed.clone() };
    tunables.retain(|state| {
        shown.is_empty() || shown.iter().any(|tunable| tunable.info().name == state.name)
    });
    output.show(&Tunables { tunables, changed })
}

/// Tunables and their new values; `None`: the default again.
type Changes = Vec<(Tunable, Option<u64>)>;

impl Arguments {
    /// Returns which tunables to show, none for all, and which to change.
    fn wanted(&self) -> Result<(Vec<Tunable>, Changes)> {
        let (mut named, mut changes) = (Vec::new(), Vec::new());
        for word in &self.changes {
            match word.split_once('=') {
                Some((name, value)) => {
                    let tunable = Tunable::named(name)?;
                    changes.push((tunable, Some(tunable.parse(value)?)));
                }
                None => named.push(Tunable::named(word)?),
            }
        }
        if self.reset {
            let all = || {
                bedplate::TUNABLES
                    .iter()
                    .filter(|info| info.takes == Takes::Live)
                    .map(|info| info.tunable)
                    .collect()
            };
            let names: Vec<Tunable> =
                if self.changes.is_empty() { all() } else { std::mem::take(&mut named) };
            changes.extend(names.into_iter().map(|tunable| (tunable, None)));
        }
        if !changes.is_empty() && !named.is_empty() {
            return Err(Failure::usage(format!(
                "{}: give a value to set it, as in NAME=VALUE, or --reset",
                named[0].info().name
            )));
        }
        let twice = changes
            .iter()
            .enumerate()
            .find(|(at, (tunable, _))| changes[..*at].iter().any(|(other, _)| other == tunable));
        match twice {
            Some((_, (tunable, _))) => {
                Err(Failure::usage(format!("{} is given twice", tunable.info().name)))
            }
            None => Ok((named, changes)),
        }
    }
}

/// Returns when a change counts, in words.
fn counts(takes: Takes) -> &'static str {
    match takes {
        Takes::Live => "at once",
        Takes::MountOption => "mount option only",
        Takes::Format => "fixed by format",
    }
}

fn from(by: TunedBy) -> &'static str {
    match by {
        TunedBy::Default => "default",
        TunedBy::Volume => "volume",
        TunedBy::MountOption => "mount option",
        TunedBy::Live => "set live",
        TunedBy::Format => "format",
    }
}

impl Serialize for Tunables {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let document = |state: &TunableState| -> Value {
            let text = |value: Option<u64>| value.map(|value| state.unit.format(value));
            let mut value = json!(state);
            value["value_text"] = json!(state.unit.format(state.value));
            value["stored_text"] = json!(text(state.stored));
            value["default_text"] = json!(text(state.default));
            value
        };
        json!({ "tunables": self.tunables.iter().map(document).collect::<Vec<_>>() })
            .serialize(serializer)
    }
}

impl fmt::Display for Tunables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.changed.is_empty() {
            return self.tunables.iter().try_for_each(|state| writeln!(f, "{}", change(state)));
        }
        let head = ["name", "value", "from", "stored", "default"].map(str::to_owned).to_vec();
        let text = |state: &TunableState, value: Option<u64>| {
            value.map_or_else(|| "-".to_owned(), |value| state.unit.format(value))
        };
        let row = |state: &TunableState| {
            vec![
                state.name.clone(),
                state.unit.format(state.value),
                from(state.by).to_owned(),
                text(state, state.stored),
                text(state, state.default),
            ]
        };
        let rows: Vec<Vec<String>> =
            std::iter::once(head).chain(self.tunables.iter().map(row)).collect();
        let table = text::table(&rows, &[]);
        let mut lines = table.lines();
        writeln!(f, "{}", lines.next().unwrap_or_default())?;
        for (line, state) in lines.zip(&self.tunables) {
            let about = format!(
                "{} ({}); {}; counts {}",
                state.effect,
                state.option,
                range(state),
                counts(state.takes)
            );
            writeln!(f, "{line}\n{}", text::wrapped(&about, 4, COLUMNS))?;
        }
        Ok(())
    }
}

fn range(state: &TunableState) -> String {
    match state.takes {
        Takes::Format => "as formatted".to_owned(),
        _ => Tunable::named(&state.name)
            .map_or_else(|_| "-".to_owned(), |tunable| tunable.info().range()),
    }
}

/// Tells of a tunable that was just changed.
fn change(state: &TunableState) -> String {
    let value = state.unit.format(state.value);
    let kept = match state.stored {
        Some(stored) if stored == state.value && state.by == TunedBy::Volume => {
            ", now and at every later mount".to_owned()
        }
        Some(stored) => {
            format!(", until the unmount; the volume holds {}", state.unit.format(stored))
        }
        None if state.by == TunedBy::Live => ", until the unmount".to_owned(),
        None => String::new(),
    };
    format!("{} is {value} ({}){kept}", state.name, from(state.by))
}

#[cfg(test)]
mod tests {
    use bedplate::TUNABLES;

    use super::*;

    #[test]
    fn the_table_fits_a_terminal() {
        let state = |info: &bedplate::TunableInfo| TunableState {
            name: info.name.to_owned(),
            unit: info.unit,
            value: info.max,
            by: TunedBy::MountOption,
            stored: Some(info.max),
            default: Some(info.min),
            min: info.min,
            max: info.max,
            takes: info.takes,
            option: info.option.to_owned(),
            effect: info.effect.to_owned(),
        };
        let tunables =
            Tunables { tunables: TUNABLES.iter().map(state).collect(), changed: Vec::new() };
        for line in tunables.to_string().lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }

    /// The guide's table is that of the program.
    #[test]
    fn the_guide_has_every_tunable_as_the_program_knows_it() {
        let guide = include_str!("../../../../docs/guide/tunables.md");
        let expected: Vec<String> = TUNABLES
            .iter()
            .map(|info| {
                let (default, range) = match info.takes {
                    Takes::Format => ("-".to_owned(), "-".to_owned()),
                    _ if info.tunable == Tunable::Threads => {
                        ("twice the processors, at least 16".to_owned(), info.range())
                    }
                    _ if info.tunable == Tunable::Cache => {
                        ("1/32 of the memory, 128 MiB to 1 GiB".to_owned(), info.range())
                    }
                    _ => (info.unit.format(info.tunable.default_value()), info.range()),
                };
                format!(
                    "| `{}` | {} | {default} | {range} | {} | {} |",
                    info.name,
                    info.unit.name(),
                    counts(info.takes),
                    info.effect
                )
            })
            .collect();
        let missing: Vec<&String> =
            expected.iter().filter(|line| !guide.contains(line.as_str())).collect();
        assert!(missing.is_empty(), "docs/guide/tunables.md lacks\n{}", expected.join("\n"));
    }
}
