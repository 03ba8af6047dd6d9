//! Rows that lie in a tree whose checksums are right: wild extents, cycles of directories,
//! impossible names, link counts that are off.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::forge::{self, RowImage};

use crate::base::{Base, base};
use crate::exercise::exercise;
use crate::input::Input;

/// Instructions that one input may hold.
const CHANGES_MAX: usize = 24;

/// Values that lie at edges.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    255,
    4095,
    4096,
    8191,
    8192,
    1 << 31,
    u32::MAX as u64,
    1 << 44,
    1 << 56,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Changes rows of a sound volume as the input says, and does everything to the result.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let base = base(input.u8());
    let mut rows = Vec::new();
    while !input.is_empty() && rows.len() < CHANGES_MAX {
        change(&mut input, base, &mut rows);
    }
    let memory = MemoryDevice::from_snapshot(&base.snapshot, MemoryDevice::GEOMETRY);
    let device: Arc<dyn BlockDevice> = memory.clone();
    // Rows that do not fit are no volume.
    if forge::put_rows(&device, &rows).is_ok() {
        exercise(&memory.snapshot());
    }
}

fn change(input: &mut Input<'_>, base: &Base, out: &mut Vec<RowImage>) {
    let kind = input.u8() % 6;
    let row = &base.rows[usize::from(input.u16()) % base.rows.len()];
    let mut changed = row.clone();
    let value = changed.value.as_mut().expect("a row of the tree has a value");
    match kind {
        0 => {
            overwrite(value, input.u8().into(), &small(input));
            out.push(changed);
        }
        1 => out.push(RowImage { value: None, ..changed }),
        2 => {
            overwrite(&mut changed.key, input.u8().into(), &small(input));
            out.push(changed);
        }
        3 => {
            overwrite(value, input.u8().into(), &edge(input).to_le_bytes());
            out.push(changed);
        }
        4 => {
            let other = &base.rows[usize::from(input.u16()) % base.rows.len()];
            out.push(RowImage {
                table: row.table,
                key: row.key.clone(),
                value: other.value.clone(),
            });
        }
        _ => {
            let (key, value) = (usize::from(input.u8()), usize::from(input.u8()));
            out.push(RowImage {
                table: row.table,
                key: input.bytes(key).to_vec(),
                value: Some(input.bytes(value).to_vec()),
            });
        }
    }
}

fn small(input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.u8()) % 12;
    input.bytes(len).to_vec()
}

fn edge(input: &mut Input<'_>) -> u64 {
    EDGES[usize::from(input.u8()) % EDGES.len()]
}

/// Puts bytes over others, as far as there are others; at 255 behind them.
fn overwrite(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if at == 255 {
        return bytes.extend_from_slice(new);
    }
    let at = at % (bytes.len() + 1);
    let len = new.len().min(bytes.len() - at);
    bytes[at..at + len].copy_from_slice(&new[..len]);
}
