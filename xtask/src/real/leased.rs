//! PostgreSQL on the device by a lease, while its processes and the daemon are killed, and a
//! process is stopped while a checkpoint is made.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Options;
use super::bed::{Bed, Mounted, kill};
use super::ledger::Acknowledged;
use super::needs::is_root;
use super::postgres::{Cluster, Load, Server, leave, mount_options, verify};
use crate::sh;

/// What happens to a cluster in the middle of its load.
#[derive(Debug, Clone, Copy)]
enum Blow {
    /// A process of the server is killed, as the kernel does where memory ends; the others end
    /// themselves, and the server recovers while the daemon lives on.
    OneProcess,
    /// The daemon is killed below the server.
    Daemon,
    /// A process is stopped, a checkpoint of everything is made meanwhile, and it goes on.
    Stop,
    /// The daemon and all of the server are killed at once.
    Both,
}

const BLOWS: [Blow; 4] = [Blow::OneProcess, Blow::Daemon, Blow::Stop, Blow::Both];

/// How long a process stands still. What waits for it is told after 100 ms.
const STOPPED: Duration = Duration::from_millis(700);

fn options_of_mount() -> String {
    let users = if is_root() { "postgres" } else { "owner" };
    format!("{},lease={users}", mount_options("concurrent"))
}

/// What programs on a mount did on the device by themselves.
pub struct Leased {
    pub reads: u64,
    pub writes: u64,
    pub syncs: u64,
    /// Reads in the cache.
    pub hits: u64,
}

impl Leased {
    /// Asks the daemon of the mount.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn of(bed: &Bed, directory: &Path) -> Result<Self> {
        let told = bed.json([OsStr::new("info"), directory.as_os_str()])?;
        let count = |what: &str| told["leases"]["total"][what].as_u64().unwrap_or_default();
        let [reads, writes, syncs, hits] = ["reads", "writes", "syncs", "hits"].map(count);
        Ok(Self { reads, writes, syncs, hits })
    }
}

impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, writes, syncs, hits } = self;
        write!(f, "by leases: {reads} reads, {writes} writes, {syncs} syncs, {hits} in the cache")
    }
}

/// Returns the processes of the server that serve a client; `which` turns through them.
fn backend(server: &Server<'_>, which: u32) -> Result<u32> {
    let mut serving: Vec<u32> = server.family();
    serving.retain(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("[local]"))
    });
    serving.sort_unstable();
    ensure!(!serving.is_empty(), "the server has no process that serves a client");
    Ok(serving[which as usize % serving.len()])
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process has a number")?;
    kill_process(pid, signal).context("cannot signal a process of the server")
}

/// Makes a checkpoint of everything while `pid` stands still; it is there at the latest when the
/// process goes on, and is deleted again.
///
/// # Errors
/// When the checkpoint is not made.
pub fn checkpoint_beside_a_stopped(
    bed: &Bed,
    directory: &Path,
    pid: u32,
    name: &str,
) -> Result<()> {
    signal(pid, Signal::STOP)?;
    let mut command = bed.bedplate([
        OsStr::new("checkpoint"),
        OsStr::new("create"),
        directory.as_os_str(),
        OsStr::new(name),
    ]);
    let began = Instant::now();
    let made = std::thread::scope(|scope| {
        let making = scope.spawn(|| sh::output(&mut command, Duration::from_secs(60)));
        std::thread::sleep(STOPPED);
        let waited = !making.is_finished();
        signal(pid, Signal::CONT)?;
        making.join().expect("a command does not panic")?;
        anyhow::Ok(waited)
    })?;
    println!(
        "    a checkpoint beside a stopped process {} in {} ms",
        if made { "waited for it and was made" } else { "was made" },
        began.elapsed().as_millis()
    );
    bed.succeeds([
        OsStr::new("checkpoint"),
        OsStr::new("delete"),
        directory.as_os_str(),
        OsStr::new(name),
    ])
    .map(drop)
}

/// A cluster at work on a mount that gives it leases.
struct Site<'a> {
    bed: &'a Bed,
    image: &'a Path,
    cluster: &'a Cluster,
    told: Vec<Acknowledged>,
}

impl<'a> Site<'a> {
    fn mount(&self) -> Result<Mounted> {
        self.bed.mount(self.image, &options_of_mount())
    }

    /// Loads the cluster, strikes, and brings everything up again; then no transaction that was
    /// acknowledged is missing.
    fn round(
        &mut self,
        number: u32,
        options: &Options,
        (mut mounted, mut server): (Mounted, Server<'a>),
    ) -> Result<(Mounted, Server<'a>)> {
        let blow = BLOWS[number as usize % BLOWS.len()];
        let load = Load::run(self.cluster, options, number)?;
        let leased = Leased::of(self.bed, &mounted.directory)?;
        // Without any the round would show nothing.
        ensure!(leased.writes > 0 && leased.syncs > 0, "hardly anything went {leased}");
        println!("    {leased}");
        let pid = backend(&server, number)?;
        match blow {
            Blow::OneProcess => kill(pid),
            Blow::Stop => {
                let name = format!("round-{number}");
                checkpoint_beside_a_stopped(self.bed, &mounted.directory, pid, &name)?;
            }
            Blow::Daemon => mounted.crash()?,
            Blow::Both => {
                kill(pid);
                mounted.crash()?;
            }
        }
        let (acknowledged, history) = load.finish(&mut self.told)?;
        if matches!(blow, Blow::Daemon | Blow::Both) {
            server.kill()?;
            mounted.clear()?;
            self.bed.check(self.image)?;
            mounted = self.mount()?;
            server = self.cluster.start(&[])?;
        }
        server.wait_until_ready()?;
        println!("    {blow:?}: {acknowledged} transactions of pgbench acknowledged");
        verify(self.cluster, &self.told, history + acknowledged)?;
        Ok((mounted, server))
    }
}

/// S-1, S-3, S-160: PostgreSQL that reads and writes on the device by itself loses processes, its
/// daemon or both, again and again, and never an acknowledged transaction.
pub fn killed(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let size = format!("{}M", 512 + options.scale * 40 + u32::try_from(options.seconds)? * 8);
    let image = bed.format("volume.img", &size)?;
    let mounted = bed.mount(&image, &options_of_mount())?;
    let cluster = Cluster::new(bed, &mounted.directory)?.with_leases_of(&bed.program);
    cluster.initialise(16)?;
    let server = cluster.start(&[])?;
    cluster.make_ledger()?;
    cluster.fill(options.scale)?;
    let mut site = Site { bed, image: &image, cluster: &cluster, told: Vec::new() };
    let rounds = options.kills.max(BLOWS.len() as u32);
    let (mounted, server) = (0..rounds).try_fold((mounted, server), |now, number| {
        site.round(number, options, now).with_context(|| format!("in round {}", number + 1))
    })?;
    server.stop()?;
    cluster.verify_checksums()?;
    leave(mounted, bed, &image)
}
