//! That an export has one user on this machine that writes: a name that only one socket has, which the
//! kernel takes back when its process ends. Other machines do not see it, and neither do containers
//! with a network of their own.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use super::uri::Uri;
use super::{Refusal, words};
use crate::ErrorKind;

/// How often, and how long after each other, it is tried: another that only looks whether there is a
/// user is gone soon.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The right to use an export, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    _name: UnixDatagram,
}

impl Claim {
    /// Takes the right to use an export.
    pub fn of(uri: &Uri) -> Result<Self, Refusal> {
        // How long its server may take is no part of what it is.
        let export = Uri { timeout: Uri::TIMEOUT, ..uri.clone() }.to_string();
        let name = format!("bedplate-nbd-{:032x}", digest(export.as_bytes()));
        let take = || UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?);
        for _ in 0..ATTEMPTS {
            match take() {
                Ok(name) => return Ok(Self { _name: name }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    return Err(Refusal::io(format!("it cannot be claimed: {}", words(&error))));
                }
            }
        }
        Err(Refusal::new(ErrorKind::Busy, "it is in use by another process of this machine"))
    }
}

/// FNV-1a of 128 bits: the same in every version of the program.
fn digest(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}
