//! Options that leave each other nothing to do. All other pairs stand beside each other, but for
//! the bounds of read-ahead and write-behind, which are refused where the lower one is above the
//! higher.

use bedplate_fs::Tunable;

use super::lease::LeaseUsers;
use super::settings::{Acls, KERNEL_DIRTY_PERCENT, MountSettings, Transport, WriteBack};

/// An option that has no effect beside another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    /// The option without effect, as it is written.
    pub(super) option: &'static str,
    /// What takes it.
    pub(super) beside: &'static [&'static str],
    /// Whether it is so.
    is_so: fn(&MountSettings) -> bool,
    /// Why.
    pub(super) why: &'static str,
}

const READ_ONLY: &[&str] = &["ro", "checkpoint="];

/// All of them.
pub(super) const IDLE: [Idle; 11] = [
    Idle {
        option: "writeback=on",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && settings.write_back == WriteBack::On,
        why: "nothing is written",
    },
    Idle {
        option: "kernel-dirty=",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && bounds_dirty(settings),
        why: "nothing is written",
    },
    Idle {
        option: "kernel-dirty=",
        beside: &["writeback=off"],
        is_so: |settings| settings.write_back == WriteBack::Off && bounds_dirty(settings),
        why: "the kernel collects no writes",
    },
    Idle {
        option: "delay-writes=",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && gives(settings, Tunable::DelayWrites),
        why: "nothing is written",
    },
    Idle {
        option: "discard=on",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && settings.file_system.discard,
        why: "no block becomes free",
    },
    Idle {
        option: "defrag-rate=",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && settings.file_system.defrag_rate_bytes > 0,
        why: "nothing is moved",
    },
    Idle {
        option: "lease=",
        beside: READ_ONLY,
        is_so: |settings| settings.is_read_only() && settings.leases != LeaseUsers::Off,
        why: "a read-only mount hands out no leases",
    },
    Idle {
        option: "lease-kill=",
        beside: &["lease=off"],
        is_so: |settings| settings.lease_kill.is_some() && settings.leases == LeaseUsers::Off,
        why: "no process holds a lease",
    },
    Idle {
        option: "acl",
        beside: &["xattr=off"],
        is_so: |settings| !settings.extended_attributes && settings.acls == Acls::On,
        why: "access control lists are extended attributes",
    },
    Idle {
        option: "transport=io_uring",
        beside: &["auto_unmount"],
        is_so: |settings| settings.auto_unmount && settings.transport == Transport::IoUring,
        why: "fusermount3 asks a mount once more as its daemon ends, which io_uring does not bear",
    },
    Idle {
        option: "mode=concurrent+cache",
        beside: &["cache=0"],
        is_so: |settings| {
            let fs = &settings.file_system;
            fs.cache_bytes == 0 && fs.mode.writes_through()
        },
        why: "no page is kept: files are served as with mode=concurrent",
    },
];

fn gives(settings: &MountSettings, tunable: Tunable) -> bool {
    settings.file_system.given.contains(tunable)
}

fn bounds_dirty(settings: &MountSettings) -> bool {
    settings.kernel_dirty_percent != KERNEL_DIRTY_PERCENT
}

impl Idle {
    /// One sentence for the user.
    fn warning(&self) -> String {
        let beside = self.beside.iter().map(|option| format!("'{option}'")).collect::<Vec<_>>();
        format!(
            "mount option '{}' has no effect beside {}: {}",
            self.option,
            beside.join(" or "),
            self.why
        )
    }
}

/// Returns a sentence for each option that another one leaves nothing to do.
pub(super) fn warnings(settings: &MountSettings) -> impl Iterator<Item = String> {
    IDLE.iter().filter(|idle| (idle.is_so)(settings)).map(Idle::warning)
}

#[cfg(test)]
mod tests {
    use bedplate_fs::IoMode;

    use super::super::options::{MOUNT_OPTIONS, mount_tunables};
    use super::*;

    /// One or more values of every option.
    fn options() -> Vec<String> {
        let tunables = mount_tunables().flat_map(|info| match info.tunable {
            Tunable::Mode => IoMode::ALL.map(|mode| format!("mode={mode}")).to_vec(),
            Tunable::Cache => vec!["cache=0".into(), "cache=16M".into()],
            Tunable::Discard => vec!["discard=on".into(), "discard=off".into()],
            Tunable::Threads => vec!["threads=3".into()],
            // Bounds that are in order, so that the pair itself is no error.
            Tunable::ReadAheadMin => vec!["read-ahead-min=64k".into()],
            Tunable::ReadAheadMax => vec!["read-ahead-max=1M".into()],
            Tunable::WriteBehindStart => vec!["write-behind-start=10".into()],
            Tunable::WriteBehindMax => vec!["write-behind-max=20".into()],
            _ => {
                let value = info.unit.format(info.max).replace(' ', "");
                vec![format!("{}={value}", info.name)]
            }
        });
        let others = MOUNT_OPTIONS.iter().flat_map(|option| match (option.name, option.value) {
            (name, None) => vec![name.to_owned()],
            ("kernel-dirty", _) => vec!["kernel-dirty=1".into()],
            ("lease", _) => vec!["lease=owner".into(), "lease=off".into()],
            ("lease-kill", _) => vec!["lease-kill=9".into()],
            (name, Some(values)) => {
                values.split('|').map(|value| format!("{name}={value}")).collect()
            }
        });
        tunables.chain(others).collect()
    }

    /// Whether an option is the one that a row names: `lease=` is every value but `off`.
    fn is(given: &str, row: &str) -> bool {
        let any = row.ends_with('=') && given.starts_with(row) && !given.ends_with("=off");
        given == row || any
    }

    fn is_taken(option: &str, other: &str, idle: &Idle) -> bool {
        is(option, idle.option) && idle.beside.iter().any(|beside| is(other, beside))
    }

    #[test]
    fn s_481_every_pair_of_options_is_taken_and_one_without_effect_is_named() {
        let options = options();
        assert!(options.len() > 50, "{options:?}");
        for (one, other) in options.iter().flat_map(|one| options.iter().map(move |o| (one, o))) {
            let text = format!("{one},{other}");
            let settings = MountSettings::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let name = |option: &str| option.split('=').next().map(str::to_owned);
            if name(one) == name(other) {
                continue;
            }
            let expected: Vec<String> = IDLE
                .iter()
                .filter(|idle| {
                    // Without `lease=` there are no leases, so `lease-kill=` needs no partner.
                    let alone = idle.option == "lease-kill="
                        && [one, other].iter().any(|option| is(option, "lease-kill="))
                        && ![one, other].iter().any(|option| *option == "lease=owner");
                    alone || is_taken(one, other, idle) || is_taken(other, one, idle)
                })
                .map(Idle::warning)
                .collect();
            assert_eq!(settings.warnings, expected, "S-481: {text}");
        }
    }

    #[test]
    fn s_481_the_guide_has_every_pair_and_its_reason() {
        let guide = include_str!("../../../../docs/guide/modes.md");
        for idle in &IDLE {
            let beside = idle.beside.iter().map(|option| format!("`{option}`")).collect::<Vec<_>>();
            let row =
                format!("| `{}` | {} | no effect: {} |", idle.option, beside.join(", "), idle.why);
            assert!(guide.contains(&row), "docs/guide/modes.md lacks {row}");
        }
    }
}
