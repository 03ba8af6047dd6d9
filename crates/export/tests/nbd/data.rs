//! Bytes in and out.

use crate::bed::{Bed, PLACES};
use crate::client::{Client, DISC, FLUSH, FUA, READ, WRITE};

/// Bytes that are unlike everywhere.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn s_341_what_is_written_is_read_whatever_its_offset_and_length() {
    for place in PLACES {
        for structured in [false, true] {
            // No whole number of sectors.
            let size = (4 << 20) + 1000;
            let bed = Bed::new(place, size);
            let mut client = Client::open(&bed.socket, "disk", structured);
            assert_eq!(client.size, size);
            let mut model = vec![0; size as usize];
            let ranges = [
                (0, 4096),
                (8192, 1 << 20),
                (1, 1),
                (511, 2),
                (4095, 4098),
                (70_000, 1),
                (size - 1000, 1000),
                (size - 1, 1),
                (size - 2000, 2000),
                (12_288, 512),
                (5 * 512, 3 * 512),
                (2 << 20, 2 << 20),
                ((2 << 20) + 1, 4095),
            ];
            for (seed, (offset, len)) in ranges.into_iter().enumerate() {
                let data = pattern(seed as u64, len);
                assert_eq!(client.write(0, offset, &data), 0);
                model[offset as usize..][..len].copy_from_slice(&data);
                assert!(client.read(offset, len as u32) == data, "{place:?} {offset} {len}");
            }
            assert!(client.read(0, size as u32) == model, "{place:?} as a whole");
            assert!(client.read(3, 99_999) == model[3..100_002], "{place:?}, and a part");
            assert_eq!(client.ask(FLUSH, 0, 0, 0).0, 0);
            client.send(DISC, 0, 0, 0, &[]);
            let mut rest = Vec::new();
            std::io::Read::read_to_end(&mut client.stream, &mut rest).unwrap();
            assert!(rest.is_empty(), "nothing follows the end");
        }
    }
}

/// Replies come in any order, so each is told by its cookie.
#[test]
fn s_341_many_requests_at_once_are_each_answered_with_their_own_bytes() {
    for place in PLACES {
        let bed = Bed::new(place, 16 << 20);
        let mut client = Client::open(&bed.socket, "disk", true);
        let block = |number: u64| pattern(number, 4096);
        let mut waiting = std::collections::HashMap::new();
        for number in 0..100 {
            let flags = if number % 7 == 0 { FUA } else { 0 };
            let cookie = client.send(WRITE, flags, number * 4096, 4096, &block(number));
            waiting.insert(cookie, number);
        }
        while !waiting.is_empty() {
            let answer = client.answer();
            assert_eq!(answer.errno, 0);
            assert!(waiting.remove(&answer.cookie).is_some(), "one answer each");
        }
        // More than are taken at once.
        for number in (0..500).map(|number| number * 37 % 100) {
            waiting.insert(client.send(READ, 0, number * 4096, 4096, &[]), number);
        }
        while !waiting.is_empty() {
            let answer = client.answer();
            let number = waiting.remove(&answer.cookie).unwrap();
            assert!(answer.data == block(number), "{place:?}: block {number}");
        }
    }
}

#[test]
fn s_341_a_request_of_32_mib_is_served_and_a_larger_one_refused() {
    for place in PLACES {
        let bed = Bed::new(place, 40 << 20);
        let mut client = Client::open(&bed.socket, "disk", true);
        let data = pattern(1, 32 << 20);
        assert_eq!(client.write(FUA, 8192, &data), 0);
        assert!(client.read(8192, 32 << 20) == data, "{place:?}");
        assert_eq!(client.ask(READ, 0, 0, (32 << 20) + 1).0, 22);
        let larger = vec![7; (32 << 20) + 1];
        assert_eq!(client.write(0, 0, &larger), 22);
        assert!(client.read(8192, 4096) == data[..4096], "nothing of it was written");
        assert_eq!(client.read(0, 8192), [0; 8192]);
    }
}

#[test]
fn s_341_what_lies_beyond_the_end_is_refused_and_nothing_is_written() {
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        let mut client = Client::open(&bed.socket, "disk", false);
        assert_eq!(client.write(0, (1 << 20) - 4096, &[1; 8192]), 28);
        assert_eq!(client.write(0, u64::MAX - 100, &[1; 8192]), 28);
        assert_eq!(client.ask(READ, 0, 1 << 20, 1).0, 22);
        assert_eq!(client.ask(READ, 0, 0, 0).0, 22);
        assert_eq!(client.read((1 << 20) - 4096, 4096), [0; 4096]);
        assert_eq!(bed.disk.size_bytes().unwrap(), 1 << 20);
    }
}
