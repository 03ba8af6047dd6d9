//! A disk of a virtual machine: QEMU boots a small Linux on `bedplate export vhost-user`.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Options;
use super::bed::Bed;
use super::exported::Exported;
use super::needs::{find_program, kernel};
use crate::sh::{self, Family};

/// Bytes of the disk.
const DISK_BYTES: u64 = 64 << 20;
/// How long a machine may take until it has written, and until it has compared.
const LIMIT: Duration = Duration::from_secs(80);
/// The modules of a virtio disk, in the order in which they need each other.
const MODULES: [&str; 6] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
];

/// S-554, S-555: what a guest wrote on two queues at once and flushed is there after machine and server
/// were killed in the middle of more, as the next boot sees it; the volume is sound.
///
/// # Errors
/// When the guest finds something else.
pub fn boots_again(bed: &mut Bed, _options: &Options) -> Result<()> {
    let source = bed.path("source.raw");
    File::create(&source)?.set_len(DISK_BYTES)?;
    let image = bed.format("volume.img", "512M")?;
    bed.succeeds([Path::new("put"), &image, &source, Path::new("/disk")])?;
    let initramfs = bed.path("initramfs");
    std::fs::write(&initramfs, pack(&kernel()?)?)?;
    let server = serve(bed, &image)?;
    let told = boot(bed, &initramfs, 1, "FLUSHED")?;
    let disk = "DISK 131072 serial=of-a-test queues=2 lbs=512 pbs=4096 opt=8192 wc=write back";
    ensure!(told.contains(disk), "the guest sees another disk: {told}");
    ensure!(told.contains("DISCARDED"), "the guest could not discard: {told}");
    server.crash()?;
    bed.check(&image)?;
    let server = serve(bed, &image)?;
    let told = boot(bed, &initramfs, 2, "DONE")?;
    for at in ["SAME 0", "SAME 16777216", "SAME 33554432"] {
        ensure!(told.contains(at), "what was flushed is not there: {told}");
    }
    server.end()?;
    bed.check(&image)
}

fn serve(bed: &Bed, image: &Path) -> Result<Exported> {
    let file = format!("{}:/disk", image.display());
    let socket = bed.path("guest.sock").display().to_string();
    Exported::start(bed, "vhost-user", [&file, "--socket", &socket, "--serial", "of-a-test"])
}

/// Boots a machine until it says a word, and kills it then; returns all that it said.
fn boot(bed: &Bed, initramfs: &Path, phase: u32, until: &str) -> Result<String> {
    let console = bed.path(&format!("console-{phase}"));
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-machine", "q35,accel=tcg,memory-backend=mem", "-smp", "2"]);
    command.args(["-m", "256M", "-object", "memory-backend-memfd,id=mem,size=256M,share=on"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.arg("-kernel").arg(vmlinuz(&kernel()?)?).arg("-initrd").arg(initramfs);
    command.arg("-append").arg(format!("console=ttyS0 quiet panic=-1 phase={phase}"));
    command.arg("-chardev");
    command.arg(format!("socket,id=disk,path={}", bed.path("guest.sock").display()));
    command.args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"]);
    let mut machine = Family::start(command.stdout(Stdio::null()))?;
    let start = Instant::now();
    loop {
        let told = std::fs::read(&console).unwrap_or_default();
        let told = String::from_utf8_lossy(&told).into_owned();
        if told.contains(until) {
            // Dropped, it is killed, in the middle of what it does.
            return Ok(told);
        }
        if let Some(status) = machine.child.try_wait()? {
            bail!("the machine ended with {status} and said: {told}");
        }
        ensure!(start.elapsed() < LIMIT, "the machine does not come to {until}: {told}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn vmlinuz(kernel: &Path) -> Result<PathBuf> {
    first(&kernel.join("boot"), "vmlinuz-")
}

/// Returns the entry of a directory whose name begins so.
fn first(directory: &Path, begins: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    entries
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(begins))
        .map(|entry| entry.path())
        .with_context(|| format!("{} holds no {begins}", directory.display()))
}

/// Packs what the guest runs: busybox, the modules, and what to do, as `cpio` in its newer form.
fn pack(kernel: &Path) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for directory in ["bin", "dev", "proc", "sys", "m"] {
        entry(&mut archive, directory, 0o040_755, &[]);
    }
    let busybox = find_program("busybox").context("busybox is not installed")?;
    entry(&mut archive, "bin/busybox", 0o100_755, &std::fs::read(busybox)?);
    let drivers = first(&kernel.join("lib/modules"), "")?.join("kernel/drivers");
    let mut insert = String::new();
    for module in MODULES {
        let name = module.rsplit('/').next().context("it has a name")?;
        let content = std::fs::read(drivers.join(format!("{module}.ko")))
            .with_context(|| format!("the kernel has no module {module}"))?;
        entry(&mut archive, &format!("m/{name}.ko"), 0o100_644, &content);
        writeln!(insert, "insmod /m/{name}.ko")?;
    }
    let script = include_str!("scripts/guest-init.sh").replace("# MODULES\n", &insert);
    entry(&mut archive, "init", 0o100_755, script.as_bytes());
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    Ok(archive)
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let number = archive.len();
    let fields = [number, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
    archive.extend(b"070701");
    archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
    archive.extend(name.as_bytes());
    archive.push(0);
    for content in [&[][..], content] {
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}

/// Unpacks the kernel that a Debian package holds into a directory.
///
/// # Errors
/// When the package cannot be had.
pub fn fetch_kernel(directory: &Path) -> Result<()> {
    const METAPACKAGE: &str = "linux-image-cloud-amd64";
    let limit = Duration::from_secs(300);
    let told = sh::output(Command::new("apt-cache").args(["depends", METAPACKAGE]), limit)?;
    let package = told
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .with_context(|| format!("{METAPACKAGE} names no kernel"))?;
    // What is there under the name is whole.
    let partial = tempfile::tempdir_in(directory.parent().context("it lies in a directory")?)?;
    let name = format!("linux-image-{package}");
    let mut download = Command::new("apt-get");
    sh::output(download.args(["download", &name]).current_dir(partial.path()), limit)?;
    let (file, unpacked) = (first(partial.path(), &name)?, partial.path().join("unpacked"));
    sh::output(Command::new("dpkg-deb").arg("-x").args([&file, &unpacked]), limit)?;
    Ok(std::fs::rename(unpacked, directory)?)
}
