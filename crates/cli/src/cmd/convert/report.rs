//! What a conversion tells.

use std::fmt;
use std::time::Duration;

use bedplate::{format_duration, format_size};
use bedplate_direct::convert::{Converted, Journal, Pass, Prepared, Switch};
use serde::Serialize;

use crate::render::text::{self, Name};

/// A pass.
#[derive(Debug, Serialize)]
struct OnePass {
    files: u64,
    removed: u64,
    read_bytes: u64,
    written_bytes: u64,
    duration_us: u64,
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct Report {
    name: Name,
    /// The directory beside it: the copy, also of a conversion that was undone.
    copy: Name,
    before: Option<Name>,
    switch: Switch,
    back: bool,
    passes: Vec<OnePass>,
    last_pass: OnePass,
    compared_bytes: u64,
    expected_stop_us: u64,
    stopped_us: u64,
    not_kept: Vec<String>,
    left_out: Vec<Name>,
    leading_out: Vec<Name>,
    unseen_processes: usize,
    /// The line of fstab(5) by which a directory stays mounted after a start of the system.
    fstab: Option<String>,
}

/// What would be done.
#[derive(Debug, Serialize)]
pub struct Plan {
    name: Name,
    copy: Name,
    switch: Switch,
    back: bool,
    files: u64,
    directories: u64,
    size_bytes: u64,
    data_bytes: u64,
    free_bytes: u64,
    bytes_per_second: Option<u64>,
    first_pass_us: Option<u64>,
}

/// What ended a conversion without one.
#[derive(Debug, Serialize)]
pub struct Abandoned {
    pub name: Name,
    pub abandoned: bool,
}

/// Returns the directory that is not at the name when the conversion was undone.
fn copy_of(journal: &Journal) -> Name {
    if journal.is_back() { &journal.source } else { &journal.target }.clone().into()
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

impl From<&Pass> for OnePass {
    fn from(pass: &Pass) -> Self {
        Self {
            files: pass.files,
            removed: pass.removed,
            read_bytes: pass.read,
            written_bytes: pass.written,
            duration_us: micros(pass.took),
        }
    }
}

impl Report {
    pub fn new(journal: &Journal, done: Converted) -> Self {
        let is_switched = journal.switch != Switch::No;
        let keeps_before = is_switched && !journal.is_back();
        let is_bind = journal.switch == Switch::Bind && !journal.is_back();
        Self {
            name: journal.name.clone().into(),
            copy: copy_of(journal),
            before: keeps_before.then(|| journal.before().into()),
            switch: journal.switch,
            back: journal.is_back(),
            passes: done.passes.iter().map(OnePass::from).collect(),
            last_pass: OnePass::from(&done.last),
            compared_bytes: done.compared,
            expected_stop_us: micros(done.expected),
            stopped_us: micros(done.stopped_for),
            not_kept: done.left,
            left_out: done.left_out.into_iter().map(Name::from).collect(),
            leading_out: done.leading_out.into_iter().map(Name::from).collect(),
            unseen_processes: done.unseen,
            fstab: is_bind.then(|| {
                let (copy, name) = (journal.target.display(), journal.name.display());
                format!("{copy} {name} none bind,x-systemd.requires-mounts-for={copy} 0 0")
            }),
        }
    }
}

impl Plan {
    pub fn new(prepared: &Prepared) -> Self {
        let (journal, amount) = (&prepared.journal, prepared.amount);
        Self {
            name: journal.name.clone().into(),
            copy: copy_of(journal),
            switch: journal.switch,
            back: journal.is_back(),
            files: amount.files,
            directories: amount.directories,
            size_bytes: amount.size,
            data_bytes: amount.data,
            free_bytes: prepared.free,
            bytes_per_second: None,
            first_pass_us: None,
        }
    }

    /// Adds how fast the source is read, or may be.
    pub fn with_speed(self, speed: Option<u64>) -> Self {
        let takes = |speed: u64| Duration::from_secs_f64(self.data_bytes as f64 / speed as f64);
        let first = speed.filter(|speed| *speed > 0).map(takes);
        Self { bytes_per_second: speed, first_pass_us: first.map(micros), ..self }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, copy) = (&self.name, &self.copy);
        match self.switch {
            _ if self.back => write!(f, "{name} is what it was before, brought up to {copy}")?,
            Switch::Link => write!(f, "{name} -> {copy}")?,
            Switch::Bind => write!(f, "{copy} is mounted at {name}")?,
            Switch::No => write!(f, "{copy} is a copy of {name}")?,
        }
        write!(
            f,
            ": stopped for {}; {} in the last pass, {} compared, equal",
            format_duration(Duration::from_micros(self.stopped_us)),
            text::count(self.last_pass.files, "file"),
            format_size(self.compared_bytes)
        )?;
        if let Some(before) = &self.before {
            write!(f, "\n{before} is what it was: remove it when it is not needed any more")?;
        }
        if let Some(fstab) = &self.fstab {
            write!(f, "\nthe line of /etc/fstab that keeps it mounted: {fstab}")?;
        }
        for path in &self.left_out {
            write!(f, "\nleft out, neither a file nor a directory nor a link: {path}")?;
        }
        for link in &self.leading_out {
            write!(f, "\nleads out of the directory, to what was not copied: {link}")?;
        }
        if !self.not_kept.is_empty() {
            let what = self.not_kept.join(", ");
            write!(f, "\nnot kept, because the system refuses it: {what}")?;
        }
        if self.unseen_processes > 0 {
            let processes = text::count_in(self.unseen_processes as u64, "process", "processes");
            write!(
                f,
                "\n{processes} of other users could not be looked into for open files: root may"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.switch {
            _ if self.back => "would be brought back into what the name was before",
            Switch::Link => "would become its copy, and the name a link to it",
            Switch::Bind => "would become its copy, and be mounted at the name",
            Switch::No => "would become its copy",
        };
        writeln!(f, "{}: {} {what}", self.name, self.copy)?;
        write!(
            f,
            "{} in {}, {}, of it {} data; {} are free there",
            text::count(self.files, "file"),
            text::count_in(self.directories + 1, "directory", "directories"),
            format_size(self.size_bytes),
            format_size(self.data_bytes),
            format_size(self.free_bytes)
        )?;
        if let (Some(speed), Some(first)) = (self.bytes_per_second, self.first_pass_us) {
            write!(
                f,
                "\nread with {} a second, as just now, the first pass takes {}, and the comparison of \
                 all files in the stop as long again; --verify changed compares most before it",
                format_size(speed),
                format_duration(Duration::from_micros(first))
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is what it was: the conversion is given up", self.name)
    }
}
