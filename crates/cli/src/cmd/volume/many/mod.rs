//! Groups with many volumes: `volume create NAME DEVICE… --volume N:LAYOUT[:SIZE]`,
//! `volume add-volume|remove-volume`, and what other commands do of a group as a whole.

mod change;
mod members;
mod show;

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use bedplate::{Arrangement, Id, NewVolume, parse_size};
use clap::{Args, ValueEnum};

use super::create::LayoutName;
use crate::device::group::{Divided, Located};
use crate::failure::{Failure, Result};

pub use change::{add_volume, create, grow, remove_volume};
pub use members::{add, import, refuse_remote, remove, replace};
pub use show::{export, scrub, show, stat};

/// Make one more volume in free space of a group with many volumes, while others are in use
#[derive(Debug, Args)]
pub struct AddVolumeArguments {
    /// The group: group:NAME, or any member
    group: PathBuf,
    /// The volume: NAME:LAYOUT, and :SIZE unless it gets all that is free
    #[arg(value_name = "NAME:LAYOUT[:SIZE]")]
    volume: VolumeSpec,
    /// A member that it lies on, in the order of the places; unless named all, and of a mirror as many
    /// as it has copies, those with the most room
    #[arg(long, value_name = "DEVICE", num_args = 1..)]
    on: Vec<PathBuf>,
    /// Stripe unit, a multiple of the members' blocks [default: 64 KiB, of raid5 16 KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    unit: Option<u64>,
    /// Copies of everything, 2 to 4, where the layout mirrors [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<usize>,
}

/// Take a volume out of a group with many, and free its room; what it holds is gone
#[derive(Debug, Args)]
pub struct RemoveVolumeArguments {
    /// The group: group:NAME, or any member
    group: PathBuf,
    /// The name of the volume
    volume: String,
    /// Destroy what it holds
    #[arg(long)]
    yes: bool,
}

/// What a command line says of a volume: `NAME:LAYOUT[:SIZE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    pub name: String,
    pub layout: LayoutName,
    pub size_bytes: Option<u64>,
}

impl FromStr for VolumeSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut words = text.split(':');
        let (name, layout) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let size = words.next();
        if name.is_empty() || layout.is_empty() || words.next().is_some() {
            return Err("a volume is told as NAME:LAYOUT or NAME:LAYOUT:SIZE".to_owned());
        }
        let layout = LayoutName::from_str(layout, false).map_err(|_| {
            let all: Vec<&str> = bedplate::Shape::ALL.iter().map(|(_, name)| *name).collect();
            format!("'{layout}' is no layout: it is one of {}", all.join(", "))
        })?;
        let size_bytes = size.map(parse_size).transpose()?;
        if size_bytes == Some(0) {
            return Err("a volume of no bytes holds nothing".to_owned());
        }
        Ok(Self { name: name.to_owned(), layout, size_bytes })
    }
}

impl VolumeSpec {
    /// Returns the volume that is to be made on members; none: those that are chosen for it.
    fn volume(&self, unit: Option<u64>, copies: Option<usize>, members: Vec<Id>) -> NewVolume {
        let shape = self.layout.shape();
        let unit_bytes =
            unit.filter(|_| shape.is_striped()).unwrap_or_else(|| shape.unit_bytes_default());
        let arrangement = Arrangement { shape, unit_bytes, plexes: copies.unwrap_or(2) };
        NewVolume { name: self.name.clone(), arrangement, size_bytes: self.size_bytes, members }
    }
}

/// Returns the group with many volumes of the name, which it has to be.
fn required(name: &std::path::Path) -> Result<Divided> {
    crate::device::group::divided(name)?.ok_or_else(|| {
        let shown = name.display();
        let message = format!(
            "{shown} is no group with many volumes: 'bedplate volume create' makes one with --volume"
        );
        Failure::new("not_found", message)
    })
}

/// Returns the group and the volume that the name of a volume of a group with many means.
pub fn parts_of(located: &Located) -> Option<(&str, &str)> {
    located.config.name.split_once('/')
}

/// Refuses what is not offered for a volume of a group with many; `instead` says what to do.
pub fn refuse_part(located: &Located, what: &str, instead: &str) -> Result<()> {
    let Some((group, _)) = parts_of(located) else { return Ok(()) };
    let name = &located.config.name;
    Err(Failure::new(
        "unsupported",
        format!(
            "{what} is not offered for {name}, a volume of the group {group} with many: {instead}"
        ),
    ))
}

/// Opens pieces of members of a group.
fn opener(
    found: &Divided,
) -> impl Fn(Id, &[Range<u64>]) -> bedplate::GroupResult<std::sync::Arc<dyn bedplate::BlockDevice>>
{
    move |member, pieces| found.open(member, pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_told_in_two_or_three_words() {
        let read = |text: &str| text.parse::<VolumeSpec>();
        let spec = read("redo:mirror:10G").unwrap();
        assert_eq!((spec.name.as_str(), spec.size_bytes), ("redo", Some(10 << 30)));
        assert_eq!(read("data:stripe-mirror").unwrap().layout, LayoutName::StripeMirror);
        for wrong in ["", "redo", ":mirror", "redo:", "a:mirror:1G:x", "a:mirror:", "a:mirror:0"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let told = read("a:raid6").unwrap_err();
        assert!(told.contains("'raid6' is no layout") && told.contains("raid5"), "{told}");
    }
}
