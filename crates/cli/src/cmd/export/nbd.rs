//! `bedplate export nbd FILE…`

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate_export::nbd::{Address, Export, Exports, Server, Settings, Tls};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::disks::{Disks, OpenDisks};
use super::parse_address;
use crate::address::PathArg;
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Serve files as disks, by the protocol NBD
///
/// A file is VOLUME:/PATH inside a volume that is not mounted, or any file or block device of the
/// system. Virtual machines, the kernel's nbd-client, qemu-img and nbdcopy use what is served as a
/// disk. The command ends with SIGINT or SIGTERM, once what it answered is durable.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to serve; under the name of the file, or the one before '='
    #[arg(required = true, value_name = "[NAME=]FILE")]
    files: Vec<PathBuf>,
    /// Listen on a socket in the file system, which only its owner can connect to
    #[arg(long, value_name = "PATH", required_unless_present = "listen")]
    unix: Option<PathBuf>,
    /// Listen on a port, of this machine alone where no address of it is named
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Encrypt connections to the port, and serve none but clients with a certificate. The directory
    /// holds ca-cert.pem, server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR", requires = "listen")]
    tls: Option<PathBuf>,
    /// Let --listen offer the files, unencrypted and without asking for a name, to every machine
    /// that reaches the address
    #[arg(long, requires = "listen", conflicts_with = "tls")]
    insecure: bool,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// How many connections there may be at once
    #[arg(long, value_name = "N", default_value_t = 1024)]
    connections: usize,
    #[command(flatten)]
    disks: Disks,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let settings = arguments.settings()?;
    // From now on, so that none that comes while volumes are opened leaves them unclean.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    let mut disks = arguments.disks.open(arguments.read_only, output);
    let served = arguments.exports(&mut disks).and_then(|exports| {
        let server = Server::start(exports, &settings)?;
        output.show(&Served::new(arguments, &server))?;
        signals.forever().next();
        drop(server);
        Ok(())
    });
    served.and(disks.close())
}

impl Arguments {
    fn settings(&self) -> Result<Settings> {
        let mut addresses: Vec<Address> = self.unix.iter().cloned().map(Address::Unix).collect();
        if let Some(address) = self.listen {
            if !address.ip().is_loopback() && self.tls.is_none() && !self.insecure {
                return Err(Failure::usage(format!(
                    "{address} is reached from other machines, and nothing asks them for a name: \
                     name certificates with --tls, or say --insecure"
                )));
            }
            addresses.push(Address::Tcp(address));
        }
        let tls = self.tls.as_deref().map(Tls::load).transpose()?;
        Ok(Settings { addresses, connections_max: self.connections, tls })
    }

    fn exports(&self, disks: &mut OpenDisks<'_>) -> Result<Exports> {
        let mut exports = Vec::new();
        for argument in &self.files {
            let (name, file) = split_name(argument);
            let disk = disks.disk(&file)?;
            let name = match name {
                Some(name) => name,
                None => base_name(&file)?,
            };
            exports.push(Export { name, description: argument.display().to_string(), disk });
        }
        Ok(Exports::new(exports)?)
    }
}

/// Divides `NAME=FILE`. What exists under the whole name wins.
fn split_name(argument: &Path) -> (Option<String>, PathArg) {
    let bytes = argument.as_os_str().as_bytes();
    let whole = PathArg::parse(argument);
    let exists = match &whole {
        PathArg::Live(path) => path.symlink_metadata().is_ok(),
        PathArg::Inside { .. } => true,
    };
    let divided = bytes.iter().position(|byte| *byte == b'=').filter(|_| !exists);
    match divided.and_then(|at| Some((str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]))) {
        Some((name, file)) => (Some(name.to_owned()), PathArg::parse(OsStr::from_bytes(file))),
        None => (None, whole),
    }
}

/// Returns the last part of a path, as the name of an export.
fn base_name(file: &PathArg) -> Result<String> {
    let (PathArg::Live(path) | PathArg::Inside { path, .. }) = file;
    match path.file_name().and_then(OsStr::to_str) {
        Some(name) => Ok(name.to_owned()),
        None => Err(Failure::usage(format!(
            "{} has no name that the protocol can carry: give one, as NAME=FILE",
            path.display()
        ))),
    }
}

/// What is served, and where.
#[derive(Debug, Serialize)]
struct Served {
    exports: Vec<Offered>,
}

#[derive(Debug, Serialize)]
struct Offered {
    name: String,
    uris: Vec<String>,
}

impl Served {
    fn new(arguments: &Arguments, server: &Server) -> Self {
        let tls = arguments.tls.is_some();
        let offered = arguments.files.iter().map(|argument| {
            let (name, file) = split_name(argument);
            let name = name.or_else(|| base_name(&file).ok()).unwrap_or_default();
            let uris = server.addresses().iter().map(|address| uri(&name, address, tls)).collect();
            Offered { name, uris }
        });
        Self { exports: offered.collect() }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for export in &self.exports {
            for uri in &export.uris {
                writeln!(f, "{uri}")?;
            }
        }
        Ok(())
    }
}

/// Returns how clients name an export: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>.
fn uri(name: &str, address: &Address, tls: bool) -> String {
    let name = escaped(name.as_bytes());
    match address {
        Address::Unix(path) => {
            // Clients may run elsewhere in the file system.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("nbd+unix:///{name}?socket={}", escaped(path.as_os_str().as_bytes()))
        }
        Address::Tcp(address) if tls => format!("nbds://{address}/{name}"),
        Address::Tcp(address) => format!("nbd://{address}/{name}"),
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_before_an_equals_sign_unless_a_file_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a=b");
        let divided = split_name(&odd);
        assert_eq!(divided.0, Some(dir.path().join("a").to_str().unwrap().to_owned()));
        std::fs::write(&odd, b"").unwrap();
        assert_eq!(split_name(&odd), (None, PathArg::Live(odd)));
        let named = split_name(Path::new("vm=/x/y"));
        assert_eq!(named, (Some("vm".into()), PathArg::Live("/x/y".into())));
        assert_eq!(
            uri("a b", &Address::Unix("/s p".into()), true),
            "nbd+unix:///a%20b?socket=/s%20p"
        );
    }
}
