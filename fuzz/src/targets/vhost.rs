//! What a guest puts on a queue of its disk.
//!
//! What must hold: whatever lies in the guest's memory, a request is refused or stays within the disk,
//! its buffers are as long as what it moves, and one of a disk that is read-only changes nothing.

use bedplate_export::vhost::forge::{Effect, MEMORY_BYTES, QUEUE_SIZE, requests};

use crate::input::Input;

const AVAILABLE: usize = 4096;
const HEADERS: usize = 12 << 10;
const TABLE: usize = 16 << 10;
/// The largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Takes an input for a guest's memory as it is, or for descriptors and headers that are nearly
/// right: 0 and 1, of a disk that is read-only: 2 and 3.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let way = input.u8();
    let read_only = way & 2 != 0;
    let size_bytes = u64::from(input.u16()) * 512;
    let memory = if way & 1 == 0 { input.rest().to_vec() } else { laid_out(&mut input) };
    let (effects, _sound) = requests(&memory, size_bytes, read_only);
    assert!(effects.len() <= 16 * usize::from(QUEUE_SIZE), "{} effects", effects.len());
    for effect in effects {
        match effect {
            Effect::Reads(offset, len, buffers) | Effect::Writes(offset, len, buffers) => {
                assert!(len <= REQUEST_BYTES_MAX && len.is_multiple_of(512), "{len} bytes");
                assert!(buffers == len as u64, "{buffers} bytes of buffers for {len}");
                assert!(offset + len as u64 <= size_bytes, "{len} at {offset} of {size_bytes}");
            }
            Effect::Changes(offset, len) => {
                assert!(offset + len <= size_bytes, "{len} at {offset} of {size_bytes}");
            }
            Effect::None => {}
        }
        let changes = matches!(effect, Effect::Writes(..) | Effect::Changes(..));
        assert!(!(changes && read_only), "a disk that is read-only is changed");
    }
}

/// Makes memory of instructions: a header each, and descriptors of which most lead somewhere.
fn laid_out(input: &mut Input<'_>) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    for number in 0..2 * usize::from(QUEUE_SIZE) {
        if input.is_empty() {
            break;
        }
        // The first table, then one for those that are indirect.
        let table = if number < usize::from(QUEUE_SIZE) { 0 } else { TABLE };
        let at = table + number % usize::from(QUEUE_SIZE) * 16;
        let kind = input.u8();
        let address = match kind % 4 {
            0 => (HEADERS + number * 16) as u64,
            1 => TABLE as u64,
            2 => (32 << 10) + u64::from(input.u16()) / 2,
            _ => input.u64(),
        };
        let len = match kind / 4 % 4 {
            0 => 16,
            1 => 1,
            2 => u32::from(input.u8()) * 512,
            _ => input.u16().into(),
        };
        put(at, &address.to_le_bytes());
        put(at + 8, &len.to_le_bytes());
        put(at + 12, &[kind >> 5, 0, input.u8() % (QUEUE_SIZE as u8 + 1), 0]);
        put(HEADERS + number * 16, &[input.u8() % 16, 0, 0, 0]);
        put(HEADERS + number * 16 + 8, &u64::from(input.u16()).to_le_bytes());
    }
    let count = input.u8() % (QUEUE_SIZE as u8 + 2);
    put(AVAILABLE + 2, &[count]);
    for entry in 0..usize::from(QUEUE_SIZE) {
        put(AVAILABLE + 4 + entry * 2, &[input.u8() % (QUEUE_SIZE as u8 + 1)]);
    }
    memory
}
