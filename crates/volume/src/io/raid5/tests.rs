//! Sums, and power cuts while the parity log starts over.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, CrashChoice, CrashStep, MemoryDevice};

use crate::planted::{Mistake, with_mistake};
use crate::relayout::fixture::{Acknowledged, Fixture, allowed, quiet, stamp_of, stamped, ticks};
use crate::{Group, ImportOptions, Label, MemberState, Role, Shape};

#[test]
fn a_sum_of_two_is_nothing() {
    let (mut sum, bytes) = (vec![0; 1003], (0..1003).map(|at: usize| at as u8).collect::<Vec<_>>());
    super::xor(&mut sum, &bytes);
    assert_eq!(sum, bytes);
    super::xor(&mut sum, &bytes);
    assert!(sum.iter().all(|byte| *byte == 0));
}

const MEMBERS: usize = 3;
/// Two data units of a row of three members.
const ROW: u64 = 32 << 10;
/// What a write of half a unit takes of the log.
const RECORD: u64 = 4096 + LEN as u64;
const LEN: usize = 8 << 10;

/// Writes parts of rows until the parity log starts over and some more, cuts the power at every
/// moment from shortly before that, loses each member in turn, and returns how many sectors show
/// what they may not.
fn wrong_after_restart(mistake: Option<Mistake>) -> usize {
    let fixture = Fixture::new(MEMBERS, 68);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    fixture.make_all_durable();
    let device = group.volume(Role::Data).unwrap();
    let (mut history, records) = (Vec::new(), super::log::AREA_BYTES / RECORD);
    let mut interesting = usize::MAX;
    with_mistake(mistake, || {
        for n in 0..records + 4 {
            if n == records - 6 {
                interesting = ticks(&fixture);
            }
            // Rows one after the other, so that none is written twice before the log starts over.
            let (at, begun) = (n % 20 * ROW, ticks(&fixture));
            device.write_at(&stamped(at, LEN, n + 1), at).unwrap();
            history.push(Acknowledged {
                write: Some((at, LEN, n + 1)),
                begun,
                ended: ticks(&fixture),
            });
        }
    });
    let moments: Vec<_> = fixture
        .moments()
        .into_iter()
        .filter(|moment| moment.iter().sum::<usize>() >= interesting)
        .collect();
    drop((device, group));
    let (mut wrong, mut states) = (0, 0);
    for (ordinal, moment) in moments.iter().enumerate() {
        for (choice, lost) in
            [0, 1, 2, 3, 4, 5].into_iter().zip((ordinal..).map(|lost| lost % MEMBERS))
        {
            let images = fixture.after_cut(moment, choice);
            let left: Vec<Arc<dyn BlockDevice>> = (0..MEMBERS)
                .filter(|at| *at != lost)
                .map(|at| Arc::clone(&images[at]) as _)
                .collect();
            let group = Group::import(&left, &ImportOptions { degraded: true, ..quiet() }).unwrap();
            let device = group.volume(Role::Data).unwrap();
            let mut seen = AlignedBuf::zeroed((20 * ROW) as usize);
            device.read_at(&mut seen, 0).unwrap();
            let may = |address: u64| allowed(&history, address, moment.iter().sum());
            let is_wrong = |(sector, address): (&[u8], u64)| {
                !std::panic::catch_unwind(|| stamp_of(sector, address))
                    .is_ok_and(|number| may(address).contains(&number))
            };
            wrong += seen.chunks(512).zip((0..).step_by(512)).filter(|at| is_wrong(*at)).count();
            states += 1;
        }
    }
    println!(
        "RAID-5, power cuts and a member lost while the parity log starts over: {states} states \
         tried, {wrong} sectors wrong"
    );
    wrong
}

/// I-PAR-3: and without the flush before, it would be found.
#[test]
fn i_par_3_the_log_starts_over_only_when_its_rows_are_durable() {
    assert_eq!(wrong_after_restart(None), 0);
    assert!(wrong_after_restart(Some(Mistake::LogRestartsBeforeFlush)) > 0, "nothing noticed");
}

/// Writes one sector twice, fills the log, makes everything durable and lets a larger record begin
/// the log anew. The power goes, and of that record nothing arrives but what lies over the older
/// record of the second write: returns how often the sector shows the first write again.
fn undone_by_an_old_record(mistake: Option<Mistake>) -> usize {
    const SMALL: u64 = 2 * 4096;
    let fixture = Fixture::new(MEMBERS, 71);
    fixture.create(Shape::Raid5, 2, 0);
    let group = fixture.import();
    group.sync().unwrap();
    let device = group.volume(Role::Data).unwrap();
    let records = (super::log::AREA_BYTES - SMALL) / SMALL;
    for n in 1..=records {
        let at = if n <= 2 { 0 } else { (1 + n % 19) * ROW };
        device.write_at(&stamped(at, 512, n), at).unwrap();
    }
    device.flush().unwrap();
    fixture.make_all_durable();
    with_mistake(mistake, || device.write_at(&stamped(3 * ROW, 16 << 10, 99), 3 * ROW)).unwrap();
    let moments = fixture.moments();
    drop((device, group));
    let mut undone = 0;
    for moment in &moments {
        let image = |(member, after): (usize, &usize)| {
            let member = &fixture.members[member];
            let last = member.crash_steps(*after, &CrashChoice::KeepAll).pop();
            // Heads are shorter than a record.
            let record = last.filter(|step| step.parts[0].end > SMALL + 512);
            let part = record.map(|step| CrashStep {
                parts: std::iter::once(SMALL..SMALL + 512).collect(),
                ..step
            });
            member.crash_image(*after, &CrashChoice::Steps(part.into_iter().collect()))
        };
        let images: Vec<Arc<MemoryDevice>> = moment.iter().enumerate().map(image).collect();
        let members: Vec<Arc<dyn BlockDevice>> =
            images.into_iter().map(|image| image as _).collect();
        let group = Group::import(&members, &quiet()).unwrap();
        let mut sector = AlignedBuf::zeroed(512);
        group.volume(Role::Data).unwrap().read_at(&mut sector, 0).unwrap();
        undone += usize::from(stamp_of(&sector, 0) != 2);
    }
    undone
}

/// I-PAR-3: older records count until a head that says otherwise is durable, and some of them are
/// overwritten from then on.
#[test]
fn i_par_3_a_head_is_durable_before_a_record_overwrites_another() {
    assert_eq!(undone_by_an_old_record(None), 0);
    assert!(undone_by_an_old_record(Some(Mistake::HeadNotFlushed)) > 0, "nothing noticed");
}

/// Writes a row from end to end over another, without a flush, lets a member fail at a write
/// elsewhere, and cuts the power at every moment of that. Returns how many sectors of the row are
/// neither old nor new although the members that are left know that the other failed.
fn torn_after_a_failure(mistake: Option<Mistake>) -> usize {
    let (mut torn, mut states) = (0, 0);
    for dying in 0..MEMBERS {
        let fixture = Fixture::new(MEMBERS, 72);
        fixture.create(Shape::Raid5, 2, 0);
        let group = fixture.import();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        // The sum of what the units hold is no stamp of either.
        let unit = ROW / 2;
        device.write_at(&stamped(0, unit as usize, 1), 0).unwrap();
        device.write_at(&stamped(unit, unit as usize, 4), unit).unwrap();
        device.flush().unwrap();
        // Partial rows are in the parity log, and what is there is written with a record.
        drop((device, group));
        let group = fixture.import();
        let device = group.volume(Role::Data).unwrap();
        fixture.make_all_durable();
        device.write_at(&stamped(0, ROW as usize, 2), 0).unwrap();
        let before = ticks(&fixture);
        fixture.members[dying].die();
        // In the same region: a new bit in the dirty region log would be flushed.
        with_mistake(mistake, || device.write_at(&stamped(ROW, ROW as usize, 3), ROW)).unwrap();
        drop((device, group));
        let moments = fixture.moments();
        for moment in moments.iter().filter(|moment| moment.iter().sum::<usize>() >= before) {
            for choice in 0..6 {
                let images = fixture.after_cut(moment, choice);
                let left: Vec<Arc<dyn BlockDevice>> = (0..MEMBERS)
                    .filter(|at| *at != dying)
                    .map(|at| Arc::clone(&images[at]) as _)
                    .collect();
                let newest = left
                    .iter()
                    .filter_map(|device| Label::read(&**device).ok())
                    .max_by_key(|label| label.config.event)
                    .unwrap();
                if newest.config.members[dying].state != MemberState::Failed {
                    continue;
                }
                let group = Group::import(&left, &quiet()).unwrap();
                let mut seen = AlignedBuf::zeroed(ROW as usize);
                group.volume(Role::Data).unwrap().read_at(&mut seen, 0).unwrap();
                let is_torn = |(sector, address): &(&[u8], u64)| {
                    !std::panic::catch_unwind(|| stamp_of(sector, *address)).is_ok_and(|number| {
                        number == 2 || number == if *address < unit { 1 } else { 4 }
                    })
                };
                torn += seen.chunks(512).zip((0..).step_by(512)).filter(is_torn).count();
                states += 1;
            }
        }
    }
    assert!(states > 0, "the failure is known to those that are left");
    println!(
        "RAID-5, power cuts once a member counts as failed: {states} states tried, {torn} sectors \
         torn"
    );
    torn
}

/// I-PAR-2: and without the flush before, it would be found.
#[test]
fn i_par_2_a_member_counts_as_failed_only_when_whole_rows_are_durable() {
    assert_eq!(torn_after_a_failure(None), 0);
    assert!(torn_after_a_failure(Some(Mistake::HeldRowsNotFlushed)) > 0, "nothing noticed");
}
