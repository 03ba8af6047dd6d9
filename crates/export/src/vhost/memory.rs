//! The guest's memory: what the front end says lies where, and copies between it and buffers.
//!
//! All of it belongs to the guest, which may change it at any time: what is read is read once.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, GuestRegionMmap, MmapRegion, Permissions,
};

/// How many regions a guest's memory may consist of; as many as the kernel's vhost takes.
pub const REGIONS_MAX: usize = 509;

/// Makes the error of what a front end says and cannot mean.
pub fn refused(text: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.to_string())
}

/// Bytes of a guest that lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub address: GuestAddress,
    pub len: u32,
}

/// What the front end has shared.
#[derive(Debug, Default)]
pub struct Table {
    regions: Vec<Region>,
    map: Arc<GuestMemoryMmap>,
}

#[derive(Debug, Clone)]
struct Region {
    guest: u64,
    len: u64,
    /// Where the front end has it in its own memory; so it names the parts of a queue.
    user: u64,
    mapped: Arc<GuestRegionMmap>,
}

impl Region {
    fn map(said: &VhostUserMemoryRegion, file: File) -> io::Result<Self> {
        let (guest, len, user) = (said.guest_phys_addr, said.memory_size, said.user_addr);
        let kind = file.metadata()?;
        // What lies behind the end of a file can be mapped, and an access to it ends the process.
        if kind.is_file() && kind.len().checked_sub(said.mmap_offset).is_none_or(|rest| rest < len)
        {
            return Err(refused("a region of the guest's memory is longer than its file"));
        }
        let mapped: MmapRegion = said.mmap_region(file).map_err(io::Error::other)?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest))
            .ok_or_else(|| refused("a region of the guest's memory ends beyond all addresses"))?;
        Ok(Self { guest, len, user, mapped: Arc::new(mapped) })
    }

    fn is(&self, said: &VhostUserMemoryRegion) -> bool {
        let (guest, len, user) = (said.guest_phys_addr, said.memory_size, said.user_addr);
        (self.guest, self.len, self.user) == (guest, len, user)
    }
}

impl Table {
    /// Takes regions in the place of those that were.
    pub fn replace(&mut self, said: &[VhostUserMemoryRegion], files: Vec<File>) -> io::Result<()> {
        let regions: io::Result<Vec<_>> =
            said.iter().zip(files).map(|(said, file)| Region::map(said, file)).collect();
        self.take(regions?)
    }

    /// Takes one region more.
    pub fn add(&mut self, said: &VhostUserMemoryRegion, file: File) -> io::Result<()> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(refused("the guest's memory has more regions than were offered"));
        }
        let mut regions = self.regions.clone();
        regions.push(Region::map(said, file)?);
        self.take(regions)
    }

    /// Gives a region back.
    pub fn remove(&mut self, said: &VhostUserMemoryRegion) -> io::Result<()> {
        let mut regions = self.regions.clone();
        let before = regions.len();
        regions.retain(|region| !region.is(said));
        if regions.len() == before {
            return Err(refused("a region of the guest's memory was removed that is not there"));
        }
        self.take(regions)
    }

    fn take(&mut self, mut regions: Vec<Region>) -> io::Result<()> {
        regions.sort_by_key(|region| region.guest);
        let mapped = regions.iter().map(|region| Arc::clone(&region.mapped)).collect();
        self.map = match regions.is_empty() {
            true => Arc::default(),
            false => Arc::new(GuestMemoryMmap::from_arc_regions(mapped).map_err(|error| {
                refused(format!("the regions of the guest's memory do not fit together: {error}"))
            })?),
        };
        self.regions = regions;
        Ok(())
    }

    /// Returns where the guest has what the front end has at an address.
    pub fn translate(&self, user: u64) -> io::Result<GuestAddress> {
        let within = |region: &&Region| user >= region.user && user - region.user < region.len;
        match self.regions.iter().find(within) {
            Some(region) => Ok(GuestAddress(region.guest + (user - region.user))),
            None => Err(refused("a part of a queue lies outside of the guest's memory")),
        }
    }

    /// Returns the memory as it is now.
    pub fn map(&self) -> &Arc<GuestMemoryMmap> {
        &self.map
    }
}

/// Returns whether all of a range is memory.
pub fn is_there(memory: &GuestMemoryMmap, segment: Segment, access: Permissions) -> bool {
    memory.check_range(segment.address, segment.len as usize, access)
}

/// Fills `to` from the beginning of what `from` names; `false` where that is less, or no memory.
#[must_use]
pub fn gather(memory: &GuestMemoryMmap, from: &[Segment], to: &mut [u8]) -> bool {
    let mut done = 0;
    for segment in from {
        let len = (segment.len as usize).min(to.len() - done);
        if memory.read_slice(&mut to[done..done + len], segment.address).is_err() {
            return false;
        }
        done += len;
    }
    done == to.len()
}

/// Copies all of `from` to the beginning of what `to` names; `false` where there is no room, or no
/// memory.
#[must_use]
pub fn scatter(memory: &GuestMemoryMmap, from: &[u8], to: &[Segment]) -> bool {
    let mut done = 0;
    for segment in to {
        let len = (segment.len as usize).min(from.len() - done);
        if memory.write_slice(&from[done..done + len], segment.address).is_err() {
            return false;
        }
        done += len;
    }
    done == from.len()
}
