//! Scrubs on schedule, a turn at a time and by the group's own thread: begun, interrupted, judged,
//! begun again.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, MemoryDevice};

use super::*;
use crate::relayout::fixture::{Fixture, REGION_BYTES, new_group, quiet, stamped};
use crate::{ErrorKind, Group, ImportOptions, PageArbiter, Role, Shape, Target};

const WEEK: Duration = Duration::from_secs(7 * 86_400);
const WEEK_S: u64 = 7 * 86_400;
/// A day in 2026.
const NOON: u64 = 1_795_262_400;

/// Knows that member 0 is right.
struct First;

impl PageArbiter for First {
    fn judge(
        &self,
        _: Role,
        _: Range<u64>,
        _: usize,
        _: &mut dyn FnMut(usize, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        Some(0)
    }

    fn lies_at(&self, _: Role, address: u64) -> Option<String> {
        Some(format!("/file, byte {address}"))
    }
}

fn mirror(seed: u64) -> (Fixture, Group) {
    let fixture = Fixture::new(2, seed);
    fixture.create(Shape::Mirror, 2, 0);
    let group = fixture.import();
    let device = group.volume(Role::Data).unwrap();
    (0..device.size_bytes())
        .step_by(65_536)
        .for_each(|at| device.write_at(&stamped(at, 65_536, 1), at).unwrap());
    device.flush().unwrap();
    (fixture, group)
}

fn at(start: Instant, seconds: u64) -> TimePoint {
    TimePoint { wall_s: NOON + seconds, steady: start + Duration::from_secs(seconds) }
}

/// Takes turns until there is nothing to do, or so many regions of volume 0 are done. Returns the
/// number of turns.
fn go(scrub_scheduler: &mut ScrubScheduler, group: &Group, now: TimePoint, regions: u64) -> usize {
    let mut turns = 0;
    while scrub_scheduler.walk.as_ref().is_none_or(|walk| walk.run.region < regions) {
        if scrub_scheduler.step(&group.open.runtime, now).unwrap().is_none() {
            break;
        }
        turns += 1;
    }
    turns
}

fn schedule(group: &Group) -> ScrubSchedule {
    group.config().scrub.unwrap()
}

/// S-106: closed in the middle, it goes on where it was; what came of it and when the next one
/// begins stands in the labels.
#[test]
fn s_106_a_scrub_that_is_interrupted_by_a_close_goes_on_and_tells_what_came_of_all_of_it() {
    let (fixture, group) = mirror(70);
    group.schedule_scrub(Some(WEEK), false).unwrap();
    fixture.members[1].decay((4 << 20) + 700, 4);
    fixture.members[1].decay((4 << 20) + 9 * REGION_BYTES, 4);
    let (start, mut scrub_scheduler) = (Instant::now(), ScrubScheduler::default());
    go(&mut scrub_scheduler, &group, at(start, 0), 6);
    // An hour later the position is saved by the way.
    go(&mut scrub_scheduler, &group, at(start, 3600), 7);
    let run = schedule(&group).run.unwrap();
    assert_eq!(
        (run.region, run.totals.differences, run.totals.left, schedule(&group).next_s()),
        (7, 1, 1, None)
    );
    scrub_scheduler.stop(&group.open.runtime).unwrap();
    drop(group);
    let group = fixture.import();
    let (mut scrub_scheduler, size) =
        (ScrubScheduler::default(), group.volume(Role::Data).unwrap().size_bytes());
    go(&mut scrub_scheduler, &group, at(start, 7200), u64::MAX);
    let told = schedule(&group);
    let totals = ScrubTotals { compared_bytes: size, skipped_regions: 0, differences: 2, left: 2 };
    assert_eq!((told.run, told.last), (None, Some(ScrubResult { ended_s: NOON + 7200, totals })));
    assert_eq!((told.begun_s, told.next_s()), (Some(NOON), Some(NOON + WEEK_S)));
    // Nothing before the week is over; then one.
    assert_eq!(go(&mut scrub_scheduler, &group, at(start, WEEK_S - 1), u64::MAX), 0);
    drop(group);
    let group = fixture.import();
    assert!(go(&mut ScrubScheduler::default(), &group, at(start, 3 * WEEK_S), u64::MAX) > 16);
    assert_eq!(schedule(&group).last.unwrap().ended_s, NOON + 3 * WEEK_S);
    assert_eq!(
        go(&mut ScrubScheduler::default(), &group, at(start, 3 * WEEK_S + 1), u64::MAX),
        0,
        "three weeks are one"
    );
}

/// S-106: the time of day is set forward and back while the group is open, while one is under way,
/// and before it is opened again.
#[test]
fn s_106_a_clock_that_is_set_forward_or_back_makes_one_scrub_and_holds_none_up_for_long() {
    const YEAR: i64 = 365 * 86_400;
    const HALF: u64 = WEEK_S / 2;
    let (fixture, group) = mirror(77);
    group.schedule_scrub(Some(WEEK), false).unwrap();
    let (start, mut scrub_scheduler) = (Instant::now(), ScrubScheduler::default());
    // `passed` seconds after the start, by a clock that is wrong by so much.
    let moment = |wrong: i64, passed: u64| TimePoint {
        wall_s: (NOON + passed).saturating_add_signed(wrong),
        ..at(start, passed)
    };
    let made = |scrub_scheduler: &mut ScrubScheduler, group: &Group, now: TimePoint| {
        go(scrub_scheduler, group, now, u64::MAX) > 16
    };
    assert!(made(&mut scrub_scheduler, &group, moment(0, 0)), "the first at once");
    // Forward: one, and when it is set right again the next after half a period at the latest.
    assert!(
        made(&mut scrub_scheduler, &group, moment(YEAR, 60))
            && !made(&mut scrub_scheduler, &group, moment(YEAR, 120))
    );
    assert_eq!(schedule(&group).last.unwrap().ended_s, NOON + 60 + YEAR as u64);
    assert!(
        !made(&mut scrub_scheduler, &group, moment(0, 180))
            && !made(&mut scrub_scheduler, &group, moment(0, 59 + HALF))
    );
    assert!(
        made(&mut scrub_scheduler, &group, moment(0, 60 + HALF))
            && !made(&mut scrub_scheduler, &group, moment(0, 61 + HALF))
    );
    // Back: the same.
    assert!(
        !made(&mut scrub_scheduler, &group, moment(-YEAR, 70 + HALF))
            && !made(&mut scrub_scheduler, &group, moment(-YEAR, 59 + 2 * HALF))
    );
    assert!(made(&mut scrub_scheduler, &group, moment(-YEAR, 60 + 2 * HALF)));
    // One that is under way goes on from where it is, whatever the clock says, and ends once.
    let begun = 60 + 2 * HALF + WEEK_S;
    go(&mut scrub_scheduler, &group, moment(-YEAR, begun), 5);
    assert_eq!(schedule(&group).begun_s, Some((NOON + begun).saturating_add_signed(-YEAR)));
    go(&mut scrub_scheduler, &group, moment(YEAR, begun + 3600), 9);
    go(&mut scrub_scheduler, &group, moment(-2 * YEAR, begun + 7200), u64::MAX);
    let (last, size) =
        (schedule(&group).last.unwrap(), group.volume(Role::Data).unwrap().size_bytes());
    assert_eq!(
        (last.ended_s, last.totals.compared_bytes),
        ((NOON + begun + 7200).saturating_add_signed(-2 * YEAR), size)
    );
    // Opened again with a clock behind its last one: how long ago that was is not known, so one
    // begins at once, and only one.
    drop(group);
    let (group, mut scrub_scheduler) = (fixture.import(), ScrubScheduler::default());
    assert!(
        made(&mut scrub_scheduler, &group, moment(-2 * YEAR, begun + 7300))
            && !made(&mut scrub_scheduler, &group, moment(-2 * YEAR, begun + 7400))
    );
}

/// S-106: what was found and not judged when the group was closed, or the power went, is found
/// again.
#[test]
fn s_106_what_nobody_judged_is_found_again_after_a_close_and_after_a_power_cut() {
    for cut in [false, true] {
        let (fixture, group) = mirror(71);
        group.schedule_scrub(Some(WEEK), true).unwrap();
        fixture.members[1].decay((4 << 20) + 2 * REGION_BYTES, 4);
        let mut scrub_scheduler = ScrubScheduler::default();
        go(&mut scrub_scheduler, &group, at(Instant::now(), 0), 5);
        assert_eq!(scrub_scheduler.walk.as_ref().unwrap().found.differences.len(), 1);
        let images: Vec<Arc<dyn BlockDevice>> = if cut {
            fixture
                .members
                .iter()
                .map(|member| {
                    MemoryDevice::from_snapshot(&member.snapshot(), MemoryDevice::GEOMETRY) as _
                })
                .collect()
        } else {
            scrub_scheduler.stop(&group.open.runtime).unwrap();
            fixture.devices()
        };
        drop(group);
        let group = Group::import(&images, &quiet()).unwrap();
        group.sync().unwrap();
        group.set_arbiter_provider(Some(Arc::new(|| Some(Box::new(First)))));
        go(&mut ScrubScheduler::default(), &group, at(Instant::now(), 60), u64::MAX);
        let totals = schedule(&group).last.unwrap().totals;
        // A power cut leaves copies in doubt, which are made to agree first.
        let found = if cut { totals.differences } else { 1 };
        assert_eq!((totals.differences, totals.left), (found, 0), "cut {cut}");
        assert_eq!(
            group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences,
            [],
            "cut {cut}"
        );
    }
}

/// S-106: what it compared lies elsewhere after a relayout, so it begins again.
#[test]
fn s_106_a_relayout_lets_a_scrub_begin_anew() {
    let fixture = Fixture::new(4, 72);
    let devices = fixture.devices();
    crate::create(&new_group(Shape::Mirror, 2, devices[..2].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..2], &quiet()).unwrap();
    devices[2..].iter().for_each(|device| group.add_member(device).unwrap());
    group.schedule_scrub(Some(WEEK), false).unwrap();
    let (start, mut scrub_scheduler) = (Instant::now(), ScrubScheduler::default());
    go(&mut scrub_scheduler, &group, at(start, 0), 5);
    group.relayout(Role::Data, &Target { columns: Some(2), ..Target::default() }, 0).unwrap();
    group.run_relayout(&mut |_| true).unwrap();
    group.sync().unwrap();
    assert_eq!(schedule(&group).run.map(|run| (run.region, run.restarts)), Some((0, 1)));
    go(&mut scrub_scheduler, &group, at(start, 10), u64::MAX);
    assert_eq!(
        schedule(&group).last.unwrap().totals.compared_bytes,
        group.volume(Role::Data).unwrap().size_bytes()
    );
}

/// S-106: by the group's own thread, at once, with repair, and with an arbiter from a provider.
#[test]
fn s_106_the_thread_of_an_open_group_carries_a_schedule_out() {
    let (fixture, group) = mirror(73);
    drop(group);
    fixture.members[1].decay((4 << 20) + 700, 4);
    let group = Group::import(&fixture.devices(), &ImportOptions::default()).unwrap();
    group.set_arbiter_provider(Some(Arc::new(|| Some(Box::new(First)))));
    let wait = || {
        let start = Instant::now();
        while schedule(&group).last.is_none() {
            assert!(
                start.elapsed().as_secs() < 120,
                "the scrub does not end: {:?}",
                group.config().scrub
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        schedule(&group).last.unwrap().totals
    };
    group.schedule_scrub(Some(WEEK), true).unwrap();
    assert_eq!((wait().differences, wait().left), (1, 0));
    // What it found is told where it was found, until the next one ends.
    let (told, ids) = (
        group.config().findings,
        group.config().members.iter().map(|member| member.id).collect::<Vec<_>>(),
    );
    assert_eq!(
        (told.len(), told[0].under_way, told[0].repaired, told[0].right),
        (1, false, true, Some(ids[0]))
    );
    assert_eq!(
        (told[0].range.clone(), told[0].copies[1], told[0].lies.as_deref()),
        (512..1024, (ids[1], (4 << 20) + 512), Some("/file, byte 512"))
    );
    // Turned off, it is forgotten; turned on, it begins at once.
    group.schedule_scrub(None, false).unwrap();
    assert_eq!(group.config().scrub, None);
    group.schedule_scrub(Some(WEEK), false).unwrap();
    assert_eq!(wait().differences, 0);
    assert_eq!(group.config().findings, []);
}

/// S-106: however much differs, the labels name some of it, and keep room for what they have to
/// say; a close in the middle forgets nothing.
#[test]
fn s_106_the_places_that_are_kept_are_bounded_and_survive_a_close() {
    let (fixture, group) = mirror(76);
    group.schedule_scrub(Some(WEEK), false).unwrap();
    (0..16).for_each(|region| {
        [700, 9000]
            .into_iter()
            .for_each(|at| fixture.members[1].decay((4 << 20) + region * REGION_BYTES + at, 4));
    });
    let (start, mut scrub_scheduler) = (Instant::now(), ScrubScheduler::default());
    go(&mut scrub_scheduler, &group, at(start, 0), 3);
    go(&mut scrub_scheduler, &group, at(start, 3600), 4);
    scrub_scheduler.stop(&group.open.runtime).unwrap();
    drop(group);
    let group = fixture.import();
    let found = group.config().findings;
    assert!(
        found.len() == 8
            && found
                .iter()
                .all(|finding| finding.under_way && finding.lies.is_none() && !finding.repaired),
        "{found:?}"
    );
    go(&mut ScrubScheduler::default(), &group, at(start, 7200), u64::MAX);
    let found = group.config().findings;
    assert_eq!(
        (found.len(), found.iter().any(|finding| finding.under_way)),
        (crate::FINDINGS_MAX, false)
    );
    assert_eq!(
        (schedule(&group).last.unwrap().totals.differences, found[0].range.clone()),
        (32, 512..1024)
    );
    // The next one begins: until it ends, both are told.
    let mut scrub_scheduler = ScrubScheduler::default();
    go(&mut scrub_scheduler, &group, at(start, WEEK_S + 1), 2);
    go(&mut scrub_scheduler, &group, at(start, WEEK_S + 3600), 3);
    let found = group.config().findings;
    assert!(
        found.iter().filter(|finding| !finding.under_way).count() == crate::FINDINGS_MAX
            && found.len() > crate::FINDINGS_MAX,
        "{}",
        found.len()
    );
    group.schedule_scrub(None, false).unwrap();
    assert_eq!(group.config().findings, []);
}

#[test]
fn a_schedule_that_cannot_be_is_refused() {
    let (_bed, group) = mirror(74);
    for every in [Duration::from_secs(59), Duration::from_secs(20 * 366 * 86_400)] {
        assert_eq!(group.schedule_scrub(Some(every), false).unwrap_err().kind, ErrorKind::Invalid);
    }
    let fixture = Fixture::new(2, 75);
    fixture.create(Shape::Stripe, 1, 0);
    let error = fixture.import().schedule_scrub(Some(WEEK), false).unwrap_err();
    assert!(error.message.contains("nothing to compare"), "{error}");
}
