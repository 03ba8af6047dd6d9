//! A disk by NBD, on the same loop device over a fully written file, interleaved: Bedplate's server of a
//! file of a volume as a ratio to `qemu-nbd` and nbdkit on a raw file of XFS.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::{Bed, LoopDevice, kill};
use super::exported::Exported;
use super::ratio::{fill, median, on_xfs};
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of the disk.
const DISK_BYTES: u64 = 256 << 20;
/// Requests in flight.
const DEPTHS: [u32; 2] = [1, 32];
/// What is measured, in this order.
const WHAT: [&str; 4] = ["reads/s (1)", "(32)", "writes/s (1)", "(32)"];

/// A server of NBD.
#[derive(Clone, Copy)]
enum Server {
    Qemu,
    Nbdkit,
    /// In a mode.
    Bedplate(&'static str),
}

/// The first and the third pass all caches, the others do not.
const SERVERS: [Server; 4] =
    [Server::Qemu, Server::Nbdkit, Server::Bedplate("concurrent"), Server::Bedplate("cached")];

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu-nbd",
            Self::Nbdkit => "nbdkit",
            Self::Bedplate(mode) => mode,
        }
    }

    /// Serves a disk from a device, and measures.
    fn measure(self, bed: &Bed, device: &Path, seconds: u64) -> Result<Vec<f64>> {
        let socket = bed.path("ratio.sock");
        match self {
            Self::Qemu => on_xfs(bed, device, |place| {
                let disk = raw_disk(place)?;
                let mut server = Command::new("qemu-nbd");
                server.args(["-t", "-e", "8", "-f", "raw", "--cache=none", "--aio=io_uring", "-k"]);
                served(server.arg(&socket).arg(&disk), &socket, seconds)
            }),
            Self::Nbdkit => on_xfs(bed, device, |place| {
                let disk = raw_disk(place)?;
                let mut server = Command::new("nbdkit");
                server.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(&disk);
                served(&mut server, &socket, seconds)
            }),
            Self::Bedplate(mode) => {
                sh::output(Command::new("wipefs").args(["-q", "-a"]).arg(device), LIMIT)?;
                bed.succeeds([OsStr::new("format"), device.as_os_str(), OsStr::new("--force")])?;
                let source = raw_disk(&bed.make_directory("source")?)?;
                let disk = OsStr::new("/disk");
                bed.succeeds([OsStr::new("put"), device.as_os_str(), source.as_os_str(), disk])?;
                std::fs::remove_file(&source)?;
                let file = format!("{}:/disk", device.display());
                let socket = socket.display().to_string();
                let arguments = [file.as_str(), "--unix", &socket, "--mode", mode];
                let server = Exported::start(bed, "nbd", arguments)?;
                let measured = rates(&server.uri, seconds);
                server.end()?;
                measured
            }
        }
    }
}

fn raw_disk(place: &Path) -> Result<std::path::PathBuf> {
    let disk = place.join("disk.raw");
    fill(&disk, DISK_BYTES)?;
    Ok(disk)
}

/// Measures a server that makes a socket.
fn served(server: &mut Command, socket: &Path, seconds: u64) -> Result<Vec<f64>> {
    let what = sh::describe(server);
    let mut child = server.spawn().with_context(|| format!("cannot start {what}"))?;
    let pid = child.id();
    let guard = Guard::new(move || kill(pid));
    let begun = Instant::now();
    while !socket.exists() {
        ensure!(begun.elapsed() < LIMIT, "{what} made no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let measured = rates(&format!("nbd+unix:///?socket={}", socket.display()), seconds);
    child.kill()?;
    child.wait()?;
    guard.done();
    std::fs::remove_file(socket).or_else(|error| {
        if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
    })?;
    measured
}

/// Measures fio's random reads and writes of 8 KiB.
fn rates(uri: &str, seconds: u64) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    for kind in ["randread", "randwrite"] {
        for depth in DEPTHS {
            let mut fio = Command::new("fio");
            fio.args(["--name=x", "--bs=8k", "--ioengine=nbd", "--minimal", "--time_based"])
                .args(["--randrepeat=0"])
                .arg(format!("--uri={uri}"))
                .arg(format!("--size={DISK_BYTES}"))
                .arg(format!("--rw={kind}"))
                .arg(format!("--iodepth={depth}"))
                .arg(format!("--runtime={seconds}"));
            rates.push(super::ratio_files::fio_rate(&mut fio, kind)?);
        }
    }
    Ok(rates)
}

/// Measures the servers in turn, and prints each as a ratio to the first.
pub fn nbd(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.path("disk.img");
    fill(&image, 1 << 30)?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let mut results: [Vec<Vec<f64>>; SERVERS.len()] = Default::default();
    for round in 0..options.rounds {
        for turn in 0..SERVERS.len() {
            let at = (turn + round as usize) % SERVERS.len();
            let measured = SERVERS[at].measure(bed, &device.path, options.seconds)?;
            println!("    round {}: {:<10} {}", round + 1, SERVERS[at].name(), told(&measured));
            results[at].push(measured);
        }
    }
    let medians = results.map(|rounds| {
        let of = |what: usize| median(&mut rounds.iter().map(|it| it[what]).collect::<Vec<_>>());
        (0..WHAT.len()).map(of).collect::<Vec<f64>>()
    });
    println!("    medians of {} rounds", options.rounds);
    for (server, here) in SERVERS.iter().zip(&medians) {
        let ratios = here.iter().zip(&medians[0]).map(|(it, first)| format!("{:.2}", it / first));
        let ratios = ratios.collect::<Vec<_>>().join(", ");
        println!("    {:<10} {}: {ratios} of qemu-nbd", server.name(), told(here));
    }
    Ok(())
}

fn told(rates: &[f64]) -> String {
    let parts = WHAT.iter().zip(rates).map(|(what, rate)| format!("{rate:>8.0} {what}"));
    parts.collect::<Vec<_>>().join(", ")
}
