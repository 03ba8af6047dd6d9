//! Two exclusive changes of a group at one moment: the second begins in the middle of the first,
//! after every few of its operations.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bedplate_block::{BlockDevice, DeviceCall, DeviceQueue, Hook, HookedDevice, QueueOptions};
use bedplate_volume::{
    ErrorKind, Group, ImportOptions, MemberState, Result, Role, Shape, Target, Undecided,
};
use parking_lot::Mutex;

use super::fixture::{Fixture, MEMBER_BYTES, new_group, quiet, stamp_of, stamped};

/// What happens at an operation of a member: after how many more, and what.
type Seam = Arc<Mutex<Option<(usize, Box<dyn FnOnce() + Send>)>>>;

struct Seamed(Seam);

impl std::fmt::Debug for Seamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seamed")
    }
}

impl Hook for Seamed {
    fn call(
        &self,
        _: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let mut seam = self.0.lock();
        let due = match seam.as_mut() {
            Some((0, _)) => seam.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        drop(seam);
        if let Some((_, what)) = due {
            what();
        }
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        inner.queue(options)
    }
}

/// A group whose first member has a seam, and devices that are in no group.
struct Ground {
    group: Group,
    seam: Seam,
    members: Vec<Arc<dyn BlockDevice>>,
    new: Vec<Arc<dyn BlockDevice>>,
    used_bytes: u64,
}

type Change = (&'static str, fn(&Ground) -> Result<()>);

const CHANGES: [Change; 9] = [
    ("relayout", |scene| {
        scene.group.relayout(
            Role::Data,
            &Target { columns: Some(3), ..Target::default() },
            scene.used_bytes,
        )
    }),
    ("shrink", |scene| {
        let to = Target { size_bytes: Some(scene.used_bytes + (64 << 10)), ..Target::default() };
        scene.group.relayout(Role::Data, &to, scene.used_bytes)
    }),
    ("grow", |scene| scene.group.grow(Role::Data, None)),
    ("add", |scene| scene.group.add_member(&scene.new[0])),
    ("spare", |scene| scene.group.add_spare(&scene.new[1])),
    ("remove", |scene| scene.group.remove(scene.group.config().members.last().unwrap().id)),
    ("replace", |scene| scene.group.replace(0, &scene.new[2])),
    ("scrub", |scene| scene.group.scrub(true, &Undecided, &mut |_| ()).map(drop)),
    ("sync", |scene| scene.group.sync()),
];

/// With a member that moved into free space of another.
const GUEST_CHANGES: [Change; 7] = [
    ("unrelocate", |scene| scene.group.unrelocate(1, &scene.new[0])),
    ("relayout", |scene| {
        scene.group.relayout(
            Role::Data,
            &Target { plexes: Some(3), ..Target::default() },
            scene.used_bytes,
        )
    }),
    ("add", |scene| scene.group.add_spare(&scene.new[1])),
    ("remove", |scene| scene.group.remove(2)),
    ("replace", |scene| scene.group.replace(0, &scene.new[2])),
    ("scrub", |scene| scene.group.scrub(true, &Undecided, &mut |_| ()).map(drop)),
    ("sync", |scene| scene.group.sync()),
];

fn scene(fixture: &Fixture, relocated: bool) -> Ground {
    let seam = Seam::default();
    let mut members = fixture.devices();
    members[0] =
        HookedDevice::named("member0".into(), fixture.device(0), Seamed(Arc::clone(&seam)));
    let new = members.split_off(members.len() - 3);
    let (shape, count) = if relocated { (Shape::Mirror, 2) } else { (Shape::StripeMirror, 4) };
    bedplate_volume::create(&new_group(shape, 2, members[..count].to_vec(), Vec::new())).unwrap();
    let group = Group::import(&members[..count], &quiet()).unwrap();
    members[count..].iter().for_each(|device| group.add_member(device).unwrap());
    let device = group.volume(Role::Data).unwrap();
    let used_bytes = device.size_bytes() / 2;
    if !relocated {
        // So that there is something to grow to.
        group
            .relayout(
                Role::Data,
                &Target { size_bytes: Some(used_bytes + (256 << 10)), ..Target::default() },
                used_bytes,
            )
            .unwrap();
    }
    (0..used_bytes)
        .step_by(64 << 10)
        .for_each(|at| device.write_at(&stamped(at, 64 << 10, at / 65_536 + 1), at).unwrap());
    if relocated {
        fixture.members[1].die();
        device.write_at(&stamped(0, 64 << 10, 1), 0).unwrap();
        group.sync().unwrap();
        assert!(group.config().members[1].relocated.is_some(), "it moved");
    }
    Ground { group, seam, members, new, used_bytes }
}

/// Lets the second change begin at an operation of the first; returns how both went, or nothing
/// when the first has no such operation.
fn at_once(
    scene: &Arc<Ground>,
    (first, second): (&Change, &Change),
    after: usize,
) -> Option<[Result<()>; 2]> {
    let (other, handle) = (second.1, Arc::new(Mutex::new(None)));
    let (thread, theirs) = (Arc::clone(&handle), Arc::clone(scene));
    let meddle = move || {
        let (tell, told) = mpsc::channel();
        *thread.lock() = Some(std::thread::spawn(move || {
            let done = other(&theirs);
            let _heard = tell.send(());
            done
        }));
        // Time to get as far as it does.
        let _done = told.recv_timeout(Duration::from_millis(5));
    };
    *scene.seam.lock() = Some((after, Box::new(meddle)));
    let done = (first.1)(scene);
    scene.seam.lock().take();
    let joined = handle.lock().take()?.join().unwrap();
    Some([done, joined])
}

/// Checks that what is there is a group like any other, with all its data, now and when it is
/// opened again.
fn check(scene: &Ground, context: &str) {
    let whole = |group: &Group| {
        group.run_relayout(&mut |_| true).unwrap_or_else(|error| panic!("{context}: {error}"));
        group.sync().unwrap_or_else(|error| panic!("{context}: {error}"));
        let device = group.volume(Role::Data).unwrap();
        let mut seen = bedplate_block::AlignedBuf::zeroed(scene.used_bytes as usize);
        device.read_at(&mut seen, 0).unwrap();
        for (sector, at) in seen.chunks(512).zip((0..).step_by(512)) {
            assert_eq!(stamp_of(sector, at), at / 65_536 + 1, "{context}: sector {at}");
        }
        assert_eq!(
            group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences,
            [],
            "{context}"
        );
        let config = group.config();
        let with_data = (0..config.members.len()).filter(|at| config.volume_on(*at).is_some());
        assert!(
            with_data.into_iter().all(|at| config.members[at].state == MemberState::Active),
            "{context}: {config:?}"
        );
    };
    whole(&scene.group);
    scene.group.close().unwrap();
    let devices = scene.members.iter().chain(&scene.new);
    let labels: Vec<_> = devices
        .filter_map(|device| Some((device, bedplate_volume::Label::read(&**device).ok()?)))
        .collect();
    let newest =
        labels.iter().map(|(_, label)| &label.config).max_by_key(|config| config.event).unwrap();
    let placed: Vec<_> = labels
        .iter()
        .filter(|(_, label)| label.has_place_in(newest))
        .map(|(device, _)| Arc::clone(device))
        .collect();
    let again = Group::import(&placed, &ImportOptions { degraded: true, ..quiet() })
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    whole(&again);
}

fn every_pair(changes: &[Change], relocated: bool) -> (usize, usize) {
    let (mut tried, mut refused) = (0, 0);
    for (first, second) in
        changes.iter().flat_map(|first| changes.iter().map(move |second| (first, second)))
    {
        for after in [0, 2, 7, 20] {
            let mut sizes = vec![MEMBER_BYTES; if relocated { 6 } else { 9 }];
            if relocated {
                sizes[2] = 16 << 20;
            }
            let fixture = Fixture::of_sizes(&sizes, 70);
            let scene = Arc::new(scene(&fixture, relocated));
            let context = format!("{} and {} after {after}, guest {relocated}", first.0, second.0);
            let Some(done) = at_once(&scene, (first, second), after) else { break };
            for error in done.into_iter().filter_map(Result::err) {
                assert!(
                    matches!(error.kind, ErrorKind::Invalid | ErrorKind::Busy | ErrorKind::Foreign),
                    "{context}: {error}"
                );
                assert!(
                    !error.message.contains('\n') && error.message.contains("group")
                        || error.kind != ErrorKind::Invalid,
                    "{context}: {error}"
                );
                refused += 1;
            }
            check(&scene, &context);
            tried += 1;
        }
    }
    (tried, refused)
}

/// S-111
#[test]
fn s_111_two_changes_of_a_group_at_one_moment_come_one_after_the_other_or_one_is_refused() {
    let (tried, refused) = every_pair(&CHANGES, false);
    assert!(tried > 130 && refused > 20, "{tried} {refused}");
    println!("two changes of a group at once: {tried} moments, {refused} refusals, 0 violations");
}

/// S-111
#[test]
fn s_111_two_changes_of_a_group_with_a_member_in_free_space_come_one_after_the_other_or_one_is_refused()
 {
    let (tried, refused) = every_pair(&GUEST_CHANGES, true);
    assert!(tried > 50 && refused > 15, "{tried} {refused}");
    println!(
        "two changes of a group with a member in free space at once: {tried} moments, {refused} \
         refusals, 0 violations"
    );
}
