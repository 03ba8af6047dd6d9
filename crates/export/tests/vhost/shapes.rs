//! Chains of every shape that means something, and when the guest is told of answers.

use vm_memory::{Bytes, GuestAddress};

use crate::bed::{Bed, pattern};
use crate::guest::{EVENT_IDX, Guest, IN, INDIRECT, NEXT, OK, OUT, Queue, SIZE, WRITE};
use crate::places::Place;

const INDIRECTLY: u16 = 4;

/// Offers a chain of parts of a header, data and status that are cut as told; returns its status.
fn ask_cut(queue: &mut Queue, is_write: bool, cuts: &[u32], indirect: bool) -> u8 {
    let kind = if is_write { OUT } else { IN };
    let header = queue.header(0, kind, 8);
    let table = if indirect { INDIRECT } else { 0 };
    let (mut number, mut at) = (0, queue.data_at(0));
    let mut put = |queue: &Queue, address, len, flags| {
        queue.descriptor_at(table, number, address, len, flags | NEXT, number + 1);
        number += 1;
    };
    for (offset, len) in [(0, 4), (4, 7), (11, 5)] {
        put(queue, header + offset, len, 0);
    }
    for len in cuts {
        put(queue, at, *len, if is_write { 0 } else { WRITE });
        at += u64::from(*len);
    }
    let status = queue.status_at(0);
    queue.descriptor_at(table, number, status, 1, WRITE, 0);
    if indirect {
        let len = (u32::from(number) + 1) * 16;
        queue.descriptor(0, queue.base + INDIRECT, len, INDIRECTLY, 0);
    }
    queue.offer(0);
    queue.kick();
    assert_eq!(queue.wait().0, 0);
    queue.status(0)
}

#[test]
fn s_554_a_request_is_the_same_however_its_buffers_are_cut() {
    let cuts: [&[u32]; 5] =
        [&[4096], &[1, 4095], &[512; 8], &[1000, 3000, 0, 96], &[2048, 2047, 1]];
    for place in [Place::Volume, Place::System] {
        let bed = Bed::new(place, 1 << 20);
        let mut guest = Guest::new(&bed.socket, 1);
        let queue = &mut guest.queues[0];
        for (seed, cut) in cuts.iter().enumerate() {
            for indirect in [false, true] {
                let data = pattern(seed as u64, 4096);
                queue.memory.write_slice(&data, GuestAddress(queue.data_at(0))).unwrap();
                assert_eq!(ask_cut(queue, true, cut, indirect), OK, "{cut:?}");
                queue.memory.write_slice(&[0; 4096], GuestAddress(queue.data_at(0))).unwrap();
                assert_eq!(ask_cut(queue, false, cut, indirect), OK, "{cut:?}");
                assert!(queue.data(0, 4096) == data, "{place:?} {cut:?}");
                assert!(queue.read(8, 4096) == data);
            }
        }
    }
}

/// The status is the last byte that can be written to, also of a buffer that holds data.
#[test]
fn s_554_a_status_may_share_its_buffer_with_data() {
    let bed = Bed::new(Place::Image, 1 << 20);
    let mut guest = Guest::new(&bed.socket, 1);
    let queue = &mut guest.queues[0];
    let data = pattern(4, 512);
    queue.write(3, &data);
    let header = queue.header(0, IN, 3);
    let at = queue.data_at(0);
    queue.memory.write_slice(&[0xee; 513], GuestAddress(at)).unwrap();
    queue.descriptor(0, header, 16, NEXT, 1);
    queue.descriptor(1, at, 513, WRITE, 0);
    queue.offer(0);
    queue.kick();
    assert_eq!(queue.wait(), (0, 513));
    let found = queue.data(0, 513);
    assert!(found[..512] == data);
    assert_eq!(found[512], OK);
}

/// With event indices the guest is told when it wants to be, and tells only when asked to.
#[test]
fn s_554_event_indices_are_kept_to_and_no_request_is_missed() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut guest = Guest::new(&bed.socket, 1);
    assert_ne!(guest.features & EVENT_IDX, 0);
    let queue = &mut guest.queues[0];
    // Far more than the indices count before they begin again.
    for round in 0..400_u32 {
        let count = 1 + round as u16 % (SIZE / 3);
        // To be told of the last of them alone.
        queue.set_used_event(queue.used.wrapping_add(count).wrapping_sub(1));
        let before = queue.available;
        for slot in 0..count {
            queue.send(slot, OUT, u64::from(slot) * 8, &[round as u8; 512], 0);
        }
        queue.kick_if_wanted(before);
        while queue.used_index() != queue.available {
            assert!(queue.is_told(20), "round {round}");
        }
        assert_eq!((0..count).map(|_| queue.take().unwrap().1).sum::<u32>(), u32::from(count));
    }
    // It is not told of what it does not want to know.
    while queue.is_told(0) {}
    queue.set_used_event(queue.used.wrapping_add(1));
    queue.send(0, OUT, 0, &[1; 512], 0);
    queue.kick();
    // A queue that is stopped has answered all, and told of it where it does.
    assert_eq!(guest.stop(0), guest.queues[0].used_index());
    assert!(!guest.queues[0].is_told(0), "one answer, and it waits for two");
}
