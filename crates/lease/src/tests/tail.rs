//! Growth: what a client may do behind the size of a file.

use super::*;
use crate::wire::{SYNC_IOCTL, TAIL_IOCTL, TailRequest};

/// A file of 8 KiB with a tail of 8 KiB, of which 4 KiB follow the file on the device.
fn grown(stage: &mut Stage, owner: u64) -> (EntryRef, Lease) {
    let extents = [extent(0, MIB, 12288, true), extent(12288, 2 * MIB, 4096, true)];
    let tail = Some(Tail { owner, end_bytes: 16384, number: 3 });
    let lent = FileLease { size_bytes: 8192, unsealed_last: 9, tail, ..file(&extents) };
    let of = stage.publisher.publish(5, &lent).unwrap();
    stage.client.set_filled(of.index, 8192);
    stage.publisher.control().restore(of);
    (of, stage.reader.find(5).unwrap())
}

impl Stage {
    /// As [`write`](Self::write), and tells that it is done.
    fn fill(&self, lease: Lease, offset: u64, len: u64) -> Result<u64, Fallback> {
        let io = Io { direction: Direction::Write, offset, len };
        let permit = self.reader.begin_growth(&self.slots, self.slot, lease, io, 0)?;
        self.slots.wrote(lease.entry, permit.fills_to);
        self.slots.leave(self.slot);
        Ok(permit.device_offset)
    }

    fn sync(&self, lease: Lease) -> Result<(), Fallback> {
        let asked = self.reader.begin_sync(&self.slots, self.slot, lease);
        self.slots.leave(self.slot);
        asked
    }

    fn lacks(&self, lease: Lease, offset: u64) -> bool {
        let io = Io { direction: Direction::Write, offset, len: 4096 };
        self.reader.lacks_tail(&self.slots, lease, io)
    }
}

/// I-LSE-9: the owner of a tail fills it in order, and reads and changes what it has filled.
#[test]
fn i_lse_9_a_tail_is_filled_in_order() {
    let mut stage = stage();
    let (of, lease) = grown(&mut stage, CLIENT);
    assert_eq!(stage.sync(lease), Ok(()), "nothing is filled");
    assert_eq!(stage.read(5, 8192, 512), Err(Fallback::BeyondSize), "nothing is there");
    assert_eq!(stage.fill(lease, 8704, 512), Err(Fallback::BeyondSize), "leaves a gap");
    assert_eq!(stage.fill(lease, 4096, 8192), Err(Fallback::Unsealed), "begins in the file");
    assert_eq!(stage.fill(lease, 8192, 4096), Ok(MIB + 8192));
    assert_eq!(stage.reader.own_end(&stage.slots, lease), Some(12288));
    assert_eq!(stage.client.filled(of.index), 12288);
    assert_eq!(stage.read(5, 4096, 8192), Ok(MIB + 4096));
    assert_eq!(stage.fill(lease, 8192, 512), Ok(MIB + 8192), "once more");
    assert_eq!(stage.client.filled(of.index), 12288);
    assert_eq!(stage.fill(lease, 12288, 24), Err(Fallback::BeyondSize), "part of a sector");
    assert_eq!(stage.fill(lease, 12288, 8192), Err(Fallback::BeyondSize), "passes the tail");
    assert_eq!(stage.fill(lease, 10240, 4096), Err(Fallback::Unmapped), "in two extents");
    assert_eq!(stage.fill(lease, 12288, 4096), Ok(2 * MIB));
    assert!(stage.lacks(lease, 16384) && !stage.lacks(lease, 8192));
    assert_eq!(stage.sync(lease), Err(Fallback::Unsynced), "the mount makes a record");
    plant(Some(Mistake::TailNotReported));
    assert_eq!(stage.sync(lease), Ok(()), "the mistake is one that this test sees");
    plant(None);
    assert_eq!(stage.fill(lease, 4096, 512), Err(Fallback::Unsealed));
    stage.publisher.control().set_sealed(9);
    assert_eq!(stage.fill(lease, 4096, 512), Ok(MIB + 4096));
}

/// I-LSE-9: to others the file ends where the daemon says, and a tail has what they cannot sync.
#[test]
fn i_lse_9_others_have_nothing_of_a_tail() {
    let mut stage = stage();
    let (of, lease) = grown(&mut stage, CLIENT + 1);
    assert_eq!(stage.fill(lease, 8192, 4096), Err(Fallback::BeyondSize));
    assert_eq!(stage.reader.own_end(&stage.slots, lease), None);
    assert!(!stage.lacks(lease, 8192), "it has an owner");
    assert_eq!(stage.sync(lease), Err(Fallback::Unsynced));
    let extents = [extent(0, MIB, 8192, true)];
    stage.change(of, &file(&extents));
    assert_eq!(stage.sync(lease), Ok(()));
    assert!(stage.lacks(lease, 8192) && !stage.lacks(lease, 4096));
    assert!(stage.lacks(lease, 12288), "it may have grown through the mount");
    stage.change(of, &FileLease { may_write: false, ..file(&extents) });
    assert!(!stage.lacks(lease, 8192));
}

impl Stage {
    /// Writes ahead of what is filled, and notes it.
    fn fill_ahead(&self, order: &Order<Memory>, lease: Lease, offset: u64) -> Option<Noted> {
        let io = Io { direction: Direction::Write, offset, len: 512 };
        let permit = self.reader.begin_growth(&self.slots, self.slot, lease, io, 2048).unwrap();
        assert!(permit.is_ahead && permit.tail.number == 3, "{permit:?}");
        let noted = order.note(permit.tail, &(offset..permit.fills_to));
        self.advance(order, lease, permit.tail);
        self.slots.leave(self.slot);
        noted
    }

    fn advance(&self, order: &Order<Memory>, lease: Lease, tail: TailName) -> bool {
        let filled = || self.reader.own_end(&self.slots, lease).unwrap();
        order.advance(tail, filled, |to| self.slots.wrote(lease.entry, to))
    }
}

/// I-LSE-11: writes that are on the device before those that lie before them are there with these.
#[test]
fn i_lse_11_writes_that_came_early_go_with_those_before_them() {
    let mut stage = stage();
    let (of, lease) = grown(&mut stage, CLIENT);
    let order = Order::new(memory(ORDER_WORDS));
    let second = stage.fill_ahead(&order, lease, 9216).unwrap();
    let first = stage.fill_ahead(&order, lease, 8704).unwrap();
    let far = stage.fill_ahead(&order, lease, 10240).unwrap();
    assert!(!order.is_filled(&first) && !order.is_filled(&second));
    assert_eq!(stage.client.filled(of.index), 8192);
    let io = |offset| Io { direction: Direction::Write, offset, len: 512 };
    let ask = |offset, ahead| {
        let asked = stage.reader.begin_growth(&stage.slots, stage.slot, lease, io(offset), ahead);
        stage.slots.leave(stage.slot);
        asked
    };
    assert_eq!(ask(10752, 2048), Err(Fallback::BeyondSize), "too far ahead");
    assert_eq!(ask(8704, 0), Err(Fallback::BeyondSize), "in order only");
    let permit = ask(8192, 2048).unwrap();
    assert!(!permit.is_ahead);
    stage.slots.wrote(lease.entry, permit.fills_to);
    assert!(stage.advance(&order, lease, permit.tail));
    assert_eq!(stage.client.filled(of.index), 9728);
    assert!(order.is_filled(&first) && order.is_filled(&second) && !order.is_filled(&far));
    assert!(order.end(first) && order.end(second));
    assert!(!order.end(far), "it is written once more");
    assert!(!stage.advance(&order, lease, permit.tail), "nothing waits");
    assert_eq!(stage.client.filled(of.index), 9728);
    assert!(!stage.reader.is_tail_over(&stage.slots, lease, permit.tail));
}

/// I-LSE-11: what was written into another tail is no part of this one.
#[test]
fn i_lse_11_what_waits_ends_with_its_tail() {
    let mut stage = stage();
    let (of, lease) = grown(&mut stage, CLIENT);
    let order = Order::new(memory(ORDER_WORDS));
    let noted = stage.fill_ahead(&order, lease, 8704).unwrap();
    let extents = [extent(0, MIB, 16384, true)];
    let tail = Some(Tail { owner: CLIENT, end_bytes: 16384, number: 4 });
    let old = TailName { mount: 7, number: 3 };
    stage.publisher.control().revoke(of);
    assert!(!stage.reader.is_tail_over(&stage.slots, lease, old), "it may come back");
    stage.client.set_filled(of.index, 8704);
    stage.publisher.rewrite(of, &FileLease { size_bytes: 8704, tail, ..file(&extents) });
    stage.publisher.control().restore(of);
    assert!(stage.reader.is_tail_over(&stage.slots, lease, old));
    let new = TailName { mount: 7, number: 4 };
    assert!(!stage.advance(&order, lease, new));
    assert_eq!(stage.client.filled(of.index), 8704);
    plant(Some(Mistake::OrderOfAnotherTail));
    assert!(stage.advance(&order, lease, new), "the mistake is one that this test sees");
    plant(None);
    assert!(order.end(noted));
}

#[test]
fn more_writes_than_there_are_places_are_not_noted() {
    let order = Order::new(memory(ORDER_WORDS));
    let tail = TailName { mount: 7, number: 3 };
    for _ in 0..3 {
        let noted: Vec<Noted> = (0..32).map(|i| order.note(tail, &(i..i + 1)).unwrap()).collect();
        assert_eq!(order.note(tail, &(40..41)), None);
        noted.into_iter().for_each(|noted| assert!(!order.end(noted)));
    }
}

#[test]
fn a_request_for_a_tail_survives_the_wire() {
    assert_eq!((TAIL_IOCTL, SYNC_IOCTL), (0xC020_BE03, 0xBE04));
    let asked = TailRequest { client: 9, offset: 7, len: 8192 };
    assert_eq!(TailRequest::decode(&asked.encode()), Ok(asked));
    assert_eq!(TailRequest::decode(&asked.encode()[..31]), Err(Reason::Request));
    assert_eq!(TailRequest::decode(&[0; 32]), Err(Reason::Version));
    let answered = |done| TailRequest::is_given(&TailRequest::answer(done));
    assert!(answered(Ok(())) && !answered(Err(Reason::Tail)) && !TailRequest::is_given(&[0; 32]));
}
