//! Directories over the network, used by the tools of another: libnfs's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::fingerprint;
use super::bed::{Bed, Mounted, kill};
use super::exported::Exported;
use crate::cleanup::Guard;
use crate::sh;

/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Files of the tree: their names and sizes.
const FILES: [(&str, usize); 6] = [
    ("empty", 0),
    ("byte", 1),
    ("sector-less-one", 4095),
    ("deep/down/below/blocks", 65_536),
    ("deep/odd name, with spaces", (1 << 20) + 1),
    ("deep/large", 20 << 20),
];

/// Serves the root of a mount; clients of this machine come from privileged ports, as root's do.
fn serve(bed: &Bed, mounted: &Mounted, port: &str) -> Result<Exported> {
    let dir = mounted.directory.display().to_string();
    Exported::start(bed, "nfs", [&dir, "--listen", port, "--squash", "none"])
}

/// Returns how libnfs names a file of what is served.
fn address(server: &Exported, path: &str) -> Result<String> {
    let (place, options) = server.uri.split_once('?').context("the address has options")?;
    Ok(format!("{place}/{path}?{options}"))
}

fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    sh::output(Command::new(program).args(arguments), LIMIT)
}

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11 ^ seed) as u8).collect()
}

/// Writes the tree into a directory of this machine.
fn make_tree(bed: &Bed) -> Result<PathBuf> {
    let source = bed.make_directory("source")?;
    for (seed, (name, len)) in FILES.into_iter().enumerate() {
        let path = source.join(name);
        std::fs::create_dir_all(path.parent().context("it lies in a directory")?)?;
        std::fs::write(path, content(seed, len))?;
    }
    Ok(source)
}

fn is_same(a: &Path, b: &Path) -> Result<()> {
    ensure!(fingerprint(a)? == fingerprint(b)?, "{} and {} differ", a.display(), b.display());
    Ok(())
}

/// S-463, S-465, S-472: libnfs copies a tree in and out, lists it, reads a checkpoint, and goes on
/// after the server has started again.
///
/// # Errors
/// When a tool fails, or bytes differ.
pub fn tools(bed: &mut Bed, _options: &Options) -> Result<()> {
    let source = make_tree(bed)?;
    let image = bed.format("volume.img", "512M")?;
    let mounted = bed.mount(&image, "allow_other")?;
    let server = serve(bed, &mounted, "0")?;
    std::fs::create_dir_all(mounted.path("deep/down/below"))?;
    for (name, _) in FILES {
        let from = source.join(name).display().to_string();
        tool("nfs-cp", &[&from, &address(&server, name)?])?;
        is_same(&mounted.path(name), &source.join(name))?;
    }
    let listed = tool("nfs-ls", &[&address(&server, "deep")?])?;
    for name in ["down", "odd name, with spaces", "large"] {
        ensure!(listed.contains(name), "nfs-ls does not show {name}: {listed}");
    }
    bed.succeeds(["checkpoint", "create", &mounted.directory.display().to_string(), "then"])?;
    std::fs::write(mounted.path("byte"), b"changed")?;
    let port = port_of(&server)?;
    server.end()?;
    let server = serve(bed, &mounted, &port)?;
    let then = tool("nfs-cat", &[&address(&server, ".checkpoints/then/byte")?])?;
    ensure!(then.as_bytes() == std::fs::read(source.join("byte"))?, "the checkpoint says {then:?}");
    let back = bed.make_directory("back")?;
    for (number, (name, _)) in FILES.into_iter().enumerate().filter(|(at, _)| *at != 1) {
        let to = back.join(number.to_string());
        tool("nfs-cp", &[&address(&server, name)?, &to.display().to_string()])?;
        is_same(&to, &source.join(name))?;
    }
    server.end()?;
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// Returns the port that a server listens on, to start another one there.
pub fn port_of(server: &Exported) -> Result<String> {
    let (_, port) = server.uri.rsplit_once("nfsport=").context("the address has a port")?;
    Ok(port.chars().take_while(char::is_ascii_digit).collect())
}

/// S-463, S-465: servers are killed in the middle of a copy, which goes on with the next one; all of
/// it is there.
///
/// # Errors
/// When a copy fails, or bytes differ.
pub fn killed(bed: &mut Bed, options: &Options) -> Result<()> {
    let source = bed.path("source.raw");
    std::fs::write(&source, content(7, 96 << 20))?;
    let image = bed.format("volume.img", "512M")?;
    let mounted = bed.mount(&image, "allow_other")?;
    let mut server = serve(bed, &mounted, "0")?;
    let port = port_of(&server)?;
    for round in 0..options.kills {
        let name = format!("copy-{}", round % 2);
        let target = mounted.path(&name);
        if target.exists() {
            std::fs::remove_file(&target)?;
        }
        let mut command = Command::new("nfs-cp");
        command.arg(&source).arg(address(&server, &name)?).stdout(Stdio::null());
        let mut copy = command.spawn().context("cannot start nfs-cp")?;
        let pid = copy.id();
        let guard = Guard::new(move || kill(pid));
        for part in 1..=3 {
            wait_for(&target, part * (16 << 20), &mut copy)?;
            server.crash()?;
            server = serve(bed, &mounted, &port)?;
        }
        let status = sh::wait(&mut copy, LIMIT)?;
        guard.done();
        ensure!(status.success(), "round {round}: nfs-cp ended with {status}");
        is_same(&target, &source)?;
        println!("    kill {}: the copy went on, and is whole", 3 * (round + 1));
    }
    server.end()?;
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// Waits until so much of a copy is there, or it has ended.
fn wait_for(target: &Path, bytes: u64, copy: &mut std::process::Child) -> Result<()> {
    let began = Instant::now();
    while target.metadata().map_or(0, |meta| meta.len()) < bytes && copy.try_wait()?.is_none() {
        ensure!(began.elapsed() < LIMIT, "the copy does not go on");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
