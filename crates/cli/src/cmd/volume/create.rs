//! `bedplate volume create NAME MEMBER… [--layout L] [--unit SIZE] [--copies N] [--log MEMBER…] [--spare MEMBER…]`

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{Arrangement, BlockDevice, FileSystem, NewGroup, Shape, create_group, create_image, format_size, parse_size};
use clap::{Args, ValueEnum};

use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::signature;
use crate::status::Status;

/// Make a group of devices; what they hold is gone
#[derive(Debug, Args)]
pub struct Arguments {
    /// The group's name
    name: String,
    /// The members of the data volume, in the order of their places: block devices or image files
    #[arg(required = true)]
    members: Vec<PathBuf>,
    /// How the members are arranged
    #[arg(long, value_enum, default_value = "mirror")]
    layout: LayoutName,
    /// Stripe unit, a multiple of the members' blocks [default: 64 KiB, of raid5 16 KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    unit: Option<u64>,
    /// Copies of everything in stripe-mirror and mirror-stripe, 2 to 4; a plain mirror has one on every member
    #[arg(long, value_name = "N", default_value_t = 2)]
    copies: usize,
    /// A member for the intent log alone; several are a mirror
    #[arg(long, value_name = "MEMBER")]
    log: Vec<PathBuf>,
    /// A member that waits for another to fail
    #[arg(long, value_name = "MEMBER")]
    spare: Vec<PathBuf>,
    /// Leave so much free at the end of every member, as room for a member that fails when no spare stands in
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    reserve: Option<u64>,
    /// Make image files of this size where members do not exist
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Take devices that hold something, or belong to another group
    #[arg(long)]
    force: bool,
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

impl Arguments {
    fn unit(&self) -> u64 {
        self.unit.unwrap_or_else(|| self.layout.shape().unit_bytes_default())
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let paths: Vec<&PathBuf> = arguments.members.iter().chain(&arguments.log).chain(&arguments.spare).collect();
    refuse_twice(&paths)?;
    for path in &paths {
        prepare(path, arguments)?;
    }
    warn(arguments);
    let open = |paths: &[PathBuf]| -> Result<Vec<Arc<dyn BlockDevice>>> {
        paths.iter().map(|path| device::open_plain(&path.canonicalize().unwrap_or(path.clone()), Access::ReadWrite)).collect()
    };
    let new = NewGroup {
        name: arguments.name.clone(),
        data: Arrangement { shape: arguments.layout.shape(), unit_bytes: arguments.unit(), plexes: arguments.copies },
        members: open(&arguments.members)?,
        log_members: open(&arguments.log)?,
        spares: open(&arguments.spare)?,
        region_bytes: None,
        reserve_bytes: arguments.reserve.unwrap_or(0),
        force: arguments.force,
    };
    if !arguments.force {
        refuse_volumes(&new)?;
    }
    output.show(&Status::from_config(&create_group(&new)?))
}

/// Refuses one device under two names, which no claim would name as well.
fn refuse_twice(paths: &[&PathBuf]) -> Result<()> {
    let real: Vec<PathBuf> = paths.iter().map(|path| below(path)).collect();
    for (at, path) in real.iter().enumerate() {
        if let Some(first) = real[..at].iter().position(|other| other == path) {
            let (first, second) = (paths[first].display(), paths[at].display());
            return Err(Failure::new("duplicated_member", format!("{first} and {second} are the same device: a member has one place")));
        }
    }
    Ok(())
}

/// Returns what a path stands for in the end: without links, and for a loop device the file behind it.
fn below(path: &Path) -> PathBuf {
    let real = path.canonicalize().unwrap_or(path.to_owned());
    let meta = fs::metadata(&real).ok().filter(|meta| meta.file_type().is_block_device());
    let backing = meta.and_then(|meta| fs::read_to_string(sysfs_of(&meta).join("loop/backing_file")).ok());
    backing.map_or(real, |backing| PathBuf::from(backing.trim()))
}

/// Makes an image file where nothing is, and refuses what other programs left there.
fn prepare(path: &Path, arguments: &Arguments) -> Result<()> {
    let shown = path.display();
    match (path.exists(), arguments.size) {
        (false, Some(size)) => return Ok(create_image(path, size - size % 4096, false)?),
        (false, None) => return Err(Failure::new("not_found", format!("{shown} does not exist: add --size to make image files"))),
        (true, _) => {}
    }
    match signature::recognize(path)? {
        Some(what) if !arguments.force => Err(Failure::new("exists", format!("{shown} holds {what}: add --force to destroy it"))),
        _ => Ok(()),
    }
}

fn refuse_volumes(new: &NewGroup) -> Result<()> {
    let mut devices = new.members.iter().chain(&new.log_members).chain(&new.spares);
    match devices.find(|device| FileSystem::probe(device).is_ok()) {
        Some(device) => Err(Failure::new("exists", format!("{} holds a Bedplate volume: add --force to destroy it", device.name()))),
        None => Ok(()),
    }
}

/// Says what is legal and unwise, and why.
fn warn(arguments: &Arguments) {
    let members = arguments.members.len();
    let columns = match arguments.layout {
        LayoutName::Stripe => members,
        LayoutName::StripeMirror | LayoutName::MirrorStripe => members / arguments.copies.max(1),
        LayoutName::Concat | LayoutName::Mirror | LayoutName::Raid5 => usize::MAX,
    };
    if columns < 4 {
        tracing::warn!("{columns} columns: a stripe spreads load well from four columns on");
    }
    if matches!(arguments.layout, LayoutName::Concat | LayoutName::Stripe) && members > 1 {
        tracing::warn!("there is one copy of everything: the death of any one member loses the volume");
    }
    let striped = !matches!(arguments.layout, LayoutName::Concat | LayoutName::Mirror);
    if striped && !arguments.unit().is_multiple_of(4096) {
        tracing::warn!(
            "a unit of {} is not a multiple of 4 KiB, the usual block of a file system: blocks will lie on two members",
            format_size(arguments.unit())
        );
    }
    if arguments.layout == LayoutName::Raid5 && arguments.log.is_empty() {
        tracing::warn!(
            "the intent log lies on the RAID-5: each of its small writes reads old data and parity, and writes and flushes the parity log \
             on two members before it is done; give it a mirror of its own with --log"
        );
    }
    let sizes: Vec<u64> = arguments.members.iter().filter_map(|path| size_of(path)).collect();
    if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max())
        && least != most
        && arguments.layout != LayoutName::Concat
    {
        let (least, most) = (format_size(*least), format_size(*most));
        tracing::warn!("the members have from {least} to {most}: every member counts as large as the smallest beside it");
    }
    let homes: Vec<Option<u64>> = arguments.members.iter().map(|path| home_of(path)).collect();
    if members > 1 && homes.iter().all(|home| home.is_some() && *home == homes[0]) {
        tracing::warn!("all members are on one physical device: it is the only one that has to fail, and it serves them one after the other");
    }
}

fn size_of(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    let sectors = fs::read_to_string(sysfs_of(&meta).join("size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * 512)
}

fn sysfs_of(meta: &fs::Metadata) -> PathBuf {
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Returns the number of the disk below: of the file system of an image, of a loop device's file, of the disk of a partition.
fn home_of(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok()?;
    if !meta.file_type().is_block_device() {
        return Some(meta.dev());
    }
    let sysfs = sysfs_of(&meta).canonicalize().ok()?;
    if let Ok(backing) = fs::read_to_string(sysfs.join("loop/backing_file")) {
        return home_of(Path::new(backing.trim()));
    }
    let disk = if sysfs.join("partition").exists() { sysfs.parent()?.to_owned() } else { sysfs };
    let number = fs::read_to_string(disk.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}
