//! Writing.

use super::{ABOUT, BLOCK_EVENTS, END, EVENTS, FILES, MAGIC, PROCESSES, VERSION, checksum};
use crate::trace::{Event, Trace};

impl Trace {
    /// Returns the bytes of its file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let about = serde_json::to_vec(&self.about).expect("strings and numbers are JSON");
        block(&mut out, ABOUT, &about);
        let mut content = Vec::new();
        for process in &self.processes {
            number(&mut content, u64::from(process.pid));
            number(&mut content, u64::from(process.parent));
            text(&mut content, &process.program);
        }
        block(&mut out, PROCESSES, &content);
        content.clear();
        for file in &self.files {
            number(&mut content, file.device);
            number(&mut content, file.inode);
            number(&mut content, file.size_bytes);
            number(&mut content, u64::from(file.is_device));
            text(&mut content, &file.path);
        }
        block(&mut out, FILES, &content);
        for events in self.events.chunks(BLOCK_EVENTS) {
            content.clear();
            let mut before = 0;
            for event in events {
                one(&mut content, event, before);
                before = event.begin_ns;
            }
            block(&mut out, EVENTS, &content);
        }
        block(&mut out, END, &[]);
        out
    }
}

/// Returns a file of blocks of these kinds with any content, whose checksums match.
#[cfg(feature = "forge")]
#[must_use]
pub fn forged(blocks: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    blocks.iter().for_each(|(kind, content)| block(&mut out, *kind, content));
    out
}

fn block(out: &mut Vec<u8>, kind: u32, content: &[u8]) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(kind, content).to_le_bytes());
    out.extend_from_slice(content);
}

/// An event: the time since the one before it in its block, which begins at 0.
fn one(out: &mut Vec<u8>, event: &Event, before_ns: u64) {
    out.push(event.call.number());
    out.push(event.how);
    out.push(event.memory_align.trailing_zeros().min(12) as u8);
    for value in [
        event.begin_ns.saturating_sub(before_ns),
        event.took_ns,
        u64::from(event.process),
        u64::from(event.thread),
        event.file.map_or(0, |file| u64::from(file) + 1),
        u64::from(event.errno),
        u64::from(event.flags),
        event.offset,
        event.asked,
        event.moved,
    ] {
        number(out, value);
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}
