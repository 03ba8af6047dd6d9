//! A process with leases beside the mount: what it does by itself is judged as everything else is.

use bedplate_fs::{IoMode, PlantedBug};
use bedplate_sim::{Cuts, Effort, On, Setup, Step, Violation, generate, try_steps};

const LEASED: Setup = Setup { leases: true, ..Setup::DISK };
const HELD: On = On::Held(0);
const PAGE: u32 = 8192;

fn write(page: u64, fill: u8) -> Step {
    Step::Write(HELD, IoMode::Concurrent, page * u64::from(PAGE), PAGE, fill, false)
}

/// A file that is open, of eight pages, of which no record vouches for bytes any more.
fn prelude() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Hold(0, 0, 0, IoMode::Concurrent)];
    steps.extend((0..8).map(|page| write(page, 1)));
    for other in 1..4 {
        steps.extend([Step::Sync, Step::Create(other, 0)]);
    }
    steps.extend([Step::Sync, Step::Read(HELD, IoMode::Concurrent, 0, PAGE)]);
    steps
}

/// Every kind of I/O under a lease, and what takes it back.
fn workload() -> Vec<Step> {
    let mut steps = prelude();
    let read = || Step::Read(HELD, IoMode::Concurrent, 0, 2 * PAGE);
    steps.extend([write(1, 2), Step::SyncData(HELD), write(8, 3), write(9, 4), read()]);
    steps.extend([Step::SyncData(HELD), write(10, 6), Step::Sync, write(10, 7)]);
    steps.extend([Step::Checkpoint(0, None), write(1, 8), read(), write(2, 9)]);
    steps.push(Step::Write(HELD, IoMode::Concurrent, 100, 50, 11, false));
    steps.extend([read(), write(0, 12), Step::SetSize(HELD, 4 * u64::from(PAGE))]);
    steps.extend([write(1, 13), Step::Sync, write(3, 14), Step::SyncData(HELD)]);
    let cut = Step::SetSize(HELD, u64::from(PAGE));
    steps.extend([Step::Sync, Step::During(Box::new(write(2, 16)), Box::new(cut), vec![1])]);
    let other = |at| Step::Write(On::Name(1, 0), IoMode::Concurrent, at, PAGE, 17, false);
    steps.extend((0..8).map(|page| other(page * u64::from(PAGE))));
    // The mount holds an odd write of a leased file.
    let read = || Step::Read(HELD, IoMode::Concurrent, 0, 4096);
    steps.extend([Step::Release(0), Step::Sync, Step::Hold(0, 0, 0, IoMode::Concurrent), read()]);
    steps.push(Step::Write(HELD, IoMode::Concurrent, 100, 50, 15, false));
    steps.extend([read(), Step::Release(0), Step::Sync]);
    steps
}

/// A log that grows in odd pieces, which a process appends in memory that it shares with the mount, and
/// what takes them from there.
fn log_workload() -> Vec<Step> {
    let mut end = 0;
    let mut append = |len: u32, fill: u8| {
        let step = Step::Write(HELD, IoMode::Concurrent, end, len, fill, false);
        end += u64::from(len);
        step
    };
    let mut steps = vec![Step::Create(0, 0), Step::Hold(0, 0, 0, IoMode::Concurrent)];
    steps.push(Step::Read(HELD, IoMode::Concurrent, 0, 512));
    let read = || Step::Read(HELD, IoMode::Concurrent, 0, 4 * PAGE);
    steps.extend((1..9).map(|fill| append(701, fill)));
    steps.extend([read(), append(33, 10), append(4000, 11), Step::SyncData(HELD), append(900, 12)]);
    let (during, last) = (append(10, 13), append(8192, 14));
    let sync = || Box::new(Step::SyncData(HELD));
    steps.extend([Step::During(sync(), Box::new(during), vec![1]), last, Step::Sync]);
    steps.extend([append(77, 15), Step::Checkpoint(0, None), append(78, 16), append(79, 17)]);
    // The mount is asked for a write that begins within what was appended, and may wait there.
    steps.extend([Step::Hold(1, 0, 0, IoMode::Concurrent), read(), append(500, 23)]);
    let Step::Write(_, mode, at, len, ..) = append(501, 24) else { unreachable!("it writes") };
    steps.push(Step::Write(On::Held(1), mode, at - 500, 500 + len, 25, false));
    steps.extend([read(), append(502, 26), Step::Release(1)]);
    steps.extend([append(80, 18), read(), Step::During(sync(), Box::new(read()), vec![2])]);
    // Another open makes it grow, and the process goes on.
    let (other, next) = (append(100, 19), [append(600, 20), append(601, 21), append(602, 22)]);
    let Step::Write(_, mode, at, len, fill, durable) = other else { unreachable!("it writes") };
    steps.push(Step::Write(On::Name(0, 0), mode, at, len, fill, durable));
    steps.extend(next);
    steps.extend([Step::SetSize(HELD, 5000), Step::Sync, Step::Release(0), Step::Sync]);
    steps
}

/// A file that a process writes over in order, in memory that it shares with the mount, and what takes
/// that from there.
fn stream_workload() -> Vec<Step> {
    let mut steps = prelude();
    // As a mount opens files: writes may wait.
    steps.push(Step::Hold(1, 0, 0, IoMode::Concurrent));
    let write = |page: u64, fill| {
        Step::Write(On::Held(1), IoMode::Concurrent, page * u64::from(PAGE), PAGE, fill, false)
    };
    let read = || Step::Read(HELD, IoMode::Concurrent, 0, 8 * PAGE);
    let odd = |page: u64, fill| {
        Step::Write(HELD, IoMode::Concurrent, page * u64::from(PAGE) + 100, 50, fill, false)
    };
    let stream = |fill: u8| (0..7).map(move |page| write(page, fill + page as u8));
    let sync = || Box::new(Step::SyncData(HELD));
    steps.extend(stream(10).chain([read(), write(5, 17), odd(5, 18), write(6, 19), odd(5, 20)]));
    steps.extend([read(), Step::SyncData(HELD), write(4, 21), write(4, 22)]);
    steps.extend([Step::During(sync(), Box::new(write(5, 23)), vec![1]), read(), Step::Sync]);
    // Growth beside it.
    steps.extend([write(8, 24), write(3, 25), write(9, 26), write(8, 27), Step::SyncData(HELD)]);
    steps.extend([write(2, 28), Step::Checkpoint(0, None), write(2, 29), read()]);
    steps.extend(stream(30).chain([Step::Sync]).chain(stream(40)).chain([read()]));
    let cut = Step::SetSize(HELD, 6 * u64::from(PAGE));
    steps.extend([Step::During(Box::new(write(5, 50)), Box::new(cut), vec![1]), write(0, 51)]);
    steps.extend(stream(60).chain([Step::Release(0), Step::Release(1), Step::Sync]));
    steps
}

fn effort(cuts: Cuts) -> Effort {
    Effort { cuts, second_cut_every: 0, second_life_every: 0, ..Effort::default() }
}

#[test]
fn s_172_s_210_s_211_s_355_what_leases_permit_survives_cuts() {
    let mut leased = 0;
    let directed = (1, LEASED, workload(), Cuts::Every(2));
    let random =
        (1..).map(|seed| (seed, generate(seed, 30))).filter(|(_, (setup, _))| setup.leases);
    let random =
        random.take(3).map(|(seed, (setup, steps))| (seed, setup, steps, Cuts::Random(20)));
    for (seed, setup, steps, cuts) in std::iter::once(directed).chain(random) {
        match try_steps(seed, &setup, &steps, &effort(cuts)) {
            Ok(tally) => leased += tally.leased,
            Err(violation) => panic!("{violation}"),
        }
    }
    assert!(leased > 10, "{leased} calls were made under leases");
}

/// What a process appends in memory is judged as what it writes.
#[test]
fn s_288_s_289_s_292_what_a_process_appends_survives_cuts() {
    let judged = try_steps(1, &LEASED, &log_workload(), &effort(Cuts::Every(1)));
    let tally = judged.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(tally.leased > 15, "{} appends were made", tally.leased);
}

/// So is what it writes over.
#[test]
fn s_516_s_517_s_518_what_a_process_writes_over_survives_cuts() {
    let judged = try_steps(1, &LEASED, &stream_workload(), &effort(Cuts::Every(1)));
    let tally = judged.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(tally.leased > 30, "{} writes were made", tally.leased);
}

/// The judge knows by leases when what they rest on is missing.
fn finds(bug: PlantedBug) {
    finds_in(bug, &workload());
}

fn finds_in(bug: PlantedBug, steps: &[Step]) {
    bedplate_fs::plant(Some(bug));
    let found: Option<Box<Violation>> =
        (1..=6).find_map(|seed| try_steps(seed, &LEASED, steps, &effort(Cuts::Every(3))).err());
    let found = found.unwrap_or_else(|| panic!("{bug:?} went unnoticed"));
    println!("{bug:?}: found: {}", found.what);
}

#[test]
fn s_172_blocks_of_a_checkpoint_that_leases_write_to() {
    finds(PlantedBug::LeaseOutlivesCheckpoint);
}

#[test]
fn s_210_a_write_that_is_held_while_leases_read() {
    finds(PlantedBug::LeasedWhileHeld);
}

#[test]
fn s_211_a_map_of_blocks_that_left_the_file() {
    finds(PlantedBug::LeaseMapNotRewritten);
}

/// S-354: what reads at the end of a file in the middle of a sync of it finds what had been written
/// there.
#[test]
fn s_354_a_read_in_the_middle_of_a_sync_finds_the_growth() {
    let judged = |bug| {
        bedplate_fs::plant(bug);
        let turned = (1..12).map(|turn| {
            let (sync, at) = (Step::SyncData(HELD), 9 * u64::from(PAGE));
            // Longer than the file: the mount reads.
            let read = Step::Read(HELD, IoMode::Concurrent, at, 2 * PAGE);
            let during = Step::During(Box::new(sync), Box::new(read), vec![turn]);
            let steps = [prelude(), vec![write(8, 3), write(9, 4), during]].concat();
            try_steps(1, &LEASED, &steps, &effort(Cuts::Random(1)))
        });
        turned.filter_map(Result::err).next()
    };
    let found = judged(Some(PlantedBug::TailCollectedEarly));
    let found = found.expect("TailCollectedEarly went unnoticed");
    println!("TailCollectedEarly: found: {}", found.what);
    if let Some(violation) = judged(None) {
        panic!("{violation}");
    }
}

#[test]
fn s_355_growth_that_a_sync_leaves_out() {
    finds(PlantedBug::TailNotSynced);
}

#[test]
fn s_289_appends_that_a_sync_leaves_out() {
    finds_in(PlantedBug::TailNotSynced, &log_workload());
}

#[test]
fn s_517_overwrites_that_a_sync_leaves_out() {
    finds_in(PlantedBug::TailNotSynced, &stream_workload());
}

#[test]
fn s_516_what_was_written_over_and_is_not_taken() {
    finds_in(PlantedBug::OverwritesNotTaken, &stream_workload());
}

/// I-LEA-12: the assert finds it before the judge does.
#[test]
#[should_panic(expected = "I-LEA-12")]
fn s_292_growth_beside_a_process_that_appends() {
    finds_in(PlantedBug::GrowthBesideAppends, &log_workload());
}

#[test]
fn s_355_growth_that_is_told_before_it_is_on_the_device() {
    finds(PlantedBug::TailWithoutBarrier);
}
