//! What reads and writes waited for, in words.

use bedplate::{Latencies, WaitTime, Waits};

use crate::render::text::{self, short};

/// What a class of waits is called.
fn name(class: &str) -> &str {
    match class {
        "inode_shared" => "inode lock, shared",
        "inode_exclusive" => "inode lock, exclusive",
        "byte_range" => "byte range",
        "queue" => "I/O thread",
        other => other,
    }
}

/// Says in one line what was waited for; `None` where nothing was.
pub fn line(waits: &Waits) -> Option<String> {
    let told: Vec<String> = waits
        .by_name()
        .filter(|(_, time)| time.count > 0)
        .map(|(class, time)| format!("{} {}", name(class), words(&time)))
        .collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn words(time: &WaitTime) -> String {
    format!(
        "{}, {} (longest {})",
        text::count(time.count, "time"),
        short(Some(time.ns)),
        short(Some(time.ns_max))
    )
}

/// The parts of the time of a file's reads and writes that went into waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// For locks of the file.
    pub locks: f64,
    /// For the device.
    pub device: f64,
}

/// Returns the parts; `None` where too few reads and writes were timed to say.
pub fn shares(waits: &Waits, latencies: &Latencies) -> Option<Shares> {
    let (read, write) = (&latencies.read, &latencies.write);
    let all_ns = read.sum_ns + write.sum_ns;
    if read.timed + write.timed < TIMED_MIN || all_ns == 0 {
        return None;
    }
    let of = |ns: u64| (ns as f64 / all_ns as f64).min(1.0);
    Some(Shares { locks: of(waits.lock_ns()), device: of(waits.device.ns) })
}

/// As [`line`], with the parts of the time where they are known.
pub fn line_with_shares(waits: &Waits, latencies: &Latencies) -> Option<String> {
    let line = line(waits)?;
    Some(match shares(waits, latencies) {
        Some(Shares { locks, device }) => format!(
            "{line}; of the time of reads and writes {:.0} % for locks, {:.0} % for the device",
            locks * 100.0,
            device * 100.0
        ),
        None => line,
    })
}

/// With fewer that were timed a part of their time says nothing.
pub const TIMED_MIN: u64 = 30;

#[cfg(test)]
mod tests {
    use bedplate::LatencySnapshot;

    use super::*;

    #[test]
    fn only_what_was_waited_for_is_told() {
        assert_eq!(line(&Waits::default()), None);
        let waits = Waits {
            inode_exclusive: WaitTime { count: 1, ns: 2_500_000, ns_max: 2_500_000 },
            queue: Some(WaitTime { count: 3, ns: 3_000, ns_max: 1_500 }),
            ..Waits::default()
        };
        assert_eq!(
            line(&waits).unwrap(),
            "inode lock, exclusive 1 time, 2.50ms (longest 2.50ms); I/O thread 3 times, 3.00us \
             (longest 1.50us)"
        );
    }

    #[test]
    fn parts_need_operations_that_were_timed() {
        let write = |timed| LatencySnapshot { timed, sum_ns: 1000, ..LatencySnapshot::default() };
        let of = |timed| Latencies { write: write(timed), ..Latencies::default() };
        let waits = Waits {
            inode_shared: WaitTime { count: 1, ns: 250, ns_max: 250 },
            device: WaitTime { count: 1, ns: 5000, ns_max: 500 },
            ..Waits::default()
        };
        assert_eq!(shares(&waits, &of(29)), None);
        assert_eq!(shares(&waits, &of(30)), Some(Shares { locks: 0.25, device: 1.0 }));
        let told = |timed| line_with_shares(&waits, &of(timed)).unwrap();
        assert!(told(30).ends_with("writes 25 % for locks, 100 % for the device"), "{}", told(30));
        assert_eq!(told(29), line(&waits).unwrap());
    }
}
