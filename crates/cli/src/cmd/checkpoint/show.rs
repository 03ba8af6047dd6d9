//! What the `checkpoint` commands tell: lists, single ones, and what they hold.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use bedplate::{Timestamp, format_size, format_time};
use bedplate_serve::control::Request;
use serde::{Deserialize, Serialize};

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::reach::Reach;
use crate::render::output::Output;
use crate::render::text;

#[derive(Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    name: String,
    /// The name where that is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name_bytes: Option<Vec<u8>>,
    pub epoch: u32,
    /// Nanoseconds since 1970.
    pub created: i64,
    automatic: bool,
    kept: bool,
    paths: Vec<String>,
    /// What deleting it alone would free; asked for by `--space` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alone_bytes: Option<u64>,
}

/// What checkpoints hold, as the daemon tells it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Held {
    rows: u64,
    pub alone_bytes: u64,
    /// What there is to warn of, as a sentence.
    #[serde(default)]
    pub warning: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    checkpoints: Vec<Checkpoint>,
    /// What all hold together; asked for by `--space` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    checkpoint: &'a Checkpoint,
    rows: u64,
    alone_bytes: u64,
}

#[derive(Serialize)]
struct WouldFree {
    would_free: Vec<String>,
    bytes: u64,
}

impl Checkpoint {
    /// Returns its name as it is.
    pub fn name(&self) -> &[u8] {
        self.name_bytes.as_deref().unwrap_or(self.name.as_bytes())
    }

    /// Returns whether it is of everything.
    pub fn is_whole(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns whether nothing but a person deletes it.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Returns whether it is one that was seen before, not another of the same name.
    pub fn is(&self, name: &[u8], epoch: u32, created: i64) -> bool {
        (self.name(), self.epoch, self.created) == (name, epoch, created)
    }
}

/// Returns all checkpoints, oldest first.
pub fn all(reach: &Reach, output: &Output) -> Result<Vec<Checkpoint>> {
    reach.ask(&Request::List, Access::ReadOnly, output)
}

/// Asks what deleting checkpoints would free; of none: what all hold.
pub fn held(reach: &Reach, epochs: Vec<u32>, output: &Output) -> Result<Held> {
    reach.ask(&Request::Held { epochs }, Access::ReadOnly, output)
}

/// Finds one by its name.
///
/// # Errors
/// There is none.
pub fn find<'a>(checkpoints: &'a [Checkpoint], name: &OsString) -> Result<&'a Checkpoint> {
    let same = |checkpoint: &Checkpoint| checkpoint.name() == name.as_bytes();
    let missing =
        || Failure::new("not_found", format!("there is no checkpoint '{}'", text::name(name)));
    checkpoints.iter().find(|checkpoint| same(checkpoint)).ok_or_else(missing)
}

/// Refuses a name that a checkpoint has.
pub fn refuse_taken(reach: &Reach, name: &OsString, output: &Output) -> Result<()> {
    match find(&all(reach, output)?, name) {
        Ok(_) => Err(Failure::new("exists", format!("a checkpoint '{}' exists", text::name(name)))),
        Err(_) => Ok(()),
    }
}

pub fn list(reach: &Reach, space: bool, output: &Output) -> Result<()> {
    let mut listing = Listing { checkpoints: all(reach, output)?, held_bytes: None, warning: None };
    if space {
        for checkpoint in &mut listing.checkpoints {
            checkpoint.alone_bytes = Some(held(reach, vec![checkpoint.epoch], output)?.alone_bytes);
        }
        let held = held(reach, Vec::new(), output)?;
        (listing.held_bytes, listing.warning) = (Some(held.alone_bytes), held.warning);
    }
    output.show(&listing)
}

pub fn one(reach: &Reach, name: &OsString, output: &Output) -> Result<()> {
    let checkpoints = all(reach, output)?;
    let checkpoint = find(&checkpoints, name)?;
    let Held { rows, alone_bytes, .. } = held(reach, vec![checkpoint.epoch], output)?;
    output.show(&Shown { checkpoint, rows, alone_bytes })
}

/// Tells what deleting checkpoints together would free, and deletes nothing.
pub fn would_free(reach: &Reach, names: &[OsString], output: &Output) -> Result<()> {
    let checkpoints = all(reach, output)?;
    let epochs =
        names.iter().map(|name| Ok(find(&checkpoints, name)?.epoch)).collect::<Result<_>>()?;
    let bytes = held(reach, epochs, output)?.alone_bytes;
    output.show(&WouldFree {
        would_free: names.iter().map(|name| bedplate::readable_name(name.as_bytes())).collect(),
        bytes,
    })
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = match (self.kept, self.automatic) {
            (true, true) => " (kept, automatic)",
            (true, false) => " (kept)",
            (false, true) => " (automatic)",
            (false, false) => "",
        };
        let of = if self.paths.is_empty() {
            "everything".to_owned()
        } else {
            text::one_line(&self.paths.join(", "))
        };
        let name = match &self.name_bytes {
            Some(bytes) => bytes.escape_ascii().to_string(),
            None => self.name.escape_debug().to_string(),
        };
        write!(f, "{name}: {} UTC, of {of}{flags}", format_time(Timestamp(self.created)))?;
        self.alone_bytes.map_or(Ok(()), |bytes| write!(f, ", holds {} alone", format_size(bytes)))
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.checkpoints.is_empty() {
            return f.write_str("no checkpoints");
        }
        self.checkpoints.iter().try_for_each(|checkpoint| writeln!(f, "{checkpoint}"))?;
        if let Some(bytes) = self.held_bytes {
            writeln!(f, "deleting all of them would free {}", format_size(bytes))?;
        }
        self.warning.as_ref().map_or(Ok(()), |warning| writeln!(f, "{warning}"))
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checkpoint, rows, alone_bytes } = self;
        write!(
            f,
            "{checkpoint}\n{rows} rows of the metadata changed since; deleting it frees {}",
            format_size(*alone_bytes)
        )
    }
}

impl fmt::Display for WouldFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "deleting {} would free {}; nothing was deleted",
            text::one_line(&self.would_free.join(", ")),
            format_size(self.bytes)
        )
    }
}
