//! `bedplate volume relayout|grow|shrink`

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use bedplate::{Role, Shape, parse_size};
use bedplate_serve::control::{GroupRequest, RelayoutRequest, RelayoutTarget};
use clap::{Args, ValueEnum};

use super::change::{id_of, index_of, tell};
use super::create::LayoutName;
use super::many;
use crate::daemon::control;
use crate::device::group::{self, Located};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::render::text;

/// Lay a volume out anew while it is in use: columns, stripe unit, plexes; what is not said stays
/// as it is
///
/// On a mounted volume this begins, and the mount moves everything in the background; 'volume show'
/// tells how far it is. On a volume that is not mounted the command moves everything itself, and
/// may be interrupted: it goes on with --resume, or with the next mount.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// Which of the group's volumes
    #[arg(value_enum, default_value = "data")]
    volume: VolumeName,
    /// The arrangement
    #[arg(long, value_enum)]
    layout: Option<LayoutName>,
    /// How many columns; parts of a concatenation
    #[arg(long, value_name = "N")]
    columns: Option<usize>,
    /// The stripe unit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    unit: Option<u64>,
    /// How many copies of everything
    #[arg(long, value_name = "N")]
    plexes: Option<usize>,
    /// A member, by its path or number, whose data goes to members without any; then 'volume
    /// remove' lets go of it
    #[arg(long, value_name = "MEMBER")]
    without: Option<String>,
    /// The most that moves at once, 4M unless set: writes to it wait meanwhile
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    step: Option<u64>,
    /// Go on where the new layout survives the loss of fewer members than the present one
    #[arg(long)]
    yes: bool,
    /// Let it wait where it is
    #[arg(long, conflicts_with_all = ["resume", "reverse", "layout", "columns", "unit", "plexes",
        "step",
        "without"])]
    pause: bool,
    /// Let it go on
    #[arg(long, conflicts_with_all = ["reverse", "layout", "columns", "unit", "plexes", "step",
        "without"])]
    resume: bool,
    /// Turn it round: what has moved goes back
    #[arg(long, conflicts_with_all = ["layout", "columns", "unit", "plexes", "step", "without"])]
    reverse: bool,
}

/// The volumes of a group by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VolumeName {
    /// The file system's
    Data,
    /// The intent log's
    Log,
}

/// Make a volume larger: by members that were added, or that grew themselves
///
/// The file system on it takes the room over with 'bedplate grow'.
#[derive(Debug, Args)]
pub struct GrowArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The size; all that there is room for, unless set
    #[arg(value_parser = parse_size)]
    size: Option<u64>,
}

/// Make a volume smaller, down to what its file system has
#[derive(Debug, Args)]
pub struct ShrinkArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The size
    #[arg(value_parser = parse_size)]
    size: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let leaving = |member: &String| {
        let located = group::named(&arguments.group)?;
        Ok::<_, Failure>(id_of(&located, index_of(&located, member)?))
    };
    let target = RelayoutTarget {
        without: arguments.without.as_ref().map(leaving).transpose()?,
        log: arguments.volume == VolumeName::Log,
        layout: arguments.layout.map(|layout| name_of(layout.shape()).to_owned()),
        columns: arguments.columns,
        unit_bytes: arguments.unit,
        plexes: arguments.plexes,
        step_bytes_max: arguments.step,
        ..RelayoutTarget::default()
    };
    let says_something = arguments.layout.is_some()
        || [arguments.columns, arguments.plexes].iter().any(Option::is_some)
        || arguments.unit.is_some()
        || arguments.without.is_some();
    let request = match (arguments.pause, arguments.resume, arguments.reverse) {
        (true, _, _) => RelayoutRequest::Pause(true),
        (_, true, _) => RelayoutRequest::Pause(false),
        (_, _, true) => RelayoutRequest::Reverse,
        _ if says_something => {
            confirm_fewer_losses(arguments)?;
            RelayoutRequest::Begin(target)
        }
        _ => {
            let hint = "say what shall change: --layout, --columns, --unit, --plexes or --without; \
                        or --pause, --resume or --reverse; 'volume show' tells how far it is";
            return Err(Failure::usage(hint));
        }
    };
    ask(&arguments.group, request, output)
}

/// Refuses a layout that survives less than the present one, until it is said that this is meant.
fn confirm_fewer_losses(arguments: &Arguments) -> Result<()> {
    let located = group::named(&arguments.group)?;
    let role = if arguments.volume == VolumeName::Log { Role::Log } else { Role::Data };
    let Some(volume) = located.config.volume(role) else { return Ok(()) };
    let (now, copies) = (volume.layout.losses_survived(), volume.layout.copies());
    let next = match (arguments.layout, arguments.plexes) {
        (Some(layout), plexes) => layout.shape().losses_survived(plexes.unwrap_or(copies.max(2))),
        (None, Some(plexes)) => plexes.saturating_sub(1),
        (None, None) => now,
    };
    if next >= now || arguments.yes {
        return Ok(());
    }
    let name = &located.config.name;
    let survives = |losses| match losses {
        0 => "the loss of no member".to_owned(),
        losses => format!("the loss of {}", text::count(losses as u64, "member")),
    };
    let what = format!("group {name} survives {} now, and then {}", survives(now), survives(next));
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        eprint!("{what}. Go on (yes or no)? ");
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim() == "yes" {
            return Ok(());
        }
    }
    Err(Failure::new("not_confirmed", format!("{what}: add --yes where that is meant")))
}

pub fn grow(arguments: &GrowArguments, output: &Output) -> Result<()> {
    let located = many::grow(group::named(&arguments.group)?, arguments.size)?;
    ask_of(
        &located,
        RelayoutRequest::Begin(RelayoutTarget {
            size_bytes: arguments.size,
            grow: true,
            ..RelayoutTarget::default()
        }),
        output,
    )
}

pub fn shrink(arguments: &ShrinkArguments, output: &Output) -> Result<()> {
    ask(
        &arguments.group,
        RelayoutRequest::Begin(RelayoutTarget {
            size_bytes: Some(arguments.size),
            ..RelayoutTarget::default()
        }),
        output,
    )
}

fn name_of(shape: Shape) -> &'static str {
    Shape::ALL.into_iter().find(|(known, _)| *known == shape).map_or("", |(_, name)| name)
}

fn ask(group: &std::path::Path, request: RelayoutRequest, output: &Output) -> Result<()> {
    ask_of(&group::named(group)?, request, output)
}

fn ask_of(located: &Located, request: RelayoutRequest, output: &Output) -> Result<()> {
    let (mut bar, mut before) = (None, 0);
    let reply =
        control::request_with(located, &GroupRequest::Relayout(request), &mut |moved, total| {
            let bar = bar.get_or_insert_with(|| Bytes::new(output, "moving", total));
            bar.advance(moved.saturating_sub(before));
            before = moved;
        })?;
    drop(bar);
    tell(reply, output)
}
