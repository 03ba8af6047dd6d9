//! Members of groups that die in the middle of a step, cannot be read in places, rot, go and come
//! back old or written over: what is promised of them holds, and mistakes in keeping it are
//! noticed.

use bedplate_fs::{IoMode, PlantedBug};
use bedplate_sim::{Ailment, Backend, Cuts, Effort, On, Setup, Step, try_interleaved, try_steps};
use bedplate_volume::Mistake;

/// Seeds are tried from the one on that is named; more are not looked at for one mistake.
const SEEDS_MAX: u64 = 40;

fn effort(cuts: usize) -> Effort {
    Effort { steps: 60, cuts: Cuts::Around(cuts), second_cut_every: 4, second_life_every: 0 }
}

/// Plants a mistake and looks for a broken promise in workloads on groups.
fn finds(mistake: Mistake, backends: &[Backend], first: u64) {
    bedplate_volume::plant(Some(mistake));
    let mut states = 0;
    for seed in first..first + SEEDS_MAX {
        match try_interleaved(seed, backends, &effort(6)) {
            Ok(tally) => states += tally.states,
            Err(violation) => {
                return println!(
                    "{mistake:?}: seed {seed}, state {}: {}",
                    states + violation.states + 1,
                    violation.what
                );
            }
        }
    }
    panic!("{mistake:?} went unnoticed in {states} states");
}

/// S-60, S-61, S-62, S-63, S-64, S-107, S-108, S-130: members fail in every way, and nothing is
/// lost.
#[test]
fn s_60_s_61_s_63_s_64_s_107_s_130_groups_stand_members_that_die_rot_and_come_back() {
    for seed in 1..=4 {
        if let Err(violation) = try_interleaved(seed, &Backend::GROUPS, &effort(3)) {
            panic!("{violation}");
        }
    }
}

/// Runs steps on a group with a mistake.
fn finds_in(mistake: Mistake, backend: Backend, steps: &[Step]) {
    bedplate_volume::plant(Some(mistake));
    let violation = try_steps(1, &Setup { backend, ..Setup::SMALL }, steps, &effort(20))
        .expect_err("nothing noticed it");
    println!("{mistake:?}: state {}: {}", violation.states + 1, violation.what);
    bedplate_volume::plant(None);
    assert!(
        try_steps(1, &Setup { backend, ..Setup::SMALL }, steps, &effort(2)).is_ok(),
        "without the mistake all is well"
    );
}

fn write(fill: u8) -> Step {
    Step::Write(On::Name(0, 0), IoMode::Concurrent, 0, 40_000, fill, true)
}

/// S-130
#[test]
fn a_label_that_is_not_compared() {
    for backend in Backend::GROUPS {
        finds_in(
            Mistake::LabelNotCompared,
            backend,
            &[Step::Create(0, 0), write(7), Step::Overwrite(1, false), write(8)],
        );
    }
}

/// What becomes of a file with checksums of which one copy after the other rots, of a mirror.
fn decays() -> Vec<Step> {
    let write = |at, fill, durable| {
        Step::Write(On::Name(0, 0), IoMode::Concurrent, at, 20_000, fill, durable)
    };
    let decay = |number| Step::Ail(0, Ailment::Decays(number));
    vec![
        Step::SetIntegrity(None, 0, true),
        Step::Create(0, 0),
        write(0, 1, false),
        write(20_000, 2, true),
        decay(3),
        write(8192, 3, false),
        Step::Checkpoint(0, None),
        decay(7),
        write(0, 4, true),
        Step::Clone(None, 0, 0, 1),
        decay(11),
        Step::Kill,
        decay(2),
        write(4096, 5, true),
        Step::Vanish(0),
        write(12_288, 6, true),
        Step::Return,
        Step::Remount,
        decay(5),
        Step::Scrub,
        Step::Rollback(0, bedplate_sim::Back::Everything, false),
        Step::Sync,
    ]
}

/// S-284, S-418: a power cut at any moment, a kill, a member that goes and comes back, checkpoints and
/// rollbacks, while copies of blocks with checksums are rotten: nothing is read that was not written.
#[test]
fn s_418_power_cuts_while_copies_rot() {
    let setup = Setup { backend: Backend::Mirror, ..Setup::SMALL };
    let effort = Effort { cuts: Cuts::Random(120), ..Effort::default() };
    if let Err(violation) = try_steps(1, &setup, &decays(), &effort) {
        panic!("{violation}");
    }
    for seed in 1..=2 {
        if let Err(violation) = try_interleaved(seed, &[Backend::Mirror], &self::effort(3)) {
            panic!("{violation}");
        }
    }
}

/// Copies that are made alike before their checksums are looked at are noticed.
#[test]
fn s_418_a_rotten_copy_that_counts_by_being_the_first() {
    bedplate_fs::plant(Some(PlantedBug::DoubtfulDataNotCompared));
    let setup = Setup { backend: Backend::Mirror, ..Setup::SMALL };
    let effort = Effort { cuts: Cuts::Every(3), ..Effort::default() };
    let violation = try_steps(1, &setup, &decays(), &effort).expect_err("nothing noticed it");
    println!("state {}: {}", violation.states + 1, violation.what);
    bedplate_fs::plant(None);
}

#[test]
fn a_read_that_is_not_tried_on_the_other_copy() {
    finds(Mistake::ReadNotTriedElsewhere, &[Backend::Mirror], 4);
}

#[test]
fn a_copy_that_is_behind_and_copied_from() {
    finds(Mistake::FirstCopyBelieved, &[Backend::Mirror], 2);
}

#[test]
fn rows_that_are_made_of_another() {
    finds(Mistake::FirstRowForAll, &[Backend::Raid5], 2);
}

#[test]
fn a_scrub_that_believes_the_first_copy() {
    finds(Mistake::ScrubBelievesFirst, &[Backend::Mirror], 2);
}

/// What the first copy holds of an earlier life is behind in more than the group noted while it was
/// away.
#[test]
fn an_older_copy_that_counts_as_the_member() {
    let exchanged = Step::Ail(0, Ailment::Exchanged(true));
    let steps = [
        Step::Create(0, 0),
        write(7),
        Step::Remount,
        exchanged,
        Step::Create(1, 0),
        Step::Return,
        Step::Remount,
        Step::Scrub,
    ];
    for backend in Backend::GROUPS {
        finds_in(Mistake::OlderCopyTaken, backend, &steps);
    }
}
