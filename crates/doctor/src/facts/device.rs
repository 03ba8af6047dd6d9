//! The stack of block devices below a file system, from the top down: partition, LUKS, LVM, RAID,
//! loop, disk.

use std::path::{Path, PathBuf};

use bedplate_block::MountEntry;

use crate::system::{Seen, System};

/// How deep stacks are followed.
const DEPTH_MAX: usize = 16;

/// The kinds of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A disk, or what presents itself as one.
    Disk,
    /// A part of a disk.
    Partition,
    /// dm-crypt.
    Crypt,
    /// A logical volume.
    Lvm,
    /// Another mapping of the device mapper.
    Mapped,
    /// Linux software RAID.
    Raid,
    /// A file, or a part of one, as a device.
    Loop,
}

impl Kind {
    /// Returns its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Partition => "partition",
            Self::Crypt => "LUKS",
            Self::Lvm => "LVM",
            Self::Mapped => "mapping",
            Self::Raid => "RAID",
            Self::Loop => "loop",
        }
    }
}

/// One layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Its name in `/dev`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its directory in sysfs, on the machine.
    pub sysfs: PathBuf,
    /// The directory of its request queue; a partition has that of its disk.
    pub queue: PathBuf,
    /// The names of the layers right below it.
    pub below: Vec<String>,
    /// Where a partition or the file part of a loop device begins in what is below, in bytes.
    pub start_bytes: u64,
    /// How far the kernel says it is off the physical blocks below, in bytes; −1: in several ways.
    pub alignment_offset: Seen<i64>,
    /// The smallest write in bytes.
    pub logical_bytes: Seen<u64>,
    /// The smallest write that needs no read, in bytes.
    pub physical_bytes: Seen<u64>,
    /// The smallest efficient request in bytes: of a stripe, what lies on one member.
    pub minimum_io_bytes: Seen<u64>,
    /// What a request goes to one member of a stripe with, in bytes; `None`: it is not striped.
    pub stripe_unit_bytes: Option<u64>,
    /// Level of a RAID.
    pub level: Option<String>,
    /// `write_cache` of the queue: how the kernel treats the device.
    pub write_cache: Seen<String>,
    /// What a SCSI or virtio disk itself says of its cache; other drivers show nothing.
    pub cache_type: Option<String>,
    /// `rotational`.
    pub rotates: Seen<i64>,
    /// `scheduler`.
    pub scheduler: Seen<String>,
    /// `read_ahead_kb`.
    pub read_ahead_kb: Seen<i64>,
    /// `nr_requests`.
    pub nr_requests: Seen<i64>,
    /// `atomic_write_unit_max_bytes`.
    pub atomic_write_bytes: Seen<i64>,
}

impl Layer {
    /// Returns its name with its kind.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.level {
            Some(level) => format!("{} ({level})", self.name),
            None => format!("{} ({})", self.name, self.kind.name()),
        }
    }

    /// Returns its node.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        Path::new("/dev").join(self.name.replace('!', "/"))
    }
}

/// A stack, the topmost layer first; each layer is in it once.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    /// The layers.
    pub layers: Vec<Layer>,
    /// The parts that could not be followed, and why.
    pub unseen: Vec<String>,
}

impl Stack {
    /// Returns the layer that holds the file system.
    #[must_use]
    pub fn top(&self) -> Option<&Layer> {
        self.layers.first()
    }

    /// Returns the layer of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Layer> {
        self.layers.iter().find(|layer| layer.name == name)
    }

    /// Returns the layers right below one.
    pub fn below<'a>(&'a self, layer: &'a Layer) -> impl Iterator<Item = &'a Layer> {
        layer.below.iter().filter_map(|name| self.named(name))
    }

    /// Returns the largest physical block of all that is below a layer, in bytes.
    ///
    /// # Errors
    /// Where a layer tells none, and why.
    pub fn physical_below(&self, layer: &Layer) -> Seen<u64> {
        let mut largest = 0;
        for below in self.below(layer) {
            let own = below.physical_bytes.clone()?;
            largest = largest.max(own).max(self.physical_below(below)?);
        }
        Ok(largest)
    }

    /// Returns the layers with nothing below.
    pub fn disks(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().filter(|layer| layer.below.is_empty())
    }

    /// Returns the largest physical block of a disk in the stack, in bytes.
    #[must_use]
    pub fn physical_bytes(&self) -> Option<u64> {
        self.disks().filter_map(|disk| disk.physical_bytes.as_ref().ok().copied()).max()
    }
}

/// Returns the stack of what a mount is on.
///
/// # Errors
/// Where no block device is below it that can be found.
pub fn of_mount(system: &dyn System, mount: &MountEntry) -> Seen<Stack> {
    if let Ok(stack) = of_number(system, &mount.device) {
        return Ok(stack);
    }
    // Btrfs, and file systems in user space, have a number of their own for what is on a device.
    if mount.source.starts_with("/dev") {
        return of_node(system, &mount.source);
    }
    let (kind, source) = (&mount.kind, mount.source.display());
    Err(format!("{kind} on {source} shows no block device below it"))
}

/// Returns the stack below a device node.
///
/// # Errors
/// Where it is none.
pub fn of_node(system: &dyn System, node: &Path) -> Seen<Stack> {
    // Names below /dev/mapper are links to the device.
    let found = system.without_links(node).unwrap_or_else(|_| node.to_owned());
    let name = found.strip_prefix("/dev").unwrap_or(&found).display().to_string();
    let sysfs = Path::new("/sys/class/block").join(name.replace('/', "!"));
    of_sysfs(system, &sysfs)
}

/// Returns the stack below a device's number.
fn of_number(system: &dyn System, number: &str) -> Seen<Stack> {
    of_sysfs(system, &Path::new("/sys/dev/block").join(number))
}

fn of_sysfs(system: &dyn System, sysfs: &Path) -> Seen<Stack> {
    let mut stack = Stack::default();
    follow(system, sysfs, &mut stack, 0)?;
    Ok(stack)
}

/// Adds a device and all below it; returns its name.
fn follow(system: &dyn System, sysfs: &Path, stack: &mut Stack, depth: usize) -> Seen<String> {
    let sysfs = system.without_links(sysfs)?;
    let name = sysfs.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    if stack.named(&name).is_some() {
        return Ok(name);
    }
    if depth > DEPTH_MAX {
        return Err(format!("{name} lies deeper than {DEPTH_MAX} layers"));
    }
    let mut layer = layer(system, &name, &sysfs);
    let at = stack.layers.len();
    let places = below(system, &layer, stack);
    stack.layers.push(layer.clone());
    for place in places {
        match follow(system, &place, stack, depth + 1) {
            Ok(below) => layer.below.push(below),
            Err(why) => stack.unseen.push(why),
        }
    }
    stack.layers[at] = layer;
    Ok(name)
}

fn layer(system: &dyn System, name: &str, sysfs: &Path) -> Layer {
    let number = |path: PathBuf| system.number(&path);
    let (kind, level) = kind_of(system, sysfs);
    let queue = match kind {
        Kind::Partition => sysfs.parent().unwrap_or(sysfs).join("queue"),
        _ => sysfs.join("queue"),
    };
    let size = |file: &str| {
        let path = queue.join(file);
        let value = number(path.clone())?;
        u64::try_from(value).map_err(|_| format!("{} holds no size", path.display()))
    };
    let minimum_io_bytes = size("minimum_io_size");
    let start_bytes = match kind {
        Kind::Partition => number(sysfs.join("start")).unwrap_or(0).max(0).cast_unsigned() * 512,
        Kind::Loop => number(sysfs.join("loop/offset")).unwrap_or(0).max(0).cast_unsigned(),
        _ => 0,
    };
    let chunk = match kind {
        Kind::Raid => number(sysfs.join("md/chunk_size")).ok(),
        Kind::Lvm | Kind::Mapped => striped(system, sysfs),
        _ => None,
    };
    Layer {
        name: name.to_owned(),
        kind,
        start_bytes,
        alignment_offset: number(sysfs.join("alignment_offset")),
        logical_bytes: size("logical_block_size"),
        physical_bytes: size("physical_block_size"),
        minimum_io_bytes,
        stripe_unit_bytes: chunk.and_then(|chunk| u64::try_from(chunk).ok()).filter(|c| *c > 0),
        level,
        write_cache: system.read(&queue.join("write_cache")),
        cache_type: cache_type(system, sysfs),
        rotates: number(queue.join("rotational")),
        scheduler: system.read(&queue.join("scheduler")),
        read_ahead_kb: number(queue.join("read_ahead_kb")),
        nr_requests: number(queue.join("nr_requests")),
        atomic_write_bytes: number(queue.join("atomic_write_unit_max_bytes")),
        sysfs: sysfs.to_owned(),
        queue,
        below: Vec::new(),
    }
}

/// Returns what a disk itself says of its cache.
fn cache_type(system: &dyn System, sysfs: &Path) -> Option<String> {
    let of_virtio = system.read(&sysfs.join("cache_type")).ok();
    of_virtio.or_else(|| {
        let scsi = sysfs.join("device/scsi_disk");
        let name = system.names(&scsi).ok()?.into_iter().next()?;
        system.read(&scsi.join(name).join("cache_type")).ok()
    })
}

/// Returns the unit of a logical volume that is striped: its smallest efficient request, where that
/// is larger than a physical block, and an optimal one is several of it.
fn striped(system: &dyn System, sysfs: &Path) -> Option<i64> {
    let number = |name: &str| system.number(&sysfs.join("queue").join(name)).ok();
    let several = system.names(&sysfs.join("slaves")).is_ok_and(|names| names.len() > 1);
    let (unit, all) = (number("minimum_io_size")?, number("optimal_io_size")?);
    (several && unit > 0 && all > unit && all % unit == 0).then_some(unit)
}

fn kind_of(system: &dyn System, sysfs: &Path) -> (Kind, Option<String>) {
    if system.at(&sysfs.join("partition")).exists() {
        return (Kind::Partition, None);
    }
    if system.at(&sysfs.join("loop")).exists() {
        return (Kind::Loop, None);
    }
    if system.at(&sysfs.join("md")).exists() {
        return (Kind::Raid, system.read(&sysfs.join("md/level")).ok());
    }
    match system.read(&sysfs.join("dm/uuid")) {
        Ok(uuid) if uuid.starts_with("CRYPT-") => (Kind::Crypt, None),
        Ok(uuid) if uuid.starts_with("LVM-") => (Kind::Lvm, None),
        Ok(_) => (Kind::Mapped, None),
        Err(_) => (Kind::Disk, None),
    }
}

/// Returns where in sysfs the layers right below one are.
fn below(system: &dyn System, layer: &Layer, stack: &mut Stack) -> Vec<PathBuf> {
    match layer.kind {
        Kind::Partition => layer.sysfs.parent().map(Path::to_owned).into_iter().collect(),
        Kind::Disk | Kind::Crypt | Kind::Lvm | Kind::Mapped | Kind::Raid => {
            let slaves = layer.sysfs.join("slaves");
            let names = system.names(&slaves).unwrap_or_default();
            names.into_iter().map(|name| slaves.join(name)).collect()
        }
        Kind::Loop => match below_loop(system, layer) {
            Ok(place) => vec![place],
            Err(why) => {
                stack.unseen.push(format!("what is below {}: {why}", layer.name));
                Vec::new()
            }
        },
    }
}

/// Returns the device that the file of a loop device lies on.
fn below_loop(system: &dyn System, layer: &Layer) -> Seen<PathBuf> {
    let file = system.read(&layer.sysfs.join("loop/backing_file"))?;
    let file = Path::new(file.trim_end_matches(" (deleted)"));
    if file.starts_with("/dev") {
        let name = file.strip_prefix("/dev").unwrap_or(file).display().to_string();
        return Ok(Path::new("/sys/class/block").join(name.replace('/', "!")));
    }
    let mounts = system.mounts()?;
    let mount = MountEntry::above(&mounts, file)
        .ok_or_else(|| format!("{} lies on no mount", file.display()))?;
    let place = Path::new("/sys/dev/block").join(&mount.device);
    if system.at(&place).exists() {
        return Ok(place);
    }
    Err(format!("{} lies on {}, which shows no block device", file.display(), mount.kind))
}
