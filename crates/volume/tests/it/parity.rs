//! RAID-5: what a write costs, life without a member, and the write hole.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_volume::{ErrorKind, Group, ImportOptions, Layout, MemberState, Raid5, Role, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Fixture, MEMBER_BYTES, quiet, stamped};

const UNIT: u64 = 16 << 10;

pub fn raid5(group: &Group) -> Raid5 {
    match &group.config().volumes[0].layout {
        Layout::Raid5(raid5) => raid5.clone(),
        other => panic!("{other:?} is no RAID-5"),
    }
}

/// Asserts that in every row the units sum up to nothing.
pub fn assert_parity(raid5: &Raid5, members: &[Arc<dyn BlockDevice>], context: &str) {
    for row in 0..raid5.rows() {
        let mut sum = vec![0_u8; UNIT as usize];
        for column in raid5.columns() {
            let copy = column.locate(row * UNIT).copies()[0];
            let mut bytes = AlignedBuf::zeroed(UNIT as usize);
            members[usize::from(copy.member)].read_at(&mut bytes, copy.offset).unwrap();
            let words = sum.as_chunks_mut::<8>().0.iter_mut().zip(bytes.as_chunks::<8>().0);
            words.for_each(|(sum, word)| {
                *sum = (u64::from_ne_bytes(*sum) ^ u64::from_ne_bytes(*word)).to_ne_bytes();
            });
        }
        assert!(sum.iter().all(|byte| *byte == 0), "{context}: the parity of row {row} is wrong");
    }
}

/// Reads, writes and flushes of all members since the last call.
pub fn operations(group: &Group) -> (u64, u64, u64) {
    let sum = |of: &dyn Fn(&bedplate_volume::MemberStatistics) -> u64| {
        group.statistics().iter().flatten().map(of).sum()
    };
    let counts = (
        sum(&|m| m.reads.operations),
        sum(&|m| m.writes.operations),
        sum(&|m| m.flushes.operations),
    );
    group.reset_statistics();
    counts
}

/// The minimum is what the parity costs: min(k + 1, n - k) reads and k + 1 writes for k of n data
/// units. The log adds a write and a flush for each member that is written, and nothing where whole
/// rows are.
#[test]
fn a_write_costs_the_least_member_operations_and_the_log() {
    for members in [3_u64, 4, 5, 8] {
        let fixture = Fixture::new(members as usize, 41);
        fixture.create(Shape::Raid5, 2, 0);
        let group = fixture.import();
        group.sync().unwrap();
        let (device, data) = (group.volume(Role::Data).unwrap(), members - 1);
        device.write_at(&AlignedBuf::zeroed(512), 0).unwrap();
        device.flush().unwrap();
        operations(&group);
        for units in 1..data {
            // A row of its own for each, in the region that is dirty already.
            let len = (units * UNIT) as usize;
            device.write_at(&AlignedBuf::zeroed(len), 0).unwrap();
            let (reads, writes, flushes) = operations(&group);
            let least = ((units + 1).min(data - units), units + 1);
            assert_eq!(
                (reads, writes, flushes),
                (least.0, 2 * least.1, least.1),
                "{units} of {data} units"
            );
            println!(
                "raid5 on {members}: {units} of {data} units: {reads} reads (least {}), {} writes \
                 in place (least {}), {} writes and {flushes} flushes of the log",
                least.0,
                writes / 2,
                least.1,
                writes / 2
            );
        }
        device.write_at(&AlignedBuf::zeroed(4096), UNIT - 2048).unwrap();
        let (reads, writes, _) = operations(&group);
        assert!(
            reads <= 3 && writes == 6,
            "a write over the edge of a unit: {reads} reads, {writes} writes"
        );
        // Rows that no record names any more.
        let rows = 4 * data * UNIT;
        device.write_at(&AlignedBuf::zeroed(rows as usize), data * UNIT).unwrap();
        let (reads, writes, flushes) = operations(&group);
        let marks = if rows + data * UNIT > super::fixture::REGION_BYTES { flushes } else { 0 };
        assert_eq!((reads, writes, flushes - marks), (0, members, 0), "whole rows, four at once");
        println!(
            "raid5 on {members}: four whole rows: {reads} reads, {writes} writes, {flushes} \
             flushes (least 0, {members}, 0)"
        );
    }
}

fn import(members: &[Arc<dyn BlockDevice>]) -> bedplate_volume::Result<Group> {
    Group::import(members, &ImportOptions { degraded: true, ..quiet() })
}

pub struct Model {
    rng: Xoshiro256PlusPlus,
    pub bytes: Vec<u8>,
}

impl Model {
    pub fn new(device: &dyn BlockDevice) -> Self {
        Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(3),
            bytes: vec![0; device.size_bytes() as usize],
        }
    }

    fn write(&mut self, device: &dyn BlockDevice, times: usize) {
        for _ in 0..times {
            let len = 512 * self.rng.random_range(1..=200_usize);
            let at = 512 * self.rng.random_range(0..=(self.bytes.len() - len) / 512);
            let mut buf = AlignedBuf::zeroed(len);
            buf.chunks_mut(8)
                .for_each(|word| word.copy_from_slice(&self.rng.random::<u64>().to_le_bytes()));
            device.write_at(&buf, at as u64).unwrap();
            self.bytes[at..at + len].copy_from_slice(&buf);
        }
    }

    pub fn check(&self, device: &dyn BlockDevice, context: &str) {
        let mut all = AlignedBuf::zeroed(self.bytes.len());
        device.read_at(&mut all, 0).unwrap();
        assert!(all[..] == self.bytes[..], "{context}");
    }
}

#[test]
fn whichever_member_dies_reads_and_writes_go_on_and_a_spare_takes_its_place() {
    for dead in 0..4 {
        let fixture = Fixture::new(5, 43 + dead as u64);
        fixture.create(Shape::Raid5, 2, 1);
        let group = fixture.import();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        let mut model = Model::new(&*device);
        model.write(&*device, 40);
        fixture.members[dead].die();
        model.write(&*device, 40);
        model.check(&*device, "without a member");
        assert_eq!(group.config().members[dead].state, MemberState::Failed);
        device.write_zeroes(4096, 100 << 10).unwrap();
        model.bytes[4096..4096 + (100 << 10)].fill(0);
        group.sync().unwrap();
        assert_eq!(
            group.config().members[dead].state,
            MemberState::Active,
            "the spare has its place"
        );
        model.write(&*device, 10);
        model.check(&*device, "with the spare");
        assert_eq!(group.progress().pending_bytes, 0);
        drop((device, group));
        let devices: Vec<Arc<dyn BlockDevice>> =
            (0..5).filter(|at| *at != dead).map(|at| fixture.device(at)).collect();
        let group = import(&devices).unwrap();
        model.check(&*group.volume(Role::Data).unwrap(), "opened again");
        // Every other member's content follows from the rest.
        let raid5 = raid5(&group);
        let names: Vec<String> =
            group.config().members.iter().map(|member| member.path.clone()).collect();
        drop(group);
        let by_place: Vec<Arc<dyn BlockDevice>> = names[..4]
            .iter()
            .map(|name| Arc::clone(devices.iter().find(|device| device.name() == name).unwrap()))
            .collect();
        assert_parity(&raid5, &by_place, "rebuilt");
    }
}

#[test]
fn a_member_that_missed_writes_comes_back_stale_and_catches_up_while_it_is_written() {
    let fixture = Fixture::new(4, 51);
    fixture.create(Shape::Raid5, 2, 0);
    let mut group = fixture.import();
    group.sync().unwrap();
    let mut model = Model::new(&*group.volume(Role::Data).unwrap());
    model.write(&*group.volume(Role::Data).unwrap(), 30);
    drop(group);
    group = import(&fixture.devices()[1..]).unwrap();
    model.write(&*group.volume(Role::Data).unwrap(), 10);
    model.check(&*group.volume(Role::Data).unwrap(), "without it");
    drop(group);
    group = fixture.import();
    assert_eq!(group.config().members[0].state, MemberState::Stale);
    let device = group.volume(Role::Data).unwrap();
    model.write(&*device, 25);
    model.check(&*device, "stale");
    group.sync().unwrap();
    assert_eq!(group.config().members[0].state, MemberState::Active);
    model.check(&*device, "caught up");
    assert_parity(&raid5(&group), &fixture.devices(), "caught up");
}

#[test]
fn two_dead_members_are_refused_clearly_and_nothing_is_written() {
    let fixture = Fixture::new(4, 52);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    let mut model = Model::new(&*device);
    model.write(&*device, 10);
    device.flush().unwrap();
    fixture.members[1].die();
    device.write_at(&AlignedBuf::from_slice(&model.bytes[..96 << 10]), 0).unwrap();
    fixture.members[2].die();
    let error = device.write_at(&AlignedBuf::zeroed(96 << 10), 0).unwrap_err();
    assert!(
        error.to_string().contains("member1") && error.to_string().contains("member2"),
        "{error}"
    );
    let before: Vec<usize> =
        fixture.members.iter().map(|member| member.operation_count()).collect();
    assert!(device.write_at(&AlignedBuf::zeroed(512), 0).is_err() && device.flush().is_err());
    assert_eq!(
        fixture.members.iter().map(|member| member.operation_count()).collect::<Vec<_>>(),
        before
    );
    drop((device, group));
    let contents: Vec<_> = (0..4)
        .map(|at| {
            fixture.members[at].crash_image(
                fixture.members[at].operation_count(),
                &bedplate_block::CrashChoice::KeepAll,
            )
        })
        .collect();
    let two: Vec<Arc<dyn BlockDevice>> =
        [0, 3].map(|at: usize| Arc::clone(&contents[at]) as _).to_vec();
    let writes = || two.iter().map(|device| device.counters().writes).sum::<u64>();
    let before = writes();
    let error = import(&two).unwrap_err();
    assert_eq!((error.kind, writes()), (ErrorKind::Broken, before));
    assert!(error.message.contains("nothing was written"), "{error}");
}

#[test]
fn a_scrub_finds_rows_that_do_not_agree_and_makes_unreadable_units_from_the_others() {
    let fixture = Fixture::new(4, 53);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    let mut model = Model::new(&*device);
    model.write(&*device, 20);
    let scrub = |repair| group.scrub(repair, &bedplate_volume::Undecided, &mut |_| ()).unwrap();
    let clean = scrub(false);
    assert_eq!((clean.differences.len(), clean.compared_bytes), (0, device.size_bytes()));
    // A bit turned on the member that holds the second unit of the first row.
    fixture.members[1].decay((4 << 20) + 700, 4);
    let found = scrub(true);
    assert_eq!(
        (
            found.differences.len(),
            found.differences[0].range.clone(),
            found.differences[0].repaired
        ),
        (1, 0..3 * UNIT, false)
    );
    fixture.members[1].decay((4 << 20) + 700, 4);
    fixture.members[2].inject(
        bedplate_block::FaultRule::new(
            bedplate_block::Fault::Read(bedplate_block::ReadFault::Fail),
            bedplate_block::Trigger::Next(1),
        )
        .within(4 << 20..5 << 20),
    );
    let found = scrub(true);
    assert!(
        found.differences.len() == 1
            && found.differences[0].unreadable == [2]
            && found.differences[0].repaired,
        "{found:?}"
    );
    assert_eq!(found.differences[0].wrong, Some(2));
    assert!(scrub(false).differences.is_empty());
    model.check(&*device, "scrubbed");
}

/// A new group takes devices as they are.
#[test]
fn what_the_members_held_before_does_no_harm() {
    let members: Vec<Arc<dyn BlockDevice>> = (0..3_u8)
        .map(|n| {
            let member = MemoryDevice::new(MEMBER_BYTES);
            let junk: Vec<u8> = (0..1 << 20)
                .map(|at: usize| (at * 7 + usize::from(n) * 31 + at / 509) as u8)
                .collect();
            member.write_at(&AlignedBuf::from_slice(&junk), 4 << 20).unwrap();
            member as _
        })
        .collect();
    bedplate_volume::create(&super::fixture::new_group(
        Shape::Raid5,
        2,
        members.clone(),
        Vec::new(),
    ))
    .unwrap();
    let group = Group::import(&members, &quiet()).unwrap();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(8192, 512, 1), 8192).unwrap();
    group.sync().unwrap();
    drop((device, group));
    let raid5 = Group::import(&members, &quiet()).map(|group| raid5(&group)).unwrap();
    assert_parity(&raid5, &members, "junk");
    for lost in 0..3 {
        let left: Vec<_> =
            (0..3).filter(|at| *at != lost).map(|at| Arc::clone(&members[at])).collect();
        let group =
            Group::import(&left, &ImportOptions { read_only: true, degraded: true, ..quiet() })
                .unwrap();
        let mut back = AlignedBuf::zeroed(512);
        group.volume(Role::Data).unwrap().read_at(&mut back, 8192).unwrap();
        assert_eq!(super::fixture::stamp_of(&back, 8192), 1);
    }
}
