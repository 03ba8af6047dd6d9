//! Relayouts of every kind with a workload meanwhile: power cuts, members that die, turns at any
//! moment, and planted mistakes that are found.

mod crash;
mod death;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fixture::{Acknowledged, Fixture, allowed, new_group, quiet, stamp_of, stamped, ticks};
use crate::{Group, ImportOptions, Role, Shape, Target, Which};

/// From what to what.
#[derive(Debug, Clone, Copy)]
struct Transition {
    name: &'static str,
    shape: Shape,
    members: usize,
    /// Members that bring room.
    added: usize,
    target: Target,
    /// What the file system uses; all where that is more than there is.
    used_bytes: u64,
    /// Whether all of it survives the death of a member at any time.
    redundant: bool,
}

const STEP: u64 = 192 << 10;
const ALL: u64 = u64::MAX;

fn transitions() -> Vec<Transition> {
    let to = Target { step_bytes_max: Some(STEP), ..Target::default() };
    let it = |name, shape, members, added, target| Transition {
        name,
        shape,
        members,
        added,
        target,
        used_bytes: ALL,
        redundant: false,
    };
    let safe = |transition| Transition { redundant: true, ..transition };
    let columns = |columns| Target { columns: Some(columns), ..to };
    let used = |used_bytes, transition: Transition| Transition {
        used_bytes,
        target: Target { size_bytes: Some(used_bytes), ..transition.target },
        ..transition
    };
    vec![
        it("a column more", Shape::Stripe, 2, 1, columns(3)),
        used(1 << 20, it("a column less", Shape::Stripe, 3, 0, columns(2))),
        it("a larger unit", Shape::Stripe, 2, 0, Target { unit_bytes: Some(64 << 10), ..to }),
        it(
            "a smaller unit and a column more",
            Shape::Stripe,
            2,
            1,
            Target { unit_bytes: Some(4 << 10), ..columns(3) },
        ),
        it(
            "one member to a stripe",
            Shape::Concat,
            1,
            2,
            Target { shape: Some(Shape::Stripe), ..columns(3) },
        ),
        used(
            1 << 20,
            it(
                "a stripe to one member",
                Shape::Stripe,
                3,
                0,
                Target { shape: Some(Shape::Concat), ..columns(1) },
            ),
        ),
        it(
            "two members to a stripe elsewhere",
            Shape::Concat,
            2,
            2,
            Target { shape: Some(Shape::Stripe), ..to },
        ),
        it("a plex more", Shape::Stripe, 2, 2, Target { plexes: Some(2), ..to }),
        it(
            "a mirror to a stripe",
            Shape::Mirror,
            2,
            0,
            Target { shape: Some(Shape::Stripe), ..columns(2) },
        ),
        safe(it("a mirror to a stripe over mirrors", Shape::Mirror, 2, 2, columns(2))),
        safe(it(
            "a larger unit over mirrors",
            Shape::StripeMirror,
            4,
            0,
            Target { unit_bytes: Some(32 << 10), ..to },
        )),
        safe(it(
            "a third plex and a column more",
            Shape::MirrorStripe,
            4,
            5,
            Target { plexes: Some(3), ..columns(3) },
        )),
        it(
            "two members to a stripe over the first and a third",
            Shape::Concat,
            2,
            1,
            Target { shape: Some(Shape::Stripe), ..to },
        ),
        it(
            "a stripe to a concatenation of the first and a third",
            Shape::Stripe,
            2,
            1,
            Target { shape: Some(Shape::Concat), ..columns(2) },
        ),
        it(
            "two members to a stripe of the same",
            Shape::Concat,
            2,
            0,
            Target { shape: Some(Shape::Stripe), unit_bytes: Some(4 << 10), ..to },
        ),
        it(
            "three members to a stripe of the same",
            Shape::Concat,
            3,
            0,
            Target { shape: Some(Shape::Stripe), unit_bytes: Some(16 << 10), ..to },
        ),
        it(
            "a stripe to a concatenation of the same",
            Shape::Stripe,
            3,
            0,
            Target { shape: Some(Shape::Concat), ..to },
        ),
        it(
            "a unit above what the scratch area holds",
            Shape::Stripe,
            2,
            0,
            Target { unit_bytes: Some(1 << 20), ..to },
        ),
        it(
            "what a concatenated member holds to another",
            Shape::Concat,
            2,
            1,
            Target { without: Some(Which::At(0)), ..to },
        ),
        it(
            "what a column holds to another member",
            Shape::Stripe,
            3,
            1,
            Target { without: Some(Which::At(1)), ..to },
        ),
        safe(it(
            "what a plex of a column holds to another member",
            Shape::StripeMirror,
            4,
            1,
            Target { without: Some(Which::At(2)), ..to },
        )),
        safe(it(
            "what a column of a RAID-5 holds to another member",
            Shape::Raid5,
            3,
            1,
            Target { without: Some(Which::At(1)), ..to },
        )),
        safe(it("a column more in a RAID-5", Shape::Raid5, 3, 1, columns(4))),
        safe(used(2 << 20, it("a column less in a RAID-5", Shape::Raid5, 4, 0, columns(3)))),
        safe(it(
            "a larger unit in a RAID-5",
            Shape::Raid5,
            4,
            0,
            Target { unit_bytes: Some(32 << 10), ..to },
        )),
        it(
            "a stripe to a RAID-5",
            Shape::Stripe,
            2,
            1,
            Target { shape: Some(Shape::Raid5), ..columns(3) },
        ),
        it("a RAID-5 to a stripe", Shape::Raid5, 3, 0, Target { shape: Some(Shape::Stripe), ..to }),
        safe(it(
            "a mirror to a RAID-5",
            Shape::Mirror,
            2,
            1,
            Target { shape: Some(Shape::Raid5), ..columns(3) },
        )),
        safe(used(
            1 << 20,
            it(
                "a RAID-5 to a mirror",
                Shape::Raid5,
                3,
                0,
                Target { shape: Some(Shape::Mirror), plexes: Some(2), ..to },
            ),
        )),
        it(
            "one member to a RAID-5",
            Shape::Concat,
            1,
            2,
            Target { shape: Some(Shape::Raid5), ..columns(3) },
        ),
        used(
            1 << 20,
            it(
                "a RAID-5 to one member",
                Shape::Raid5,
                3,
                0,
                Target { shape: Some(Shape::Concat), ..columns(1) },
            ),
        ),
    ]
}

/// A volume that is about to get another layout.
struct Scene {
    fixture: Fixture,
    transition: Transition,
    history: Vec<Acknowledged>,
    /// The last write of every sector.
    model: HashMap<u64, u64>,
    used_bytes: u64,
    writes: u64,
}

impl Scene {
    /// Makes the group, fills what is used and begins.
    fn begin(transition: &Transition, seed: u64) -> (Self, Group) {
        let fixture = Fixture::new(transition.members + transition.added, seed);
        let devices = fixture.devices();
        crate::create(&new_group(
            transition.shape,
            2,
            devices[..transition.members].to_vec(),
            Vec::new(),
        ))
        .unwrap();
        let group = Group::import(&devices[..transition.members], &quiet()).unwrap();
        devices[transition.members..].iter().for_each(|device| group.add_member(device).unwrap());
        let device = group.volume(Role::Data).unwrap();
        let used_bytes = transition.used_bytes.min(device.size_bytes());
        let mut scene = Self {
            fixture,
            transition: *transition,
            history: Vec::new(),
            model: HashMap::new(),
            used_bytes,
            writes: 0,
        };
        (0..used_bytes).step_by(64 << 10).for_each(|at| scene.write(&*device, at, 64 << 10));
        scene.flush(&*device);
        drop(device);
        group
            .relayout(Role::Data, &transition.target, used_bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", transition.name));
        (scene, group)
    }

    fn write(&mut self, device: &dyn BlockDevice, offset: u64, len: usize) {
        let begun = ticks(&self.fixture);
        self.writes += 1;
        device
            .write_at(&stamped(offset, len, self.writes), offset)
            .unwrap_or_else(|error| panic!("{}: {error}", self.transition.name));
        self.model.extend((offset..offset + len as u64).step_by(512).map(|at| (at, self.writes)));
        self.history.push(Acknowledged {
            write: Some((offset, len, self.writes)),
            begun,
            ended: ticks(&self.fixture),
        });
    }

    fn flush(&mut self, device: &dyn BlockDevice) {
        let begun = ticks(&self.fixture);
        device.flush().unwrap();
        self.history.push(Acknowledged { write: None, begun, ended: ticks(&self.fixture) });
    }

    /// Writes somewhere, across the place where the relayout is now and then; flushes now and then.
    fn work(&mut self, group: &Group, rng: &mut Xoshiro256PlusPlus) {
        let device = group.volume(Role::Data).unwrap();
        let len = 512 * rng.random_range(1..=80_usize);
        let most = self.used_bytes - len as u64;
        let moved = group.relayout_progress().map_or(0, |progress| progress.moved_bytes);
        let at = if rng.random_range(0..3) == 0 {
            moved.saturating_sub(8192)
        } else {
            rng.random_range(0..=most)
        };
        self.write(&*device, at.min(most) / 512 * 512, len);
        if rng.random_range(0..3) == 0 {
            self.flush(&*device);
        }
    }

    /// Reads everything and compares it with the last writes.
    fn check(&self, device: &dyn BlockDevice, context: &str) {
        for (address, number) in seen(device, self.used_bytes) {
            assert_eq!(
                number,
                self.model.get(&address).copied().unwrap_or(0),
                "{}: {context}: sector {address}",
                self.transition.name
            );
        }
    }
}

/// Returns the write that every sector shows.
fn seen(device: &dyn BlockDevice, bytes: u64) -> Vec<(u64, u64)> {
    let mut buf = AlignedBuf::zeroed(bytes as usize);
    device.read_at(&mut buf, 0).unwrap();
    buf.chunks(512)
        .zip((0..).step_by(512))
        .map(|(sector, address)| (address, stamp_of(sector, address)))
        .collect()
}

fn degraded(members: &[Arc<MemoryDevice>], read_only: bool) -> crate::Result<Group> {
    let devices: Vec<Arc<dyn BlockDevice>> =
        members.iter().map(|member| Arc::clone(member) as _).collect();
    Group::import(&devices, &ImportOptions { degraded: true, read_only, ..quiet() })
}

/// Opens what was left and checks every sector: what is there is allowed, stays while the relayout
/// goes to its end, and every copy has it. An opening that only looked before saw the same (S-109).
fn judge(
    scene: &Scene,
    members: &[Arc<MemoryDevice>],
    cut: usize,
    to_the_end: bool,
    context: &str,
) {
    let looking =
        degraded(members, true).unwrap_or_else(|error| panic!("{context}, to look at: {error}"));
    let looked = seen(&*looking.volume(Role::Data).unwrap(), scene.used_bytes);
    drop(looking);
    let group = degraded(members, false).unwrap_or_else(|error| panic!("{context}: {error}"));
    let device = group.volume(Role::Data).unwrap();
    let before = seen(&*device, scene.used_bytes);
    assert!(looked == before, "{context}: an opening that only looked saw something else");
    for (address, number) in &before {
        let allowed = allowed(&scene.history, *address, cut);
        assert!(
            allowed.contains(number),
            "{context}: sector {address} shows write {number}, allowed are {allowed:?}"
        );
    }
    if to_the_end {
        group.run_relayout(&mut |_| true).unwrap();
        assert_eq!(group.relayout_progress(), None, "{context}");
        assert!(
            seen(&*device, scene.used_bytes) == before,
            "{context}: the rest of the way changed something"
        );
        group.sync().unwrap();
        assert_eq!(
            group
                .scrub(false, &crate::Undecided, &mut |_| ())
                .unwrap()
                .differences
                .iter()
                .find(|one| one.range.start < scene.used_bytes),
            None
        );
    }
}
