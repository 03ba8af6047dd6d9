//! The ways, and what is told of each.

use std::fmt;
use std::str::FromStr;

use crate::target::Role;
use crate::{Error, Result};

/// A way in to the bytes of a file, or one of the two that it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Reference: a raw device, with no file system.
    Raw,
    /// Reference: a file of a kernel's file system, past the page cache.
    Kernel,
    /// The library, in this process.
    Library,
    /// A program as it is under the preload library, by a lease of the mount.
    Lease,
    /// A file of a mount in mode `concurrent`.
    Mount,
    /// A file of a mount in mode `cached`.
    MountCached,
    /// The NBD server, by the NBD client.
    Nbd,
    /// The server of vhost-user-blk, by a guest's queues.
    VhostUser,
    /// The NFS server over a mount, by the client of this project.
    Nfs,
    /// The same server, by libnfs.
    NfsLibnfs,
    /// The same server, by the kernel's client.
    NfsKernel,
}

impl Way {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 11] = [
        Self::Raw,
        Self::Kernel,
        Self::Library,
        Self::Lease,
        Self::Mount,
        Self::MountCached,
        Self::Nbd,
        Self::VhostUser,
        Self::Nfs,
        Self::NfsLibnfs,
        Self::NfsKernel,
    ];

    /// Returns its place among all of them.
    #[must_use]
    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// Returns the word by which it is chosen.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Kernel => "kernel",
            Self::Library => "library",
            Self::Lease => "lease",
            Self::Mount => "mount",
            Self::MountCached => "mount-cached",
            Self::Nbd => "nbd",
            Self::VhostUser => "vhost-user",
            Self::Nfs => "nfs",
            Self::NfsLibnfs => "nfs-libnfs",
            Self::NfsKernel => "nfs-kernel",
        }
    }

    /// Returns the name in tables.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Raw => "raw device",
            Self::Kernel => "kernel file system",
            Self::Library => "library",
            Self::Lease => "lease",
            Self::Mount => "mount, concurrent",
            Self::MountCached => "mount, cached",
            Self::Nbd => "NBD",
            Self::VhostUser => "vhost-user-blk",
            Self::Nfs => "NFS, own client",
            Self::NfsLibnfs => "NFS, libnfs",
            Self::NfsKernel => "NFS, kernel client",
        }
    }

    /// Says what moves the bytes, for the record.
    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::Raw | Self::Kernel => "the device layer of this software",
            Self::Library => "the library, in this process",
            Self::Lease => "pread and pwrite of a program under the preload library",
            Self::Mount => "the device layer of this software, by the mount",
            Self::MountCached => "pread and pwrite, by the mount",
            Self::Nbd => "NBD over a socket of this machine, one server",
            Self::VhostUser => "queues in shared memory, one server",
            Self::Nfs => "NFS in user space over loopback, server and mount",
            Self::NfsLibnfs => "fio's engine nfs over loopback, server and mount",
            Self::NfsKernel => "the kernel's NFS client over loopback, server and mount",
        }
    }

    /// Returns the kind of target that it is.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Library => "volume",
            Self::Kernel | Self::Mount | Self::MountCached | Self::NfsKernel => "path",
            Self::Lease | Self::Nbd | Self::VhostUser | Self::NfsLibnfs => self.name(),
            Self::Nfs => "nfs",
        }
    }

    pub(super) fn role(self) -> Role {
        match self {
            Self::Raw => Role::Raw,
            Self::Kernel | Self::NfsKernel => Role::Direct,
            Self::MountCached => Role::Buffered,
            Self::Library | Self::Lease | Self::Mount | Self::Nbd => Role::Concurrent,
            Self::VhostUser | Self::Nfs | Self::NfsLibnfs => Role::Concurrent,
        }
    }

    /// Returns whether it leads to the file of the volume; the references have files of their own.
    pub(super) fn is_into_volume(self) -> bool {
        !matches!(self, Self::Raw | Self::Kernel)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|way| way.name()).collect();
            Error::usage(format!("there is no way '{text}': use {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_found_by_its_name() {
        for way in Way::ALL {
            assert_eq!(way.name().parse::<Way>().unwrap(), way);
            assert_eq!(Way::ALL[way.number()], way);
            assert!(!way.label().is_empty() && !way.engine().is_empty() && !way.kind().is_empty());
        }
        let told = "smb".parse::<Way>().unwrap_err().to_string();
        assert!(told.contains("'smb'") && told.contains("mount-cached"), "{told}");
    }
}
