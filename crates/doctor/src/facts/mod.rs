//! What is known of a machine, gathered once and judged by the checks.

pub mod device;
pub mod memory;
pub mod mount;
pub mod mysql;
pub mod postgres;
pub mod sqlite;

use std::path::PathBuf;

use bedplate_block::MountEntry;

use crate::system::{FlushTimes, ReadTimes, Seen, System};
use device::Stack;
use memory::Memory;
use mount::Mounted;
use mysql::Mysql;
use postgres::{Doubled, Postgres};
use sqlite::Sqlite;

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

/// A database that is looked at, too.
#[derive(Debug, Clone)]
pub enum Database {
    /// A server of PostgreSQL, as it answered.
    Postgres(Box<Postgres>),
    /// A server of MariaDB or MySQL, as it answered.
    Mysql(Box<Mysql>),
    /// A file of SQLite.
    Sqlite(PathBuf),
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
    /// A database in the directory.
    pub database: Option<Database>,
}

impl Question {
    /// Asks of a place with pages of 8 KiB.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place, page_bytes: 8192, promise: None, measure: false, database: None }
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
    /// How long small durable writes take.
    pub flush: Seen<FlushTimes>,
    /// What reads cost; `None` where that was not asked.
    pub reads: Option<Seen<ReadTimes>>,
    /// Pages that are in the buffers of the server, and in the page cache too; `None` without one.
    pub doubled: Option<Seen<Doubled>>,
    /// How much of the data files of InnoDB is in the page cache, in bytes; `None` without a server.
    pub cached_bytes: Option<Seen<u64>>,
    /// The file of SQLite; `None` where none was named.
    pub sqlite: Option<Seen<Sqlite>>,
}

impl Facts {
    /// Returns the server of PostgreSQL that is looked at.
    #[must_use]
    pub fn postgres(&self) -> Option<&Postgres> {
        match &self.question.database {
            Some(Database::Postgres(server)) => Some(server),
            _ => None,
        }
    }

    /// Returns the server of MariaDB or MySQL that is looked at.
    #[must_use]
    pub fn mysql(&self) -> Option<&Mysql> {
        match &self.question.database {
            Some(Database::Mysql(server)) => Some(server),
            _ => None,
        }
    }

    /// Looks at the machine.
    #[must_use]
    pub fn gather(system: &dyn System, mut question: Question) -> Self {
        let (mut doubled, mut cached_bytes, mut file) = (None, None, None);
        match (&question.database, &question.place) {
            (Some(Database::Postgres(server)), Place::Directory(dir)) => {
                question.page_bytes = server.page_bytes();
                doubled = Some(postgres::doubled(system, server, dir));
            }
            (Some(Database::Mysql(server)), Place::Directory(dir)) => {
                question.page_bytes = server.page_bytes();
                cached_bytes = Some(mysql::cached_bytes(system, dir));
            }
            (Some(Database::Sqlite(path)), _) => {
                let found = sqlite::read(system, path);
                question.page_bytes =
                    found.as_ref().map_or(question.page_bytes, |found| found.page_bytes);
                file = Some(found);
            }
            _ => {}
        }
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
            Place::Directory(dir) => {
                (system.flush_times(dir, &disks), question.measure.then(|| system.read_times(dir)))
            }
            Place::Device(_) => {
                (Err("nothing is written to a device: name a directory on it".into()), None)
            }
        };
        let memory = Memory::of(system);
        Self { question, mount, stack, memory, flush, reads, doubled, cached_bytes, sqlite: file }
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
