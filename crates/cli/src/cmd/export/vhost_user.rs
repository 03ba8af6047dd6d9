//! `bedplate export vhost-user FILE`

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate_export::vhost::{Server, Settings, serial_of};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::disks::{Disks, OpenDisks};
use crate::address::PathArg;
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Serve a file as a disk of a virtual machine, in the machine's own memory, by vhost-user
///
/// A file is VOLUME:/PATH inside a volume that is not mounted, or any file or block device of the
/// system. QEMU (vhost-user-blk-pci), Cloud Hypervisor and crosvm connect to the socket, one of them
/// at a time; the guest sees a virtio disk. The command ends with SIGINT or SIGTERM, once what it
/// answered is durable.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to serve
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Listen on a socket in the file system, which only its owner can connect to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// How many queues a machine may use, 1 to 256: one for each of its processors is best
    #[arg(long, value_name = "N", default_value_t = 16)]
    queues: u16,
    /// How many entries a queue may have, a power of two from 2 to 32768
    #[arg(long, value_name = "N", default_value_t = 1024)]
    queue_size: u16,
    /// The disk's serial number, which the machine sees (at most 20 characters); without it the last
    /// part of the file's name
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    #[command(flatten)]
    disks: Disks,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    // From now on, so that none that comes while the volume is opened leaves it unclean.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    let mut disks = arguments.disks.open(arguments.read_only, output);
    let served = arguments.serve(&mut disks, &mut signals, output);
    served.and(disks.close())
}

impl Arguments {
    fn serve(
        &self,
        disks: &mut OpenDisks<'_>,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<()> {
        let file = PathArg::parse(&self.file);
        let (PathArg::Live(path) | PathArg::Inside { path, .. }) = &file;
        let settings = Settings {
            socket: self.socket.clone(),
            queues_max: self.queues,
            queue_size_max: self.queue_size,
            serial: self.serial.clone().unwrap_or_else(|| serial_of(path)),
        };
        let disk = disks.disk(&file)?;
        let (size_bytes, read_only) = (disk.size_bytes()?, disk.is_read_only());
        let server = Server::start(disk, &settings)?;
        output.show(&Served {
            file: self.file.display().to_string(),
            socket: absolute(&self.socket).display().to_string(),
            size_bytes,
            read_only,
            queues: settings.queues_max,
            queue_size: settings.queue_size_max,
            serial: settings.serial,
        })?;
        signals.forever().next();
        Ok(server.stop()?)
    }
}

/// Returns a path that holds elsewhere in the file system, too.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What is served, and where.
#[derive(Debug, Serialize)]
struct Served {
    file: String,
    socket: String,
    size_bytes: u64,
    read_only: bool,
    queues: u16,
    queue_size: u16,
    serial: String,
}

/// The options that QEMU takes.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.socket.replace(',', ",,");
        writeln!(
            f,
            "-chardev socket,id=bedplate,path={path} -device vhost-user-blk-pci,chardev=bedplate"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_the_name_of_a_socket_ends_no_option_of_qemu() {
        let served = Served {
            file: "x".into(),
            socket: "/run/a,b".into(),
            size_bytes: 0,
            read_only: false,
            queues: 1,
            queue_size: 128,
            serial: String::new(),
        };
        assert!(served.to_string().contains("path=/run/a,,b "));
    }
}
