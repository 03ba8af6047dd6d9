//! The device stack against the page.

use super::Check;
use crate::facts::Facts;
use crate::facts::device::{Kind, Layer, Stack};
use crate::facts::memory::chosen;
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "alignment",
            looks_at: "where partitions, LUKS, LVM, RAID and loop devices begin",
            finding_when: "a layer begins within a physical block of what is below it",
            source: "Documentation/ABI/stable/sysfs-block: alignment_offset; sfdisk(8)",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| alignment(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "log-block",
            looks_at: "the block sizes that layers and the log of XFS write in",
            finding_when: "they are smaller than a physical block of the disk",
            source: "Documentation/ABI/stable/sysfs-block: physical_block_size; mkfs.xfs(8): -l sectsize",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| log_block(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "stripe-unit",
            looks_at: "what RAID and striped LVM put on one member before the next",
            finding_when: "that is smaller than a page of the database",
            source: "md(4): chunk size; lvmraid(7); mke2fs(8): stride",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| stripe_unit(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "write-cache",
            looks_at: "the write cache as the kernel treats it and as the device tells it",
            finding_when: "the device has a volatile cache, and the kernel sends it no flush",
            source: "Documentation/ABI/stable/sysfs-block: write_cache",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| write_cache(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "scheduler",
            looks_at: "the I/O scheduler of each disk",
            finding_when: "bfq is set on a disk that does not rotate",
            source: "Documentation/block/bfq-iosched.rst: the time of a request",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| scheduler(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "read-ahead",
            looks_at: "how far the kernel reads ahead for the file system",
            finding_when: "it is more than 1 MiB; with --measure: more than twice the page is read",
            source: "Documentation/ABI/stable/sysfs-block: read_ahead_kb; blockdev(8): --setra",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| read_ahead(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "nr-requests",
            looks_at: "how many requests may wait in the queue of each disk",
            finding_when: "fewer than 32",
            source: "Documentation/ABI/stable/sysfs-block: nr_requests",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| nr_requests(facts, stack)),
    },
    Check {
        rule: Rule {
            name: "atomic-write",
            looks_at: "the largest write that the device promises not to tear",
            finding_when: "never: it is told, and judged with the database's settings",
            source: "Documentation/ABI/stable/sysfs-block: atomic_write_unit_max_bytes",
        },
        judge: |facts| Outcome::of(&facts.stack, |stack| atomic_write(facts, stack)),
    },
];

/// What could not be followed is a part that no check of the stack looked at.
fn with_unseen(stack: &Stack, mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
    outcomes.extend(stack.unseen.iter().cloned().map(Outcome::Unseen));
    outcomes
}

/// Returns how many blocks of `unit` bytes a page touches that begins `offset` bytes into one.
fn touched(offset: u64, page_bytes: u64, unit: u64) -> u64 {
    (offset % unit + page_bytes).div_ceil(unit)
}

fn alignment(facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let outcomes = stack.layers.iter().map(|layer| {
        let below = stack.below(layer).next();
        below.map_or_else(|| of_offset(layer), |below| of_start(facts, stack, layer, below))
    });
    with_unseen(stack, outcomes.collect())
}

/// Judges what the kernel works out for a layer.
fn of_offset(layer: &Layer) -> Outcome {
    match &layer.alignment_offset {
        Ok(0) => Outcome::Fine(format!("{} begins on a physical block", layer.told())),
        Ok(offset) => misaligned(layer, offset.unsigned_abs(), None, None),
        Err(why) => Outcome::Unseen(why.clone()),
    }
}

/// Judges where a layer begins in what is below it, the blocks of the disk at the bottom included.
fn of_start(facts: &Facts, stack: &Stack, layer: &Layer, below: &Layer) -> Outcome {
    let unit = match stack.physical_below(layer) {
        Ok(0) => return Outcome::Unseen(format!("{} tells no physical block", below.name)),
        Ok(unit) => unit,
        Err(why) => return Outcome::Unseen(why),
    };
    let off = layer.start_bytes % unit;
    if off != 0 {
        let page = facts.question.page_bytes;
        return misaligned(layer, off, Some((page, unit)), Some(below));
    }
    of_offset(layer)
}

fn misaligned(layer: &Layer, off: u64, page: Option<(u64, u64)>, below: Option<&Layer>) -> Outcome {
    let costs = match page {
        Some((page, unit)) => format!(
            "a write of {} touches {} physical blocks of {} instead of {}, and reads the first and \
             the last before it writes them",
            size(page),
            touched(off, page, unit),
            size(unit),
            touched(0, page, unit)
        ),
        None => "a write of whole blocks reads two of them before it writes".to_owned(),
    };
    let mend = match layer.kind {
        Kind::Partition => moved(layer, below),
        Kind::Loop => "losetup --offset BYTES  # a multiple of the physical block".to_owned(),
        Kind::Crypt => "cryptsetup luksFormat --offset 32768 DEVICE  # after a backup".to_owned(),
        Kind::Lvm | Kind::Mapped => {
            "pvcreate --dataalignment 1m DEVICE  # after a backup".to_owned()
        }
        Kind::Raid | Kind::Disk => {
            "mdadm --create  # after a backup, over partitions that begin at 1 MiB".to_owned()
        }
    };
    Outcome::Found(Finding {
        at: layer.told(),
        measured: format!("it begins {off} bytes behind the start of a physical block"),
        costs,
        mend: Mend::ByHand(mend),
        sure: Sure::Certain,
    })
}

/// Returns the command that moves a partition to the next whole MiB.
fn moved(layer: &Layer, below: Option<&Layer>) -> String {
    let digits = layer.name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let number = &layer.name[digits..];
    let disk = below.map_or_else(|| "DISK".to_owned(), |disk| disk.node().display().to_string());
    let sectors = layer.start_bytes.next_multiple_of(1 << 20) / 512;
    format!(
        "echo '{sectors},' | sfdisk --move-data {disk} -N {number}  # unmounted, after a backup"
    )
}

fn log_block(facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let Some(physical) = stack.physical_bytes() else {
        return vec![Outcome::Unseen("no disk below tells its physical block".to_owned())];
    };
    let mut outcomes = Vec::new();
    for layer in stack.layers.iter().filter(|layer| !layer.below.is_empty()) {
        match &layer.physical_bytes {
            Ok(told) if *told < physical => outcomes.push(small_blocks(
                layer.told(),
                &format!("it tells physical blocks of {}", size(*told)),
                (*told, physical),
                if layer.kind == Kind::Loop {
                    format!("losetup --sector-size {physical}  # attach it anew")
                } else {
                    format!(
                        "cryptsetup luksFormat --sector-size {physical} DEVICE  # or as it was made"
                    )
                },
                Sure::Likely,
            )),
            Ok(_) => {}
            Err(why) => outcomes.push(Outcome::Unseen(why.clone())),
        }
    }
    outcomes.extend(log_of_file_system(facts, physical));
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine(format!("every layer writes in {}", size(physical))));
    }
    with_unseen(stack, outcomes)
}

fn log_of_file_system(facts: &Facts, physical: u64) -> Option<Outcome> {
    let Some(Ok(mount)) = &facts.mount else { return None };
    let superblock = match &mount.superblock {
        Ok(superblock) => superblock,
        Err(why) if mount.entry.kind == "xfs" => {
            return Some(Outcome::Unseen(format!("the log of XFS: {why}")));
        }
        Err(_) => return None,
    };
    let log = superblock.log_block_bytes.filter(|log| *log < physical)?;
    Some(small_blocks(
        format!("the log of {} on {}", mount.entry.kind, mount.entry.dir.display()),
        &format!("its blocks have {}", size(log)),
        (log, physical),
        format!("mkfs.xfs -s size={physical} DEVICE  # after a backup"),
        Sure::Certain,
    ))
}

/// Makes the finding of blocks of `small.0` bytes over physical ones of `small.1`.
pub fn small_blocks(
    at: String,
    measured: &str,
    small: (u64, u64),
    mend: String,
    sure: Sure,
) -> Outcome {
    let (told, physical) = small;
    Outcome::Found(Finding {
        at,
        measured: format!("{measured}, the disk below writes {} at once", size(physical)),
        costs: format!(
            "the disk reads and writes {} for each write of {}: {} times the bytes, and a read \
             that the writer waits for",
            size(physical),
            size(told),
            physical / told.max(1)
        ),
        mend: Mend::ByHand(mend),
        sure,
    })
}

fn stripe_unit(facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let page = facts.question.page_bytes;
    let striped = stack.layers.iter().filter_map(|layer| {
        let unit = layer.stripe_unit_bytes?;
        if unit >= page {
            return Some(Outcome::Fine(format!(
                "{} puts {} on a member",
                layer.told(),
                size(unit)
            )));
        }
        let mend = match layer.kind {
            Kind::Raid => {
                format!("mdadm --grow {} --chunk=64  # moves all data", layer.node().display())
            }
            _ => "lvcreate --stripesize 64k  # after a backup".to_owned(),
        };
        Some(Outcome::Found(Finding {
            at: layer.told(),
            measured: format!("{} on a member, for pages of {}", size(unit), size(page)),
            costs: format!(
                "each read of a page waits for {} members, and keeps all of them busy",
                page.div_ceil(unit).min(layer.below.len().max(1) as u64)
            ),
            mend: Mend::ByHand(mend),
            sure: Sure::Certain,
        }))
    });
    let mut outcomes: Vec<Outcome> = striped.collect();
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine("nothing is striped".to_owned()));
    }
    with_unseen(stack, outcomes)
}

fn write_cache(facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    with_unseen(stack, stack.disks().map(|disk| of_cache(facts, disk)).collect())
}

fn of_cache(facts: &Facts, disk: &Layer) -> Outcome {
    let treated = match &disk.write_cache {
        Ok(treated) => treated,
        Err(why) => return Outcome::Unseen(why.clone()),
    };
    // Of NVMe the kernel asked the device itself, and shows its answer nowhere else.
    let Some(told) = disk.cache_type.as_deref() else {
        return Outcome::Fine(format!("{}: {treated}", disk.told()));
    };
    if treated != "write through" || !told.starts_with("write back") {
        return Outcome::Fine(format!("{}: {treated}, the device says {told}", disk.told()));
    }
    let flush = match &facts.flush {
        Ok(flush) => format!(
            "a write with O_DSYNC took {}, without {}; ",
            crate::report::time(flush.dsync_us),
            crate::report::time(flush.write_us)
        ),
        Err(_) => String::new(),
    };
    Outcome::Found(Finding {
        at: disk.told(),
        measured: format!("{flush}the device says {told}, the kernel treats it as {treated}"),
        costs: "no flush is sent: what fsync called durable is lost with the power".to_owned(),
        mend: Mend::setting(disk.queue.join("write_cache"), &"write back", treated),
        sure: Sure::Certain,
    })
}

fn scheduler(_facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let outcomes = stack.disks().map(|disk| {
        let scheduler = match &disk.scheduler {
            Ok(text) => chosen(text),
            Err(why) => return Outcome::Unseen(why.clone()),
        };
        match disk.rotates {
            Ok(0) if scheduler == "bfq" => Outcome::Found(Finding {
                at: disk.told(),
                measured: "bfq, on a disk that does not rotate".to_owned(),
                costs:
                    "its own document gives 1.9 µs under one lock for each request, so that all \
                        processors together get some 500,000 a second at most"
                        .to_owned(),
                mend: Mend::setting(disk.queue.join("scheduler"), &"none", &"bfq"),
                sure: Sure::Likely,
            }),
            _ => Outcome::Fine(format!("{}: {scheduler}", disk.told())),
        }
    });
    with_unseen(stack, outcomes.collect())
}

/// More is no gain on any disk for one reader, and a loss for random reads.
const READ_AHEAD_KB_MAX: i64 = 1024;
/// What is set in its place, the kernel's own default.
const READ_AHEAD_KB: i64 = 128;

fn read_ahead(facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let Some(top) = stack.top() else { return Vec::new() };
    let own = match &facts.mount {
        Some(Ok(mount)) => mount.read_ahead.as_ref().map(|own| (mount, own)),
        _ => None,
    };
    let (at, file, kb) = match (own, &top.read_ahead_kb) {
        (Some((mount, (file, kb))), _) => {
            (format!("{} on {}", mount.entry.kind, mount.entry.dir.display()), file.clone(), *kb)
        }
        (None, Ok(kb)) => (top.told(), top.queue.join("read_ahead_kb"), *kb),
        (None, Err(why)) => return vec![Outcome::Unseen(why.clone())],
    };
    let page = facts.question.page_bytes as f64;
    let measured = facts.reads.as_ref().and_then(|reads| reads.as_ref().ok());
    let told = measured.map_or_else(String::new, |reads| {
        format!(
            "; of random reads of 8 KiB the device was read {} each, in a mapping {}",
            size(reads.random_device_bytes as u64),
            size(reads.mapped_device_bytes as u64)
        )
    });
    let wasted = measured.is_some_and(|reads| reads.random_device_bytes > 2.0 * page.max(8192.0));
    let mapped = measured.is_some_and(|reads| reads.mapped_device_bytes > 32.0 * page.max(8192.0));
    if kb <= READ_AHEAD_KB_MAX {
        return vec![Outcome::Fine(format!("{at}: {kb} KiB{told}"))];
    }
    let costs = if wasted || mapped {
        "what is read and not asked for takes the device's time and the page cache's room"
            .to_owned()
    } else {
        format!(
            "a page that a program touches in a mapping, and two that happen to be neighbours, \
             read up to {} from the device and put it into the page cache",
            size(kb.unsigned_abs() * 1024)
        )
    };
    vec![Outcome::Found(Finding {
        at,
        measured: format!("the kernel reads up to {kb} KiB ahead{told}"),
        costs,
        mend: Mend::setting(file, &READ_AHEAD_KB, &kb),
        sure: match (wasted, mapped) {
            (true, _) => Sure::Certain,
            (false, true) => Sure::Likely,
            (false, false) => Sure::Possible,
        },
    })]
}

/// Fewer leave a disk idle that could do more at once.
const REQUESTS_MIN: i64 = 32;

fn nr_requests(_facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let outcomes = stack.disks().map(|disk| match &disk.nr_requests {
        Ok(count) if *count < REQUESTS_MIN => Outcome::Found(Finding {
            at: disk.told(),
            measured: format!("{count} requests may wait"),
            costs: format!(
                "of more than {count} programs or threads that read or write at once, the others \
                 wait before the disk hears of them"
            ),
            mend: Mend::setting(disk.queue.join("nr_requests"), &256, count),
            sure: Sure::Possible,
        }),
        Ok(count) => Outcome::Fine(format!("{}: {count}", disk.told())),
        Err(why) => Outcome::Unseen(why.clone()),
    });
    with_unseen(stack, outcomes.collect())
}

fn atomic_write(_facts: &Facts, stack: &Stack) -> Vec<Outcome> {
    let Some(top) = stack.top() else { return Vec::new() };
    vec![match &top.atomic_write_bytes {
        Ok(0) => Outcome::Fine(format!("{} promises no more than a sector", top.told())),
        Ok(bytes) => {
            Outcome::Fine(format!("{} promises {}", top.told(), size(bytes.unsigned_abs())))
        }
        Err(why) => Outcome::Unseen(why.clone()),
    }]
}
