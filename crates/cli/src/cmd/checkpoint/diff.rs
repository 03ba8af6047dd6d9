//! `bedplate checkpoint diff`

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use bedplate::{ChangedKind, ChangedRange, CheckpointDifference, DifferenceKind, format_size};
use bedplate_serve::control::{Changes, Request};
use clap::Args;
use serde::Serialize;

use crate::device::Access;
use crate::failure::Result;
use crate::reach::Reach;
use crate::render::output::Output;
use crate::render::text;

/// What to compare.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// The older checkpoint
    from: OsString,
    /// The newer one; without it: the present
    to: Option<OsString>,
    /// The blocks of this file, on the mount or from the root of the volume, instead of names
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl DiffArguments {
    pub(super) fn run(&self, reach: &Reach, output: &Output) -> Result<()> {
        let (from, to) =
            (self.from.as_bytes().to_vec(), self.to.as_ref().map(|to| to.as_bytes().to_vec()));
        match &self.file {
            Some(file) => output.show(&blocks(reach, file, &from, to.as_ref(), output)?),
            None => output.show(&names(reach, &from, to.as_ref(), output)?),
        }
    }
}

fn names(reach: &Reach, from: &[u8], to: Option<&Vec<u8>>, output: &Output) -> Result<Names> {
    Ok(Names {
        differences: differences(reach, from, to, output)?.into_iter().map(Name::from).collect(),
    })
}

/// Returns what differs.
pub fn differences(
    reach: &Reach,
    from: &[u8],
    to: Option<&Vec<u8>>,
    output: &Output,
) -> Result<Vec<CheckpointDifference>> {
    reach.ask(&Request::Diff { from: from.to_vec(), to: to.cloned() }, Access::ReadOnly, output)
}

fn blocks(
    reach: &Reach,
    file: &std::path::Path,
    from: &[u8],
    to: Option<&Vec<u8>>,
    output: &Output,
) -> Result<Blocks> {
    let changes =
        changes(reach, &reach.inside(file).into_os_string().into_vec(), from, to, output)?;
    Ok(Blocks {
        path: file.to_owned(),
        size_before_bytes: changes.size_before,
        size_bytes: changes.size,
        ranges: changes.ranges,
    })
}

/// Returns what changed in the file at a path from the root of the volume.
pub fn changes(
    reach: &Reach,
    path: &[u8],
    from: &[u8],
    to: Option<&Vec<u8>>,
    output: &Output,
) -> Result<Changes> {
    reach.ask(
        &Request::Changes { path: path.to_vec(), from: from.to_vec(), to: to.cloned() },
        Access::ReadOnly,
        output,
    )
}

#[derive(Serialize)]
struct Names {
    differences: Vec<Name>,
}

/// A difference for people and programs: text where it can be, bytes where it cannot.
#[derive(Serialize)]
struct Name {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    kind: DifferenceKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    changed_bytes: u64,
    resized: bool,
    attributes: bool,
}

impl From<CheckpointDifference> for Name {
    fn from(difference: CheckpointDifference) -> Self {
        let shown = |path: &[u8]| bedplate::readable_name(path);
        let CheckpointDifference { path, kind, from, changed_bytes, resized, attributes, .. } =
            difference;
        let (text, from) = (shown(&path), from.as_deref().map(shown));
        let path_bytes = (text.as_bytes() != path).then_some(path);
        Self { path: text, path_bytes, kind, from, changed_bytes, resized, attributes }
    }
}

#[derive(Serialize)]
struct Blocks {
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    size_before_bytes: Option<u64>,
    size_bytes: u64,
    ranges: Vec<ChangedRange>,
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.differences.is_empty() {
            return f.write_str("no differences");
        }
        self.differences.iter().try_for_each(|name| writeln!(f, "{name}"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DifferenceKind::Added => "added",
            DifferenceKind::Removed => "removed",
            DifferenceKind::Renamed => "renamed",
            DifferenceKind::Changed => "changed",
            DifferenceKind::OnlyFirst => "before",
            DifferenceKind::OnlySecond => "after",
        };
        write!(f, "{kind:<8} {}", text::one_line(&self.path))?;
        if let Some(from) = &self.from {
            write!(f, " from {}", text::one_line(from))?;
        }
        if matches!(self.kind, DifferenceKind::OnlyFirst | DifferenceKind::OnlySecond) {
            let (one, other) = if self.kind == DifferenceKind::OnlyFirst {
                ("first", "second")
            } else {
                ("second", "first")
            };
            return write!(
                f,
                " (only the {one} is of it, the {other} of other named files: not compared)"
            );
        }
        let mut what = Vec::new();
        if self.changed_bytes > 0 {
            what.push(format_size(self.changed_bytes).to_string());
        }
        what.extend(self.resized.then(|| "size".to_owned()));
        what.extend(self.attributes.then(|| "attributes".to_owned()));
        if what.is_empty() { Ok(()) } else { write!(f, " ({})", what.join(", ")) }
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.ranges.iter().map(|range| range.len).sum();
        write!(
            f,
            "{}: {} of {} changed",
            text::name(&self.path),
            format_size(bytes),
            format_size(self.size_bytes)
        )?;
        match self.size_before_bytes {
            None => writeln!(f, ", it was not there before")?,
            Some(before) if before != self.size_bytes => {
                writeln!(f, ", it had {}", format_size(before))?;
            }
            Some(_) => writeln!(f)?,
        }
        for ChangedRange { offset, len, kind } in &self.ranges {
            writeln!(
                f,
                "{offset:>16} {len:>12} {}",
                if *kind == ChangedKind::Data { "data" } else { "hole" }
            )?;
        }
        Ok(())
    }
}
