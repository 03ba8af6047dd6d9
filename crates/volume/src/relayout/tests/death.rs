//! A member dies after any of its operations during a relayout; two do.

use rand::SeedableRng;

use super::*;
use crate::planted::{Mistake, with_mistake};
use crate::{ErrorKind, MemberState, RelayoutState};

/// Works and moves until everything has arrived or nothing goes on. Returns the error that stopped
/// it.
fn go_on(scene: &mut Scene, group: &Group, seed: u64) -> Option<crate::Error> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    while group.relayout_progress().is_some() {
        scene.work(group, &mut rng);
        if let Err(error) = group.run_relayout(&mut |_| false) {
            return Some(error);
        }
    }
    None
}

fn images(scene: &Scene) -> Vec<Arc<MemoryDevice>> {
    scene
        .fixture
        .members
        .iter()
        .map(|member| MemoryDevice::from_snapshot(&member.snapshot(), MemoryDevice::GEOMETRY))
        .collect()
}

/// S-92: where there is redundancy, the users of the volume notice nothing, and the relayout goes
/// to its end.
#[test]
fn s_92_a_member_that_dies_during_a_relayout_leaves_and_comes_back() {
    let mut states = 0;
    for (at, transition) in
        transitions().iter().filter(|transition| transition.redundant).enumerate()
    {
        let seed = 80 + at as u64;
        let (mut reference, group) = Scene::begin(transition, seed);
        let victims = [0, transition.members];
        let before: Vec<usize> =
            reference.fixture.members.iter().map(|member| member.operation_count()).collect();
        assert!(go_on(&mut reference, &group, seed).is_none());
        for victim in victims.into_iter().filter(|victim| *victim < before.len()) {
            for dies_after in
                (before[victim] + 1..reference.fixture.members[victim].operation_count()).step_by(9)
            {
                let (mut scene, group) = Scene::begin(transition, seed);
                scene.fixture.members[victim].die_after(dies_after);
                let context =
                    format!("{}: member {victim} died after {dies_after}", transition.name);
                if let Some(error) = go_on(&mut scene, &group, seed) {
                    panic!("{context}: {error}");
                }
                let device = group.volume(Role::Data).unwrap();
                scene.check(&*device, &context);
                drop((device, group));
                // It is back as it was when it died.
                let group = Group::import(
                    &images(&scene).iter().map(|image| Arc::clone(image) as _).collect::<Vec<_>>(),
                    &quiet(),
                )
                .unwrap();
                group.sync().unwrap();
                assert!(
                    group.config().members.iter().all(|member| member.state == MemberState::Active),
                    "{context}"
                );
                scene.check(&*group.volume(Role::Data).unwrap(), &context);
                assert_eq!(
                    group.scrub(false, &crate::Undecided, &mut |_| ()).unwrap().differences,
                    [],
                    "{context}"
                );
                states += 1;
            }
        }
    }
    println!(
        "members that die during a relayout and come back: {states} states tried, 0 violations"
    );
}

/// S-92: without redundancy it stops and says why; when the member is back nothing is lost and it
/// goes on.
#[test]
fn s_92_without_another_copy_a_relayout_stops_and_nothing_is_lost() {
    let mut states = 0;
    for (at, transition) in
        transitions().iter().filter(|transition| !transition.redundant).enumerate()
    {
        let seed = 90 + at as u64;
        let (reference, group) = Scene::begin(transition, seed);
        let last = transition.members + transition.added - 1;
        let before = reference.fixture.members[last].operation_count();
        group.run_relayout(&mut |_| true).unwrap();
        for dies_after in (before + 1..reference.fixture.members[last].operation_count()).step_by(7)
        {
            let (scene, group) = Scene::begin(transition, seed);
            scene.fixture.members[last].die_after(dies_after);
            let context = format!("{}: member {last} died after {dies_after}", transition.name);
            if let Err(error) = group.run_relayout(&mut |_| true) {
                assert!(
                    error.message.contains("the device is gone")
                        || error.message.contains(&format!("member{last} failed")),
                    "{context}: {error}"
                );
                let state = group.relayout_progress().map(|progress| progress.state);
                assert!(
                    state.is_none_or(|state| matches!(
                        state,
                        RelayoutState::Failing(_) | RelayoutState::Running
                    )),
                    "{context}"
                );
            }
            drop(group);
            let mut images = images(&scene);
            let group = match degraded(&images, false) {
                // The volume had left it when it died.
                Err(error) if error.kind == ErrorKind::Outdated => {
                    degraded(&images.drain(..last).collect::<Vec<_>>(), false)
                }
                opened => opened,
            };
            let group = group.unwrap_or_else(|error| panic!("{context}: {error}"));
            scene.check(&*group.volume(Role::Data).unwrap(), &context);
            group.sync().unwrap();
            group.run_relayout(&mut |_| true).unwrap();
            scene.check(&*group.volume(Role::Data).unwrap(), &context);
            states += 1;
        }
    }
    println!(
        "members that die during a relayout without redundancy: {states} states tried, 0 violations"
    );
}

/// Lets member 1 die after any of its operations while a mirror becomes a stripe; says whether
/// something was lost when it is back.
fn dies_on_arrival(mistake: Option<Mistake>) -> bool {
    let transition =
        *transitions().iter().find(|transition| transition.name == "a mirror to a stripe").unwrap();
    let (reference, group) = Scene::begin(&transition, 95);
    let before = reference.fixture.members[1].operation_count();
    group.run_relayout(&mut |_| true).unwrap();
    (before + 1..reference.fixture.members[1].operation_count()).any(|dies_after| {
        let (scene, group) = Scene::begin(&transition, 95);
        scene.fixture.members[1].die_after(dies_after);
        let _stopped = with_mistake(mistake, || group.run_relayout(&mut |_| true));
        drop(group);
        degraded(&images(&scene), false).is_err()
    })
}

/// S-92: what arrives on a member that dies there has not arrived.
#[test]
fn s_92_a_copy_that_is_lost_while_it_arrives_does_not_count() {
    assert!(!dies_on_arrival(None));
    assert!(dies_on_arrival(Some(Mistake::LostCopyCounts)), "nothing noticed");
}

/// S-92
#[test]
fn s_92_two_that_die_are_told_and_nothing_is_written_any_more() {
    let transition = &transitions()[9];
    let (mut scene, group) = Scene::begin(transition, 99);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(99);
    group.run_relayout(&mut |progress| progress.moved_bytes < 2 * STEP).unwrap();
    scene.work(&group, &mut rng);
    let device = group.volume(Role::Data).unwrap();
    scene.flush(&*device);
    scene.fixture.members[0].die();
    scene.fixture.members[1].die();
    let error = group.run_relayout(&mut |_| true).unwrap_err();
    assert!(error.message.contains("the device is gone"), "{error}");
    assert!(matches!(group.relayout_progress().unwrap().state, RelayoutState::Failing(_)));
    drop((device, group));
    let images = images(&scene);
    let error = degraded(&images[2..], false).unwrap_err();
    assert!(
        error.kind == ErrorKind::Broken && error.message.contains("nothing was written"),
        "{error}"
    );
    let group = degraded(&images, false).unwrap();
    scene.check(&*group.volume(Role::Data).unwrap(), "both are back");
    group.run_relayout(&mut |_| true).unwrap();
    scene.check(&*group.volume(Role::Data).unwrap(), "and all has moved");
}
