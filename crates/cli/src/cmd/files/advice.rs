//! Which mode a file is for, by what programs do with it: what the guide to the modes says.

use bedplate::CounterSnapshot;
use bedplate_trace::FileSummary;
use serde::Serialize;

/// What programs did with a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Work {
    pub reads: u64,
    pub read_bytes: Option<u64>,
    pub writes: u64,
    pub written_bytes: Option<u64>,
    pub syncs: u64,
    /// It was mapped; nothing where that is not known.
    pub maps: Option<u64>,
    /// It was opened with `O_DIRECT`; nothing where that is not known.
    pub direct: Option<bool>,
}

impl Work {
    /// Takes it from a trace.
    pub fn traced(file: &FileSummary) -> Self {
        Self {
            reads: file.reads.calls,
            read_bytes: Some(file.reads.bytes),
            writes: file.writes.calls,
            written_bytes: Some(file.writes.bytes),
            syncs: file.syncs.calls,
            maps: Some(file.maps),
            direct: Some(file.flags.contains(&"O_DIRECT")),
        }
    }

    /// Takes it from what a mount counted.
    pub fn counted(counters: &CounterSnapshot) -> Self {
        Self {
            reads: counters.reads,
            writes: counters.writes,
            syncs: counters.syncs,
            ..Self::default()
        }
    }

    /// How much was moved: bytes, or calls where bytes are not known.
    pub fn moved(&self) -> u64 {
        match (self.read_bytes, self.written_bytes) {
            (Some(read), Some(written)) => read.saturating_add(written),
            _ => self.reads + self.writes,
        }
    }
}

/// A mode with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The mode, or that the file may stay where it is.
    pub mode: &'static str,
    /// Why.
    pub reason: String,
}

/// Says which mode a file is for.
pub fn advise(work: &Work) -> Advice {
    let (mode, reason) = match work {
        Work { maps: Some(1..), .. } => ("cached", "it is mapped, which the page cache serves"),
        Work { reads: 0, writes: 0, .. } => ("stay", "nothing reads or writes it"),
        Work { direct: Some(true), .. } => {
            ("concurrent", "it is opened with O_DIRECT, past the page cache anyway")
        }
        Work { reads: 0, syncs: 1.., .. } => {
            ("cached", "it is written and synced and never read: a log beside its database")
        }
        Work { direct: Some(false), .. } => {
            ("cached", "its programs go through the page cache, which answers what they read again")
        }
        _ => ("cached", "whether it is opened with O_DIRECT is not known: a trace tells"),
    };
    Advice { mode, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_391_each_mode_is_recommended_for_its_reason() {
        let work =
            Work { reads: 5, writes: 5, maps: Some(0), direct: Some(false), ..Work::default() };
        let mode = |work: &Work| advise(work).mode;
        assert_eq!(mode(&work), "cached");
        assert_eq!(mode(&Work { direct: Some(true), ..work.clone() }), "concurrent");
        assert_eq!(mode(&Work { direct: Some(true), maps: Some(1), ..work.clone() }), "cached");
        assert_eq!(mode(&Work::default()), "stay");
        let log = advise(&Work { reads: 0, syncs: 3, ..work.clone() });
        assert!(log.mode == "cached" && log.reason.contains("log"), "{log:?}");
        assert!(advise(&Work { direct: None, ..work }).reason.contains("a trace tells"));
    }
}
