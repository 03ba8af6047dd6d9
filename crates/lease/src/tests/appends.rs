//! What a client appends to a file that rests, over plain memory.

use super::*;
use crate::wire::{APPEND_IOCTL, TailRequest};

const FILE: Lease = Lease { entry: 3, generation: 9 };

impl Stage {
    fn append(&self, bytes: &[u8]) -> bool {
        let Some(room) = self.slots.append_room(FILE) else { return false };
        self.slots.put_appended(&room, 0, bytes);
        self.slots.append(&room, bytes.len() as u64)
    }
}

#[test]
fn i_lse_12_bytes_of_any_length_lie_one_after_the_other() {
    let stage = stage();
    assert_eq!(stage.slots.append_room(FILE), None, "none was given");
    stage.client.open_append(2, FILE, 1_000_003, &(0..0), 1);
    let mut all = Vec::new();
    for len in (0..40).chain([4096, 1, 8, 7, 100]) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        assert!(stage.append(&bytes));
        all.extend(bytes);
    }
    let room = stage.slots.append_room(FILE).unwrap();
    let at = (room.buffer(), room.offset, room.room);
    assert_eq!(at, (2, 1_000_003 + all.len() as u64, APPEND_BYTES - all.len() as u64));
    assert_eq!(stage.client.appended(2), all.len() as u64);
    for from in [0, 1, 8, 4099] {
        let copied = stage.client.copy_appended(2, from, all.len() as u64);
        assert_eq!(copied, all[from as usize..]);
    }
    stage.slots.put_appended(&room, 5, b"behind");
    assert!(stage.slots.append(&room, 11));
    assert_eq!(
        stage.client.copy_appended(2, all.len() as u64 + 5, all.len() as u64 + 11),
        b"behind"
    );
}

#[test]
fn i_lse_12_a_buffer_that_was_closed_takes_no_more() {
    let stage = stage();
    stage.client.open_append(0, FILE, 100, &(0..0), 1);
    let room = stage.slots.append_room(FILE).unwrap();
    assert!(stage.append(b"one"));
    assert!(!stage.slots.append(&room, 3), "another was there before");
    let room = stage.slots.append_room(FILE).unwrap();
    assert_eq!(stage.client.close_append(0, FILE.entry, 1), (3, 0));
    assert!(!stage.slots.append(&room, 3) && !stage.append(b"two"));
    stage.client.open_append(0, FILE, 103, &(0..0), 2);
    assert!(!stage.slots.append(&room, 3), "it was given anew");
    let other = Lease { generation: 10, ..FILE };
    assert_eq!(stage.slots.append_room(other), None, "the entry is another file's");
    assert_eq!(stage.slots.append_room(Lease { entry: 4, ..FILE }), None);
    assert_eq!(stage.slots.append_room(Lease { entry: 99, ..FILE }), None);
    assert!(stage.append(b"three"));
    assert_eq!(stage.client.copy_appended(0, 0, 5), b"three");
}

/// The daemon believes no more than the buffer holds.
#[test]
fn rubbish_in_the_header_of_a_buffer_is_bounded() {
    let stage = stage();
    stage.client.open_append(7, FILE, 0, &(0..0), 1);
    let room = stage.slots.append_room(FILE).unwrap();
    assert!(stage.slots.append(&room, u64::from(u32::MAX) >> 2));
    assert_eq!(stage.client.appended(7), APPEND_BYTES);
    assert_eq!(stage.slots.append_room(FILE), None);
    assert_eq!(stage.client.close_append(7, FILE.entry, 1), (APPEND_BYTES, 0));
    assert_eq!(APPENDS_PER_CLIENT, 16);
}

#[test]
fn a_request_for_a_buffer_is_as_one_for_a_tail() {
    assert_eq!(APPEND_IOCTL, 0xC020_BE05);
    let asked = TailRequest { client: 9, offset: 7, len: 50 };
    assert_eq!(TailRequest::decode(&asked.encode()), Ok(asked));
}
