//! `bedplate export nbd`, `bedplate export nfs`, `bedplate export vhost-user`

mod disks;
mod nbd;
mod nfs;
mod vhost_user;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Subcommand;

use crate::failure::Result;
use crate::render::output::Output;

/// Offer files to other programs and machines
#[derive(Debug, Subcommand)]
pub enum Command {
    Nbd(nbd::Arguments),
    Nfs(nfs::Arguments),
    VhostUser(vhost_user::Arguments),
}

pub fn run(command: &Command, output: &Output) -> Result<()> {
    match command {
        Command::Nbd(arguments) => nbd::run(arguments, output),
        Command::Nfs(arguments) => nfs::run(arguments, output),
        Command::VhostUser(arguments) => vhost_user::run(arguments, output),
    }
}

/// Reads an address; a port alone is one of this machine.
fn parse_address(text: &str) -> std::result::Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        format!("'{text}' is neither a port nor an address with one, as 10809 or 127.0.0.1:10809")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_346_a_port_alone_is_of_this_machine() {
        assert_eq!(parse_address("10809").unwrap().to_string(), "127.0.0.1:10809");
        assert_eq!(parse_address("[::1]:1").unwrap().to_string(), "[::1]:1");
        assert!(parse_address("example.org:1").is_err());
    }
}
