//! Power cuts between any two operations of any two members, in every layout; then import,
//! resynchronise, and look at every copy.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceQueue, MemoryDevice, QueueOptions, Request, RequestKind,
    Segment, SimulatedDevice, SimulatedOptions,
};
use bedplate_volume::{Group, ImportOptions, Label, Layout, MemberState, Role, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Acknowledged, Clock, Fixture, allowed, quiet, stamp_of, stamped, ticks};

const SHAPES: [(Shape, usize); 5] = [
    (Shape::Concat, 2),
    (Shape::Stripe, 3),
    (Shape::Mirror, 3),
    (Shape::StripeMirror, 4),
    (Shape::MirrorStripe, 4),
];

fn write_queued(queue: &mut dyn DeviceQueue, offset: u64, buf: AlignedBuf) {
    let first = Segment { offset, len: buf.len() as u32 };
    queue
        .push(Request {
            token: 0,
            kind: RequestKind::Write,
            buf: Some(buf),
            first,
            rest: Vec::new(),
        })
        .unwrap();
    let mut done = Vec::new();
    queue.complete(1, &mut done).unwrap();
    done.remove(0).result.unwrap();
}

/// Writes and flushes; numbers writes from `steps.start` on.
fn run(
    fixture: &Fixture,
    device: &dyn BlockDevice,
    history: &mut Vec<Acknowledged>,
    seed: u64,
    steps: std::ops::Range<u64>,
) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    for step in steps {
        let begun = ticks(fixture);
        let write = (step % 3 != 2).then(|| {
            let len = 512 * rng.random_range(1..=48_usize);
            let offset =
                rng.random_range(0..=(device.size_bytes().min(256 << 10) - len as u64) / 512) * 512;
            if step % 2 == 0 {
                device.write_at(&stamped(offset, len, step + 1), offset).unwrap();
            } else {
                write_queued(&mut *queue, offset, stamped(offset, len, step + 1));
            }
            (offset, len, step + 1)
        });
        if write.is_none() {
            device.flush().unwrap();
        }
        history.push(Acknowledged { write, begun, ended: ticks(fixture) });
    }
}

/// Opens what a cut left and checks every sector: allowed, whole, and the same in every copy.
fn judge(members: &[Arc<MemoryDevice>], history: &[Acknowledged], cut: usize, context: &str) {
    let devices: Vec<Arc<dyn BlockDevice>> =
        members.iter().map(|member| Arc::clone(member) as _).collect();
    let group = Group::import(&devices, &ImportOptions { degraded: true, ..quiet() })
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let device = group.volume(Role::Data).unwrap();
    let mut seen = AlignedBuf::zeroed(256 << 10);
    device.read_at(&mut seen, 0).unwrap();
    for (at, sector) in seen.chunks(512).enumerate() {
        let address = 512 * at as u64;
        let (number, allowed) = (stamp_of(sector, address), allowed(history, address, cut));
        assert!(
            allowed.contains(&number),
            "{context}: sector {address} shows write {number}, allowed are {allowed:?}"
        );
    }
    group.sync().unwrap();
    let config = group.config();
    agree(&config.volumes[0].layout, members, &seen, context);
}

fn agree(layout: &Layout, members: &[Arc<MemoryDevice>], seen: &[u8], context: &str) {
    let mut at = 0;
    while at < seen.len() as u64 {
        let run = layout.locate(at);
        let len = run.len.min(seen.len() as u64 - at) as usize;
        for copy in run.copies() {
            let mut theirs = AlignedBuf::zeroed(len);
            members[usize::from(copy.member)].read_at(&mut theirs, copy.offset).unwrap();
            assert!(
                theirs[..] == seen[at as usize..][..len],
                "{context}: member {} differs at {at}",
                copy.member
            );
        }
        at += len as u64;
    }
}

/// S-61, I-DRL-1, I-VOL-1
#[test]
fn a_power_cut_after_every_operation_of_every_member_loses_nothing_and_leaves_equal_copies() {
    let mut states = 0;
    for (shape, members) in SHAPES {
        let fixture = Fixture::new(members, 31);
        fixture.create(shape, 2, 0);
        let group = fixture.import();
        fixture.make_all_durable();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, &mut history, 5, 0..14);
        drop((device, group));
        for moment in fixture.moments() {
            let cut = moment.iter().sum();
            for seed in 0..6 {
                let context = format!("{shape:?}, cut at {moment:?}, choice {seed}");
                judge(&fixture.after_cut(&moment, seed), &history, cut, &context);
                states += 1;
            }
        }
    }
    println!("power cuts: {states} states tried, 0 violations");
}

/// S-61: of copies that a power cut left different one is chosen by the first read. It is the only
/// one from then on: on every member, and after another power cut that takes back whatever was not
/// flushed.
#[test]
fn s_61_what_was_read_after_a_power_cut_is_what_every_copy_keeps() {
    let (members, read_bytes) = (2, 256 << 10);
    let fixture = Fixture::new(members, 34);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    fixture.make_all_durable();
    run(&fixture, &*group.volume(Role::Data).unwrap(), &mut Vec::new(), 5, 0..8);
    let layout = group.config().volumes[0].layout.clone();
    drop(group);
    let mut different = 0;
    for moment in fixture.moments() {
        let images = fixture.after_cut(&moment, 3);
        let data = |image: &Arc<MemoryDevice>| {
            let mut bytes = AlignedBuf::zeroed(read_bytes);
            image.read_at(&mut bytes, layout.locate(0).copies()[0].offset).unwrap();
            bytes
        };
        different += u64::from(data(&images[0])[..] != data(&images[1])[..]);
        let over = |image: &Arc<MemoryDevice>| {
            SimulatedDevice::over(&image.snapshot(), &SimulatedOptions::default())
        };
        let again = Fixture {
            members: images.iter().map(over).collect(),
            clock: Clock::default(),
            lazy: false,
        };
        let group = again.import();
        let mut seen = AlignedBuf::zeroed(read_bytes);
        group.volume(Role::Data).unwrap().read_at(&mut seen, 0).unwrap();
        let now: Vec<usize> = again.members.iter().map(|member| member.operation_count()).collect();
        drop(group);
        let context = format!("cut at {moment:?}, read, cut again");
        agree(&layout, &again.after_cut(&now, 0), &seen, &context);
    }
    assert!(different > 2, "{different} cuts left different copies");
}

/// S-63, S-105, I-GRP-1, I-VOL-1: at every operation of every member.
#[test]
fn a_power_cut_while_a_member_leaves_and_a_spare_is_rebuilt_loses_nothing() {
    let (mut states, every) = (0, std::env::var_os("BEDPLATE_EVERY_CUT").is_some());
    for (shape, members) in
        [(Shape::Mirror, 3), (Shape::StripeMirror, 5), (Shape::MirrorStripe, 5), (Shape::Raid5, 4)]
    {
        let fixture = Fixture::new(members, 32);
        fixture.create(shape, 2, 1);
        let group = fixture.import();
        fixture.make_all_durable();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, &mut history, 6, 0..6);
        fixture.members[0].die();
        run(&fixture, &*device, &mut history, 7, 6..12);
        group.sync().unwrap();
        run(&fixture, &*device, &mut history, 8, 12..18);
        drop((device, group));
        for (at, moment) in fixture.moments().into_iter().enumerate() {
            let choices: &[u64] = if at % 2 == 0 { &[0, 1, 3, 4] } else { &[2, 5] };
            for seed in choices
                .iter()
                .copied()
                .filter(|choice| every || *choice == choices[at / 2 % choices.len()])
            {
                let context = format!("{shape:?}, cut at {moment:?}, choice {seed}");
                let cut = moment.iter().sum();
                let ways = if every { 0..2 } else { at / 8 % 2..at / 8 % 2 + 1 };
                survivors(&fixture.after_cut(&moment, seed), ways, &history, cut, &context);
                states += 1;
            }
        }
    }
    println!(
        "power cuts while a member leaves and a spare is rebuilt: {states} states tried, 0 \
         violations"
    );
}

/// Opens what a cut left: with the dead member back where the group still knows it, and without it.
fn survivors(
    members: &[Arc<MemoryDevice>],
    ways: std::ops::Range<usize>,
    history: &[Acknowledged],
    cut: usize,
    context: &str,
) {
    let contents: Vec<_> = members.iter().map(|member| member.snapshot()).collect();
    for without in ways {
        let members: Vec<_> = contents
            .iter()
            .map(|content| MemoryDevice::from_snapshot(content, MemoryDevice::GEOMETRY))
            .collect();
        let devices: Vec<Arc<dyn BlockDevice>> =
            members[without..].iter().map(|member| Arc::clone(member) as _).collect();
        // Once the others know that it is gone, they open without being told to do without it.
        let labels = devices.iter().filter_map(|device| Label::read(&**device).ok());
        let newest = labels.max_by_key(|label| label.config.event).unwrap().config;
        let gone = newest
            .members
            .iter()
            .find(|member| member.path == "member0")
            .is_none_or(|member| member.state == MemberState::Failed);
        let group = match Group::import(&devices, &ImportOptions { degraded: !gone, ..quiet() }) {
            Ok(group) => group,
            Err(error) if without == 0 && error.kind == bedplate_volume::ErrorKind::Outdated => {
                continue;
            }
            Err(error) => panic!("{context}, without {without}: {error}"),
        };
        let device = group.volume(Role::Data).unwrap();
        let check = |when: &str| {
            let mut seen = AlignedBuf::zeroed(256 << 10);
            device.read_at(&mut seen, 0).unwrap();
            for (at, sector) in seen.chunks(512).enumerate() {
                let address = 512 * at as u64;
                let (number, allowed) = (stamp_of(sector, address), allowed(history, address, cut));
                assert!(
                    allowed.contains(&number),
                    "{context}, {when}: sector {address} shows write {number}, allowed are \
                     {allowed:?}"
                );
            }
            seen
        };
        let before = check("at first");
        group.sync().unwrap();
        assert!(check("rebuilt")[..] == before[..], "{context}: the rebuild changed what was read");
        assert_eq!(
            group.config().members[0].state,
            MemberState::Active,
            "{context}, without {without}: the spare did not take over"
        );
        assert_eq!(
            group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap().differences,
            [],
            "{context}, without {without}"
        );
    }
}
