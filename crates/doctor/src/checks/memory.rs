//! What the kernel does with memory and processors.

use std::time::Duration;

use super::Check;
use crate::facts::Facts;
use crate::facts::memory::{DIRTY_SETTINGS, HALT_POLL_NS, Memory};
use crate::report::{Finding, Mend, Outcome, Rule, Setting, Sure, size, time};

/// The checks of this subject.
pub const CHECKS: &[Check] = &[
    Check {
        rule: Rule {
            name: "dirty-ratio",
            looks_at: "how much may be dirty in the page cache before it is written",
            finding_when: "the background begins at more than 1 GiB, or writers wait from 8 GiB on",
            source: "Documentation/admin-guide/sysctl/vm.rst: dirty_background_bytes, dirty_bytes",
        },
        judge: dirty,
    },
    Check {
        rule: Rule {
            name: "swappiness",
            looks_at: "whether the kernel swaps programs out in favour of the page cache",
            finding_when: "it did since the start, and swappiness is more than 10",
            source: "Documentation/admin-guide/sysctl/vm.rst: swappiness",
        },
        judge: |facts| swappiness(&facts.memory),
    },
    Check {
        rule: Rule {
            name: "zone-reclaim",
            looks_at: "whether a node throws its page cache away before it asks another for memory",
            finding_when: "it does",
            source: "Documentation/admin-guide/sysctl/vm.rst: zone_reclaim_mode",
        },
        judge: |facts| zone_reclaim(&facts.memory),
    },
    Check {
        rule: Rule {
            name: "huge-pages",
            looks_at: "transparent huge pages, and how often a program waited for them",
            finding_when: "every program gets them, and programs waited for memory to be compacted",
            source: "Documentation/admin-guide/mm/transhuge.rst: enabled, defrag",
        },
        judge: |facts| huge_pages(&facts.memory),
    },
    Check {
        rule: Rule {
            name: "io-uring",
            looks_at: "whether programs may use io_uring",
            finding_when: "it is disabled for all",
            source: "Documentation/admin-guide/sysctl/kernel.rst: io_uring_disabled",
        },
        judge: |facts| io_uring(&facts.memory),
    },
    Check {
        rule: Rule {
            name: "vcpu-halt",
            looks_at: "how long a thread takes to wake, where the processors are virtual",
            finding_when: "50 µs or more, and idle processors are halted at once: without the driver \
                           haltpoll, or with a time of 0",
            source: "Documentation/virt/guest-halt-polling.rst",
        },
        judge: |facts| wake(&facts.memory),
    },
];

const BACKGROUND_MAX: u64 = 1 << 30;
const DIRTY_MAX: u64 = 8 << 30;
/// What is set in their place: some writes of a checkpoint, no second of any disk.
const BACKGROUND: u64 = 256 << 20;
const DIRTY: u64 = 1 << 30;

fn dirty(facts: &Facts) -> Vec<Outcome> {
    let memory = &facts.memory;
    let (dirty, background) = match (&memory.dirty_bytes, &memory.dirty_background_bytes) {
        (Ok(dirty), Ok(background)) => (*dirty, *background),
        (Err(why), _) | (_, Err(why)) => return vec![Outcome::Unseen(why.clone())],
    };
    let measured = format!(
        "the background writes from {} on, writers wait from {} on; {} are dirty now",
        size(background),
        size(dirty),
        memory
            .dirty_now_bytes
            .as_ref()
            .map_or_else(|_| "it is not told how many".to_owned(), |now| size(*now))
    );
    if background <= BACKGROUND_MAX && dirty <= DIRTY_MAX {
        return vec![Outcome::Fine(measured)];
    }
    let rate = facts.reads.as_ref().and_then(|reads| Some(reads.as_ref().ok()?.write_bps));
    let took = rate.map_or_else(String::new, |rate| {
        let (seconds, rate) = (background as f64 / rate, size(rate as u64));
        format!(", which at the {rate} a second that were measured takes {seconds:.0} s")
    });
    let vm = |name: &str| format!("/proc/sys/vm/{name}");
    // Of a pair the one that is set makes the other 0, and 0 may not be set.
    let undo = memory.dirty_settings.iter().zip(DIRTY_SETTINGS).filter_map(|(value, name)| {
        let value = value.as_ref().ok().filter(|value| **value > 0)?;
        Some(Setting::new(vm(name), value))
    });
    vec![Outcome::Found(Finding {
        at: "vm.dirty_background_bytes, vm.dirty_bytes".to_owned(),
        measured,
        costs: format!(
            "an fsync can find {} to be written before it{took}, and commits wait behind it",
            size(background)
        ),
        mend: Mend::Settings {
            set: vec![
                Setting::new(vm("dirty_background_bytes"), &BACKGROUND),
                Setting::new(vm("dirty_bytes"), &DIRTY),
            ],
            undo: undo.collect(),
            keep: format!(
                "vm.dirty_background_bytes = {BACKGROUND} and vm.dirty_bytes = {DIRTY} in \
                 /etc/sysctl.d"
            ),
        },
        sure: Sure::Likely,
    })]
}

fn swappiness(memory: &Memory) -> Vec<Outcome> {
    let has_swap = match &memory.has_swap {
        Ok(has) => *has,
        Err(why) => return vec![Outcome::Unseen(why.clone())],
    };
    if !has_swap {
        return vec![Outcome::Fine("there is no swap".to_owned())];
    }
    let (value, out) = match (&memory.swappiness, &memory.swapped_out) {
        (Ok(value), Ok(out)) => (*value, *out),
        (Err(why), _) | (_, Err(why)) => return vec![Outcome::Unseen(why.clone())],
    };
    let bytes = out.saturating_mul(rustix::param::page_size() as u64);
    let measured = format!("swappiness {value}, {} swapped out since the start", size(bytes));
    if out == 0 || value <= 10 {
        return vec![Outcome::Fine(measured)];
    }
    vec![Outcome::Found(Finding {
        at: "vm.swappiness".to_owned(),
        measured,
        costs:
            "a page of the database's buffers that was swapped out is read from the device where \
                the program believes it in memory"
                .to_owned(),
        mend: Mend::setting("/proc/sys/vm/swappiness", &10, &value),
        sure: Sure::Likely,
    })]
}

fn zone_reclaim(memory: &Memory) -> Vec<Outcome> {
    Outcome::of(&memory.zone_reclaim, |mode| {
        if *mode == 0 {
            return vec![Outcome::Fine("nodes share their memory".to_owned())];
        }
        vec![Outcome::Found(Finding {
            at: "vm.zone_reclaim_mode".to_owned(),
            measured: format!("it is {mode}"),
            costs: "pages are thrown out of the page cache while another node has free memory"
                .to_owned(),
            mend: Mend::setting("/proc/sys/vm/zone_reclaim_mode", &0, mode),
            sure: Sure::Likely,
        })]
    })
}

fn huge_pages(memory: &Memory) -> Vec<Outcome> {
    let (enabled, defrag, compactions) =
        match (&memory.huge_enabled, &memory.huge_defrag, &memory.compactions) {
            (Ok(enabled), Ok(defrag), Ok(compactions)) => (enabled, defrag, *compactions),
            (Err(why), ..) | (_, Err(why), _) | (_, _, Err(why)) => {
                return vec![Outcome::Unseen(why.clone())];
            }
        };
    let measured = format!(
        "enabled {enabled}, defrag {defrag}, programs waited {compactions} times for memory to be \
         compacted since the start"
    );
    // In the others only what asks for huge pages waits for them, or nothing does.
    if enabled != "always" || defrag != "always" || compactions == 0 {
        return vec![Outcome::Fine(measured)];
    }
    vec![Outcome::Found(Finding {
        at: "transparent huge pages".to_owned(),
        measured,
        costs: "a program that touches memory for the first time stands still for as long as the \
                kernel moves pages"
            .to_owned(),
        mend: Mend::setting("/sys/kernel/mm/transparent_hugepage/enabled", &"madvise", &"always"),
        sure: Sure::Likely,
    })]
}

fn io_uring(memory: &Memory) -> Vec<Outcome> {
    // Before Linux 6.6 there was no switch.
    let disabled = match &memory.io_uring_disabled {
        Err(why) if why.starts_with("there is no") => &Ok(0),
        disabled => disabled,
    };
    Outcome::of(disabled, |disabled| match disabled {
        0 => vec![Outcome::Fine("every program may use it".to_owned())],
        1 => vec![Outcome::Fine("programs of the group kernel.io_uring_group may".to_owned())],
        value => vec![Outcome::Found(Finding {
            at: "kernel.io_uring_disabled".to_owned(),
            measured: format!("it is {value}: no program may"),
            costs: format!(
                "asynchronous I/O goes through threads, two hand-offs a request{}",
                memory.wake.as_ref().map_or_else(
                    |_| String::new(),
                    |wake| format!(", of up to {} each", time(micros(*wake)))
                )
            ),
            mend: Mend::ByHand(
                "sysctl kernel.io_uring_disabled=1, with the database's group in \
                 kernel.io_uring_group, where the rules of the machine allow it"
                    .to_owned(),
            ),
            sure: Sure::Possible,
        })],
    })
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// A thread that wakes slower than this costs a commit more than a flush of a good SSD does.
const WAKE_MAX: Duration = Duration::from_micros(50);

/// What the kernel sets where nothing else is asked for.
const HALT_POLL_DEFAULT_NS: u64 = 200_000;

fn wake(memory: &Memory) -> Vec<Outcome> {
    match &memory.is_virtual {
        Ok(true) => {}
        Ok(false) => return vec![Outcome::Fine("the machine is not virtual".to_owned())],
        Err(why) => return vec![Outcome::Unseen(why.clone())],
    }
    let driver = memory.idle_driver.clone().unwrap_or_else(|_| "none".to_owned());
    Outcome::of(&memory.wake, |wake| {
        let measured =
            format!("a thread takes {} to wake, the idle driver is {driver}", time(micros(*wake)));
        let does_not_poll = driver == "haltpoll" && memory.halt_poll_ns == Ok(0);
        let polls = driver == "haltpoll" && !does_not_poll;
        if polls || *wake < WAKE_MAX {
            return vec![Outcome::Fine(measured)];
        }
        let (measured, mend) = if does_not_poll {
            let mend = Mend::setting(HALT_POLL_NS, &HALT_POLL_DEFAULT_NS, &0);
            (format!("{measured}, which polls for 0 ns"), mend)
        } else {
            (measured, Mend::ByHand("modprobe cpuidle_haltpoll force=1".to_owned()))
        };
        vec![Outcome::Found(Finding {
            at: "virtual processors".to_owned(),
            measured,
            costs: "each hand-off between a client, the server and its writers waits that long; a \
                    processor that polls before it halts is there at once"
                .to_owned(),
            mend,
            sure: Sure::Likely,
        })]
    })
}
