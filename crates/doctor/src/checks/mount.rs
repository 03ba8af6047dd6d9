//! The file system: options of its mount, its blocks and stripes.

use super::Check;
use crate::facts::mount::Mounted;
use crate::facts::{Facts, Promise};
use crate::report::{Finding, Mend, Outcome, Rule, Sure, size};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "bedplate",
            looks_at: "what a Bedplate mount promises of the directory: mode, untorn unit, checksums",
            finding_when: "never: it is told, and judged with the database's settings",
            source: "docs/semantics.md: S-58, S-280",
        },
        judge: |facts| facts.question.promise.iter().map(of_promise).collect(),
    },
    Check {
        rule: Rule {
            name: "mount-options",
            looks_at: "options of the mount that the directory lies on",
            finding_when: "they take durability away, write data twice, or discard at each removal",
            source: "ext4(5); mount(8); xfs(5); nfs(5): soft",
        },
        judge: |facts| of_mount(facts, options),
    },
    Check {
        rule: Rule {
            name: "file-system-block",
            looks_at: "the block size of the file system",
            finding_when: "it is smaller than a physical block of the disk, or larger than that and a page",
            source: "mke2fs(8): -b; mkfs.xfs(8): -b",
        },
        judge: |facts| of_mount(facts, |mount| block(facts, mount)),
    },
    Check {
        rule: Rule {
            name: "stripe-hint",
            looks_at: "the stripe unit that the file system places files by, over RAID",
            finding_when: "it is another than that of the RAID below",
            source: "mke2fs(8): stride; mkfs.xfs(8): -d su",
        },
        judge: |facts| of_mount(facts, |mount| stripe_hint(facts, mount)),
    },
];

fn of_mount(facts: &Facts, judge: impl FnOnce(&Mounted) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.mount.as_ref().map_or_else(Vec::new, |mount| Outcome::of(mount, judge))
}

fn of_promise(promise: &Promise) -> Outcome {
    let untorn = match promise.untorn_bytes {
        0 => "pages can tear as on the device".to_owned(),
        bytes if promise.is_cached => {
            format!(
                "{} are to be written untorn, but pages wait in a cache and can tear",
                size(bytes)
            )
        }
        bytes => format!("{} are written untorn", size(bytes)),
    };
    let integrity = if promise.integrity { "with checksums" } else { "without checksums" };
    Outcome::Fine(format!("mode {}, {untorn}, {integrity}", promise.mode))
}

/// An option that is a finding.
struct Bad {
    /// The options, any of which means it.
    options: &'static [&'static str],
    /// The types of file systems that it is judged on; none: all.
    kinds: &'static [&'static str],
    costs: &'static str,
    /// What a remount sets in its place; `None`: not by a remount.
    instead: Option<&'static str>,
    sure: Sure,
}

const BAD: [Bad; 6] = [
    Bad {
        options: &["nobarrier", "barrier=0"],
        kinds: &[],
        costs: "no flush is sent to the device: what fsync called durable is lost with the power",
        instead: Some("barrier=1"),
        sure: Sure::Certain,
    },
    Bad {
        options: &["data=journal"],
        kinds: &["ext4", "ext3"],
        costs: "each byte is written twice, to the journal and to its place, and direct I/O goes \
                through the page cache",
        instead: None,
        sure: Sure::Certain,
    },
    Bad {
        options: &["sync"],
        kinds: &[],
        costs: "each write waits for the device, those too that were not asked to be durable",
        instead: Some("async"),
        sure: Sure::Certain,
    },
    Bad {
        options: &["strictatime"],
        kinds: &[],
        costs: "each read that is the first in its second writes an inode",
        instead: Some("relatime"),
        sure: Sure::Likely,
    },
    Bad {
        options: &["discard", "discard=sync"],
        kinds: &["ext4", "xfs", "f2fs"],
        costs: "each commit that freed blocks sends the device discards, which some devices answer \
                slower than writes; the weekly fstrim.timer frees the same",
        instead: Some("nodiscard"),
        sure: Sure::Possible,
    },
    Bad {
        options: &["soft"],
        kinds: &["nfs", "nfs4"],
        costs: "a server that does not answer in time makes writes fail that a database believes in",
        instead: None,
        sure: Sure::Certain,
    },
];

fn options(mount: &Mounted) -> Vec<Outcome> {
    let (kind, dir) = (mount.entry.kind.as_str(), mount.entry.dir.display());
    let found = BAD.iter().filter(|bad| bad.kinds.is_empty() || bad.kinds.contains(&kind));
    let found = found.filter_map(|bad| {
        let set = bad.options.iter().find(|option| mount.has(option))?;
        let mend = match bad.instead {
            Some(instead) => {
                format!("mount -o remount,{instead} {dir}  # and in /etc/fstab")
            }
            None => format!("umount {dir} && mount {dir}  # with {set} taken out of /etc/fstab"),
        };
        Some(Outcome::Found(Finding {
            at: format!("{kind} on {dir}"),
            measured: format!("it is mounted with {set}"),
            costs: bad.costs.to_owned(),
            mend: Mend::ByHand(mend),
            sure: bad.sure,
        }))
    });
    let mut outcomes: Vec<Outcome> = found.collect();
    if outcomes.is_empty() {
        let (flags, own) = (&mount.entry.flags, &mount.entry.options);
        outcomes.push(Outcome::Fine(format!("{kind} on {dir}: {flags}; {own}")));
    }
    outcomes
}

fn block(facts: &Facts, mount: &Mounted) -> Vec<Outcome> {
    let at = format!("{} on {}", mount.entry.kind, mount.entry.dir.display());
    let block = match &mount.block_bytes {
        Ok(block) => *block,
        Err(why) => return vec![Outcome::Unseen(why.clone())],
    };
    let physical = facts.stack.as_ref().ok().and_then(crate::facts::device::Stack::physical_bytes);
    let page = facts.question.page_bytes;
    // Network and other file systems tell the size of their requests.
    let has_blocks = matches!(mount.entry.kind.as_str(), "ext4" | "ext3" | "ext2" | "xfs");
    if has_blocks && physical.is_some_and(|physical| block < physical) {
        let physical = physical.unwrap_or(block);
        return vec![super::device::small_blocks(
            at,
            &format!("its blocks have {}", size(block)),
            (block, physical),
            format!("mkfs.{} -b {physical} DEVICE  # after a backup", mount.entry.kind),
            Sure::Likely,
        )];
    }
    if has_blocks && block > page.max(physical.unwrap_or(0)) {
        return vec![Outcome::Found(Finding {
            at,
            measured: format!("its blocks have {}, a page has {}", size(block), size(page)),
            costs: format!(
                "a write of a page in a hole, and each through the page cache, reads and writes {}: \
                 {} times the bytes",
                size(block),
                block / page.max(1)
            ),
            mend: Mend::ByHand(format!(
                "mkfs.{} -b {page} DEVICE  # after a backup",
                mount.entry.kind
            )),
            sure: Sure::Likely,
        })];
    }
    vec![Outcome::Fine(format!("{at}: {}", size(block)))]
}

fn stripe_hint(facts: &Facts, mount: &Mounted) -> Vec<Outcome> {
    let Ok(stack) = &facts.stack else { return Vec::new() };
    let Some((layer, unit)) =
        stack.layers.iter().find_map(|layer| Some((layer, layer.stripe_unit_bytes?)))
    else {
        return vec![Outcome::Fine("nothing is striped".to_owned())];
    };
    let hint = match &mount.superblock {
        Ok(superblock) => superblock.stripe_unit_bytes,
        Err(why) => return vec![Outcome::Unseen(why.clone())],
    };
    if hint == 0 || hint == unit {
        return vec![Outcome::Fine(format!(
            "{} below, {} in the file system",
            size(unit),
            size(hint)
        ))];
    }
    let dir = mount.entry.dir.display();
    let mend = if mount.entry.kind == "xfs" {
        let sunit = unit / 512;
        let swidth = sunit * layer.below.len().max(1) as u64;
        format!("umount {dir} && mount -o sunit={sunit},swidth={swidth} {dir}  # less for parity")
    } else {
        let block = mount.block_bytes.as_ref().copied().unwrap_or(4096);
        format!("tune2fs -E stride={} {}", unit / block.max(1), mount.entry.source.display())
    };
    vec![Outcome::Found(Finding {
        at: format!("{} on {dir}", mount.entry.kind),
        measured: format!(
            "it places files by {}, {} puts {} on a member",
            size(hint),
            layer.told(),
            size(unit)
        ),
        costs: "files begin in the middle of a member's part, so that large requests keep one \
                member more busy than they must"
            .to_owned(),
        mend: Mend::ByHand(mend),
        sure: Sure::Possible,
    })]
}
