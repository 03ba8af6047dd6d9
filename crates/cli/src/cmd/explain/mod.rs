//! `bedplate explain FILE|DIR`

mod databases;
mod findings;
mod leases;
mod locks;
mod pages;
mod scrubs;

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::{FileActivity, IoMode, IoThreads, Waits, format_size};
use bedplate_serve::control::Request;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cmd::checkpoint::show::Held;
use crate::cmd::mode::trial::{self, Trial};
use crate::daemon::scrubbed::ScrubStatus;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::mount::threads::{self, Standing, Verdict};
use crate::mount::watch::{Scope, SortKey, between, short, sorted};
use crate::mount::{self, Mount, waits};
use crate::render::output::Output;
use crate::render::text::{self, Name};
use databases::Advice;
use findings::{FileFacts, Finding};

/// How many files of a mount are told of.
const FILES_MAX: usize = 10;

/// Tell how a file of a live mount is served, what did not go the way its mode asks, how often,
/// which program did it, and what to change
///
/// Of a directory: of the busiest files below it that have something to tell.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file on a mount, or a directory
    path: PathBuf,
}

/// One open of a file, as the daemon tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Open {
    /// The thread that opened it.
    pub pid: u32,
    /// Its name; `None` when it is gone.
    #[serde(default)]
    pub program: Option<String>,
    /// Whether it may write.
    pub writable: bool,
    /// The mode that the name it was opened by asked for.
    pub named_mode: Option<String>,
    /// It was opened with `O_DIRECT`.
    pub direct_flag: bool,
    /// The mode it asks for, after all that is set.
    pub requested_mode: String,
    /// I/Os of it that were not aligned.
    pub misaligned: u64,
    /// Syncs asked for through it.
    pub syncs: u64,
    /// How long they took.
    pub sync_wait_ns: u64,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (pid {})",
            text::one_line(self.program.as_deref().unwrap_or("a program that is gone")),
            self.pid
        )
    }
}

#[derive(Serialize)]
struct OfFile {
    path: Name,
    effective_mode: Option<String>,
    mode_from: String,
    /// The last trial of another mode.
    trial: Option<Trial>,
    io_align: u64,
    /// The I/O size that programs are told to prefer.
    preferred_io_bytes: u64,
    /// A whole row of the volume below; 0: there are none.
    row_bytes: u64,
    size_bytes: u64,
    extents: usize,
    extent_bytes_average: u64,
    /// How much is wanted in one run.
    extent_bytes_wanted: Option<u64>,
    opens: Vec<Open>,
    /// How leases of the file stand; nothing where the mount hands out none.
    lease: Option<String>,
    /// The threads that serve the mount, where they are too few or too many.
    threads: Option<Verdict>,
    findings: Vec<Finding>,
    /// What a database may be told.
    databases: Vec<Advice>,
    /// What its reads and writes waited for.
    waits: Waits,
    #[serde(skip)]
    activity: FileActivity,
}

#[derive(Serialize)]
struct OfMount {
    path: Name,
    mode: String,
    failed: Option<String>,
    /// Checkpoints fill the volume.
    checkpoints: Option<String>,
    /// How background defragmentation stands.
    defrag: Option<String>,
    /// What scrubs of the group found that it is on.
    scrub: Option<ScrubStatus>,
    /// How leases stand; nothing where the mount hands out none.
    leases: Option<String>,
    /// Whether the threads that serve are enough; nothing where the mount does not tell this user.
    threads: Option<Verdict>,
    /// The engine's I/O threads, where it needs any.
    io_threads: Option<IoThreads>,
    lock_waits: u64,
    /// What reads and writes of all files waited for.
    waits: Option<Waits>,
    syncs: u64,
    flushes: u64,
    /// What a database in this directory may be told.
    databases: Vec<Advice>,
    files: Vec<Brief>,
}

#[derive(Serialize)]
struct Brief {
    path: Name,
    findings: Vec<Finding>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mount = live::require_mount(&arguments.path)?;
    let info = live::info(&mount)?;
    if mount::canonical(&arguments.path)?.is_dir() {
        output.show(&of_mount(&arguments.path, &mount, &info)?)
    } else {
        output.show(&of_file(&arguments.path, &mount, &info)?)
    }
}

fn of_file(path: &Path, mount: &Mount, info: &Value) -> Result<OfFile> {
    // Refuses what is no file.
    Scope::new(&[path.to_owned()])?;
    let told = look(path, info)?;
    let mode_from = mode_from(path, &told, info)?;
    let mut findings = findings::of(&told);
    if let Some(scrub) = scrubs::of_mount(mount) {
        // Damage before what is only slow.
        findings.splice(
            0..0,
            scrubs::of_file(&mount::canonical(path)?, &live::extents(path)?, mount, &scrub),
        );
    }
    Ok(OfFile {
        path: path.into(),
        effective_mode: told.activity.effective_mode.map(|mode| mode.to_string()),
        mode_from,
        trial: trial::of_file(path)?,
        io_align: told.io_align,
        preferred_io_bytes: std::fs::metadata(path)
            .map_err(|error| Failure::system("look at", path, &error))?
            .blksize(),
        row_bytes: info.get("row_bytes").and_then(Value::as_u64).unwrap_or(0),
        size_bytes: told.activity.size_bytes,
        extents: told.extents,
        extent_bytes_average: told.extent_bytes_average(),
        extent_bytes_wanted: live::get(path, live::EXTENT_SIZE)?.and_then(|text| text.parse().ok()),
        lease: leases::of_file(path, mount)?,
        threads: threads_of(mount)?.filter(|verdict| verdict.standing != Standing::Enough),
        findings,
        databases: advice_of_file(path, told.activity.effective_mode)?,
        opens: told.opens,
        waits: told.activity.waits.clone(),
        activity: told.activity,
    })
}

/// Asks the daemon about a file.
fn look(path: &Path, info: &Value) -> Result<FileFacts> {
    let number = |name: &str| info.get(name).and_then(Value::as_u64).unwrap_or(0);
    let extents = live::extent_count(path)?;
    let allocated_bytes =
        std::fs::metadata(path).map_err(|error| Failure::system("look at", path, &error))?.blocks()
            * 512;
    // Asking for the extents opened the file where it was not open, so that its mode is known.
    let activity: FileActivity =
        live::get_as(path, live::ACTIVITY)?.ok_or_else(|| live::stale(path))?;
    let mut opens: Vec<Open> = live::get_as(path, live::OPENS)?.unwrap_or_default();
    for open in &mut opens {
        open.program = std::fs::read_to_string(format!("/proc/{}/comm", open.pid))
            .ok()
            .map(|name| name.trim_end().to_owned());
    }
    let (path, io_align, block_size) =
        (text::quoted(path), number("io_align"), number("block_size"));
    Ok(FileFacts { path, activity, opens, io_align, block_size, extents, allocated_bytes })
}

/// Returns the mode of what is created in a directory.
fn mode_of_new_files(path: &Path, info: &Value) -> Result<Option<IoMode>> {
    let own = live::get(path, live::MODE)?.filter(|mode| !mode.is_empty());
    let mode = own.as_deref().or_else(|| info.get("mode").and_then(Value::as_str));
    Ok(mode.and_then(|mode| mode.parse().ok()))
}

fn mode_from(path: &Path, told: &FileFacts, info: &Value) -> Result<String> {
    if told.activity.mixed {
        return Ok("conflicting opens, until the last of them goes".to_owned());
    }
    if live::get(path, live::TRIAL_MODE)?.is_some() {
        return Ok("the trial that is under way".to_owned());
    }
    if let Some(open) = told.opens.iter().find(|open| open.named_mode.is_some()) {
        return Ok(format!("the name by which {open} opened it"));
    }
    let Some(mode) = told.activity.file_mode else {
        let raised = told.opens.iter().find(|open| open.direct_flag);
        let mount =
            format!("the mount (mode={})", info.get("mode").and_then(Value::as_str).unwrap_or("-"));
        return Ok(
            raised.map_or_else(|| mount.clone(), |open| format!("{mount}, and O_DIRECT of {open}"))
        );
    };
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let of_directory = live::get(parent, live::MODE).ok().flatten();
    Ok(if of_directory.as_deref() == Some(mode.name()) {
        "the file's own, which is that of its directory"
    } else {
        "the file's own"
    }
    .to_owned())
}

/// Returns what a database may be told of a file, or of what is created in a directory.
fn advice(path: &Path, mode: Option<IoMode>) -> Result<Vec<Advice>> {
    if databases::is_log(path) {
        return Ok(Vec::new());
    }
    let untorn =
        live::get(path, live::UNTORN)?.and_then(|text| crate::cmd::mark::untorn::read(&text));
    Ok(databases::of(&text::quoted(path), untorn, mode))
}

/// As [`advice`], of a single file: a server has many.
fn advice_of_file(path: &Path, mode: Option<IoMode>) -> Result<Vec<Advice>> {
    let only = "; that is this file: 'bedplate explain' of the server's directory tells of all";
    let of_one = |advice: Advice| {
        if advice.gives_up() {
            Advice { why: format!("{}{only}", advice.why), ..advice }
        } else {
            advice
        }
    };
    Ok(advice(path, mode)?.into_iter().map(of_one).collect())
}

/// As [`advice`], of all that a directory holds and will hold.
fn advice_of_directory(path: &Path, info: &Value) -> Result<Vec<Advice>> {
    let mount_mode = info.get("mode").and_then(Value::as_str).and_then(|mode| mode.parse().ok());
    let own = advice(path, mode_of_new_files(path, info)?)?;
    if !own.iter().any(Advice::gives_up) {
        return Ok(own);
    }
    let below = pages::below(path, mount_mode)?;
    let shown = text::quoted(path);
    let guarded = |advice: Advice| match advice.database {
        "PostgreSQL" => advice.unless_torn(&shown, below.postgresql.as_ref(), "8k"),
        "InnoDB" => advice.unless_torn(&shown, below.innodb.as_ref(), "16k"),
        _ => advice,
    };
    Ok(own.into_iter().map(guarded).collect())
}

fn of_mount(path: &Path, mount: &Mount, info: &Value) -> Result<OfMount> {
    let scope = Scope::new(&[path.to_owned()])?;
    let rows =
        sorted(between(&std::collections::BTreeMap::new(), &scope.look()?), SortKey::Ops, None);
    let mut files = Vec::new();
    for row in rows {
        // What left since has nothing to tell.
        let Ok(told) = look(&row.path, info) else { continue };
        let findings = findings::of(&told);
        if !findings.is_empty() {
            files.push(Brief { path: row.path.into(), findings });
        }
        if files.len() == FILES_MAX {
            break;
        }
    }
    let at = |pointer: &str| info.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    Ok(OfMount {
        path: mount.dir.clone().into(),
        mode: info.get("mode").and_then(Value::as_str).unwrap_or("-").to_owned(),
        failed: info.get("failed").and_then(Value::as_str).map(str::to_owned),
        checkpoints: warning_of(mount),
        defrag: crate::cmd::defrag::report::line(info),
        scrub: scrubs::of_mount(mount),
        leases: leases::of_mount(mount)?,
        threads: threads_of(mount)?,
        io_threads: info
            .get("io_threads")
            .and_then(|told| serde_json::from_value(told.clone()).ok()),
        lock_waits: at("/lock_waits"),
        waits: info.get("waits").and_then(|told| serde_json::from_value(told.clone()).ok()),
        syncs: at("/log/syncs"),
        flushes: at("/log/flushes"),
        databases: advice_of_directory(path, info)?,
        files,
    })
}

/// Returns what there is to warn of checkpoints, where the caller may ask.
fn warning_of(mount: &Mount) -> Option<String> {
    live::ask::<Held>(mount, &Request::Held { epochs: Vec::new() }).ok()?.warning
}

/// Judges the threads that serve a mount; `None` where it does not tell this user.
fn threads_of(mount: &Mount) -> Result<Option<Verdict>> {
    Ok(threads::of(mount)?.map(|report| threads::judge(report, &mount.dir)))
}

/// How long an open waited for its syncs, where it had any.
fn waited(sync_wait_ns: u64, syncs: u64) -> String {
    if syncs == 0 {
        return String::new();
    }
    format!(", waited {} in {}", short(Some(sync_wait_ns)), text::count(syncs, "sync"))
}

impl OfFile {
    /// What was done, how long it took, and what it waited for.
    fn write_activity(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (counters, latencies) = (&self.activity.counters, &self.activity.latencies);
        writeln!(
            f,
            "did           {} reads, {} writes, {} of them direct",
            counters.reads, counters.writes, counters.direct
        )?;
        writeln!(
            f,
            "took          reads {} (p99 {}), writes {} (p99 {}), syncs {}",
            short(latencies.read.average_ns()),
            short(latencies.read.percentile_ns(0.99)),
            short(latencies.write.average_ns()),
            short(latencies.write.percentile_ns(0.99)),
            short(counters.sync_wait_ns.checked_div(counters.syncs))
        )?;
        match waits::line_with_shares(&self.waits, latencies) {
            Some(waits) => writeln!(f, "waited        {waits}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OfFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "file          {}", self.path)?;
        writeln!(
            f,
            "served as     {}, from {}",
            self.effective_mode.as_deref().unwrap_or("-"),
            self.mode_from
        )?;
        if let Some(trial) = &self.trial {
            writeln!(f, "last trial    {}", trial.line())?;
        }
        writeln!(
            f,
            "direct I/O    offset and length in multiples of {}",
            format_size(self.io_align)
        )?;
        let rows = text::rows(self.row_bytes);
        writeln!(f, "preferred     I/O of {}{rows}", format_size(self.preferred_io_bytes))?;
        let extents = text::count(self.extents as u64, "extent");
        let wanted = self.extent_bytes_wanted.map_or_else(String::new, |bytes| {
            format!("; {} are wanted in one run", format_size(bytes))
        });
        writeln!(
            f,
            "lies in       {extents}, {} on average{wanted}",
            format_size(self.extent_bytes_average)
        )?;
        self.write_activity(f)?;
        for open in &self.opens {
            let waited = waited(open.sync_wait_ns, open.syncs);
            writeln!(f, "open in       {open}, asks for {}{waited}", open.requested_mode)?;
        }
        if let Some(lease) = &self.lease {
            writeln!(f, "lease         {lease}")?;
        }
        if let Some(threads) = &self.threads {
            writeln!(f, "threads       {threads}")?;
        }
        if self.findings.is_empty() {
            writeln!(f, "\nEvery I/O was served as its mode asks.")?;
        }
        self.findings.iter().try_for_each(|finding| write!(f, "\n{finding}"))?;
        tell(f, &self.databases)
    }
}

impl fmt::Display for OfMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mount         {} (mode {})", self.path, self.mode)?;
        if let Some(failed) = &self.failed {
            writeln!(f, "READ-ONLY     {failed}")?;
        }
        if let Some(warning) = &self.checkpoints {
            writeln!(f, "WARNING       {warning}")?;
        }
        if let Some(defrag) = &self.defrag {
            writeln!(f, "defrag        {defrag}")?;
        }
        if let Some(scrub) = &self.scrub {
            writeln!(f, "copies        {scrub}")?;
        }
        if let Some(leases) = &self.leases {
            writeln!(f, "leases        {leases}")?;
        }
        if let Some(threads) = &self.threads {
            writeln!(f, "threads       {threads}")?;
        }
        if let Some(told) = &self.io_threads {
            writeln!(f, "I/O threads   {}", threads::io(told))?;
        }
        writeln!(f, "durability    {} syncs by {} flushes", self.syncs, self.flushes)?;
        writeln!(f, "lock waits    {}", self.lock_waits)?;
        if let Some(waits) = self.waits.as_ref().and_then(waits::line) {
            writeln!(f, "waited        {waits}")?;
        }
        if self.files.is_empty() {
            writeln!(f, "\nEvery I/O was served as its mode asks.")?;
        }
        for file in &self.files {
            writeln!(f, "\n{}", file.path)?;
            file.findings.iter().try_for_each(|finding| write!(f, "{finding}"))?;
        }
        tell(f, &self.databases)
    }
}

fn tell(f: &mut fmt::Formatter<'_>, databases: &[Advice]) -> fmt::Result {
    writeln!(f, "\nFor a database:")?;
    databases.iter().try_for_each(|advice| {
        writeln!(f, "  {:<10}  {}  -- {}", advice.database, advice.setting, advice.why)
    })
}
