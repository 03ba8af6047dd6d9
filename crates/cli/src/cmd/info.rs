//! `bedplate info VOLUME|DIR`

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate::{IoMode, IoThreads, LeaseReport, Waits, format_duration, format_size};
use bedplate_serve::control::{self, Request, ThreadReport};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::cmd::status;
use crate::daemon::status::Status;
use crate::device::group;
use crate::device::host::{self, HostRoom};
use crate::device::{self, Access};
use crate::failure::{Exit, Failure, Result};
use crate::mount::{self, Mount, leases, live, threads, waits};
use crate::render::counters::Counters;
use crate::render::output::Output;
use crate::render::text;
use crate::session::{Devices, Volume};

/// Tell everything about a volume, mounted or not
///
/// Ends with exit code 0 where the volume is whole, 1 where its group is degraded or being rebuilt,
/// 4 where it is broken or refused.
#[derive(Debug, Args)]
pub struct Arguments {
    /// An image file or a block device, or any path on a mount
    path: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// What the file system tells, as the library and the daemon both serialize it; the counters by
/// name.
#[derive(Serialize)]
struct Info {
    volume: PathBuf,
    mounted_at: Option<PathBuf>,
    /// All directories that something of it is mounted on.
    places: Vec<Place>,
    /// In one word, as `volume show` and `status` tell it; `None` where this user cannot ask.
    health: Option<&'static str>,
    /// The process that serves the mount.
    pid: Option<u32>,
    /// The file systems below image files.
    host: Vec<HostRoom>,
    #[serde(skip)]
    exit: Exit,
    #[serde(flatten)]
    told: Value,
}

/// A directory that a volume, or a directory of it, is mounted on.
#[derive(Serialize)]
struct Place {
    dir: PathBuf,
    /// The directory of the volume.
    path: PathBuf,
    /// The mode that opens through it are in; `None`: each in its own.
    mode: Option<&'static str>,
    read_only: bool,
}

fn places(mount: &Mount) -> Result<Vec<Place>> {
    let place = |mount: Mount| Place {
        dir: mount.dir,
        path: mount.path,
        mode: mount.mode.map(IoMode::name),
        read_only: mount.read_only,
    };
    Ok(mount::places(mount)?.into_iter().map(place).collect())
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let info = look(arguments, output).map_err(Failure::of_health)?;
    output.show(&info)?;
    Ok(info.exit)
}

fn look(arguments: &Arguments, output: &Output) -> Result<Info> {
    let path = &group::resolve(&arguments.path)?;
    let mount = match device::of_volume(path)? {
        Some(mount) => Some(mount),
        None if path.is_dir() || bedplate_serve::fuse::is_dead(path) => {
            Some(live::require_mount(path)?)
        }
        None => mount::above(&mount::canonical(path)?)?,
    };
    match mount {
        Some(mount) => of_mount(mount),
        None => of_volume(path, &arguments.devices, output),
    }
}

fn of_mount(mount: Mount) -> Result<Info> {
    let mut told = live::info(&mount)?;
    // A user that may not manage the mount does without.
    let held = live::ask(&mount, &Request::Held { epochs: Vec::new() });
    if let (Some(told), Ok(held)) = (told.as_object_mut(), held) {
        told.insert("checkpoints_held".to_owned(), held);
    }
    let leases = live::ask::<Value>(&mount, &Request::Leases);
    if let (Some(told), Ok(leases)) = (told.as_object_mut(), leases) {
        told.insert("leases".to_owned(), leases);
    }
    if let (Some(told), Ok(Some(report))) = (told.as_object_mut(), threads::of(&mount)) {
        told.insert("threads".to_owned(), serde_json::to_value(report).unwrap_or_default());
    }
    let health = status::health_of(&mount, &told)?;
    let pid = live::process(&mount)?.and_then(|pid| u32::try_from(pid).ok());
    let host = status::host_of(&mount);
    let places = places(&mount)?;
    Ok(Info {
        host,
        places,
        volume: mount.source,
        mounted_at: Some(mount.dir),
        health: health.map(|(health, _)| health),
        pid,
        exit: health.map_or(Exit::Done, |(_, exit)| exit),
        told: with_named_reasons(told),
    })
}

fn of_volume(path: &Path, devices: &Devices, output: &Output) -> Result<Info> {
    let told = Volume::new(path, devices).with(Access::ReadOnly, output, |fs| {
        let mut told = serde_json::to_value(fs.info()).unwrap_or_default();
        if let (Some(told), Ok(held)) = (told.as_object_mut(), control::held(fs, &[])) {
            told.insert(
                "checkpoints_held".to_owned(),
                serde_json::to_value(held).unwrap_or_default(),
            );
        }
        Ok(told)
    })?;
    // A group that was opened is known by its labels now.
    let located = group::of_member(path)?;
    let group = located.as_ref().map(|located| Status::from_config(&located.config));
    let members = located.iter().flat_map(|located| &located.members);
    let host = host::rooms_in_time(members.map(|(member, _)| &**member).chain([path]));
    Ok(Info {
        host,
        volume: path.to_owned(),
        mounted_at: None,
        places: Vec::new(),
        health: Some(group.as_ref().map_or("whole", Status::health)),
        pid: None,
        exit: group.as_ref().map_or(Exit::Done, Status::exit),
        told: with_named_reasons(told),
    })
}

fn with_named_reasons(mut told: Value) -> Value {
    if let Some(counters) = told.get_mut("counters") {
        *counters = Counters::from_json(counters.take()).into_json();
    }
    told
}

impl Info {
    /// Returns the value at `path`, as in `log.used_bytes`.
    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.told, |value, name| value.get(name))
    }

    fn number(&self, path: &str) -> u64 {
        self.at(path).and_then(Value::as_u64).unwrap_or(0)
    }

    fn word(&self, path: &str) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or("-")
    }

    fn is(&self, path: &str) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or(false)
    }

    fn size(&self, path: &str) -> String {
        format_size(self.number(path))
    }

    fn log(&self) -> String {
        let place = if self.is("log.separate") { "on its own device" } else { "on the volume" };
        format!("{} {place}, {} used", self.size("log.size_bytes"), self.size("log.used_bytes"))
    }

    fn checkpoints(&self) -> String {
        let count = self.number("checkpoints.count");
        let going = match self.number("checkpoints.deleting") {
            0 => String::new(),
            going => format!(", {} under way", text::count(going, "deletion")),
        };
        if count == 0 {
            return format!("none{going}; a full volume would {}", self.on_full());
        }
        let held = self.at("checkpoints_held.alone_bytes").map_or_else(String::new, |_| {
            format!(", hold {}", self.size("checkpoints_held.alone_bytes"))
        });
        let deleted = match self.number("checkpoints.deleted_for_space") {
            0 => String::new(),
            deleted => format!(", {deleted} deleted for space since the mount"),
        };
        format!("{count}{held}{going}; a full volume would {}{deleted}", self.on_full())
    }

    fn on_full(&self) -> &'static str {
        if self.word("checkpoints.policy") == "delete-oldest" {
            "delete the oldest automatic ones"
        } else {
            "refuse writes"
        }
    }

    /// How busy the threads are that serve; nothing where the mount does not tell this user.
    fn threads(&self) -> String {
        let told = self.at("threads").cloned().unwrap_or_default();
        let Ok(report) = serde_json::from_value::<ThreadReport>(told) else { return String::new() };
        let processor = threads::processor_line(&report.total)
            .map_or_else(String::new, |line| format!("  processor   {line}\n"));
        format!("threads       {}\n{processor}", threads::line(&report))
    }

    /// How busy the engine's I/O threads are; nothing where it needs none.
    fn io_threads(&self) -> String {
        let told = self.at("io_threads").cloned().unwrap_or_default();
        serde_json::from_value::<IoThreads>(told).map_or_else(
            |_| String::new(),
            |told| format!("I/O threads   {}\n", threads::io(&told)),
        )
    }

    /// What programs do on the device by themselves; nothing where the mount allows none.
    fn leases(&self) -> String {
        let told = self.at("leases").cloned().unwrap_or_default();
        let Ok(leases) = serde_json::from_value::<LeaseReport>(told) else { return String::new() };
        let total = &leases.total;
        let mut lines = format!(
            "leases        {} of {}: {} reads, {} writes, {} syncs; taken back {} times, {} tails, {} \
             append buffers\n",
            text::count(leases.files.len() as u64, "file"),
            text::count_in(leases.clients.len() as u64, "process", "processes"),
            total.reads,
            total.writes,
            total.syncs,
            leases.revocations,
            leases.tails,
            leases.buffers
        );
        if total.hits > 0 {
            lines += &format!("  in the cache {} reads without a request\n", total.hits);
        }
        for (what, counts) in
            [("  to mount    ", &total.fallbacks), ("  refused     ", &total.refused)]
        {
            if let Some(list) = leases::list(counts) {
                lines += &format!("{what}{list}\n");
            }
        }
        if leases.killed > 0 {
            lines += &format!(
                "  ended       {} by lease-kill=\n",
                text::count_in(leases.killed, "process", "processes")
            );
        }
        for wait in &leases.waits {
            lines += &format!("WAITING       {wait}\n");
        }
        lines
    }

    fn recovery(&self) -> String {
        let took = format_duration(Duration::from_micros(self.number("recovery.duration_us")));
        let second = if self.is("recovery.second_superblock") {
            "; the second superblock was used"
        } else {
            ""
        };
        if !self.is("recovery.needed") {
            return format!("not needed; opened in {took}{second}");
        }
        format!(
            "{} replayed, {} removed, in {took}{second}",
            text::count(self.number("recovery.records"), "record"),
            text::count(self.number("recovery.orphans"), "orphan")
        )
    }
}

impl Info {
    /// What the volume is called, where it is mounted, and whether all is well with it.
    fn write_state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "volume        {}", text::name(&self.volume))?;
        match &self.mounted_at {
            Some(dir) => {
                writeln!(f, "mounted at    {} (mode {})", text::name(dir), self.word("mode"))?;
            }
            None => writeln!(f, "mounted at    nowhere")?,
        }
        for place in self.places.iter().filter(|_| self.places.len() > 1) {
            let mode = place.mode.map_or(String::new(), |mode| format!(" (mode {mode})"));
            let (path, dir) = (text::name(&place.path), text::name(&place.dir));
            writeln!(f, "              {path} at {dir}{mode}")?;
        }
        if let Some(reason) = self.at("failed").and_then(Value::as_str) {
            writeln!(f, "READ-ONLY     {reason}")?;
        }
        if let Some(health) = self.health.filter(|_| self.exit != Exit::Done) {
            writeln!(
                f,
                "HEALTH        {health}: 'bedplate status' and 'bedplate volume show' tell why"
            )?;
        }
        Ok(())
    }

    /// What the format fixed, and how the space is used.
    fn write_volume(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "uuid          {}", self.word("uuid"))?;
        writeln!(
            f,
            "format        version {}, blocks of {}",
            self.number("version"),
            self.size("block_size")
        )?;
        writeln!(
            f,
            "direct I/O    offset and length {}, buffer {}",
            self.size("io_align"),
            self.size("buffer_align")
        )?;
        writeln!(
            f,
            "pieces        direct I/O of up to {}, of one extent; the library cache in {}",
            self.size("direct_piece_bytes_max"),
            self.size("cached_piece_bytes_max")
        )?;
        let rows = text::rows(self.number("row_bytes"));
        writeln!(
            f,
            "preferred     I/O of {} past the caches{rows}",
            self.size("preferred_io_bytes")
        )?;
        writeln!(f, "engine        {}", self.word("engine"))?;
        write!(f, "{}", self.io_threads())?;
        writeln!(f, "size          {}", self.size("size_bytes"))?;
        let (runs, longest) =
            (text::count(self.number("free_runs"), "run"), self.size("free_run_bytes_max"));
        writeln!(f, "free          {} in {runs}, the longest {longest}", self.size("free_bytes"))?;
        for host in &self.host {
            writeln!(f, "host          {}", host.told())?;
            if host.is_short() {
                writeln!(f, "WARNING       {}", host.warning())?;
            }
        }
        writeln!(
            f,
            "metadata      {}, {}, {}",
            self.size("metadata_bytes"),
            text::count(self.number("inodes"), "inode"),
            text::count(self.number("extents"), "extent")
        )?;
        writeln!(f, "checkpoints   {}", self.checkpoints())?;
        if let Some(warning) = self.at("checkpoints_held.warning").and_then(Value::as_str) {
            writeln!(f, "WARNING       {warning}")?;
        }
        writeln!(f, "log           {}", self.log())?;
        writeln!(f, "recovery      {}", self.recovery())
    }

    /// What was done since the mount.
    fn write_activity(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = |name: &str| self.number(&format!("log.{name}"));
        writeln!(
            f,
            "durability    {} syncs by {} flushes, {} log writes, {} metadata commits",
            log("syncs"),
            log("flushes"),
            log("writes"),
            log("metadata_commits")
        )?;
        writeln!(
            f,
            "maps          {} in memory of at most {}, {} read, {} given back",
            self.size("maps.bytes"),
            self.size("maps.bytes_max"),
            text::count(self.number("maps.misses"), "part"),
            self.number("maps.evictions")
        )?;
        write!(f, "{}{}", self.threads(), self.leases())?;
        let sums = |name: &str| self.number(&format!("integrity.{name}"));
        if sums("verified_blocks") > 0 {
            writeln!(
                f,
                "checksums     {} compared, {} wrong, {} of them mended, {} lost",
                text::count(sums("verified_blocks"), "block"),
                sums("wrong_blocks"),
                sums("healed_blocks"),
                sums("lost_blocks")
            )?;
        }
        let waits: Option<Waits> =
            self.at("waits").and_then(|told| serde_json::from_value(told.clone()).ok());
        if let Some(waits) = waits.as_ref().and_then(waits::line) {
            writeln!(f, "waited        {waits}")?;
        }
        let counters = self.told.get("counters").cloned().unwrap_or_default();
        write!(f, "{}", Counters::from_json(counters))
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_state(f)?;
        self.write_volume(f)?;
        if self.mounted_at.is_some() { self.write_activity(f) } else { Ok(()) }
    }
}
