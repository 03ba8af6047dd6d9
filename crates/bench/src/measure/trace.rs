//! Block requests told apart one by one by the kernel's tracepoint: what was issued to a device.
//!
//! The statistics of a device count an empty flush as a write; the tracepoint shows each request
//! with its kind and length. It needs root and costs a little for every request, so it is used in
//! short passes of its own and never while time is taken.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::DeviceOps;

const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// A running trace of one device; ends with the value.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    instance: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl RequestTrace {
    /// Starts to trace requests issued to the device of this number; `None` where the system does
    /// not let us.
    pub(crate) fn start(major: u32, minor: u32) -> Option<Self> {
        let name = format!("bedplate-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let instance = PathBuf::from(INSTANCES).join(name);
        fs::create_dir(&instance).ok()?;
        let trace = Self { instance };
        // The kernel's own device number: twenty bits of minor.
        let device = (u64::from(major) << 20) | u64::from(minor);
        fs::write(trace.event("filter"), format!("dev == {device}")).ok()?;
        fs::write(trace.event("enable"), "1").ok()?;
        Some(trace)
    }

    fn event(&self, file: &str) -> PathBuf {
        self.instance.join("events/block/block_rq_issue").join(file)
    }

    /// Returns what was issued so far; `None` when the kernel's buffer ran over.
    pub(crate) fn read(&self) -> Option<DeviceOps> {
        parse(&fs::read_to_string(self.instance.join("trace")).ok()?)
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        // An instance that stays costs a directory; it is not reported.
        let _ = fs::write(self.event("enable"), "0");
        let _ = fs::remove_dir(&self.instance);
    }
}

/// Lines like `dd-812 [001] ..... 81.2: block_rq_issue: 7,0 WS 4096 () 8 + 8 none,0,0 [dd]`.
fn parse(text: &str) -> Option<DeviceOps> {
    let mut ops = DeviceOps::default();
    for line in text.lines() {
        if let Some((_, counts)) = line.split_once("entries-in-buffer/entries-written: ") {
            let (kept, written) = counts.split_whitespace().next()?.split_once('/')?;
            if kept != written {
                return None;
            }
        }
        let Some((_, event)) = line.split_once(" block_rq_issue: ") else { continue };
        let mut fields = event.split(' ').skip(1);
        let (kind, bytes) = (fields.next()?, fields.next()?.parse().ok()?);
        add(&mut ops, kind, bytes);
    }
    Some(ops)
}

/// `F` in front asks for a flush first; then comes `R`ead, `W`rite or, without data, nothing but
/// the flush.
fn add(ops: &mut DeviceOps, kind: &str, bytes: u64) {
    let (flush_first, rest) = kind.strip_prefix('F').map_or((false, kind), |rest| (true, rest));
    match rest.chars().next() {
        Some('R') => {
            ops.reads += 1;
            ops.read_bytes += bytes;
        }
        Some('W') if bytes > 0 => {
            ops.writes += 1;
            ops.written_bytes += bytes;
        }
        _ if flush_first => ops.flushes += 1,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 4/4   #P:2\n#\n";

    #[test]
    fn kinds_are_told_apart() {
        let text = format!(
            "{HEAD}  a-1 [001] ..... 8.0: block_rq_issue: 7,0 WS 4096 () 8 + 8 none,0,0 [a]\n\
             \x20 a-1 [001] ..... 8.1: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [a]\n\
             \x20 a-1 [001] ..... 8.2: block_rq_issue: 7,0 RA 8192 () 0 + 16 none,0,0 [a]\n\
             \x20 a-1 [001] ..... 8.3: block_rq_issue: 7,0 FWFSM 512 () 0 + 1 none,0,0 [a]\n"
        );
        let expected =
            DeviceOps { reads: 1, read_bytes: 8192, writes: 2, written_bytes: 4608, flushes: 1 };
        assert_eq!(parse(&text), Some(expected));
        assert_eq!(parse(""), Some(DeviceOps::default()));
    }

    #[test]
    fn a_buffer_that_ran_over_is_not_believed() {
        assert_eq!(parse(&HEAD.replace("4/4", "4/9")), None);
    }
}
