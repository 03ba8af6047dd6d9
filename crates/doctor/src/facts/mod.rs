//! What is known of a machine, gathered once and judged by the checks.

pub mod device;
pub mod memory;
pub mod mount;

use std::path::PathBuf;

use bedplate_block::MountEntry;

use crate::system::{FlushTimes, ReadTimes, Seen, System};
use device::Stack;
use memory::Memory;
use mount::Mounted;

/// What a Bedplate mount promises of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The mode of what is created there.
    pub mode: String,
    /// How much is written untorn there, in bytes; 0: what the device does by itself.
    pub untorn_bytes: u64,
    /// Pages wait in a cache of the mount, and can tear all the same.
    pub is_cached: bool,
    /// What is written gets checksums.
    pub integrity: bool,
}

/// Where it is looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A directory.
    Directory(PathBuf),
    /// A block device.
    Device(PathBuf),
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The place.
    pub place: Place,
    /// The size of a database's page in bytes.
    pub page_bytes: u64,
    /// What the Bedplate mount of the directory promises, where it lies on one.
    pub promise: Option<Promise>,
    /// Reads are measured too.
    pub measure: bool,
}

impl Question {
    /// Asks of a place with pages of 8 KiB.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place, page_bytes: 8192, promise: None, measure: false }
    }
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct Facts {
    /// What was asked.
    pub question: Question,
    /// The mount of the directory; `None` of a device.
    pub mount: Option<Seen<Mounted>>,
    /// The devices below.
    pub stack: Seen<Stack>,
    /// Memory and processors.
    pub memory: Memory,
    /// How long small durable writes take; `None` where that was not asked.
    pub flush: Option<Seen<FlushTimes>>,
    /// What reads cost; `None` where that was not asked.
    pub reads: Option<Seen<ReadTimes>>,
}

impl Facts {
    /// Looks at the machine.
    #[must_use]
    pub fn gather(system: &dyn System, question: Question) -> Self {
        let (entry, stack) = match &question.place {
            Place::Device(node) => (None, device::of_node(system, node)),
            Place::Directory(dir) => {
                let entry = mount::of_dir(system, dir);
                let stack = entry.clone().and_then(|entry| stack_of(system, &entry));
                (Some((entry, dir.clone())), stack)
            }
        };
        let mount =
            entry.map(|(entry, dir)| entry.map(|entry| mount::look(system, entry, &dir, &stack)));
        let disks = stack.as_ref().map_or_else(
            |_| Vec::new(),
            |stack| stack.disks().map(|disk| disk.sysfs.clone()).collect::<Vec<_>>(),
        );
        let (flush, reads) = match &question.place {
            Place::Directory(dir) => (
                Some(system.flush_times(dir, &disks)),
                question.measure.then(|| system.read_times(dir)),
            ),
            Place::Device(_) => (None, None),
        };
        let memory = Memory::of(system);
        Self { question, mount, stack, memory, flush, reads }
    }
}

/// Returns the devices below a mount; of a Bedplate mount those below its volume.
fn stack_of(system: &dyn System, entry: &MountEntry) -> Seen<Stack> {
    if !entry.kind.starts_with("fuse") || entry.source.starts_with("/dev") {
        return device::of_mount(system, entry);
    }
    let image = &entry.source;
    if !image.is_absolute() {
        return Err(format!("{} names no device", image.display()));
    }
    let host = mount::of_dir(system, image)?;
    if host.kind.starts_with("fuse") && host.source == entry.source {
        return Err(format!("{} lies on itself", image.display()));
    }
    device::of_mount(system, &host)
}
