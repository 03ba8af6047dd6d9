//! What a client writes over a file that rests, over plain memory.

use super::*;

const FILE: Lease = Lease { entry: 3, generation: 9 };
const OVER: std::ops::Range<u64> = 4096..32_768;

impl Stage {
    fn overwrite(&self, place: u64, bytes: &[u8]) -> bool {
        let Some(room) = self.slots.overwrite_room(FILE) else { return false };
        let len = bytes.len() as u64;
        if !room.allows(place, len) || len > room.room {
            return false;
        }
        let (first, rest) = bytes.split_at(100);
        self.slots.put_overwrite(&room, 0, first);
        self.slots.put_overwrite(&room, 100, rest);
        self.slots.overwrite(&room, place, len)
    }

    /// What the daemon finds in a buffer, in its order.
    fn found(&self, buffer: usize) -> Vec<(u64, Vec<u8>)> {
        let (full, mut from) = (self.client.overwritten(buffer), 0);
        let next = || {
            let overwrite = self.client.copy_overwrite(buffer, from, full, &OVER)?;
            from = overwrite.next;
            Some((overwrite.place, overwrite.bytes))
        };
        std::iter::from_fn(next).collect()
    }
}

fn bytes(len: usize, fill: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + fill) as u8).collect()
}

#[test]
fn i_lse_13_overwrites_are_found_in_the_order_in_which_they_were_made() {
    let stage = stage();
    assert_eq!(stage.slots.overwrite_room(FILE), None, "none was given");
    stage.client.open_append(2, FILE, 100_000, &OVER, 1);
    let made = [(4096, 512), (8192, 1024), (4096, 1024), (OVER.end - 512, 512), (20_480, 4096)];
    for (number, (place, len)) in made.into_iter().enumerate() {
        assert!(stage.overwrite(place, &bytes(len, number)));
    }
    let all = made.iter().enumerate().map(|(number, (place, len))| (*place, bytes(*len, number)));
    assert_eq!(stage.found(2), all.collect::<Vec<_>>());
    assert!(!stage.overwrite(4096, &bytes(2048, 0)), "it is full");
    let room = stage.slots.overwrite_room(FILE).unwrap();
    let full: u64 = made.iter().map(|(_, len)| 16 + *len as u64).sum();
    assert_eq!((room.room, room.buffer()), (OVERWRITE_BYTES - full - 16, 2));
    let appends = stage.slots.append_room(FILE).unwrap();
    assert_eq!((appends.offset, appends.room), (100_000, APPEND_BYTES), "they are apart");
    assert_eq!(stage.client.close_append(2, FILE.entry, 1), (0, full));
}

#[test]
fn i_lse_13_an_overwrite_lies_where_the_daemon_allows_it() {
    let stage = stage();
    stage.client.open_append(0, FILE, 100_000, &OVER, 1);
    let room = stage.slots.overwrite_room(FILE).unwrap();
    for (place, len, is_allowed) in [
        (OVER.start, 512, true),
        (OVER.start, OVER.end - OVER.start, true),
        (OVER.start - 512, 512, false),
        (OVER.end - 512, 1024, false),
        (OVER.end, 512, false),
        (OVER.start + 1, 512, false),
        (OVER.start, 511, false),
        (OVER.start, 0, false),
        (u64::MAX - 511, 512, false),
    ] {
        assert_eq!(room.allows(place, len), is_allowed, "{len} bytes at {place}");
    }
    stage.client.close_append(0, FILE.entry, 1);
    stage.client.open_append(0, FILE, 100_000, &(0..0), 2);
    let room = stage.slots.overwrite_room(FILE).unwrap();
    assert!(!room.allows(0, 512) && !room.allows(4096, 512), "none may lie anywhere");
}

#[test]
fn i_lse_13_a_buffer_that_was_closed_takes_no_more() {
    let stage = stage();
    stage.client.open_append(0, FILE, 100_000, &OVER, 1);
    let room = stage.slots.overwrite_room(FILE).unwrap();
    assert!(stage.overwrite(4096, &bytes(512, 1)));
    assert!(!stage.slots.overwrite(&room, 4096, 512), "another was there before");
    let room = stage.slots.overwrite_room(FILE).unwrap();
    assert_eq!(stage.client.close_append(0, FILE.entry, 1), (0, 528));
    assert!(!stage.slots.overwrite(&room, 4096, 512) && !stage.overwrite(4096, &bytes(512, 2)));
    stage.client.open_append(0, FILE, 100_000, &OVER, 2);
    assert!(!stage.slots.overwrite(&room, 4096, 512), "it was given anew");
    let other = Lease { generation: 10, ..FILE };
    assert_eq!(stage.slots.overwrite_room(other), None, "the entry is another file's");
    assert_eq!(stage.slots.overwrite_room(Lease { entry: 99, ..FILE }), None);
}

/// The daemon takes nothing of what does not lie within the buffer and the range that it gave.
#[test]
fn rubbish_among_overwrites_is_taken_no_notice_of() {
    let heads: [(u64, u64); 7] = [
        (4096, 1 << 40),
        (4096, u64::MAX),
        (4096, 0),
        (0, 512),
        (u64::MAX - 511, 512),
        (4097, 512),
        (OVER.end, 512),
    ];
    for (place, len) in heads {
        let stage = stage();
        stage.client.open_append(7, FILE, 100_000, &OVER, 1);
        assert!(stage.overwrite(4096, &bytes(512, 1)));
        let room = stage.slots.overwrite_room(FILE).unwrap();
        stage.slots.put_overwrite(&room, 0, &bytes(512, 2));
        // As one that has 512 bytes, and says something else of itself.
        stage.slots.overwrite(&room, place, 512);
        stage.slots.spoil_overwrite(&room, (place, len));
        assert_eq!(stage.found(7), [(4096, bytes(512, 1))], "{len} bytes at {place}");
    }
    let stage = stage();
    stage.client.open_append(7, FILE, 100_000, &OVER, 1);
    let room = stage.slots.overwrite_room(FILE).unwrap();
    assert!(stage.slots.overwrite(&room, 4096, u64::from(u32::MAX) >> 2));
    assert_eq!(stage.client.overwritten(7), OVERWRITE_BYTES);
    assert_eq!((stage.slots.overwrite_room(FILE), stage.found(7)), (None, vec![]));
}
