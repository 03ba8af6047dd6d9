//! Files as disks, used by the tools of others: libnbd's, QEMU's, and fio's engine of NBD.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::fingerprint;
use super::bed::{Bed, kill};
use super::exported::Exported;
use crate::cleanup::Guard;
use crate::sh;

/// Bytes of the disk.
const DISK_BYTES: u64 = 64 << 20;
/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes an image with data in every fourth MiB and holes between, and a volume that holds it as
/// `/disk`.
fn volume(bed: &Bed) -> Result<(PathBuf, PathBuf)> {
    let source = bed.path("source.raw");
    let file = File::create(&source)?;
    file.set_len(DISK_BYTES)?;
    let data: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for at in (0..DISK_BYTES).step_by(4 << 20) {
        file.write_all_at(&data, at)?;
    }
    let image = bed.format("volume.img", "512M")?;
    bed.succeeds([OsStr::new("put"), image.as_os_str(), source.as_os_str(), OsStr::new("/disk")])?;
    Ok((image, source))
}

/// Starts the server of `/disk` on a socket in the bed.
fn serve(bed: &Bed, image: &Path, more: &[&str]) -> Result<Exported> {
    let file = format!("{}:/disk", image.display());
    let socket = bed.path("nbd.sock").display().to_string();
    Exported::start(bed, "nbd", [&[file.as_str(), "--unix", &socket], more].concat())
}

/// Copies `/disk` out of the volume and compares it.
fn holds(bed: &Bed, image: &Path, source: &Path) -> Result<()> {
    let out = bed.path("out.raw");
    bed.succeeds([OsStr::new("get"), image.as_os_str(), OsStr::new("/disk"), out.as_os_str()])?;
    ensure!(fingerprint(&out)? == fingerprint(source)?, "the volume holds other bytes");
    bed.check(image)
}

fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    sh::output(Command::new(program).args(arguments), LIMIT)
}

/// S-341, S-342: libnbd's and QEMU's tools see the disk, its holes and its bytes, and copy both ways.
///
/// # Errors
/// When a tool fails, or bytes differ.
pub fn tools(bed: &mut Bed, _options: &Options) -> Result<()> {
    let (image, source) = volume(bed)?;
    let (raw, copy) = (source.display().to_string(), bed.path("copy.raw").display().to_string());
    let server = serve(bed, &image, &[])?;
    let uri = server.uri.as_str();
    let told = tool("nbdinfo", &["--json", uri])?;
    let told: serde_json::Value = serde_json::from_str(&told)?;
    let export = &told["exports"][0];
    ensure!(export["export-size"] == DISK_BYTES, "nbdinfo: {export}");
    for able in ["can_multi_conn", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_df"] {
        ensure!(export[able] == true, "nbdinfo does not see {able}: {export}");
    }
    let map = tool("nbdinfo", &["--map", uri])?;
    let data = map.lines().filter(|line| line.ends_with("data")).count();
    ensure!(data as u64 == DISK_BYTES >> 22, "nbdinfo --map: {map}");
    tool("nbdinfo", &["--list", uri])?;
    tool("nbdcopy", &[uri, &copy])?;
    ensure!(fingerprint(Path::new(&copy))? == fingerprint(&source)?, "nbdcopy reads other bytes");
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, uri])?;
    let map = tool("qemu-img", &["map", "--output=json", "-f", "raw", uri])?;
    ensure!(map.contains("\"data\": false"), "qemu-img sees no hole: {map}");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, &copy])?;
    ensure!(fingerprint(Path::new(&copy))? == fingerprint(&source)?, "convert reads other bytes");
    // The other way: something else first, so that what is there then was copied.
    for write in ["write -P 0x5a 0 8M", "write -z -u 8M 8M", "write -f -P 1 100001 777"] {
        tool("qemu-io", &["-f", "raw", "-c", write, uri])?;
    }
    tool("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 4096 65536", "-c", "discard 1M 2M", uri])?;
    tool("nbdcopy", &["--connections=4", "--requests=32", "--flush", &raw, uri])?;
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, uri])?;
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", &raw, uri])?;
    server.end()?;
    holds(bed, &image, &source)
}

/// S-341: what fio writes over NBD, at several depths and from several connections at once, it reads
/// back; the volume holds it after the server's end.
///
/// # Errors
/// When a block is not what was written there.
pub fn fio(bed: &mut Bed, _options: &Options) -> Result<()> {
    let (image, _) = volume(bed)?;
    let server = serve(bed, &image, &[])?;
    for (name, more) in [
        ("pages", ["--rw=randwrite", "--bs=8k", "--iodepth=32", "--numjobs=2"]),
        ("mixed", ["--rw=randwrite", "--bsrange=512-256k", "--iodepth=8", "--numjobs=2"]),
        ("large", ["--rw=write", "--bs=4m", "--iodepth=4", "--numjobs=2"]),
        ("one", ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--numjobs=2"]),
    ] {
        let mut command = load(&server.uri, name);
        command.args(more).args([
            "--size=16M",
            "--offset_increment=32M",
            // Writes that overlap in flight come in any order, as on every disk.
            "--serialize_overlap=1",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fsync=100",
        ]);
        sh::output(&mut command, LIMIT).with_context(|| format!("fio {name}"))?;
    }
    server.end()?;
    bed.check(&image)
}

/// A command of fio over NBD.
fn load(uri: &str, name: &str) -> Command {
    let mut command = Command::new("fio");
    command.args(["--ioengine=nbd", "--group_reporting", "--minimal", "--randseed=4711"]);
    command.arg(format!("--name={name}")).arg(format!("--uri={uri}"));
    command
}

/// S-340: a server is killed under load; what QEMU had flushed is there, and the volume is sound.
///
/// # Errors
/// When a byte that was flushed is not there.
pub fn killed(bed: &mut Bed, options: &Options) -> Result<()> {
    let (image, _) = volume(bed)?;
    let mut flushed = Vec::new();
    for round in 0..u64::from(options.kills) {
        let server = serve(bed, &image, &[])?;
        // On the first half of the disk, through a connection of its own.
        let mut command = load(&server.uri, "load");
        command.args(["--rw=randwrite", "--bs=16k", "--iodepth=16", "--time_based"]);
        command.arg("--size=32M").arg("--runtime=600").stdout(Stdio::null()).stderr(Stdio::null());
        let mut busy = command.spawn().context("cannot start fio")?;
        let pid = busy.id();
        let guard = Guard::new(move || kill(pid));
        for number in 0..10_u64 {
            // In blocks that were never written as well as over others.
            let at = (32 << 20) + number * 3_145_728 + round % 100 * 8192;
            let byte = 1 + (round * 10 + number) % 250;
            let write = format!("write -P {byte} {at} 8192");
            tool("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", &server.uri])?;
            flushed.retain(|(place, _)| *place != at);
            flushed.push((at, byte as u8));
        }
        server.crash()?;
        // It has nothing to write to any more, and ends as it likes.
        let _ended = sh::wait(&mut busy, LIMIT);
        drop(guard);
        let out = bed.path("out.raw");
        bed.succeeds([OsStr::new("get"), image.as_os_str(), OsStr::new("/disk"), out.as_os_str()])?;
        let found = File::open(&out)?;
        for (at, byte) in &flushed {
            let mut bytes = [0; 8192];
            found.read_exact_at(&mut bytes, *at)?;
            ensure!(bytes == [*byte; 8192], "round {round}: {at} was flushed and is not there");
        }
        bed.check(&image)?;
        println!("    kill {}: {} flushed writes are there", round + 1, flushed.len());
    }
    Ok(())
}

/// S-347: libnbd copies over TLS with a certificate, and is told nothing without one.
///
/// # Errors
/// When it cannot, or can.
pub fn tls(bed: &mut Bed, _options: &Options) -> Result<()> {
    let (image, source) = volume(bed)?;
    let kept = crate::root().join("crates/export/tests/nbd/certificates");
    // The names under which libnbd looks for a client's.
    let client = bed.make_directory("client")?;
    for name in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::copy(kept.join(name), client.join(name))?;
    }
    let file = format!("{}:/disk", image.display());
    let server = Exported::start(
        bed,
        "nbd",
        [file.as_str(), "--listen", "0", "--tls", &kept.display().to_string()],
    )?;
    let host = server.uri.strip_prefix("nbds://127.0.0.1").context("TLS shows in the address")?;
    let uri = format!("nbds://localhost{host}?tls-certificates={}", client.display());
    let copy = bed.path("copy.raw").display().to_string();
    tool("nbdinfo", &["--map", &uri])?;
    tool("nbdcopy", &["--connections=2", &uri, &copy])?;
    ensure!(fingerprint(Path::new(&copy))? == fingerprint(&source)?, "TLS carries other bytes");
    for refused in [server.uri.replace("nbds", "nbd"), server.uri.clone()] {
        let told = sh::finish(Command::new("nbdinfo").arg(&refused), LIMIT)?;
        ensure!(!told.status.success(), "{refused} was told of: {}", told.stdout);
    }
    server.end()?;
    holds(bed, &image, &source)
}
