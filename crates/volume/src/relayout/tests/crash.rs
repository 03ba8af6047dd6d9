//! Power cuts after every operation of every member.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use bedplate_block::{BlockDevice, DeviceCall, Hook, HookedDevice};
use rand::SeedableRng;

use super::*;
use crate::planted::{Mistake, with_mistake};

/// Moves everything with a workload meanwhile.
fn run(transition: &Transition, seed: u64) -> Scene {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (mut scene, group) = Scene::begin(transition, seed);
    scene.fixture.make_all_durable();
    // The clock begins again.
    scene.history.iter_mut().for_each(|entry| (entry.begun, entry.ended) = (0, 0));
    let mut steps = 0;
    while group.relayout_progress().is_some() {
        scene.work(&group, &mut rng);
        group.run_relayout(&mut |_| false).unwrap();
        steps += 1;
    }
    scene.work(&group, &mut rng);
    let device = group.volume(Role::Data).unwrap();
    scene.check(&*device, "in the end");
    assert!(steps > 2 || transition.used_bytes != ALL, "{}: {steps} steps", transition.name);
    drop(device);
    drop(group);
    scene
}

/// How many moments of a relayout are cut, spread over all of them, unless the environment asks for
/// every one.
const CUTS: usize = 72;
const EVERY_CUT: &str = "BEDPLATE_EVERY_CUT";

/// Cuts the power, in one of six ways each, and once in a while goes on to the end from there.
fn cut(scene: &Scene, cuts: usize) -> usize {
    let moments = scene.fixture.moments();
    let step =
        if std::env::var_os(EVERY_CUT).is_some() { 1 } else { moments.len().div_ceil(cuts) | 1 };
    let mut states = 0;
    for moment in moments.iter().step_by(step) {
        states += 1;
        let choice = states as u64 % 6;
        let context = format!("{}, cut at {moment:?}, choice {choice}", scene.transition.name);
        judge(
            scene,
            &scene.fixture.after_cut(moment, choice),
            moment.iter().sum(),
            states % 16 == 3,
            &context,
        );
    }
    states
}

/// S-90, I-RLY-1, I-RLY-2
#[test]
fn s_90_a_power_cut_after_any_operation_of_a_relayout_loses_nothing() {
    let (all, next, states) = (transitions(), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((at, transition)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, all.get(at)?)))
                {
                    states.fetch_add(cut(&run(transition, 60 + at as u64), CUTS), Relaxed);
                }
            });
        }
    });
    let states = states.into_inner();
    println!("power cuts during relayouts: {states} states tried, 0 violations");
}

/// I-RLY-2: labels that run ahead of what is durable are found.
#[test]
fn i_rly_2_a_label_before_the_flush_would_be_found() {
    for name in ["a column more", "two members to a stripe of the same"] {
        let transition = *transitions().iter().find(|transition| transition.name == name).unwrap();
        let scene = with_mistake(Some(Mistake::LabelsBeforeFlush), || run(&transition, 60));
        let found = catch_unwind(AssertUnwindSafe(|| cut(&scene, usize::MAX)));
        assert!(found.is_err(), "{name}: nothing noticed");
    }
}

/// I-RLY-3: records of a parity log that outlive the rows that they name are found.
#[test]
fn i_rly_3_a_record_of_rows_that_left_would_be_found() {
    let transition = *transitions()
        .iter()
        .find(|transition| transition.name == "a column more in a RAID-5")
        .unwrap();
    let scene = with_mistake(Some(Mistake::RowsStayInLog), || run(&transition, 60));
    let found = catch_unwind(AssertUnwindSafe(|| cut(&scene, 4 * CUTS)));
    assert!(found.is_err(), "nothing noticed");
}

/// A member that lets another thread write to the volume while it is being copied to.
#[derive(Debug)]
struct Meddled {
    tell: mpsc::SyncSender<bool>,
    wait: Arc<parking_lot::Mutex<mpsc::Receiver<()>>>,
}

impl Meddled {
    /// Lets the writer begin, which may be on its way to wait for that; returns whether it did.
    fn tells(&self) -> bool {
        (0..20).any(|_| {
            let told = self.tell.try_send(true).is_ok();
            if !told {
                std::thread::sleep(Duration::from_millis(1));
            }
            told
        })
    }
}

impl Hook for Meddled {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> ::bedplate_block::Result<()>,
    ) -> ::bedplate_block::Result<()> {
        // Only a copy writes so much at once; a write that is held up ends when the step has.
        if let DeviceCall::Write { offset, bytes } = call
            && bytes.len() > 8192
            && offset >= crate::layout::SCRATCH_START
            && self.tells()
        {
            let wait = self.wait.lock();
            // What was told after an earlier copy had stopped waiting is not about this one.
            while wait.try_recv().is_ok() {}
            let _held_up = wait.recv_timeout(Duration::from_millis(300));
        }
        pass()
    }
}

/// Writes to one place again and again from another thread, in the middle of the copies, and
/// returns how many sectors lost their last write.
fn lost_writes(shape: Shape, columns: usize, mistake: Option<Mistake>) -> usize {
    let (ask, asked) = mpsc::sync_channel(0);
    let (reply, replied) = mpsc::channel();
    let wait = Arc::new(parking_lot::Mutex::new(replied));
    let member = || MemoryDevice::new(super::super::fixture::MEMBER_BYTES);
    let meddled = |_| {
        HookedDevice::new(member(), Meddled { tell: ask.clone(), wait: Arc::clone(&wait) })
            as Arc<dyn BlockDevice>
    };
    let devices: Vec<Arc<dyn BlockDevice>> = (0..columns).map(meddled).collect();
    crate::create(&new_group(shape, 2, devices[..2].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&devices[..2], &quiet()).unwrap();
    devices[2..].iter().for_each(|device| group.add_member(device).unwrap());
    let target = Target {
        shape: Some(Shape::Stripe),
        columns: Some(columns),
        step_bytes_max: Some(1 << 20),
        ..Target::default()
    };
    group.relayout(Role::Data, &target, 2 << 20).unwrap();
    let device = group.volume(Role::Data).unwrap();
    let (mut last, meddler) = (vec![0; 4096], Arc::clone(&device));
    let writer = std::thread::spawn(move || {
        for number in 1.. {
            if asked.recv() != Ok(true) {
                return last;
            }
            for at in (0..4096_u64).step_by(64) {
                meddler.write_at(&stamped(at * 512, 512, number), at * 512).unwrap();
                last[at as usize] = number;
            }
            // The waiting copy may have gone on already.
            let _told = reply.send(());
        }
        last
    });
    with_mistake(mistake, || group.run_relayout(&mut |_| true)).unwrap();
    ask.send(false).unwrap();
    // Its last writes may have waited for the end of a step.
    let last: Vec<u64> = writer.join().unwrap();
    let now = seen(&*device, 2 << 20);
    now.iter().zip(last).filter(|((_, number), last)| number != last).count()
}

/// I-RLY-2: writes that arrive while their range is copied are in the new place; that they were not
/// would be found.
#[test]
fn i_rly_2_writes_wait_for_the_copy_of_their_range() {
    // A column more, and two members that change places in cycles.
    for (shape, columns) in [(Shape::Stripe, 3), (Shape::Concat, 2)] {
        assert_eq!(lost_writes(shape, columns, None), 0);
        // On a busy machine the writer may not come in time: it is given the chance again.
        assert!(
            (0..20).any(|_| lost_writes(shape, columns, Some(Mistake::WritesNotHeld)) > 0),
            "nothing noticed"
        );
    }
}
