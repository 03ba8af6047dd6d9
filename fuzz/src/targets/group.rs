//! Members of a group that say anything: labels, dirty region logs and parity logs, with checksums
//! that fit.
//!
//! What must hold: no I/O outside a member; an import that only reads, and one that refuses, write
//! nothing; what is imported is read, written and made to agree without a panic, and closed it can
//! be imported again.

use std::sync::{Arc, OnceLock};

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, Snapshot};
use bedplate_volume::{Arrangement, Group, ImportOptions, NewGroup, Role, Shape, Target, create};

use crate::checked::Watch;
use crate::input::Input;

const MEMBER_BYTES: u64 = 5 << 20;
/// Instructions that one input may hold.
const PATCHES_MAX: usize = 48;
/// Steps of a relayout that one input may ask for.
const STEPS_MAX: u32 = 64;
/// Where what counts lies on a member, and how much of it: labels, dirty region log, the parity
/// log's heads and records, the kept room, data.
const PLACES: [(u64, u64); 7] = [
    (0, 1024),
    (1 << 20, 1024),
    (2 << 20, 2048),
    (2560 << 10, 8192),
    (2568 << 10, 504 << 10),
    (3584 << 10, 64 << 10),
    (4 << 20, 64 << 10),
];

const QUIET: ImportOptions = ImportOptions { read_only: false, degraded: false, background: false };

/// Groups that were in use when their processes died: two copies, RAID-5, copies of stripes, one
/// behind the other; and between two layouts, walked upward and downward.
fn members(number: u8) -> &'static [Snapshot] {
    static GROUPS: [OnceLock<Vec<Snapshot>>; 6] = [const { OnceLock::new() }; 6];
    let number = usize::from(number & 0x7f) % GROUPS.len();
    let shapes = [
        (Shape::Mirror, 2),
        (Shape::Raid5, 3),
        (Shape::StripeMirror, 4),
        (Shape::Concat, 2),
        (Shape::Stripe, 2),
        (Shape::Stripe, 3),
    ];
    let columns = [None, None, None, None, Some(3), Some(2)];
    GROUPS[number].get_or_init(|| make(shapes[number].0, shapes[number].1, columns[number]))
}

fn make(shape: Shape, count: usize, columns: Option<usize>) -> Vec<Snapshot> {
    let mut memory: Vec<_> = (0..count).map(|_| MemoryDevice::new(MEMBER_BYTES)).collect();
    let devices: Vec<Arc<dyn BlockDevice>> =
        memory.iter().map(|member| Arc::clone(member) as _).collect();
    create(&NewGroup {
        name: "tank".into(),
        data: Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 },
        members: devices.clone(),
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: Some(64 << 10),
        reserve_bytes: 0,
        force: false,
    })
    .expect("members of memory fit together");
    let group = Group::import(&devices, &QUIET).expect("it was just made");
    let volume = group.volume(Role::Data).expect("every group has one");
    for at in [0, 40 << 10, 200 << 10] {
        volume
            .write_at(&AlignedBuf::from_slice(&[0x3c; 12 << 10]), at)
            .expect("memory does not fail");
    }
    if let Some(columns) = columns {
        begin(&group, columns, &mut memory);
    }
    memory.iter().map(|member| member.snapshot()).collect()
}

/// Moves a part of a stripe to more or fewer columns.
fn begin(group: &Group, columns: usize, memory: &mut Vec<Arc<MemoryDevice>>) {
    while memory.len() < columns {
        memory.push(MemoryDevice::new(MEMBER_BYTES));
        group
            .add_member(&(Arc::clone(&memory[memory.len() - 1]) as _))
            .expect("memory does not fail");
    }
    let size_bytes = (columns < memory.len()).then_some(MEMBER_BYTES / 4);
    let target = Target {
        columns: Some(columns),
        size_bytes,
        step_bytes_max: Some(96 << 10),
        ..Target::default()
    };
    group.relayout(Role::Data, &target, 0).expect("it goes in place");
    let mut steps = 0;
    let more = |steps: &mut u32| {
        *steps += 1;
        *steps < 3
    };
    group.run_relayout(&mut |_| more(&mut steps)).expect("memory does not fail");
    assert!(group.relayout_progress().is_some(), "it is not over");
}

/// Patches members as the input says, and does everything to the result.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut members = members(choice).to_vec();
    for _ in 0..PATCHES_MAX {
        if input.is_empty() {
            break;
        }
        patch(&mut input, &mut members);
    }
    if choice & 0x80 == 0 {
        members.iter_mut().for_each(|member| *member = resealed(member));
    }
    for options in [
        ImportOptions { read_only: true, degraded: true, ..QUIET },
        QUIET,
        ImportOptions { degraded: true, ..QUIET },
    ] {
        import(&members, &options);
    }
}

fn resealed(member: &Snapshot) -> Snapshot {
    let memory = MemoryDevice::from_snapshot(member, MemoryDevice::GEOMETRY);
    bedplate_volume::forge::reseal(&*memory).expect("memory does not fail");
    memory.snapshot()
}

/// One member is patched, or all in the same way: members that contradict each other are refused
/// before anything else of them is looked at.
fn patch(input: &mut Input<'_>, members: &mut [Snapshot]) {
    let which = usize::from(input.u8());
    let (start, len) = PLACES[usize::from(input.u8()) % PLACES.len()];
    let offset = input.u24() % len;
    let bytes = usize::from(input.u8()) % 32;
    let bytes = input.bytes(bytes.min(usize::try_from(len - offset).expect("places are small")));
    let all = which >= members.len();
    for member in
        members.iter_mut().skip(if all { 0 } else { which }).take(if all { usize::MAX } else { 1 })
    {
        member.write(bytes, start + offset);
    }
}

fn import(members: &[Snapshot], options: &ImportOptions) {
    let checked: Vec<_> = members.iter().map(|member| Watch::over(member, Vec::new())).collect();
    let devices: Vec<Arc<dyn BlockDevice>> =
        checked.iter().map(|member| Arc::clone(member) as _).collect();
    if options.read_only {
        checked.iter().for_each(|member| member.forbid_writes());
    }
    match Group::import(&devices, options) {
        Ok(group) => {
            use_it(&group, options.read_only);
            drop(group);
            if !options.read_only {
                let again =
                    Group::import(&devices, &ImportOptions { degraded: true, ..QUIET }).map(drop);
                // Of the last event that is believed the import itself makes one that is not.
                let counted_out =
                    |error: &bedplate_volume::Error| error.message.contains("there was no event");
                assert!(
                    again.as_ref().err().is_none_or(counted_out),
                    "it was imported and closed, and now: {again:?}"
                );
            }
        }
        Err(error) => {
            assert!(error.message.len() > 10, "{error:?} explains nothing");
            assert_eq!(
                checked.iter().map(|member| member.writes()).sum::<u64>(),
                0,
                "a refusal writes nothing: {error}"
            );
        }
    }
    checked.iter().for_each(|member| member.assert_obeyed());
}

fn use_it(group: &Group, read_only: bool) {
    for role in [Role::Data, Role::Log] {
        let Some(volume) = group.volume(role) else { continue };
        let mut buf = AlignedBuf::zeroed(96 << 10);
        let last = volume.size_bytes().saturating_sub(buf.len() as u64) / 4096 * 4096;
        for at in [0, last / 2 / 4096 * 4096, last] {
            drop(volume.read_at(&mut buf, at));
            if !read_only {
                drop(volume.write_at(&buf, at));
            }
        }
        drop(volume.flush());
    }
    if !read_only {
        let mut steps = 0;
        drop(group.run_relayout(&mut |_| {
            steps += 1;
            steps < STEPS_MAX
        }));
        drop(group.reverse_relayout());
        drop(group.sync());
        drop(group.clean_up());
    }
}
