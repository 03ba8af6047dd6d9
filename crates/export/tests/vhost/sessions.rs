//! Front ends that come and go, and queues that are stopped and go on.

use std::os::unix::net::UnixStream;

use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::GuestMemoryBackend;

use crate::bed::{Bed, pattern};
use crate::guest::{
    BASE, FLUSH, Guest, IN, MEMORY_BYTES, NO_STATUS, OK, OUT, SIZE, memory, regions,
};
use crate::places::{PLACES, Place};

#[test]
fn s_559_a_front_end_that_goes_and_comes_again_finds_what_it_wrote() {
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        for round in 0..4_u64 {
            let mut guest = Guest::new(&bed.socket, 2);
            if round > 0 {
                assert!(guest.queues[0].read((round - 1) * 16, 8192) == pattern(round - 1, 8192));
            }
            guest.queues[1].write(round * 16, &pattern(round, 8192));
            assert_eq!(guest.queues[0].ask(FLUSH, 0, &[], 0).0, OK);
            // It dies with requests under way.
            for slot in 0..SIZE / 3 {
                guest.queues[0].send(
                    slot,
                    OUT,
                    1024 + u64::from(slot) * 8,
                    &[round as u8; 4096],
                    0,
                );
            }
            guest.queues[0].kick();
        }
        let mut found = vec![0; 4 * 8192];
        bed.disk.read_at(&mut found, 0).unwrap();
        for round in 0..4 {
            assert!(found[round * 8192..][..8192] == pattern(round as u64, 8192), "{place:?}");
        }
    }
}

#[test]
fn s_559_one_front_end_is_served_at_a_time_and_the_next_one_then() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut first = Guest::new(&bed.socket, 1);
    let second = {
        let socket = bed.socket.clone();
        std::thread::spawn(move || Guest::new(&socket, 1).queues[0].read(0, 512))
    };
    for round in 0..50 {
        first.queues[0].write(0, &[round; 512]);
    }
    assert!(!second.is_finished(), "the first one is still here");
    drop(first);
    assert_eq!(second.join().unwrap(), [49; 512]);
}

/// I-VHO-3: what the front end is told of where a queue goes on holds only if all before it are answered.
#[test]
fn s_559_a_queue_that_is_stopped_has_answered_all_that_was_taken_and_goes_on() {
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        let mut guest = Guest::new(&bed.socket, 1);
        let mut queue = guest.queues.remove(0);
        for round in 0..20_u64 {
            let data = pattern(round, 4096);
            for slot in 0..SIZE / 3 {
                queue.send(slot, OUT, u64::from(slot) * 8, &data, 0);
            }
            queue.kick();
            let stopped = guest.stop(0);
            assert_eq!(stopped, queue.used_index(), "{place:?}: none is taken and not answered");
            guest.describe(&queue, SIZE, stopped).unwrap();
            guest.start(&queue);
            (0..SIZE / 3).for_each(|_| assert_eq!(queue.wait().1, 1));
            assert!(queue.read(8, 4096) == data);
        }
    }
}

#[test]
fn s_559_a_queue_that_is_disabled_is_not_served_until_it_is_enabled() {
    let bed = Bed::new(Place::Image, 1 << 20);
    let mut guest = Guest::new(&bed.socket, 2);
    guest.frontend.set_vring_enable(0, false).unwrap();
    guest.queues[0].send(0, OUT, 0, &[1; 512], 0);
    guest.queues[0].kick();
    guest.queues[1].write(8, &[2; 512]);
    assert_eq!(guest.queues[0].status(0), NO_STATUS);
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.queues[0].wait(), (0, 1));
    assert_eq!(guest.queues[1].read(0, 512), [1; 512]);
}

/// Memory is plugged in and out while a queue is in use.
#[test]
fn s_559_memory_comes_and_goes_while_queues_are_served() {
    let bed = Bed::new(Place::System, 1 << 20);
    let mut guest = Guest::new(&bed.socket, 1);
    assert_eq!(guest.frontend.get_max_mem_slots().unwrap(), 509);
    let more = memory(&[(1 << 32, 1 << 20)]);
    let said = regions(&more);
    let queue = &mut guest.queues[0];
    let header = queue.header(0, IN, 0);
    let status = queue.status_at(0);
    let chain = |queue: &crate::guest::Queue| {
        queue.descriptor(0, header, 16, 1, 1);
        queue.descriptor(1, 1 << 32, 512, 3, 2);
        queue.descriptor(2, status, 1, 2, 0);
    };
    chain(queue);
    queue.offer(0);
    queue.kick();
    assert_eq!((queue.wait().1, queue.status(0)), (0, 1), "it is not there yet");
    guest.frontend.add_mem_region(&said[0]).unwrap();
    let queue = &mut guest.queues[0];
    queue.offer(0);
    queue.kick();
    assert_eq!((queue.wait().1, queue.status(0)), (513, OK));
    guest.frontend.remove_mem_region(&said[0]).unwrap();
    let queue = &mut guest.queues[0];
    queue.offer(0);
    queue.kick();
    assert_eq!((queue.wait().1, queue.status(0)), (0, 1), "it is gone");
    assert!(guest.frontend.remove_mem_region(&said[0]).is_err(), "and cannot go twice");
    assert_eq!(more.num_regions(), 1);
}

/// What a front end says and cannot mean ends its session; the next one is served.
#[test]
fn s_558_front_ends_that_lie_are_let_go_and_the_next_is_served() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let lies: [fn(&mut Guest) -> bool; 9] = [
        |guest| guest.frontend.set_features(1 << 40).is_err(),
        |guest| guest.frontend.set_vring_num(9, 16).is_err(),
        |guest| guest.frontend.set_vring_num(3, 100).is_err(),
        |guest| guest.frontend.set_vring_num(3, 512).is_err(),
        |guest| {
            let queue = guest.queues.pop().unwrap();
            guest.memory = memory(&[(BASE, MEMORY_BYTES)]);
            guest.describe(&queue, SIZE, 0).is_err()
        },
        |guest| {
            let other = memory(&[(BASE, 1 << 20)]);
            let twice = [regions(&other), regions(&guest.memory)].concat();
            guest.frontend.set_mem_table(&twice).is_err()
        },
        |guest| {
            // More than the file holds.
            let region = regions(&guest.memory)[0];
            let more = VhostUserMemoryRegionInfo { memory_size: 1 << 40, ..region };
            guest.frontend.set_mem_table(&[more]).is_err()
        },
        |guest| {
            let region = regions(&guest.memory)[0];
            let odd = VhostUserMemoryRegionInfo { guest_phys_addr: u64::MAX - 4096, ..region };
            guest.frontend.set_mem_table(&[odd]).is_err()
        },
        |guest| {
            let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
            guest.frontend.set_config(32, flags, &[1]).is_err()
        },
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut guest = Guest::new(&bed.socket, 1);
        assert!(lie(&mut guest), "lie {number} is believed");
        drop(guest);
        Guest::new(&bed.socket, 1).queues[0].write(0, &[number as u8; 512]);
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x01", &[0xff; 4096], b""] {
        use std::io::{Read, Write};
        let mut stream = UnixStream::connect(&bed.socket).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // It may be reset, as there is more than was read.
        let _read = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
        assert_eq!(Guest::new(&bed.socket, 1).queues[0].read(0, 512), [8; 512]);
    }
}

#[test]
fn s_560_a_server_that_ends_answers_what_is_under_way_and_waits_for_no_front_end() {
    for place in PLACES {
        let mut bed = Bed::new(place, 1 << 20);
        let mut guest = Guest::new(&bed.socket, 1);
        // One in the middle of a message, and one that waits for its turn.
        let _silent = UnixStream::connect(&bed.socket).unwrap();
        let queue = &mut guest.queues[0];
        for slot in 0..SIZE / 3 {
            queue.send(slot, OUT, u64::from(slot) * 8, &[9; 4096], 0);
        }
        queue.kick();
        // One is answered, so all were taken or will not be.
        queue.wait();
        bed.server.take().unwrap().stop().unwrap();
        let answered: Vec<u16> = (0..SIZE / 3).filter(|slot| queue.status(*slot) == OK).collect();
        assert_eq!(queue.used_index() as usize, answered.len(), "{place:?}");
        let mut found = vec![0; 1 << 20];
        bed.disk.read_at(&mut found, 0).unwrap();
        for slot in answered {
            assert!(found[usize::from(slot) * 4096..][..4096] == [9; 4096], "{place:?} {slot}");
        }
        assert!(!bed.socket.exists());
    }
}
