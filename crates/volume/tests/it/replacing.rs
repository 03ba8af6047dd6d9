//! A member takes another's place while everything goes on: power cuts at every moment of it,
//! members that fail in the middle, and what is written meanwhile.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceQueue, Fault, FaultRule, Hook, HookedDevice,
    MemoryDevice, QueueOptions, Request, RequestKind, Segment, Trigger, WriteFault,
};
use bedplate_volume::{ErrorKind, Group, ImportOptions, Label, MemberState, Role, Shape};
use parking_lot::Mutex;

use super::fixture::{Acknowledged, Fixture, allowed, new_group, quiet, stamp_of, stamped, ticks};

type Meddle = Mutex<Option<Box<dyn FnOnce() -> bedplate_block::Result<()> + Send>>>;

/// A member that does something else first, once, at the first call of a kind.
struct Meddled {
    at: fn(&DeviceCall<'_>) -> bool,
    what: Arc<Meddle>,
}

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddled")
    }
}

impl Hook for Meddled {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if (self.at)(&call) {
            // On a thread of its own: what happens beside a call holds none of the call's locks.
            let what = self.what.lock().take();
            what.map_or(Ok(()), |what| {
                std::thread::spawn(what).join().expect("what happens beside a call does not panic")
            })?;
        }
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(MeddledQueue { queue: inner.queue(options)?, what: Arc::clone(&self.what) }))
    }
}

/// Its queue does it before anything is waited for.
struct MeddledQueue {
    queue: Box<dyn DeviceQueue>,
    what: Arc<Meddle>,
}

impl DeviceQueue for MeddledQueue {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
    fn push(&mut self, request: Request) -> Result<(), Request> {
        self.queue.push(request)
    }
    fn submit(&mut self) -> bedplate_block::Result<()> {
        Ok(())
    }
    fn complete(
        &mut self,
        min: usize,
        out: &mut Vec<bedplate_block::Completion>,
    ) -> bedplate_block::Result<usize> {
        if min == 0 {
            return Ok(0);
        }
        let what = self.what.lock().take();
        what.map_or(Ok(()), |what| what())?;
        self.queue.complete(min, out)
    }
    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }
    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}

fn meddled(
    fixture: &Fixture,
    index: usize,
    at: fn(&DeviceCall<'_>) -> bool,
) -> (Arc<dyn BlockDevice>, Arc<Meddle>) {
    let what = Arc::new(Meddle::default());
    let hook = Meddled { at, what: Arc::clone(&what) };
    (HookedDevice::named(format!("member{index}"), fixture.device(index), hook), what)
}

fn data(call: &DeviceCall<'_>) -> bool {
    matches!(call, DeviceCall::Write { offset, .. } | DeviceCall::Read { offset, .. } if *offset >= 4 << 20)
}

fn flush(call: &DeviceCall<'_>) -> bool {
    matches!(call, DeviceCall::Flush)
}

fn label(call: &DeviceCall<'_>) -> bool {
    matches!(call, DeviceCall::Write { offset: 0, .. })
}

/// The label of a member that every other may name: its event is not 0.
fn arrival(call: &DeviceCall<'_>) -> bool {
    matches!(call, DeviceCall::Write { offset: 0, bytes } if bytes[56..64] != [0; 8])
}

/// Opens what is there as a user does: devices that have no place in the group are left alone.
fn import(devices: &[Arc<dyn BlockDevice>]) -> bedplate_volume::Result<Group> {
    let labels: Vec<(usize, Label)> = devices
        .iter()
        .enumerate()
        .filter_map(|(at, device)| Some((at, Label::read(&**device).ok()?)))
        .collect();
    let newest =
        labels.iter().map(|(_, label)| &label.config).max_by_key(|config| config.event).unwrap();
    let placed: Vec<_> = labels
        .iter()
        .filter(|(_, label)| label.has_place_in(newest))
        .map(|(at, _)| Arc::clone(&devices[*at]))
        .collect();
    Group::import(&placed, &quiet())
}

/// What is written to, in units of which two blocks are.
const UNITS: u64 = 12;
const UNIT: u64 = 16 << 10;

fn content(device: &dyn BlockDevice) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed((UNITS * UNIT) as usize);
    device.read_at(&mut buf, 0).unwrap();
    buf
}

/// Returns the number of the write that every sector of the first block shows.
fn numbers(device: &dyn BlockDevice) -> Vec<u64> {
    content(device)[..4096]
        .chunks(512)
        .zip((0..).step_by(512))
        .map(|(sector, address)| stamp_of(sector, address))
        .collect()
}

/// What is asked of a volume, at byte 0.
fn ask(device: &dyn BlockDevice, way: usize) -> bedplate_block::Result<()> {
    let kind = match way {
        0 => return device.write_at(&stamped(0, 4096, 2), 0),
        1 => return device.write_at(&stamped(0, 4096, 2), 0).and_then(|()| device.flush()),
        2 => return device.read_at(&mut AlignedBuf::zeroed(4096), 0),
        3 => RequestKind::Write,
        4 => RequestKind::Read,
        _ => RequestKind::Flush,
    };
    if kind == RequestKind::Flush {
        device.write_at(&stamped(0, 4096, 2), 0)?;
    }
    let mut queue = device.queue(&QueueOptions::default())?;
    let buf = (kind != RequestKind::Flush).then(|| stamped(0, 4096, 2));
    let first = Segment { offset: 0, len: if kind == RequestKind::Flush { 0 } else { 4096 } };
    queue.push(Request { token: 0, kind, buf, first, rest: Vec::new() }).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(1, &mut done)?;
    }
    done.remove(0).result
}

/// S-63: what was under way to a member that is replaced meanwhile may fail; no error is returned,
/// and nothing of it is missing.
#[test]
fn what_is_under_way_to_a_member_that_is_replaced_may_fail() {
    for (shape, count) in [(Shape::Mirror, 2), (Shape::StripeMirror, 4), (Shape::MirrorStripe, 4)] {
        for way in 0..6 {
            let fixture = Fixture::new(count + 1, 50);
            let (first, meddle) = meddled(&fixture, 0, if way == 1 { flush } else { data });
            let mut devices = fixture.devices();
            devices[0] = first;
            let new = devices.pop().unwrap();
            bedplate_volume::create(&new_group(shape, 2, devices.clone(), Vec::new())).unwrap();
            let group = Group::import(&devices, &quiet()).unwrap();
            let device = group.volume(Role::Data).unwrap();
            device.write_at(&stamped(0, 4096, 1), 0).unwrap();
            let (members, handle) = (fixture.members.clone(), group.downgrade());
            *meddle.lock() = Some(Box::new(move || {
                handle.upgrade().unwrap().replace(0, &new).unwrap();
                members[0].die();
                Ok(())
            }));
            ask(&*device, way).unwrap_or_else(|error| panic!("{shape:?}, way {way}: {error}"));
            assert!(meddle.lock().is_none(), "{shape:?}, way {way}: it was not replaced");
            assert_eq!(group.config().members[0].path, format!("member{count}"));
            let written = if way == 2 || way == 4 { 1 } else { 2 };
            group.sync().unwrap();
            assert!(
                group.config().members.iter().all(|member| member.state == MemberState::Active),
                "{shape:?}, way {way}"
            );
            assert_eq!(numbers(&*device), [written; 8], "{shape:?}, way {way}");
            assert_eq!(
                group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap().differences,
                [],
                "{shape:?}, way {way}"
            );
        }
    }
}

/// Operations of members, at least, with which labels are written and flushed.
const COUNTING: usize = 12;

type History = Arc<Mutex<Vec<Acknowledged>>>;

fn write(fixture: &Fixture, device: &dyn BlockDevice, history: &History, offset: u64, number: u64) {
    let begun = ticks(fixture);
    device.write_at(&stamped(offset, 4096, number), offset).unwrap();
    history.lock().push(Acknowledged {
        write: Some((offset, 4096, number)),
        begun,
        ended: ticks(fixture),
    });
    let begun = ticks(fixture);
    device.flush().unwrap();
    history.lock().push(Acknowledged { write: None, begun, ended: ticks(fixture) });
}

/// Replaces a member of a group in use and cuts the power after every operation of every member.
fn cut(shape: Shape, count: usize, index: usize) -> usize {
    let fixture = Arc::new(Fixture::new(count + 1, 51));
    let mut devices = fixture.devices();
    devices.pop();
    // A write comes just before the new member's label says that it belongs there: not to a RAID-5,
    // whose rows are held as long.
    let (new, meddle) = meddled(&fixture, count, arrival);
    bedplate_volume::create(&new_group(shape, 2, devices.clone(), Vec::new())).unwrap();
    let group = Group::import(&devices, &quiet()).unwrap();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    fixture.make_all_durable();
    let history = History::default();
    (0..UNITS).for_each(|unit| write(&fixture, &*device, &history, unit * UNIT, unit + 1));
    group.clean_up().unwrap();
    group.clean_up().unwrap();
    let begun = fixture.moments().len();
    if shape != Shape::Raid5 {
        let (fixture, device, history) =
            (Arc::clone(&fixture), group.volume(Role::Data).unwrap(), Arc::clone(&history));
        *meddle.lock() = Some(Box::new(move || {
            (0..4).for_each(|unit| {
                write(&fixture, &*device, &history, unit * UNIT + 4096, 1001 + unit);
            });
            Ok(())
        }));
    }
    group.replace(index, &new).unwrap();
    let replaced = fixture.moments().len();
    write(&fixture, &*device, &history, 0, 2001);
    group.sync().unwrap();
    let counted = fixture.moments().len();
    write(&fixture, &*device, &history, 0, 2002);
    drop((device, group));
    let history = history.lock();
    let (mut states, every) = (0, std::env::var_os("BEDPLATE_EVERY_CUT").is_some());
    for (at, moment) in fixture.moments().into_iter().enumerate().skip(begun) {
        // The last that a rebuild does: the labels say that what it wrote counts.
        let counts = (counted - COUNTING..counted).contains(&at);
        if at > replaced && at % 23 > 0 && !every && !counts {
            continue;
        }
        for choice in
            (0..6).filter(|choice| every || counts || (*choice as usize + at).is_multiple_of(6))
        {
            let context =
                format!("{shape:?}, member {index} replaced, cut at {moment:?}, choice {choice}");
            let images: Vec<Arc<dyn BlockDevice>> =
                fixture.after_cut(&moment, choice).into_iter().map(|image| image as _).collect();
            let left = Label::read(&*images[index]);
            assert!(
                at + 1 < replaced || left.is_err_and(|error| error.kind == ErrorKind::NotAMember),
                "{context}: who was replaced has a label"
            );
            let group = import(&images).unwrap_or_else(|error| panic!("{context}: {error}"));
            let device = group.volume(Role::Data).unwrap();
            let before = content(&*device);
            for (sector, address) in before
                .chunks(512)
                .zip((0..).step_by(512))
                .filter(|(_, address)| address % UNIT < 8192)
            {
                let (number, allowed) =
                    (stamp_of(sector, address), allowed(&history, address, moment.iter().sum()));
                assert!(
                    allowed.contains(&number),
                    "{context}: sector {address} shows write {number}, allowed are {allowed:?}"
                );
            }
            group.sync().unwrap();
            assert!(
                group.config().members.iter().all(|member| member.state == MemberState::Active),
                "{context}"
            );
            assert!(
                content(&*device)[..] == before[..],
                "{context}: the rebuild changed what was read"
            );
            assert_eq!(
                group.scrub(false, &bedplate_volume::Undecided, &mut |_| ()).unwrap().differences,
                [],
                "{context}"
            );
            states += 1;
        }
    }
    states
}

/// S-105
#[test]
fn s_105_a_power_cut_while_a_member_is_replaced_leaves_a_group_that_opens_by_itself() {
    let mut states = 0;
    for (shape, count, indices) in [
        (Shape::Mirror, 2, &[0, 1][..]),
        (Shape::StripeMirror, 4, &[0]),
        (Shape::MirrorStripe, 4, &[3]),
        (Shape::Raid5, 3, &[0, 2]),
    ] {
        states += indices.iter().map(|index| cut(shape, count, *index)).sum::<usize>();
    }
    println!("power cuts while a member is replaced: {states} states tried, 0 violations");
}

/// A group whose member 1 was replaced by the last device, in one of the ways in which members are
/// when that happens.
fn replaced(way: usize, fixture: &Fixture) -> Group {
    let mut devices = fixture.devices();
    let new = devices.pop().unwrap();
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices.clone(), Vec::new())).unwrap();
    let write = |group: &Group, number| {
        group.volume(Role::Data).unwrap().write_at(&stamped(0, 4096, number), 0).unwrap();
    };
    let mut group = Group::import(&devices, &quiet()).unwrap();
    write(&group, 1);
    let expected = match way {
        0 => MemberState::Active,
        1 | 2 => {
            let times = if way == 1 { Trigger::Next(1) } else { Trigger::Always };
            fixture.members[1].inject(FaultRule::new(Fault::Write(WriteFault::Fail), times));
            MemberState::Failed
        }
        _ => {
            drop(group);
            drop(
                Group::import(&devices[..1], &ImportOptions { degraded: true, ..quiet() }).unwrap(),
            );
            group = Group::import(&devices, &quiet()).unwrap();
            MemberState::Stale
        }
    };
    write(&group, 3);
    assert_eq!(group.config().members[1].state, expected, "way {way}");
    group.replace(1, &new).unwrap();
    group.sync().unwrap();
    fixture.members[1].clear_faults();
    group
}

/// S-108: one that is up to date, one that failed a write and answers again, and one that came back
/// and is not up to date.
#[test]
fn s_108_a_member_that_was_replaced_has_no_label_any_more() {
    for way in [0, 1, 3] {
        let fixture = Fixture::new(3, 55);
        drop(replaced(way, &fixture));
        let alone =
            Group::import(&[fixture.device(1)], &ImportOptions { degraded: true, ..quiet() });
        assert!(alone.is_err_and(|error| error.kind == ErrorKind::NotAMember), "way {way}");
    }
}

/// S-108: one that did not answer is named beside any other member, and when it went on alone it is
/// not taken for the group.
#[test]
fn s_108_a_member_that_was_replaced_while_away_is_told_from_the_group() {
    let (fixture, degraded) = (Fixture::new(3, 56), ImportOptions { degraded: true, ..quiet() });
    drop(replaced(2, &fixture));
    let beside = |others: &[usize]| {
        others.iter().chain(&[1]).map(|at| fixture.device(*at)).collect::<Vec<_>>()
    };
    for others in [&[0][..], &[2], &[0, 2]] {
        let Err(error) = Group::import(&beside(others), &degraded) else {
            panic!("it has no place")
        };
        assert!(
            error.kind == ErrorKind::Outdated
                && error.message.contains("member1 is outdated: it was replaced"),
            "{error}"
        );
    }
    // Alone it knows nothing of that, and its events run ahead of the group's: it would pass for
    // the newest, and the other for one that was away.
    let alone = Group::import(&[fixture.device(1)], &degraded).unwrap();
    alone.volume(Role::Data).unwrap().write_at(&stamped(0, 4096, 4), 0).unwrap();
    drop(alone);
    let event = |index: usize| Label::read(&*fixture.device(index)).unwrap().config.event;
    assert!(event(1) > 12 + event(0), "{} {}", event(1), event(0));
    let before: Vec<usize> =
        fixture.members.iter().map(|member| member.operation_count()).collect();
    for others in [&[0][..], &[0, 2]] {
        let Err(error) = import(&beside(others)) else { panic!("nothing tells whose data counts") };
        let told = error.message.contains("member1 was replaced or removed, as member0 knows");
        assert!(error.kind == ErrorKind::Diverged && told, "{error}");
        assert!(Group::import(&beside(others), &degraded).is_err());
    }
    assert_eq!(
        fixture.members.iter().map(|member| member.operation_count()).collect::<Vec<_>>(),
        before,
        "nothing was written"
    );
    assert_eq!(
        numbers(
            &*Group::import(&[fixture.device(0), fixture.device(2)], &quiet())
                .unwrap()
                .volume(Role::Data)
                .unwrap()
        ),
        [3; 8]
    );
}

/// S-105: the same for members that bring room or wait, and a device that was cut off on its way is
/// welcome again.
#[test]
fn s_105_a_power_cut_while_a_member_is_added_leaves_a_group_that_opens_by_itself() {
    for spare in [false, true] {
        let fixture = Fixture::new(3, 52);
        let devices = fixture.devices();
        bedplate_volume::create(&new_group(Shape::Mirror, 2, devices[..2].to_vec(), Vec::new()))
            .unwrap();
        let group = Group::import(&devices[..2], &quiet()).unwrap();
        let before = fixture.moments().len();
        fixture.make_all_durable();
        if spare { group.add_spare(&devices[2]) } else { group.add_member(&devices[2]) }.unwrap();
        drop(group);
        assert!(before > 0 && fixture.moments().len() > 12);
        let mut again = 0;
        for moment in fixture.moments() {
            let images: Vec<Arc<dyn BlockDevice>> =
                fixture.after_cut(&moment, 0).into_iter().map(|image| image as _).collect();
            let group = import(&images)
                .unwrap_or_else(|error| panic!("spare {spare}, cut at {moment:?}: {error}"));
            if group.config().members.len() == 2 {
                group
                    .replace(0, &images[2])
                    .unwrap_or_else(|error| panic!("spare {spare}, cut at {moment:?}: {error}"));
                again += 1;
            }
        }
        assert!(again > 4, "{again}");
    }
}

/// S-63: of two copies one dies while the other is replaced, at any moment: what remains is the
/// group's.
#[test]
fn a_member_that_fails_while_another_is_replaced_takes_nothing_with_it() {
    let mut kept = 0;
    for dies_after in 0.. {
        let fixture = Fixture::new(3, 53);
        let devices = fixture.devices();
        bedplate_volume::create(&new_group(Shape::Mirror, 2, devices[..2].to_vec(), Vec::new()))
            .unwrap();
        let group = Group::import(&devices[..2], &quiet()).unwrap();
        let device = group.volume(Role::Data).unwrap();
        device.write_at(&stamped(0, 4096, 1), 0).unwrap();
        device.flush().unwrap();
        let before = fixture.members[1].operation_count();
        fixture.members[1].die_after(before + dies_after);
        let replaced = group.replace(0, &devices[2]);
        if replaced.is_ok() && fixture.members[1].operation_count() < before + dies_after {
            break;
        }
        kept += u64::from(replaced.is_err());
        // The other is refused its leave, or what it was to be copied from is gone and back later.
        if group.config().members[0].path == "member0" {
            assert_eq!(numbers(&*device), [1; 8], "died after {dies_after}");
        }
        drop((device, group));
        let images: Vec<Arc<dyn BlockDevice>> = fixture
            .members
            .iter()
            .map(|member| {
                MemoryDevice::from_snapshot(&member.snapshot(), MemoryDevice::GEOMETRY) as _
            })
            .collect();
        let group =
            import(&images).unwrap_or_else(|error| panic!("died after {dies_after}: {error}"));
        group.sync().unwrap();
        assert_eq!(numbers(&*group.volume(Role::Data).unwrap()), [1; 8], "died after {dies_after}");
    }
    assert!(kept > 2, "{kept}");
}

/// S-63, I-DRL-1: what a member that comes needs stays in the log, however often that is tidied
/// meanwhile.
#[test]
fn the_dirty_region_log_is_not_tidied_while_a_member_is_replaced() {
    let fixture = Fixture::new(3, 54);
    let (second, meddle) = meddled(&fixture, 1, label);
    let devices = [fixture.device(0), second];
    bedplate_volume::create(&new_group(Shape::Mirror, 2, devices.to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices, &quiet()).unwrap();
    let (tidy, handle) = (group.clone(), Arc::new(Mutex::new(None)));
    let thread = Arc::clone(&handle);
    *meddle.lock() = Some(Box::new(move || {
        let (tell, told) = std::sync::mpsc::channel();
        *thread.lock() = Some(std::thread::spawn(move || {
            let tidied = (0..3).map(|_| tidy.clean_up().unwrap()).sum::<u64>();
            let _heard = tell.send(tidied);
        }));
        let _tidied = told.recv_timeout(Duration::from_millis(300));
        Ok(())
    }));
    group.replace(0, &fixture.device(2)).unwrap();
    handle.lock().take().unwrap().join().unwrap();
    let images: Vec<Arc<dyn BlockDevice>> = fixture.members[1..]
        .iter()
        .map(|member| MemoryDevice::from_snapshot(&member.snapshot(), MemoryDevice::GEOMETRY) as _)
        .collect();
    let again = import(&images).unwrap();
    assert_eq!(again.progress().pending_bytes, again.progress().total_bytes);
    assert_eq!(
        group.replace(1, &fixture.device(0)).unwrap_err().kind,
        ErrorKind::Invalid,
        "the one that came is not filled yet"
    );
}
