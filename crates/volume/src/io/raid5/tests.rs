//! Sums, and power cuts while the parity log starts over.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use crate::planted::{Mistake, with_mistake};
use crate::relayout::fixture::{Acknowledged, Fixture, allowed, quiet, stamp_of, stamped, ticks};
use crate::{Group, ImportOptions, Role, Shape};

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
    fixture.settle();
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
            let mut seen = ::bedplate_block::AlignedBuf::zeroed((20 * ROW) as usize);
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
        "RAID-5, power cuts and a member lost while the parity log starts over: {states} states tried, {wrong} sectors wrong"
    );
    wrong
}

/// I-PAR-3: and without the flush before, it would be found.
#[test]
fn i_par_3_the_log_starts_over_only_when_its_rows_are_durable() {
    assert_eq!(wrong_after_restart(None), 0);
    assert!(wrong_after_restart(Some(Mistake::LogRestartsBeforeFlush)) > 0, "nothing noticed");
}
