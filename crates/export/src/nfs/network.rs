//! Networks, as command lines name them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// The addresses of this machine alone.
    #[must_use]
    pub fn loopback() -> [Self; 2] {
        let of = |address: IpAddr, bits| Self { address, bits };
        [of(Ipv4Addr::LOCALHOST.into(), 8), of(Ipv6Addr::LOCALHOST.into(), 128)]
    }

    /// Returns whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(of), IpAddr::V4(address)) => {
                same(u128::from(of.to_bits()) << 96, u128::from(address.to_bits()) << 96, self.bits)
            }
            (IpAddr::V6(of), IpAddr::V6(address)) => {
                same(of.to_bits(), address.to_bits(), self.bits)
            }
            _ => false,
        }
    }
}

fn same(a: u128, b: u128, bits: u8) -> bool {
    (a ^ b).leading_zeros() >= u32::from(bits)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is neither an address nor a network, as 10.0.0.5 or 10.0.0.0/24");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(bits_max), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > bits_max {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_468_a_network_holds_the_addresses_that_begin_as_it_does() {
        let holds = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/24", "10.0.0.255") && !holds("10.0.0.0/24", "10.0.1.0"));
        assert!(holds("0.0.0.0/0", "203.0.113.9") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("2001:db8::/32", "2001:db8::1") && !holds("2001:db8::/32", "2001:db9::"));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::1/129", "example.org", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        let served = |address: &str| {
            Network::loopback().iter().any(|network| network.contains(address.parse().unwrap()))
        };
        assert!(served("127.0.0.1") && served("::1") && !served("10.0.0.1"));
    }
}
