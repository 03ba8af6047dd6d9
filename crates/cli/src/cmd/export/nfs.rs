//! `bedplate export nfs DIR`

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_export::nfs::{LockTimes, Network, Rights, Server, Settings, Squash, Tree, Users};
use clap::{Args, ValueEnum};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::parse_address;
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// The port of NFS.
const PORT: u16 = 2049;

/// Serve a directory to other machines, by NFS version 3
///
/// The directory lies on a mount. NFS, MOUNT and locks (NLM) are served on one port over TCP, so
/// that no portmapper is needed. Locks of bedplate's own client exclude those of its other users and
/// of programs on the mount. Kernels' clients find locks by a portmapper alone: they mount with nolock,
/// and their locks hold on their own machine. Needs root. The command ends with SIGINT or SIGTERM.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to serve, with all below it on the same file system
    dir: PathBuf,
    /// Listen on a port, of this machine alone where no address of it is named
    #[arg(
        long,
        value_name = "[ADDRESS:]PORT",
        value_parser = parse_address,
        default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT)
    )]
    listen: SocketAddr,
    /// Serve clients of an address or network (10.0.0.5, 10.0.0.0/24), several times for several;
    /// without it those of this machine alone
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Which users of clients become the anonymous one: their root, all, or none
    #[arg(long, value_name = "WHO", default_value = "root")]
    squash: Who,
    /// The number of the anonymous user
    #[arg(long, value_name = "UID", default_value_t = Users::default().anonymous_uid)]
    anon_uid: u32,
    /// The number of its group
    #[arg(long, value_name = "GID", default_value_t = Users::default().anonymous_gid)]
    anon_gid: u32,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Serve clients from ports of 1024 and above, too: every user of such a machine may say to be
    /// any other
    #[arg(long)]
    insecure: bool,
    /// How many seconds clients have after a start to take their locks back, where they had any; no
    /// other lock is given meanwhile
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = LockTimes::default().grace.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    grace: u64,
    /// How many connections there may be at once
    #[arg(long, value_name = "N", default_value_t = 1024)]
    connections: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Who {
    Root,
    All,
    None,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let settings = arguments.settings()?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    let tree = Tree::open(&arguments.dir, arguments.rights()?)?;
    // Clients have applied their umask.
    rustix::process::umask(rustix::fs::Mode::empty());
    let path = tree.path().to_owned();
    let server = Server::start(tree, &settings)?;
    output.show(&Served::new(&path, server.address()))?;
    signals.forever().next();
    drop(server);
    Ok(())
}

impl Arguments {
    fn settings(&self) -> Result<Settings> {
        if !self.listen.ip().is_loopback() && self.allow.is_empty() {
            return Err(Failure::usage(format!(
                "{} is reached from other machines: say with --allow which of them are served",
                self.listen
            )));
        }
        let allowed =
            if self.allow.is_empty() { Network::loopback().to_vec() } else { self.allow.clone() };
        Ok(Settings {
            address: self.listen,
            allowed,
            any_port: self.insecure,
            connections_max: self.connections,
        })
    }

    fn rights(&self) -> Result<Rights> {
        if [self.anon_uid, self.anon_gid].contains(&u32::MAX) {
            return Err(Failure::usage(format!(
                "{} is the number of no user or group: choose another one",
                u32::MAX
            )));
        }
        let squash = match self.squash {
            Who::Root => Squash::Root,
            Who::All => Squash::All,
            Who::None => Squash::None,
        };
        let users = Users { squash, anonymous_uid: self.anon_uid, anonymous_gid: self.anon_gid };
        let grace = Duration::from_secs(self.grace);
        let lock_times = LockTimes { grace, ..LockTimes::default() };
        Ok(Rights { users, read_only: self.read_only, lock_times })
    }
}

/// What is served, and where.
#[derive(Debug, Serialize)]
struct Served {
    dir: String,
    address: SocketAddr,
    uri: String,
    mount_options: String,
}

impl Served {
    fn new(dir: &Path, address: SocketAddr) -> Self {
        let (dir, port) = (dir.display().to_string(), address.port());
        Self {
            uri: format!("nfs://{}{dir}?version=3&nfsport={port}&mountport={port}", address.ip()),
            mount_options: format!("vers=3,proto=tcp,port={port},mountport={port},nolock"),
            dir,
            address,
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.uri)?;
        let host = match self.address.ip() {
            address if address.is_unspecified() => "HOST".to_owned(),
            IpAddr::V6(address) => format!("[{address}]"),
            IpAddr::V4(address) => address.to_string(),
        };
        writeln!(f, "mount -t nfs -o {} {host}:{} DIR", self.mount_options, self.dir)
    }
}
