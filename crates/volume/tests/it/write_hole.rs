//! The write hole: power cuts between any two operations of any two members of a RAID-5, with and
//! without the loss of a member.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, MemoryDevice, QueueOptions, ReadFault, Request,
    RequestKind, Segment, SimulatedDevice, SimulatedOptions, Trigger,
};
use bedplate_volume::{ErrorKind, Group, ImportOptions, Label, Layout, Role, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Acknowledged, Clock, Fixture, allowed, quiet, stamp_of, stamped, ticks};
use super::parity::assert_parity;

const UNIT: usize = 16 << 10;
/// How much of the volume the workload writes: small, so that writes meet.
const SPAN: u64 = 192 << 10;

/// What is written: parts of rows, or whole ones among them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Parts,
    Mixed,
}

/// Writes and flushes; one step in four is a flush.
fn run(
    fixture: &Fixture,
    device: &dyn BlockDevice,
    members: usize,
    history: &mut Vec<Acknowledged>,
    writes: Writes,
    steps: std::ops::Range<u64>,
) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(steps.start + 77);
    let row = (members - 1) * UNIT;
    for step in steps {
        let begun = ticks(fixture);
        let write = (step % 4 != 3).then(|| {
            let (offset, len) = if writes == Writes::Mixed && step % 4 == 1 {
                (rng.random_range(0..SPAN / row as u64) * row as u64, row)
            } else {
                let len = 512 * rng.random_range(1..row / 512 / 2);
                (rng.random_range(0..=(SPAN - len as u64) / 512) * 512, len)
            };
            device.write_at(&stamped(offset, len, step + 1), offset).unwrap();
            (offset, len, step + 1)
        });
        if write.is_none() {
            device.flush().unwrap();
        }
        history.push(Acknowledged { write, begun, ended: ticks(fixture) });
    }
}

/// Writes through a queue, three rounds of writes that are in the air together and do not meet, a
/// flush after each but the last.
fn run_queued(fixture: &Fixture, device: &dyn BlockDevice, history: &mut Vec<Acknowledged>) {
    let mut queue =
        device.queue(&QueueOptions { depth_max: 16, ..QueueOptions::default() }).unwrap();
    for round in 0..3_u64 {
        let begun = ticks(fixture);
        for n in 0..8 {
            // Two in a row, so that rows are wanted by more than one, and submitted two at a time,
            // so that several flights are in the air.
            let (offset, len) = (n * (SPAN / 8) + 512 * (round + n), 512 * (5 + 3 * n as usize));
            let first = Segment { offset, len: len as u32 };
            let buf = Some(stamped(offset, len, round * 8 + n + 1));
            queue
                .push(Request { token: n, kind: RequestKind::Write, buf, first, rest: Vec::new() })
                .unwrap();
            if n % 2 == 1 {
                queue.submit().unwrap();
            }
        }
        let mut done = Vec::new();
        while done.len() < 8 {
            let before = done.len();
            queue.complete(1, &mut done).unwrap();
            for completion in &mut done[before..] {
                completion.result.clone().unwrap();
                let n = completion.token;
                let write = Some((
                    n * (SPAN / 8) + 512 * (round + n),
                    512 * (5 + 3 * n as usize),
                    round * 8 + n + 1,
                ));
                history.push(Acknowledged { write, begun, ended: ticks(fixture) });
            }
        }
        if round < 2 {
            let begun = ticks(fixture);
            device.flush().unwrap();
            history.push(Acknowledged { write: None, begun, ended: ticks(fixture) });
        }
    }
}

/// What is known of a cut.
struct Cut<'a> {
    history: &'a [Acknowledged],
    at: usize,
    /// Whether a member is lost in the very moment of the cut: then the lost member's part of whole
    /// rows that were not flushed is open.
    lost_now: bool,
    context: String,
}

impl Cut<'_> {
    fn is_open(&self, address: u64, row: usize) -> bool {
        let covered = self
            .history
            .iter()
            .filter(|entry| entry.write.is_none() && entry.ended <= self.at)
            .map(|entry| entry.begun)
            .max()
            .unwrap_or(0);
        self.lost_now
            && self.history.iter().any(|entry| {
                entry.write.is_some_and(|(offset, len, _)| {
                    len >= row
                        && (offset..offset + len as u64).contains(&address)
                        && entry.ended > covered
                        && entry.begun <= self.at
                })
            })
    }

    /// S-109: returns what a read-only import of the group sees.
    fn look(&self, members: &[Arc<dyn BlockDevice>]) -> AlignedBuf {
        let group = Group::import(members, &looking());
        let group = group.unwrap_or_else(|error| panic!("{}, to look at: {error}", self.context));
        let mut seen = AlignedBuf::zeroed(SPAN as usize);
        group.volume(Role::Data).unwrap().read_at(&mut seen, 0).unwrap();
        seen
    }

    /// Opens what is left, and checks that every sector is whole and shows what it may; again when
    /// everything was made to agree.
    fn judge(&self, members: &[Arc<dyn BlockDevice>], row: usize) {
        let looked = self.look(members);
        let group = Group::import(members, &ImportOptions { degraded: true, ..quiet() });
        let group = group.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        let device = group.volume(Role::Data).unwrap();
        let look = |when: &str| {
            let mut seen = AlignedBuf::zeroed(SPAN as usize);
            device.read_at(&mut seen, 0).unwrap();
            for (at, sector) in
                seen.chunks(512).enumerate().filter(|(at, _)| !self.is_open(512 * *at as u64, row))
            {
                let address = 512 * at as u64;
                let possible = allowed(self.history, address, self.at);
                let torn = format!("{}, {when}: sector {address}", self.context);
                let number = std::panic::catch_unwind(|| stamp_of(sector, address))
                    .unwrap_or_else(|_| panic!("{torn} shows what was not written"));
                assert!(
                    possible.contains(&number),
                    "{torn} shows write {number}, possible are {possible:?}"
                );
            }
            seen
        };
        let before = look("at first");
        assert!(looked[..] == before[..], "{}: who only looked saw something else", self.context);
        group.sync().unwrap();
        assert!(
            look("when all agree")[..] == before[..],
            "{}: making all agree changed what was read",
            self.context
        );
        let config = group.config();
        let whole = config
            .members
            .iter()
            .take(config.volumes[0].layout.children().len())
            .all(|member| member.state == bedplate_volume::MemberState::Active);
        if let (Layout::Raid5(raid5), true, true) =
            (&config.volumes[0].layout, whole, members.len() == config.members.len())
        {
            let by_place: Vec<_> = config
                .members
                .iter()
                .map(|member| members.iter().find(|device| device.name() == member.path))
                .collect();
            if by_place.iter().take(raid5.columns().len()).all(Option::is_some) {
                let by_place: Vec<_> = by_place.into_iter().flatten().cloned().collect();
                assert_parity(raid5, &by_place, &self.context);
            }
        }
    }
}

fn looking() -> ImportOptions {
    ImportOptions { degraded: true, read_only: true, ..quiet() }
}

/// Names the members, which memory does not.
fn named(members: &[Arc<MemoryDevice>]) -> Fixture {
    let over = |member: &Arc<MemoryDevice>| {
        SimulatedDevice::over(&member.snapshot(), &SimulatedOptions::default())
    };
    Fixture { members: members.iter().map(over).collect(), clock: Clock::default(), lazy: false }
}

fn without(fixture: &Fixture, lost: Option<usize>) -> Vec<Arc<dyn BlockDevice>> {
    (0..fixture.members.len()).filter(|at| Some(*at) != lost).map(|at| fixture.device(at)).collect()
}

/// Nothing unflushed arrives, and one of the other choices in turn.
fn choices(ordinal: usize) -> [u64; 2] {
    [0, [1, 3, 4, 5][ordinal / 2 % 4]]
}

/// A group whose parity holds, and that was closed in order.
fn ready(members: usize, spares: usize, seed: u64) -> Fixture {
    let fixture = Fixture::new(members + spares, seed);
    fixture.create(Shape::Raid5, 2, spares);
    let group = fixture.import();
    group.sync().unwrap();
    drop(group);
    fixture.make_all_durable();
    fixture
}

/// I-PAR-1
#[test]
fn i_par_1_a_power_cut_alone_leaves_every_row_whole_and_its_parity_right() {
    let mut states = 0;
    for members in [3, 5] {
        let fixture = ready(members, 0, 61);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, members, &mut history, Writes::Mixed, 0..12);
        drop((device, group));
        for (ordinal, moment) in fixture.moments().into_iter().enumerate() {
            for choice in choices(ordinal) {
                let context = format!("{members} members, cut at {moment:?}, choice {choice}");
                let left = named(&fixture.after_cut(&moment, choice));
                Cut { history: &history, at: moment.iter().sum(), lost_now: false, context }
                    .judge(&left.devices(), (members - 1) * UNIT);
                states += 1;
            }
        }
    }
    println!("RAID-5, power cuts alone: {states} states tried, 0 violations");
}

/// I-PAR-1, S-95
#[test]
fn i_par_1_a_power_cut_while_several_flights_of_a_queue_are_in_the_air_loses_nothing() {
    let mut states = 0;
    for members in [3, 4] {
        let fixture = ready(members, 0, 66);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run_queued(&fixture, &*device, &mut history);
        drop((device, group));
        for (ordinal, moment) in fixture.moments().into_iter().enumerate() {
            for choice in choices(ordinal) {
                let images = fixture.after_cut(&moment, choice);
                for lost in [None, Some((ordinal + choice as usize) % members)] {
                    let context = format!(
                        "{members} members, cut at {moment:?}, choice {choice}, without {lost:?}"
                    );
                    let cut = Cut {
                        history: &history,
                        at: moment.iter().sum(),
                        lost_now: lost.is_some(),
                        context,
                    };
                    cut.judge(&without(&named(&images), lost), (members - 1) * UNIT);
                    states += 1;
                }
            }
        }
    }
    println!(
        "RAID-5, power cuts while several flights of a queue are in the air: {states} states \
         tried, 0 violations"
    );
}

/// I-PAR-1
#[test]
fn i_par_1_a_power_cut_and_the_loss_of_any_member_at_once_lose_no_part_of_a_row() {
    let (mut states, mut loose) = (0, 0);
    for (members, writes) in [(3, Writes::Parts), (4, Writes::Parts), (4, Writes::Mixed)] {
        let fixture = ready(members, 0, 62);
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, members, &mut history, writes, 0..12);
        drop((device, group));
        for (ordinal, moment) in fixture.moments().into_iter().enumerate() {
            for choice in choices(ordinal) {
                let lost = (ordinal + choice as usize) % members;
                let context = format!(
                    "{members} members, cut at {moment:?}, choice {choice}, member {lost} lost"
                );
                let left = named(&fixture.after_cut(&moment, choice));
                let cut = Cut {
                    history: &history,
                    at: moment.iter().sum(),
                    lost_now: writes == Writes::Mixed,
                    context,
                };
                cut.judge(&without(&left, Some(lost)), (members - 1) * UNIT);
                states += 1;
                loose += u64::from(writes == Writes::Mixed);
            }
        }
    }
    println!(
        "RAID-5, power cut and a member lost at once: {states} states tried ({loose} with whole \
         rows under way), 0 violations"
    );
}

/// I-PAR-1
#[test]
fn i_par_1_a_power_cut_on_a_volume_without_a_member_from_the_start_loses_nothing() {
    let mut states = 0;
    for (members, missing) in [(3, 0), (4, 2)] {
        let fixture = ready(members, 0, 63);
        let devices = without(&fixture, Some(missing));
        let group = Group::import(&devices, &ImportOptions { degraded: true, ..quiet() }).unwrap();
        fixture.make_all_durable();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, members, &mut history, Writes::Mixed, 0..12);
        drop((device, group));
        for (ordinal, moment) in fixture.moments().into_iter().enumerate() {
            for choice in choices(ordinal) {
                let cut = |back: &str| {
                    let context = format!(
                        "{members} members without {missing}, cut at {moment:?}, choice {choice}, \
                         {back}"
                    );
                    Cut { history: &history, at: moment.iter().sum(), lost_now: false, context }
                };
                let images = fixture.after_cut(&moment, choice);
                cut("still away")
                    .judge(&without(&named(&images), Some(missing)), (members - 1) * UNIT);
                cut("back, stale").judge(&named(&images).devices(), (members - 1) * UNIT);
                states += 2;
            }
        }
    }
    println!(
        "RAID-5, power cuts without a member from the start: {states} states tried, 0 violations"
    );
}

/// I-PAR-2
#[test]
fn i_par_2_a_member_that_dies_in_the_middle_and_a_spare_that_takes_its_place_lose_nothing() {
    let mut states = 0;
    for (members, dying, after) in [(3, 1, 3), (4, 0, 10), (4, 3, 21)] {
        let fixture = ready(members, 1, 64);
        let group = fixture.import();
        fixture.make_all_durable();
        let device = group.volume(Role::Data).unwrap();
        let mut history = Vec::new();
        run(&fixture, &*device, members, &mut history, Writes::Mixed, 0..6);
        let dies = fixture.members[dying].operation_count() + after;
        fixture.members[dying].die_after(dies);
        let mut known = usize::MAX;
        for step in 6..18 {
            run(&fixture, &*device, members, &mut history, Writes::Mixed, step..step + 1);
            if known == usize::MAX
                && group.config().members[dying].state == bedplate_volume::MemberState::Failed
            {
                known = ticks(&fixture);
            }
        }
        assert!(known < usize::MAX, "the member died while it was written");
        group.sync().unwrap();
        run(&fixture, &*device, members, &mut history, Writes::Mixed, 18..22);
        drop((device, group));
        for (ordinal, moment) in fixture.moments().into_iter().enumerate().step_by(13) {
            for choice in choices(ordinal) {
                let at = moment.iter().sum();
                for lost in [None, Some(dying)] {
                    let context = format!(
                        "{members} members and a spare, {dying} dies, cut at {moment:?}, choice \
                         {choice}, without {lost:?}"
                    );
                    let left = without(&named(&fixture.after_cut(&moment, choice)), lost);
                    // With the dead one back where a spare has its place already, it is told that
                    // it is outdated.
                    let refused = Group::import(&left, &looking()).err();
                    if lost.is_none()
                        && refused.is_some_and(|error| error.kind == ErrorKind::Outdated)
                    {
                        continue;
                    }
                    Cut { history: &history, at, lost_now: lost.is_some() && at < known, context }
                        .judge(&left, (members - 1) * UNIT);
                    states += 1;
                }
            }
        }
    }
    println!(
        "RAID-5, power cuts while a member dies and a spare is rebuilt: {states} states tried, 0 \
         violations"
    );
}

/// I-PAR-1
#[test]
fn i_par_1_a_power_cut_while_the_log_is_written_back_is_a_power_cut_like_any_other() {
    let (members, row) = (4, 3 * UNIT);
    let fixture = ready(members, 0, 65);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    let mut history = Vec::new();
    run(&fixture, &*device, members, &mut history, Writes::Parts, 0..7);
    drop((device, group));
    let mut states = 0;
    for (ordinal, moment) in fixture.moments().into_iter().enumerate().step_by(11) {
        let lost = ordinal % members;
        let again = named(&fixture.after_cut(&moment, 0));
        again.make_all_durable();
        drop(
            Group::import(
                &without(&again, Some(lost)),
                &ImportOptions { degraded: true, ..quiet() },
            )
            .unwrap(),
        );
        for second in again.moments().into_iter().step_by(5) {
            for choice in [0, 4] {
                let context = format!(
                    "cut at {moment:?}, without {lost} cut again at {second:?}, choice {choice}"
                );
                let left = named(&again.after_cut(&second, choice));
                Cut { history: &history, at: moment.iter().sum(), lost_now: false, context }
                    .judge(&without(&left, Some(lost)), row);
                states += 1;
            }
        }
    }
    println!(
        "RAID-5, power cuts while the log is written back: {states} states tried, 0 violations"
    );
}

/// S-109: a member is away and the log of another cannot be read. What was being written may be
/// neither old nor new; everything else is served, and nothing is written.
#[test]
fn s_109_without_a_member_and_the_log_of_another_what_is_known_can_be_read() {
    const FAR: u64 = 512 << 10;
    let (members, row) = (4, 3 * UNIT);
    let fixture = ready(members, 0, 67);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    device.write_at(&stamped(FAR, row, 999), FAR).unwrap();
    drop((device, group));
    fixture.make_all_durable();
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    let mut history = Vec::new();
    run(&fixture, &*device, members, &mut history, Writes::Parts, 0..7);
    drop((device, group));
    let (mut states, mut read, mut refused) = (0, 0, 0);
    for (ordinal, moment) in fixture.moments().into_iter().enumerate().step_by(5) {
        let (lost, deaf) = (ordinal % members, (ordinal + 1 + ordinal / members % 3) % members);
        let left = named(&fixture.after_cut(&moment, choices(ordinal)[1]));
        let log = (5 << 19)..(6 << 19);
        left.members[deaf]
            .inject(FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Always).within(log));
        let devices = without(&left, Some(lost));
        let context = format!("cut at {moment:?}, without {lost}, log of {deaf} unreadable");
        let closed = devices
            .iter()
            .map(|device| Label::read(&**device).unwrap().config)
            .max_by_key(|config| config.event)
            .unwrap()
            .clean;
        let error = Group::import(&devices, &ImportOptions { degraded: true, ..quiet() }).err();
        assert_eq!(
            error.is_some_and(|error| error.message.contains("nothing was written")),
            !closed,
            "{context}"
        );
        if closed {
            continue;
        }
        let group = Group::import(&devices, &looking()).unwrap();
        let device = group.volume(Role::Data).unwrap();
        let mut far = AlignedBuf::zeroed(row);
        device.read_at(&mut far, FAR).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(far[..] == stamped(FAR, row, 999)[..], "{context}");
        for address in (0..SPAN).step_by(512) {
            let mut sector = AlignedBuf::zeroed(512);
            match device.read_at(&mut sector, address) {
                Ok(()) => assert!(
                    allowed(&history, address, moment.iter().sum())
                        .contains(&stamp_of(&sector, address)),
                    "{context}: {address}"
                ),
                Err(error) => {
                    assert!(error.detail.contains("neither old nor new"), "{context}: {error}");
                }
            }
            let made = device.read_at(&mut sector, address).is_ok();
            (read, refused) = (read + u64::from(made), refused + u64::from(!made));
        }
        drop((device, group));
        assert!(left.members.iter().all(|member| member.operation_count() == 0), "{context}");
        states += 1;
    }
    assert!(states > 20 && refused > 0 && read > refused, "{states} {read} {refused}");
    println!("RAID-5, a member away and a log unreadable: {states} states tried, 0 violations");
}

/// S-95: whatever a power cut left, a group that is used at once by several, some of whom submit
/// and look away, is flushed and closed in order while rows are made to agree in the background.
#[test]
fn s_95_a_group_that_a_power_cut_left_is_used_and_closed_at_once() {
    const THREADS: u64 = 3;
    let members = 4;
    let fixture = ready(members, 0, 69);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    run_queued(&fixture, &*device, &mut Vec::new());
    drop((device, group));
    let mut states = 0;
    for (ordinal, moment) in fixture.moments().into_iter().enumerate().step_by(5) {
        let left = named(&fixture.after_cut(&moment, choices(ordinal)[1]));
        let group = Group::import(&left.devices(), &ImportOptions::default()).unwrap();
        let device = group.volume(Role::Data).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let device = Arc::clone(&device);
                scope.spawn(move || {
                    let mut queue = device
                        .queue(&QueueOptions { depth_max: 16, ..QueueOptions::default() })
                        .unwrap();
                    let mut done = Vec::new();
                    for n in 0..24 {
                        // Parts of the same rows for all.
                        let at = (n * THREADS + thread) * 2048;
                        let first = Segment { offset: at, len: 2048 };
                        queue
                            .push(Request {
                                token: n,
                                kind: RequestKind::Write,
                                buf: Some(stamped(at, 2048, 900 + thread)),
                                first,
                                rest: Vec::new(),
                            })
                            .unwrap();
                        queue.submit().unwrap();
                        if n % 8 == 7 {
                            // What is under way is not looked after while its owner does something
                            // that needs the rows of others.
                            device.write_at(&stamped(at, 2048, 900 + thread), at).unwrap();
                            device.flush().unwrap();
                            queue.complete(4, &mut done).unwrap();
                        }
                    }
                    while queue.in_flight() > 0 {
                        queue.complete(1, &mut done).unwrap();
                    }
                    assert!(
                        done.len() == 24 && done.iter().all(|one| one.result.is_ok()),
                        "{done:?}"
                    );
                });
            }
        });
        device.flush().unwrap();
        group.close().unwrap_or_else(|error| panic!("cut at {moment:?}: {error}"));
        drop((device, group));
        let group = left.import();
        let device = group.volume(Role::Data).unwrap();
        let mut seen = AlignedBuf::zeroed(24 * THREADS as usize * 2048);
        device.read_at(&mut seen, 0).unwrap();
        for (block, at) in seen.chunks(2048).zip((0..).step_by(2048)) {
            assert_eq!(
                stamp_of(&block[..512], at),
                900 + at / 2048 % THREADS,
                "cut at {moment:?}: {at}"
            );
        }
        states += 1;
    }
    println!(
        "RAID-5, used and closed right after a power cut: {states} states tried, 0 violations"
    );
}
