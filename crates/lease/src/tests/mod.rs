//! Both halves over plain memory, one step after another.

mod appends;
mod model;
mod overwrites;
mod pages;
mod tail;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::planted::{Mistake, plant};
use crate::wire::{Answer, LEASE_IOCTL, ODD_IOCTL, OddRequest, Offer, Place, Request, SocketName};
use crate::*;

type Memory = Arc<[AtomicU64]>;

const MIB: u64 = 1 << 20;
const CLIENT: u64 = 31;

fn memory(words: usize) -> Memory {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

fn geometry() -> Geometry {
    let alignment_bytes = 512;
    Geometry { mount: 7, alignment_bytes, entries: 8, extents: 64, device_bytes: 64 * MIB }
}

fn extent(logical: u64, device: u64, len: u64, is_writable: bool) -> Extent {
    Extent { logical, device, len, is_writable }
}

fn file(extents: &[Extent]) -> FileLease<'_> {
    FileLease {
        may_read: true,
        may_write: true,
        may_sync: true,
        size_bytes: extents.last().map_or(0, |e| e.logical + e.len),
        unsealed_last: 0,
        data_lsn: 0,
        sharing: 0,
        extents,
        tail: None,
        cache_file: 0,
    }
}

struct Stage {
    publisher: Publisher<Memory>,
    reader: Reader<Memory>,
    client: ClientSlots<Memory>,
    slots: Slots<Memory>,
    slot: usize,
}

fn stage() -> Stage {
    let control = memory(geometry().words());
    let publisher = Publisher::create(control.clone(), geometry()).unwrap();
    publisher.control().set_state(State::Serving);
    let shared = memory(slots_words(4, 8));
    let client = ClientSlots::create(shared.clone(), 4, 8, CLIENT).unwrap();
    let slots = Slots::open(shared).unwrap();
    let slot = slots.claim(100, |_| false).unwrap();
    Stage { publisher, reader: Reader::open(control).unwrap(), client, slots, slot }
}

impl Stage {
    fn publish(&mut self, inode: u64, file: &FileLease) -> EntryRef {
        let of = self.publisher.publish(inode, file).unwrap();
        self.publisher.control().restore(of);
        of
    }

    fn change(&mut self, of: EntryRef, file: &FileLease) {
        self.publisher.control().revoke(of);
        self.publisher.rewrite(of, file);
        self.publisher.control().restore(of);
    }

    fn io(&self, inode: u64, direction: Direction, offset: u64, len: u64) -> Result<u64, Fallback> {
        let lease = self.reader.find(inode).ok_or(Fallback::Other)?;
        let io = Io { direction, offset, len };
        let permit = self.reader.begin_io(&self.slots, self.slot, lease, io)?;
        assert!(self.client.holder_of(lease.entry).is_some());
        self.slots.leave(self.slot);
        Ok(permit.device_offset)
    }

    fn read(&self, inode: u64, offset: u64, len: u64) -> Result<u64, Fallback> {
        self.io(inode, Direction::Read, offset, len)
    }

    fn write(&self, inode: u64, offset: u64, len: u64) -> Result<u64, Fallback> {
        self.io(inode, Direction::Write, offset, len)
    }
}

#[test]
fn a_range_is_where_its_extent_says() {
    let mut stage = stage();
    let extents = [extent(0, MIB, 8192, true), extent(16384, 2 * MIB, 4096, false)];
    stage.publish(5, &file(&extents));
    assert_eq!(stage.read(5, 0, 8192), Ok(MIB));
    assert_eq!(stage.write(5, 4096, 512), Ok(MIB + 4096));
    assert_eq!(stage.read(5, 16384, 4096), Ok(2 * MIB));
    assert_eq!(stage.write(5, 16384, 4096), Err(Fallback::Forbidden));
    assert_eq!(stage.read(5, 4096, 8192), Err(Fallback::Unmapped));
    assert_eq!(stage.read(5, 8192, 512), Err(Fallback::Unmapped));
    assert_eq!(stage.read(5, 16384, 8192), Err(Fallback::BeyondSize));
    assert_eq!(stage.read(5, u64::MAX - 511, 512), Err(Fallback::BeyondSize));
    assert_eq!(stage.read(5, 100, 512), Err(Fallback::Unaligned));
    assert_eq!(stage.read(5, 0, 100), Err(Fallback::Unaligned));
    assert_eq!(stage.read(5, 0, 0), Err(Fallback::Unaligned));
    assert_eq!(stage.read(6, 0, 512), Err(Fallback::Other));
    let counters = stage.slots.counters();
    assert_eq!(counters.fallbacks[Fallback::Unaligned as usize], 3);
    assert_eq!(counters, stage.client.counters());
}

#[test]
fn i_lse_2_a_revoked_file_goes_to_the_mount() {
    let mut stage = stage();
    let of = stage.publish(5, &file(&[extent(0, MIB, 8192, true)]));
    let lease = stage.reader.find(5).unwrap();
    stage.publisher.control().revoke(of);
    let io = Io { direction: Direction::Read, offset: 0, len: 512 };
    let asked = stage.reader.begin_io(&stage.slots, stage.slot, lease, io);
    assert_eq!(asked, Err(Fallback::Revoked));
    assert_eq!(stage.client.holder_of(of.index), None);
    stage.publisher.rewrite(of, &file(&[extent(0, 3 * MIB, 8192, true)]));
    stage.publisher.control().restore(of);
    assert_eq!(stage.read(5, 0, 512), Ok(3 * MIB));
}

#[test]
#[should_panic(expected = "I-LSE-2")]
fn i_lse_2_an_entry_that_is_leased_is_not_rewritten() {
    let mut stage = stage();
    let of = stage.publish(5, &file(&[]));
    stage.publisher.rewrite(of, &file(&[]));
}

#[test]
fn i_lse_3_an_entry_used_again_is_another() {
    let mut stage = stage();
    let of = stage.publish(5, &file(&[extent(0, MIB, 8192, true)]));
    let lease = stage.reader.find(5).unwrap();
    stage.publisher.control().revoke(of);
    stage.publisher.retract(of);
    let new = stage.publish(6, &file(&[extent(0, 2 * MIB, 8192, true)]));
    assert_eq!((new.index, stage.reader.find(5)), (of.index, None));
    let io = Io { direction: Direction::Read, offset: 0, len: 512 };
    let asked = stage.reader.begin_io(&stage.slots, stage.slot, lease, io);
    assert_eq!(asked, Err(Fallback::Revoked));
    assert_eq!(stage.read(6, 0, 512), Ok(2 * MIB));
}

#[test]
fn all_entries_are_found_through_any_order_of_retractions() {
    let mut stage = stage();
    let extents = [extent(0, MIB, 512, true)];
    for round in 0..50 {
        let inodes: Vec<u64> = (1..=8).map(|i| i * 64 * (round + 1)).collect();
        for &inode in &inodes {
            stage.publish(inode, &file(&extents));
        }
        assert_eq!(stage.publisher.publish(1, &file(&[])), Err(PublishError::Full));
        for i in 0..8 {
            let gone = inodes[(i * 3 + round as usize) % 8];
            let of = stage.publisher.find(gone).unwrap();
            stage.publisher.control().revoke(of);
            stage.publisher.retract(of);
            let left = inodes.iter().filter(|&&inode| stage.reader.find(inode).is_some());
            assert_eq!(left.count(), 7 - i);
        }
    }
}

#[test]
fn writes_wait_for_seals_and_checkpoints() {
    let mut stage = stage();
    let extents = [extent(0, MIB, 8192, true)];
    let of = stage.publish(5, &FileLease { unsealed_last: 9, data_lsn: 9, ..file(&extents) });
    assert_eq!(stage.write(5, 0, 512), Err(Fallback::Unsealed));
    assert_eq!(stage.read(5, 0, 512), Ok(MIB));
    stage.publisher.control().set_sealed(9);
    assert_eq!(stage.write(5, 0, 512), Ok(MIB));

    let sharing = stage.publisher.control().change_sharing();
    assert_eq!(stage.write(5, 0, 512), Err(Fallback::Shared));
    assert_eq!(stage.read(5, 0, 512), Ok(MIB));
    stage.change(of, &FileLease { sharing, ..file(&extents) });
    assert_eq!(stage.write(5, 0, 512), Ok(MIB));

    for (state, read, write) in [
        (State::ReadOnly, Ok(MIB), Err(Fallback::State)),
        (State::Stopped, Err(Fallback::State), Err(Fallback::State)),
    ] {
        stage.publisher.control().set_state(state);
        assert_eq!((stage.read(5, 0, 512), stage.write(5, 0, 512)), (read, write));
    }
}

/// I-LSE-5: a client with the right to odd writes has all writes of the file; the right changes
/// while the file is revoked, and ends with the entry.
#[test]
fn i_lse_5_the_right_to_odd_writes_is_one_clients_alone() {
    let mut stage = stage();
    let extents = [extent(0, MIB, 8192, true)];
    let of = stage.publish(5, &file(&extents));
    let give = |stage: &Stage, client| {
        stage.publisher.control().revoke(of);
        stage.publisher.control().set_odd_owner(of, client);
        stage.publisher.control().restore(of);
    };
    assert_eq!(stage.write(5, 100, 24), Err(Fallback::Unaligned));
    give(&stage, CLIENT);
    assert_eq!(stage.write(5, 100, 24), Ok(MIB));
    assert_eq!(stage.write(5, 1000, 100), Ok(MIB + 512));
    assert_eq!(stage.write(5, 4096, 512), Ok(MIB + 4096));
    assert_eq!(stage.write(5, 8100, 100), Err(Fallback::BeyondSize));
    assert_eq!(stage.read(5, 100, 24), Err(Fallback::Unaligned));
    let lease = stage.reader.find(5).unwrap();
    let io = Io { direction: Direction::Write, offset: 1000, len: 100 };
    let permit = stage.reader.begin_io(&stage.slots, stage.slot, lease, io).unwrap();
    stage.slots.leave(stage.slot);
    assert!(permit.is_odd_owner && permit.room == 8192 - 512);
    give(&stage, CLIENT + 1);
    let refused = (Err(Fallback::Unaligned), Err(Fallback::Forbidden));
    assert_eq!((stage.write(5, 100, 24), stage.write(5, 4096, 512)), refused);
    assert_eq!(stage.read(5, 4096, 512), Ok(MIB + 4096), "reading goes on");
    plant(Some(Mistake::OddOwnerIgnored));
    assert_eq!(stage.write(5, 4096, 512), Ok(MIB + 4096), "the mistake is one that this test sees");
    plant(None);
    give(&stage, CLIENT);
    stage.publisher.control().revoke(of);
    stage.publisher.retract(of);
    stage.publish(6, &file(&extents));
    assert_eq!(stage.write(6, 100, 24), Err(Fallback::Unaligned), "another file");
}

#[test]
#[should_panic(expected = "I-LSE-5")]
fn i_lse_5_the_right_changes_only_while_nothing_is_leased() {
    let mut stage = stage();
    let of = stage.publish(5, &file(&[extent(0, MIB, 8192, true)]));
    stage.publisher.control().set_odd_owner(of, CLIENT);
}

#[test]
fn a_sync_is_a_flush_once_the_log_is_durable() {
    let mut stage = stage();
    let of = stage.publish(5, &FileLease { data_lsn: 4, ..file(&[]) });
    let lease = stage.reader.find(5).unwrap();
    let sync = |stage: &Stage| {
        let asked = stage.reader.begin_sync(&stage.slots, stage.slot, lease);
        stage.slots.leave(stage.slot);
        asked
    };
    assert_eq!(sync(&stage), Err(Fallback::Unsynced));
    stage.publisher.control().set_durable(4);
    assert_eq!(sync(&stage), Ok(()));
    stage.publisher.control().set_data_lsn(of, 5);
    assert_eq!(sync(&stage), Err(Fallback::Unsynced));
    stage.change(of, &FileLease { may_sync: false, ..file(&[]) });
    assert_eq!(sync(&stage), Err(Fallback::Forbidden));
}

#[test]
fn maps_without_room_are_published_in_part() {
    let mut stage = stage();
    let extents: Vec<Extent> =
        (0..100).map(|i| extent(i * 8192, MIB + i * 8192, 512, true)).collect();
    let of = stage.publish(5, &file(&extents));
    stage.publisher.control().revoke(of);
    assert_eq!(stage.publisher.rewrite(of, &file(&extents)), Coverage::Part { extents: 64 });
    stage.publisher.control().restore(of);
    assert_eq!(stage.read(5, 63 * 8192, 512), Ok(MIB + 63 * 8192));
    assert_eq!(stage.read(5, 64 * 8192, 512), Err(Fallback::Unmapped));
    stage.change(of, &file(&extents[..10]));
    assert_eq!(stage.read(5, 9 * 8192, 512), Ok(MIB + 9 * 8192));
}

#[test]
fn touches_are_seen_once() {
    let stage = stage();
    assert!(!stage.client.take_touched(3));
    stage.slots.touch(3);
    stage.slots.touch(3);
    stage.slots.touch(99);
    assert!(stage.client.take_touched(3) && !stage.client.take_touched(3));
    assert!(!stage.client.take_touched(99));
}

#[test]
fn slots_of_threads_that_are_gone_are_taken_again() {
    let stage = stage();
    let taken: Vec<_> = (101..105).map(|thread| stage.slots.claim(thread, |_| false)).collect();
    assert_eq!(taken, [Some(1), Some(2), Some(3), None]);
    assert_eq!(stage.slots.claim(105, |thread| thread == 102), Some(2));
    assert_eq!(stage.client.used(), 4);
}

/// Numbers that are in no order.
fn scrambled(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = state ^ (state >> 29);
        // Small numbers and numbers near a bound find more than large ones.
        match number >> 61 {
            0 => number & 0xff,
            1 => u64::MAX - (number & 0xff),
            2 => number & 0xffff,
            _ => number,
        }
    }
}

#[test]
fn rubbish_in_the_memories_is_never_believed() {
    for seed in 0..20_000 {
        let mut number = scrambled(seed);
        let mut stage = stage();
        stage.publish(5, &file(&[extent(0, MIB, 8192, true)]));
        let lease = stage.reader.find(5).unwrap();
        let control = memory(geometry().words());
        for (at, word) in control.iter().enumerate() {
            word.store(stage.reader_word(at), Ordering::Relaxed);
        }
        for _ in 0..1 + seed % 40 {
            let at = number() as usize % control.len();
            control[at].store(number(), Ordering::Relaxed);
        }
        let Ok(reader) = Reader::open(control) else { continue };
        let bounds = *reader.geometry();
        reader.find(number());
        for lease in [lease, Lease { entry: number() as u32, generation: lease.generation }] {
            let io = Io { direction: Direction::Write, offset: number() & !511, len: 512 };
            if let Ok(permit) = reader.begin_io(&stage.slots, stage.slot, lease, io) {
                assert!(permit.device_offset + 512 <= bounds.device_bytes);
            }
            let _ = reader.begin_sync(&stage.slots, stage.slot, lease);
        }
        let rubbish = memory(slots_words(4, 8));
        rubbish.iter().for_each(|word| word.store(number(), Ordering::Relaxed));
        assert!(Slots::open(rubbish.clone()).is_err());
        let client = ClientSlots::create(rubbish.clone(), 4, 8, CLIENT).unwrap();
        for word in &rubbish[5..] {
            word.store(number(), Ordering::Relaxed);
        }
        assert!(client.used() <= 4);
        client.holder(|_| false);
        client.take_touched(number() as u32);
        client.counters();
    }
}

impl Stage {
    fn reader_word(&self, at: usize) -> u64 {
        self.publisher.control().word(at)
    }
}

#[test]
fn headers_that_do_not_fit_are_refused() {
    let control = memory(geometry().words());
    assert_eq!(Reader::open(control.clone()).err(), Some(LayoutError::Damaged));
    Publisher::create(control.clone(), geometry()).unwrap();
    assert!(Reader::open(control.clone()).is_ok());
    let short: Memory = control[..control.len() - 1]
        .iter()
        .map(|word| AtomicU64::new(word.load(Ordering::Relaxed)))
        .collect();
    assert_eq!(Reader::open(short.clone()).err(), Some(LayoutError::Damaged));
    let made = Publisher::create(short, geometry());
    assert_eq!(made.err(), Some(LayoutError::TooSmall));
    control[1].store(99, Ordering::Relaxed);
    assert_eq!(Reader::open(control).err(), Some(LayoutError::Version));
}

#[test]
fn messages_survive_the_wire() {
    assert_eq!((LEASE_IOCTL, ODD_IOCTL), (0x8100_BE01, 0xC010_BE02));
    for name in [&b"/run/bedplate/a.socket"[..], b"\0bedplate-lease-7"] {
        let socket = SocketName::new(name).unwrap();
        assert_eq!(socket.as_bytes(), name);
        let place = Place { token: [9; 16], socket };
        let offer = Offer { mount: 3, inode: 4, leased: Ok(place) };
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
    }
    for bad in [&b""[..], b"/a\0b", &[b'a'; 108], &[0; 109]] {
        assert_eq!(SocketName::new(bad), None);
    }
    for reason in Reason::ALL {
        let offer = Offer { mount: 3, inode: 4, leased: Err(reason) };
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        let answer = Answer::refused(reason);
        assert_eq!(Answer::decode(&answer.encode()), answer);
    }
    for request in [
        Request::Attach { token: [1; 16] },
        Request::Publish { token: [2; 16] },
        Request::Close { inode: 3 },
        Request::Suspend { inode: 4 },
        Request::FlushFailed { errno: 5 },
        Request::Requests,
    ] {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
        assert_eq!(Request::decode(&request.encode()[..63]), Err(Reason::Request));
    }
    let lease = Some(Lease { entry: 0, generation: 8 });
    let answer = Answer { lease, is_read_only: true, ..Answer::DONE };
    assert_eq!(Answer::decode(&answer.encode()), answer);
}

#[test]
fn messages_of_strangers_are_refused() {
    assert_eq!(Offer::decode(&[0; 256]), None);
    let mut newer = Offer { mount: 3, inode: 4, leased: Err(Reason::Off) }.encode();
    newer[8] = LAYOUT_VERSION as u8 + 1;
    assert_eq!(Offer::decode(&newer).map(|offer| offer.leased), Some(Err(Reason::Version)));
    assert_eq!(Request::decode(&[]), Err(Reason::Request));
    assert_eq!(Request::decode(&[0; 64]), Err(Reason::Version));
    let mut unknown = Request::Close { inode: 1 }.encode();
    unknown[4] = 77;
    assert_eq!(Request::decode(&unknown), Err(Reason::Request));
    assert_eq!(Answer::decode(&[0; 64]).done, Err(Reason::Version));
    let odd = OddRequest { client: 9 };
    assert_eq!(OddRequest::decode(&odd.encode()), Ok(odd));
    assert_eq!(OddRequest::decode(&odd.encode()[..15]), Err(Reason::Request));
    assert_eq!(OddRequest::decode(&[0; 16]), Err(Reason::Version));
    assert!(OddRequest::is_given(&OddRequest::answer(Ok(()))) && !OddRequest::is_given(&[0; 16]));
    assert!(!OddRequest::is_given(&OddRequest::answer(Err(Reason::Mode))));
    let mut number = scrambled(1);
    for _ in 0..10_000 {
        let bytes: [u8; 256] = std::array::from_fn(|_| number() as u8);
        Offer::decode(&bytes);
        let _ = Request::decode(&bytes[..(number() % 257) as usize]);
        Answer::decode(&bytes[..64]);
    }
}
