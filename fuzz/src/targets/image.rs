//! Bytes that lie anywhere on the volume: in the superblocks, the log and the tree's own pages.
//! Superblocks and log writes get checksums that fit; the pages of the tree do not, because a tree
//! that contradicts its own checksums is what a failing disk leaves.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice, Snapshot};
use bedplate_fs::forge;

use crate::base::{Base, base};
use crate::exercise::exercise;
use crate::input::Input;

/// Instructions that one input may hold.
const PATCHES_MAX: usize = 64;

/// Patches a sound volume as the input says, and does everything to the result.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let number = input.u8();
    let base = base(number);
    let mut snapshot = base.snapshot.clone();
    for _ in 0..PATCHES_MAX {
        if input.is_empty() {
            break;
        }
        patch(&mut input, base, &mut snapshot);
    }
    let memory = MemoryDevice::from_snapshot(&snapshot, MemoryDevice::GEOMETRY);
    let device: Arc<dyn BlockDevice> = memory.clone();
    if number & 0x80 == 0 {
        forge::reseal(&device, Some(base.log)).expect("memory does not fail");
    }
    exercise(&memory.snapshot());
}

fn patch(input: &mut Input<'_>, base: &Base, snapshot: &mut Snapshot) {
    let place = base.regions[usize::from(input.u8()) % base.regions.len()];
    // What counts lies at the front of a region.
    let offset = if place.name == "superblock" {
        u64::from(input.u16()) % 4096
    } else {
        input.u24() % place.len
    };
    let len = u64::from(input.u8() % 32).min(place.len - offset);
    let bytes = input.bytes(usize::try_from(len).expect("below 32"));
    snapshot.write(bytes, place.start + offset);
}
