//! `bedplate volume create NAME MEMBER… [--layout L] [--unit SIZE] [--copies N] [--log MEMBER…]
//! [--spare MEMBER…]`

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{
    Arrangement, BlockDevice, GroupConfig, MEMBER_BYTES_MIN, NewGroup, Shape, create_group,
    create_image, format_size, parse_size,
};
use clap::{Args, ValueEnum};

use super::many::{self, VolumeSpec};
use crate::daemon::status::Status;
use crate::device::group;
use crate::device::homes;
use crate::device::made::Made;
use crate::device::newcomer::{self, sysfs_of};
use crate::device::place;
use crate::device::signature;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::text;

/// Make a group of devices; what they hold is gone
#[derive(Debug, Args)]
pub struct Arguments {
    /// The group's name
    pub(super) name: String,
    /// The members of the data volume, in the order of their places: block devices or image files
    #[arg(required = true)]
    members: Vec<PathBuf>,
    /// How the members are arranged
    #[arg(long, value_enum, default_value = "mirror")]
    layout: LayoutName,
    /// A volume of a group with many, in parts of the members: NAME:LAYOUT, and :SIZE unless it gets
    /// all that is left. It is used as group:GROUP/NAME
    #[arg(long, value_name = "NAME:LAYOUT[:SIZE]", conflicts_with_all = ["layout", "log", "spare",
        "reserve"])]
    pub(super) volume: Vec<VolumeSpec>,
    /// Stripe unit, a multiple of the members' blocks [default: 64 KiB, of raid5 16 KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) unit: Option<u64>,
    /// Copies of everything in stripe-mirror and mirror-stripe, 2 to 4; a plain mirror has one on
    /// every member, and as a --volume so many [default: 2]
    #[arg(long, value_name = "N")]
    pub(super) copies: Option<usize>,
    /// A member for the intent log alone; several are a mirror
    #[arg(long, value_name = "MEMBER")]
    log: Vec<PathBuf>,
    /// A member that waits for another to fail
    #[arg(long, value_name = "MEMBER")]
    spare: Vec<PathBuf>,
    /// Leave so much free at the end of every member, as room for a member that fails when no spare
    /// stands in
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    reserve: Option<u64>,
    /// Make image files of this size where members do not exist
    #[arg(long, value_name = "SIZE", value_parser = image_size)]
    size: Option<u64>,
    /// Take devices that hold something, or belong to another group
    #[arg(long)]
    pub(super) force: bool,
}

/// The layouts by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    /// One member behind the other
    Concat,
    /// Units dealt out over all members
    Stripe,
    /// Everything on every member, 2 to 4 of them
    Mirror,
    /// A stripe over mirrors, RAID 1+0
    StripeMirror,
    /// A mirror over stripes, RAID 0+1
    MirrorStripe,
    /// Units dealt out over all members and their parity, RAID-5; 3 members or more
    Raid5,
}

impl LayoutName {
    pub fn shape(self) -> Shape {
        match self {
            Self::Concat => Shape::Concat,
            Self::Stripe => Shape::Stripe,
            Self::Mirror => Shape::Mirror,
            Self::StripeMirror => Shape::StripeMirror,
            Self::MirrorStripe => Shape::MirrorStripe,
            Self::Raid5 => Shape::Raid5,
        }
    }
}

/// Reads the size of an image that is to be a member.
fn image_size(text: &str) -> std::result::Result<u64, String> {
    let read = parse_size(text)?;
    if read < MEMBER_BYTES_MIN {
        Err(format!("a member has at least {}", format_size(MEMBER_BYTES_MIN)))
    } else {
        Ok(read)
    }
}

impl Arguments {
    fn copies(&self) -> usize {
        self.copies.unwrap_or(2)
    }

    fn unit(&self) -> u64 {
        self.unit.unwrap_or_else(|| self.layout.shape().unit_bytes_default())
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    refuse_idle_options(arguments)?;
    let paths: Vec<&PathBuf> =
        arguments.members.iter().chain(&arguments.log).chain(&arguments.spare).collect();
    newcomer::refuse_overlaps(&paths)?;
    let mut made = Made::default();
    for path in &paths {
        prepare(path, arguments, &mut made)?;
    }
    let open = |paths: &[PathBuf]| -> Result<Vec<Arc<dyn BlockDevice>>> {
        paths
            .iter()
            .map(|path| {
                device::open_plain(&place::whole(path).unwrap_or(path.clone()), Access::ReadWrite)
            })
            .collect()
    };
    if !arguments.volume.is_empty() {
        return run_many(arguments, open(&arguments.members)?, made, &paths, output);
    }
    let new = NewGroup {
        name: arguments.name.clone(),
        data: Arrangement {
            shape: arguments.layout.shape(),
            unit_bytes: arguments.unit(),
            plexes: arguments.copies(),
        },
        members: open(&arguments.members)?,
        log_members: open(&arguments.log)?,
        spares: open(&arguments.spare)?,
        region_bytes: None,
        reserve_bytes: arguments.reserve.unwrap_or(0),
        force: arguments.force,
    };
    if !arguments.force {
        new.members
            .iter()
            .chain(&new.log_members)
            .chain(&new.spares)
            .try_for_each(newcomer::refuse_volume)?;
    }
    let config = create_group(&new)?;
    made.keep();
    warn(arguments);
    warn_of_namesakes(&config, &paths);
    output.show(&Status::from_config(&config))
}

/// Makes a group with many volumes.
fn run_many(
    arguments: &Arguments,
    members: Vec<Arc<dyn BlockDevice>>,
    made: Made,
    paths: &[&PathBuf],
    output: &Output,
) -> Result<()> {
    if !arguments.force {
        members.iter().try_for_each(newcomer::refuse_volume)?;
    }
    let table = many::create(arguments, members)?;
    made.keep();
    let all: Vec<&Path> = paths.iter().map(|path| path.as_path()).collect();
    homes::warn(&all, true);
    let found = group::divided(&arguments.members[0])?.filter(|found| found.table.id == table.id);
    let lost = || Failure::new("io", "the group that was made is not found: see 'volume list'");
    many::show(&found.ok_or_else(lost)?, output).map(drop)
}

/// Refuses options that this layout has no use for.
fn refuse_idle_options(arguments: &Arguments) -> Result<()> {
    if !arguments.volume.is_empty() {
        return arguments.members.iter().try_for_each(|path| many::refuse_remote(path));
    }
    let idle = match arguments.layout {
        _ if arguments.unit.is_some() && !arguments.layout.shape().is_striped() => {
            "--unit says how a stripe is dealt out"
        }
        LayoutName::StripeMirror | LayoutName::MirrorStripe => return Ok(()),
        _ if arguments.copies.is_some() => {
            "--copies is for stripe-mirror and mirror-stripe; a plain mirror has one on every \
             member"
        }
        _ => return Ok(()),
    };
    let layout = arguments
        .layout
        .to_possible_value()
        .map_or(String::new(), |value| value.get_name().to_owned());
    Err(Failure::usage(format!(
        "{idle}, and the layout is {layout}: leave it out, or choose another --layout"
    )))
}

/// Says that a name does not tell two groups apart.
fn warn_of_namesakes(config: &GroupConfig, paths: &[&PathBuf]) {
    let beside = paths
        .iter()
        .filter_map(|path| Some(path.canonicalize().ok()?.parent()?.to_owned()))
        .collect::<Vec<_>>();
    let others = group::all(&beside).unwrap_or_default();
    if let Some(other) =
        others.iter().find(|other| other.config.name == config.name && other.config.id != config.id)
    {
        let (name, member) = (&config.name, other.members[0].0.display());
        tracing::warn!(
            "there is another group {name}, with {member}: 'group:{name}' names neither of them, a \
             member's path does"
        );
    }
}

/// Makes an image file where nothing is, and refuses what other programs left there.
fn prepare(path: &Path, arguments: &Arguments, made: &mut Made) -> Result<()> {
    let shown = path.display();
    match (place::exists(path), arguments.size) {
        (false, Some(size)) => {
            create_image(path, size - size % 4096, false)?;
            made.note(path);
            Ok(())
        }
        (false, None) => Err(Failure::new(
            "not_found",
            format!("{shown} does not exist: add --size to make image files"),
        )),
        (true, _) if arguments.force => signature::refuse_kind(path),
        (true, _) => {
            newcomer::refuse_content(path).and_then(|()| newcomer::refuse_damaged_label(path))
        }
    }
}

/// Says what is legal and unwise, and why.
fn warn(arguments: &Arguments) {
    let members = arguments.members.len();
    let columns = match arguments.layout {
        LayoutName::Stripe => members,
        LayoutName::StripeMirror | LayoutName::MirrorStripe => members / arguments.copies(),
        LayoutName::Concat | LayoutName::Mirror | LayoutName::Raid5 => usize::MAX,
    };
    if columns < 4 {
        tracing::warn!(
            "{}: a stripe spreads load well from four columns on",
            text::count(columns as u64, "column")
        );
    }
    if !arguments.layout.shape().is_redundant() && members > 1 {
        tracing::warn!(
            "there is one copy of everything: the death of any one member loses the volume"
        );
    }
    if arguments.layout.shape().is_striped() && !arguments.unit().is_multiple_of(4096) {
        tracing::warn!(
            "a unit of {} is not a multiple of 4 KiB, the usual block of a file system: blocks \
             will lie on two members",
            format_size(arguments.unit())
        );
    }
    if arguments.layout.shape().has_parity() && arguments.log.is_empty() {
        tracing::warn!(
            "the intent log lies on the RAID-5: each of its small writes reads old data and \
             parity, and writes and flushes the parity log on two members before it is done; give \
             it a mirror of its own with --log"
        );
    }
    let sizes: Vec<u64> = arguments.members.iter().filter_map(|path| size_of(path)).collect();
    if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max())
        && least != most
        && arguments.layout.shape().needs_equal_members()
    {
        let (least, most) = (format_size(*least), format_size(*most));
        tracing::warn!(
            "the members have from {least} to {most}: every member counts as large as the smallest \
             beside it"
        );
    }
    let all: Vec<&Path> = arguments
        .members
        .iter()
        .chain(&arguments.log)
        .chain(&arguments.spare)
        .map(PathBuf::as_path)
        .collect();
    homes::warn(&all, arguments.layout.shape().is_redundant());
}

fn size_of(path: &Path) -> Option<u64> {
    if place::is_remote(path) {
        let device = bedplate_block::open(path, &place::to_look()).ok()?;
        return Some(device.size_bytes());
    }
    let meta = fs::metadata(path).ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    let sectors = fs::read_to_string(sysfs_of(&meta).join("size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * 512)
}
